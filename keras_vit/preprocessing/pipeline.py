"""From pictures to what a model takes: files are read, resized, cropped and normalised as the model's family does."""

import contextlib
import dataclasses
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from keras_vit._arguments import pair
from keras_vit.interpolation import METHODS
from keras_vit.preprocessing.pixels import (
    FILTERS,
    RESIZES,
    bring_to_size,
    check_pixels,
    check_shape_and_dtype,
    normalized,
    resize_and_crop,
)

if TYPE_CHECKING:
    from PIL import Image

PIPELINE_RESIZES = ("squash", "shortest")


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Pictures of any size in, what a model takes out: resize, cut out the centre, normalise.

    The defaults are those of the official checkpoints.

    Args:
        image_size: Height and width of the result in pixels; an integer for squares.
        mean: What is subtracted from pixels of 0..1: a number, or one for each channel.
        std: What they are divided by then; likewise.
        resize: `"squash"`: straight to `image_size / crop_ratio`; `"shortest"`: to the least size that covers it with
            the picture's own aspect ratio.
        crop_ratio: Which share of each side the crop keeps, in (0, 1].
        filter: A name in `FILTERS`.
        trim: Rows at the lower and columns at the right edge that are prepared beyond `image_size` and then left out,
            as models do whose patches do not fill the picture (384 pixels in patches of 14).

    Raises:
        TypeError, ValueError: if an argument makes no sense.
    """

    image_size: tuple[int, int]
    mean: float | tuple[float, ...] = 0.5
    std: float | tuple[float, ...] = 0.5
    resize: str = "squash"
    crop_ratio: float = 1.0
    filter: str = "bilinear"
    trim: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        object.__setattr__(self, "trim", tuple(self.trim))
        if len(self.trim) != 2 or not all(isinstance(n, int) and n >= 0 for n in self.trim):
            raise ValueError(f"trim must be two whole numbers from 0, but {self.trim!r} was given.")
        for name, choices in (("resize", PIPELINE_RESIZES), ("filter", tuple(FILTERS))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {choices}, but {getattr(self, name)!r} was given.")
        if isinstance(self.crop_ratio, bool) or not isinstance(self.crop_ratio, (int, float)):
            raise TypeError(f"crop_ratio must be a number, but {self.crop_ratio!r} was given.")
        if not 0 < self.crop_ratio <= 1:
            raise ValueError(f"crop_ratio must lie in (0, 1], but {self.crop_ratio!r} was given.")
        for name, least in (("mean", -np.inf), ("std", 0.0)):
            values = np.asarray(getattr(self, name), "float64")
            if values.ndim > 1 or not values.size or not np.all(np.isfinite(values) & (values > least)):
                above = " above 0" if name == "std" else ""
                raise ValueError(
                    f"pixel_{name} must be a finite number{above}, or one for each channel, but "
                    f"{getattr(self, name)!r} was given."
                )

    def __call__(self, images: Any, channels: int = 3, *, normalize: bool = True, stacklevel: int = 2) -> Any:
        """What a model takes.

        Args:
            images: One picture or several: paths, binary file objects, PIL images, or arrays and tensors of any
                backend, `(height, width, channels)` or `(batch, height, width, channels)`, uint8 or values of 0..255.
                The pictures of a list may differ in size and kind. Inside `tf.data` maps, a tensor of TensorFlow.
            channels: How many the images have. Files have three.
            normalize: Whether pixels are normalised; otherwise they stay in 0..255, as `resized` gives them.
            stacklevel: Whose line a warning points at, as for `warnings.warn`.

        Returns:
            float32 `(batch, *image_size, channels)`; inside `tf.data` maps a tensor, which has no batch axis where the
            images have none.

        Raises:
            FileNotFoundError: if there is no such file.
            TypeError, ValueError: if the values are no pixels, a file is no picture, or there are other channels.
            ImportError: if a file is to be read, and Pillow is not installed.

        Warns:
            UserWarning: if floats all lie in [-1, 1]: they look scaled already.
        """
        if _is_symbolic_tensorflow(images):
            return self._in_graph(images, channels, normalize)
        pixels = self.resized(images, channels, stacklevel=stacklevel + 1)
        return normalized(pixels, self.mean, self.std) if normalize else pixels

    def resized(self, images: Any, channels: int = 3, *, stacklevel: int = 2) -> np.ndarray:
        """Pictures at the model's size, still as pixels.

        Args:
            images: As in `__call__`, but for tensors inside `tf.data` maps.
            channels: How many the images have.
            stacklevel: Whose line a warning points at, as for `warnings.warn`.

        Returns:
            float32 `(batch, *image_size, channels)` in 0..255; integers stay whole numbers where the filter is one of
            Pillow's.

        Raises:
            FileNotFoundError, TypeError, ValueError, ImportError: as in `__call__`.

        Warns:
            UserWarning: if floats all lie in [-1, 1]: they look scaled already.
        """
        if isinstance(images, (list, tuple)) and _differ(images):
            return np.concatenate([self.resized(image, channels, stacklevel=stacklevel + 2) for image in images])
        if is_file(images):
            images = load_image(images)
        images = check_pixels(images, channels, stacklevel=stacklevel + 1)
        images = images if images.ndim == 4 else images[None]
        if 0 in images.shape[1:3]:
            raise ValueError(f"images must have pixels, but the shape {images.shape} was given.")
        prepared = resize_and_crop(images, self.prepared_size, self.resize, self.crop_ratio, self.filter)
        return prepared[..., : self.image_size[0], : self.image_size[1], :]

    @property
    def prepared_size(self) -> tuple[int, int]:
        """Height and width of what the publisher prepares, of which the model sees `image_size`."""
        return self.image_size[0] + self.trim[0], self.image_size[1] + self.trim[1]

    @property
    def value_range(self) -> tuple[float, float]:
        """What the least and the largest pixel become, over all channels; `(-1, 1)` by default."""
        mean, std = np.broadcast_arrays(np.asarray(self.mean, "float64"), np.asarray(self.std, "float64"))
        low, high = float(np.min(-mean / std)), float(np.max((1 - mean) / std))
        return (int(low) if low.is_integer() else low, int(high) if high.is_integer() else high)

    def normalized(self, pixels: np.ndarray) -> np.ndarray:
        """`(pixels / 255 - mean) / std` in float32, as a new array."""
        return normalized(pixels, self.mean, self.std)

    def _in_graph(self, images: Any, channels: int, normalize: bool) -> Any:
        """The same for a symbolic tensor of TensorFlow: NumPy computes it when the graph runs."""
        tensorflow = sys.modules["tensorflow"]
        check_shape_and_dtype(images, channels)

        def compute(pixels: np.ndarray) -> np.ndarray:
            result = self(pixels, channels, normalize=normalize)
            return result[0] if pixels.ndim == 3 else result

        result = tensorflow.numpy_function(compute, [images], "float32")
        if images.shape.rank is not None:
            result.set_shape([*images.shape[:-3], *self.image_size, channels])
        return result


def is_file(source: Any) -> bool:
    """Whether it is something that `load_image` reads: a path, a binary file object or a PIL image."""
    if isinstance(source, (str, os.PathLike)) or hasattr(source, "read"):
        return True
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(source, pillow.Image)


def _differ(images: Any) -> bool:
    """Whether the pictures of a list are files, or of different sizes."""
    return any(map(is_file, images)) or len({tuple(i.shape) for i in images if hasattr(i, "shape")}) > 1


def _is_symbolic_tensorflow(images: Any) -> bool:
    return type(images).__module__.startswith("tensorflow.") and not hasattr(images, "numpy")


def load_image(
    file: "str | os.PathLike | BinaryIO | Image.Image",
    image_size: int | tuple[int, int] | None = None,
    *,
    resize: str = "squash",
    interpolation: str = "bilinear",
    crop_fraction: float | None = None,
    orient: bool = True,
    pipeline: Pipeline | None = None,
) -> np.ndarray:
    """Read a picture as RGB, and bring it to a size where one is given.

    For a model, `model.preprocess(file)` does all that the model wants. All modes become RGB as
    `tf.io.decode_image(channels=3)` and Pillow's `convert("RGB")` make them: grey is repeated, palettes are looked up,
    of 16 bits the upper 8 are kept, CMYK is converted without a colour profile. Transparency is dropped, not blended:
    transparent pixels get the colour that the file has under them, often black. Of an animation the first frame is
    read. The pixels equal TensorFlow's, but those of JPEG files, where the two decoders round differently, by a few
    grey levels.

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
        pipeline: Deprecated: `pipeline.resized(file)[0]` gives the same.

    Returns:
        uint8 `(height, width, 3)` if `image_size` is `None`, else float32 `(*image_size, 3)` in 0..255, not
        rounded after `"squash"`. `preprocess_input` takes either.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is not a picture that Pillow can decode, or an argument has an unknown value.
        TypeError: if an argument has a wrong type.
        ImportError: if Pillow is not installed.

    Examples:
        >>> keras_vit.load_image("photo.jpg", 224).shape
        (224, 224, 3)
    """
    if resize not in RESIZES:
        raise ValueError(f"resize must be one of {sorted(RESIZES)}, but {resize!r} was given.")
    if interpolation not in METHODS:
        raise ValueError(f"interpolation must be one of {sorted(METHODS)}, but {interpolation!r} was given.")
    if resize == "squash" and crop_fraction is not None:
        raise ValueError(f'resize="squash" does not crop: leave crop_fraction={crop_fraction!r} out.')
    if resize != "squash" and interpolation != "bilinear":
        raise ValueError(f"interpolation={interpolation!r}: {resize!r} brings its own. Leave it out.")
    if crop_fraction is not None and not 0 < crop_fraction <= 1:
        raise ValueError(f"crop_fraction must lie in (0, 1], but {crop_fraction!r} was given.")
    size = None if image_size is None else pair("image_size", image_size)
    if pipeline is not None:
        warnings.warn(
            "load_image(file, pipeline=...) is deprecated, as model.preprocess would crop its result a second time. "
            "model.preprocess(file) does it all; pipeline.resized(file)[0] gives the pixels.",
            DeprecationWarning,
            stacklevel=2,
        )
    pixels = _read_rgb(file, orient)
    if pipeline is not None:
        return pipeline.resized(pixels)[0]
    return pixels if size is None else bring_to_size(pixels, size, resize, interpolation, crop_fraction)


def _read_rgb(file: Any, orient: bool) -> np.ndarray:
    """Decode anything that `load_image` takes to a uint8 array `(height, width, 3)`."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError('load_image needs Pillow: pip install "keras-vit[images]".') from error

    is_path = isinstance(file, (str, os.PathLike))
    if not is_file(file):
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
