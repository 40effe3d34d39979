"""Feature distillation: from pictures without labels, a small model learns the features of a large one."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import check_type, pair
from keras_vit._options import From0, Options
from keras_vit.checkpoints import is_variant
from keras_vit.checkpoints.files import write_npz
from keras_vit.data import Augmentation, ImageStream
from keras_vit.data.targets import NONE
from keras_vit.layers import BatchNormalization, resize
from keras_vit.layers.base import BaseLayer
from keras_vit.models import BiT, VisionTransformer, feature_extractor
from keras_vit.training import tasks
from keras_vit.training.distilling import Teacher, normalization
from keras_vit.training.distribution import Batch
from keras_vit.training.pretraining import figure, model_with_any_head
from keras_vit.training.recipes import Recipe
from keras_vit.zoo import as_model

FEATURES = {"pooled": "pooled", "patches": "encoded"}  # what is learned, and its name among a model's features
MEMORY = 1000  # updates after which the statistics begin to forget


@dataclasses.dataclass(frozen=True)
class FeatureDistillation(Options, tasks.Task):
    """The objective of `pretrain(student, pictures, recipe, teacher=teacher)`, with your own settings.

    The student learns the teacher's pooled vector (of most models the class token) and patch tokens from the same crop
    of each picture, which is resized to the image size of each of the two. A linear layer for each (adaptor) maps the
    student's features to the teacher's; the trained model does not contain it. The larger grid of patches is resized to
    the smaller. The teacher's features are standardised by the mean and variance of each channel over all updates
    (UNIC, arXiv 2408.05088), so that a few channels of large values do not decide the loss. It is

        sum of `pooled` and `patches` times (cosine * (1 - cosine similarity) + smooth_l1 * smooth L1 distance),

    as in AM-RADIO (arXiv 2312.06709, 0.9 and 0.1 for patches, the cosine alone for the summary) and UNIC (equal).

    Args:
        teacher: A VisionTransformer or a BiT, or what `load` takes. Its weights become frozen (`trainable=False`), and
            checkpoints of the run contain them.
        pooled: Weight of the pooled vector; 0: it is not learned.
        patches: Weight of the mean over the patches; 0: they are not learned.
        cosine: Weight of 1 - the cosine similarity.
        smooth_l1: Weight of the smooth L1 distance (the Huber loss with delta 1), the mean over channels.
        standardize: Whether to standardise the teacher's features.
        views: The random crops, `Augmentation` of pixels without labels.
        teacher_dtype: What the teacher computes in; None for its own dtype policy.

    Raises:
        TypeError, ValueError: if an argument is out of its range.

    Examples:
        >>> task = training.FeatureDistillation(small, patches=0.0)
        >>> recipe = training.recipe("pretrain/feature_distillation").replace(steps=1, batch_size=2, image_size=8)
        >>> done = training.pretrain(small, "photos", recipe, objective=task, verbose=False)
        >>> "cosine" in done.log[-1]
        True
    """

    teacher: Any = None
    pooled: From0 = 1.0
    patches: From0 = 1.0
    cosine: From0 = 1.0
    smooth_l1: From0 = 1.0
    standardize: bool = True
    views: Augmentation = Augmentation(min_area=0.08)
    teacher_dtype: Literal[None, "float16", "bfloat16"] = None

    name = "feature_distillation"
    objective = "feature_distillation"
    targets = (NONE.name,)
    loss_name = "cosine, smooth L1"
    uses_test_split = False

    def _check_together(self) -> None:
        if isinstance(self.teacher, (list, tuple)):
            raise TypeError(f"teacher must be one model, but {len(self.teacher)} were given. Distil them one by one.")
        object.__setattr__(self, "teacher", as_model(self.teacher))
        check_type("teacher", self.teacher, (VisionTransformer, BiT), "a VisionTransformer, a BiT or what load takes")
        for names in (("pooled", "patches"), ("cosine", "smooth_l1")):
            if not any(getattr(self, name) for name in names):
                raise ValueError(f"{names[0]} and {names[1]} are 0, so nothing would be learned. Give one of them.")

    @property
    def title(self) -> str:
        how = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "teacher"}
        changed = ", ".join(f"{name}={value}" for name, value in how.items() if name in self.given)
        return f"feature distillation from {self.teacher.name}{changed and f' ({changed})'}"

    @property
    def learned(self) -> dict[str, float]:
        """The weights of the features that are learned, by name."""
        return {name: getattr(self, name) for name in FEATURES if getattr(self, name)}

    def data(self, request: tasks.Request, recipe: Recipe) -> tasks.Request:
        return request.changed(target=NONE.name)

    def model(self, request: tasks.Request, recipe: Recipe, images: ImageStream) -> tasks.Model:
        """Returns a copy of a model, what `load` makes of a file, or a variant, with random weights and no head."""
        model = model_with_any_head(request, recipe, None)
        changes = ({"classes": None} if is_variant(request.model) else {}) | self._whole(model)
        return model.with_config(**changes) if changes else model

    def _whole(self, model: tasks.Model) -> dict[str, Any]:
        """The change of a config after which a model has all features that are learned."""
        if "pooled" in self.learned and model.config.pooling == "none":
            raise ValueError(
                f'{model.name} has no pooled vector. Call model.with_config(pooling="avg"), or pooled=0.0.'
            )
        return {"class_token_only": False} if "patches" in self.learned and model.config.class_token_only else {}

    @functools.cached_property
    def frozen(self) -> tasks.Model:
        """The teacher as it computes."""
        changes = self._whole(self.teacher) | ({"dtype": self.teacher_dtype} if self.teacher_dtype else {})
        return self.teacher.with_config(**changes) if changes else self.teacher

    def loss(self, run: tasks.Run) -> tasks.Learning:
        """Returns a model of student, teacher and adaptors, and a loss and metrics that read its outputs."""
        model, teacher = run.model, self.frozen
        if model.config.channels != teacher.config.channels:
            found, wanted = teacher.config.channels, model.config.channels
            raise ValueError(f"The student takes {wanted} channels, but the teacher {found}. Pass another teacher.")
        both = ((model, run.recipe.image_size), (teacher, None))
        crop = tuple(map(max, *(size_of(*one) for one in both)))
        run.images.transform = dataclasses.replace(run.images.transform, image_size=crop)
        student, teacher = (features_of(one, self.learned, crop, size_of(one, wanted)) for one, wanted in both)
        if not student.trainable_weights:
            raise ValueError(f"All layers of {model.name} that make features are frozen: unfreeze(model) first.")
        crops = keras.Input(student.input.shape[1:], name="crops")
        trained = distilled(self, crops, student(crops), Teacher(teacher, 1.0, 0.0)(crops))
        names = ["loss", *(f"{name}_cosine".removeprefix("pooled_") for name in self.learned)]
        metrics = [keras.metrics.MeanMetricWrapper(figure, name, number=i) for i, name in enumerate(names)]
        return trained, figure, metrics[1:], batches(run.images)

    def finish(self, run: tasks.Run, trained: Any, folder: Path | None) -> None:
        """Writes adaptors and statistics, by name, to `adaptors.npz`."""
        if folder is not None:
            layers = [layer for layer in trained.layers if layer.name.endswith(("_adaptor", "_statistics"))]
            arrays = ((f"{layer.name}/{w.name}", np.asarray(w)) for layer in layers for w in layer.weights)
            write_npz(folder / "adaptors.npz", arrays, overwrite=True)


def size_of(model: tasks.Model, wanted: Any = None) -> tuple[int, int]:
    """Height and width of the images of a model; where it takes any, those that are wanted, or its config's."""
    return pair("image_size", wanted) if model.config.dynamic and wanted else model.config.image_size


