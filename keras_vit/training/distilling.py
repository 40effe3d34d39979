"""Distillation: a student learns from labels and from a teacher (DeiT, arXiv 2012.12877, section 4)."""

import dataclasses
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import check_type, listing
from keras_vit._options import Above0, Rate, checked
from keras_vit.models import ImageModel
from keras_vit.training.optimizers import SoftmaxLoss
from keras_vit.training.recipes import build_loss
from keras_vit.training.tasks import FineTuning, Learning, Model, Run, Task, batches_of, logits_model


@keras.saving.register_keras_serializable(package="keras_vit")
class DistillationLoss(keras.losses.Loss):
    """`(1 - alpha) * base + alpha * distance`, with the distance between a student's and a teacher's outputs.

    - `"hard"`: the cross-entropy of the student's logits with the teacher's class.
    - `"soft"`: T^2 / classes times the Kullback-Leibler divergence of the student's probabilities from the teacher's,
      both of logits / T (as in DeiT's losses.py; other code does not divide by the number of classes).
    - `"features"`: 1 - the cosine of the angle between two vectors.

    Labels are `(batch, classes)`, as of `base`. Predictions are `(batch, classes + 2 * width)`: the logits for `base`,
    then the student's and the teacher's outputs. `distillation` makes a model that predicts them.

    Args:
        kind: `"hard"`, `"soft"` or `"features"`; with the first two, the width is the number of classes.
        alpha: Share of the distance, from 0 to below 1.
        temperature: T, of `"soft"` alone.
        base: The loss of the labels; None for `SoftmaxLoss()`.
        **kwargs: `reduction`, `name` and `dtype`, as for every loss of Keras.

    Raises:
        ValueError: if an argument is out of its range, or another kind has a temperature.

    Examples:
        >>> loss = training.DistillationLoss("soft", alpha=0.5, temperature=3.0)
        >>> round(float(loss(np.eye(2), np.zeros((2, 6)))), 4)  # half of log(2), and the student is the teacher
        0.3466
    """

    @checked
    def __init__(
        self,
        kind: Literal["hard", "soft", "features"] = "hard",
        alpha: Rate = 0.5,
        temperature: Above0 = 1.0,
        base: keras.losses.Loss | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kind, self.alpha, self.temperature, self.base = kind, alpha, temperature, base or SoftmaxLoss()
        if kind != "soft" and temperature != 1.0:
            raise ValueError(f'temperature={temperature!r} is for kind="soft", but kind={kind!r} was given.')

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the loss of each image, `(batch,)`; predictions are logits, the student's part, the teacher's."""
        classes = y_true.shape[-1]
        y_pred = ops.cast(y_pred, keras.backend.result_type(y_pred.dtype, "float32"))
        width = (y_pred.shape[-1] - classes) // 2
        logits, student, teacher = ops.split(y_pred, [classes, classes + width], axis=-1)
        if self.kind == "features":
            distance = 1.0 - ops.sum(ops.normalize(student, axis=-1) * ops.normalize(teacher, axis=-1), axis=-1)
        elif self.kind == "hard":
            wanted = ops.one_hot(ops.argmax(teacher, axis=-1), classes, dtype=student.dtype)
            distance = -ops.sum(wanted * ops.log_softmax(student, axis=-1), axis=-1)
        else:
            found, wanted = (ops.log_softmax(x / self.temperature, axis=-1) for x in (student, teacher))
            distance = ops.sum(ops.exp(wanted) * (wanted - found), axis=-1) * (self.temperature**2 / classes)
        return (1.0 - self.alpha) * self.base.call(y_true, logits) + self.alpha * distance

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "kind": self.kind,
            "alpha": self.alpha,
            "temperature": self.temperature,
            "base": keras.saving.serialize_keras_object(self.base),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "DistillationLoss":
        return cls(**{**config, "base": keras.saving.deserialize_keras_object(config["base"])})


def distillation(teacher: keras.Model, kind: str = "hard", alpha: float = 0.5, temperature: float = 1.0) -> Task:
    """Returns a task for `finetune`: the student learns from labels and from a teacher that sees the same batches.

    A student with a distillation token (`create_model("DeiT-B/16-distilled")`) learns labels with its class token and
    the teacher's outputs with the distillation token; its output is the mean of both heads, as in DeiT. Any other model
    learns both with one head. With `kind="features"` the head learns the labels, and its input becomes similar to the
    input of the teacher's head. A linear layer is between them if the widths differ. `val_loss` in the log includes the
    teacher; the accuracy is the student's.

    Args:
        teacher: A Keras model from images to logits `(batch, classes)`, with the data's order of classes, or with
            `"features"` to vectors `(batch, width)`. A model of this package gets its own normalisation and may end
            with a softmax; any other model gets the student's inputs. Its weights become frozen (`trainable=False`),
            and checkpoints of the run contain them.
        kind: As in `DistillationLoss`, like the next two. `finetune` raises ValueError if the teacher does not fit.
        alpha: Share of the distance.
        temperature: T.

    Raises:
        TypeError, ValueError: if the teacher is not a Keras model; as `DistillationLoss`.

    Examples:
        >>> recipe, teacher = training.Recipe(steps=1, batch_size=2, image_size=8), keras_vit.VisionTransformer(config)
        >>> task = training.distillation(teacher, "soft", temperature=3.0)
        >>> done = training.finetune(small, (pixels, labels), recipe, task=task, verbose=False)
    """
    check_type("teacher", teacher, keras.Model, "a Keras model, such as load(...) returns")
    return Distillation(DistillationLoss(kind, alpha, temperature), teacher)


@dataclasses.dataclass(frozen=True)
class Distillation(FineTuning):
    """Fine-tuning with a teacher; `distillation` makes it."""

    distance: DistillationLoss
    teacher: keras.Model = None

    objective = "distillation"
    targets = ("class",)

    @property
    def title(self) -> str:
        how = self.distance
        return (
            f"distillation from {self.teacher.name} ({how.kind}, alpha {how.alpha:g}, temperature {how.temperature:g})"
        )

    def loss(self, run: Run) -> Learning:
        kind, alpha, temperature = self.distance.kind, self.distance.alpha, self.distance.temperature
        loss = DistillationLoss(kind, alpha, temperature, base=build_loss(run.recipe))
        trained = distilled_model(run.model, self.teacher, kind)
        return trained, loss, [DistilledAccuracy("accuracy", kind)], batches_of(run.model, run.images)


class DistilledAccuracy(keras.metrics.CategoricalAccuracy):
    """The student's accuracy: of the mean of its two heads, or of its logits (`"features"`)."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__(name)
        self.kind = kind

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        classes = y_true.shape[-1]
        second = 0.0 if self.kind == "features" else y_pred[:, classes : 2 * classes]
        super().update_state(y_true, y_pred[:, :classes] + second, sample_weight)


class Teacher(keras.layers.Layer):
    """The outputs in float32 of a model, which becomes frozen, for a tensor times `scale` plus `shift`."""

    def __init__(self, model: keras.Model, scale: Any, shift: Any) -> None:
        super().__init__(dtype="float32", name="teacher")
        self.model, self.scale, self.shift = model, scale, shift
        self.trainable = model.trainable = False

    def call(self, images: Any) -> Any:
        scale, shift = (ops.convert_to_tensor(value, "float32") for value in (self.scale, self.shift))
        return ops.stop_gradient(ops.cast(self.model(images * scale + shift, training=False), "float32"))


def distilled_model(student: Model, teacher: keras.Model, kind: str) -> keras.Model:
    """Returns a model of the predictions that `DistillationLoss` takes, with the weights of the student."""
    sizes = [getattr(model, "input_shape", (None,) * 4)[1:] for model in (student, teacher)]
    if any(a != b for a, b in zip(*sizes, strict=True) if a and b):
        advice = f"load(source, image_size={sizes[0][:2]}), or another image_size"
        if sizes[0][-1] != sizes[1][-1]:
            advice = "a teacher for as many channels"
        raise ValueError(f"The student takes images of {sizes[0]}, but the teacher takes {sizes[1]}. Pass {advice}.")
    wanted = _teacher_of(teacher, student, kind)(student.input)
    if len(wanted.shape) != 2:
        raise ValueError(
            f"teacher must return one row for each image, but it returns {wanted.shape}. Pass one with a head or with "
            'pooling, such as load(..., pooling="avg").'
        )
    taught_head = student.get_layer("head_dist" if student.config.distillation_head else "head")
    if kind == "features":
        logits, found = logits_model(student).output, taught_head.input
        if found.shape[-1] != wanted.shape[-1]:
            found = keras.layers.Dense(wanted.shape[-1], dtype="float32", name="projection")(found)
    else:
        logits, found = student.get_layer("head").output, taught_head.output
        outputs, classes = wanted.shape[-1], logits.shape[-1]
        if outputs != classes:
            raise ValueError(f"teacher must have outputs for the {classes} classes of the data, but it has {outputs}.")
    parts = [logits, found, wanted]
    return keras.Model(student.input, keras.layers.Concatenate(dtype="float32")(parts), name=f"{student.name}_taught")


def _teacher_of(teacher: keras.Model, student: Model, kind: str) -> Teacher:
    """Returns the layer of the teacher's logits or `"features"`: images are normalised for it, and not resized."""
    if not isinstance(teacher, ImageModel):
        return Teacher(teacher, 1.0, 0.0)
    if kind != "features":
        names, known = student.config.class_names, teacher.config.class_names
        if names and known and names != known:
            raise ValueError(f"teacher must have classes in the same order, {listing(names)}, not {listing(known)}.")
    # x * std + mean of the student, then (x - mean) / std of the teacher
    (mean, std), (mean_of_teacher, std_of_teacher) = normalization(student), normalization(teacher)
    scale, shift = std / std_of_teacher, (mean - mean_of_teacher) / std_of_teacher
    if kind != "features":
        return Teacher(logits_model(teacher), scale, shift)
    if teacher.config.classes:
        teacher = keras.Model(teacher.input, teacher.get_layer("head").input, name=teacher.name)
    return Teacher(teacher, scale, shift)


def normalization(model: Model) -> tuple[Any, Any]:
    """The mean and deviation by which pixels of 0..255 are normalised for a model; 0, 1 where it does that."""
    if model.config.include_preprocessing:
        return 0.0, 1.0
    return tuple(255.0 * np.asarray(value) for value in (model.config.pipeline.mean, model.config.pipeline.std))
