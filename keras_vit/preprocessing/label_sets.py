"""The classes of data sets for segmentation: names, colours, and which of them are stuff."""

import dataclasses
import functools
import json

from keras_vit._arguments import check_choice
from keras_vit._files import weights_folder

LABEL_SETS = ("ade20k", "cityscapes", "coco", "voc2012")


@dataclasses.dataclass(frozen=True)
class LabelSet:
    """The classes of a data set, in the order of the outputs of models.

    Attributes:
        names: What they are called.
        colours: `(red, green, blue)` of each, 0..255, as its publishers draw it.
        stuff: Which of them are no countable things: their segments are one in panoptic maps.

    Examples:
        >>> len(segmentation.label_set("ade20k").stuff)
        50
    """

    names: tuple[str, ...]
    colours: tuple[tuple[int, int, int], ...]
    stuff: tuple[int, ...]


@functools.cache
def label_set(name: str) -> LabelSet:
    """The classes of a data set by its name.

    Args:
        name: `"ade20k"` (150 classes), `"coco"` (133: 80 things, then 53 kinds of stuff), `"cityscapes"` (19) or
            `"voc2012"` (21 with the background).

    Returns:
        A `LabelSet`. The sources are in `weights/README.md`.

    Raises:
        ValueError: if there is no such data set.

    Examples:
        >>> segmentation.label_set("cityscapes").names[:2]
        ('road', 'sidewalk')
        >>> segmentation.label_set("voc2012").colours[1]
        (128, 0, 0)
    """
    check_choice("name", name, LABEL_SETS)
    found = json.loads((weights_folder() / "label_sets.json").read_text(encoding="utf-8"))[name]
    colours = tuple((code >> 16, code >> 8 & 255, code & 255) for code in (int(text, 16) for text in found["colours"]))
    return LabelSet(tuple(found["names"]), colours, tuple(found["stuff"]))
