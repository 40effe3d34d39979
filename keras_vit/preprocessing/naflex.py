"""The size to which NaFlex resizes a picture: nearly its own aspect ratio, in whole patches, not more than so many."""

import math

from keras_vit._arguments import whole_number

_LEAST, _MOST, _PRECISION = 1e-6, 100.0, 1e-5  # of the scale that is searched


def naflex_size(height: int, width: int, patch: int = 16, patches: int = 256) -> tuple[int, int]:
    """Returns the height and width, in pixels, to which SigLIP 2 NaFlex resizes a picture.

    They are multiples of `patch`, and the grid of patches has at most `patches`; small pictures are enlarged. The scale
    is searched by bisection, as in transformers (`image_processing_siglip2.py`) and big_vision (`ops_naflex.py`). A
    model for that size: `keras_vit.load(path, image_size=naflex_size(height, width))`.

    Args:
        height: Of the picture, in pixels.
        width: Of the picture, in pixels.
        patch: The side of a patch, in pixels.
        patches: The largest number of patches.

    Returns:
        Height and width in pixels.

    Raises:
        ValueError: if an argument is no positive integer, or the picture is so long and narrow that more than `patches`
            patches are left at the smallest scale.

    Examples:
        >>> keras_vit.preprocessing.naflex_size(480, 640)
        (224, 288)
    """
    for name, value in {"height": height, "width": width, "patch": patch, "patches": patches}.items():
        whole_number(name, value, 1)

    def size(scale: float) -> tuple[int, int]:
        sides = (max(patch, math.ceil(side * scale / patch) * patch) for side in (height, width))
        return next(sides), next(sides)

    low, high = _LEAST, _MOST
    while high - low >= _PRECISION:
        scale = (low + high) / 2
        rows, columns = (side // patch for side in size(scale))
        low, high = (scale, high) if rows * columns <= patches else (low, scale)
    rows, columns = (side // patch for side in size(low))
    if rows * columns > patches:
        raise ValueError(f"A picture of {height} x {width} pixels has no grid of at most {patches} patches. Cut it.")
    return rows * patch, columns * patch
