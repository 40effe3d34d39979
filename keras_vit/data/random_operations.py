"""Random changes of images: RandAugment, colours, boxes that are cut out or erased, mixup and CutMix, in NumPy.

RandAugment is that of big_vision (`distort_image_with_randaugment` in `pp/archive/autoaugment.py`), with
`cutout_const=40`, `translate_const=100` and grey, 128, where an operation uncovers pixels. There it runs in TensorFlow,
in float32. Here every rounding is the same, in the same order, and what is odd there is odd here:

- `Contrast` mixes with a constant image whose value depends on the number of pixels alone, not on their mean.
- `Posterize` and `Solarize` compute in 8 bits. Beyond magnitude 22.5 `Posterize` asks for more than 8 bits and keeps
  one. The threshold of `Solarize` starts again at 0 at magnitudes 10, 20 and 30.
- At magnitude 0, `Posterize` keeps one bit, `Solarize` inverts, and `Color`, `Contrast`, `Brightness` and `Sharpness`
  leave a tenth of the image.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_vit._arguments import check_choice
from keras_vit._options import Positive, UpTo, checked, option, refuse

MAX_MAGNITUDE = 30
# What the original turns around, by negating the magnitude, in half of all cases.
SIGNED_OPERATIONS = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
_OF_OPERATIONS = {
    "negate": option(False, when={"name": SIGNED_OPERATIONS}),
    "center": option(when={"name": ("Cutout",)}),
}
CHANGES = ("brightness", "contrast", "saturation", "hue")  # of colours, fields of augmentations
_GREY_SHARES = np.array([0.2989, 0.587, 0.114])  # torchvision's, of red, green and blue
# Aspects of a box, and how often one is drawn: defaults of tf.image.sample_distorted_bounding_box, which vit_jax and
# big_vision leave alone, and of torchvision's `RandomResizedCrop`.
ASPECTS, ATTEMPTS = (0.75, 1.33), 100
CROP_ASPECTS, CROP_ATTEMPTS = (3 / 4, 4 / 3), 10
# Of timm's `RandomErasing`: share of the area, greatest ratio of its sides, and how often a box is drawn.
ERASED_AREA, ERASED_ASPECT, ERASING_ATTEMPTS = (0.02, 1 / 3), 1 / 0.3, 10
_GREY = 128  # where nothing of the image is
_VALUES = np.arange(256, dtype="float32")


@checked
def randaugment(image: np.ndarray, layers: Positive, magnitude: float, generator: np.random.Generator) -> np.ndarray:
    """Applies RandAugment to an image: random operations in sequence, as big_vision's `distort_image_with_randaugment`.

    For each of `layers`, `generator` draws one of the 16 operations, uniformly; then the sign of an operation in
    `SIGNED_OPERATIONS`, or the centre of `Cutout`. `image`, `magnitude` and errors are as in `randaugment_operation`.
    Returns uint8 `(height, width, 3)`.

    Examples:
        >>> data.randaugment(pixels[0], layers=2, magnitude=10, generator=np.random.default_rng(0)).shape
        (24, 24, 3)
    """
    _check_image(image)
    height, width, _ = image.shape
    for _ in range(layers):
        name = OPERATIONS[generator.integers(len(OPERATIONS))]
        negate = name in SIGNED_OPERATIONS and bool(generator.integers(2))
        center = (int(generator.integers(height)), int(generator.integers(width))) if name == "Cutout" else None
        image = randaugment_operation(image, name, magnitude, negate, center)
    return image


def randaugment_operation(
    image: np.ndarray, name: str, magnitude: float, negate: bool = False, center: tuple[int, int] | None = None
) -> np.ndarray:
    """Returns an image after one of RandAugment's 16 operations, uint8 of the same shape.

    Args:
        image: uint8 `(height, width, 3)`, RGB. `Sharpness` does not change images with a side under 3 pixels.
        name: One of `OPERATIONS`.
        magnitude: m, from 0 to 30. `AutoContrast`, `Equalize` and `Invert` ignore it. `Rotate` turns by 3 m degrees,
            anticlockwise. `ShearX` and `ShearY` move each row or column 0.03 m pixels further than the previous one.
            `TranslateX` and `TranslateY` move by 10 m pixels, to the left and up. `Color`, `Contrast`, `Brightness` and
            `Sharpness` have the factor 0.18 m + 0.1; a factor of 1 leaves the image unchanged. `Posterize` keeps
            `int(0.4 m)` bits. `Solarize` inverts values from `int(25.6 m) % 256` on. `SolarizeAdd` adds `int(11 m)` to
            values below 128. `Cutout` greys a square of `2 int(4 m)` pixels a side.
        negate: Whether to move or turn in the opposite direction; only for `SIGNED_OPERATIONS`.
        center: `(row, column)` of the square's centre inside the image; required by `Cutout`, and only for it.

    Raises:
        TypeError, ValueError: if an argument is wrong, or does not apply to the operation.

    Examples:
        >>> bool((data.randaugment_operation(pixels[0], "Invert", 15) == 255 - pixels[0]).all())
        True
    """
    _check_image(image)
    check_choice("name", name, OPERATIONS)
    refuse(_OF_OPERATIONS, {"negate": negate, "center": center}, {"name": name})
    level, image = UpTo(MAX_MAGNITUDE)("magnitude", magnitude) / 10, np.ascontiguousarray(image)
    if name == "Cutout":
        return _cutout(image, level, center)
    return _FUNCTIONS[name](image, -level if negate else level)


def _check_image(image: np.ndarray) -> None:
    expected = "image must be a uint8 array (height, width, 3) with values 0..255"
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
        raise TypeError(f"{expected}, but {getattr(image, 'dtype', type(image).__name__)} was given.")
    if image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise ValueError(f"{expected}, but its shape is {image.shape}.")


# Operations: functions of the image and the level, which is a tenth of the magnitude.


def _autocontrast(image: np.ndarray, level: float) -> np.ndarray:
    """Returns each channel stretched, so that its least value becomes 0 and its largest 255; `level` is not used."""
    rows = image.reshape(len(image), -1)  # Whole rows first: loops over the three values of a pixel are slow.
    lowest = rows.min(axis=0).reshape(-1, 3).min(axis=0).astype("float32")
    highest = rows.max(axis=0).reshape(-1, 3).max(axis=0).astype("float32")
    tables = [_VALUES] * 3
    for channel in np.flatnonzero(lowest < highest):
        scale = np.float32(255) / (highest[channel] - lowest[channel])
        tables[channel] = _cut_off(_VALUES * scale + -lowest[channel] * scale)
    return _map_channels(image, tables)


def _equalize(image: np.ndarray, level: float) -> np.ndarray:
    """Returns an image with the values of each channel about equally frequent; `level` is not used."""
    tables = [_VALUES] * 3
    for channel in range(3):
        counts = np.bincount(np.ravel(image[..., channel]), minlength=256)
        step = (counts.sum() - counts[counts.nonzero()[0][-1]]) // 255
        if step:
            below = np.cumsum(counts) - counts  # how many pixels are darker than each value
            tables[channel] = np.minimum((below + step // 2) // step, 255)
    return _map_channels(image, tables)


def _posterize(image: np.ndarray, level: float) -> np.ndarray:
    """Returns an image of which each value keeps its first `int(4 level)` bits; one bit for less than 1 or above 8."""
    # A uint8 is shifted by a uint8: 8 - bits wraps around below 0, and a shift by more than 7 is one by 7.
    shift = min((8 - int(level * 4)) % 256, 7)
    return image & np.uint8(256 - (1 << shift))


def _solarize(image: np.ndarray, level: float) -> np.ndarray:
    threshold = int(level * 256) % 256
    return _map(image, np.where(_VALUES < threshold, _VALUES, 255 - _VALUES))


def _color(image: np.ndarray, level: float) -> np.ndarray:
    """Returns the image mixed with its grey version, or more colourful beyond level 0.5."""
    channels = [image[..., channel].astype("float32") for channel in range(3)]
    # TensorFlow's rgb_to_grayscale: to 0..1, weighted, back to 0..255 with a factor of 255.5, cut off.
    red, green, blue = (
        channel * np.float32(1 / 255) * np.float32(weight)
        for channel, weight in zip(channels, (0.2989, 0.5870, 0.1140), strict=True)
    )
    grey = np.trunc((red + green + blue) * np.float32(255.5))
    return np.stack([_blend(grey, channel, level) for channel in channels], axis=-1)


def _contrast(image: np.ndarray, level: float) -> np.ndarray:
    """Returns the image mixed with one grey, or with more contrast beyond level 0.5; the grey depends on its size."""
    # The original adds up the histogram's 256 counts, not the values, and divides by 256.
    constant = min(image.shape[0] * image.shape[1] // 256, 255)
    return _map(image, _blend(np.float32(constant), _VALUES, level))


def _sharpness(image: np.ndarray, level: float) -> np.ndarray:
    """Returns the image with its inner pixels mixed with smooth ones, or sharper beyond level 0.5."""
    smooth = image.copy()
    if min(image.shape[:2]) < 3:
        return smooth
    smooth[1:-1, 1:-1] = _smooth(image)
    return _blend(smooth.astype("float32"), image.astype("float32"), level)


def _smooth(image: np.ndarray) -> np.ndarray:
    """Returns the inner pixels `(height - 2, width - 2, 3)`, smoothed and cut off to integers, as uint16."""
    height, width, _ = image.shape
    values = image.astype("uint16")
    windows = [values[y : y + height - 2, x : x + width - 2] for y in range(3) for x in range(3)]
    sums = 4 * windows[4]
    for window in windows:
        sums += window
    quotients = sums // 13
    # A sum that 13 divides lies just at a whole number, and the original's rounding decides on which side: nine fused
    # multiply-adds, row by row, which round once. In float64 the product of a uint8 and a float32 and its sum with a
    # float32 are exact, so rounding that sum to float32 has the same result.
    ambiguous = np.nonzero((quotients * 13 == sums) & (sums > 0))
    weights = np.array([1, 1, 1, 1, 5, 1, 1, 1, 1], "float32") / np.float32(13)
    total = np.zeros(len(ambiguous[0]), "float32")
    for window, weight in zip(windows, weights.astype("float64"), strict=True):
        total = (window[ambiguous] * weight + total).astype("float32")
    quotients[ambiguous] = total
    return quotients


def _blend(degenerate: np.ndarray | np.float32, image: np.ndarray, level: float) -> np.ndarray:
    """Returns `degenerate + (0.1 + 1.8 level) (image - degenerate)`, cut off to uint8: the image at level 0.5."""
    mixed = image - degenerate
    mixed *= np.float32(level * 1.8 + 0.1)
    mixed += degenerate
    return _cut_off(mixed)


def _cut_off(values: np.ndarray) -> np.ndarray:
    """Returns float values clipped to 0..255, in place, and rounded towards zero: a new uint8 array."""
    return np.clip(values, 0, 255, out=values).astype("uint8")


def _map(image: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Returns a new image of which each value is replaced by its entry in a table of 256."""
    # bytearray.translate is several times faster than indexing with an array of bytes.
    mapped = bytearray(image).translate(table.astype("uint8").tobytes())
    return np.frombuffer(mapped, "uint8").reshape(image.shape)


