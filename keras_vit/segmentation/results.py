"""What a picture was divided into."""

import dataclasses
import itertools
import os
import pathlib
from typing import Any

import numpy as np

from keras_vit._files import replacing
from keras_vit._pictures import safe_colours


@dataclasses.dataclass(frozen=True)
class Segment:
    """A part of a picture.

    Attributes:
        id: The number that its pixels have in the map.
        label_id: Its class.
        label: What that class is called.
        score: How sure the model is, in 0..1; None where each pixel was classified by itself.
        area: The number of its pixels; of an instance those of its mask, which others may cover.

    Examples:
        >>> segmentation.Segment(id=0, label_id=2, label="sky", score=0.9, area=120).label
        'sky'
    """

    id: int
    label_id: int
    label: str
    score: float | None
    area: int


@dataclasses.dataclass(frozen=True)
class Segmentation:
    """A picture as segments.

    Attributes:
        map: int32 `(height, width)`: the id of each pixel's segment, -1 for pixels of none; with the task `"semantic"`
            ids are classes.
        segments: The segments, in the order of the model's queries, or of the classes.
        task: `"semantic"`, `"panoptic"` or `"instance"`.

    Examples:
        >>> result = segmentation.Segmentation(np.zeros((2, 3), "int32"), (), "semantic")
        >>> result.to_dict()
        {'task': 'semantic', 'segments': []}
    """

    map: np.ndarray
    segments: tuple[Segment, ...]
    task: str

    def to_dict(self) -> dict[str, Any]:
        """Task and segments as plain data, for JSON."""
        return {"task": self.task, "segments": [dataclasses.asdict(segment) for segment in self.segments]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the map as `.npy` (int32), or as a `.png` with an id a pixel, which appears when it is complete.

        Up to the id 254 the picture has 8 bits and a colour for each id; 255 are pixels of no segment. With more ids it
        is grey with 16 bits, and 65535 stands for them.

        Args:
            path: The file; it is replaced if it exists.

        Raises:
            ImportError: if Pillow is not installed, for `.png`.
            ValueError: if `path` has another ending.
        """
        ending = pathlib.Path(path).suffix.lower()
        if ending not in (".npy", ".png"):
            raise ValueError(f"path must end with .npy or .png, but {os.fspath(path)!r} was given.")
        if ending == ".npy":
            with replacing(path) as temporary:
                np.save(temporary, self.map)
            return
        from PIL import Image

        is_small = self.map.max(initial=-1) < 255
        image = Image.fromarray(self.map.astype("uint8" if is_small else "uint16"))  # -1 becomes the largest number
        if is_small:
            colours = itertools.chain(itertools.islice(safe_colours(), 255), [(0, 0, 0)])
            image.putpalette([*itertools.chain(*colours)])
        with replacing(path) as temporary:
            image.save(temporary)


def label_of(names: tuple[str, ...] | None, label_id: int) -> str:
    """The name of a class, or its number where there are no names."""
    return str(label_id) if names is None else names[label_id]


def semantic(classes: np.ndarray, names: tuple[str, ...] | None) -> Segmentation:
    """The segmentation of a map of classes `(height, width)`: a segment for each class that is there."""
    found, areas = np.unique(classes, return_counts=True)
    pairs = zip(found.tolist(), areas.tolist(), strict=True)
    segments = tuple(Segment(k, k, label_of(names, k), None, area) for k, area in pairs)
    return Segmentation(classes.astype("int32"), segments, "semantic")
