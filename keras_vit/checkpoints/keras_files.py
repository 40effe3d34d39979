"""Models as files of any format: `.npz`, `.safetensors` and folders of a known layout, `.keras`, `.weights.h5`."""

import contextlib
import json
import math
import os
import pathlib
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit._arguments import printable
from keras_vit._files import check_room, replacing
from keras_vit.checkpoints.checkpoint import LAYOUTS, to_checkpoint
from keras_vit.models import BiTConfig, ModelConfig, ViTConfig, count_weights

if TYPE_CHECKING:
    import keras

    from keras_vit.models import BiT, VisionTransformer

_CONFIG_TYPES: dict[str, type[ModelConfig]] = {"VisionTransformer": ViTConfig, "BiT": BiTConfig}
LONGEST_CONFIG = 2**24  # bytes; that of a model with the 21,843 names of ImageNet-21k has a twentieth of it
_WEIGHTS = "model.weights.h5"  # what Keras calls the weights inside a .keras file
_MEMBERS = ("metadata.json", "config.json", _WEIGHTS)
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_NOTE = "keras_vit"  # the attribute of a .weights.h5 file that says which model it is of


def check_format(path: str | os.PathLike[str], layout: str | None = None) -> None:
    """Checks that a path names a format that models are written in, and one that the layout has.

    Args:
        path: Where a model is to be written.
        layout: A name in `LAYOUTS`; None for the official files' layout, or a format of Keras.

    Raises:
        ValueError: if the layout is unknown, the ending names no format, or that of another layout.
    """
    ending = next((end for end in (".keras", ".weights.h5") if str(path).endswith(end)), pathlib.Path(path).suffix)
    with_sidecars = [name for name, known in LAYOUTS.items() if known.sidecars is not None]
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {list(LAYOUTS)}, but {layout!r} was given.")
    if layout in with_sidecars:
        if ending not in (".safetensors", ""):
            raise ValueError(
                f"The layout {layout!r} is a .safetensors file, or a folder with one, but {str(path)!r} was given."
            )
    elif layout is not None and ending != ".npz":
        raise ValueError(f"The layout {layout!r} is an .npz file, but {str(path)!r} was given.")
    elif ending in (".safetensors", ""):
        names = ", ".join(with_sidecars)
        raise ValueError(f"{str(path)!r} can have several layouts: pass layout=... with one of {names}.")
    elif ending not in (".npz", ".keras", ".weights.h5"):
        raise ValueError(
            "The name of a model file must end with .npz, .safetensors, .keras or .weights.h5, or be that of a folder, "
            f"but {str(path)!r} was given."
        )


def save_model(
    model: "keras.Model", path: str | os.PathLike[str], layout: str | None = None, overwrite: bool = False
) -> None:
    """Writes a model in the format that the path's ending names; the file appears when it is complete.

    A `.weights.h5` written here also says which model it is of, so that `read_weights_h5` can rebuild it. Keras
    passes over that note.

    Args:
        model: A model of this package.
        path: Where the file shall be, or the folder for a `model.safetensors` and its JSON files.
        layout: Of an `.npz`, a `.safetensors` or a folder: a name in `LAYOUTS`; None for that of the official `.npz`.
        overwrite: Whether a file at `path` may be replaced.

    Raises:
        FileExistsError: if there is a file already and `overwrite` is false.
        OSError: if the file cannot be written, on a full disk for example. What was there before is kept.
        ValueError: see `check_format`.
    """
    check_format(path, layout)
    path = pathlib.Path(path)
    if not path.name.endswith((".keras", ".weights.h5")):
        to_checkpoint(model, path, layout, overwrite)
        return
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists. Choose another path or allow to overwrite it.")
    from keras_vit._keras import without_importing_tensorflow  # imports Keras, which is not needed to look into a file

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, without_importing_tensorflow():
        if path.suffix == ".keras":
            model.save(temporary)
        else:
            # HDF5 ends the process where it cannot write, when its file is closed.
            check_room(temporary, _bytes_in_hdf5(model))
            model.save_weights(temporary)
            _note_config(temporary, model)


def read_keras(path: str | os.PathLike[str]) -> "VisionTransformer | BiT":
    """The model that a `.keras` file holds, without what it was compiled with.

    See `read_weights_h5` for what is checked, and what is not.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged, or holds no model of this package.
    """
    import keras

    path = pathlib.Path(path)
    _check(path)
    with _damage_named(path):
        return keras.saving.load_model(path, compile=False)


def read_weights_h5(path: str | os.PathLike[str]) -> "VisionTransformer | BiT":
    """The model that a `.weights.h5` written by `save_model` is of, with its weights.

    What the file says about its model is checked before anything is built: it is one of this package, and its weights
    fit into the file. The weights are read by the HDF5 library. It has no checksums for them, so that damage may go
    unnoticed there, and it is no reader for files made to attack it: take those as `.npz`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged, or does not say which model of this package it is of.
    """
    import keras

    path = pathlib.Path(path)
    description = _check(path)
    with _damage_named(path):
        model = keras.saving.deserialize_keras_object(json.loads(description))
        model.load_weights(path)
    return model


