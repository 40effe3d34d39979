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


def class_names(source: str | os.PathLike[str]) -> list[str] | None:
    """The names of the classes of a checkpoint: of one that comes along, or of one that was trained here.

    `decode_predictions` takes None for the names of ImageNet-1k, where there are 1,000 classes.

    Args:
        source: A name or path, as `find_checkpoint` takes it, or the path of a `.keras` file.

    Returns:
        The names in the order of the outputs; for a file, those in `classes.txt` beside it, which `finetune` writes.
        None where nothing names them.
    """
    path = pathlib.Path(source)
    if source in SHIPPED and not path.exists():
        path = weights_folder() / SHIPPED[source][1]
    else:
        path = path.parent / "classes.txt"
        if not pathlib.Path(source).is_file() or not path.is_file():
            return None
    return path.read_text(encoding="utf-8").splitlines()
