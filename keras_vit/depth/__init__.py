"""From a picture to its depth, in metres or without a unit, as each publisher's code returns it."""

from typing import TYPE_CHECKING

from keras_vit._names import lazy_names

if TYPE_CHECKING:
    from keras_vit.depth.estimating import Depth, DepthErrors, depth_errors, estimate, mean_depth_errors, plot

__getattr__ = lazy_names(__name__)

__all__ = ["Depth", "DepthErrors", "depth_errors", "estimate", "mean_depth_errors", "plot"]
