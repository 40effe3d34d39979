"""From images to what a model takes: files are read, resized, cropped and normalised as the model's family does."""

import contextlib
import dataclasses
import functools
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import numpy as np

from keras_vit._arguments import ImageSize, pair, require_packages, to_numpy, warn_caller
from keras_vit._files import expanded_path
from keras_vit._options import GIVEN, OneOf, Options, Pair, Part, Several, Whole, checked, option, refuse
from keras_vit.interpolation import AREA, FILTERS, METHODS, blurred, resampled, resized

if TYPE_CHECKING:
    from PIL import Image

# Bicubic and Lanczos filters overshoot: floats may lie outside 0..255, by half of the range at most.
OVERSHOOT = 128.0

# Where a crop of the centre begins: from half of what is left over to whole pixels.
CROP_ROUNDINGS: dict[str, Callable[[float], int]] = {"even": round, "floor": math.floor}

# How pictures are squashed for the heads of TIPS 2, by `config.pictures`.
TIPS_PICTURES = {"tips": "bilinear_pillow", "tips_transformers": "torchvision_bilinear"}
DETECTOR_PICTURES = ("owlvit", "owlv2", "scenic")  # rules of `detector_pixels`
_ORIENTATION = 0x0112  # the tag of EXIF; 1 is upright
# Tags of TIFF, its first bytes, and how ImageJ, OME and tifffile note that pages are planes of one picture.
_KIND, _BITS, _DESCRIPTION, _SAMPLES, _PLANAR, _NO_DATA = 254, 258, 270, 277, 284, 42113
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_NOTES = re.compile(r'ImageJ=|<OME|"shape":')

# How `load_image` brings an image to a size, and the share of each side that the crop keeps.
RESIZES = {
    "squash": None,  # vit_jax (input_pipeline.py): straight to the size, the aspect ratio is not kept
    "big_vision": 0.875,  # big_vision (pp/ops_image.py): resize_small by area, then central_crop
    "timm": 0.9,  # timm's evaluation of ViT: Pillow's bicubic resize of the short side, then the centre
}


