"""Pictures of any size to classes with a linear head: crops that slide, several scales, mirror images.

As the evaluations of DINOv2 and DINOv3 do it, and the notebook of TIPS with vectors of texts. Logits
stay on the grids of patches until some rows of them are needed.
"""

from collections.abc import Sequence

import numpy as np

from keras_vit._arguments import softmax, to_numpy
from keras_vit._processes import fill_up
from keras_vit.interpolation import opencv_resized
from keras_vit.models import LinearSegmenter, LinearSegmenterConfig
from keras_vit.preprocessing import Pipeline, resize_images
from keras_vit.preprocessing.windows import (
    Rows,
    Window,
    centre_margins,
    largest,
    merged,
    rows_of,
    sliding,
    stretched,
    strips,
)
from keras_vit.segmentation.results import Segmentation, semantic


def segment_patches(
    model: LinearSegmenter, pixels: np.ndarray, scales: Sequence[float], flip: bool, batch_size: int
) -> Segmentation:
    """The class of each pixel of a picture `(height, width, channels)`; see `segment`."""
    config, size = model.config, (pixels.shape[0], pixels.shape[1])
    views: list[tuple[Rows, tuple[int, int], bool]] = []
    for scale in scales:
        image = _resized(pixels, config, scale).astype("float32")
        image = image if config.include_preprocessing else config.pipeline.normalized(image)
        for mirrored in (False, True) if flip else (False,):
            views.append((*_logits(model, image[:, ::-1] if mirrored else image, batch_size), mirrored))
    if len(views) == 1:  # a softmax would not change which is largest
        return semantic(largest(*views[0][:2], size, config.classes), config.class_names)
    found = np.empty(size, "int32")
    maps = [(stretched(rows, inner, size), -1 if mirrored else 1) for rows, inner, mirrored in views]
    for start, stop in strips(size, config.classes):
        parts = [(rows(start, stop), step) for rows, step in maps]
        # TIPS's are cosines, or shares already.
        parts = parts if config.zero_shot else [(softmax(logits), step) for logits, step in parts]
        total = sum((shares[:, ::step] for shares, step in parts), np.zeros(()))
        found[start:stop] = total.argmax(-1)
    return semantic(found, config.class_names)


def _resized(pixels: np.ndarray, config: LinearSegmenterConfig, scale: float) -> np.ndarray:
    """A picture whose shorter side is the config's times a scale, truncated."""
    height, width = pixels.shape[:2]
    short = int(config.short_side * scale)
    if config.pictures == "dinov2":
        factor = short / min(height, width)  # mmcv's `rescale_size`, then OpenCV, which rounds bytes only
        size = int(height * factor + 0.5), int(width * factor + 0.5)
        return opencv_resized(pixels, size) if pixels.dtype == np.uint8 else resize_images(pixels, size)
    is_tips = config.pictures.startswith("tips")
    long = int(short * max(height, width) / min(height, width) + (0 if is_tips else 0.5))
    size = (short, long) if height <= width else (long, short)
    return Pipeline(size, filter="bicubic" if is_tips else "bilinear_pillow").resized(pixels, pixels.shape[2])[0]


def _logits(model: LinearSegmenter, image: np.ndarray, batch_size: int) -> tuple[Rows, tuple[int, int]]:
    """The rows of a map of logits, the mean of those of crops, and its size: that of the image, or of one grid."""
    config, size = model.config, (image.shape[0], image.shape[1])
    is_whole, is_tips = config.pictures == "tips_whole", config.pictures.startswith("tips")
    windows = [Window(0, 0, *size)] if is_whole else sliding(size, config.crop_size, config.stride)
    crop = windows[0][2:]
    maps: list[Rows] = []
    grid = size
    for first in range(0, len(windows), batch_size):
        crops = np.stack([window.of(image) for window in windows[first : first + batch_size]])
        count = len(crops)
        # Several batches have one shape: some backends compile for each.
        crops = fill_up(crops, batch_size) if len(windows) > batch_size else crops
        crops = _stretched_to_patches(crops, config) if is_tips else _padded_to_patches(crops, config)
        for logits in to_numpy(model.predict_on_batch(crops))[:count].astype("float32"):
            grid = (logits.shape[0], logits.shape[1])
            # The grid that the padding belongs to is stretched over the crop without it, as in the original.
            maps.append(rows_of(logits) if is_whole else stretched(rows_of(logits), grid, crop))
    if is_whole:
        return maps[0], grid
    maps = [_shares(rows) for rows in maps] if is_tips else maps
    return merged(image.shape[1], windows, maps), size


def _padded_to_patches(crops: np.ndarray, config: LinearSegmenterConfig) -> np.ndarray:
    """Crops with zeros around them up to whole patches (DINOv2)."""
    margins = [(0, 0), *centre_margins(crops.shape[1:3], config.patch_size), (0, 0)]
    # What is 0 after normalising.
    grey = 255 * np.asarray(config.pipeline.mean, "float32") if config.include_preprocessing else np.zeros(())
    return np.pad(crops - grey, margins) + grey


def _stretched_to_patches(crops: np.ndarray, config: LinearSegmenterConfig) -> np.ndarray:
    """Crops enlarged to whole patches, without antialiasing (TIPS)."""
    pairs = zip(crops.shape[1:3], config.patch_size, strict=True)
    size = tuple(-(-side // patch) * patch for side, patch in pairs)
    return crops if size == crops.shape[1:3] else resize_images(crops, size, "bicubic_hf")


def _shares(rows: Rows) -> Rows:
    """Shares of the classes at each place, which crops of TIPS are averaged in."""
    return lambda start, stop: softmax(rows(start, stop))
