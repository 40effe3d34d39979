"""From a picture to its segments."""

import math
import numbers
from collections.abc import Collection, Sequence
from typing import Any

from keras_vit._arguments import check_choice, whole_number
from keras_vit.models import EoMT, LinearSegmenter
from keras_vit.preprocessing.windows import read_picture
from keras_vit.segmentation.patches import segment_patches
from keras_vit.segmentation.queries import segment_with_queries
from keras_vit.segmentation.results import Segmentation

TASKS = ("semantic", "panoptic", "instance")
THRESHOLDS = {"panoptic": 0.8, "instance": 0.5}  # of transformers' post-processing
LONGEST = 50  # how often the shorter side of a picture may fit into the longer one: crops are laid along that


def segment(
    model: Any,
    picture: Any,
    *,
    task: str | None = None,
    stuff_classes: Collection[int] = (),
    threshold: float | None = None,
    overlap: float = 0.8,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    batch_size: int = 4,
) -> Segmentation:
    """The segments of a picture of any size, found as the model's publisher does it (`model.config.pictures`).

    Args:
        model: A segmentation model, an `EoMT` or a `LinearSegmenter`, such as `keras_vit.load` returns.
        picture: A path, a binary file object, a PIL image, or an array `(height, width, 3)` of 0..255.
        task: `"semantic"`: a class for each pixel; `"panoptic"`: also which thing it is; `"instance"`: things alone,
            which may overlap. None for the one that the model's file says, else `"panoptic"`. A linear head knows
            `"semantic"` only.
        stuff_classes: Numbers of the classes of which there are no single things, such as sky: with `"panoptic"` all
            of one class are one segment. Authors' figures on COCO are with 80 to 132.
        threshold: Scores, in 0..1, below which a query is no segment. None: the publisher's, 0.8 for `"panoptic"` and
            0.5 for `"instance"`.
        overlap: For `"panoptic"` the least share of its mask that a segment keeps beside those above it.
        scales: For a linear head: in which sizes the picture is looked at, in relation to `config.short_side`; shares
            of classes are averaged. DINOv2 is measured with `(1.0, 1.32, 1.73, 2.28, 3.0)` for heads on four blocks.
        flip: For a linear head: whether the mirror image counts as much.
        batch_size: How many crops are computed at a time.

    Returns:
        A `Segmentation` of the size of the picture.

    Raises:
        TypeError: if `model` is no such model, or `picture` no picture.
        FileNotFoundError: if there is no such file.
        ValueError: if an argument makes no sense, or the picture has no pixels, other channels, or one side that is
            more than 50 times as long as the other.

    Source: EoMT's `training/lightning_module.py` and `training/mask_classification_panoptic.py`; `EomtImageProcessor`
    of transformers; `slide_inference` and `aug_test` of mmsegmentation, as DINOv2 calls them.

    Examples:
        >>> result = keras_vit.segmentation.segment(eomt, "photo.jpg", task="semantic")
        >>> result.map.shape == keras_vit.load_image("photo.jpg").shape[:2]
        True
    """
    if not isinstance(model, (EoMT, LinearSegmenter)):
        raise TypeError(
            f"model must be a segmentation model, EoMT or LinearSegmenter, but {type(model).__name__} was given."
        )
    config, linear = model.config, isinstance(model, LinearSegmenter)
    if task is None:
        task = getattr(config, "task", None) or ("semantic" if linear else "panoptic")
    check_choice("task", task, ("semantic",) if linear else TASKS)
    if linear and (threshold, overlap) != (None, 0.8):
        raise ValueError("threshold and overlap are for an EoMT: a linear head gives each pixel its best class.")
    threshold = THRESHOLDS.get(task, 0.8) if threshold is None else threshold
    for name, value in {"threshold": threshold, "overlap": overlap}.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value <= 1:
            raise ValueError(f"{name} must be a number in 0..1, but {value!r} was given.")
    whole_number("batch_size", batch_size, 1)
    stuff = list(stuff_classes) if isinstance(stuff_classes, Collection) else [stuff_classes]
    if any(isinstance(k, bool) or not isinstance(k, numbers.Integral) or not 0 <= k < config.classes for k in stuff):
        raise ValueError(f"stuff_classes must be numbers of 0 to {config.classes - 1}, but {stuff!r} was given.")
    if stuff and task != "panoptic":
        raise ValueError(f"stuff_classes={stuff!r} is for task='panoptic', but task={task!r} was given.")
    if not linear and (scales != (1.0,) or flip):
        raise ValueError("scales and flip are for models with a linear head: an EoMT sees pictures in one size.")
    least = 1 / getattr(config, "short_side", 1)
    if not scales or not all(isinstance(scale, numbers.Real) and least <= scale < math.inf for scale in scales):
        raise ValueError(f"scales must be numbers above 0 such as (1.0, 1.32), but {scales!r} was given.")
    pixels = read_picture(picture, config.channels)
    height, width = pixels.shape[:2]
    if max(height, width) > LONGEST * min(height, width):
        most = f"at most {LONGEST} times as long as the other"
        raise ValueError(f"picture must have one side {most}, but {height} x {width} pixels were given: cut it.")
    if linear:
        return segment_patches(model, pixels, scales, flip, batch_size)
    return segment_with_queries(model, pixels, task, stuff, threshold, overlap, batch_size)
