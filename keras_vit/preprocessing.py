"""Images in, pixels in [-1, 1] out; probabilities in, names out.

`load_image` then `preprocess_input` is what the published models were evaluated with: decode to RGB, resize
bilinearly without antialiasing straight to the model's size, map 0..255 to [-1, 1]. It is all NumPy, the same
on every backend. Only `load_image` needs Pillow.
"""

import contextlib
import functools
import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from keras_vit._arrays import to_numpy
from keras_vit._paths import weights_folder
from keras_vit._types import pair
from keras_vit.interpolation import METHODS, interpolation_matrix

if TYPE_CHECKING:
    from PIL import Image

# How a picture is brought to the model's size, and the share of each side that the crop keeps.
RESIZES = {
    "squash": None,  # vit_jax (input_pipeline.py): straight to the size, the aspect ratio is not kept
    "big_vision": 0.875,  # big_vision (pp/ops_image.py): resize_small by area, then central_crop
    "timm": 0.9,  # timm's evaluation of ViT: Pillow's bicubic resize of the short side, then the centre
}

# Bicubic and Lanczos filters overshoot: floats may lie outside 0..255, by half of the range at most.
OVERSHOOT = 128.0


def load_image(
    file: "str | os.PathLike | BinaryIO | Image.Image",
    image_size: int | tuple[int, int] | None = None,
    *,
    resize: str = "squash",
    interpolation: str = "bilinear",
    crop_fraction: float | None = None,
    orient: bool = True,
) -> np.ndarray:
    """Read a picture as RGB and bring it to a model's size.

    All modes become RGB as `tf.io.decode_image(channels=3)` makes them: grey is repeated, palettes are looked
    up, transparency is dropped (not blended), of 16 bits the upper 8 are kept, CMYK is converted without a
    colour profile. Of an animation the first frame is read. The pixels equal TensorFlow's, but those of JPEG
    files, where the two decoders round differently, by a few grey levels.

    Args:
        file: A path, a binary file object, or a `PIL.Image.Image` (it is not changed).
        image_size: `(height, width)` in pixels, an integer for a square, `None` for the picture's own size.
        resize: One of `RESIZES`. `"squash"` scales straight to `image_size`, as the official code does.
            `"big_vision"` and `"timm"` keep the aspect ratio: they scale the picture until it covers
            `image_size / crop_fraction` and cut out the centre; their pixels are whole numbers, as there.
        interpolation: For `"squash"`: one of `keras_vit.interpolation.METHODS`. The default is
            official: bilinear with half-pixel centres and no antialiasing, as `tf.image.resize`.
        crop_fraction: For `"big_vision"` and `"timm"`: the share of each side that the crop keeps, in (0, 1].
            `None` takes the one in `RESIZES`; timm's 384-pixel models use 1.0.
        orient: Turn the picture upright as its EXIF orientation says. The original code ignores that tag:
            `False` repeats its numbers on photographs that carry one.

    Returns:
        uint8 `(height, width, 3)` if `image_size` is `None`, else float32 `(*image_size, 3)` in 0..255, not
        rounded after `"squash"`. `preprocess_input` takes either.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is not a picture that Pillow can decode, or an argument has an unknown value.
        TypeError: if an argument has a wrong type.
        ImportError: if Pillow is not installed.
    """
    if resize not in RESIZES:
        raise ValueError(f"resize must be one of {sorted(RESIZES)}, but {resize!r} was given.")
    if interpolation not in METHODS:
        raise ValueError(f"interpolation must be one of {sorted(METHODS)}, but {interpolation!r} was given.")
    if resize == "squash" and crop_fraction is not None:
        raise ValueError(f'resize="squash" does not crop: leave crop_fraction={crop_fraction!r} out.')
    if resize != "squash" and interpolation != "bilinear":
        raise ValueError(f"interpolation={interpolation!r}: {resize!r} brings its own. Leave it out.")
    fraction = RESIZES[resize] if crop_fraction is None else crop_fraction
    if fraction is not None and not 0 < fraction <= 1:
        raise ValueError(f"crop_fraction must lie in (0, 1], but {crop_fraction!r} was given.")
    size = None if image_size is None else pair("image_size", image_size)

    pixels = _read_rgb(file, orient)
    if size is None:
        return pixels
    if resize == "squash":
        return resize_images(pixels, size, interpolation)
    return (_resize_as_timm if resize == "timm" else _resize_as_big_vision)(pixels, size, fraction or 1.0)