def _map_channels(image: np.ndarray, tables: list[np.ndarray]) -> np.ndarray:
    channels = (np.ascontiguousarray(image[..., number]) for number in range(3))
    return np.stack([_map(channel, table) for channel, table in zip(channels, tables, strict=True)], axis=-1)


def _rotate(image: np.ndarray, level: float) -> np.ndarray:
    """Returns the image turned anticlockwise around its middle by 30 degrees times the level, grey outside."""
    angle = level * 30.0 * (math.pi / 180.0)
    cos, sin = math.cos(angle), math.sin(angle)
    bottom, right = image.shape[0] - 1, image.shape[1] - 1
    x = (right - (cos * right - sin * bottom)) / 2
    y = (bottom - (sin * right + cos * bottom)) / 2
    return _move(image, cos, -sin, x, sin, cos, y)


def _move(image: np.ndarray, *matrix: float) -> np.ndarray:
    """Returns a moved image: at (column, row) the pixel nearest to (a column + b row + c, d column + e row + f)."""
    pixels = np.full((image.shape[0] * image.shape[1] + 1, 3), _GREY, "uint8")
    pixels[:-1] = image.reshape(-1, 3)
    return pixels.take(_nearest(matrix, *image.shape[:2]), axis=0)


@functools.lru_cache(maxsize=16)  # In training there are ten: of each operation, both signs.
def _nearest(matrix: tuple[float, ...], height: int, width: int) -> np.ndarray:
    """Returns the number, row by row, of the pixel that each of a moved image shows; `height * width` for none."""
    a, b, c, d, e, f = np.array(matrix, "float32")
    columns = np.arange(width, dtype="float32")
    rows = np.arange(height, dtype="float32")[:, None]
    x, outside_x = _round(a * columns + b * rows + c, width)
    y, outside_y = _round(d * columns + e * rows + f, height)
    return np.where(outside_x | outside_y, height * width, y * width + x)


