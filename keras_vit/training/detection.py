"""Training detectors on boxes: matching and losses of OWL-ViT, as Scenic trains it (`scenic/projects/owl_vit`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_vit._arguments import check_choice, require_packages, to_numpy
from keras_vit._options import FROM_0, SHARE
from keras_vit.layers.ops import float32_or_better
from keras_vit.training.mask_classification import PADDING, Match, assign, assigned, finite

# For each picture {"boxes": (M, 4), "labels": (M,) or (M, C)}, or what `pad_boxes` has made of these.
Targets = Sequence[Mapping[str, Any]] | Mapping[str, Any]
Output = Mapping[str, Any]  # {"logits": (N, P, C), "boxes": (N, P, 4)}
_LEAST = 1e-6  # added to areas that are divided by


def pad_boxes(targets: Targets, classes: int, multiple: int = 1) -> dict[str, np.ndarray]:
    """Returns targets as arrays of one shape: `boxes` `(N, T, 4)`, `labels` `(N, T, C)` and `valid` `(N, T)`."""
    if isinstance(targets, Mapping):
        return dict(targets)
    pairs = [(to_numpy(target["boxes"]).reshape(-1, 4), to_numpy(target["labels"])) for target in targets]
    most = -(-max([1, *(len(boxes) for boxes, _ in pairs)]) // multiple) * multiple
    padded = {
        "boxes": np.zeros((len(pairs), most, 4), "float32"),
        "labels": np.zeros((len(pairs), most, classes), "float32"),
        "valid": np.full((len(pairs), most), PADDING, "int32"),
    }
    for i, (boxes, labels) in enumerate(pairs):
        hot = labels.ndim == 2
        if labels.shape != ((len(boxes), classes) if hot else (len(boxes),)):
            raise ValueError(
                f"targets must have boxes (M, 4) and labels (M,) or (M, {classes}), but have {boxes.shape} and "
                f"{labels.shape}."
            )
        if not hot and len(labels) and not ((labels % 1 == 0).all() and 0 <= labels.min() <= labels.max() < classes):
            raise ValueError(
                f"labels of targets must be integers from 0 to {classes - 1}, but {labels.tolist()} was given."
            )
        if not np.isfinite(boxes).all() or (boxes < 0).any():
            raise ValueError(
                f"boxes of targets must be finite, with sizes of at least 0, but {boxes.tolist()} was given."
            )
        padded["boxes"][i, : len(boxes)] = boxes
        padded["labels"][i, : len(boxes)] = labels if hot else np.eye(classes)[labels.astype(int)]
        padded["valid"][i, : len(boxes)] = 0
    return padded


def corners(boxes: Any) -> Any:
    """Returns left, top, right and bottom of boxes that are given as centre and size."""
    return ops.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], axis=-1)


def generalized_overlap(one: Any, other: Any) -> Any:
    """Returns the generalized intersection over union (arXiv 1902.09630) of boxes given by their corners."""
    sides = ops.maximum(ops.minimum(one[..., 2:], other[..., 2:]) - ops.maximum(one[..., :2], other[..., :2]), 0)
    hull = ops.maximum(one[..., 2:], other[..., 2:]) - ops.minimum(one[..., :2], other[..., :2])
    shared, hull = sides[..., 0] * sides[..., 1], hull[..., 0] * hull[..., 1]
    areas = [(box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1]) for box in (one, other)]
    union = areas[0] + areas[1] - shared
    return shared / (union + _LEAST) - (hull - union) / (hull + _LEAST)


def _tensors(targets: Targets, outputs: Output) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns padded targets and outputs as tensors of float32 or better."""
    output = {name: ops.convert_to_tensor(outputs[name]) for name in ("logits", "boxes")}
    output = {name: ops.cast(x, float32_or_better(x.dtype)) for name, x in output.items()}
    padded = {name: ops.convert_to_tensor(x) for name, x in pad_boxes(targets, output["logits"].shape[-1]).items()}
    return {name: x if name == "valid" else ops.cast(x, output["logits"].dtype) for name, x in padded.items()}, output


