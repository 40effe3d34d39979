"""Labelled images from anywhere, as batches: folders, arrays, tensorflow-datasets, other people's pipelines."""

from keras_vit.data.augmentation import Augmentation
from keras_vit.data.checks import BadImage
from keras_vit.data.folder import SPLITS
from keras_vit.data.opening import open_data
from keras_vit.data.randaugment import randaugment, randaugment_operation
from keras_vit.data.streams import Batches, ImageStream, as_dataset

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
