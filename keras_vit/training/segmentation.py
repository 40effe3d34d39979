"""Training of segmentation: a linear head on any Vision Transformer, as of DINOv2 and DINOv3, or an EoMT."""

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import check_choice, check_type, listing, matches, pair, to_numpy
from keras_vit._options import option, refuse
from keras_vit._processes import current, share
from keras_vit.data import ImageStream, MaskedImages, has_test_split, open_masks, open_segments
from keras_vit.data.masks import names_beside
from keras_vit.data.segments import SEGMENTS
from keras_vit.detection import MeanAP, found_in
from keras_vit.layers import resize
from keras_vit.models import (
    EoMT,
    EoMTConfig,
    LinearSegmenter,
    LinearSegmenterConfig,
    VisionTransformer,
    weights_by_path,
)
from keras_vit.models.changes import copy_state
from keras_vit.preprocessing.images import centre_margins
from keras_vit.segmentation import MeanIoU, PanopticQuality, evaluate, segment
from keras_vit.segmentation.plots import plot_beside_labels
from keras_vit.training import tasks
from keras_vit.training.distribution import Sharing, check_equal_parts
from keras_vit.training.mask_classification import MaskClassificationLoss, Targets, pad_targets
from keras_vit.training.recipes import Recipe
from keras_vit.training.trainable import freeze

# Arguments that are not for every head, or not for a model that has one.
_NEW = {"head": ("linear",), "model": ("VisionTransformer",)}
_OF_HEADS = {
    "layers": option(1, when=_NEW),
    "pictures": option("dinov2", when=_NEW),
    "frozen": option(True, when=_NEW),
    "drop_path": option(0.0, when=_NEW),
    "stuff_classes": option((), when={"head": ("EoMT",)}),
}


def segmentation_task(has_queries: bool, ignore: int, reduce_zero_label: bool, heads: Mapping[str, Any]) -> tasks.Task:
    """Returns the task of an EoMT or of a linear head; ValueError for arguments that are for the other one."""
    check_choice("layers", heads["layers"], (1, 4))
    refuse(_OF_HEADS, heads, {"head": "EoMT" if has_queries else "linear"})
    if not has_queries:
        return LinearSegmentation(ignore, reduce_zero_label, heads["layers"], heads["pictures"], heads["frozen"])
    return EoMTSegmentation(ignore, reduce_zero_label, heads["stuff_classes"])


