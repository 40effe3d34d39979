"""The checkpoint that comes along with the package, and the one way from anything a user names to a file."""

import os
import pathlib
from typing import Any

from keras_vit._paths import weights_folder
from keras_vit.checkpoints.download import fetch

# Name: the file in weights/, and the list of its classes' names, one a line.
SHIPPED = {"glyphs": ("glyphs.npz", "glyphs_classes.txt")}


def find_checkpoint(source: Any) -> pathlib.Path:
    """The file that a user means.

    Args:
        source: A path, the name of a checkpoint that comes along (`"glyphs"`), or what `fetch` takes: a name of the
            catalogue or an address.

    Returns:
        Its path on this machine.

    Raises:
        FileNotFoundError, ValueError, TypeError, DownloadError: see `fetch`.
    """
    if isinstance(source, str) and source in SHIPPED and not os.path.exists(source):
        return weights_folder() / SHIPPED[source][0]
    return fetch(source)


def class_names(source: str) -> list[str] | None:
    """The names of the classes of a checkpoint that comes along; None for any other.

    `decode_predictions` takes None for the names of ImageNet-1k, where there are 1,000 classes.
    """
    if source not in SHIPPED:
        return None
    text = (weights_folder() / SHIPPED[source][1]).read_text(encoding="utf-8")
    return text.splitlines()