def resize_images(images: Any, image_size: int | tuple[int, int], interpolation: str = "bilinear") -> np.ndarray:
    """Scale images to a size, whatever their aspect ratio.

    Args:
        images: Integers or floats `(batch, height, width, channels)` or `(height, width, channels)`, with any
            number of channels.
        image_size: `(height, width)` in pixels, or an integer for a square.
        interpolation: One of `keras_vit.interpolation.METHODS`. The default is
            `tf.image.resize(method="bilinear")`, which the official code uses.

    Returns:
        float32 `(batch, *image_size, channels)` or `(*image_size, channels)`, in the range of the input and
        not rounded.

    Raises:
        ValueError: if `images` has another rank or no pixels, or an argument has an unknown value.
        TypeError: if `images` does not hold real numbers, or `image_size` has a wrong type.
    """
    images = _as_pixels(images)
    if images.ndim not in (3, 4) or 0 in images.shape[-3:-1]:
        expected = "(batch, height, width, channels) or (height, width, channels), with pixels"
        raise ValueError(f"images must have shape {expected}, but {images.shape} was given.")
    height, width = pair("image_size", image_size)
    rows = interpolation_matrix(images.shape[-3], height, interpolation)
    columns = interpolation_matrix(images.shape[-2], width, interpolation)
    return _apply(rows, columns, images)


def preprocess_input(images: Any) -> Any:
    """Map pixel values from 0..255 to [-1, 1]: `(images - 127.5) / 127.5`.

    All published checkpoints were trained so: `value_range(-1, 1)` in vit_jax and big_vision, mean and
    standard deviation 0.5 in timm.

    Args:
        images: Values in 0..255 of any integer or float dtype, `(batch, height, width, 3)` or
            `(height, width, 3)`: a NumPy array, a list of equally large images, or a tensor of TensorFlow
            (also inside `tf.data` maps), JAX, torch or Keras (also symbolic).

    Returns:
        float32 of the same shape: a tensor of the same kind for a tensor, otherwise a new NumPy array.

    Raises:
        ValueError: if the last dimension is not 3 or the rank is not 3 or 4, if the images of a list differ
            in size, or if values are no pixels (see `check_pixels`; looked at in NumPy input only).
        TypeError: if the values are not real numbers.

    Warns:
        UserWarning: if NumPy floats all lie in [-1, 1]: they look scaled already.
    """
    if hasattr(images, "shape") and hasattr(images, "dtype") and not isinstance(images, np.ndarray):
        _check_dtype(images.dtype)
        _check_channels(images.shape)
        return (_to_float32(images) - 127.5) / 127.5

    images = check_pixels(images, stacklevel=3)
    pixels = images.astype("float32")
    pixels -= 127.5
    pixels /= 127.5
    return pixels


def check_pixels(images: Any, channels: int = 3, *, stacklevel: int = 2) -> np.ndarray:
    """Images as an array of pixels in 0..255, which is all that is checked.

    Args:
        images: Values in 0..255, `(batch, height, width, channels)` or `(height, width, channels)`: an array, a
            tensor of any backend, or a list of equally large images.
        channels: How many there have to be.
        stacklevel: Whose line a warning points at, as for `warnings.warn`; the caller's by default.

    Returns:
        The values in their own dtype.

    Raises:
        ValueError: if the shape is another one, the images of a list differ in size, integers lie outside 0..255,
            or floats are not finite or further outside than a resampling filter overshoots (`OVERSHOOT`).
        TypeError: if the values are not real numbers.

    Warns:
        UserWarning: if floats all lie in [-1, 1]: they look scaled already.
    """
    is_tensor = hasattr(images, "shape") and hasattr(images, "dtype") and not isinstance(images, np.ndarray)
    images = _as_pixels(to_numpy(images) if is_tensor else images)
    _check_channels(images.shape, channels)
    _check_range(images, stacklevel + 1)
    return images


