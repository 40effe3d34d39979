"""Labelled images from anywhere, as batches: folders, arrays, tensorflow-datasets, other people's pipelines."""

from typing import TYPE_CHECKING

from keras_vit._names import lazy_names

# Nothing is imported at once: some of it needs Keras, and worker processes run `data.workers` as a program.
if TYPE_CHECKING:
    from keras_vit.data.augmentation import Augmentation as Augmentation
    from keras_vit.data.augmentation import MaskAugmentation as MaskAugmentation
    from keras_vit.data.augmentation import SegmentAugmentation as SegmentAugmentation
    from keras_vit.data.augmentation import augment_masks as augment_masks
    from keras_vit.data.boxes import BoxAugmentation as BoxAugmentation
    from keras_vit.data.boxes import BoxedImages as BoxedImages
    from keras_vit.data.boxes import open_boxes as open_boxes
    from keras_vit.data.examples import IMAGE_SUFFIXES as IMAGE_SUFFIXES
    from keras_vit.data.examples import BadImage as BadImage
    from keras_vit.data.examples import has_test_split as has_test_split
    from keras_vit.data.examples import image_files as image_files
    from keras_vit.data.examples import match_labels as match_labels
    from keras_vit.data.examples import pick_split as pick_split
    from keras_vit.data.masks import MaskedImages as MaskedImages
    from keras_vit.data.masks import mask_targets as mask_targets
    from keras_vit.data.masks import open_masks as open_masks
    from keras_vit.data.opening import Batches as Batches
    from keras_vit.data.opening import Digits as Digits
    from keras_vit.data.opening import as_dataset as as_dataset
    from keras_vit.data.opening import load_digits as load_digits
    from keras_vit.data.opening import open_data as open_data
    from keras_vit.data.random_operations import randaugment as randaugment
    from keras_vit.data.random_operations import randaugment_operation as randaugment_operation
    from keras_vit.data.segments import SegmentedImages as SegmentedImages
    from keras_vit.data.segments import open_segments as open_segments
    from keras_vit.data.streams import ImageStream as ImageStream
    from keras_vit.data.streams import Stream as Stream
    from keras_vit.data.tables import LabelTable as LabelTable
    from keras_vit.data.tables import open_table as open_table
    from keras_vit.data.views import ViewAugmentation as ViewAugmentation

__getattr__ = lazy_names(__name__)
