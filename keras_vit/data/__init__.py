"""Labelled images from anywhere, as batches: folders, arrays, tensorflow-datasets, other people's pipelines."""

from typing import TYPE_CHECKING

from keras_vit._lazy import IS_PROGRAM, import_later
from keras_vit.data.augmentation import Augmentation
from keras_vit.data.checks import BadImage
from keras_vit.data.folder import SPLITS

# What needs Keras to be imported.
if TYPE_CHECKING or not IS_PROGRAM:
    from keras_vit.data.opening import open_data
    from keras_vit.data.randaugment import randaugment, randaugment_operation
    from keras_vit.data.streams import Batches, ImageStream, as_dataset
else:
    __getattr__ = import_later(__name__, "opening", "randaugment", "streams")

__all__ = [
    "SPLITS",
    "Augmentation",
    "BadImage",
    "Batches",
    "ImageStream",
    "as_dataset",
    "open_data",
    "randaugment",
    "randaugment_operation",
]
