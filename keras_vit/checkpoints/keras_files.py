"""Models as files of any format: `.npz`, `.safetensors` and folders of a known layout, `.keras`, `.weights.h5`."""

import json
import math
import os
import pathlib
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit import layers, models
from keras_vit._arguments import Code, Message, check_choice, printable
from keras_vit._files import check_room, make_folder, replacing
from keras_vit.checkpoints.catalogue import SHIPPED
from keras_vit.checkpoints.checkpoint import LAYOUTS, open_checkpoint, to_checkpoint
from keras_vit.checkpoints.described import CONFIG_TYPES, check_size
from keras_vit.checkpoints.download import KERAS_ENDINGS, find_checkpoint, is_keras_file, resolve_source
from keras_vit.checkpoints.files import names_beside, pair_in
from keras_vit.models import ModelConfig

if TYPE_CHECKING:
    import keras

    from keras_vit.models import BiT, VisionTransformer

LONGEST_CONFIG = 2**24  # bytes; that of a model with the 21,843 names of ImageNet-21k has a twentieth of it
_WEIGHTS = "model.weights.h5"  # what Keras calls the weights inside a .keras file
_MEMBERS = {"metadata.json", "config.json", _WEIGHTS}
_NOTE = "keras_vit"  # the attribute of a .weights.h5 file that says which model it is of


def check_format(path: str | os.PathLike[str], layout: str | None = None) -> None:
    """Raises ValueError unless a path names a format that models are written in, and one that the layout has.

    The layout is a name in `LAYOUTS`; None for the official files', or a format of Keras.
    """
    if layout is not None:
        check_choice("layout", layout, tuple(LAYOUTS))
    ending = next((end for end in KERAS_ENDINGS if str(path).endswith(end)), pathlib.Path(path).suffix)
    beside = [name for name, known in LAYOUTS.items() if known.sidecars is not None]
    if layout is None and ending in (".safetensors", ""):
        words = f"{str(path)!r} can have several layouts: pass "
        raise ValueError(Message(words, Code("layout=..."), f" with one of {', '.join(beside)}."))
    what, kind, expected = f"The layout {layout!r}", "an .npz file", (".npz",)
    if layout is None:
        what, expected = "A model", (".npz", *KERAS_ENDINGS)
        kind = "an .npz, .safetensors, .keras or .weights.h5 file, or a folder"
    elif layout in beside:
        kind, expected = "a .safetensors file, or a folder with one", (".safetensors", "")
    if ending not in expected:
        raise ValueError(f"{what} is {kind}, but {str(path)!r} was given.")


def save_model(
    model: "keras.Model", path: str | os.PathLike[str], layout: str | None = None, overwrite: bool = False
) -> None:
    """Writes a model in the format that the path's ending names; arguments as in `to_checkpoint`.

    A `.weights.h5` written here also says which model it is of, so that `read_keras` can rebuild it. Keras passes over
    that note. Where a file cannot be written, on a full disk for example, what was there before is kept. Raises
    FileExistsError unless `overwrite`, ValueError for an ending or a layout that does not do, OSError for a full disk.
    """
    check_format(path, layout)
    path = pathlib.Path(path)
    if not is_keras_file(path):
        to_checkpoint(model, path, layout, overwrite)
        return
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists. Choose another path or allow to overwrite it.")
    from keras_vit._keras import without_importing_tensorflow  # imports Keras, which is not needed to look into a file

    make_folder(path.parent)
    with replacing(path) as temporary, without_importing_tensorflow():
        if path.suffix == ".keras":
            model.save(temporary)
            return
        import h5py
        import keras

        # HDF5 ends the process where it cannot write, when its file is closed. Each array has a header.
        weights = [math.prod(weight.shape) * np.dtype(weight.dtype).itemsize for weight in model.weights]
        check_room(temporary, sum(weights) + 2**13 * len(weights) + 2**20)
        model.save_weights(temporary)
        with h5py.File(temporary, "r+") as file:
            file.attrs[_NOTE] = json.dumps(keras.saving.serialize_keras_object(model))


