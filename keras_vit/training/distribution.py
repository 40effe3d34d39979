"""Models on several devices of JAX: copies with a part of each batch, or split; and checkpoints of split models.

`keras.distribution` does the work. What a user would have to find out is the layout map: which weights of this
package's models are split, and how. It is the table `planning.SPLIT`. How to run it, and what to do on the other
backends, is in docs/distribution.md.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit._arguments import require_packages
from keras_vit.models import BiTConfig, ViTConfig, variant_config, weights_by_path
from keras_vit.training.planning import MODEL, SPLIT, split_sizes

BATCH = "batch"
# What blocks and the last normalisation hand on is whole on every device of a group. Without being told, XLA splits it
# along its width, as the head's inputs are, and gathers it again before each matrix that wants all of it.
TOKENS = r"(.*/)?(block_\d+|encoder_norm)/output"


def data_parallel(
    devices: Sequence[str] | None = None, auto_shard_dataset: bool = True
) -> keras.distribution.DataParallel:
    """Every device has the whole model and a part of each batch.

    Make the model, or load it, inside the result's `scope()`, and train and evaluate there, too. The batch size, also
    that of the last batch, must be a multiple of the number of devices.

    Args:
        devices: Such as `["gpu:0", "gpu:1"]`; None for all, of all processes.
        auto_shard_dataset: With several processes: whether Keras gives each its part of a `tf.data.Dataset`. False:
            each process gives its own part of every batch, in any form.

    Returns:
        The distribution, with the global batch along its axis `"batch"`.

    Raises:
        RuntimeError: on a backend other than JAX, where Keras would take the result and ignore it.

    Examples:
        >>> with training.data_parallel().scope():
        ...     shared = keras_vit.VisionTransformer(config)
    """
    _need_jax()
    devices = list(devices or keras.distribution.list_devices())
    return keras.distribution.DataParallel(devices=devices, auto_shard_dataset=auto_shard_dataset)


def model_parallel(
    model: Any, shards: int, devices: Sequence[str] | None = None, auto_shard_dataset: bool = True
) -> keras.distribution.ModelParallel:
    """Every group of devices has one copy of the model, split among them, and a part of each batch.

    Used as `data_parallel`; batches must be a multiple of the number of groups.

    Args:
        model: What is to be split, as in `layout_map`.
        shards: Devices in a group; must divide the number of devices.
        devices: As in `data_parallel`; those of a group stand beside each other.
        auto_shard_dataset: As in `data_parallel`.

    Returns:
        The distribution, over a mesh `(groups, shards)` with the axes `"batch"` and `"model"`.

    Raises:
        RuntimeError, TypeError, ValueError: as `data_parallel` and `layout_map`.

    Examples:
        >>> with training.model_parallel(config, shards=1, devices=["cpu:0"]).scope():
        ...     split = keras_vit.VisionTransformer(config)
    """
    _need_jax()
    devices = list(devices or keras.distribution.list_devices())
    if not isinstance(shards, int) or shards < 1 or len(devices) % shards:
        raise ValueError(f"shards must divide the number of devices, {len(devices)}, but {shards!r} was given.")
    mesh = keras.distribution.DeviceMesh((len(devices) // shards, shards), (BATCH, MODEL), devices)
    return keras.distribution.ModelParallel(
        layout_map=layout_map(model, mesh), batch_dim_name=BATCH, auto_shard_dataset=auto_shard_dataset
    )


def layout_map(model: Any, device_mesh: keras.distribution.DeviceMesh) -> keras.distribution.LayoutMap:
    """How the weights of a model lie over the devices of a mesh, for `keras.distribution.ModelParallel`.

    Optimizers lay out their own variables as the weights that these belong to.

    Args:
        model: A config, a model, or the name of a variant such as `"ViT-L/16"`. The layout is the same for all of
            them; this is what the number of devices is checked against.
        device_mesh: With an axis named `"model"`, along which weights are split, and usually one named `"batch"`.

    Returns:
        From patterns of weights' paths to the axes of the mesh along which they are split.

    Raises:
        TypeError: if `model` is none of these.
        ValueError: if the mesh has no such axis, or if its length does not divide a weight that would be split.

    Examples:
        >>> mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], ["cpu:0"])
        >>> layouts = training.layout_map("ViT-L/16", mesh)
    """
    config = variant_config(model) if isinstance(model, str) else getattr(model, "config", model)
    if not isinstance(config, (ViTConfig, BiTConfig)):
        raise TypeError(f"model must be a config, a model or a variant's name, but {type(model).__name__} was given.")
    if MODEL not in device_mesh.axis_names:
        raise ValueError(f"device_mesh must have an axis named {MODEL!r}, but has {device_mesh.axis_names}.")
    shards = device_mesh.shape[device_mesh.axis_names.index(MODEL)]
    for name, size in split_sizes(config).items():
        if size % shards:
            raise ValueError(
                f"Weights cannot be split over {shards} devices: {name}={size} is no multiple of {shards}."
            )
    result = keras.distribution.LayoutMap(device_mesh)
    for path, axes in SPLIT.items():
        result[f"(.*/)?{path}"] = axes
    if BATCH in device_mesh.axis_names:
        result[TOKENS] = (BATCH,)
    return result


def split_weights(model: keras.Model) -> dict[str, Any]:
    """The weights of a model of this package that `layout_map` splits, by their paths (as in `weights_by_path`).

    Args:
        model: The model.

    Returns:
        From path to weight, in the order of `model.weights`.

    Examples:
        >>> list(training.split_weights(small))[:1]
        ['block_0/attention/query/kernel']
    """
    pattern = re.compile("|".join(f"(?:(?:.*/)?{path})" for path in SPLIT))
    return {path: weight for path, weight in weights_by_path(model).items() if pattern.fullmatch(path)}


def save_sharded(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Writes weights, states of random generators and the optimizer's variables with Orbax.

    Every process writes the pieces on its own devices; nothing is gathered. All processes call it, with a path that all
    of them see. The folder appears when it is complete.

    Args:
        model: On the JAX backend; usually made in the scope of `model_parallel`.
        path: The folder; it must be new.

    Raises:
        RuntimeError, ImportError: on another backend, where no model is split, or without Orbax.
        FileExistsError: if there is something at `path`.
        OSError, ValueError: Orbax's own, if it cannot write.

    Example:
        >>> training.save_sharded(small, "checkpoints/step-1000")  # on JAX, with keras-vit[orbax]
    """
    checkpoint, path = _orbax(), Path(path).absolute()
    if path.exists():
        raise FileExistsError(f"{path} exists. Choose another folder, or remove it.")
    checkpoint.save(path, [variable.value for variable in _variables(model)])


