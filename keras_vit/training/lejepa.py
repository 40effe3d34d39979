"""Pre-training without labels by LeJEPA (arXiv 2511.08544): the loss, and `pretrain(..., objective="lejepa")`."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import whole_number
from keras_vit._options import ABOVE_0, SHARE
from keras_vit._processes import fill_up
from keras_vit.checkpoints import is_variant
from keras_vit.data import ImageStream, ViewAugmentation
from keras_vit.data.examples import NO_TARGET
from keras_vit.layers import BatchNormalization
from keras_vit.layers.base import BaseLayer, DrawnSeed, SeedGenerator
from keras_vit.layers.ops import float32_or_better
from keras_vit.models import VisionTransformer
from keras_vit.training.distribution import Sharing, check_equal_parts
from keras_vit.training.pretraining import model_with_any_head
from keras_vit.training.tasks import Given, Learning, Measured, Model, Run, Task, as_input, warn_of_many_patches

FIGURES = ("loss", "sigreg", "invariance", "rank", "deviation")  # what a trained model returns for each picture
NEIGHBOURS, TEMPERATURE = 20, 0.07  # of the probe: DINO's
_ROWS = 1024  # pictures whose neighbours are looked for at once


class LeJEPALoss:
    """`weight * sigreg + (1 - weight) * invariance` of embeddings of several views of each picture.

    - `invariance`: the mean squared distance of the embeddings of all views from the mean of the picture's global
      views.
    - `sigreg` (sketched isotropic Gaussian regularisation): how far embeddings are from a standard normal distribution.
      They are projected on random directions (slices); each view and slice has a test statistic of Epps and Pulley. It
      is about 1.05 for normally distributed values, and large for embeddings that have collapsed to a point.

    As `LeJEPALoss` of lightly, with one process's pictures (`gather_distributed=False`).

    Args:
        weight: Share of `sigreg` in the loss, 0 to 1.
        slices: How many directions are drawn.
        knots: At how many places, from 0 to `t_max`, characteristic functions are compared.
        t_max: The last of them.
        global_views: How many of the views are global; they come first.
        seed: Seed of the directions; None for a random seed.

    Call arguments:
        embeddings: `(V, N, D)`, of V views of N pictures.
        slices: Directions `(D, S)` of any length, in place of those that are drawn.

    Raises:
        ValueError: if a number is out of its range; at call time, if the arrays do not fit.

    Examples:
        >>> loss = training.LeJEPALoss(slices=8)
        >>> round(float(loss.terms(np.zeros((4, 16, 3), "float32"))["invariance"]), 4)  # all the same: collapsed
        0.0
    """

    def __init__(
        self,
        weight: float = 0.05,
        slices: int = 1024,
        knots: int = 17,
        t_max: float = 3.0,
        global_views: int = 2,
        *,
        seed: int | None = None,
    ) -> None:
        self.weight, self.t_max = SHARE("weight", weight), ABOVE_0("t_max", t_max)
        self.slices, self.knots = whole_number("slices", slices, 1), whole_number("knots", knots, 2)
        self.global_views = whole_number("global_views", global_views, 1)
        self._seeds = keras.random.SeedGenerator(seed)

    def __call__(self, embeddings: Any, slices: Any = None) -> Any:
        """Returns the loss, a scalar."""
        return self.weighted(self.terms(embeddings, slices))

    def weighted(self, terms: dict[str, Any]) -> Any:
        """Returns `weight * sigreg + (1 - weight) * invariance` of what `terms` returned."""
        return self.weight * terms["sigreg"] + (1 - self.weight) * terms["invariance"]

    def terms(self, embeddings: Any, slices: Any = None, seed: Any = None) -> dict[str, Any]:
        """Returns `{"sigreg", "invariance"}`, the terms before they are weighted; arguments and errors as of the call.

        `seed` is an integer tensor `(2,)` from which the slices are drawn; None for the loss's own seeds. Compiled
        functions must pass it, or the slices.
        """
        embeddings = ops.convert_to_tensor(embeddings)
        if len(embeddings.shape) != 3 or not self.global_views <= embeddings.shape[0]:
            raise ValueError(
                f"embeddings must be (views, pictures, width), with {self.global_views} global views or more, but "
                f"{tuple(embeddings.shape)} was given."
            )
        embeddings = ops.cast(embeddings, float32_or_better(embeddings.dtype))
        width = embeddings.shape[-1]
        if slices is None:
            generator = self._seeds if seed is None else DrawnSeed(seed)
            slices = keras.random.normal((width, self.slices), dtype="float32", seed=generator)
        slices = ops.convert_to_tensor(slices)
        if len(slices.shape) != 2 or slices.shape[0] != width:
            raise ValueError(f"slices must be ({width}, number of slices), but {tuple(slices.shape)} was given.")
        slices = ops.cast(slices, embeddings.dtype)
        centre = ops.mean(embeddings[: self.global_views], axis=0, keepdims=True)
        return {
            "sigreg": self._sigreg(embeddings, slices / ops.norm(slices, axis=0, keepdims=True)),
            "invariance": ops.mean(ops.square(embeddings - centre)),
        }

    def _sigreg(self, embeddings: Any, slices: Any) -> Any:
        """Returns the statistic of Epps and Pulley, the mean over views and slices, which have length 1."""
        knots = np.linspace(0, self.t_max, self.knots)
        normal = np.exp(-(knots**2) / 2)
        weights = np.full(self.knots, 2 * self.t_max / (self.knots - 1))
        weights[[0, -1]] /= 2
        dtype = embeddings.dtype
        angles = ops.matmul(embeddings, slices)[..., None] * ops.convert_to_tensor(knots, dtype)
        real = ops.mean(ops.cos(angles), axis=1) - ops.convert_to_tensor(normal, dtype)
        imaginary = ops.mean(ops.sin(angles), axis=1)
        distances = ops.square(real) + ops.square(imaginary)
        statistics = ops.sum(distances * ops.convert_to_tensor(weights * normal, dtype), axis=-1)
        return ops.mean(statistics) * ops.cast(ops.shape(embeddings)[1], dtype)


# The run


@dataclasses.dataclass(frozen=True)
class LeJEPA(Task):
    """The objective `"lejepa"` of `pretrain`, with your own settings.

    Args:
        weight: As in `LeJEPALoss`. With 0, nothing prevents the embeddings from collapsing.
        slices: Number of directions drawn in each update.
        projector: Widths of the layers between the model's features and the embeddings. It trains with the model; only
            checkpoints of the run contain it.
        views: The views of a picture; None for `ViewAugmentation()`.

    Raises:
        TypeError, ValueError: if an argument is out of its range.

    Examples:
        >>> task = training.LeJEPA(slices=8, projector=(8, 4), views=training.ViewAugmentation(local_views=2))
        >>> recipe = training.recipe("pretrain/lejepa").replace(steps=1, batch_size=2, image_size=8)
        >>> done = training.pretrain(small, "photos", recipe, objective=task, verbose=False)
        >>> "rank" in done.log[-1]
        True
    """

    weight: float = 0.05
    slices: int = 1024
    projector: Sequence[int] = (2048, 2048, 64)
    views: ViewAugmentation | None = None

    name = "lejepa"
    objective = "lejepa"
    targets = ("none",)
    uses_test_split = False

    def __post_init__(self) -> None:
        views = ViewAugmentation() if self.views is None else self.views
        if not isinstance(views, ViewAugmentation):
            raise TypeError(f"views must be a ViewAugmentation, but {views!r} was given.")
        projector = tuple(whole_number("projector", width, 1) for width in self.projector)
        if not projector:
            raise ValueError("projector must have at least one width, but it is empty.")
        object.__setattr__(self, "views", views)
        object.__setattr__(self, "projector", projector)
        self.figures_of_loss()  # checks the numbers

    def figures_of_loss(self) -> LeJEPALoss:
        return LeJEPALoss(self.weight, self.slices, global_views=self.views.global_views)

    @property
    def title(self) -> str:
        title = f"LeJEPA (weight {self.weight:g}, {self.slices} slices, projector {list(self.projector)})"
        if self.views != ViewAugmentation():
            changed = dataclasses.asdict(self.views).items() - dataclasses.asdict(ViewAugmentation()).items()
            title += f", views with {', '.join(f'{name}={value}' for name, value in sorted(changed))}"
        return title

    def data(self, given: Given) -> Given:
        """Returns what is given for pictures without labels; ValueError for what only labelled data has."""
        settings = given.settings
        asked = {"classes": (settings.classes, None), "class_names": (settings.class_names, None)}
        for name, (value, default) in (asked | {"target": (given.target, "class")}).items():
            if value != default:
                raise ValueError(f"{name}={value!r} is about labels, which LeJEPA does not use. Leave it out.")
        return given.changed(target=NO_TARGET)

    def model(self, given: Given, images: ImageStream) -> Model:
        """Returns a copy of a model, what `load` makes of a file, or a variant, with random weights and no head."""
        model = model_with_any_head(given, None)
        if is_variant(given.model) and isinstance(model, VisionTransformer):
            model = model.with_config(classes=None)
        if not isinstance(model, VisionTransformer):
            raise TypeError(f"model must be a VisionTransformer for LeJEPA, but {type(model).__name__} was given.")
        config = model.config
        if config.dynamic:
            raise ValueError("LeJEPA needs global views of one size: call model.with_image_size((h, w)) first.")
        if config.pooling == "none":
            raise ValueError('LeJEPA needs one vector for each view: call model.with_config(pooling="avg") first.')
        warn_of_many_patches(given.recipe, config.grid_size)
        return model

    def loss(self, run: Run) -> Learning:
        """Returns `lejepa_model` with a new projector, and a loss and a metric that read its outputs."""
        model, images = run.model, run.images
        check_equal_parts(model, images)
        transform = dataclasses.replace(images.transform, local_size=_local_size(self.views, model))
        images.transform = transform

        def batch(number: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
            packed, labels = images.batch(number)
            views = dict(zip(("global", "local"), transform.unpack(packed), strict=True))
            return {name: as_input(model, pixels) for name, pixels in views.items() if pixels.shape[1]}, labels

        trained = lejepa_model(model, self.figures_of_loss(), self.projector, self.views)
        return trained, FirstFigure(), Figures(), batch

    def measure(self, run: Run) -> "Probe":
        """Returns the `Probe` of the model's features."""
        return Probe(run.model, run.tests, run.sharing)