@dataclasses.dataclass(frozen=True)
class Pipeline(Options):
    """The preprocessing of a model: images of any size are resized, cropped at the centre and normalised.

    The defaults are the settings of the official checkpoints.

    Args:
        image_size: Height and width of the result in pixels; an integer for squares.
        mean: Mean to subtract from pixels of 0..1: a number, or one for each channel.
        std: Standard deviation to divide by: a number, or one for each channel.
        resize: `"squash"`: to `image_size / crop_ratio`, whatever the aspect ratio; `"shortest"`: to the smallest size
            that covers `image_size / crop_ratio` and keeps the aspect ratio.
        crop_ratio: Share of each side that the crop keeps, in (0, 1].
        crop_rounding: How half an odd margin is rounded: `"even"` to the even number (timm, open_clip, torchvision),
            `"floor"` down (transformers).
        filter: A name in `FILTERS`.
        trim: (rows, columns) at the lower and right edge that are prepared beyond `image_size` and then cut off, for
            models whose patches do not fill the image (384 pixels in patches of 14).
    """

    image_size: Pair
    mean: float | tuple[float, ...] = 0.5
    std: float | tuple[float, ...] = 0.5
    resize: Annotated[str, OneOf(("squash", "shortest"))] = "squash"
    crop_ratio: Part = 1.0
    crop_rounding: Annotated[str, OneOf(tuple(CROP_ROUNDINGS))] = "even"
    filter: Annotated[str, OneOf(tuple(FILTERS))] = "bilinear"
    trim: Annotated[tuple[int, int], Several(Whole(0), 2)] = (0, 0)

    def _check_together(self) -> None:
        for name, given, least in (("mean", self.mean, -np.inf), ("std", self.std, 0.0)):
            values = np.asarray(given, "float64")
            if values.ndim > 1 or not values.size or not np.all(np.isfinite(values) & (values > least)):
                wanted = f"a finite number{' above 0' if name == 'std' else ''}, or one for each channel"
                raise ValueError(f"pixel_{name} must be {wanted}, but {given!r} was given.")

    def __call__(self, images: Any, channels: int = 3, *, normalize: bool = True) -> Any:
        """Returns the model's input: float32 `(batch, *image_size, channels)`; pixels of 0..255 unless `normalize`.

        `images` are as in `resized`, or a symbolic tensor of TensorFlow inside `tf.data` maps. The result is then a
        tensor, without a batch axis if the images have none. Errors are as in `resized`.
        """
        if not type(images).__module__.startswith("tensorflow.") or hasattr(images, "numpy"):
            pixels = self.resized(images, channels)
            return self.normalized(pixels) if normalize else pixels

        # A symbolic tensor of TensorFlow: NumPy computes it when the graph runs.
        def compute(pixels: np.ndarray) -> np.ndarray:
            result = self(pixels, channels, normalize=normalize)
            return result[0] if pixels.ndim == 3 else result

        check_shape_and_dtype(images, channels)
        result = sys.modules["tensorflow"].numpy_function(compute, [images], "float32")
        if images.shape.rank is not None:
            result.set_shape([*images.shape[:-3], *self.image_size, channels])
        return result

    def resized(self, images: Any, channels: int = 3) -> np.ndarray:
        """Returns images at the model's size, still as pixels: float32 `(batch, *image_size, channels)` in 0..255.

        Args:
            images: One image or a list: paths, binary file objects, PIL images, or arrays and tensors of any backend,
                `(height, width, channels)` or `(batch, height, width, channels)`, uint8 or values of 0..255. Images of
                a list may differ in size and type. Integers stay whole numbers if the filter is one of Pillow's.
            channels: Number of channels. If it is not three, values may reach beyond 255, and files may be grey
                pictures or TIFFs of any number of channels, which need tifffile.

        Raises:
            OSError, ImportError: if a file cannot be opened; if Pillow or tifffile is missing.
            TypeError, ValueError: if an image cannot be decoded, is symbolic, or has another shape, other values or
                sizes.
        """
        if isinstance(images, (list, tuple)):
            shapes = {tuple(image.shape) for image in images if hasattr(image, "shape")}
            if len(shapes) > 1 or any(map(is_file, images)):
                return np.concatenate([self.resized(image, channels) for image in images])
        images = check_pixels(read_channels(images, channels) if is_file(images) else images, channels)
        images = images if images.ndim == 4 else images[None]
        if 0 in images.shape[1:3]:
            raise ValueError(f"images must have pixels, but the shape {images.shape} was given.")
        size = self.prepared_size
        target = self.uncropped_size
        if self.resize == "shortest":
            # torchvision cuts off the fraction; timm, which has a class of its own for what is not a square, rounds it.
            target = _covering(images.shape[1:3], target, int if target[0] == target[1] else round)
        images = _centre(resized(images, target, self.filter), size, CROP_ROUNDINGS[self.crop_rounding])
        return images[:, : self.image_size[0], : self.image_size[1]]  # without `trim`, which the model does not see

    @property
    def prepared_size(self) -> tuple[int, int]:
        """The height and width before `trim` is cut off."""
        return self.image_size[0] + self.trim[0], self.image_size[1] + self.trim[1]

    @property
    def uncropped_size(self) -> tuple[int, int]:
        """The height and width before the centre crop to `prepared_size`, rounded down."""
        return _uncropped(self.prepared_size, self.crop_ratio)

    @property
    def value_range(self) -> tuple[float, float]:
        """The least and the largest value of normalised pixels, over all channels; `(-1, 1)` by default."""
        mean, std = np.broadcast_arrays(np.asarray(self.mean, "float64"), np.asarray(self.std, "float64"))
        low, high = float(np.min(-mean / std)), float(np.max((1 - mean) / std))
        return (int(low) if low.is_integer() else low, int(high) if high.is_integer() else high)

    def normalized(self, pixels: np.ndarray) -> np.ndarray:
        """`(pixels / 255 - mean) / std`, a new float32 array; ValueError if `mean` or `std` do not fit."""
        return normalized(pixels, self.mean, self.std)


