"""Which weights of a model train, and how fast: freezing, adapters (LoRA, arXiv 2106.09685), rates per layer."""

import difflib
import json
import os
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path

import keras
import numpy as np

from keras_vit._arguments import check_number, check_patterns, listing, matches, whole_number
from keras_vit._keras import layers_inside, own_trainable_weights, register_weights
from keras_vit.checkpoints.files import write_npz
from keras_vit.models import DenseModel, adapted_layers, layers_by_path, require_adapters, weights_by_path

HEADS = ("head", "head_norm", "queries", "mask_head", "class_head", "upscale_*")  # layers that train beside adapters
_ABOUT = "keras_vit_lora"  # the array in a file of adapters that says what they belong to


def freeze(model: keras.Model, patterns: str | Iterable[str]) -> list[str]:
    """Keeps layers from training, also those of a `.keras` file of the model. Compile the model after this.

    Args:
        model: The model, changed in place.
        patterns: Names of layers such as `"block_0"`, `"block_[0-5]"`, `"*/attention"` or `"embedding"`, or of weights
            such as `"class_token/token"`, with the wildcards `*`, `?` and `[...]`; a name may begin at any `/`.
            `"backbone"` is all that a segmentation or depth model has below its head.

    Returns:
        The names of all weights that do not train now.

    Raises:
        TypeError: if a pattern is not a string.
        ValueError: if a pattern fits nothing.

    Examples:
        >>> training.freeze(keras_vit.VisionTransformer(config), "block_0")[:2]
        ['block_0/norm1/gamma', 'block_0/norm1/beta']
    """
    return _train_only(model, set(_trained_weights(model)) - _weights_named(model, patterns))


def unfreeze(model: keras.Model, patterns: str | Iterable[str] = "*") -> list[str]:
    """Lets layers train again, all where no patterns are given; arguments and errors are those of `freeze`.

    Returns:
        As in `freeze`: the names of the layers that do not train now.

    Examples:
        >>> frozen = keras_vit.VisionTransformer(config)
        >>> names = training.freeze(frozen, ["block_0", "block_1"])
        >>> len(training.unfreeze(frozen))
        0
    """
    adapted = tuple(f"{owner}/" for owner in adapted_layers(model))  # a kernel with adapters stays frozen
    chosen = _weights_named(model, patterns)
    chosen = {name for name in chosen if not name.startswith(adapted) or "/lora_kernel" in name}
    return _train_only(model, set(_trained_weights(model)) | chosen)


def _weights_named(model: keras.Model, patterns: str | Iterable[str]) -> set[str]:
    """The names of the weights that patterns fit, or that lie in layers that do; the errors are those of `freeze`."""
    names = list(weights_by_path(model))
    if "backbone" in patterns and isinstance(model, DenseModel):
        patterns = [pattern for pattern in check_patterns("patterns", patterns) if pattern != "backbone"]
        patterns += [layer.name for layer in model.backbone.layers if layer.weights]
    return set(_named(check_patterns("patterns", patterns), names, [*layers_by_path(model), *names]))


def _named(patterns: Iterable[str], names: Iterable[str], known: Iterable[str]) -> list[str]:
    """The names that patterns fit, and those inside them; a ValueError, with the nearest known ones, if none is."""
    chosen: dict[str, None] = {}  # in the order of the patterns
    for pattern in patterns:
        fitting = dict.fromkeys(name for name in names if _is_inside(name, (pattern,)))
        if not fitting:
            known = list(known)
            near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.5) or known[:3]
            raise ValueError(
                f"{pattern!r} fits no layer and no weight of this model that it is for; there are {listing(near)} and "
                f"{max(len(known) - len(near), 0)} more. Wildcards are * ? and [...], as in 'block_*' or '*/mlp'."
            )
        chosen |= fitting
    return list(chosen)


def _is_inside(name: str, patterns: Iterable[str]) -> bool:
    """Whether something is what a pattern names, or inside it."""
    return any(matches(name, pattern) or matches(name, f"{pattern}/*") for pattern in patterns)


def _trained_weights(model: keras.Model) -> dict[str, keras.Variable]:
    """The weights that train now, by their names."""
    training = {id(weight) for weight in model.trainable_weights}
    return {name: weight for name, weight in weights_by_path(model).items() if id(weight) in training}


def _train_only(model: keras.Model, names: Collection[str]) -> list[str]:
    """Lets the weights of these names train and no others; returns the names of the others."""
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


