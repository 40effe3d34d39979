"""Training of a detector on boxes of one's own classes, by the heads of OWL-ViT on any Vision Transformer."""

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_vit import models
from keras_vit._arguments import check_type, pair, require_packages, to_numpy, unit_vectors
from keras_vit._options import From0, Share, checked
from keras_vit._pictures import plot_map, safe_colours
from keras_vit.data import BoxAugmentation, ImageStream, open_boxes
from keras_vit.data.boxes import BOXES
from keras_vit.detection import detect, evaluate, with_frames
from keras_vit.layers.dense_prediction import LEAST_NORM
from keras_vit.layers.ops import widened
from keras_vit.models.changes import copy_state
from keras_vit.text import load_image_text, save_image_text
from keras_vit.text.image_text import holds_detector
from keras_vit.text.open_vocabulary import OpenVocabularyDetector
from keras_vit.training import tasks
from keras_vit.training.distribution import check_equal_parts
from keras_vit.training.mask_classification import PADDING, Match, assign, exact, filled_up, matches
from keras_vit.training.recipes import Recipe
from keras_vit.zoo import load

TEXT = "words"  # before the names of the text tower's weights, which are those of the image tower otherwise
SURE = 0.3  # scores of the boxes that are drawn


@dataclasses.dataclass(frozen=True)
class BoxDetection(tasks.Task):
    """Training of a detector on pictures with boxes; `finetune_detection` makes it."""

    text_rate: float | None = None  # of an OWL's text tower beside the recipe's; None: its classes train as a matrix

    name = "detection"
    objective = "detection"
    targets = (BOXES.name,)
    loss_name = "focal loss, L1 and GIoU"
    picture = "boxes.png"

    @property
    def title(self) -> str:
        rate = self.text_rate
        return "detection" if rate is None else f"detection by words, text tower at {rate:g} of the rate"

    def data(self, request: tasks.Request, recipe: Recipe) -> tasks.Request:
        """Returns what is given with boxes, and an OWL as a detector of their classes."""
        model, settings, owl = request.model, request.settings, None
        boxes = open_boxes(request.data, classes=settings.classes, class_names=settings.class_names)
        if isinstance(model, (str, os.PathLike)):
            size = {"image_size": recipe.image_size} if "image_size" in recipe.given else {}
            model = (load_image_text if holds_detector(model) else load)(model, dtype=settings.dtype, **size)
            request = request.changed(settings=settings.adapted(dtype=None))
        if isinstance(model, OpenVocabularyDetector):
            if boxes.class_names is None:
                raise ValueError("An OWL finds classes by their names, but the data has none: pass class_names=.")
            owl, model = model, model.zero_shot_detector(boxes.class_names, progress=False)
        elif self.text_rate is not None:
            found = type(model).__name__
            raise ValueError(f"text_rate={self.text_rate} trains the text tower of an OWL, not {found}: leave it out.")
        if isinstance(model, models.Detector):
            names = model.config.class_names
            if None not in (names, boxes.class_names) and {*boxes.class_names} <= {*names}:
                boxes = boxes.in_order(names)
        if not request.is_share:
            request = request.changed(validation=open_boxes(request.validation).in_order(boxes.class_names))
        named = {"classes": boxes.classes, "class_names": boxes.class_names}
        return request.changed(model=model, owl=owl, data=boxes, **named)

    def recipe_for(self, model: Any, recipe: Recipe) -> Recipe:
        """Returns the recipe with the image size and the `pictures` of a detector."""
        recipe, changed = super().recipe_for(model, recipe), recipe.augmentation
        own = model.config.pictures if isinstance(model, models.Detector) else None
        if own is None or not isinstance(changed, BoxAugmentation) or changed.pictures == own:
            return recipe
        if "pictures" in changed.given:
            raise ValueError(f"pictures={changed.pictures!r} must be the model's {own!r}. Leave it out.")
        return recipe.adapted(augmentation=changed.adapted(pictures=own))

    def model(self, request: tasks.Request, recipe: Recipe, images: ImageStream) -> models.Detector:
        """Returns a copy of a detector, with new vectors for other classes, or one on a VisionTransformer."""
        source = request.model
        names = tasks.names_of(images)
        size = {"image_size": pair("image_size", recipe.image_size)}
        if isinstance(source, models.Detector):
            known, trunk = source.config, source.config.backbone
            same = known.classes == images.classes and (names is None or known.class_names in (None, names))
            config = known.replace(
                backbone=trunk.replace(**size, drop_path=recipe.drop_path or trunk.drop_path),
                classes=images.classes,
                class_names=names or (known.class_names if same else None),
                objectness=False,
            )
            model = models.Detector(config, name=source.name, dtype=source.dtype_policy)
            copy_state(source, model, () if same else {"head/queries"})
            return model
        check_type("model", source, models.VisionTransformer, "a VisionTransformer or a Detector")
        backbone = tasks.bare_backbone(source, **size, drop_path=recipe.drop_path)
        config = models.DetectorConfig(
            backbone=backbone.config,
            classes=images.classes,
            class_names=names,
            embedding=backbone.config.width,
            pictures=recipe.augmentation.pictures,
        )
        model = models.Detector(config, name=backbone.name, dtype=backbone.dtype_policy)
        copy_state(backbone, model.backbone)
        tasks.warn_of_many_patches(recipe, backbone.config.grid_size)
        return model

    def loss(self, run: tasks.Run) -> tasks.Learning:
        """Returns the detector with Scenic's losses, and a function from a number to a padded batch."""
        model, images = run.model, run.images
        check_equal_parts(model, images)  # the loss is a mean over the pictures of a part

        def batch(number: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
            pictures, targets = images.batch(number)
            height, width = pictures.shape[1:3]
            scaled = []
            for target in targets:
                single = ~target.get("crowd", np.zeros(len(target["labels"]), bool))  # of a pipeline
                corners = (target["boxes"][single] / [width, height, width, height]).reshape(-1, 2, 2).clip(0, 1)
                boxes = np.concatenate([corners.mean(1), corners[:, 1] - corners[:, 0]], 1)
                scaled.append({"boxes": boxes, "labels": target["labels"][single]})
            inputs = np.asarray(tasks.as_input(model, pictures), "float32")
            return inputs, pad_boxes(scaled, model.config.classes, tasks.PADDED_TO)

        if self.text_rate is not None:
            return TrainedByWords(run, self.text_rate), None, [], batch
        trained = tasks.ComputesLoss(model, lambda inputs, training: model(inputs, training=training), DetectionLoss())
        return trained, None, [], batch

    def measure(self, run: tasks.Run) -> "MeasuredBoxes":
        return MeasuredBoxes(run.model, run.tests, run.sharing)

    def finish(self, run: tasks.Run, trained: Any, folder: Path | None) -> OpenVocabularyDetector | None:
        """Returns both towers of an OWL that was trained by words, and writes them as transformers' files."""
        if not isinstance(trained, TrainedByWords):
            return None
        trained.give_words()
        model, old = run.model, run.owl
        model.get_layer("head").queries.trainable = True
        vit = old.detector.config.backbone.replace(image_size=model.config.image_size)
        detector = models.Detector(old.detector.config.replace(backbone=vit), dtype=model.dtype_policy)
        copy_state(old.detector, detector)  # with a head of objectness, which was not trained
        weights = models.weights_by_path(models.merge_lora(model) if models.adapted_layers(model) else model)
        for path, variable in models.weights_by_path(detector).items():
            if path in weights and path != "head/queries/kernel":
                variable.assign(ops.copy(weights[path]))
        notes = (*old.notes, "It was trained further by words, without a head of objectness.")
        owl = OpenVocabularyDetector(
            detector, trained.text_encoder, old.tokenizer, extras=old.extras, lowers=old.lowers, notes=notes
        )
        if folder is not None:
            save_image_text(owl, folder / "owl", overwrite=True)
        return owl


class TrainedByWords(tasks.ComputesLoss):
    """A detector whose classes are what a copy of an OWL's text tower makes of their names."""

    def __init__(self, run: tasks.Run, rate: float) -> None:
        super().__init__(run.model, self.answer_by_words, DetectionLoss())
        owl = run.owl
        self.ids, self.rate = owl.ids_of(run.images.class_names), rate
        run.model.get_layer("head").queries.trainable = False
        with keras.name_scope(TEXT):  # whose weights have their names from it
            self.text_encoder = models.TextEncoder(owl.text_encoder.config, dtype=owl.text_encoder.dtype_policy)
        self.text_encoder.set_weights(owl.text_encoder.get_weights())

    def compile(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        optimizer.rate_multipliers = {f"{TEXT}/*": self.rate, **optimizer.rate_multipliers}
        super().compile(optimizer, *args, **kwargs)

    def answer_by_words(self, inputs: Any, training: bool | None) -> dict[str, Any]:
        """Returns what the detector does with the vectors of its words."""
        vectors = widened(self.text_encoder(ops.convert_to_tensor(self.ids), training=training))
        vectors = ops.normalize(vectors, axis=-1, epsilon=LEAST_NORM)
        tokens = self.inner.backbone(inputs, training=training)
        return self.inner.get_layer("head")(tokens, ops.transpose(vectors), training=training)

    def give_words(self) -> None:
        """Gives the detector the vectors that its words have by now."""
        vectors = unit_vectors(to_numpy(self.text_encoder.predict_on_batch(self.ids)).astype("float32"))
        self.inner.get_layer("head").queries.kernel.assign(vectors.T)


class MeasuredBoxes(tasks.Measured):
    """COCO's average precision during a run, on pictures at their own sizes."""

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Returns figures for the log; `model`, which trains, shares its weights with the one that is measured."""
        if isinstance(model, TrainedByWords):
            model.give_words()
        result = evaluate(self.model, self.images, distribution=self.distribution, progress=False)
        return {"ap": np.nan_to_num(result.ap), "ap50": np.nan_to_num(result.ap50)}  # NaN without any box

    def draw(self, path: Path) -> None:
        """Writes a figure to `path`: a few pictures with their labelled boxes, and with the boxes that are found."""
        colours = [*itertools.islice(safe_colours(), self.model.config.classes)]
        rows: tuple[list[Any], list[Any]] = ([], [])
        for picture, target in itertools.islice(self.pairs, tasks.SHOWN):
            found = detect(self.model, picture, threshold=SURE)
            pixels = picture.clip(0, 255).astype("uint8")
            for row, boxes, labels in zip(
                rows, (target["boxes"], found.boxes), (target["labels"], found.labels), strict=True
            ):
                row.append(("", with_frames(pixels, boxes, [colours[int(label)] for label in labels])))
        title = "Pictures with their boxes, and what was found"
        plot_map([*rows[0], *rows[1]], path, title=title, columns=len(rows[0]), side=2.0)


# The matching and the losses of OWL-ViT, as Scenic trains it (`scenic/projects/owl_vit`)

# For each picture {"boxes": (M, 4), "labels": (M,) or (M, C)}, or what `pad_boxes` has made of these.
Targets = Sequence[Mapping[str, Any]] | Mapping[str, Any]
Output = Mapping[str, Any]  # {"logits": (N, P, C), "boxes": (N, P, 4)}
_LEAST = 1e-6  # added to areas that are divided by


def pad_boxes(targets: Targets, classes: int, multiple: int = 1) -> dict[str, np.ndarray]:
    """Returns targets as arrays of one shape: `boxes` `(N, T, 4)`, `labels` `(N, T, C)` and `valid` `(N, T)`."""
    if isinstance(targets, Mapping):
        return dict(targets)
    pairs = [(to_numpy(target["boxes"]).reshape(-1, 4), to_numpy(target["labels"])) for target in targets]
    rows: dict[str, list[np.ndarray]] = {"boxes": [], "labels": []}
    for boxes, labels in pairs:
        hot = labels.ndim == 2
        if labels.shape != ((len(boxes), classes) if hot else (len(boxes),)):
            raise ValueError(
                f"targets must have boxes (M, 4) and labels (M,) or (M, {classes}), but have {boxes.shape} and "
                f"{labels.shape}."
            )
        if not hot and len(labels) and not ((labels % 1 == 0).all() and 0 <= labels.min() <= labels.max() < classes):
            raise ValueError(f"labels must be integers from 0 to {classes - 1}, but {labels.tolist()} was given.")
        if not np.isfinite(boxes).all() or (boxes < 0).any():
            raise ValueError(f"boxes must be finite, with sizes of at least 0, but {boxes.tolist()} was given.")
        rows["boxes"].append(boxes.astype("float32"))
        rows["labels"].append((labels if hot else np.eye(classes)[labels.astype(int)]).astype("float32"))
    padded = {name: filled_up(of, multiple) for name, of in rows.items()}
    return padded | {"valid": filled_up([np.zeros(len(boxes), "int32") for boxes, _ in pairs], multiple, PADDING)}


def corners(boxes: Any) -> Any:
    """Left, top, right and bottom of boxes that are given as centre and size."""
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
    output = exact(outputs, ("logits", "boxes"))
    padded = {name: ops.convert_to_tensor(x) for name, x in pad_boxes(targets, output["logits"].shape[-1]).items()}
    return {name: x if name == "valid" else ops.cast(x, output["logits"].dtype) for name, x in padded.items()}, output


class DetectionLoss:
    """The loss of OWL-ViT: each box is given to one patch, whose classes and box are compared with it.

    `loss(targets, outputs)` is the sum of `class_weight * classes`, `box_weight * boxes` and `giou_weight * giou`, a
    scalar that can be differentiated. `classes` is the sigmoid focal loss of all patches, divided by the number of
    labels that have a patch. `boxes` is the L1 distance of corners, and `giou` is 1 minus the generalized intersection
    over union; both are means over matched pairs. Matching uses the same factors, without a gradient (Scenic,
    `projects/owl_vit/losses.py`).

    Args:
        focal_alpha: Weight of positive classes in the focal loss; negative classes have 1 minus it.
        focal_gamma: Exponent of the focal loss: the larger it is, the less confident predictions count.
        class_weight: Factor of the focal loss.
        box_weight: Factor of the L1 distance.
        giou_weight: Factor of `giou`.
        normalization: `"per_example"`: divides each picture by its own counts, then averages; `"global"`: divides by
            the counts of the batch.

    Call arguments:
        targets: For each picture `{"boxes": (M, 4), "labels": (M,)}`, centre and size in 0..1, and the class of each
            box, or `(M, C)` of 0 and 1 where a box has several; M may be 0.
        outputs: What a `Detector` returns.

    Raises:
        ImportError: if SciPy is not installed (the extra `segmentation`).
        ValueError, KeyError: if a number is out of its range; at call time, if targets or outputs do not fit.

    Examples:
        >>> outputs = {"logits": np.zeros((1, 4, 2)), "boxes": np.full((1, 4, 4), 0.5)}
        >>> sorted(training.DetectionLoss().terms([{"boxes": [[0.5, 0.5, 0.5, 0.5]], "labels": [1]}], outputs))
        ['boxes', 'classes', 'giou']
    """

    @checked
    def __init__(
        self,
        focal_alpha: Share = 0.3,
        focal_gamma: From0 = 2.0,
        class_weight: From0 = 1.0,
        box_weight: From0 = 1.0,
        giou_weight: From0 = 1.0,
        normalization: Literal["per_example", "global"] = "per_example",
    ) -> None:
        require_packages("Matching", ("scipy",), "segmentation")
        self.alpha, self.gamma, self.normalization = focal_alpha, focal_gamma, normalization
        self.weights = {"classes": class_weight, "boxes": box_weight, "giou": giou_weight}

    def __call__(self, targets: Targets, outputs: Output) -> Any:
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
    """Returns a `Match` for each picture: patch `queries[i]` gets box `targets[i]`, at the lowest total cost.

    `targets`, `outputs` and errors are as in `DetectionLoss`; `loss` gives the weights of the `cost` `(P, M)`.

    Examples:
        >>> outputs = {"logits": np.zeros((1, 2, 1)), "boxes": [[[0.5, 0.5, 1, 1], [0.2, 0.2, 0.1, 0.1]]]}
        >>> training.match_boxes([{"boxes": [[0.2, 0.2, 0.2, 0.2]], "labels": [0]}], outputs)[0].queries
        array([1])
    """
    padded, output = _tensors(targets, outputs)
    return matches(_costs(loss or DetectionLoss(), padded, output), padded["valid"])
