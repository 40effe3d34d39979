"""How far depth is off: delta1, the relative error and the root mean square, as on NYU Depth v2 and KITTI."""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from keras_vit._arguments import to_numpy
from keras_vit._terminal import Column, TableResult
from keras_vit.depth.estimating import Depth


@dataclasses.dataclass(frozen=True)
class DepthErrors(TableResult):
    """The errors of one picture or the means over several. Printing it draws a table.

    Attributes:
        pictures: Number of pictures.
        delta1: The share of pixels whose depth is off by a factor below 1.25.
        relative: The mean of `|depth - truth| / truth`.
        rmse: The root of the mean squared error, in metres.

    Examples:
        >>> keras_vit.depth.DepthErrors(1, 0.5, 0.1, 0.2).delta1
        0.5
    """

    pictures: int
    delta1: float
    relative: float
    rmse: float

    columns = (
        Column("pictures", lambda errors: errors.pictures),
        Column("delta1", lambda errors: errors.delta1, digits=4),
        Column("relative", lambda errors: errors.relative, digits=4),
        Column("rmse", lambda errors: errors.rmse, digits=4),
    )


def depth_errors(result: Depth, truth: ArrayLike, *, least: float = 1e-3, most: float = 10.0) -> DepthErrors:
    """Returns the errors of estimated depth against measured depth, over the pixels in a range.

    Relative depth is first fitted to the inverse of the truth by scale and shift with the least squared error, as
    Depth Anything and MiDaS do; then depth is clipped to the range.

    Args:
        result: What `estimate` returns.
        truth: Metres `(height, width)`; 0 or NaN where nothing was measured.
        least: Only pixels with a true depth above this many metres count.
        most: Only pixels with a true depth below this many metres count: 10 for NYU, 80 for KITTI.

    Returns:
        The errors over the pixels that count.

    Raises:
        TypeError: if `result` is not a `Depth`, or `least` or `most` is not a number.
        ValueError: if sizes differ, the range is empty, no pixel counts, or depth is not finite.
        TypeError, ValueError: if `truth` does not contain numbers.

    Source: Eigen et al., arXiv 1406.2283, section 4.1; `compute_scale_and_shift` of MiDaS, in inverse depth.

    Examples:
        >>> truth = np.linspace(1, 5, 12).reshape(3, 4)
        >>> keras_vit.depth.depth_errors(keras_vit.depth.Depth(2 / truth + 1, metric=False), truth).delta1
        1.0
    """
    if not isinstance(result, Depth):
        raise TypeError(f"result must be a Depth, as estimate returns, but {type(result).__name__} was given.")
    if not 0 < least < most:
        raise ValueError(f"least and most must be metres with 0 < least < most, but {least!r} and {most!r} were given.")
    metres, depth = to_numpy(truth).astype("float64"), result.depth.astype("float64")
    if metres.shape != depth.shape:
        raise ValueError(f"truth must be as large as the depth, {depth.shape}, but {metres.shape} was given.")
    if not np.isfinite(depth).all():
        raise ValueError("result must hold finite depth, but some of it is infinite or NaN.")
    counted = (metres > least) & (metres < most)  # NaN is neither
    if not counted.any():
        raise ValueError(f"No pixel of truth lies between {least} and {most} m: is it in metres?")
    metres, depth = metres[counted], depth[counted]
    if not result.metric:  # scale and shift fit the inverse of the metres, least squares
        lines = np.stack([depth, np.ones_like(depth)], axis=1)
        inverse = lines @ np.linalg.lstsq(lines, 1 / metres, rcond=None)[0]
        depth = 1 / np.maximum(inverse, 1 / most)
    depth = np.clip(depth, least, most)
    delta1 = float((np.maximum(depth / metres, metres / depth) < 1.25).mean())
    error = depth - metres
    relative, rmse = float((np.abs(error) / metres).mean()), float(np.sqrt((error**2).mean()))
    return DepthErrors(1, delta1, relative, rmse)


def mean_depth_errors(errors: list[DepthErrors]) -> DepthErrors:
    """Returns the mean errors over pictures, with the same weight for each.

    Args:
        errors: What `depth_errors` returned for each picture.

    Returns:
        The mean of each error, and the number of pictures. The root of the squared errors is taken per picture, before
        the mean, as in the papers.

    Raises:
        ValueError: if `errors` is empty.

    Examples:
        >>> keras_vit.depth.mean_depth_errors([keras_vit.depth.DepthErrors(1, 0.5, 0.1, 0.2)] * 2).pictures
        2
    """
    errors = list(errors)
    if not errors:
        raise ValueError("errors must hold the errors of at least one picture.")
    return DepthErrors(
        pictures=sum(one.pictures for one in errors),
        delta1=float(np.mean([one.delta1 for one in errors])),
        relative=float(np.mean([one.relative for one in errors])),
        rmse=float(np.mean([one.rmse for one in errors])),
    )
