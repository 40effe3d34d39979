"""A class for every pixel: segmentation models, from a picture to its segments, and how good they are."""

from typing import TYPE_CHECKING

from keras_vit._names import lazy_names

if TYPE_CHECKING:
    from keras_vit.preprocessing import LabelSet as LabelSet
    from keras_vit.preprocessing import label_set as label_set
    from keras_vit.segmentation.metrics import MeanIoU as MeanIoU
    from keras_vit.segmentation.metrics import MeanIoUResult as MeanIoUResult
    from keras_vit.segmentation.metrics import PanopticQuality as PanopticQuality
    from keras_vit.segmentation.metrics import PanopticQualityResult as PanopticQualityResult
    from keras_vit.segmentation.metrics import evaluate as evaluate
    from keras_vit.segmentation.metrics import mean_iou as mean_iou
    from keras_vit.segmentation.segmenting import Segment as Segment
    from keras_vit.segmentation.segmenting import Segmentation as Segmentation
    from keras_vit.segmentation.segmenting import plot as plot
    from keras_vit.segmentation.segmenting import segment as segment

__getattr__ = lazy_names(__name__)