def decode_predictions(
    probabilities: Any, top: int = 5, class_names: Sequence[str] | Sequence[tuple[str, str]] | None = None
) -> list[list[tuple[str, str, float]]]:
    """Name the best classes of each image, as `keras.applications` does.

    Without `class_names`, 1,000 classes are taken for those of ImageNet-1k (`imagenet1k_classes`). No other
    names come with the package, not even ImageNet-21k's: classes of any other number, 21,843 included, are
    called by index, `"class_123"`.

    Args:
        probabilities: `(batch, classes)`, an array or a tensor of any backend. Logits are ranked alike;
            scores are returned as they are given.
        top: How many classes to return for each image.
        class_names: One name, or one `(id, name)` pair, for each class in order.

    Returns:
        For each image `top` tuples `(id, name, score)`, best first, equal scores by index. The id is the
        WordNet id of ImageNet-1k (`"n02099601"`), that of a given pair, otherwise `"class_<index>"`.

    Raises:
        ValueError: if `probabilities` is not two-dimensional or not finite, if `top` is below 1 or above the
            number of classes, or if `class_names` does not have one entry for each class.
        TypeError: if `top` is not an integer, or `class_names` is not a sequence of names or pairs.

    Warns:
        UserWarning: if the classes are those of ImageNet-21k and no `class_names` are given.
    """
    scores = to_numpy(probabilities).astype("float32")
    if scores.ndim != 2:
        hint = " Add the batch dimension: probabilities[None]." if scores.ndim == 1 else ""
        raise ValueError(f"probabilities must be (batch, classes), but {scores.shape} was given.{hint}")
    if not np.isfinite(scores).all():
        raise ValueError("probabilities must be finite, but there are NaN or infinite values among them.")
    classes = scores.shape[1]
    if isinstance(top, bool) or not hasattr(top, "__index__"):
        raise TypeError(f"top must be an integer, but {top!r} was given.")
    if not 1 <= top <= classes:
        raise ValueError(f"top must lie between 1 and the number of classes, {classes}, but {top} was given.")
    names = _class_names(classes, class_names)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :top].tolist()
    return [[(*names[i], float(row[i])) for i in order] for row, order in zip(scores, best, strict=True)]


@functools.cache
def imagenet1k_classes() -> tuple[tuple[str, str], ...]:
    """The 1,000 classes of ImageNet-1k (ILSVRC 2012), in the order of the models' outputs.

    The name is the first of WordNet's words for the class, with spaces (`"great white shark"`). Two names
    occur twice, `"crane"` (the bird and the machine) and `"maillot"`: their ids differ.

    Returns:
        1,000 pairs of WordNet id and name; the first is `("n01440764", "tench")`.

    Raises:
        FileNotFoundError: if the package's data files are missing.
    """
    text = (weights_folder() / "imagenet1k_classes.tsv").read_text(encoding="utf-8")
    return tuple((wnid, name) for wnid, name in (line.split("\t") for line in text.splitlines()))


