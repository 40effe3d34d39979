"""The loss of models that answer with masks and their classes: EoMT's, which is Mask2Former's (arXiv 2112.01527)."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import require_packages, to_numpy
from keras_vit._options import From0, Number, Positive, Share, checked
from keras_vit.layers.base import DrawnSeed
from keras_vit.layers.ops import float32_or_better, with_faster_forms

Output = Mapping[str, Any]  # {"masks": (N, Q, rows, columns), "classes": (N, Q, K + 1)}, logits
# For each picture {"masks": (T, h, w), "labels": (T,)}, or what `pad_targets` has made of these.
Targets = Sequence[Mapping[str, Any]] | Mapping[str, Any]
PADDING = -1  # the label of masks that only fill up
_From1 = Annotated[float, Number("a number of at least 1", lambda n: 1 <= n < math.inf)]


@dataclasses.dataclass(frozen=True, eq=False)
class Match:
    """Which query has which mask of a picture.

    Attributes:
        queries: int64 `(pairs,)`, rising.
        targets: int64 `(pairs,)`: the number of the mask of each.
        cost: float32 `(Q, T)`: what each pair would cost.
    """

    queries: np.ndarray
    targets: np.ndarray
    cost: np.ndarray


def pad_targets(targets: Targets, multiple: int = 1) -> dict[str, np.ndarray]:
    """Targets as arrays of one shape: `masks` uint8 `(N, T, h, w)` and `labels` int32 `(N, T)`, -1 at the end."""
    if isinstance(targets, Mapping):
        return dict(targets)
    masks = [to_numpy(target["masks"]) for target in targets]
    labels = [to_numpy(target["labels"]) for target in targets]
    if any(of.dtype.kind == "f" and (of % 1).any() for of in labels):
        raise ValueError(f"targets must have whole numbers as labels, but have {labels}.")
    labels = [of.astype("int32") for of in labels]
    pairs = list(zip(masks, labels, strict=True))
    # A picture without masks may have them at any size.
    sizes = {mask.shape[1:] for mask in masks if mask.shape[:1] != (0,)} or {(1, 1)}
    fit = all(of.ndim == 1 and mask.shape[:1] == of.shape for mask, of in pairs)
    if not fit or len(sizes) > 1 or len(next(iter(sizes))) != 2:
        shapes = [(mask.shape, of.shape) for mask, of in pairs]
        raise ValueError(f"targets must have masks (T, height, width) of one size and labels (T,), but have {shapes}.")
    if any((of < 0).any() for of in labels):
        raise ValueError(f"targets must have labels of at least 0, but have {labels}.")
    size = sizes.pop()
    masks = [mask if len(mask) else np.zeros((0, *size), "uint8") for mask in masks]
    return {"masks": filled_up(masks, multiple).astype("uint8"), "labels": filled_up(labels, multiple, PADDING)}


def filled_up(rows: Sequence[np.ndarray], multiple: int, value: Any = 0) -> np.ndarray:
    """Rows of each picture as an array `(pictures, most, ...)`, `most` a multiple, with a value at the end."""
    most = -(-max([1, *map(len, rows)]) // multiple) * multiple
    margins = [[(0, most - len(of))] + [(0, 0)] * (of.ndim - 1) for of in rows]
    return np.stack([np.pad(of, pad, constant_values=value) for of, pad in zip(rows, margins, strict=True)])


def _tensors(targets: Targets, output: Output) -> dict[str, Any]:
    padded, classes = pad_targets(targets), output["classes"].shape[-1] - 1
    if not isinstance(targets, Mapping) and padded["labels"].max(initial=PADDING) >= classes:
        raise ValueError(f"targets must have labels of 0 to {classes - 1}, but have {padded['labels'].max()}.")
    return {name: ops.convert_to_tensor(padded[name]) for name in ("masks", "labels")}


@with_faster_forms
def sample(maps: Any, points: Any) -> Any:
    """Returns values `(..., P)` of maps `(..., h, w)` at points `(..., P, 2)`: (x, y) in 0..1 of width and height."""
    # Linear between the centres of pixels, whose neighbours outside the map count as 0
    # (`torch.nn.functional.grid_sample`, `align_corners=False`).
    height, width = maps.shape[-2:]
    flat = ops.reshape(maps, (*ops.shape(maps)[:-2], height * width))
    x, y = points[..., 0] * width - 0.5, points[..., 1] * height - 0.5
    left, top = ops.floor(x), ops.floor(y)
    total: Any = 0.0
    for column, row in ((left, top), (left + 1, top), (left, top + 1), (left + 1, top + 1)):
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        share = ops.where(inside, (1 - ops.abs(x - column)) * (1 - ops.abs(y - row)), 0.0)
        place = ops.clip(row, 0, height - 1) * width + ops.clip(column, 0, width - 1)
        place = ops.broadcast_to(ops.cast(place, "int32"), (*ops.shape(flat)[:-1], points.shape[-2]))
        total = total + share * ops.cast(ops.take_along_axis(flat, place, axis=-1), share.dtype)
    return total


def _costs(targets: Output, output: Output, points: Any, mask: float, dice: float, classes: float) -> Any:
    """Returns what pairs of queries and masks cost, `(N, Q, T)`, from tensors; the numbers are factors of the terms."""
    count = points.shape[-2]
    logits, wanted = sample(output["masks"], points[:, None]), sample(targets["masks"], points[:, None])
    wanted = ops.transpose(ops.cast(wanted, logits.dtype), (0, 2, 1))
    entropy = ops.matmul(ops.softplus(-logits), wanted) + ops.matmul(ops.softplus(logits), 1 - wanted)
    shares = ops.sigmoid(logits)
    sums = ops.sum(shares, -1)[..., None] + ops.sum(wanted, 1)[:, None]
    overlap = 1 - (2 * ops.matmul(shares, wanted) + 1) / (sums + 1)
    labels = ops.broadcast_to(ops.maximum(targets["labels"], 0)[:, None], ops.shape(overlap))
    sure = ops.take_along_axis(ops.softmax(output["classes"]), labels, axis=-1)
    return mask * entropy / count + dice * overlap - classes * sure


def assign(costs: Any, labels: Any) -> Any:
    """Returns `assigned` as a tensor without a gradient, also within compiled programs of JAX and TensorFlow."""
    backend = keras.backend.backend()
    costs = ops.stop_gradient(costs)
    if backend == "jax":
        import jax

        return jax.pure_callback(assigned, jax.ShapeDtypeStruct(labels.shape, "int32"), costs, labels)
    if backend == "tensorflow":
        import tensorflow as tf

        found = tf.numpy_function(assigned, [costs, labels], tf.int32)
        found.set_shape(labels.shape)
        return found
    return ops.convert_to_tensor(assigned(to_numpy(costs), to_numpy(labels)))


def assigned(costs: Any, labels: Any) -> np.ndarray:
    """Returns the query of each mask, int32 `(N, T)`, -1 without one: the pairs with the lowest total cost."""
    # `costs` are `(N, Q, T)` and `labels` `(N, T)`, both on the CPU; masks with the label -1 only fill up.
    from scipy.optimize import linear_sum_assignment

    costs, labels = np.asarray(costs), np.asarray(labels)
    found = np.full(labels.shape, PADDING, "int32")
    for i, count in enumerate((labels != PADDING).sum(-1)):
        queries, masks = linear_sum_assignment(finite(costs[i, :, :count]))
        found[i, masks] = queries
    return found


def finite(costs: np.ndarray) -> np.ndarray:
    """Costs with the largest float32 in place of NaN and infinities, which the assignment cannot compare."""
    return np.where(np.isfinite(costs), costs, np.finfo("float32").max)


def match(
    targets: Targets,
    output: Output,
    points: Any,
    mask_weight: float = 5.0,
    dice_weight: float = 5.0,
    class_weight: float = 2.0,
) -> list[Match]:
    """Returns a `Match` for each picture: the pairs of queries and masks that have the lowest total cost.

    The weights of the costs, `targets` and errors are as in `MaskClassificationLoss`. `output` is one prediction of an
    EoMT. `points` `(N, P, 2)` are the places where masks are compared, (x, y) in 0..1. If there are more masks than
    queries, some are in no pair.

    Examples:
        >>> target = {"masks": np.ones((1, 4, 4), bool), "labels": [1]}
        >>> masks = np.stack([np.full((1, 2, 2), logit, "float32") for logit in (-5, 5)], axis=1)
        >>> output = {"masks": masks, "classes": np.zeros((1, 2, 4), "float32")}
        >>> training.match([target], output, points=np.full((1, 3, 2), 0.5, "float32"))[0].queries
        array([1])
    """
    require_packages("Matching", ("scipy",), "segmentation")
    output = exact(output)
    padded = _tensors(targets, output)
    points = ops.convert_to_tensor(to_numpy(points), output["masks"].dtype)
    costs = _costs(padded, output, points, mask_weight, dice_weight, class_weight)
    return matches(costs, padded["labels"])


def matches(costs: Any, labels: Any) -> list[Match]:
    """Returns the pairs of each picture by the tensors that `assigned` takes."""
    costs, labels, result = to_numpy(ops.stop_gradient(costs)), to_numpy(labels), []
    for i, queries in enumerate(assigned(costs, labels)):
        found = np.flatnonzero(queries != PADDING)
        found = found[np.argsort(queries[found])]
        cost = finite(costs[i, :, : (labels[i] != PADDING).sum()])
        result.append(Match(queries[found].astype("int64"), found, cost))
    return result


def exact(output: Output, names: Sequence[str] = ("masks", "classes")) -> dict[str, Any]:
    """Answers of a model as tensors of float32 or better."""
    tensors = {name: ops.convert_to_tensor(output[name]) for name in names}
    return {name: ops.cast(x, float32_or_better(x.dtype)) for name, x in tensors.items()}


class MaskClassificationLoss:
    """The loss of EoMT: each mask is given to one query, whose mask and class are compared with it.

    `loss(targets, outputs)` is the sum over all predictions (before each block with queries, and at the end) of
    `mask_weight * mask + dice_weight * dice + class_weight * classes`, a float32 scalar that can be differentiated.
    `mask` is the binary cross-entropy and `dice` the Dice loss of the matched pairs at sampled points, both divided by
    the number of pairs. `classes` is the cross-entropy of all queries, divided by the sum of their weights. Matching
    has no gradient. A pixel without a mask is outside of every mask.

    Args:
        classes: K, the number of classes, without "no object".
        points: P, the number of points at which masks are compared.
        oversample: Number of candidates for each point.
        importance: Share of the points that are taken from the candidates where the prediction is least certain; the
            remaining points are drawn at random.
        mask_weight: Factor of the cross-entropy of masks.
        dice_weight: Factor of the Dice loss of masks.
        class_weight: Factor of the cross-entropy of classes.
        no_object: Weight in `classes` of queries without a mask ("no object").
        seed: Seed of the points; None for new points in each run.

    Call arguments:
        targets: For each picture `{"masks": (T, h, w) of booleans, "labels": (T,)}`; T may be 0.
        outputs: The predictions, each `{"masks": (N, Q, rows, columns), "classes": (N, Q, K + 1)}` as an EoMT returns
            it.
        points: (x, y) in 0..1, in place of those that are drawn: `"match"` `(predictions, N, P, 2)`, `"candidates"`
            `(predictions, masks, int(P * oversample), 2)` and `"random"` `(predictions, masks, P - k, 2)`, k being
            `int(importance * P)`; masks are those of all pictures in their order.
        num_masks: What `mask` and `dice` are divided by; None for the number of pairs, at least 1.

    Raises:
        ImportError: if SciPy is not installed (the extra `segmentation`).
        ValueError, KeyError: if a number is out of its range; at call time, if targets, outputs or points do not fit.

    Source: EoMT's `training/mask_classification_loss.py`. If masks exceed queries, transformers divides by all masks.

    Examples:
        >>> target = {"masks": np.ones((1, 4, 4), bool), "labels": [1]}
        >>> outputs = [{"masks": np.zeros((1, 2, 2, 2), "float32"), "classes": np.zeros((1, 2, 4), "float32")}]
        >>> loss = training.MaskClassificationLoss(classes=3, points=8)
        >>> round(float(loss.terms([target], outputs)[0]["classes"]), 4)  # log(4)
        1.3863
    """

    @checked
    def __init__(
        self,
        classes: Positive,
        points: Positive = 12544,
        oversample: _From1 = 3.0,
        importance: Share = 0.75,
        mask_weight: From0 = 5.0,
        dice_weight: From0 = 5.0,
        class_weight: From0 = 2.0,
        no_object: From0 = 0.1,
        *,
        seed: int | None = None,
    ) -> None:
        require_packages("Matching", ("scipy",), "segmentation")
        self.classes, self.points, self.oversample, self.importance = classes, points, oversample, importance
        self.mask_weight, self.dice_weight, self.class_weight = mask_weight, dice_weight, class_weight
        self.no_object = no_object
        self._seeds = keras.random.SeedGenerator(seed)

    def __call__(self, targets: Targets, outputs: Sequence[Output], points: Any = None, num_masks: Any = None) -> Any:
        total: Any = 0.0
        for terms in self.terms(targets, outputs, points, num_masks):
            total = total + self.weighted(terms)
        return total

    def weighted(self, terms: Mapping[str, Any]) -> Any:
        """The sum of the terms of a prediction, `mask`, `dice` and `classes`, times their factors."""
        return (
            self.mask_weight * terms["mask"] + self.dice_weight * terms["dice"] + self.class_weight * terms["classes"]
        )

    def terms(
        self,
        targets: Targets,
        outputs: Sequence[Output],
        points: Any = None,
        num_masks: Any = None,
        seed: Any = None,
    ) -> list[dict[str, Any]]:
        """Returns a list with `{"mask", "dice", "classes"}` for each prediction: the terms before they are weighted.

        Arguments and errors are those of the call. `seed` is an integer tensor `(N, 2)`: the points of a picture are
        drawn from its row, independently of the rest of the batch; None for the loss's own seeds.
        """
        found, padded = [], None
        for i, output in enumerate(outputs):
            output = exact(output)
            if output["classes"].shape[-1] != self.classes + 1:
                given = output["classes"].shape[-1] - 1
                raise ValueError(f'outputs must have {self.classes} classes and "no object", but they have {given}.')
            padded = padded or _tensors(targets, output)
            if points is None:
                drawn = self._drawn(padded["labels"], None if seed is None else seed + i)
            else:
                drawn = self._given(points, i, to_numpy(padded["labels"]) != PADDING)
            drawn = {name: ops.cast(values, output["masks"].dtype) for name, values in drawn.items()}
            found.append(self._terms(padded, output, drawn, num_masks))
        return found

    def _drawn(self, labels: Any, seed: Any) -> dict[str, Any]:
        """Returns random points, a dict of `match`, `candidates` and `random`, from `seed` or the loss's own seeds."""
        pictures, masks = ops.shape(labels)
        chosen = int(self.importance * self.points)
        count = int(self.points * self.oversample)
        # One draw: a seed that was drawn beforehand returns the same numbers again and again.
        size = (self.points + masks * (count + self.points - chosen), 2)
        if seed is None:
            whole = keras.random.uniform((pictures, *size), seed=self._seeds)
        else:
            whole = ops.map(lambda row: keras.random.uniform(size, seed=DrawnSeed(row)), seed)
        match, rest = whole[:, : self.points], whole[:, self.points :]
        rest = ops.reshape(rest, (pictures, masks, count + self.points - chosen, 2))
        return {"match": match, "candidates": rest[:, :, :count], "random": rest[:, :, count:]}

    def _given(self, points: Mapping[str, Any], prediction: int, is_mask: np.ndarray) -> dict[str, Any]:
        """Returns the points of one prediction that a caller has given, as tensors by their names."""
        # `match` is `(N, P, 2)`; `candidates` and `random` are `(N, T, number, 2)`, with zeros for masks that fill up.
        found = {"match": to_numpy(points["match"])[prediction]}
        for name in ("candidates", "random"):
            values = to_numpy(points[name])[prediction]
            found[name] = np.zeros((*is_mask.shape, *values.shape[1:]), values.dtype)
            found[name][is_mask] = values
        return {name: ops.convert_to_tensor(values) for name, values in found.items()}

    def _terms(self, targets: Output, output: Output, points: Mapping[str, Any], num_masks: Any) -> dict[str, Any]:
        """Returns the terms of one prediction; targets are padded, and all arrays tensors."""
        masks, classes = output["masks"], output["classes"]
        fixed = {name: ops.stop_gradient(logits) for name, logits in output.items()}
        costs = _costs(targets, fixed, points["match"], self.mask_weight, self.dice_weight, self.class_weight)
        query = assign(costs, targets["labels"])
        has_query = ops.cast(query != PADDING, masks.dtype)
        pairs = ops.sum(has_query) if num_masks is None else ops.cast(num_masks, masks.dtype)
        pairs = ops.maximum(pairs, 1.0)

        # The masks of the queries that have one, in the order of the targets.
        rows, columns, queries = masks.shape[-2], masks.shape[-1], masks.shape[1]
        flat = ops.reshape(masks, (-1, queries, rows * columns))
        chosen = ops.broadcast_to(ops.maximum(query, 0)[..., None], (*ops.shape(query), rows * columns))
        matched = ops.reshape(ops.take_along_axis(flat, chosen, axis=1), (*ops.shape(query), rows, columns))
        places = self._places(ops.stop_gradient(matched), points)
        logits, wanted = sample(matched, places), sample(targets["masks"], places)
        entropy = ops.mean(ops.softplus(logits) - logits * wanted, axis=-1)
        shares = ops.sigmoid(logits)
        dice = 1 - (2 * ops.sum(shares * wanted, -1) + 1) / (ops.sum(shares, -1) + ops.sum(wanted, -1) + 1)

        # Which class each query should answer with: that of its mask, or "no object".
        owners = query[..., None] == ops.arange(queries, dtype=query.dtype)
        is_matched = ops.cast(ops.any(owners, axis=1), masks.dtype)
        labels = ops.where(owners, targets["labels"][..., None] - self.classes, 0)
        answers = ops.sum(labels, axis=1)[..., None] + self.classes
        weights = is_matched + self.no_object * (1 - is_matched)
        surprise = -ops.take_along_axis(ops.log_softmax(classes), answers, axis=-1)[..., 0]
        return {
            "mask": ops.sum(entropy * has_query) / pairs,
            "dice": ops.sum(dice * has_query) / pairs,
            "classes": ops.sum(weights * surprise) / ops.sum(weights),
        }

    def _places(self, logits: Any, points: Mapping[str, Any]) -> Any:
        """Returns where masks of pairs are compared, `(N, T, P, 2)`: the least sure candidates, and random points."""
        chosen = int(self.importance * self.points)
        if not chosen:
            return points["random"]
        doubt = -ops.abs(sample(logits, points["candidates"]))
        best = ops.top_k(doubt, chosen, sorted=False)[1]
        best = ops.broadcast_to(best[..., None], (*ops.shape(best), 2))
        return ops.concatenate([ops.take_along_axis(points["candidates"], best, axis=2), points["random"]], axis=2)
