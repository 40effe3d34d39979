"""Checkpoints of models that are split over devices, by Orbax: each device writes and reads its own pieces."""

import os
from pathlib import Path
from typing import Any

import keras


def save_sharded(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Writes weights, states of random generators and the optimizer's variables with Orbax.

    Every process writes the pieces on its own devices; nothing is gathered. All processes call it, with a path that all
    of them see. The folder appears when it is complete: a process that is killed before leaves a folder of a temporary
    name (`*.orbax-checkpoint-tmp*`) beside it.

    Args:
        model: On the JAX backend; usually made in the scope of `model_parallel`.
        path: The folder; it must be new.

    Raises:
        RuntimeError: on another backend, where no model is split.
        FileExistsError: if there is something at `path`.
        ImportError: if Orbax is missing.
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

    Each device gets its own part of one array after the other. Nothing is assigned where the checkpoint does not fit;
    if it turns out to be damaged while it is read, the arrays before have been assigned.

    Args:
        model: Of the same config, compiled with the same optimizer, or without one if it was saved without.
        path: The folder.

    Raises:
        RuntimeError: on another backend than JAX.
        FileNotFoundError: if there is no such folder.
        ImportError: if Orbax is missing.
        ValueError: if it is of another model, or damaged.

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
        raise ValueError(
            f"{path} is no checkpoint of save_sharded, or damaged ({type(error).__name__}). Checkpoints with files "
            "named part-*.npz are of keras-vit 0.2 and older, which read them."
        ) from error
    if saved != [(tuple(variable.shape), str(variable.dtype)) for variable in variables]:
        raise ValueError(
            f"{path} is of another model or optimizer than this one, whose {len(variables)} variables have other "
            "shapes or types. Make the model with the same config, and compile it with the same optimizer."
        )
    for number, variable in enumerate(variables):
        target: list[Any] = [...] * len(variables)  # Orbax reads what is not `...`
        target[number] = jax.ShapeDtypeStruct(variable.shape, variable.dtype, sharding=variable.value.sharding)
        variable.assign(checkpoint.load(path, target)[number])


def _orbax() -> Any:
    """Orbax's module.

    Raises:
        RuntimeError: on another backend than JAX.
        ImportError: if it is missing.
    """
    if keras.backend.backend() != "jax":
        raise RuntimeError(
            f"Models are split over devices on JAX only, but this is {keras.backend.backend()}. Use model.save, or set "
            "KERAS_BACKEND=jax."
        )
    try:
        from orbax.checkpoint import v1
    except ImportError as error:
        raise ImportError('Checkpoints of split models need Orbax: pip install "keras-vit[orbax]".') from error
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
