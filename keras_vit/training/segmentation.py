"""Training of a linear head on the patches of any Vision Transformer, which finds the class of every pixel.

The recipes are those with which the heads of DINOv2 and DINOv3 were trained.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import check_choice, listing, pair
from keras_vit._options import option, refuse
from keras_vit.data import ImageStream, MaskedImages, has_test_split, open_masks
from keras_vit.data.masks import names_beside
from keras_vit.layers import resize
from keras_vit.models import EoMT, LinearSegmenter, LinearSegmenterConfig
from keras_vit.models.changes import copy_state
from keras_vit.preprocessing.images import centre_margins
from keras_vit.segmentation import evaluate, segment
from keras_vit.segmentation.segmenting import plot_beside_labels
from keras_vit.training import tasks
from keras_vit.training.distribution import Sharing, check_equal_parts
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
    from keras_vit.training.eomt import EoMTSegmentation

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

    def data(self, given: tasks.Given) -> tasks.Given:
        """Returns what is given with masks, those to evaluate on in the order of those to train on."""
        settings, validation = given.settings, given.validation
        known = {"ignore": self.ignore, "reduce_zero_label": self.reduce_zero_label}
        masks = open_masks(given.data, classes=settings.classes, class_names=settings.class_names, **known)
        if isinstance(given.model, LinearSegmenter):
            masks = masks.in_order(given.model.config.class_names)
        masks.check_classes_occur(settings.on_bad_image)
        named = {"classes": masks.classes, "class_names": masks.class_names}
        if isinstance(validation, Mapping) and not has_test_split(validation):
            raise ValueError("validation must be pictures with masks, as data is, or a share such as 0.1.")
        if not given.is_share:
            if not isinstance(validation, MaskedImages):
                known = {"ignore": masks.ignore, "reduce_zero_label": masks.reduce_zero_label}
                validation = open_masks(validation, **known, **({} if names_beside(validation) else named))
            validation = validation.in_order(masks.class_names)
        return given.changed(data=masks, validation=validation, **named)

    def model(self, given: tasks.Given, images: ImageStream) -> LinearSegmenter:
        """Returns a copy of a segmenter, or a new head on a copy of the model, for crops of the recipe's size."""
        source, recipe = tasks.loaded(given), given.recipe
        if isinstance(source, LinearSegmenter):
            return self._with_its_head(source, recipe, images)
        if isinstance(source, EoMT):
            raise TypeError(
                f"The recipe {recipe.name} trains a linear head. For an EoMT give one of segmentation/eomt_..."
            )
        if not self.frozen and recipe.lora_rank is not None:
            raise ValueError(
                "frozen=False trains the backbone, but with lora_rank its adapters train. Give one of the two."
            )
        tasks.require_backbone(source, "a LinearSegmenter")
        crop, size = _crop_and_input(recipe, source)
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
        crop, size = _crop_and_input(recipe, source)
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

        return model, MaskLoss(run.given.data.ignore), None, batch

    def measure(self, run: tasks.Run) -> "MeasuredMasks":
        return MeasuredMasks(run.model, run.tests, run.sharing, run.given.data.ignore)


def _crop_and_input(recipe: Recipe, model: Any) -> tuple[tuple[int, int], dict[str, Any]]:
    """Returns the size of the recipe's crops, and the change of a config for inputs as large, in whole patches."""
    crop = pair("image_size", recipe.image_size)
    if model.config.dynamic:
        return crop, {}
    margins = centre_margins(crop, model.config.patch_size)
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
    """The mean intersection over union during a run; each process measures its part of the pictures.

    On JAX in several processes the run's model is one of all of them, and each measures with a copy of its own.
    """

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
        """Writes a picture file: the first pictures, their labels and what the model finds."""
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
