"""Picture files of tests."""

import pytest


def save(path, pixels):
    """Writes an array, or a picture of Pillow's, to a file, whose folder is made where it is missing."""
    Image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path)
    return path
