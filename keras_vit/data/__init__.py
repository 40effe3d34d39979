"""Labelled images from anywhere, as batches: folders, arrays, tensorflow-datasets, other people's pipelines."""

from typing import TYPE_CHECKING

from keras_vit._lazy import lazy_names
from keras_vit.data.augmentation import Augmentation
from keras_vit.data.examples import BadImage, match_labels
from keras_vit.data.folder import IMAGE_SUFFIXES, has_test_split, image_files, pick_split
from keras_vit.data.randaugment import randaugment, randaugment_operation

# What needs Keras.
if TYPE_CHECKING:
    from keras_vit.data.opening import open_data
    from keras_vit.data.streams import Batches, ImageStream, as_dataset

__getattr__ = lazy_names(__name__)

__all__ = [
    "IMAGE_SUFFIXES",
    "Augmentation",
    "BadImage",
    "Batches",
    "ImageStream",
    "as_dataset",
    "has_test_split",
    "image_files",
    "match_labels",
    "open_data",
    "pick_split",
    "randaugment",
    "randaugment_operation",
]