@dataclasses.dataclass(frozen=True)
class LinearSegmentation(tasks.Task):
    """Training of a linear head on pictures with masks; `finetune_segmentation` makes it."""

    ignore: int = 255
    reduce_zero_label: bool = False
    layers: int = 1
    pictures: str = "dinov2"
    frozen: bool = True

    name = "segmentation"
    title = "segmentation"
    objective = "segmentation"
    targets = ("mask",)
    picture = "masks.png"

    def data(self, request: tasks.Request, recipe: Recipe) -> tasks.Request:
        """Returns what is given with masks, those to evaluate on in the order of those to train on."""
        settings, validation = request.settings, request.validation
        known = {"ignore": self.ignore, "reduce_zero_label": self.reduce_zero_label}
        masks = open_masks(request.data, classes=settings.classes, class_names=settings.class_names, **known)
        if isinstance(request.model, LinearSegmenter):
            masks = masks.in_order(request.model.config.class_names)
        masks.check_classes_occur(settings.on_bad_image)
        named = {"classes": masks.classes, "class_names": masks.class_names}
        if isinstance(validation, Mapping) and not has_test_split(validation):
            raise ValueError("validation must be pictures with masks, as data is, or a share such as 0.1.")
        if not request.is_share:
            if not isinstance(validation, MaskedImages):
                known = {"ignore": masks.ignore, "reduce_zero_label": masks.reduce_zero_label}
                validation = open_masks(validation, **known, **({} if names_beside(validation) else named))
            validation = validation.in_order(masks.class_names)
        return request.changed(data=masks, validation=validation, **named)

    def model(self, request: tasks.Request, recipe: Recipe, images: ImageStream) -> LinearSegmenter:
        """Returns a copy of a segmenter, or a new head on a copy of the model, for crops of the recipe's size."""
        source = tasks.loaded(request, lambda config: _crop_and_input(recipe, config)[1].get("image_size"))
        if isinstance(source, LinearSegmenter):
            return self._with_its_head(source, recipe, images)
        if isinstance(source, EoMT):
            raise TypeError(f"The recipe {recipe.name} is not for an EoMT. Give one of segmentation/eomt_...")
        if not self.frozen and recipe.lora_rank is not None:
            raise ValueError("frozen=False trains the backbone, but lora_rank trains its adapters. Give only one.")
        check_type("model", source, VisionTransformer, "a VisionTransformer or a LinearSegmenter")
        crop, size = _crop_and_input(recipe, source.config)
        backbone = tasks.bare_backbone(source, **size, drop_path=recipe.drop_path)
        if self.layers > backbone.config.depth:
            raise ValueError(f"layers={self.layers} shall be read, but the model has {backbone.config.depth} blocks.")
        config = LinearSegmenterConfig(
            backbone=backbone.config,
            classes=images.classes,
            class_names=tasks.names_of(images),
            blocks=tuple(range(backbone.config.depth))[-self.layers :],
            dropout=recipe.dropout,
            pictures=self.pictures,
            short_side=max(crop),  # no side of a picture is shorter than that of the windows
            crop_size=crop,
            stride=tuple(side // 2 if self.layers > 1 else side * 2 // 3 for side in crop),  # as of the published heads
        )
        model = LinearSegmenter(config, name=backbone.name, dtype=backbone.dtype_policy)
        copy_state(backbone, model.backbone)
        if self.frozen and recipe.lora_rank is None:
            freeze(model, [layer.name for layer in model.backbone.layers if layer.trainable_weights])
        return model

    def _with_its_head(self, source: LinearSegmenter, recipe: Recipe, images: ImageStream) -> LinearSegmenter:
        """Returns a copy for crops of the recipe's size; ValueError for other classes or what only a new head takes."""
        if source.config.classes != images.classes:
            raise ValueError(f"model has {source.config.classes} classes, but the data has {images.classes}.")
        names, known = tasks.names_of(images), source.config.class_names
        if names and known and names != known:
            raise ValueError(
                f"model has the classes {listing(known)}, but the data {listing(names)}, in this order. Load the "
                "model and give it in place of its file: then they are matched by name."
            )
        refuse(_OF_HEADS, {**vars(self), "drop_path": recipe.drop_path}, {"model": "LinearSegmenter"})
        crop, size = _crop_and_input(recipe, source.config)
        if crop != source.config.crop_size:  # no side of a picture may be shorter than that of the windows
            size |= {"short_side": max(crop), "stride": tuple(map(min, source.config.stride, crop))}
        return source.with_config(**size, crop_size=crop, dropout=recipe.dropout, class_names=names or known)

    def loss(self, run: tasks.Run) -> tasks.Learning:
        """Returns the cross-entropy of pixels, on crops that are filled up to whole patches as in DINOv2."""
        model, images = run.model, run.images
        check_equal_parts(model, images)  # batch normalisation takes the mean over the whole batch
        config = model.config
        nothing = 255 * np.asarray(config.pipeline.mean, "float32") if config.include_preprocessing else np.float32(0)

        def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
            pixels, masks = images.batch(number)
            crops = tasks.as_input(model, pixels)
            height, width = crops.shape[1:3]
            (top, bottom), (left, right) = centre_margins((height, width), config.patch_size)
            if not (bottom or right):
                return crops, masks
            padded = np.empty((len(crops), top + height + bottom, left + width + right, crops.shape[3]), crops.dtype)
            padded[...] = nothing
            padded[:, top : top + height, left : left + width] = crops
            return padded, masks

        return model, MaskLoss(run.data.ignore), [], batch

    def measure(self, run: tasks.Run) -> "MeasuredMasks":
        return MeasuredMasks(run.model, run.tests, run.sharing, run.data.ignore)


def _crop_and_input(recipe: Recipe, config: Any) -> tuple[tuple[int, int], dict[str, Any]]:
    """Returns the size of the recipe's crops, and the change of a config for inputs as large, in whole patches."""
    crop = pair("image_size", recipe.image_size)
    if config.dynamic:
        return crop, {}
    margins = centre_margins(crop, config.patch_size)
    return crop, {"image_size": tuple(side + sum(margin) for side, margin in zip(crop, margins, strict=True))}


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskLoss(keras.losses.Loss):
    """Cross-entropy per pixel, with logits resized to the masks. In the mean, pixels without a class count as 0.

    The same mean as in mmsegmentation (`avg_non_ignore=False`) and DINOv3. Masks `(batch, height, width)` of integers,
    logits `(batch, rows, columns, classes)`.

    Args:
        ignore: The value in the mask that marks pixels without a class.
        **kwargs: `reduction`, `name` and `dtype`, as for every loss of Keras.

    Examples:
        >>> loss = training.MaskLoss()
        >>> round(float(loss(np.array([[[0, 255]]]), np.zeros((1, 1, 2, 2), "float32"))), 4)  # log(2) / 2
        0.3466
    """

    def __init__(self, ignore: int = 255, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ignore = ignore

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the loss of each picture, `(batch,)`: the mean over its pixels, where those to ignore count as 0."""
        labels = ops.cast(y_true, "int32")
        dtype = keras.backend.result_type(y_pred.dtype, "float32")
        logits = resize(ops.cast(y_pred, dtype), ops.shape(labels)[1:3], "half_pixel")
        counts = labels != self.ignore
        losses = keras.losses.sparse_categorical_crossentropy(ops.where(counts, labels, 0), logits, from_logits=True)
        return ops.mean(ops.where(counts, losses, 0), axis=(1, 2))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "ignore": self.ignore}


class MeasuredMasks(tasks.Measured):
    """The mean intersection over union during a run; each process measures its part, on JAX with a copy of its own."""

    def __init__(self, model: LinearSegmenter, images: ImageStream, sharing: Sharing, ignore: int) -> None:
        super().__init__(model, images, sharing)
        self._ignore, self._copy = ignore, model  # the copy that this process measures with

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Returns `mean_iou` and `pixel_accuracy` of the run's model over all processes; `model` shares its weights."""
        with self._alone():
            if self.processes.joint and self._copy is self.model:
                self._copy = self.model.with_config()  # compiled once
            elif self.processes.joint:
                copy_state(self.model, self._copy)
            settings = {"ignore": self._ignore, "distribution": self.distribution, "progress": False}
            result = evaluate(self._copy, self.images, **settings)
        return {"mean_iou": result.mean_iou, "pixel_accuracy": result.pixel_accuracy}

    def draw(self, path: Path) -> None:
        classes = {k: k for k in range(self.model.config.classes) if k != self._ignore}
        with self._alone():
            pairs = itertools.islice(self.pairs, tasks.SHOWN)
            shown = [(one, ids, classes, segment(self._copy, one, task="semantic")) for one, ids in pairs]
        plot_beside_labels(shown, path)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Takes Keras's distribution away within, if it is joint: each process computes something for itself."""
        distribution = keras.distribution.distribution()
        if self.processes.joint:
            keras.distribution.set_distribution(None)
        try:
            yield
        finally:
            keras.distribution.set_distribution(distribution)


# An EoMT: masked attention, one update of the weights, and whole runs

QUERIES = 100
_DRAWS = 6  # what tells these random numbers from those of the data


def mask_probabilities(step: Any, starts: Sequence[int], ends: Sequence[int], power: float = 0.9) -> np.ndarray:
    """Returns the probability of masked attention in each block with queries, float32 `(blocks,)`.

    From the update in `starts` to that in `ends`, it falls from 1 to 0 as a polynomial of exponent `power`. `step` is
    the update, counted from 0. Raises ValueError unless each end is later than its start.

    Examples:
        >>> training.mask_probabilities(150, starts=[100, 200], ends=[200, 300], power=1.0).tolist()
        [0.5, 1.0]
    """
    first, last = np.asarray(starts, "float64"), np.asarray(ends, "float64")
    if first.shape != last.shape or (first >= last).any():
        raise ValueError(f"Each of ends must be later than its start, but starts={starts} and ends={ends} were given.")
    left = np.clip(1 - (step - first) / (last - first), 0, 1)
    return (left**power).astype("float32")


def mask_windows(steps: int, blocks: int, first: int | None = None) -> tuple[list[int], list[int]]:
    """Returns the updates in which the probability of masks of each block begins to fall, and those where it is 0."""
    # As the authors have it: of `steps` updates each fall takes a sixth, and the `blocks` begin evenly from the end of
    # the first sixth to that of the fourth. Where `first` is given, the first block's fall is from update 0 to `first`
    # instead, at most to the end (DINOv3).
    sixth = steps / 6
    starts = [round(start) for start in np.linspace(sixth, 4 * sixth, blocks)]
    ends = [max(round(start + sixth), start + 1) for start in starts]
    if first is not None:
        starts[0], ends[0] = 0, max(1, min(first, steps))
    return starts, ends


def predictions(
    model: EoMT, images: Any, mask_probability: Any = 1.0, draws: Any = None, rope_scale: Any = None
) -> list[dict[str, Any]]:
    """Returns the predictions of an EoMT in training, before each block with queries and after the last one.

    They are logits, `{"masks": (N, Q, rows, columns), "classes": (N, Q, classes + 1)}`.

    Args:
        model: An `EoMT`; TypeError for another model.
        images: Normalised, as `model.predict` takes them.
        mask_probability: Probability that a query attends only inside its mask, a number or one for each block with
            queries.
        draws: Uniform numbers `(blocks, batch, queries)`; ValueError without them for probabilities between 0 and 1.
        rope_scale: Factor of rotary coordinates; DINOv3's authors draw one for each batch, from 0.5 to 2.

    Examples:
        >>> len(training.predictions(keras_vit.EoMT(eomt_config), small_images)) == eomt_config.query_blocks + 1
        True
    """
    check_type("model", model, EoMT, "an EoMT")
    return model.predictions(images, mask_probability, draws, rope_scale)


def segmentation_step(
    model: EoMT,
    optimizer: Any,
    loss: MaskClassificationLoss,
    images: Any,
    targets: Targets,
    points: Any = None,
    mask_probability: Any = 1.0,
    draws: Any = None,
    rope_scale: Any = None,
) -> dict[str, float]:
    """Trains an EoMT on one batch, in place, for your own training loop; `finetune_segmentation` is a whole run.

    Returns `loss`, and `gradient_norm` before clipping (NaN of an optimizer that does not keep it). `optimizer` is a
    Keras optimizer. `targets` and `points` are as `loss` takes them, the rest and the errors as in `predictions`.

    Examples:
        >>> model, loss = keras_vit.EoMT(eomt_config), training.MaskClassificationLoss(eomt_config.classes, points=8)
        >>> target = {"masks": np.ones((1, 4, 4), bool), "labels": [1]}
        >>> sorted(training.segmentation_step(model, training.AdamW(), loss, small_images, [target] * 4))
        ['gradient_norm', 'loss']
    """
    trained = tasks.ComputesLoss(
        model,
        lambda inputs, training: predictions(model, inputs, mask_probability, draws, rope_scale),
        lambda _, found: loss(targets, found, points),
    )
    trained.compile(optimizer, run_eagerly=True, auto_scale_loss=False)
    value = trained.train_on_batch(images, np.zeros(len(images)))
    norm = getattr(optimizer, "gradient_norm", None)
    return {"loss": float(value), "gradient_norm": float("nan") if norm is None else float(to_numpy(norm.value))}


@dataclasses.dataclass(frozen=True)
class EoMTSegmentation(tasks.Task):
    """Training of an EoMT on pictures with segments; `finetune_segmentation` makes it."""

    ignore: int = 255
    reduce_zero_label: bool = False
    stuff: tuple[int, ...] = ()  # numbers of the classes without single things; none: those that the data names

    name = "eomt"
    title = "segmentation with queries"
    objective = "segmentation"
    targets = (SEGMENTS.name,)
    loss_name = "loss of masks, Dice and classes"
    picture = "masks.png"

    def data(self, request: tasks.Request, recipe: Recipe) -> tasks.Request:
        settings, validation = request.settings, request.validation
        known = {"ignore": self.ignore, "reduce_zero_label": self.reduce_zero_label}
        segments = open_segments(request.data, classes=settings.classes, class_names=settings.class_names, **known)
        if segments.masks is not None:
            segments.masks.check_classes_occur(settings.on_bad_image, queries=True)
        if self.stuff and segments.task == "semantic":
            raise ValueError(f"stuff_classes={self.stuff} is for single things, but semantic masks have none.")
        segments = dataclasses.replace(segments, stuff=self.stuff or segments.stuff)
        PanopticQuality(segments.classes, segments.stuff)  # refuses other numbers before anything is trained
        if not request.is_share:
            named = {"classes": segments.classes, "class_names": segments.class_names}
            validation = open_segments(validation, **named, **known)
        return request.changed(data=segments, validation=validation, classes=None, class_names=None)

    def model(self, request: tasks.Request, recipe: Recipe, images: ImageStream) -> EoMT:
        """Returns a copy of a given EoMT, with a new class head for other classes, or one on a VisionTransformer."""
        task = images.task
        if task == "instance" and request.data.stuff:
            task = "panoptic"
        size = pair("image_size", recipe.image_size)
        if size[0] != size[1]:
            raise ValueError(f"image_size must be a square for an EoMT, but {size} was given.")
        source = tasks.loaded(request, lambda config: _size_in_patches(size, config.patch_size))
        names = tasks.names_of(images)
        if isinstance(source, EoMT):
            known = source.config
            if "queries" in recipe.given and recipe.queries != known.queries:
                raise ValueError(f"queries={recipe.queries} is for a new EoMT, but this one has {known.queries}.")
            if names != known.class_names and {*(names or ())} == {*(known.class_names or (None,))}:
                raise ValueError(
                    f"The classes of the data are those of the model, {listing(known.class_names)}, in another order. "
                    "Pass class_names= in the model's order, or put a classes.txt into the folder."
                )
            if images.classes == known.classes and (names is None or known.class_names in (None, names)):
                return source.with_config(image_size=size, task=task, class_names=names or known.class_names)
            source = source.with_config(image_size=size, task=task)
            config = source.config.replace(classes=images.classes, class_names=names)
            model = EoMT(config, name=source.name, dtype=source.backbone.dtype_policy)
            copy_state(source, model, {"class_head"})
            reinitialise_layers(model, ("class_head",))
            return model
        model = new_eomt(source, size, images.classes, names, task, recipe.queries or QUERIES)
        tasks.warn_of_many_patches(recipe, model.config.backbone.grid_size)
        return model

    def loss(self, run: tasks.Run) -> tasks.Learning:
        """Returns the model that computes the loss, of masked attention and random points that the seed draws."""
        model, config, images, recipe = run.model, run.model.config, run.images, run.recipe
        check_equal_parts(model, images)  # the loss is a mean over all masks of a part
        starts, ends = mask_windows(recipe.steps, config.query_blocks, recipe.first_mask_steps)

        def batch(number: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
            pictures, targets = images.batch(number)
            # Those of the whole batch, of which this process has a part.
            whole, rng = images.batch_size, np.random.default_rng([run.seed, _DRAWS, number, 0])
            count, rows = len(pictures), share(whole, images.shard)
            probability = mask_probabilities(number // recipe.accumulate, starts, ends, recipe.power)
            inputs = {
                "images": np.asarray(tasks.as_input(model, pictures), "float32"),
                "probability": np.tile(probability, (count, 1)),
                "draws": rng.random((whole, config.query_blocks, config.queries), dtype="float32")[rows],
                # DINOv3's authors draw one for each batch.
                "scale": np.full((count,), np.exp(rng.uniform(-math.log(2), math.log(2))), "float32"),
            }
            seeds = rng.integers(0, 2**31, (whole, config.query_blocks + 1, 2)).astype("int32")
            return inputs, pad_targets(targets, tasks.PADDED_TO) | {"seeds": seeds[rows]}

        terms = MaskClassificationLoss(config.classes, recipe.points)
        answer, loss = functools.partial(answers_of, model), functools.partial(loss_of, terms, config.queries)
        return tasks.ComputesLoss(model, answer, loss), None, [], batch

    def measure(self, run: tasks.Run) -> "MeasuredSegments":
        return MeasuredSegments(run.model, run.tests, run.sharing, run.data.stuff)


def _size_in_patches(size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    """The size, or for patches that do not divide it that of as many patches as it has of 16 pixels."""
    divides = size[0] % 16 or not any(side % n for side, n in zip(size, patch, strict=True))
    return size if divides else (size[0] // 16 * patch[0], size[1] // 16 * patch[1])


def new_eomt(source: Any, size: tuple[int, int], classes: int, names: Any, task: str, queries: int) -> EoMT:
    """Returns an EoMT for these classes and a task, on a copy of a VisionTransformer."""
    # There are as many blocks with queries as in the published models of that depth.
    check_type("model", source, VisionTransformer, "a VisionTransformer or an EoMT")
    keeps = size == _size_in_patches(size, source.config.patch_size)
    backbone = tasks.bare_backbone(source, image_size=size, **({} if keeps else {"patch_size": 16}))
    depth = backbone.config.depth
    blocks = 3 if depth <= 12 else 4 if depth < 40 else 5
    config = EoMTConfig(
        backbone=backbone.config,
        classes=classes,
        class_names=names,
        queries=queries,
        query_blocks=min(blocks, depth),
        upscale_blocks=max(1, int(math.log2(max(backbone.config.patch_size))) - 2),
        task=task,
    )
    model = EoMT(config, name=backbone.name, dtype=backbone.dtype_policy)
    copy_state(backbone, model.backbone)
    reinitialise_layers(model, ("queries", "mask_head", "class_head", "upscale_*"))
    return model


def reinitialise_layers(model: EoMT, layers: Sequence[str]) -> None:
    """Draws new values, as PyTorch starts them, for the weights of layers that a pattern fits, but normalisations."""
    width = model.config.backbone.width
    for name, weight in weights_by_path(model).items():
        if not any(matches(name.partition("/")[0], pattern) for pattern in layers) or "/norm/" in name:
            continue
        if name.startswith("queries"):
            weight.assign(keras.random.normal(weight.shape))
            continue
        bound = 1 / math.sqrt(width)
        if "/conv1/" in name:  # PyTorch counts four outputs of each input there
            bound = 1 / math.sqrt(4 * width)
        elif "/conv2/" in name:
            bound = 1 / 3
        weight.assign(keras.random.uniform(weight.shape, -bound, bound))


def answers_of(model: EoMT, inputs: Any, training: bool | None) -> list[dict[str, Any]]:
    """The `predictions` of a batch: `images`, `probability`, `draws`, and `scale` of rotary coordinates."""
    draws = ops.transpose(inputs["draws"], (1, 0, 2))
    scale = inputs["scale"][0] if model.config.backbone.rotary_embedding == "dinov3" else None
    return model.predictions(inputs["images"], inputs["probability"], draws, scale, training)


def loss_of(loss: MaskClassificationLoss, queries: int, targets: Any, predicted: list[dict[str, Any]]) -> Any:
    """Returns the loss of predictions with padded targets, a scalar."""
    # In several processes, terms are divided by the mean of what each process would divide by: so their mean is the
    # loss of one process.
    pairs, share_of_weights, processes = None, 1.0, current()
    if processes.apart:
        own = np.minimum((ops.convert_to_numpy(targets["labels"]) >= 0).sum(-1), queries).sum()
        pairs = float(processes.total(np.float64(own))) / processes.count
        without = loss.no_object * queries * len(targets["labels"])
        weights = [count * (1 - loss.no_object) + without for count in (own, pairs)]
        share_of_weights = float(weights[0] / weights[1])
    total: Any = 0.0
    for i, prediction in enumerate(predicted):
        seed = ops.cast(targets["seeds"][:, i], "uint32")
        (terms,) = loss.terms(targets, [prediction], num_masks=pairs, seed=seed)
        total = total + loss.weighted(terms | {"classes": terms["classes"] * share_of_weights})
    return total


class MeasuredSegments(tasks.Measured):
    """Figures on pictures at their own sizes: mean IoU of semantic masks, or the panoptic quality of single things."""

    def __init__(self, model: EoMT, images: ImageStream, sharing: Sharing, stuff: Sequence[int]) -> None:
        super().__init__(model, images, sharing)
        self._stuff = stuff
        self._shown: list[Any] = []  # of the last evaluation

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Returns figures for the log, exact over all processes, and keeps the first pictures for `draw`."""
        config, task = self.model.config, self.images.task
        semantic = task == "semantic"
        # In data of instances all are labelled, so what is found beside them is a mistake; panoptic maps leave gaps.
        background = 0 if task == "instance" else None
        # No class is -1, as one may be 255.
        metric: Any = MeanIoU(config.classes, -1) if semantic else PanopticQuality(config.classes, self._stuff)
        masks = MeanAP(config.classes, "masks") if task == "instance" else None
        self._shown = []
        for picture, target in self.pairs:
            ids = np.zeros(picture.shape[:2], "int64")
            for i, mask in enumerate(target["masks"]):
                ids[mask] = i + 1
            seen = set(np.unique(ids).tolist())
            classes = {i + 1: int(k) for i, k in enumerate(target["labels"]) if i + 1 in seen}
            if semantic:
                found = segment(self.model, picture, task="semantic")
                metric.add(found.map, np.array([-1, *target["labels"]])[ids])
            else:
                crowd = {i + 1 for i in np.flatnonzero(target.get("crowd", ())).tolist()} & seen
                found = segment(self.model, picture, task="panoptic", stuff_classes=self._stuff)
                metric.add(found, ids, classes, crowd, background)
            if masks is not None:
                masks.add(found_in(self.model, picture), target)
            if len(self._shown) < tasks.SHOWN:
                self._shown.append((picture, ids, classes, found))
        result = metric.result(self.distribution)
        if semantic:
            return {"mean_iou": result.mean_iou, "pixel_accuracy": result.pixel_accuracy}
        # PQ is the product of the other two, class by class: how well found segments overlap, and F1 of finding them.
        found = {"panoptic_quality": result.pq, "segmentation_quality": result.sq, "recognition_quality": result.rq}
        if masks is not None:
            found["mask_ap"] = float(np.nan_to_num(masks.result(self.distribution).ap))
        return found

    def draw(self, path: Path) -> None:
        plot_beside_labels(self._shown, path)
