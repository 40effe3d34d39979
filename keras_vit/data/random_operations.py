"""RandAugment, as big_vision's `pp/archive/autoaugment.py` has it (`distort_image_with_randaugment`), in NumPy.

There it has `cutout_const=40`, `translate_const=100` and grey, 128, where an operation uncovers pixels, and runs in
TensorFlow, in float32. Here every rounding is the same, in the same order, and what is odd there is odd here:

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

import numpy as np

from keras_vit._arguments import check_choice, check_type, whole_number
from keras_vit._options import UpTo, option, refuse

MAX_MAGNITUDE = 30
# What the original turns around, by negating the magnitude, in half of all cases.
SIGNED_OPERATIONS = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
_OF_OPERATIONS = {
    "negate": option(False, when={"name": SIGNED_OPERATIONS}),
    "center": option(when={"name": ("Cutout",)}),
}
_GREY = 128  # where nothing of the image is
_VALUES = np.arange(256, dtype="float32")


def randaugment(image: np.ndarray, layers: int, magnitude: float, generator: np.random.Generator) -> np.ndarray:
    """Applies RandAugment to an image: random operations in sequence, as big_vision's `distort_image_with_randaugment`.

    For each of `layers`, `generator` draws one of the 16 operations, uniformly; then the sign of an operation in
    `SIGNED_OPERATIONS`, or the centre of `Cutout`. `image`, `magnitude` and errors are as in `randaugment_operation`.
    Returns uint8 `(height, width, 3)`.

    Examples:
        >>> data.randaugment(pixels[0], layers=2, magnitude=10, generator=np.random.default_rng(0)).shape
        (24, 24, 3)
    """
    whole_number("layers", layers, 1)
    check_type("generator", generator, np.random.Generator, "a numpy.random.Generator, such as default_rng(0)")
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
            tables[channel][0] = 0
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
    """Returns the number of the pixel that each pixel of a moved image shows, `(height, width)`, counted row by row."""
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
