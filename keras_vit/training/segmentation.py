"""`finetune_segmentation`: a class for every pixel, by a linear head on the patches of any Vision Transformer.

The recipes are those with which the heads of DINOv2 and DINOv3 were trained.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import DType, Source, check_choice, listing, pair
from keras_vit._options import option, refuse
from keras_vit._processes import ALONE_BY_NAME, Processes
from keras_vit.data import ImageStream, MaskedImages, has_test_split, open_masks, open_segments
from keras_vit.data.masks import names_beside
from keras_vit.layers import resize
from keras_vit.models import EoMT, LinearSegmenter, LinearSegmenterConfig, VisionTransformer
from keras_vit.models.changes import copy_state
from keras_vit.models.dense_config import WITHOUT_TOP
from keras_vit.preprocessing.windows import centre_margins
from keras_vit.segmentation import evaluate, segment
from keras_vit.segmentation.results import plot_beside_labels
from keras_vit.training.distribution import Batch, Sharing, check_equal_parts
from keras_vit.training.eomt import SHOWN, EoMTSegmentation
from keras_vit.training.recipes import Recipe
from keras_vit.training.recipes import recipe as recipe_of_name
from keras_vit.training.run import Trained, finetune
from keras_vit.training.tasks import Task, as_input, split_options
from keras_vit.training.trainable import freeze
from keras_vit.zoo import load


def finetune_segmentation(
    model: LinearSegmenter | EoMT | VisionTransformer | Source,
    data: Any,
    recipe: Recipe | str = "segmentation/dinov2_linear",
    *,
    validation: Any = None,
    output: str | os.PathLike[str] | None = None,
    ignore: int = 255,
    reduce_zero_label: bool = False,
    layers: int = 1,
    pictures: str = "dinov2",
    frozen: bool = True,
    stuff_classes: Sequence[int] = (),
    **options: Any,
) -> Trained:
    """Trains a linear head that returns a class for every pixel, or an EoMT, on a copy of a Vision Transformer.

    A linear head is batch normalisation and one matrix, on tokens after the final norm, as DINOv2 and DINOv3 measure
    their features with. Recipes `segmentation/eomt_...` train an EoMT, whose queries find segments: classes, things or
    both. The run works like `finetune`: batch n is a function of the seed, and a killed run resumes.

    Args:
        model: A `VisionTransformer` or what `load` takes, which get a new head; or a `LinearSegmenter` with the classes
            of the data, which is trained further. Frozen layers and adapters are kept.
        data: What `open_masks` takes or returns: a folder with `images/` and `masks/`, pairs of arrays, a pipeline.
        recipe: As in `finetune`, with a `data.MaskAugmentation`. `lora_rank` trains adapters beside the head, and
            `dropout` applies to the head's inputs. Crops have the recipe's image size if you set it, otherwise the
            model's, and are padded to whole patches.
        validation: Pictures with masks, as `data`, or a share, as in `finetune`.
        output: As in `finetune`.
        ignore: As in `open_masks`, like the next.
        reduce_zero_label: Likewise.
        layers: How many of the last blocks a new head reads, 1 or 4.
        pictures: Whose rules resize pictures in evaluation, `"dinov2"` or `"dinov3"`.
        frozen: Whether to freeze the layers below a new head, except for adapters.
        stuff_classes: For an EoMT: numbers of the classes without single objects, for the panoptic quality; None for
            the data's.
        **options: Fields of `RunOptions` and of the recipe.

    With an EoMT's recipe, `model` may be an `EoMT`: its class head is reinitialised for other classes, and it takes the
    task of the data (panoptic with stuff classes). A `VisionTransformer` becomes an EoMT. All weights train, unless
    `freeze="backbone"`. `data` and `validation` are what `data.open_segments` takes or returns; `layers`, `pictures`
    and `frozen` are not used.

    Returns:
        As `finetune`; `mean_iou` is measured like `segmentation.evaluate`, at the pictures' own sizes.

    Raises:
        TypeError, ValueError: as `finetune` and `open_masks`; if the recipe has fields for classification only, the
            model has other classes than the data, or an argument is for the other kind of model.
        FloatingPointError, RuntimeError: as `finetune`.
        OSError: as `finetune`; if a folder or a file of `data` is missing (FileNotFoundError) or cannot be read.
        ImportError: if a package is missing: Pillow for files, pycocotools for COCO's masks, SciPy for an EoMT.

    Examples:
        >>> masks = (pixels, np.arange(4)[:, None, None] % 2 * np.ones((24, 24), "uint8"))
        >>> recipe = training.recipe("segmentation/dinov2_linear").replace(steps=1, batch_size=2, image_size=8)
        >>> done = training.finetune_segmentation(small, masks, recipe, verbose=False)
        >>> done.model.config.classes
        2
    """
    check_choice("layers", layers, (1, 4))
    changes, _ = split_options(options)
    chosen = (recipe if isinstance(recipe, Recipe) else recipe_of_name(recipe)).replace(**changes)
    is_eomt = "segments" in chosen.augmentation.targets
    given = {"layers": layers, "pictures": pictures, "frozen": frozen, "stuff_classes": tuple(stuff_classes)}
    refuse(_OF_HEADS, given, {"head": "EoMT" if is_eomt else "linear"})
    if is_eomt:
        reading = {name: options.pop(name, None) for name in ("classes", "class_names")}
        reading |= {"ignore": ignore, "reduce_zero_label": reduce_zero_label}
        segments = open_segments(data, **reading)
        if segments.masks is not None:
            segments.masks.check_classes_occur(options.get("on_bad_image", "stop"), queries=True)
        if len(stuff_classes) and segments.task == "semantic":
            raise ValueError(f"stuff_classes={stuff_classes} is for single things, but semantic masks have none.")
        if not isinstance(validation, (float, type(None))):
            reading |= {"classes": segments.classes, "class_names": segments.class_names}
            validation = open_segments(validation, **reading)
        queries = EoMTSegmentation(tuple(stuff_classes) or segments.stuff)
        return finetune(model, segments, recipe, validation=validation, output=output, task=queries, **options)
    classes, class_names = options.pop("classes", None), options.pop("class_names", None)
    masks = open_masks(
        data, classes=classes, class_names=class_names, ignore=ignore, reduce_zero_label=reduce_zero_label
    )
    if isinstance(model, LinearSegmenter):
        masks = masks.in_order(model.config.class_names)
    masks.check_classes_occur(options.get("on_bad_image", "stop"))
    if not isinstance(validation, (float, type(None))):
        validation = _masks_to_evaluate_on(validation, masks, masks.ignore, masks.reduce_zero_label)
    task = LinearSegmentation(masks.ignore, layers, pictures, frozen)
    options |= {"classes": masks.classes, "class_names": masks.class_names}
    return finetune(model, masks, recipe, validation=validation, output=output, task=task, **options)


# Arguments that are not for every head, or not for a model that has one.
_NEW = {"head": ("linear",), "model": ("VisionTransformer",)}
_OF_HEADS = {
    "layers": option(1, when=_NEW),
    "pictures": option("dinov2", when=_NEW),
    "frozen": option(True, when=_NEW),
    "drop_path": option(0.0, when=_NEW),
    "stuff_classes": option((), when={"head": ("EoMT",)}),
}


def _masks_to_evaluate_on(data: Any, masks: MaskedImages, ignore: int, reduce_zero_label: bool) -> MaskedImages:
    """Returns the data as masks with the classes of those that are trained on, in their order."""
    if isinstance(data, MaskedImages):
        return data.in_order(masks.class_names)
    if isinstance(data, Mapping) and not has_test_split(data):
        raise ValueError("validation must be pictures with masks, as data is, or a share such as 0.1.")
    names = {} if names_beside(data) else {"classes": masks.classes, "class_names": masks.class_names}
    return open_masks(data, **names, ignore=ignore, reduce_zero_label=reduce_zero_label).in_order(masks.class_names)


class LinearSegmentation(Task):
    """Training of a linear head on pictures with masks; `finetune_segmentation` makes it."""

    title = "segmentation"
    objective = "segmentation"
    targets = ("mask",)
    picture = "masks.png"

    def __init__(self, ignore: int, layers: int, pictures: str, frozen: bool) -> None:
        self.ignore, self.layers, self.pictures, self.frozen = ignore, layers, pictures, frozen

    def prepare_model(self, source: Any, recipe: Recipe, images: ImageStream, dtype: DType) -> LinearSegmenter:
        """Returns a copy of a segmenter, or a new head on a copy of the model, for crops of the recipe's size."""
        source = source if isinstance(source, keras.Model) else load(source, dtype=dtype)
        if isinstance(source, LinearSegmenter):
            return self._with_its_head(source, recipe, images)
        if isinstance(source, EoMT):
            raise TypeError(
                f"The recipe {recipe.name} trains a linear head. For an EoMT give one of segmentation/eomt_..."
            )
        if not isinstance(source, VisionTransformer):
            raise TypeError(
                f"model must be a VisionTransformer or a LinearSegmenter, but is a {type(source).__name__}."
            )
        if not self.frozen and recipe.lora_rank is not None:
            raise ValueError(
                "frozen=False trains the backbone, but with lora_rank its adapters train. Give one of the two."
            )
        if self.layers > source.config.depth:
            raise ValueError(f"layers={self.layers} shall be read, but the model has {source.config.depth} blocks.")
        crop, size = _crop_and_input(recipe, source)
        norm = {"final_norm": "tokens"} if source.config.final_norm == "pooled" else {}
        backbone = source.with_config(**WITHOUT_TOP, **norm, **size, drop_path=recipe.drop_path)
        config = LinearSegmenterConfig(
            backbone=backbone.config,
            classes=images.classes,
            class_names=None if images.class_names is None else tuple(images.class_names),
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
        names, known = images.class_names, source.config.class_names
        if names and known and tuple(names) != known:
            raise ValueError(
                f"model has the classes {listing(known)}, but the data {listing(names)}, in this order. Load the "
                "model and give it in place of its file: then they are matched by name."
            )
        refuse(_OF_HEADS, {**vars(self), "drop_path": recipe.drop_path}, {"model": "LinearSegmenter"})
        crop, size = _crop_and_input(recipe, source)
        if crop != source.config.crop_size:  # no side of a picture may be shorter than that of the windows
            size |= {"short_side": max(crop), "stride": tuple(map(min, source.config.stride, crop))}
        return source.with_config(
            **size, crop_size=crop, dropout=recipe.dropout, class_names=tuple(names) if names else known
        )

    def trained_model(self, model: LinearSegmenter) -> keras.Model:
        return model

    def loss_and_metric(self, recipe: Recipe, images: ImageStream) -> tuple[keras.losses.Loss, None]:
        return MaskLoss(self.ignore), None

    def batches(self, model: LinearSegmenter, images: ImageStream, seed: int) -> Batch:
        """A function from the number of a batch to crops, filled up to whole patches as in DINOv2, and masks."""
        check_equal_parts(model, images)  # batch normalisation takes the mean over the whole batch
        config = model.config
        nothing = 255 * np.asarray(config.pipeline.mean, "float32") if config.include_preprocessing else np.float32(0)

        def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
            pixels, masks = images.batch(number)
            crops = as_input(model, pixels)
            height, width = crops.shape[1:3]
            (top, bottom), (left, right) = centre_margins((height, width), config.patch_size)
            if not (bottom or right):
                return crops, masks
            padded = np.empty((len(crops), top + height + bottom, left + width + right, crops.shape[3]), crops.dtype)
            padded[...] = nothing
            padded[:, top : top + height, left : left + width] = crops
            return padded, masks

        return batch

    def validation(self, model: LinearSegmenter, images: ImageStream, seed: int, sharing: Sharing) -> "Measured":
        return Measured(model, images, sharing.processes, self.ignore)


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
        ignore: The number of pixels without a class.
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


class Measured:
    """The mean intersection over union during a run; each process measures its part of the pictures.

    On JAX in several processes the run's model is one of all of them, and each measures with a copy of its own.
    """

    def __init__(self, model: LinearSegmenter, images: ImageStream, processes: Processes, ignore: int) -> None:
        """Keeps the arguments; a process by itself measures all pictures."""
        self._model, self._images, self._ignore, self._joint = model, images, ignore, processes.joint
        self._distribution = ALONE_BY_NAME if processes.count == 1 else None
        self._copy: LinearSegmenter | None = None

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Returns `mean_iou` and `pixel_accuracy` of the run's model over all processes; `model` shares its weights."""
        with _alone(self._joint):
            settings = {"ignore": self._ignore, "distribution": self._distribution, "progress": False}
            result = evaluate(self._model_of_process(), self._images, **settings)
        return {"mean_iou": result.mean_iou, "pixel_accuracy": result.pixel_accuracy}

    def draw(self, path: Path) -> None:
        """Writes a picture file: the first pictures, their labels and what the model finds."""
        shown, classes = [], {k: k for k in range(self._model.config.classes) if k != self._ignore}
        with _alone(self._joint):
            model = self._model if self._copy is None else self._copy  # as it was evaluated
            for pictures, labels in itertools.islice(self._images, SHOWN):
                for picture, ids in zip(pictures, labels, strict=True):
                    shown.append((picture, ids, classes, segment(model, picture, task="semantic")))
        plot_beside_labels(shown[:SHOWN], path)

    def _model_of_process(self) -> LinearSegmenter:
        """Returns the run's model; on JAX, where that is one of all processes, a copy compiled once for this one."""
        if not self._joint:
            return self._model
        if self._copy is None:
            self._copy = self._model.with_config()
        else:
            copy_state(self._model, self._copy)
        return self._copy


@contextlib.contextmanager
def _alone(joint: bool) -> Iterator[None]:
    """Takes Keras's distribution away within, if it is joint: each process computes something for itself."""
    distribution = keras.distribution.distribution()
    if joint:
        keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(distribution)
