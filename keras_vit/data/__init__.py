"""Labelled images from anywhere, as batches: folders, arrays, tensorflow-datasets, other people's pipelines."""

from typing import TYPE_CHECKING

from keras_vit._lazy import lazy_names
from keras_vit.data.examples import IMAGE_SUFFIXES, BadImage, has_test_split, image_files, match_labels, pick_split
from keras_vit.data.randaugment import randaugment, randaugment_operation

# What needs Keras, and what worker processes run as a program.
if TYPE_CHECKING:
    from keras_vit.data.augmentation import Augmentation
    from keras_vit.data.mask_augmentation import MaskAugmentation
    from keras_vit.data.masks import MaskedImages, open_masks
    from keras_vit.data.streams import Batches, ImageStream, as_dataset, open_data
    from keras_vit.data.tables import LabelTable, open_table

__getattr__ = lazy_names(__name__)

__all__ = [
    "IMAGE_SUFFIXES",
    "Augmentation",
    "BadImage",
    "Batches",
    "ImageStream",
    "LabelTable",
    "MaskAugmentation",
    "MaskedImages",
    "as_dataset",
    "has_test_split",
    "image_files",
    "match_labels",
    "open_data",
    "open_masks",
    "open_table",
    "pick_split",
    "randaugment",
    "randaugment_operation",
]