def add_lora(
    model: keras.Model,
    rank: int,
    targets: str | Iterable[str] = ("query", "value"),
    *,
    alpha: float | None = None,
    train: str | Iterable[str] = HEADS,
) -> list[str]:
    """Gives layers adapters of low rank and freezes everything else. Compile the model after this.

    A kernel W becomes W + alpha / rank * A B, where A and B train, and W does not. B starts with zeros, so the outputs
    are the same at first. `save_adapters` saves what trains. Keras's own files, pickles and copies hold the model with
    its adapters, and what is frozen; `merge_lora` gives a model without them.

    Args:
        model: The model, changed in place.
        rank: Columns of A and rows of B.
        targets: Dense layers that get adapters, or what they are in: patterns as for `freeze`;
            `("query", "key", "value", "out", "fc1", "fc2")` is all of a block.
        alpha: Scale of the adapters; None for `rank`.
        train: Layers that train as they are, and get no adapters; a name that the model does not have is passed over.

    Returns:
        The names of all weights that train now.

    Raises:
        ValueError: if `rank` is wrong, the model has adapters, or a target fits nothing that can have them.

    Examples:
        >>> adapted = keras_vit.VisionTransformer(config)
        >>> training.add_lora(adapted, rank=2)[:2]
        ['block_0/attention/query/lora_kernel_a', 'block_0/attention/query/lora_kernel_b']
    """
    rank = whole_number("rank", rank, 1)
    if adapted_layers(model):
        raise ValueError(f"{model.name} has adapters. merge_lora() first.")
    trained = check_patterns("train", train)
    able = {name: layer for name, layer in layers_by_path(model).items() if hasattr(layer, "enable_lora")}
    for name in _named(check_patterns("targets", targets), able, able):
        if not _is_inside(name, trained):
            able[name].enable_lora(rank, lora_alpha=alpha)
    register_weights(model)
    names = weights_by_path(model)
    _train_only(model, {name for name in names if "/lora_kernel" in name or _is_inside(name, trained)})
    # Functions that were compiled before hold kernels without adapters.
    model.predict_function = model.test_function = model.train_function = None
    return list(_trained_weights(model))


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
    arrays = {name: keras.ops.convert_to_numpy(weight) for name, weight in _trained_weights(model).items()}
    arrays[_ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    write_npz(path, arrays.items(), overwrite=True)
    return Path(path)


def load_adapters(model: keras.Model, path: str | os.PathLike[str]) -> list[str]:
    """Adds adapters of a file to a model, and the head and whatever else was trained with them.

    Args:
        model: The model that they were trained on, changed in place. Adapters of the same layers and rank are
            overwritten.
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
    layers, new = layers_by_path(model), not adapted_layers(model)
    shapes = {name: tuple(weight.shape) for name, weight in weights_by_path(model).items()}
    for name, array in arrays.items():
        layer, _, kind = name.rpartition("/")
        to_come = new and layer in layers and kind in ("lora_kernel_a", "lora_kernel_b")
        if not to_come and shapes.get(name) != array.shape:
            raise ValueError(
                f"{os.fspath(path)!r} belongs to another model: it holds {name!r} of shape {array.shape}, and that of "
                f"{model.name} is {shapes.get(name)}. Build the model as it was, with the same variant, classes and "
                "patch size, and with no adapters of other layers or of another rank (merge_lora)."
            )
    if new:
        others = {name.rpartition("/")[0] for name in arrays} - set(about["targets"])
        add_lora(model, about["rank"], about["targets"], alpha=about["alpha"], train=sorted(others))
    weights = weights_by_path(model)
    for name, array in arrays.items():
        weights[name].assign(array)
    for layer in adapted_layers(model).values():
        layer.lora_alpha = about["alpha"]
    return list(arrays)


def layer_decay(model: keras.Model, rate: float) -> dict[str, float]:
    """Multipliers that give a layer the lower a learning rate the nearer it is to the image.

    1 for the head and whatever else comes after the blocks, `rate` for the last block, `rate ** 2` for the one
    before it, and so on; patch embedding, stem, class token and position embeddings have `rate ** (depth + 1)`
    (BEiT, arXiv 2106.08254, and MAE, arXiv 2111.06377).

    Args:
        model: A Vision Transformer.
        rate: In (0, 1]; 0.65 to 0.75 are common.

    Returns:
        Pattern to multiplier, for `rate_multipliers` of the optimizers.

    Raises:
        ValueError: if the model has no blocks, or `rate` is out of range.

    Examples:
        >>> training.layer_decay(small, 0.5)["block_0/*"]  # of two blocks the first
        0.25
    """
    check_number("layer_decay", rate)
    names = [layer.name for layer in model.layers if layer.weights]
    blocks = [name for name in names if matches(name, "block_[0-9]*")]
    if not blocks:
        raise ValueError(f"Layer-wise decay counts the blocks of a Vision Transformer, but {model.name} has none.")
    multipliers = {}
    passed = 0  # blocks so far, this one included
    for name in names:
        if name in blocks:
            passed += 1
        after = passed == len(blocks) and name not in blocks
        multipliers[f"{name}/*"] = 1.0 if after else rate ** (len(blocks) + 1 - passed)
    return multipliers
