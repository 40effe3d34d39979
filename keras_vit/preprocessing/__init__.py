"""Images in, what models take out; probabilities in, names out. All NumPy, the same on every backend.

`load_image` then `preprocess_input` is what the official checkpoints were evaluated with: decode to RGB, resize
bilinearly without antialiasing straight to the model's size, map 0..255 to [-1, 1]. What other families were evaluated
with is a `Pipeline`, which their configs hold. Only `load_image` needs Pillow.
"""

from keras_vit.preprocessing.pictures import load_image
from keras_vit.preprocessing.pipeline import Pipeline
from keras_vit.preprocessing.pixels import (
    FILTERS,
    OVERSHOOT,
    RESIZES,
    channel_hint,
    check_dtype,
    check_pixels,
    preprocess_input,
    resize_images,
)
from keras_vit.preprocessing.predictions import decode_predictions, imagenet1k_classes

__all__ = [
    "FILTERS",
    "OVERSHOOT",
    "RESIZES",
    "Pipeline",
    "channel_hint",
    "check_dtype",
    "check_pixels",
    "decode_predictions",
    "imagenet1k_classes",
    "load_image",
    "preprocess_input",
    "resize_images",
]