def _read_rgb(file: Any, orient: bool) -> np.ndarray:
    """Decode anything that `load_image` takes to a uint8 array `(height, width, 3)`."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError('load_image needs Pillow: pip install "keras-vit[images]".') from error

    is_path = isinstance(file, (str, os.PathLike))
    if not is_path and not isinstance(file, Image.Image) and not hasattr(file, "read"):
        hint = " To scale arrays use resize_images." if hasattr(file, "shape") else ""
        kind = type(file).__name__
        raise TypeError(f"file must be a path, a binary file object or a PIL image, not {kind}.{hint}")
    if is_path and "://" in str(file):
        hint = "Download it first: load_image(keras.utils.get_file(origin=...))."
        raise ValueError(f"file must be a local path, but the address {file!r} was given. {hint}")
    # Opened here: a missing or forbidden file keeps its own error, and all that follows is about content.
    with open(file, "rb") if is_path else contextlib.nullcontext(file) as source:
        try:
            image = source if isinstance(source, Image.Image) else Image.open(source)
            image.load()
            return _rgb(ImageOps.exif_transpose(image) if orient else image)
        except MemoryError:
            raise
        except Exception as error:  # Decoders raise errors of many kinds on damaged data.
            hint = "It may be damaged, cut short, or of a kind that Pillow does not know."
            raise ValueError(f"{str(file)!r} could not be read as a picture: {error}. {hint}") from error


def _rgb(image: "Image.Image") -> np.ndarray:
    if 0 in image.size:
        raise ValueError("it has no pixels")
    if image.mode in ("I", "F"):
        raise ValueError(f"mode {image.mode!r}, 32 bits, does not say what is white; scale it to 0..255 first")
    if image.mode.startswith("I;16"):  # Pillow would clip to 255; TensorFlow's decoder keeps the upper byte.
        grey = (np.asarray(image) >> 8).astype("uint8")
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # Straight to RGB, Pillow warns about palettes with transparency.
    return np.array(image.convert("RGB"))


def _apply(rows: np.ndarray, columns: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Multiply the height by `rows` and the width by `columns`, in float32."""
    for matrix, axis in ((rows, -3), (columns, -2)):
        # Without antialiasing a small copy of a large picture looks at few of its rows: take only those.
        used = np.flatnonzero(matrix.any(axis=0))
        images = np.take(images, used, axis=axis).astype("float32", copy=False)
        images = np.tensordot(matrix[:, used].astype("float32"), images, axes=(1, axis))
        images = np.moveaxis(images, 0, axis)
    return np.ascontiguousarray(images)


def _area_matrix(old: int, new: int) -> np.ndarray:
    """The `(new, old)` matrix of means over areas: TensorFlow's `ResizeMethod.AREA`."""
    edges = np.arange(new + 1) * (old / new)
    pixel = np.arange(old)
    covered = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    return np.maximum(covered, 0.0) / (old / new)


def _resize_as_big_vision(pixels: np.ndarray, size: tuple[int, int], fraction: float) -> np.ndarray:
    height, width = _covering_size(pixels.shape, size, fraction, round)
    resized = _apply(_area_matrix(pixels.shape[0], height), _area_matrix(pixels.shape[1], width), pixels)
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    # The original casts the means to uint8, which cuts off the fraction. The margin is for float32 means of
    # equal pixels that fall just short of a whole number.
    return np.floor(resized[top : top + size[0], left : left + size[1]] + 1e-3)


def _resize_as_timm(pixels: np.ndarray, size: tuple[int, int], fraction: float) -> np.ndarray:
    from PIL import Image

    height, width = _covering_size(pixels.shape, size, fraction, int)
    resized = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))
    top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
    return resized[top : top + size[0], left : left + size[1]].astype("float32")


def _covering_size(
    shape: tuple[int, ...], size: tuple[int, int], fraction: float, whole: Callable[[float], int]
) -> tuple[int, int]:
    """The smallest size that keeps the aspect ratio and covers `size / fraction`; `whole` makes integers."""
    height, width = shape[:2]
    least_height, least_width = (math.floor(n / fraction) for n in size)
    if least_height * width >= least_width * height:
        return least_height, whole(width * least_height / height)
    return whole(height * least_width / width), least_width


def _as_pixels(images: Any) -> np.ndarray:
    try:
        images = np.asarray(images)
    except ValueError as error:
        hint = "Resize each with load_image(file, image_size) or resize_images(image, image_size)."
        raise ValueError(f"images must be equally large to form a batch, but they differ. {hint}") from error
    _check_dtype(images.dtype)
    return images


