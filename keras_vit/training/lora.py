"""Low-rank adapters (LoRA, arXiv 2106.09685): few weights train, the rest of the model stays."""

import json
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path

import keras
import numpy as np

from keras_vit._types import whole_number
from keras_vit.checkpoints.files.npz import write_npz
from keras_vit.models import adapted_layers, layers_by_path, require_adapters, weights_by_path
from keras_vit.training.freezing import check_patterns, fits, matches, nothing_matches, train_only, trained_weights

_ABOUT = "keras_vit_lora"  # the array in a file of adapters that says what they belong to


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
