"""Images in, what models take out; probabilities in, names out. All NumPy, the same on every backend.

A `Pipeline`, which the config of a model holds, is what its family was evaluated with: `model.preprocess("photo.jpg")`.
That of the official checkpoints is `load_image`, then `preprocess_input`: decode to RGB, resize bilinearly without
antialiasing straight to the model's size, map 0..255 to [-1, 1]. Only reading files needs Pillow.
"""

from keras_vit.preprocessing.applications import (
    decode_predictions,
    imagenet1k_classes,
    imagenet21k_classes,
    preprocess_input,
)
from keras_vit.preprocessing.images import (
    FILTERS,
    RESIZES,
    Pipeline,
    bring_to_size,
    check_mode,
    check_pixels,
    is_file,
    load_image,
    resize_images,
)

__all__ = [
    "FILTERS",
    "RESIZES",
    "Pipeline",
    "bring_to_size",
    "check_mode",
    "check_pixels",
    "decode_predictions",
    "imagenet1k_classes",
    "imagenet21k_classes",
    "is_file",
    "load_image",
    "preprocess_input",
    "resize_images",
]
