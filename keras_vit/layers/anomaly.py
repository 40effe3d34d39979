"""Anomaly detection: distances of patches to a bank of good ones, the foreground, and the map and the score of both."""

from typing import Annotated

import numpy as np
from keras import ops

from keras_vit._arguments import Shape, Tensor
from keras_vit._options import From0, OneOf, Pair, Positive
from keras_vit.interpolation import interpolation_matrix
from keras_vit.layers.base import BaseLayer, initializer, registered
from keras_vit.layers.choices import DISTANCES
from keras_vit.layers.ops import reshape, widened

CHUNK = 8192  # vectors of a bank that are compared at a time: the products with all of them may not fit in memory


def nearest_products(x: Tensor, bank: Tensor, count: int, metric: str) -> Tensor:
    """Returns the `count` largest products of vectors `(..., D)` with a bank `(D, M)`: those with the nearest vectors.

    For `"L2"`, half of a bank vector's squared length is subtracted, so that the largest is the nearest here as well.
    """
    found = []
    for start in range(0, bank.shape[1], CHUNK):
        part = bank if bank.shape[1] <= CHUNK else bank[:, start : start + CHUNK]
        y = ops.matmul(x, part)
        found.append(largest(y - ops.sum(ops.square(part), 0) / 2 if metric == "L2" else y, count))
    return found[0] if len(found) == 1 else largest(ops.concatenate(found, -1), count)


def largest(x: Tensor, count: int) -> Tensor:
    """Returns the `count` largest values of the last axis, or all if there are fewer, the largest first."""
    return ops.max(x, -1, keepdims=True) if count == 1 else ops.top_k(x, min(count, x.shape[-1]))[0]


def mean_distances(x: Tensor, products: Tensor, metric: str) -> Tensor:
    """Returns distances from `nearest_products`: the mean of 1 - cosine, or the root of the mean of squares."""
    mean = ops.mean(products, -1)
    return ops.relu(1 - mean) if metric == "cosine" else ops.sqrt(ops.relu(ops.sum(ops.square(x), -1) - 2 * mean))


def foreground(features: Tensor) -> Tensor:
    """Returns which patches `(batch, rows, columns, D)` show the object, as `keras_vit.anomaly.foreground_mask`."""
    x, (rows, columns, width) = widened(ops.convert_to_tensor(features)), features.shape[1:]
    x = ops.reshape(x, (-1, rows * columns, width))
    x = x - ops.mean(x, 1, keepdims=True)
    turned = ops.transpose(x, (0, 2, 1))
    if width <= rows * columns:
        first = ops.eigh(ops.matmul(turned, x))[1][..., -1:]
    else:  # the smaller matrix has the same eigenvalues
        first = ops.matmul(turned, ops.eigh(ops.matmul(x, turned))[1][..., -1:])
        first = first / ops.norm(first, axis=1, keepdims=True)
    # The sign is free; as in scikit-learn, the largest loading is positive.
    sign = ops.where(ops.max(first, 1, keepdims=True) >= -ops.min(first, 1, keepdims=True), 1.0, -1.0)
    y = ops.reshape(ops.matmul(x, first) * sign, (-1, rows, columns, 1))
    mask = ops.cast(y > 10, x.dtype)
    centre = mask[:, int(0.2 * rows) : int(0.8 * rows), int(0.2 * columns) : int(0.8 * columns)]
    mask = ops.where(ops.mean(centre, (1, 2), keepdims=True) <= 0.35, ops.cast(-y > 10, x.dtype), mask)

    def dilated(x: Tensor) -> Tensor:
        return ops.max_pool(x, 3, 1, "same", "channels_last")

    return ops.squeeze(1 - dilated(1 - dilated(dilated(mask))), -1) > 0.5  # dilation, then closing


def map_matrix(size: int, patches: int, sigma: float) -> np.ndarray:
    """Returns `(size, patches)`: `cv2.resize`, then `scipy.ndimage.gaussian_filter`, of one axis."""
    radius = int(4 * sigma + 0.5)
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / (sigma or 1)) ** 2)
    padded = np.pad(interpolation_matrix(patches, size, "bilinear"), ((radius, radius), (0, 0)), "symmetric")
    return sum(weight * padded[i : i + size] for i, weight in enumerate(kernel / kernel.sum()))


def score_patches(patches: int) -> int:
    """Returns how many of the largest distances the score is the mean of: 1 % of the patches, at least one."""
    return max(int(patches * 0.01), 1)


@registered
class PatchDistances(BaseLayer):
    """Distances `(batch, rows, columns)` of features to their nearest neighbours in the weight `bank` `(D, bank_size)`.

    For `metric="cosine"`, features have the length 1. Of patches that are not in the `foreground` of `masked`, features
    before that, the distance is 0.
    """

    bank_size: Positive
    neighbours: Positive = 1
    metric: Annotated[str, OneOf(DISTANCES)] = "cosine"

    def build(self, x_shape: Shape, masked_shape: Shape | None = None) -> None:
        shape = (x_shape[-1], self.bank_size)
        self.bank = self.add_weight(name="bank", shape=shape, initializer=initializer("zeros"), trainable=False)

    def call(self, x: Tensor, masked: Tensor | None = None) -> Tensor:
        bank, (rows, columns, width) = ops.convert_to_tensor(self.bank, x.dtype), x.shape[1:]
        x = reshape(x, (-1, rows * columns, width))
        distances = mean_distances(x, nearest_products(x, bank, self.neighbours, self.metric), self.metric)
        distances = reshape(distances, (-1, rows, columns))
        return distances if masked is None else distances * ops.cast(foreground(masked), distances.dtype)

    def compute_output_shape(self, x_shape: Shape, masked_shape: Shape | None = None) -> Shape:
        return x_shape[:-1]


@registered
class AnomalyMap(BaseLayer):
    """Resizes distances `(batch, rows, columns)` to `(batch, *image_size)`, and smooths them."""

    image_size: Pair
    sigma: From0 = 4.0

    def call(self, x: Tensor) -> Tensor:
        # Two products with a constant on the right, which GPUs of phones take; on the left they do not.
        for size, patches in zip(self.image_size[::-1], x.shape[:0:-1], strict=True):
            matrix = ops.convert_to_tensor(map_matrix(size, patches, self.sigma).T, x.dtype)
            x = ops.transpose(ops.matmul(x, matrix), (0, 2, 1))
        return x

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], *self.image_size)


@registered
class AnomalyScore(BaseLayer):
    """The mean of the largest 1 % of the distances `(batch, rows, columns)`, of one at least: `(batch,)`."""

    def call(self, x: Tensor) -> Tensor:
        x = reshape(x, (-1, x.shape[1] * x.shape[2]))
        count = score_patches(x.shape[1])
        total, rest = 0.0, count
        for _ in range(count):  # without sorting, which GPUs of phones lack; the same values count together
            top = ops.max(x, -1, keepdims=True)
            is_top = ops.equal(x, top)
            taken = ops.minimum(ops.sum(ops.cast(is_top, x.dtype), -1, keepdims=True), rest)
            total, rest, x = total + top * taken, rest - taken, ops.where(is_top, -1e4, x)
        return ops.squeeze(total, -1) / count

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape[:1]
