"""What a model comes from: a file, a folder, an address, the name of a checkpoint, or a variant."""

import os
import pathlib
from typing import Any

from keras_vit._arguments import Source
from keras_vit.checkpoints.catalogue import SHIPPED, find_entry, recommended
from keras_vit.checkpoints.files import ENDINGS
from keras_vit.models import find_variant

KERAS_ENDINGS = (".keras", ".weights.h5")


def resolve_source(source: Source) -> Source:
    """The path, the address or the full name of the checkpoint that a source means, without Keras and network.

    Args:
        source: What `keras_vit.load` takes. A file comes before a name, a variant before a name of the catalogue.

    Returns:
        The path or address as it is; for a variant the name of its recommended checkpoint.

    Raises:
        TypeError: if the source is no string and no path.
        FileNotFoundError: if there is no such file or folder.
        ValueError: if it is the address of a Keras file, or there is no such name; the message has names near to it.
    """
    if not isinstance(source, (str, os.PathLike)):
        hint = " It is a model already: model.with_config(...) changes it." if hasattr(source, "with_config") else ""
        raise TypeError(f"source must be a name, an address or a path, but {type(source).__name__} was given.{hint}")
    text = os.fspath(source)
    if "://" in text:
        if is_keras_file(text):
            raise ValueError(
                f"{text} is the address of a Keras file, which is not made for files from strangers. Download it "
                "yourself if you trust it, and pass the path; addresses of .npz files are fetched."
            )
        return source
    if text in SHIPPED or os.path.exists(os.path.expanduser(text)):
        return source
    if is_variant(source):
        return recommended(text).name
    try:
        if isinstance(source, str):
            return find_entry(source).name
    except ValueError:
        if pathlib.PurePath(text).suffix not in (".h5", ".keras", *ENDINGS) and not text.startswith((".", "~", "/")):
            raise
    raise FileNotFoundError(f"There is no file or folder {text}.")


def is_keras_file(source: Source) -> bool:
    """Whether a source is a file of Keras, which says all of its model, by what its name ends with."""
    return os.fspath(source).endswith(KERAS_ENDINGS)


def is_variant(source: Any) -> bool:
    """Whether a source is the name of a variant, and not a file of that name."""
    if not isinstance(source, str) or os.path.exists(source):
        return False
    try:
        find_variant(source)
    except ValueError:
        return False
    return True