@checked
def load_image(
    file: "str | os.PathLike | BinaryIO | Image.Image",
    image_size: ImageSize | None = None,
    *,
    resize: Annotated[str, OneOf(tuple(RESIZES))] = "squash",
    interpolation: Annotated[str, OneOf(tuple(METHODS))] = "bilinear",
    crop_fraction: Part | None = None,
    orient: bool = True,
) -> np.ndarray:
    """Reads an image file as RGB pixels, and resizes it if a size is given; for a model, use `model.preprocess`.

    All modes become RGB as in `tf.io.decode_image(channels=3)`, except for the rounding of JPEG: grey is repeated,
    palettes are looked up, of 16 bits the upper 8 are kept, CMYK is converted without a colour profile, transparency is
    dropped. Of an animation, the first frame is read; a TIFF with several pages of one size is an error.

    Args:
        file: A path, a binary file object, or a `PIL.Image.Image` (it is not changed).
        image_size: `(height, width)` in pixels, an integer for a square, `None` for the image's own size.
        resize: `"squash"` scales straight to `image_size`, as the official code does. `"big_vision"` and `"timm"` keep
            the aspect ratio, scale until the image covers `image_size / crop_fraction`, and cut out the centre. Their
            pixels are whole numbers.
        interpolation: For `"squash"`: one of `keras_vit.interpolation.METHODS`; by default as `tf.image.resize`.
        crop_fraction: For `"big_vision"` (0.875) and `"timm"` (0.9): the share of each side that the crop keeps.
        orient: Whether to turn the image upright by its EXIF orientation, which the original code ignores.

    Returns:
        uint8 `(height, width, 3)` if `image_size` is `None`, otherwise float32 `(*image_size, 3)` in 0..255. After
        `"squash"` values are not rounded, and cubic filters may reach beyond 0..255.

    Raises:
        OSError, ImportError: if the file cannot be opened, such as FileNotFoundError; if Pillow is not installed.
        TypeError, ValueError: if the file is not an image that Pillow can decode, or an argument is wrong.

    Examples:
        >>> keras_vit.load_image("photo.jpg", 224).shape
        (224, 224, 3)
    """
    size = None if image_size is None else pair("image_size", image_size)
    given = {"resize": resize, "interpolation": interpolation, "crop_fraction": crop_fraction}
    refuse(_OF_RESIZES, given, {"image_size": size, "resize": resize})
    pixels = _read_rgb(file, orient)
    return pixels if size is None else resize_and_crop(pixels, size, resize, interpolation, crop_fraction)


# Options of `load_image` that are not used in all cases.
_OF_RESIZES = {
    "resize": option("squash", when={"image_size": GIVEN}),
    "interpolation": option("bilinear", when={"image_size": GIVEN, "resize": ("squash",)}),
    "crop_fraction": option(when={"resize": ("big_vision", "timm")}),
}


def is_file(source: Any) -> bool:
    """Returns whether it is something that `load_image` reads: a path, an object with `read`, or a PIL image."""
    if isinstance(source, (str, os.PathLike)) or hasattr(source, "read"):
        return True
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(source, pillow.Image)


@contextlib.contextmanager
def _opened(file: Any) -> Iterator[Any]:
    """Within it, a file that is open, or a PIL image as given; errors become a ValueError that names it."""
    if not is_file(file):
        advice = (
            "Pass io.BytesIO(data)." if isinstance(file, (bytes, bytearray)) else "To scale arrays, use resize_images."
        )
        given = f"{type(file).__name__} was given. {advice}"
        raise TypeError(f"file must be a path, a binary file object or a PIL image, but {given}")
    is_path = isinstance(file, (str, os.PathLike))
    if is_path and "://" in str(file):
        raise ValueError(f"file must be a local path, but {file!r} was given. Download it with keras.utils.get_file.")
    # Opened here: a missing or forbidden file keeps its own error, and all that follows is about content.
    with open(expanded_path(file), "rb") if is_path else contextlib.nullcontext(file) as source:
        try:
            yield source
        except (MemoryError, ImportError):
            raise
        except Exception as error:  # Decoders raise errors of many kinds on damaged data.
            called = "The given file object" if hasattr(file, "read") else "The given image"
            called = repr(str(file)) if is_path else called
            hint = "" if isinstance(error, OtherPixels) else " The file may be damaged."
            if type(error).__name__ == "UnidentifiedImageError":  # whose message has the address of an object
                seekable = getattr(source, "seekable", lambda: False)()
                is_heic = seekable and source.seek(4) == 4 and source.read(8) in _HEIC
                hint = "" if is_heic else " The file may be damaged, or not a picture."
                known = "it is a HEIC, which is not supported. Convert it to JPEG"
                error = ValueError(known if is_heic else "its format is not known")
            raise ValueError(f"{called} could not be read as a picture: {error}.{hint}") from error