def read_keras(path: str | os.PathLike[str]) -> "VisionTransformer | BiT":
    """The model in a `.keras` file, without what it was compiled with, or in a `.weights.h5` of `save_model`.

    What the file says about its model is checked before anything is built: it is one of this package, and its weights
    fit into the file. The weights are read by the HDF5 library. It has no checksums for them, so that damage may go
    unnoticed in a `.weights.h5`, and it is no reader for files made to attack it: take those as `.npz`. Raises
    FileNotFoundError without the file, ValueError if it is damaged or holds another kind of model.
    """
    import keras

    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}; the path of a model file was expected.")
    description, size = _describe(path)
    if description is None:
        how = f"Build the model and pass the file: keras_vit.ViT_B16(weights={str(path)!r})"
        raise ValueError(f"{path} does not say which model it is of. {how}.")
    config = _config_of(path, description)
    if config is None:
        raise ValueError(f"{path} holds another kind of model; a model of keras_vit was expected.")
    check_size(path, config, size)
    # Keras looks among the classes that have been imported; the program imports none that it has not used yet.
    getattr(models, next(name for name, kind in CONFIG_TYPES.items() if type(config) is kind))
    try:
        with layers.skip_initialization():  # Keras raises where the file does not hold a weight
            if path.suffix == ".keras":
                return keras.saving.load_model(path, compile=False)
            model = keras.saving.deserialize_keras_object(json.loads(description))
        model.load_weights(path)
        return model
    except MemoryError:
        raise
    except Exception as error:  # Keras and HDF5 raise what the wrong bytes lead them to
        reason = f"it is damaged or was written by another version: {printable(error, 300)}"
        raise ValueError(f"{path} cannot be loaded, {reason}") from error


def config_in_file(path: str | os.PathLike[str]) -> ModelConfig | None:
    """The config in a `.keras` or `.weights.h5` file; None where it says none, or that of a model from elsewhere."""
    path = pathlib.Path(path)
    description, _ = _describe(path)
    return None if description is None else _config_of(path, description)


def class_names(source: "VisionTransformer | BiT | str | os.PathLike[str]") -> list[str] | None:
    """What the outputs of a model stand for. Nothing is downloaded and no weight is read.

    Args:
        source: A model, the name of a checkpoint that comes along, or the path of a file that `keras_vit.load` takes,
            or of a folder with one.

    Returns:
        The names in the order of the outputs: those in the model or the file, or in a `classes.txt` beside an old
        file that has none. None where nothing names them (`decode_predictions` then takes those of ImageNet-1k for
        1,000 classes), and for variants, names of the catalogue and addresses.

    Raises:
        TypeError, FileNotFoundError, IsADirectoryError, ValueError: if `source` is none of these, a name is unknown,
            the file is damaged or of another kind, or a `classes.txt` is no list of names.

    Examples:
        >>> keras_vit.class_names("glyphs")[:3]
        ['Oo0', '1', '2']
    """
    from keras_vit.models import ImageModel

    if isinstance(source, ImageModel):
        names = getattr(source.config, "class_names", None)  # models of depth have none
        return None if names is None else list(names)
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"source must be a model, a name or a path, but {type(source).__name__} was given.")
    path = pathlib.Path(find_checkpoint(source) if str(source) in SHIPPED else source)
    if not path.exists():
        resolve_source(source)  # an error for what is unknown
        return None
    file, head = pair_in(path)
    config = config_in_file(path) if is_keras_file(path) else open_checkpoint(file, head=head).config
    if config is not None and getattr(config, "class_names", None) is not None:
        return list(config.class_names)
    names = names_beside(path)
    return None if names is None or (config and getattr(config, "classes", None) != len(names)) else list(names)


def _describe(path: pathlib.Path) -> tuple[str | bytes | None, int]:
    """What a file says about its model, None where it says nothing; and the bytes that its weights may have.

    Raises ValueError if it is damaged, or has members that files of this package do not have.
    """
    if path.suffix == ".keras":
        try:
            with zipfile.ZipFile(path) as archive:
                sizes = {member.filename: member.file_size for member in archive.infolist()}
                # Keras unpacks other members beside the file. None of ours has any.
                if sizes.keys() - _MEMBERS or len(archive.infolist()) > len(sizes):
                    raise ValueError(f"it has other members than our models: {sorted(sizes)}")
                if sizes["config.json"] > LONGEST_CONFIG:
                    raise ValueError(f"its config.json has {sizes['config.json']:,} bytes")
                return archive.read("config.json"), sizes.get(_WEIGHTS, 0)
        except Exception as error:  # `zipfile` and its libraries raise what the wrong bytes lead them to
            raise ValueError(f"{path} is not a .keras file, or it is damaged: {printable(error, 200)}.") from None
    import h5py

    try:
        with h5py.File(path) as file:
            return file.attrs.get(_NOTE), path.stat().st_size
    except Exception as error:
        raise ValueError(f"{path} is not an HDF5 file, or it is damaged: {printable(error, 200)}.") from None


def _config_of(path: pathlib.Path, text: Any) -> ModelConfig | None:
    """The config in what a file says about its model; None if it is not of this package.

    Raises ValueError if it makes no sense.
    """
    try:
        model = json.loads(text)
        name = model.get("class_name") if isinstance(model, dict) else None
        if name not in CONFIG_TYPES or model.get("registered_name") != f"keras_vit>{name}":  # Keras goes by both
            return None
        return CONFIG_TYPES[name](**model["config"]["config"])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise ValueError(f"{path} says nothing sensible about its model: {printable(error, 200)}.") from None
