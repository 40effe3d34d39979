"""Models as files, whatever the format: `.npz` of a known layout, `.keras`, `.weights.h5`."""

import json
import os
import pathlib
import tempfile
import zipfile
from typing import Any

import keras

from keras_vit._text import printable
from keras_vit.checkpoints.checkpoint import to_checkpoint
from keras_vit.models import MODELS, ModelConfig

FORMATS = (".npz", ".keras", ".weights.h5")
_CONFIG_TYPES = {model.__name__: config for config, model in MODELS.items()}
_NOTE = "keras_vit"  # the attribute of a .weights.h5 file that says which model it is of


def format_of(path: str | os.PathLike[str]) -> str:
    """Which of `FORMATS` a path ends with.

    Raises:
        ValueError: if it is none of them.
    """
    for ending in FORMATS:
        if str(path).endswith(ending):
            return ending
    raise ValueError(
        f"The name of a model file must end with one of {', '.join(FORMATS)}, but {str(path)!r} was given."
    )


def save_model(
    model: keras.Model, path: str | os.PathLike[str], layout: str | None = None, overwrite: bool = False
) -> None:
    """Writes a model in the format that the path's ending names; the file appears when it is complete.

    A `.weights.h5` written here also says which model it is of, so that `read_weights_h5` can rebuild it. Keras
    passes over that note.

    Args:
        model: A model of this package.
        path: Where the file shall be.
        layout: Of an `.npz`: a name in `LAYOUTS`; None for the model's own.
        overwrite: Whether a file at `path` may be replaced.

    Raises:
        FileExistsError: if there is a file already and `overwrite` is false.
        ValueError: if the ending is unknown, or `layout` is given for another format than `.npz`.
    """
    path, ending = pathlib.Path(path), format_of(path)
    if ending == ".npz":
        to_checkpoint(model, path, layout, overwrite)
        return
    if layout is not None:
        raise ValueError(f"layout={layout!r} is for .npz files, but {path.name!r} is to be written.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists. Choose another path or allow to overwrite it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        temporary = pathlib.Path(folder) / f"model{ending}"
        if ending == ".keras":
            model.save(temporary)
        else:
            model.save_weights(temporary)
            _note_config(temporary, model)
        os.replace(temporary, path)


def read_weights_h5(path: str | os.PathLike[str]) -> keras.Model:
    """The model that a `.weights.h5` written by `save_model` is of, with its weights.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file does not say which model it is of.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}; the path of a model file was expected.")
    note = _read_note(path)
    if note is None:
        raise ValueError(
            f"{path} does not say which model it is of. Build the model and pass the file: "
            f"keras_vit.ViT_B16(weights={str(path)!r})."
        )
    model = keras.saving.deserialize_keras_object(json.loads(note))
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
    if format_of(path) == ".keras":
        try:
            with zipfile.ZipFile(path) as archive:
                text = archive.read("config.json")
        except (zipfile.BadZipFile, KeyError, OSError, ValueError) as error:
            raise ValueError(f"{path} is not a .keras file, or it is damaged: {printable(error, 200)}.") from None
    else:
        text = _read_note(path)
        if text is None:
            return None
    try:
        model = json.loads(text)
        if not isinstance(model, dict) or model.get("class_name") not in _CONFIG_TYPES:
            return None
        return _CONFIG_TYPES[model["class_name"]](**model["config"]["config"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} says nothing sensible about its model: {printable(error, 200)}.") from None


def _read_note(path: pathlib.Path) -> Any:
    """What a `.weights.h5` says about its model; None where it says nothing."""
    import h5py

    try:
        with h5py.File(path) as file:
            return file.attrs.get(_NOTE)
    except OSError as error:
        raise ValueError(f"{path} is not an HDF5 file, or it is truncated ({error}).") from None


def _note_config(path: pathlib.Path, model: Any) -> None:
    import h5py

    with h5py.File(path, "r+") as file:
        file.attrs[_NOTE] = json.dumps(keras.saving.serialize_keras_object(model))
