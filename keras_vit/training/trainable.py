"""Which weights of a model train: frozen ones, chosen by name, and low-rank adapters (LoRA, arXiv 2106.09685)."""

import difflib
import fnmatch
import json
import os
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path

import keras
import numpy as np

from keras_vit._arguments import whole_number
from keras_vit._keras import layers_inside, own_trainable_weights
from keras_vit.checkpoints.files import write_npz
from keras_vit.models import adapted_layers, layers_by_path, require_adapters, weights_by_path

_ABOUT = "keras_vit_lora"  # the array in a file of adapters that says what they belong to


def freeze(model: keras.Model, patterns: str | Iterable[str]) -> list[str]:
    """Keeps layers from training. Compile the model after this.

    What is frozen stays so in a `.keras` file.

    Args:
        model: The model, changed in place.
        patterns: Names of layers such as `"block_0"`, `"block_[0-5]"`, `"*/attention"` or `"embedding"`, or of weights
            such as `"class_token/token"`, with the wildcards `*`, `?` and `[...]`; a name may begin at any `/`.

    Returns:
        The names of all weights that do not train now.

    Raises:
        TypeError: if a pattern is not a string.
        ValueError: if a pattern fits nothing.

    Examples:
        >>> training.freeze(keras_vit.VisionTransformer(config), "block_0")[:2]
        ['block_0/norm1/gamma', 'block_0/norm1/beta']
    """
    return _set_trainable(model, check_patterns("patterns", patterns), False)


def unfreeze(model: keras.Model, patterns: str | Iterable[str] = "*") -> list[str]:
    """Lets layers train again. Compile the model after this.

    Args:
        model: The model, changed in place.
        patterns: As for `freeze`; all layers where it is left out.

    Returns:
        The names of all weights that do not train now.

    Raises:
        TypeError: if a pattern is not a string.
        ValueError: if a pattern fits nothing.

    Examples:
        >>> frozen = keras_vit.VisionTransformer(config)
        >>> names = training.freeze(frozen, ["block_0", "block_1"])
        >>> len(training.unfreeze(frozen))
        0
    """
    return _set_trainable(model, check_patterns("patterns", patterns), True)


def _set_trainable(model: keras.Model, patterns: tuple[str, ...], trainable: bool) -> list[str]:
    names = list(weights_by_path(model))
    chosen: set[str] = set()
    for pattern in patterns:
        fitting = {name for name in names if fits(name, (pattern,))}
        if not fitting:
            raise nothing_matches(pattern, [*layers_by_path(model), *names])
        chosen |= fitting
    if not trainable:
        return train_only(model, set(trained_weights(model)) - chosen)
    beside = tuple(f"{owner}/" for owner in adapted_layers(model))  # a kernel with adapters stays as it is
    chosen = {name for name in chosen if not name.startswith(beside) or "/lora_kernel" in name}
    return train_only(model, set(trained_weights(model)) | chosen)


def add_lora(
    model: keras.Model,
    rank: int,
    targets: str | Iterable[str] = ("query", "value"),
    *,
    alpha: float | None = None,
    train: str | Iterable[str] = ("head",),
) -> list[str]:
    """Gives layers adapters of low rank and freezes everything else. Compile the model after this.

    A kernel W becomes W + alpha / rank * A B, where A and B train, and W does not. B starts with zeros, so the outputs
    are the same at first. `save_adapters` saves what trains. Keras's own files (`.keras`, `.weights.h5`), pickles and
    copies hold the model with its adapters, and what is frozen; `merge_lora` gives a model without them.

    Args:
        model: The model, changed in place.
        rank: Columns of A and rows of B.
        targets: Dense layers that get adapters: names or patterns as for `freeze`. The default is the usual choice;
            `("query", "key", "value", "out", "fc1", "fc2")` is all of a block.
        alpha: Scale of the adapters; None for `rank`.
        train: Layers that train as they are, and get no adapters; a name that the model does not have is passed over.

    Returns:
        The names of all weights that train now.

    Raises:
        ValueError: if `rank` is no integer of at least 1, the model has adapters, or a target fits nothing that can
            have them.

    Examples:
        >>> adapted = keras_vit.VisionTransformer(config)
        >>> training.add_lora(adapted, rank=2)[:2]
        ['block_0/attention/query/lora_kernel_a', 'block_0/attention/query/lora_kernel_b']
    """
    rank = whole_number("rank", rank, 1)
    layers = layers_by_path(model)
    adapted = adapted_layers(model)
    if adapted:
        raise ValueError(f"{model.name} has adapters, for example at {next(iter(adapted))!r}. merge_lora() first.")
    trained = check_patterns("train", train)
    able = {name: layer for name, layer in layers.items() if hasattr(layer, "enable_lora")}
    chosen: dict[str, keras.layers.Layer] = {}
    for pattern in check_patterns("targets", targets):
        fitting = {name: layer for name, layer in able.items() if matches(name, pattern)}
        if not fitting:
            raise nothing_matches(pattern, able)
        chosen |= {name: layer for name, layer in fitting.items() if not fits(name, trained)}
    for layer in chosen.values():
        layer.enable_lora(rank, lora_alpha=alpha)
    names = weights_by_path(model)
    train_only(model, {name for name in names if "/lora_kernel" in name or fits(name, trained)})
    return list(trained_weights(model))


