"""`finetune_detection`: boxes of one's own classes, by the heads of OWL-ViT on any Vision Transformer."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import DType, Source, pair, to_numpy, unit_vectors
from keras_vit._options import FROM_0
from keras_vit._pictures import plot_map, safe_colours
from keras_vit._processes import ALONE_BY_NAME, current
from keras_vit.data import BoxAugmentation, ImageStream, open_boxes
from keras_vit.detection import evaluate
from keras_vit.detection.detecting import detect, with_frames
from keras_vit.layers.detection import LEAST_NORM
from keras_vit.layers.ops import widened
from keras_vit.models import (
    Detector,
    DetectorConfig,
    TextEncoder,
    VisionTransformer,
    adapted_layers,
    merge_lora,
    weights_by_path,
)
from keras_vit.models.changes import copy_state
from keras_vit.models.dense_config import WITHOUT_TOP
from keras_vit.text import load_image_text, save_image_text
from keras_vit.text.image_text import holds_detector
from keras_vit.text.open_vocabulary import OpenVocabularyDetector
from keras_vit.training.detection import DetectionLoss, pad_boxes
from keras_vit.training.distribution import Batch, Sharing, check_equal_parts
from keras_vit.training.recipes import Recipe
from keras_vit.training.recipes import recipe as recipe_of_name
from keras_vit.training.run import Trained, finetune
from keras_vit.training.tasks import Task, as_input, split_options, warn_of_many_patches
from keras_vit.zoo import load

BOXES = 16  # padded targets have a multiple of so many: JAX compiles a program for each number
SHOWN = 6  # pictures to evaluate on that are drawn
TEXT = "words"  # before the names of the text tower's weights, which are those of the image tower otherwise
SURE = 0.3  # scores of the boxes that are drawn


def finetune_detection(
    model: Detector | OpenVocabularyDetector | VisionTransformer | Source,
    data: Any,
    recipe: Recipe | str = "detection/owl_finetune",
    *,
    validation: Any = None,
    output: str | os.PathLike[str] | None = None,
    text_rate: float | None = None,
    **options: Any,
) -> Trained:
    """Trains a detector on pictures with boxes: a box and the scores of all classes for each patch.

    The run works like `finetune`: batch n is a function of the seed, and a killed run resumes. The losses are Scenic's
    (`DetectionLoss`). For an OWL-ViT or OWLv2, the class embeddings start from the class names. With `text_rate` the
    text tower computes them in each update, so that both towers train and other words can be detected afterwards;
    without it they train as a matrix. Another backbone, such as a DINOv2, gets new heads; no results of such a detector
    are published. The objectness head of an OWLv2 is left out, because the published code has no loss for it.

    Args:
        model: An OWL of `load_image_text`; a `Detector`, whose class embeddings are reinitialised for other classes; a
            `VisionTransformer`, which gets new heads; or what `load` or `load_image_text` take.
        data: What `data.open_boxes` takes or returns.
        recipe: As in `finetune`, with a `data.BoxAugmentation`. Its `pictures` follow a given detector.
        validation: Pictures with boxes, as `data`, or a share, as in `finetune`.
        output: As in `finetune`. With `text_rate`, its folder `owl` has both towers for `load_image_text`.
        text_rate: The learning rate of the text tower relative to the recipe's: 0.04 in Scenic (2e-6 and 5e-5); 0.0
            keeps the tower as it is. None: an OWL's class embeddings train as a matrix.
        **options: Fields of `RunOptions` and of the recipe. `freeze="backbone"` trains the heads alone.

    Returns:
        As `finetune`; `ap` and `ap50` are measured like `detection.evaluate`, at the pictures' own sizes. With
        `text_rate`, `owl` is an `OpenVocabularyDetector` of the trained towers.

    Raises:
        TypeError, ValueError: as `finetune` and `open_boxes`; if the recipe has fields for classification only.
        FloatingPointError, RuntimeError: as `finetune`.
        OSError: as `finetune`; if a folder or a file of `data` is missing (FileNotFoundError) or cannot be read.
        ImportError: if a package is missing: SciPy for the matching, Pillow for files.

    Examples:
        >>> boxes = data.open_boxes(([*pixels], [{"boxes": [[2, 2, 10, 12]], "labels": [0]}] * 4), class_names=["cat"])
        >>> recipe = training.recipe("detection/owl_finetune").replace(steps=1, batch_size=2, image_size=8)
        >>> training.finetune_detection(small, boxes, recipe, verbose=False).model.config.class_names
        ('cat',)
    """
    changes, settings = split_options(options)
    recipe = (recipe if isinstance(recipe, Recipe) else recipe_of_name(recipe)).replace(**changes)
    boxes = open_boxes(data, classes=settings.classes, class_names=settings.class_names)
    if isinstance(model, (str, os.PathLike)):
        dtype = options.pop("dtype", None)
        model = (load_image_text if holds_detector(model) else load)(model, dtype=dtype)
    task = BoxDetection()
    if isinstance(model, OpenVocabularyDetector):
        if boxes.class_names is None:
            raise ValueError("An OWL finds classes by their names, but the data has none: pass class_names=.")
        if text_rate is not None:
            task = WordDetection(model, boxes.class_names, FROM_0("text_rate", text_rate))
        model = model.zero_shot_detector(boxes.class_names, progress=False)
    elif text_rate is not None:
        raise ValueError(
            f"text_rate={text_rate!r} trains the text tower of an OWL, as load_image_text returns it, but a "
            f"{type(model).__name__} was given. Leave it out."
        )
    if isinstance(model, Detector):
        names, own, changed = model.config.class_names, model.config.pictures, recipe.augmentation
        if None not in (names, boxes.class_names) and {*boxes.class_names} <= {*names}:
            boxes = boxes.in_order(names)
        if isinstance(changed, BoxAugmentation) and changed.pictures != own:
            if "pictures" in changed.given:
                raise ValueError(
                    f"pictures={changed.pictures!r} of the augmentation differs from the model's {own!r}. Leave it "
                    "out, or use model.with_config(pictures=...)."
                )
            recipe = recipe.adapted(augmentation=changed.adapted(pictures=own))
    if not isinstance(validation, (float, type(None))):
        validation = open_boxes(validation, classes=None, class_names=None).in_order(boxes.class_names)
    named = {"classes": boxes.classes, "class_names": boxes.class_names}
    for name in changes:
        options.pop(name)
    return finetune(model, boxes, recipe, validation=validation, output=output, task=task, **options | named)


class BoxDetection(Task):
    """Training of a detector on pictures with boxes; `finetune_detection` makes it."""

    title = "detection"
    objective = "detection"
    targets = ("boxes",)
    picture = "boxes.png"

    def open_validation(self, data: Any, images: Any, model: Any, **reading: Any) -> ImageStream:
        """Returns the stream of whole pictures to evaluate on, one at a time for each process."""
        return super().open_validation(data, images, model, **reading | {"batch_size": reading["shard"][1]})

    def prepare_model(self, source: Any, recipe: Recipe, images: ImageStream, dtype: DType) -> Detector:
        """Returns a copy of a detector, with new vectors for other classes, or one on a VisionTransformer."""
        names = None if images.class_names is None else tuple(images.class_names)
        size = {"image_size": pair("image_size", recipe.image_size)}
        if isinstance(source, Detector):
            known, trunk = source.config, source.config.backbone
            same = known.classes == images.classes and (names is None or known.class_names in (None, names))
            config = known.replace(
                backbone=trunk.replace(**size, drop_path=recipe.drop_path or trunk.drop_path),
                classes=images.classes,
                class_names=names or (known.class_names if same else None),
                objectness=False,
            )
            model = Detector(config, name=source.name, dtype=source.dtype_policy)
            copy_state(source, model, () if same else {"head/queries"})
            return model
        if not isinstance(source, VisionTransformer):
            raise TypeError(f"model must be a VisionTransformer or a Detector, but is a {type(source).__name__}.")
        norm = {"final_norm": "tokens"} if source.config.final_norm == "pooled" else {}
        backbone = source.with_config(**WITHOUT_TOP, **norm, **size, drop_path=recipe.drop_path)
        config = DetectorConfig(
            backbone=backbone.config,
            classes=images.classes,
            class_names=names,
            embedding=backbone.config.width,
            pictures=recipe.augmentation.pictures,
        )
        model = Detector(config, name=backbone.name, dtype=backbone.dtype_policy)
        copy_state(backbone, model.backbone)
        warn_of_many_patches(recipe, backbone.config.grid_size)
        return model

    def trained_model(self, model: Detector) -> keras.Model:
        """Returns the model that computes the loss."""
        if current().joint and current().count > 1:
            raise ValueError(
                "On JAX a detector trains in one process only, because SciPy matches boxes. Start one process."
            )
        return TrainedDetector(model, DetectionLoss())

    def loss_and_metric(self, recipe: Recipe, images: Any) -> tuple[None, None]:
        """Returns None twice: the trained model computes its loss, which needs all of its answers."""
        return None, None

    def batches(self, model: Detector, images: ImageStream, seed: int) -> Batch:
        """Returns a function from the number of a batch to inputs of `TrainedDetector` and padded targets."""
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
            inputs = np.asarray(as_input(model, pictures), "float32")
            return inputs, pad_boxes(scaled, model.config.classes, BOXES)

        return batch

    def validation(self, model: Detector, images: ImageStream, seed: int, sharing: Sharing) -> "MeasuredBoxes":
        """Returns what measures the model on whole pictures."""
        return MeasuredBoxes(model, images, sharing)


class WordDetection(BoxDetection):
    """Training of both towers of an OWL, whose classes are the embeddings of their names."""

    def __init__(self, both: OpenVocabularyDetector, names: Sequence[str], rate: float) -> None:
        self.title = f"detection by words, text tower at {rate:g} of the rate"
        self.both, self.rate, self.ids = both, rate, both.ids_of(names)

    def trained_model(self, model: Detector) -> "TrainedByWords":
        """Returns the model that computes the loss, with a copy of the text tower."""
        super().trained_model(model)
        model.get_layer("head").queries.trainable = False
        old = self.both.text_encoder
        with keras.name_scope(TEXT):  # whose weights have their names from it
            self.text_encoder = TextEncoder(old.config, dtype=old.dtype_policy)
        self.text_encoder.set_weights(old.get_weights())
        return TrainedByWords(model, DetectionLoss(), self.text_encoder, self.ids, self.rate)

    def validation(self, model: Detector, images: ImageStream, seed: int, sharing: Sharing) -> "MeasuredBoxes":
        """Returns what measures the model with the vectors that its words have by then."""
        return MeasuredBoxes(model, images, sharing, lambda: self.give_words(model))

    def give_words(self, model: Detector) -> None:
        """Gives a detector the vectors of its words."""
        vectors = unit_vectors(to_numpy(self.text_encoder.predict_on_batch(self.ids)).astype("float32"))
        model.get_layer("head").queries.kernel.assign(vectors.T)

    def finish(self, model: Detector, folder: Path | None) -> OpenVocabularyDetector:
        """Returns both towers, and writes them as transformers' files."""
        self.give_words(model)
        model.get_layer("head").queries.trainable = True
        old, vit = self.both, self.both.detector.config.backbone.replace(image_size=model.config.image_size)
        detector = Detector(old.detector.config.replace(backbone=vit), dtype=model.dtype_policy)
        copy_state(old.detector, detector)  # with a head of objectness, which was not trained
        trained = weights_by_path(merge_lora(model) if adapted_layers(model) else model)
        for path, variable in weights_by_path(detector).items():
            if path in trained and path != "head/queries/kernel":
                variable.assign(keras.ops.copy(trained[path]))
        notes = (*old.notes, "It was trained further by words, without a head of objectness.")
        both = OpenVocabularyDetector(
            detector, self.text_encoder, old.tokenizer, extras=old.extras, lowers=old.lowers, notes=notes
        )
        if folder is not None:
            save_image_text(both, folder / "owl", overwrite=True)
        return both


