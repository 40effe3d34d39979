"""Object detection: from a picture to boxes with names and scores, and COCO's average precision."""

from typing import TYPE_CHECKING

from keras_vit._names import lazy_names

if TYPE_CHECKING:
    from keras_vit.detection.detecting import Detection as Detection
    from keras_vit.detection.detecting import detect as detect
    from keras_vit.detection.detecting import plot as plot
    from keras_vit.detection.detecting import suppressed as suppressed
    from keras_vit.detection.metrics import MeanAP as MeanAP
    from keras_vit.detection.metrics import MeanAPResult as MeanAPResult
    from keras_vit.detection.metrics import evaluate as evaluate

__getattr__ = lazy_names(__name__)