def _local_size(views: ViewAugmentation, model: VisionTransformer) -> tuple[int, int]:
    """Returns (height, width) of local views, in whole patches of the model; ValueError if they cannot be that."""
    size, grid = model.config.image_size, model.config.grid_size
    return views.local_size_for(size, (size[0] // grid[0], size[1] // grid[1]))


# The model that is trained: views to figures


def encode(model: VisionTransformer, images: Any) -> Any:
    """Returns the pooled features `(batch, D)` of symbolic images of any size in whole patches, by a model's layers."""
    patches: list[Any] = []

    def embed(layer: Any, pixels: Any) -> Any:
        patches.append(layer(pixels))
        return patches[0]

    calls = {"embedding": embed, "position_embedding": lambda layer, tokens, *_: layer(tokens, patches[0])}
    there = {layer.name for layer in model.layers}
    calls = {name: call for name, call in calls.items() if name in there}
    return model.run(images, calls, until=last_feature(model), any_size=True)


def last_feature(model: VisionTransformer) -> str:
    """Returns the name of the layer that returns the pooled features of a model."""
    return "encoder_norm" if model.config.final_norm == "pooled" else "pooling"


def lejepa_model(
    model: VisionTransformer, loss: LeJEPALoss, projector: Sequence[int], views: ViewAugmentation
) -> keras.Model:
    """Returns a model with the weights of `model` and a new projector, whose outputs are `FIGURES`: `(pictures, 5)`."""
    head = projector_of(projector, model.dtype_policy)
    sizes = {
        "global": (views.global_views, model.config.image_size),
        "local": (views.local_views, _local_size(views, model)),
    }
    inputs, embeddings = {}, []
    for name, (count, size) in sizes.items():
        if count:
            inputs[name] = keras.Input((count, *size, 3), name=name)
            features = encode(model, ops.reshape(inputs[name], (-1, *size, 3)))
            embeddings.append(ops.reshape(head(features), (-1, count, projector[-1])))
    whole = ops.concatenate(embeddings, axis=1) if len(embeddings) > 1 else embeddings[0]
    return keras.Model(inputs, BatchFigures(loss, dtype="float32", name="figures")(whole), name=f"{model.name}_lejepa")


def projector_of(widths: Sequence[int], policy: Any) -> keras.Sequential:
    """Returns dense layers of these widths, initialised as PyTorch's `Linear`."""
    # Between them are batch normalisation and ReLU; the last layer has a bias and computes in float32.

    def dense(width: int, use_bias: bool, dtype: Any) -> keras.layers.Layer:
        uniform = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
        return keras.layers.Dense(width, use_bias=use_bias, kernel_initializer=uniform, dtype=dtype)

    parts: list[keras.layers.Layer] = []
    for width in widths[:-1]:
        parts += [dense(width, False, policy), BatchNormalization(dtype=policy), keras.layers.ReLU(dtype=policy)]
    return keras.Sequential([*parts, dense(widths[-1], True, "float32")], name="projector")


class BatchFigures(BaseLayer):
    """The loss of a batch, its terms, and what shows a collapse, from embeddings `(pictures, views, D)`.

    Output: `(pictures, 5)`, in each row the same `FIGURES`.
    """

    loss: LeJEPALoss

    def _check_together(self) -> None:
        self.seed_generator = SeedGenerator()

    def call(self, embeddings: Any) -> Any:
        """Returns the figures, without a gradient except for the loss and its terms; slices are drawn again."""
        terms = self.loss.terms(ops.transpose(embeddings, (1, 0, 2)), seed=self.seed_generator.next())
        fixed = ops.stop_gradient(embeddings)
        deviation = ops.sqrt(ops.mean(ops.var(fixed, axis=0)))
        row = [self.loss.weighted(terms), terms["sigreg"], terms["invariance"], effective_rank(fixed), deviation]
        return ops.broadcast_to(ops.stack(row)[None], (ops.shape(embeddings)[0], len(FIGURES)))


def effective_rank(embeddings: Any) -> Any:
    """The effective number of directions among vectors `(..., D)`: 1 on a line through 0, up to D; 0 of zeros."""
    rows = ops.reshape(embeddings, (-1, embeddings.shape[-1]))
    moments = ops.matmul(ops.transpose(rows), rows) / ops.cast(ops.shape(rows)[0], rows.dtype)
    tiny = keras.config.epsilon() ** 2
    return ops.square(ops.trace(moments)) / (ops.sum(ops.square(moments)) + tiny)


@keras.saving.register_keras_serializable(package="keras_vit")
class FirstFigure(keras.losses.Loss):
    """The loss that `BatchFigures` has computed."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the first figure of each picture, `(pictures,)`."""
        return y_pred[:, 0]


class Figures(keras.metrics.Metric):
    """The means of the other `FIGURES` over batches, by their names."""

    def __init__(self, name: str = "figures", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.sums = self.add_weight(shape=(len(FIGURES),), initializer="zeros", name="sums")
        self.pictures = self.add_weight(shape=(), initializer="zeros", name="pictures")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds the figures `(pictures, 5)` of a batch; the other arguments are not used."""
        self.sums.assign_add(ops.sum(ops.cast(y_pred, self.dtype), axis=0))
        self.pictures.assign_add(ops.cast(ops.shape(y_pred)[0], self.dtype))

    def result(self) -> dict[str, Any]:
        """Returns the means by their names, without the loss, which Keras logs."""
        means = self.sums / ops.maximum(self.pictures, 1.0)
        return {name: means[i] for i, name in enumerate(FIGURES) if name != "loss"}


# The probe


class Probe(Measured):
    """How often the nearest neighbours of labelled images, among the others of them, have their class."""

    def __init__(self, model: VisionTransformer, images: ImageStream, sharing: Sharing) -> None:
        if sharing.processes.joint:
            raise ValueError(
                "Several processes compute the validation of LeJEPA only on torch. Leave validation out, and call "
                "evaluation.knn_accuracy on the model of the run."
            )
        if images.target != "class":
            raise ValueError(
                f'validation must have target="class", one class for each image, but it has {images.target!r}.'
            )
        super().__init__(model, images, sharing)
        self._features = keras.Model(model.input, model.get_layer(last_feature(model)).output)

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Returns `{"accuracy": share}` over the images of all processes."""
        features, labels = [], []
        for pixels, targets in self.images:
            if len(pixels):
                batch = fill_up(as_input(self.model, pixels), self.images.batch_size)
                features.append(np.asarray(self._features.predict_on_batch(batch), "float32")[: len(pixels)])
            labels.append(np.argmax(targets, axis=-1) if np.ndim(targets) > 1 else np.asarray(targets))
        whole = [np.concatenate(self.processes.gather(np.concatenate(parts))) for parts in (features, labels)]
        return {"accuracy": neighbour_accuracy(*whole)}


def neighbour_accuracy(features: np.ndarray, labels: np.ndarray) -> float:
    """Returns the share of rows whose class gets most votes of their 20 nearest others: DINO's, exp(cosine / 0.07)."""
    # `features` are `(rows, D)`, of at least two rows, and `labels` their classes, integers from 0.
    units = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    classes, count = int(labels.max()) + 1, min(NEIGHBOURS, len(labels) - 1)
    right = 0
    for start in range(0, len(units), _ROWS):
        cosines = units[start : start + _ROWS] @ units.T
        rows = np.arange(len(cosines))[:, None]
        cosines[rows, start + rows] = -np.inf  # a row is not its own neighbour
        nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
        votes = np.zeros((len(cosines), classes))
        np.add.at(votes, (rows, labels[nearest]), np.exp(cosines[rows, nearest] / TEMPERATURE))
        right += int(np.sum(votes.argmax(axis=1) == labels[start : start + _ROWS]))
    return right / len(labels)