class TrainedDetector(keras.Model):
    """A detector, with its weights, whose boxes and classes are compared with those of the pictures."""

    def __init__(self, model: Detector, loss: DetectionLoss) -> None:
        super().__init__(name=model.name)
        self.detector, self.detection_loss, self.built = model, loss, True
        self.dtype_policy = model.dtype_policy
        # TensorFlow's XLA has no calls of Python, which the assignment is.
        self.supports_jit = keras.backend.backend() != "tensorflow"

    def call(self, inputs: Any, training: bool | None = None) -> dict[str, Any]:
        """Returns what the detector does."""
        return self.detector(inputs, training=training)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Returns the loss of answers `y_pred` with padded targets `y`, a scalar; the other arguments are not used."""
        return self.detection_loss(y, y_pred)


class TrainedByWords(TrainedDetector):
    """A detector whose classes are what a text tower makes of their names."""

    def __init__(
        self, model: Detector, loss: DetectionLoss, text_encoder: TextEncoder, ids: np.ndarray, rate: float
    ) -> None:
        super().__init__(model, loss)
        self.text_encoder, self.ids, self.rate = text_encoder, ids, rate

    def compile(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Compiles it with the rate of the text tower."""
        optimizer.rate_multipliers = {f"{TEXT}/*": self.rate, **optimizer.rate_multipliers}
        super().compile(optimizer, *args, **kwargs)

    def call(self, inputs: Any, training: bool | None = None) -> dict[str, Any]:
        """Returns what the detector does with the vectors of its words."""
        vectors = widened(self.text_encoder(keras.ops.convert_to_tensor(self.ids), training=training))
        vectors = keras.ops.normalize(vectors, axis=-1, epsilon=LEAST_NORM)
        tokens = self.detector.backbone(inputs, training=training)
        return self.detector.get_layer("head")(tokens, keras.ops.transpose(vectors), training=training)


