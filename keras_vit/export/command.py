"""Pictures in a folder, to calibrate on and to compare on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.preprocessing import load_image

PICTURES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


def read_folder(folder: str, model: Any, names: Sequence[str] | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Reads all pictures under a folder, and their classes where they lie in folders.

    Args:
        folder: Pictures, or folders of them, one for each class.
        model: Says what size and which classes the pictures have.
        names: The model's class names, if they are known: each folder has to be called as one of them. Otherwise there
            has to be one folder for each class, in alphabetical order.

    Returns:
        uint8 `(n, height, width, 3)`, and integer labels `(n,)`; None for labels where pictures lie in `folder` itself.

    Raises:
        ValueError: if there are no pictures, or the folders are not classes of the model.
    """
    paths = find_images(folder)
    folders = [path.relative_to(folder).parts[0] if path.parent != Path(folder) else None for path in paths]
    if None in folders:
        return read_images(paths, model), None
    found = sorted(set(folders))
    unlabelled = f"To compare answers without labels, pass the pictures of one folder: --images {paths[0].parent}"
    if names is None and len(found) != model.config.classes:
        raise ValueError(
            f"{folder} has {len(found)} folders, but {model.name} has {model.config.classes} classes whose names are "
            f"not known. Name them with --classes FILE. {unlabelled}"
        )
    foreign = [name for name in found if names is not None and name not in names]
    if foreign:
        raise ValueError(
            f"{folder} has folders, such as {', '.join(map(repr, foreign[:5]))}, that are not the classes of "
            f"{model.name}: {', '.join(map(repr, names[:5]))}{' ...' if len(names) > 5 else ''}. {unlabelled}"
        )
    order = found if names is None else names
    return read_images(paths, model), np.array([order.index(name) for name in folders])


def find_images(folder: str) -> list[Path]:
    """All pictures under a folder, sorted.

    Raises:
        ValueError: if there are none.
    """
    paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in PICTURES)
    if not paths:
        raise ValueError(f"There are no pictures ({', '.join(sorted(PICTURES))}) in {folder}.")
    return paths


def read_images(paths: list[Path], model: Any) -> np.ndarray:
    """The pictures in the model's size, uint8 `(n, height, width, 3)`."""
    return np.stack([np.rint(load_image(path, model.config.image_size)).astype("uint8") for path in paths])