def config_in_file(path: str | os.PathLike[str]) -> ModelConfig | None:
    """The config that a `.keras` or `.weights.h5` file says its model has, without loading it.

    Returns:
        The config; None where the file says none, or that of a model from elsewhere.

    Raises:
        ValueError: if the file is damaged, or what it says is no config.
    """
    path = pathlib.Path(path)
    description, _ = _describe(path)
    return None if description is None else _config_of(path, description)


def _check(path: pathlib.Path) -> str | bytes:
    """What a file says about its model, once it is clear that this is one of ours and that its weights are there."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}; the path of a model file was expected.")
    description, members = _describe(path)
    if description is None:
        raise ValueError(
            f"{path} does not say which model it is of. Build the model and pass the file: "
            f"keras_vit.ViT_B16(weights={str(path)!r})."
        )
    config = _config_of(path, description)
    if config is None:
        raise ValueError(f"{path} holds another kind of model; a model of keras_vit was expected.")
    # Keras unpacks other members beside the file. None of ours has any.
    names = [member.filename for member in members]
    strange = sorted({name for name in names if name not in _MEMBERS or names.count(name) > 1})
    if strange or (names and _WEIGHTS not in names):
        what = f"a member {printable(repr(strange[0]), 80)} too many" if strange else "no weights"
        raise ValueError(f"{path} is not a .keras file of this package, or it is damaged: it has {what}.")
    size = sum(member.file_size for member in members if member.filename == _WEIGHTS) or path.stat().st_size
    # Counting goes over every block: first a bound that a file which claims a billion of them does not pass. A block
    # or unit has more weights than its width squared; a weight takes four bits at least (int4).
    blocks = config.depth if isinstance(config, ViTConfig) else sum(config.stages)
    least = blocks * config.width**2 // 2
    least = count_weights(config) // 2 if least <= size else least
    if least > size:
        raise ValueError(
            f"{path} is damaged: its model has at least {least:,} bytes of weights, but there are only {size:,}."
        )
    return description


def _describe(path: pathlib.Path) -> tuple[str | bytes | None, list[zipfile.ZipInfo]]:
    """What a file says about its model, None where it says nothing; and the members of a `.keras` file."""
    if path.suffix == ".keras":
        try:
            with zipfile.ZipFile(path) as archive:
                # What Python's other methods raise for damage is no error of theirs alone.
                if any(member.compress_type not in _COMPRESSIONS for member in archive.infolist()):
                    raise zipfile.BadZipFile("a member is compressed in a way that Keras does not use")
                size = archive.getinfo("config.json").file_size
                description = archive.read("config.json") if size <= LONGEST_CONFIG else None
                members = archive.infolist()
        except Exception as error:  # `zipfile` raises what the wrong bytes lead it to
            raise ValueError(f"{path} is not a .keras file, or it is damaged: {printable(error, 200)}.") from None
        if description is None:
            raise ValueError(f"{path} is damaged: its config.json has {size:,} bytes.")
        return description, members
    import h5py

    try:
        with h5py.File(path) as file:
            note = file.attrs.get(_NOTE)
    except Exception as error:
        raise ValueError(f"{path} is not an HDF5 file, or it is damaged: {printable(error, 200)}.") from None
    if note is not None and not isinstance(note, str):
        raise ValueError(f"{path} says nothing sensible about its model: its note is a {type(note).__name__}.")
    return note, []


def _config_of(path: pathlib.Path, text: str | bytes) -> ModelConfig | None:
    """The config in what a file says about its model; None if it is not of this package."""
    try:
        model = json.loads(text)
        if not isinstance(model, dict) or model.get("class_name") not in _CONFIG_TYPES:
            return None
        config_type = _CONFIG_TYPES[model["class_name"]]
        # What Keras goes by, beside the name.
        if model.get("registered_name") != f"keras_vit>{model['class_name']}":
            return None
        return config_type(**model["config"]["config"])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise ValueError(f"{path} says nothing sensible about its model: {printable(error, 200)}.") from None


@contextlib.contextmanager
def _damage_named(path: pathlib.Path) -> Iterator[None]:
    """Gives every error of Keras and HDF5 the name of the file: they raise what the wrong bytes lead them to."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(
            f"{path} cannot be loaded, it is damaged or was written by another version: {printable(error, 300)}"
        ) from error


def _bytes_in_hdf5(model: "keras.Model") -> int:
    """About how large a `.weights.h5` of a model becomes: each array has a header, and folders above it."""
    weights = [math.prod(weight.shape) * np.dtype(weight.dtype).itemsize for weight in model.weights]
    return sum(weights) + 2**13 * len(weights) + 2**20


def _note_config(path: pathlib.Path, model: Any) -> None:
    import h5py
    import keras

    with h5py.File(path, "r+") as file:
        file.attrs[_NOTE] = json.dumps(keras.saving.serialize_keras_object(model))