class MeasuredBoxes:
    """COCO's average precision during a run, on pictures at their own sizes."""

    def __init__(
        self, model: Detector, images: ImageStream, sharing: Sharing, prepare: Callable[[], None] | None = None
    ) -> None:
        self._model, self._images, self._prepare = model, images, prepare
        self._distribution = ALONE_BY_NAME if sharing.processes.count == 1 else None

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Returns figures for the log; `model`, which trains, shares its weights with the one that is measured."""
        if self._prepare:
            self._prepare()
        result = evaluate(self._model, self._images, distribution=self._distribution, progress=False)
        return {"ap": np.nan_to_num(result.ap), "ap50": np.nan_to_num(result.ap50)}  # NaN without any box

    def draw(self, path: Path) -> None:
        """Writes a picture file: the first pictures with their boxes, and below them what the model finds."""
        colours = dict(zip(range(self._model.config.classes), safe_colours(), strict=False))
        tiles: list[tuple[str, np.ndarray]] = []
        below: list[tuple[str, np.ndarray]] = []
        for pictures, targets in self._images:
            for picture, target in zip(pictures, targets, strict=True):
                found = detect(self._model, picture, threshold=SURE)
                pixels = picture.clip(0, 255).astype("uint8")
                for row, boxes, labels in (
                    (tiles, target["boxes"], target["labels"]),
                    (below, found.boxes, found.labels),
                ):
                    row.append(("", with_frames(pixels, boxes, [colours[int(label)] for label in labels])))
            if len(tiles) >= SHOWN:
                break
        shown = min(SHOWN, len(tiles))
        title = "Pictures with their boxes, and what was found"
        plot_map([*tiles[:shown], *below[:shown]], path, title=title, columns=shown, side=2.0)