def batches(images: ImageStream) -> Batch:
    """Returns a function from the number of a batch to crops, and labels that nobody reads."""

    def batch(number: int) -> tuple[Any, np.ndarray]:
        pixels, labels = images.batch(number)
        return pixels, labels

    return batch


class Prepare(BaseLayer):
    """Crops in 0..255 at the size of a model's images, normalised for it."""

    size: Any
    mean: Any
    std: Any

    def call(self, crops: Any) -> Any:
        if tuple(crops.shape[1:3]) != tuple(self.size):
            crops = ops.image.resize(crops, self.size, antialias=True, data_format="channels_last")
        mean, std = (ops.convert_to_tensor(value, "float32") for value in (self.mean, self.std))
        return (crops - mean) / std


def features_of(model: tasks.Model, names: Any, crop: tuple[int, ...], size: tuple[int, int]) -> keras.Model:
    """Returns a model from crops `(batch, *crop, channels)` to vectors and maps of features by name."""
    crops = keras.Input((*crop, model.config.channels), name="crops")
    images = Prepare(size, *normalization(model), dtype="float32")(crops)
    made = feature_extractor(model, [FEATURES[name] for name in names], layout="map")(images)
    return keras.Model(crops, {name: made[FEATURES[name]] for name in names}, name=f"{model.name}_features")


