"""The names of the classes that a file carries: in its note, in its config, or in a `classes.txt` beside it."""

import os
import pathlib

from keras_vit._text import printable
from keras_vit.checkpoints.checkpoint import open_checkpoint
from keras_vit.checkpoints.download import SHIPPED, find_checkpoint
from keras_vit.checkpoints.files.keras_files import config_in_file
from keras_vit.models import BiT, ModelConfig, VisionTransformer

BESIDE = "classes.txt"
LONGEST_LIST = 2**24  # bytes; the 21,843 names of ImageNet-21k are a sixtieth of it


def class_names(source: VisionTransformer | BiT | str | os.PathLike[str]) -> list[str] | None:
    """What the outputs of a model stand for.

    Nothing is downloaded and no weight is read. `decode_predictions` takes None for the names of ImageNet-1k, where
    there are 1,000 classes.

    Args:
        source: A model, the name of a checkpoint that comes along, or a path that ends with `.npz`, `.keras` or
            `.weights.h5`.

    Returns:
        The names in the order of the outputs: those in the model or the file, or in a `classes.txt` beside an old
        file that has none. None where nothing names them, and for names of the catalogue.

    Raises:
        TypeError: if `source` is none of these.
        FileNotFoundError: if a path names no file.
        ValueError: if the file is damaged or of another kind, or a `classes.txt` is no list of names.
    """
    if isinstance(source, (VisionTransformer, BiT)):
        names = source.config.class_names
        return None if names is None else list(names)
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"source must be a model, a name or a path, but {type(source).__name__} was given.")
    path = pathlib.Path(source)
    if str(source) in SHIPPED and not path.exists():
        path = find_checkpoint(str(source))
    is_keras = str(path).endswith((".keras", ".weights.h5"))
    if not path.is_file():
        if is_keras or str(path).endswith(".npz"):
            raise FileNotFoundError(f"There is no file {path}; the path of a model file was expected.")
        return None
    config = config_in_file(path) if is_keras else open_checkpoint(path).config
    if config is not None and config.class_names is not None:
        return list(config.class_names)
    names = names_beside(path)
    if names is None or (config is not None and config.classes != len(names)):
        return None
    return list(names)


def with_names_beside(config: ModelConfig, path: str | os.PathLike[str]) -> ModelConfig:
    """The config with the names in a `classes.txt` beside a file, where it has none and the numbers agree.

    Raises:
        ValueError: if that file is no list of names.
    """
    if not config.classes or config.class_names is not None:
        return config
    names = names_beside(path)
    return config if names is None or len(names) != config.classes else config.replace(class_names=names)


def names_beside(path: str | os.PathLike[str]) -> tuple[str, ...] | None:
    """The lines of the `classes.txt` in the folder of a file, or in a folder; None where there is none.

    Raises:
        ValueError: if it is not UTF-8, too large, or has lines that cannot be names.
    """
    path = pathlib.Path(path)
    file = (path if path.is_dir() else path.parent) / BESIDE
    if not file.is_file():
        return None
    if file.stat().st_size > LONGEST_LIST:
        raise ValueError(f"{file} has {file.stat().st_size:,} bytes, too many for a list of class names.")
    try:
        names = tuple(file.read_text(encoding="utf-8-sig").splitlines())
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not a list of class names in UTF-8: {error}.") from None
    for number, name in enumerate(names, 1):
        if not name or name != name.strip() or name != printable(name):
            raise ValueError(
                f"{file} is not a list of class names, one a line: line {number} is {printable(repr(name), 80)}."
            )
    return names