def save_adapters(model: keras.Model, path: str | os.PathLike[str]) -> Path:
    """Writes what trains beside the frozen model, the adapters and the head, to a small `.npz` file.

    Args:
        model: A model with adapters.
        path: The file; it is replaced when it is complete.

    Returns:
        The path.

    Raises:
        ValueError: if the model has no adapters.

    Examples:
        >>> adapted = keras_vit.VisionTransformer(config)
        >>> names = training.add_lora(adapted, rank=2)
        >>> training.save_adapters(adapted, "adapters.npz").name
        'adapters.npz'
    """
    adapted = require_adapters(model)
    layer = next(iter(adapted.values()))
    about = {"rank": layer.lora_rank, "alpha": float(layer.lora_alpha), "targets": list(adapted)}
    arrays = {name: keras.ops.convert_to_numpy(weight) for name, weight in trained_weights(model).items()}
    arrays[_ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    write_npz(path, arrays.items(), overwrite=True)
    return Path(path)


def load_adapters(model: keras.Model, path: str | os.PathLike[str]) -> list[str]:
    """Adds adapters of a file to a model; the head and whatever else was trained with them comes with it.

    Args:
        model: The model that the adapters were trained on, changed in place. It may have adapters of the same
            layers and rank, which are overwritten.
        path: A file of `save_adapters`.

    Returns:
        The names of all weights that were read.

    Raises:
        ValueError: if the file holds no adapters, or those of another model.

    Examples:
        >>> adapted = keras_vit.VisionTransformer(config)
        >>> names = training.add_lora(adapted, rank=2)
        >>> path = training.save_adapters(adapted, "adapters.npz")
        >>> len(training.load_adapters(keras_vit.VisionTransformer(config), path)) == len(names)
        True
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(arrays.pop(_ABOUT).tobytes())
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ValueError(f"{os.fspath(path)!r} is no file of adapters written by save_adapters().") from error
    shapes = {name: tuple(weight.shape) for name, weight in weights_by_path(model).items()}
    layers = layers_by_path(model)
    for name, array in arrays.items():
        owner, _, attribute = name.rpartition("/")
        missing = owner not in layers or (name not in shapes and not attribute.startswith("lora_kernel"))
        if missing or shapes.get(name, array.shape) != array.shape:
            found = "has none" if missing else f"has {shapes[name]}"
            raise ValueError(
                f"{os.fspath(path)!r} belongs to another model: it holds {name!r} of shape {array.shape}, and "
                f"{model.name} {found}. Build the model as it was: the same variant, classes and patch size."
            )
    others = {name.rpartition("/")[0] for name in arrays} - set(about["targets"])
    if not adapted_layers(model):
        add_lora(model, about["rank"], about["targets"], alpha=about["alpha"], train=sorted(others))
    weights = weights_by_path(model)
    for name, array in arrays.items():
        if name not in weights or tuple(weights[name].shape) != array.shape:
            raise ValueError(f"{model.name} has adapters of other layers or of another rank. merge_lora() first.")
    for name, array in arrays.items():
        weights[name].assign(array)
    for layer in adapted_layers(model).values():
        layer.lora_alpha = about["alpha"]
    return list(arrays)


# Weights by name


def trained_weights(model: keras.Model) -> dict[str, keras.Variable]:
    """The weights of a model that train, by their names."""
    training = {id(weight) for weight in model.trainable_weights}
    return {name: weight for name, weight in weights_by_path(model).items() if id(weight) in training}


def train_only(model: keras.Model, names: Collection[str]) -> list[str]:
    """Lets the weights of some names train and no others; returns the names of the others."""
    frozen = {name: weight for name, weight in weights_by_path(model).items() if name not in names}
    # One by one: on TensorFlow an assignment that does not change the model itself would not reach its layers.
    for layer in layers_inside(model):
        layer.trainable = True
        for weight in own_trainable_weights(layer):
            weight.trainable = True
    for weight in frozen.values():
        weight.trainable = False
    for layer in layers_inside(model, include_self=False):
        inside = [weight for inner in layers_inside(layer) for weight in own_trainable_weights(inner)]
        if inside and not any(weight.trainable for weight in inside):
            layer.trainable = False
    return list(frozen)


def matches(name: str, pattern: str) -> bool:
    """Whether a name such as `"block_0/attention/query/kernel"` fits a pattern.

    Args:
        name: Path of a layer or a weight.
        pattern: The name, or a part of it from some `/` on, with the wildcards of file names: `*` for anything
            (also `/`), `?` for one character, `[0-5]` for one of several. Case matters.
    """
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*/{pattern}")


def fits(name: str, patterns: Iterable[str]) -> bool:
    """Whether a layer or a weight is what a pattern names, or inside it."""
    return any(matches(name, pattern) or matches(name, f"{pattern}/*") for pattern in patterns)


def check_patterns(argument: str, patterns: str | Iterable[str]) -> tuple[str, ...]:
    """Patterns as a tuple, from one or several strings.

    Raises:
        TypeError: if they are anything else.
    """
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"{argument} must be a string or several, but {pattern!r} was among them.")
    return patterns


def nothing_matches(pattern: str, names: Iterable[str]) -> ValueError:
    """The error that says that a pattern fits no name, with the names that are most like it."""
    names = list(names)
    near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5) or names[:3]
    return ValueError(
        f"{pattern!r} fits no layer and no weight of this model; there are {', '.join(map(repr, near))} and "
        f"{max(len(names) - len(near), 0)} more. Wildcards are * ? and [...], as in 'block_*' or '*/mlp'."
    )
