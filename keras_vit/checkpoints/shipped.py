"""The checkpoint that comes along with the package, and the one way from anything a user names to a file."""

import os
import pathlib
from typing import Any

from keras_vit._paths import weights_folder
from keras_vit.checkpoints.download import fetch

# Name: the file in weights/.
SHIPPED = {"glyphs": "glyphs.npz"}


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
        return weights_folder() / SHIPPED[source]
    return fetch(source)