def load_sharded(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Puts a checkpoint of `save_sharded` into a model, however that lies over devices and processes.

    Each device gets its own part of one array after the other. Nothing is assigned where the checkpoint does not fit.

    Args:
        model: Of the same config, compiled with the same optimizer, or without one if it was saved without.
        path: The folder.

    Raises:
        RuntimeError, ImportError: on another backend, or without Orbax.
        FileNotFoundError, ValueError: if there is no such folder, or it is of another model, or damaged.

    Example:
        >>> training.save_sharded(small, "checkpoints/step-2000")  # on JAX, with keras-vit[orbax]
        >>> training.load_sharded(keras_vit.VisionTransformer(config), "checkpoints/step-2000")
    """
    checkpoint, path = _orbax(), Path(path).absolute()
    import jax

    if not path.is_dir():
        raise FileNotFoundError(f"There is no checkpoint of save_sharded at {path}.")
    variables = _variables(model)
    try:
        saved = [(tuple(array.shape), str(array.dtype)) for array in checkpoint.metadata(path).metadata]
    except Exception as error:  # whatever Orbax and its libraries raise for a folder that is something else
        hint = "One with files named part-*.npz is of keras-vit 0.2 or older, which reads it."
        raise ValueError(f"{path} is no checkpoint of save_sharded, or damaged. {hint}") from error
    if saved != [(tuple(variable.shape), str(variable.dtype)) for variable in variables]:
        raise ValueError(f"{path} is of another model or optimizer: make both as they were when it was saved.")
    for number, variable in enumerate(variables):
        target: list[Any] = [...] * len(variables)  # Orbax reads what is not `...`
        target[number] = jax.ShapeDtypeStruct(variable.shape, variable.dtype, sharding=variable.value.sharding)
        variable.assign(checkpoint.load(path, target)[number])


def _need_jax() -> None:
    """Raises RuntimeError on other backends than JAX."""
    if keras.backend.backend() != "jax":
        raise RuntimeError(
            "keras.distribution works on JAX only, and models are split there only: set KERAS_BACKEND=jax, or see "
            f"docs/distribution.md for what {keras.backend.backend()} has in its place."
        )


def _orbax() -> Any:
    """Orbax's functions for checkpoints; RuntimeError on other backends than JAX, ImportError without Orbax."""
    _need_jax()
    require_packages("A checkpoint of a split model", ("orbax",), "orbax")
    from orbax.checkpoint import v1

    return v1


def _variables(model: keras.Model) -> list[Any]:
    """All that training goes on from, in an order that depends on the model alone."""
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        variables += optimizer.variables
    return variables
