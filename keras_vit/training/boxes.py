"""Training of a detector on boxes of one's own classes, by the heads of OWL-ViT on any Vision Transformer."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import pair, to_numpy, unit_vectors
from keras_vit._pictures import plot_map, safe_colours
from keras_vit._processes import ALONE_BY_NAME
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
from keras_vit.training.distribution import Sharing, check_equal_parts
from keras_vit.training.tasks import (
    PADDED_TO,
    SHOWN,
    ComputesLoss,
    Given,
    Learning,
    Run,
    Task,
    as_input,
    warn_of_many_patches,
)
from keras_vit.zoo import load

TEXT = "words"  # before the names of the text tower's weights, which are those of the image tower otherwise
SURE = 0.3  # scores of the boxes that are drawn


@dataclasses.dataclass(frozen=True)
class BoxDetection(Task):
    """Training of a detector on pictures with boxes; `finetune_detection` makes it."""

    text_rate: float | None = None  # of an OWL's text tower beside the recipe's; None: its classes train as a matrix

    objective = "detection"
    targets = ("boxes",)
    picture = "boxes.png"

    @property
    def title(self) -> str:
        rate = self.text_rate
        return "detection" if rate is None else f"detection by words, text tower at {rate:g} of the rate"

    def data(self, given: Given) -> Given:
        """Returns what is given with boxes, an OWL as a detector of their classes, and the model's `pictures`."""
        model, recipe, settings, validation = given.model, given.recipe, given.settings, given.validation
        owl = None
        boxes = open_boxes(given.data, classes=settings.classes, class_names=settings.class_names)
        if isinstance(model, (str, os.PathLike)):
            model = (load_image_text if holds_detector(model) else load)(model, dtype=settings.dtype)
            settings = settings.adapted(dtype=None)
        if isinstance(model, OpenVocabularyDetector):
            if boxes.class_names is None:
                raise ValueError("An OWL finds classes by their names, but the data has none: pass class_names=.")
            owl, model = model, model.zero_shot_detector(boxes.class_names, progress=False)
        elif self.text_rate is not None:
            raise ValueError(
                f"text_rate={self.text_rate!r} trains the text tower of an OWL, as load_image_text returns it, but a "
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
        if not given.is_share:
            validation = open_boxes(validation, classes=None, class_names=None).in_order(boxes.class_names)
        settings = settings.adapted(classes=boxes.classes, class_names=boxes.class_names)
        opened = {"data": boxes, "validation": validation, "settings": settings}
        return given.changed(model=model, recipe=recipe, owl=owl, **opened)

    def model(self, given: Given, images: ImageStream) -> Detector:
        """Returns a copy of a detector, with new vectors for other classes, or one on a VisionTransformer."""
        source, recipe = given.model, given.recipe
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

    def loss(self, run: Run) -> Learning:
        """Returns the detector with Scenic's losses, and pictures with padded targets."""
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
            inputs = np.asarray(as_input(model, pictures), "float32")
            return inputs, pad_boxes(scaled, model.config.classes, PADDED_TO)

        if self.text_rate is not None:
            return TrainedByWords(run, self.text_rate), None, None, batch
        trained = ComputesLoss(model, lambda inputs, training: model(inputs, training=training), DetectionLoss())
        return trained, None, None, batch

    def measure(self, run: Run) -> "MeasuredBoxes":
        """Returns what measures the model on whole pictures."""
        return MeasuredBoxes(run.model, run.tests, run.sharing)

    def finish(self, run: Run, trained: Any, folder: Path | None) -> OpenVocabularyDetector | None:
        """Returns both towers of an OWL that was trained by words, and writes them as transformers' files."""
        if not isinstance(trained, TrainedByWords):
            return None
        trained.give_words()
        model, old = run.model, run.given.owl
        model.get_layer("head").queries.trainable = True
        vit = old.detector.config.backbone.replace(image_size=model.config.image_size)
        detector = Detector(old.detector.config.replace(backbone=vit), dtype=model.dtype_policy)
        copy_state(old.detector, detector)  # with a head of objectness, which was not trained
        weights = weights_by_path(merge_lora(model) if adapted_layers(model) else model)
        for path, variable in weights_by_path(detector).items():
            if path in weights and path != "head/queries/kernel":
                variable.assign(keras.ops.copy(weights[path]))
        notes = (*old.notes, "It was trained further by words, without a head of objectness.")
        owl = OpenVocabularyDetector(
            detector, trained.text_encoder, old.tokenizer, extras=old.extras, lowers=old.lowers, notes=notes
        )
        if folder is not None:
            save_image_text(owl, folder / "owl", overwrite=True)
        return owl


class TrainedByWords(ComputesLoss):
    """A detector whose classes are what a copy of an OWL's text tower makes of their names."""

    def __init__(self, run: Run, rate: float) -> None:
        super().__init__(run.model, self.answer_by_words, DetectionLoss())
        owl = run.given.owl
        self.ids, self.rate = owl.ids_of(run.images.class_names), rate
        run.model.get_layer("head").queries.trainable = False
        with keras.name_scope(TEXT):  # whose weights have their names from it
            self.text_encoder = TextEncoder(owl.text_encoder.config, dtype=owl.text_encoder.dtype_policy)
        self.text_encoder.set_weights(owl.text_encoder.get_weights())

    def compile(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Compiles it with the rate of the text tower."""
        optimizer.rate_multipliers = {f"{TEXT}/*": self.rate, **optimizer.rate_multipliers}
        super().compile(optimizer, *args, **kwargs)

    def answer_by_words(self, inputs: Any, training: bool | None) -> dict[str, Any]:
        """Returns what the detector does with the vectors of its words."""
        vectors = widened(self.text_encoder(keras.ops.convert_to_tensor(self.ids), training=training))
        vectors = keras.ops.normalize(vectors, axis=-1, epsilon=LEAST_NORM)
        tokens = self.inner.backbone(inputs, training=training)
        return self.inner.get_layer("head")(tokens, keras.ops.transpose(vectors), training=training)

    def give_words(self) -> None:
        """Gives the detector the vectors that its words have by now."""
        vectors = unit_vectors(to_numpy(self.text_encoder.predict_on_batch(self.ids)).astype("float32"))
        self.inner.get_layer("head").queries.kernel.assign(vectors.T)


class MeasuredBoxes:
    """COCO's average precision during a run, on pictures at their own sizes."""

    def __init__(self, model: Detector, images: ImageStream, sharing: Sharing) -> None:
        self._model, self._images = model, images
        self._distribution = ALONE_BY_NAME if sharing.processes.count == 1 else None

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Returns figures for the log; `model`, which trains, shares its weights with the one that is measured."""
        if isinstance(model, TrainedByWords):
            model.give_words()
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