def _check_dtype(dtype: Any) -> None:
    # Real dtypes are called so in every framework: "uint8", "torch.float16", "<dtype: 'bfloat16'>".
    if "int" not in str(dtype) and "float" not in str(dtype):
        raise TypeError(f"images must hold integers or floats in 0..255, but their dtype is {dtype}.")


def _check_channels(shape: Any, channels: int = 3) -> None:
    if getattr(shape, "rank", 0) is None:  # A TensorFlow tensor of unknown rank.
        return
    shape = tuple(shape)
    if len(shape) in (3, 4) and shape[-1] in (channels, None):
        return
    hint = ""
    if len(shape) in (3, 4):
        hints = {1: " Repeat the grey channel: numpy.repeat(images, 3, -1).", 4: " Drop alpha: images[..., :3]."}
        hint = hints.get(shape[-1], "") if channels == 3 else ""
        if shape[-3] == channels:
            hint = " The channels seem to come first: move them with numpy.moveaxis(images, -3, -1)."
    expected = f"(batch, height, width, {channels}) or (height, width, {channels})"
    raise ValueError(f"images must have shape {expected}, but {shape} was given.{hint}")


def _check_range(images: np.ndarray, stacklevel: int) -> None:
    if not images.size or images.dtype == "uint8":
        return
    least, most = images.min(), images.max()
    if images.dtype.kind in "iu":
        if least < 0 or most > 255:
            raise ValueError(f"images must hold values in 0..255, but they reach from {least} to {most}.")
        return
    if not np.isfinite(least) or not np.isfinite(most):
        raise ValueError("images must hold values in 0..255, but there are NaN or infinite values among them.")
    if least < -OVERSHOOT or most > 255 + OVERSHOOT:
        raise ValueError(
            f"images must hold values in 0..255, but they reach from {least:.6g} to {most:.6g}. Scale them first."
        )
    if least >= -1 and most <= 1 and images.any():
        warnings.warn(
            f"values in 0..255 are expected, but these floats lie between {least:.3g} and {most:.3g}. Multiply values "
            "in [0, 1] by 255; leave the preprocessing out if they are in [-1, 1] already.",
            stacklevel=stacklevel,
        )


def _to_float32(tensor: Any) -> Any:
    """Cast a tensor of any framework without importing one that is not loaded."""
    framework = type(tensor).__module__.partition(".")[0]
    if framework == "tensorflow":
        return sys.modules["tensorflow"].cast(tensor, "float32")
    if framework == "keras":
        return sys.modules["keras"].ops.cast(tensor, "float32")
    return tensor.float() if hasattr(tensor, "detach") else tensor.astype("float32")  # torch, or JAX


def _class_names(classes: int, names: Any) -> Sequence[tuple[str, str]]:
    """One `(id, name)` pair for each class."""
    if names is None and classes == 1000:
        return imagenet1k_classes()
    if names is None:
        if classes == 21843:
            warnings.warn(
                "The names of ImageNet-21k's classes do not come with keras_vit: they are called by index, "
                '"class_<index>". Give class_names to see names.',
                stacklevel=3,
            )
        names = [f"class_{i}" for i in range(classes)]
    if isinstance(names, (str, dict)) or not hasattr(names, "__getitem__"):
        raise TypeError(f"class_names must be a list in the order of the classes, not {type(names)}.")
    if len(names) != classes:
        raise ValueError(f"class_names must name each of the {classes} classes, but it names {len(names)}.")
    pairs = [(f"class_{i}", name) if isinstance(name, str) else name for i, name in enumerate(names)]
    for entry in pairs:
        if not isinstance(entry, (tuple, list)) or [isinstance(part, str) for part in entry] != [True, True]:
            raise TypeError(f"class_names must hold names or (id, name) pairs, but {entry!r} is among them.")
    return pairs