_HEIC = (b"ftypheic", b"ftypheix", b"ftypmif1")  # bytes 4 to 12 of a file


class OtherPixels(ValueError):
    """A picture is sound, but has other channels or values than are wanted."""


def _read_rgb(file: Any, orient: bool) -> np.ndarray:
    """Returns anything that `load_image` takes as uint8 `(height, width, 3)`, upright if `orient`."""
    require_packages("load_image", ("PIL",), "images")
    from PIL import Image

    with _opened(file) as source:
        if isinstance(source, Image.Image):
            return _rgb(_upright(source) if orient else source)
        try:
            image = Image.open(source)
        except Image.UnidentifiedImageError:
            planes = _planes(source)
            if planes is None:
                raise
            return planes
        if image.format == "TIFF" and _is_in_planes(image):
            planes = _planes(source)
            if planes is not None:
                return planes
            image.seek(0)
        check_pages(image)
        pixels = _quickly_decoded(image, orient)
        return _rgb(_upright(image) if orient else image) if pixels is None else pixels


def _is_in_planes(image: Any) -> bool:
    """Whether a TIFF has its channels as planes of over 8 bits, or as pages, which Pillow does not join."""
    samples, deepest = image.tag_v2.get(_SAMPLES, 1), max(image.tag_v2.get(_BITS, (8,)))
    if image.mode not in ("L", "I", "F", "I;16", "I;16B") or samples > 1:
        return samples > 1 and deepest > 8 and image.tag_v2.get(_PLANAR, 1) == 2
    return bool(_NOTES.search(str(image.tag_v2.get(_DESCRIPTION, "")))) and image.n_frames > 1


def check_pages(image: "Image.Image") -> None:
    """Raises ValueError where the second page of a TIFF is another picture, not a smaller copy or its mask."""
    if image.format != "TIFF":
        return
    first = image.size
    try:
        image.seek(1)
    except EOFError:
        return
    second, kind, pages = image.size, image.tag_v2.get(_KIND, 0), image.n_frames
    image.seek(0)
    if second == first and not kind & 0b101:
        raise OtherPixels(f"it has {pages} pages, but one picture was expected. Save each page as a file")


def _begins_as_tiff(file: Any) -> bool:
    try:
        file.seek(0)
        head = file.read(4)
        file.seek(0)
        return head in _TIFF
    except (AttributeError, OSError):  # of a stream that only goes forward, which Pillow reads as a whole
        return False


def _planes(file: Any) -> np.ndarray | None:
    """Returns the three channels of a TIFF that Pillow takes for pages or does not know, or None for other files."""
    if not _begins_as_tiff(file):
        return None
    require_packages("A TIFF with its channels in planes", ("tifffile",), "tiff")
    import tifffile

    with tifffile.TiffFile(file) as tiff:
        axes, pixels = tiff.series[0].axes, tiff.series[0].asarray()
    for axis in axes:
        if axis not in "YXCSQ":
            if pixels.shape[axes.index(axis)] > 1:
                raise OtherPixels(f"its axes are {axes}, but one picture was expected. Save each plane as a file")
            pixels, axes = pixels.take(0, axes.index(axis)), axes.replace(axis, "")
    if pixels.dtype not in ("uint8", "uint16"):
        raise OtherPixels(f"pixels of {pixels.dtype} have no defined white; scale them to 0..255 first")
    if pixels.ndim == 2:
        return None
    pixels = np.moveaxis(pixels, next(place for place, axis in enumerate(axes) if axis in "CSQ"), -1)
    if pixels.ndim != 3 or pixels.shape[-1] != 3:
        raise OtherPixels(f"it has {pixels.shape[-1]} channels, but three were expected")
    return pixels if pixels.dtype == "uint8" else (pixels >> 8).astype("uint8")


def _upright(image: "Image.Image") -> "Image.Image":
    """Returns a PIL image turned as its EXIF orientation says: itself where it is upright, else a new one."""
    from PIL import ImageOps

    image.load()
    return ImageOps.exif_transpose(image) if image.getexif().get(_ORIENTATION, 1) != 1 else image