def distilled(task: FeatureDistillation, crops: Any, found: Any, wanted: Any) -> keras.Model:
    """Returns a model of the loss and the cosines of each picture from a student's and a teacher's features."""
    pairs = []
    for name in task.learned:
        x, y = found[name], wanted[name]
        if name == "patches":
            smaller = tuple(map(min, x.shape[1:3], y.shape[1:3]))
            x, y = (Resized(smaller, dtype="float32")(one) for one in (x, y))
        x = keras.layers.Dense(y.shape[-1], dtype="float32", name=f"{name}_adaptor")(x)
        if task.standardize:
            y = Standardize(center=False, scale=False, dtype="float32", name=f"{name}_statistics")(y)
        pairs += [x, y]
    weights = [[weight * task.cosine, weight * task.smooth_l1] for weight in task.learned.values()]
    return keras.Model(crops, Distances(weights, dtype="float32", name="distances")(pairs), name="distilled")


class Resized(BaseLayer):
    """Maps `(batch, rows, columns, D)` at another size, bilinearly."""

    size: Any

    def call(self, maps: Any) -> Any:
        return resize(maps, self.size, "half_pixel")


class Standardize(BatchNormalization):
    """Features `(batch, ..., D)` by their mean and variance over all updates, of which the last thousand count most."""

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        mean, variance, seen = map(ops.convert_to_tensor, (self.moving_mean, self.moving_variance, self.seen))
        if training:
            axes, over_all = [*range(len(inputs.shape) - 1)], lambda x: x
            if self.processes is not None:
                over_all = self.processes.mean_with_gradient
            now = over_all(ops.mean(inputs, axis=axes))
            spread = over_all(ops.mean(ops.square(inputs - now), axis=axes))
            share = 1.0 / ops.minimum(seen + 1.0, float(MEMORY))
            variance = variance + share * (spread + (1.0 - share) * ops.square(now - mean) - variance)
            mean = mean + share * (now - mean)
            for weight, value in ((self.moving_mean, mean), (self.moving_variance, variance), (self.seen, seen + 1.0)):
                weight.assign(value)
        return (inputs - mean) / ops.sqrt(variance + self.epsilon)


class Distances(BaseLayer):
    """From a list of the student's and the teacher's features in turn to the loss and each cosine, `(batch, 1 + n)`."""

    weights_of: Any  # for each pair those of 1 - cosine and of the smooth L1 distance

    def call(self, features: list[Any]) -> Any:
        loss, cosines = 0.0, []
        for x, y, (of_cosine, of_smooth) in zip(features[::2], features[1::2], self.weights_of, strict=True):
            cosine, smooth = similarities(x, y)
            loss += of_cosine * (1.0 - cosine) + of_smooth * smooth
            cosines.append(cosine)
        return ops.stack([loss, *cosines], axis=-1)


def similarities(x: Any, y: Any) -> tuple[Any, Any]:
    """Returns the cosine and the smooth L1 distance of features `(batch, ..., D)`: means over places, `(batch,)`."""
    x, y = (ops.reshape(one, (-1, math.prod(one.shape[1:-1]), one.shape[-1])) for one in (x, y))
    cosine = ops.sum(ops.normalize(x, axis=-1) * ops.normalize(y, axis=-1), axis=-1)
    away = ops.abs(x - y)
    smooth = ops.where(away < 1.0, 0.5 * ops.square(away), away - 0.5)
    return ops.mean(cosine, axis=1), ops.mean(smooth, axis=(1, 2))
