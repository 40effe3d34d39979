"""The names of the classes that a file carries: in its note, in its config, or in a `classes.txt` beside it."""

import os
import pathlib

from keras_vit.checkpoints.catalogue import SHIPPED
from keras_vit.checkpoints.checkpoint import open_checkpoint
from keras_vit.checkpoints.download import find_checkpoint
from keras_vit.checkpoints.files import names_beside
from keras_vit.checkpoints.keras_files import config_in_file
from keras_vit.checkpoints.source import is_keras_file, resolve_source
from keras_vit.models import BiT, VisionTransformer


def class_names(source: VisionTransformer | BiT | str | os.PathLike[str]) -> list[str] | None:
    """What the outputs of a model stand for.

    Nothing is downloaded and no weight is read. `decode_predictions` takes None for the names of ImageNet-1k, where
    there are 1,000 classes.

    Args:
        source: A model, the name of a checkpoint that comes along, or the path of a file that `keras_vit.load` takes,
            or of a folder with one.

    Returns:
        The names in the order of the outputs: those in the model or the file, or in a `classes.txt` beside an old
        file that has none. None where nothing names them, and for variants, names of the catalogue and addresses.

    Raises:
        TypeError: if `source` is none of these.
        FileNotFoundError, IsADirectoryError: if a path names no file, or a folder has no weights.
        ValueError: if a name is unknown, the file is damaged or of another kind, or a `classes.txt` is no list of
            names.

    Examples:
        >>> keras_vit.class_names("glyphs")[:3]
        ['Oo0', '1', '2']
    """
    if isinstance(source, (VisionTransformer, BiT)):
        names = source.config.class_names
        return None if names is None else list(names)
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"source must be a model, a name or a path, but {type(source).__name__} was given.")
    path = pathlib.Path(find_checkpoint(source) if str(source) in SHIPPED else source)
    if not path.exists():
        resolve_source(source)  # an error for what is unknown
        return None
    config = config_in_file(path) if is_keras_file(path) else open_checkpoint(path).config
    if config is not None and config.class_names is not None:
        return list(config.class_names)
    names = names_beside(path)
    return None if names is None or (config is not None and config.classes != len(names)) else list(names)