def read_channels(file: Any, channels: int) -> np.ndarray:
    """Returns the pixels of an image file or PIL image, `(height, width, channels)`, upright."""
    # Pillow reads one channel as grey and four with transparency, tifffile a TIFF, whose channels may come first.
    if channels == 3:
        return _read_rgb(file, orient=True)
    is_tiff = hasattr(file, "read") and _begins_as_tiff(file)
    if isinstance(file, (str, os.PathLike)):
        is_tiff = str(file).lower().endswith((".tif", ".tiff"))
    package, extra = ("tifffile", "tiff") if is_tiff else ("PIL", "images")
    require_packages(f"{str(file)!r} with {channels} channels", (package,), extra)
    orientation = 1
    with _opened(file) as source:
        if is_tiff:
            import tifffile

            with tifffile.TiffFile(source) as tiff:
                pixels, tags = tiff.asarray(), tiff.pages[0].tags
            tag, orientation = tags.get(_NO_DATA), tags.valueof(_ORIENTATION, 1)
            nothing = ~np.isfinite(pixels)
            if tag is not None and pixels.dtype.kind in "if":  # 0 of pixels without a sign may be black
                nothing |= pixels == float(tag.value)
            if nothing.any():
                found = f"{nothing.mean():.2%} of its values stand for no data (NaN, infinite, or marked in the file)"
                raise OtherPixels(f"{found}; fill them first, or leave the file out")
        else:
            from PIL import Image

            image = _upright(source if isinstance(source, Image.Image) else Image.open(source))
            is_wide = image.mode.startswith(("I", "F"))  # of more than 8 bits
            pixels = np.asarray(image if is_wide else image.convert({1: "L", 4: "RGBA"}.get(channels, "RGB")))
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim == 3 and pixels.shape[-1] != channels == pixels.shape[0]:
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim != 3 or pixels.shape[-1] != channels:
        raise ValueError(f"{str(file)!r} has the shape {pixels.shape}, but {channels} channels were expected.")
    # As Pillow's `exif_transpose`, which does not see these pixels.
    pixels = pixels.swapaxes(0, 1) if orientation in (5, 6, 7, 8) else pixels
    pixels = pixels[::-1] if orientation in (3, 4, 7, 8) else pixels
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def read_picture(picture: Any, channels: int = 3) -> np.ndarray:
    """One picture `(height, width, channels)`: a file or a PIL image is read, an array or a tensor is checked."""
    pixels = read_channels(picture, channels) if is_file(picture) else picture
    pixels = check_pixels(pixels, channels, name="picture")
    if pixels.ndim != 3 or not pixels.size or pixels.shape[2] != channels:
        raise ValueError(f"picture must be one picture (height, width, {channels}), with pixels, not {pixels.shape}.")
    return pixels


def picture_to_draw(picture: Any, size: tuple[int, ...] | None = None) -> np.ndarray:
    """A picture of three channels as bytes, to draw on it what was found in a picture of this size."""
    pixels = read_picture(picture).clip(0, 255).astype("uint8")
    if size not in (None, pixels.shape[:2]):
        given = " x ".join(map(str, pixels.shape[:2]))
        raise ValueError(f"picture must be that of the result, {size[0]} x {size[1]} pixels, but it has {given}.")
    return pixels


def _quickly_decoded(image: Any, orient: bool) -> np.ndarray | None:
    """Returns the pixels that Pillow would make of a JPEG file whose head it has read, decoded by simplejpeg."""
    simplejpeg = _simplejpeg()
    if simplejpeg is None or image.format != "JPEG" or image.mode not in ("RGB", "L"):
        return None
    if orient and image.getexif().get(_ORIENTATION, 1) != 1:
        return None
    start = image.fp.tell()
    image.fp.seek(0)
    try:
        return simplejpeg.decode_jpeg(image.fp.read(), strict=True)
    except ValueError:  # damaged, or of a kind that it does not know: Pillow says what it is
        return None
    finally:
        image.fp.seek(start)


@functools.cache
def _simplejpeg() -> Any:
    """Returns the module simplejpeg, where it is there and Pillow decodes with libjpeg-turbo as well; else None."""
    from PIL import features

    if not features.check_feature("libjpeg_turbo"):
        return None
    try:
        import simplejpeg
    except ImportError:  # also where it is installed, but a library of it is missing
        return None
    return simplejpeg