def _round(points: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the nearest integers of points from -0.5 on, halves upwards, and which points lie outside 0..size - 1."""
    whole = points.astype("int32")
    whole += points - whole >= 0.5
    return whole, (points <= -0.5) | (whole >= size)


def _cutout(image: np.ndarray, level: float, center: tuple[int, int] | None) -> np.ndarray:
    height, width, _ = image.shape
    if center is None:
        raise ValueError("Cutout needs the centre of its square. Pass center=(row, column).")
    row, column = map(operator.index, center)
    if not (0 <= row < height and 0 <= column < width):
        raise ValueError(f"center must be a pixel of the image of {height} x {width}, but {center} lies outside.")
    half = int(level * 40)
    result = image.copy()
    result[max(0, row - half) : row + half, max(0, column - half) : column + half] = _GREY
    return result


# Functions of the image and the level, in the order in which the original numbers them.
_FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "AutoContrast": _autocontrast,
    "Equalize": _equalize,
    "Invert": lambda image, level: 255 - image,
    "Rotate": _rotate,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "Color": _color,
    "Contrast": _contrast,
    "Brightness": lambda image, level: _map(image, _blend(np.float32(0), _VALUES, level)),
    "Sharpness": _sharpness,
    "ShearX": lambda image, level: _move(image, 1, level * 0.3, 0, 0, 1, 0),
    "ShearY": lambda image, level: _move(image, 1, 0, 0, level * 0.3, 1, 0),
    "TranslateX": lambda image, level: _move(image, 1, 0, level * 100.0, 0, 1, 0),
    "TranslateY": lambda image, level: _move(image, 1, 0, 0, 0, 1, level * 100.0),
    "Cutout": _cutout,
    "SolarizeAdd": lambda image, level: _map(
        image, np.where(_VALUES < 128, np.minimum(_VALUES + int(level * 110), 255), _VALUES)
    ),
}
OPERATIONS = tuple(_FUNCTIONS)


# Colours of pictures


def recoloured(image: np.ndarray, factor: float, turn: float) -> np.ndarray:
    """Colours `(..., 3)`, floats from 0, of other saturation and hue in HSV, as a new array; the value stays."""
    value, chroma = image.max(-1), image.max(-1) - image.min(-1)
    red, green, blue = np.moveaxis(image, -1, 0)
    safe = np.where(chroma > 0, chroma, 1)
    hue = np.select(  # in sixths of the circle
        [value == red, value == green], [(green - blue) / safe, (blue - red) / safe + 2], (red - green) / safe + 4
    )
    hue, chroma = (hue + 6 * turn) % 6, np.minimum(chroma * factor, value)
    sixths = (np.array([5, 3, 1]) + hue[..., None]) % 6  # red, green and blue stand thirds of the circle apart
    return value[..., None] - chroma[..., None] * np.clip(np.minimum(sixths, 4 - sixths), 0, 1)


def adjusted(picture: np.ndarray, name: str, factor: float) -> np.ndarray:
    """A new uint8 picture `(height, width, 3)` with other colours, as torchvision's `functional.adjust_{name}`."""
    check_choice("colour", name, CHANGES)
    values = picture.astype("float64")
    if name == "hue":
        # torchvision makes bytes of fractions by 255.999.
        return (recoloured(values / 255, 1.0, factor) * 255.999).clip(0, 255).astype("uint8")
    other: Any = 0.0
    if name == "contrast":
        other = np.floor(values @ _GREY_SHARES).mean()
    elif name == "saturation":
        other = np.floor(values @ _GREY_SHARES)[..., None]
    return (factor * values + (1 - factor) * other).clip(0, 255).astype("uint8")


# Boxes to cut out, and a box that is erased


def inception_box(
    height: int, width: int, generator: np.random.Generator, min_area: float = 0.05
) -> tuple[int, int, int, int]:
    """A random box in an image, (top, left, height, width), as `tf.image.sample_distorted_bounding_box` does."""
    # (torchvision draws the area.) Where rounding spoils the area, a height one larger or smaller is tried.
    most = height * width
    least = min_area * most
    for _ in range(ATTEMPTS):
        aspect = generator.uniform(*ASPECTS)
        tallest = round((most / aspect) ** 0.5)
        if round(tallest * aspect) > width:
            tallest = int((width + 0.5 - 1e-7) / aspect)
        tallest = min(tallest, height)
        rows = min(round((least / aspect) ** 0.5), tallest)
        rows += int(generator.integers(tallest - rows + 1))
        columns = round(rows * aspect)
        if rows * columns < least:
            rows += 1
            columns = round(rows * aspect)
        if rows * columns > most:
            rows -= 1
            columns = round(rows * aspect)
        if 0 < rows <= height and 0 < columns <= width and least <= rows * columns <= most:
            # The last place is never drawn: TensorFlow's upper bound is exclusive.
            top = int(generator.integers(height - rows)) if rows < height else 0
            left = int(generator.integers(width - columns)) if columns < width else 0
            return top, left, rows, columns
    return 0, 0, height, width


def crop_box(
    height: int, width: int, area: tuple[float, float], generator: np.random.Generator
) -> tuple[int, int, int, int]:
    """A random box, (top, left, height, width), as torchvision's `RandomResizedCrop`: its area is drawn first."""
    for _ in range(CROP_ATTEMPTS):
        wanted = height * width * generator.uniform(*area)
        aspect = math.exp(generator.uniform(*np.log(CROP_ASPECTS)))
        columns, rows = round(math.sqrt(wanted * aspect)), round(math.sqrt(wanted / aspect))
        if 0 < columns <= width and 0 < rows <= height:
            top, left = (int(generator.integers(most + 1)) for most in (height - rows, width - columns))
            return top, left, rows, columns
    columns, rows = min(width, round(height * CROP_ASPECTS[1])), min(height, round(width / CROP_ASPECTS[0]))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def erased(image: np.ndarray, augmentation: Any, generator: np.random.Generator) -> np.ndarray:
    """Returns a float32 copy of an image with noise in a random box; itself where chance spares it or no box fits."""
    if generator.random() >= augmentation.erasing:
        return image
    height, width, channels = image.shape
    for _ in range(ERASING_ATTEMPTS):
        area = generator.uniform(*ERASED_AREA) * height * width
        aspect = ERASED_ASPECT ** generator.uniform(-1, 1)
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if rows < height and columns < width:
            top, left = generator.integers(height - rows + 1), generator.integers(width - columns + 1)
            is_noise = augmentation.erasing_fill == "pixel"
            noise = generator.standard_normal((rows, columns, channels)) if is_noise else np.zeros(channels)
            values = np.asarray(augmentation.erasing_mean) + np.asarray(augmentation.erasing_std) * noise
            image = image.astype("float32")
            image[top : top + rows, left : left + columns] = 255 * values
            break
    return image


# Mixtures of the images of a batch


def mixed(images: np.ndarray, labels: np.ndarray, augmentation: Any, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """A batch's images, overwritten in place, and new labels after mixup or CutMix; without either, as given."""
    # Where the augmentation has both, a coin decides (timm's `switch_prob`).
    generator = np.random.default_rng(seed)
    if augmentation.cutmix and (not augmentation.mixup or generator.random() < 0.5):
        return cutmix(images, labels, augmentation.cutmix, generator)
    return mixup(images, labels, augmentation.mixup, generator) if augmentation.mixup else (images, labels)


def cutmix(
    images: np.ndarray, labels: np.ndarray, p: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Puts a box of the image before it into every image, in place; returns the images and labels mixed by its area."""
    # One box for the whole batch, of a share of the area from Beta(p, p) around a place anywhere; what lies outside the
    # image is cut off: timm's `Mixup`. Labels are float32 rows `(batch, classes)`.
    side, box, area = math.sqrt(1 - generator.beta(p, p)), [], 1.0
    for size in images.shape[1:3]:
        cut, centre = int(size * side), int(generator.integers(size))
        first, end = max(centre - cut // 2, 0), min(centre + (cut + 1) // 2, size)
        box.append(slice(first, end))
        area *= (end - first) / size
    rest = np.float32(area)
    images[:, *box] = np.roll(images[:, *box], 1, axis=0)
    return images, (1 - rest) * labels + rest * np.roll(labels, 1, axis=0)


def mixup(
    images: np.ndarray, labels: np.ndarray, p: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Mixes every image with the one before it, in place; returns the images and their labels, mixed alike."""
    # One weight `a` for the whole batch, drawn from Beta(p, p) and made the larger of `a` and `1 - a`: big_vision's
    # `utils.get_mixup` (arXiv 1710.09412). Images are float32, labels float32 rows `(batch, classes)`.
    drawn = generator.beta(p, p)
    weight = np.float32(max(drawn, 1 - drawn))
    rest = np.float32(1) - weight
    last = images[-1].copy()
    for i in range(len(images) - 1, -1, -1):  # image by image: a whole batch would not stay in a processor's cache
        images[i] *= weight
        images[i] += rest * (images[i - 1] if i else last)
    return images, weight * labels + rest * np.roll(labels, 1, axis=0)
