"""Maps at another size inside a model, as `torch.nn.functional.interpolate(mode="bilinear")` without antialiasing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_vit._arguments import Tensor, check_choice
from keras_vit.interpolation import neighbours
from keras_vit.layers.choices import RESIZES
from keras_vit.layers.fast import with_faster_forms


def resize(x: Tensor, size: Sequence[Any], how: str) -> Tensor:
    """A map at another size, linearly between its places.

    Args:
        x: `(batch, rows, columns, channels)`, floating point.
        size: New rows and columns; integers, or scalar integer tensors.
        how: `"corners"`: the outermost places stay where they are, place i is read at `i (old - 1) / (new - 1)`
            (`align_corners=True`). `"half_pixel"`: places are centres of equal parts, i is read at
            `(i + 1/2) old / new - 1/2`, and not before the first place.

    Returns:
        `(batch, *size, channels)` in the dtype of `x`.

    Raises:
        ValueError: if `how` is another.

    Examples:
        >>> row = layers.resize(np.array([[[[0.0], [3.0]]]], "float32"), (1, 4), "corners")
        >>> keras.ops.convert_to_numpy(row)[0, 0, :, 0].round(4).tolist()
        [0.0, 1.0, 2.0, 3.0]
    """
    check_choice("how", how, RESIZES)
    x = ops.convert_to_tensor(x)
    return x if tuple(x.shape[1:3]) == tuple(size) else resize_bilinear(x, size, how == "corners")


@with_faster_forms
def resize_bilinear(x: Tensor, size: Sequence[Any], aligned: bool) -> Tensor:
    """A map at another size, with its corners aligned or with half-pixel centres."""
    for axis, new in zip((1, 2), size, strict=True):
        old = ops.shape(x)[axis]
        known = isinstance(old, int) and isinstance(new, int)
        low, high, share = neighbours(old, new, aligned, np if known else ops)
        share = ops.convert_to_tensor(share.astype("float32") if known else share)
        share = ops.cast(ops.reshape(share, (-1, *[1] * (3 - axis))), x.dtype)
        first = ops.take(x, low, axis)
        x = first + (ops.take(x, high, axis) - first) * share
    return x