def check_mode(image: "Image.Image") -> None:
    """Raises ValueError for what cannot become RGB: no pixels, or values that do not say what is white."""
    if 0 in image.size:
        raise ValueError("it has no pixels")
    if image.mode in ("I", "F"):
        kind = f"mode {image.mode!r} (fractions or signed integers)"
        raise OtherPixels(f"{kind} has no defined white; scale pixels to 0..255 first")


def _rgb(image: "Image.Image") -> np.ndarray:
    check_mode(image)
    if image.mode.startswith("I;16"):  # Pillow would clip to 255; TensorFlow's decoder keeps the upper byte.
        grey = (np.asarray(image) >> 8).astype("uint8")
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # Straight to RGB, Pillow warns about palettes with transparency.
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def normalized(images: Any, mean: float | Sequence[float], std: float | Sequence[float]) -> Any:
    """Returns `(images / 255 - mean) / std` of a float32 tensor of any framework, or of an array as a new one."""
    shift, scale = _in_grey_levels(mean), _in_grey_levels(std)
    if not isinstance(images, np.ndarray):
        if hasattr(images, "new_tensor"):  # PyTorch's, which leaves a product with an array to NumPy
            shift, scale = (images.new_tensor(x) if isinstance(x, np.ndarray) else x for x in (shift, scale))
        return (images - shift) / scale
    pixels = images.astype("float32")
    pixels -= shift
    pixels /= scale
    return pixels


def _in_grey_levels(value: float | Sequence[float]) -> Any:
    levels = 255 * np.asarray(value, "float64")
    return float(levels.flat[0]) if np.all(levels == levels.flat[0]) else levels.astype("float32")


def check_pixels(
    images: Any,
    channels: int = 3,
    *,
    name: str = "images",
    item: Callable[[int], str] | None = None,
    scaled: str = "warn",
) -> np.ndarray:
    """Returns images as an array in their own dtype, after the one check of pixels in 0..255 that the package has.

    Floats may lie outside 0..255 by what a filter overshoots (`OVERSHOOT`). `name` and `item`, a function of the
    number, are for messages. `scaled` says what happens where all values lie in [-1, 1], or seem to be standardised:
    `"warn"`, `"raise"` for data that a model is trained on, or `"ignore"` for a few pictures, which may be dark.
    """
    images = _as_numbers(images, name)
    check_shape_and_dtype(images, channels, name)
    is_integer = images.dtype.kind in "iu"
    if not images.size or images.dtype == "uint8":
        return images
    item = item or (lambda i: f"image {i} of {name}")
    batch = images.reshape(-1, *images.shape[-3:])
    least, most = (values.astype("float64") for values in (batch.min((1, 2, 3)), batch.max((1, 2, 3))))
    lowest, highest = least.min(), most.max()
    wrong = ~np.isfinite(least + most)
    if wrong.any():
        first = item(int(np.argmax(wrong)))
        raise ValueError(f"{name} must hold values in 0..255, but {first} holds NaN or infinite values.")
    reach = f"{name} must hold values in 0..255, but they reach from {lowest:.6g} to {highest:.6g}"
    is_scaled = highest <= 1 and lowest >= -1 and (lowest, highest) != (0, 0)
    is_changed = is_scaled or (lowest < 0 and highest < 16)
    if is_changed and scaled == "raise":
        advice = "(images + 1) * 127.5" if lowest < 0 else "images * 255"
        advice = f"scaled already. Pass {advice}." if is_scaled else "standardised already. Pass pixels."
        raise ValueError(f"{reach}: they seem to be {advice}")
    margin = 0 if is_integer else OVERSHOOT
    wrong = (least < -margin) | (most > 255 + margin)
    if wrong.any() and channels == 3:  # others, as those of satellites, have no common white
        raise ValueError(f"{reach}. The first is {item(int(np.argmax(wrong)))}. Scale the images to 0..255.")
    if scaled == "warn" and is_changed and not is_integer:
        warn_caller(
            f"{name} should hold values in 0..255, but the floats lie between {lowest:.3g} and {highest:.3g}. Multiply "
            "values in [0, 1] by 255. Leave preprocessing out if they are in [-1, 1] or standardised already."
        )
    return images