class DetectionLoss:
    """The loss of OWL-ViT: each box is given to one patch, whose classes and box are compared with it.

    `loss(targets, outputs)` is `class_weight * classes + box_weight * boxes + giou_weight * giou`, a scalar that can be
    differentiated; matching is inside, without a gradient. `classes` is the sigmoid focal loss of all patches, divided
    by the number of labels that have a patch; `boxes` is the L1 distance of corners, and `giou` 1 minus the generalized
    intersection over union, both of matched pairs and divided by their number.

    Args:
        focal_alpha: Weight of positive classes in the focal loss; negative classes have 1 minus it.
        focal_gamma: Exponent of the focal loss: the larger it is, the less confident predictions count.
        class_weight: Factor of the focal loss, also in the matching.
        box_weight: Factor of the L1 distance, likewise.
        giou_weight: Factor of `giou`, likewise.
        normalization: `"per_example"`: divides each picture by its own counts, then averages; `"global"`: divides by
            the counts of the batch.

    Raises:
        ImportError: if SciPy is not installed (the extra `segmentation`).
        ValueError: if a number is out of its range or `normalization` is unknown; at call time, if targets do not fit.
        KeyError: at call time, if targets or outputs lack one of their entries.

    Source: `scenic/projects/owl_vit/losses.py` and `matching_base_models.py`.

    Examples:
        >>> outputs = {"logits": np.zeros((1, 4, 2)), "boxes": np.full((1, 4, 4), 0.5)}
        >>> target = {"boxes": [[0.5, 0.5, 0.5, 0.5]], "labels": [1]}
        >>> sorted(training.DetectionLoss().terms([target], outputs))
        ['boxes', 'classes', 'giou']
    """

    def __init__(
        self,
        focal_alpha: float = 0.3,
        focal_gamma: float = 2.0,
        class_weight: float = 1.0,
        box_weight: float = 1.0,
        giou_weight: float = 1.0,
        normalization: str = "per_example",
    ) -> None:
        require_packages("Matching", ("scipy",), "segmentation")
        check_choice("normalization", normalization, ("per_example", "global"))
        self.alpha, self.gamma = SHARE("focal_alpha", focal_alpha), FROM_0("focal_gamma", focal_gamma)
        self.normalization, self.weights = normalization, {"classes": FROM_0("class_weight", class_weight)}
        self.weights |= {"boxes": FROM_0("box_weight", box_weight), "giou": FROM_0("giou_weight", giou_weight)}

    def __call__(self, targets: Targets, outputs: Output) -> Any:
        """Returns the loss of a batch, a scalar.

        Args:
            targets: For each picture `{"boxes": (M, 4), "labels": (M,)}`, centre and size in 0..1, and the class of
                each box, or `(M, C)` of 0 and 1 where a box has several; M may be 0.
            outputs: What a `Detector` returns.
        """
        terms = self.terms(targets, outputs)
        return sum((self.weights[name] * value for name, value in terms.items()), ops.zeros(()))

    def terms(self, targets: Targets, outputs: Output) -> dict[str, Any]:
        """Returns the terms `classes`, `boxes` and `giou`, scalars, without their factors; as `__call__`."""
        padded, output = _tensors(targets, outputs)
        fixed = {name: ops.stop_gradient(values) for name, values in output.items()}
        patch = assign(_costs(self, padded, fixed), padded["valid"])
        logits, boxes = output["logits"], output["boxes"]
        found = ops.cast(patch != PADDING, logits.dtype)  # (N, T)
        owners = ops.one_hot(ops.maximum(patch, 0), logits.shape[1], dtype=logits.dtype) * found[..., None]
        wanted = ops.matmul(ops.transpose(owners, (0, 2, 1)), padded["labels"])
        share = ops.sigmoid(logits)
        right = wanted * share + (1 - wanted) * (1 - share)
        balance = wanted * self.alpha + (1 - wanted) * (1 - self.alpha)
        surprise = wanted * ops.softplus(-logits) + (1 - wanted) * ops.softplus(logits)
        focal = ops.sum(balance * (1 - right) ** self.gamma * surprise, (1, 2))
        chosen = corners(ops.matmul(owners, boxes))
        true = corners(padded["boxes"])
        distance = ops.sum(ops.sum(ops.abs(chosen - true), -1) * found, 1)
        overlap = ops.sum((1 - generalized_overlap(chosen, true)) * found, 1)
        labels, pairs = ops.sum(wanted, (1, 2)), ops.sum(found, 1)
        sums = {"classes": (focal, labels), "boxes": (distance, pairs), "giou": (overlap, pairs)}
        if self.normalization == "global":
            return {name: ops.sum(value) / ops.maximum(ops.sum(count), 1) for name, (value, count) in sums.items()}
        return {name: ops.mean(value / ops.maximum(count, 1)) for name, (value, count) in sums.items()}


def _costs(loss: DetectionLoss, targets: Output, output: Output) -> Any:
    """Returns what pairs of patches and boxes cost, `(N, P, T)`: focal term of the classes, L1, less GIoU."""
    logits = output["logits"]
    share = ops.sigmoid(logits)
    positive = loss.alpha * (1 - share) ** loss.gamma * ops.softplus(-logits)
    negative = (1 - loss.alpha) * share**loss.gamma * ops.softplus(logits)
    classes = ops.matmul(positive - negative, ops.transpose(targets["labels"], (0, 2, 1)))
    one, other = output["boxes"][:, :, None], targets["boxes"][:, None]
    distance = ops.sum(ops.abs(one - other), -1)
    overlap = generalized_overlap(corners(one), corners(other))
    weights = loss.weights
    return weights["classes"] * classes + weights["boxes"] * distance - weights["giou"] * overlap


def match_boxes(targets: Targets, outputs: Output, loss: DetectionLoss | None = None) -> list[Match]:
    """Assigns each true box to one patch, so that the total cost is lowest.

    Args:
        targets: As of `DetectionLoss`.
        outputs: What a `Detector` returns: `logits` `(N, P, C)` and `boxes` `(N, P, 4)`.
        loss: The `DetectionLoss` whose factors weight the terms of the cost; None for its defaults.

    Returns:
        A `Match` for each picture, with M boxes: patch `queries[i]` has box `targets[i]`; `cost` is `(P, M)`.

    Raises:
        ImportError: if SciPy is not installed (the extra `segmentation`).
        ValueError, KeyError: as `DetectionLoss.__call__` for targets.

    Examples:
        >>> outputs = {"logits": np.zeros((1, 2, 1)), "boxes": [[[0.5, 0.5, 1, 1], [0.2, 0.2, 0.1, 0.1]]]}
        >>> training.match_boxes([{"boxes": [[0.2, 0.2, 0.2, 0.2]], "labels": [0]}], outputs)[0].queries
        array([1])
    """
    padded, output = _tensors(targets, outputs)
    costs = to_numpy(_costs(loss or DetectionLoss(), padded, output))
    valid, result = to_numpy(padded["valid"]), []
    for i, queries in enumerate(assigned(costs, valid)):
        boxes = np.flatnonzero(queries != PADDING)
        boxes = boxes[np.argsort(queries[boxes])]
        cost = finite(costs[i, :, : (valid[i] != PADDING).sum()])
        result.append(Match(queries[boxes].astype("int64"), boxes, cost))
    return result