def check_shape_and_dtype(tensor: Any, channels: int | None = 3, name: str = "images") -> None:
    """Checks a tensor of any framework, also a symbolic one."""
    # Types are called so in every framework: "uint8", "torch.float16", "<dtype: 'bfloat16'>".
    if "int" not in str(tensor.dtype) and "float" not in str(tensor.dtype):
        encoded = re.search(r"S\d|str|object", str(tensor.dtype))  # bytes, as NumPy and TensorFlow call them
        advice = " Decode encoded images first: load_image(io.BytesIO(data))." if encoded else ""
        raise TypeError(f"{name} must hold integers or floats in 0..255, but the dtype is {tensor.dtype}.{advice}")
    if channels is None or getattr(tensor.shape, "rank", 0) is None:  # TensorFlow's, of unknown rank
        return
    shape = tuple(tensor.shape)
    if len(shape) in (3, 4) and shape[-1] in (channels, None):
        return
    rows, _, last = (0, 0, 0, *shape)[-3:]
    hints = {1: " Repeat the grey channel: numpy.repeat(images, 3, -1).", 4: " Drop alpha: images[..., :3]."}
    hint = hints.get(last, "") if channels == 3 and len(shape) in (3, 4) else ""
    if rows == channels:
        hint = " The channels seem to come first: move them with numpy.moveaxis(images, -3, -1)."
    wanted = f"(batch, height, width, {channels}) or (height, width, {channels})"
    raise ValueError(f"{name} must have shape {wanted}, but {shape} was given.{hint}")


def _as_numbers(images: Any, name: str = "images") -> np.ndarray:
    """Images, an array, a tensor or lists, as a NumPy array of integers or floats in the machine's byte order."""
    try:
        images = to_numpy(images)
    except Exception as error:  # Each framework has its own for tensors that have no values yet.
        if hasattr(images, "dtype"):
            advice = "Preprocess before the model, or build it with include_preprocessing=True."
            raise TypeError(f"{name} must have values, but a symbolic tensor was given. {advice}") from error
        if not isinstance(error, ValueError):
            raise
        advice = "Resize each with load_image(file, image_size) or resize_images(image, image_size)."
        raise ValueError(f"{name} must be equally large to form a batch, but they differ. {advice}") from error
    check_shape_and_dtype(images, None, name)
    return images


def resize_images(images: Any, image_size: int | tuple[int, int], interpolation: str = "bilinear") -> np.ndarray:
    """Returns images scaled to a size, whatever their aspect ratio: float32, not rounded.

    `images` are `([batch,] height, width, channels)`, with any number of channels and range. `interpolation` is one of
    `keras_vit.interpolation.METHODS`; cubic ones may leave the range. TypeError or ValueError for other arguments.
    """
    images = _as_numbers(images)
    if images.ndim not in (3, 4) or 0 in images.shape[-3:-1]:
        wanted = "([batch,] height, width, channels), with pixels"
        raise ValueError(f"images must have shape {wanted}, but {images.shape} was given.")
    return resampled(images, pair("image_size", image_size), interpolation)


def resize_and_crop(
    pixels: np.ndarray,
    size: tuple[int, int],
    resize: str = "squash",
    interpolation: str = "bilinear",
    crop_fraction: float | None = None,
) -> np.ndarray:
    """Returns one image `(height, width, channels)` at a size, float32, resized as one of `RESIZES`.

    Options are those of `load_image`, and have been checked: `interpolation` is for `"squash"`; `crop_fraction`, for
    the others, is the share of a side that the crop keeps, None for that in `RESIZES`. These make uint8 of pixels
    first: rounded, and cut to 0..255.
    """
    if resize == "squash":
        return resize_images(pixels, size, interpolation)
    if pixels.dtype != np.uint8:
        pixels = np.clip(np.round(pixels), 0, 255).astype("uint8")
    least = _uncropped(size, crop_fraction or RESIZES[resize] or 1.0)
    if resize == "timm":
        return _centre(resized(pixels, _covering(pixels.shape[:2], least, int), "bicubic"), size)
    # As big_vision: means of areas, then the centre.
    height, width = _covering(pixels.shape[:2], least, round)
    means = resampled(pixels, (height, width), AREA)
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    # big_vision casts the means to uint8. The margin is for means of equal pixels just short of a whole number.
    return np.floor(means[top : top + size[0], left : left + size[1]] + 1e-3)


def _centre(images: np.ndarray, size: tuple[int, int], whole: Callable[[float], int] = round) -> np.ndarray:
    top, left = (whole((have - keep) / 2) for have, keep in zip(images.shape[-3:-1], size, strict=True))
    return images[..., top : top + size[0], left : left + size[1], :]


def _covering(shape: tuple[int, ...], least: tuple[int, int], whole: Callable[[float], int]) -> tuple[int, int]:
    height, width = shape
    if least[0] * width >= least[1] * height:
        return least[0], whole(width * least[0] / height)
    return whole(height * least[1] / width), least[1]


def _uncropped(size: tuple[int, int], fraction: float) -> tuple[int, int]:
    """The size of which a crop of the centre that keeps `fraction` of each side has `size`, rounded down."""
    # The margin is for fractions such as 384 / 438, which are not float64.
    return math.floor(size[0] / fraction + 1e-6), math.floor(size[1] / fraction + 1e-6)


def centre_margins(size: Sequence[int], multiples: Sequence[int]) -> list[tuple[int, int]]:
    """For each axis how much is padded before and after it to reach a multiple (`CenterPadding`, DINOv2)."""
    rests = [-length % multiple for length, multiple in zip(size, multiples, strict=True)]
    return [(rest // 2, rest - rest // 2) for rest in rests]


@dataclasses.dataclass(frozen=True)
class DetectorPipeline(Pipeline):
    """The preprocessing of a detector, whose `pictures` say how to resize; nothing is cropped."""

    pictures: Annotated[str, OneOf(DETECTOR_PICTURES)] = "owlv2"

    def resized(self, images: Any, channels: int = 3) -> np.ndarray:
        several = isinstance(images, (list, tuple)) or (hasattr(images, "shape") and len(images.shape) == 4)
        pictures = [read_picture(picture, channels) for picture in (images if several else [images])]
        if not pictures:
            return super().resized(images, channels)
        return np.stack([detector_pixels(pixels, self.image_size, self.pictures) for pixels in pictures])


@dataclasses.dataclass(frozen=True)
class WholePatches(Pipeline):
    """The preprocessing of an anomaly detector, for pictures of one aspect ratio; `trim` is what fills no patch."""

    def resized(self, images: Any, channels: int = 3) -> np.ndarray:
        if isinstance(images, (list, tuple)):
            return np.concatenate([self.resized(image, channels) for image in images])
        images = read_channels(images, channels) if is_file(images) else images
        size = np.shape(images)[-3:-1]
        if len(size) == 2 and 0 not in size and self.prepared_size != short_side(size, min(self.prepared_size)):
            ours = "become {} x {} pixels like the good pictures".format(*self.prepared_size)
            raise ValueError("images must {}, but {} x {} pixels do not. Crop them first.".format(ours, *size))
        return super().resized(images, channels)


def short_side(size: tuple[int, ...], length: int) -> tuple[int, int]:
    """Returns the height and width of a picture whose shorter side is resized to a length, as torchvision does."""
    return _covering(size, (length, length), int)


def detector_pixels(pixels: np.ndarray, size: tuple[int, int], rule: str) -> np.ndarray:
    """A picture at the size of a detector, float32 in 0..255, by a checked name of `DetectorConfig.pictures`."""
    # `OwlViTImageProcessor` and `Owlv2ImageProcessor` of transformers 5.24; Scenic's notebook pads with grey.
    if rule == "owlvit":
        return resized(pixels, size, "torchvision_bicubic")
    side = max(pixels.shape[:2])
    square = np.full((side, side, pixels.shape[2]), 127.5 if rule == "scenic" else 0, "float32")
    square[: pixels.shape[0], : pixels.shape[1]] = pixels
    for axis, new in enumerate(size):
        square = blurred(square, axis, max(side / new - 1, 0) / 2, "reflect")
    for axis, new in enumerate(size):
        # Places in float32, step by step as torch's `interpolate`: others are off by up to a thousandth of a level.
        at = np.maximum(
            np.float32(side / new) * (np.arange(new, dtype="float32") + np.float32(0.5)) - np.float32(0.5), 0
        )
        low = at.astype("int64")
        part = np.expand_dims(at - low.astype("float32"), tuple(range(1, 3 - axis)))
        high = np.minimum(low + 1, side - 1)
        square = square.take(low, axis) * (1 - part) + square.take(high, axis) * part
    return square
