"""Pre-training: with labels, by masked patches (appendix B.1.2 of the paper), by LeJEPA (arXiv 2511.08544)."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import check_type, whole_numbers
from keras_vit._options import Above0, Positive, Share, Whole, checked
from keras_vit._processes import fill_up, share
from keras_vit.checkpoints import is_variant
from keras_vit.data import ImageStream, ViewAugmentation
from keras_vit.data.targets import CLASS, NONE
from keras_vit.layers import BatchNormalization
from keras_vit.layers.base import BaseLayer, DrawnSeed, SeedGenerator
from keras_vit.layers.ops import float32_or_better
from keras_vit.models import VisionTransformer, find_variant
from keras_vit.training import tasks
from keras_vit.training.distribution import Batch, Sharing, check_equal_parts
from keras_vit.training.recipes import Recipe
from keras_vit.zoo import create_model


class Pretraining(tasks.FineTuning):
    """Training on labels with the head that the model has; variants begin with random weights."""

    name = "pretrain"
    title = "pre-training"

    def model(self, request: tasks.Request, recipe: Recipe, images: ImageStream) -> tasks.Model:
        model = model_with_any_head(request, recipe, images)
        found, classes = model.config.classes or "no", images.classes
        if found != classes:
            raise ValueError(
                f"model has {found} outputs, but the data has {classes} classes. Pass model.with_classes({classes})."
            )
        return tasks.with_head(model, recipe, images)


def model_with_any_head(request: tasks.Request, recipe: Recipe, images: ImageStream | None) -> tasks.Model:
    """A variant with random weights and a head of zeros for images with labels, or a copy of another model."""
    source = request.model
    if not is_variant(source):
        return tasks.with_size_and_rates(request, recipe)
    rates = {name: getattr(recipe, name) for name in tasks.RATES}
    if find_variant(source).startswith("BiT") and not any(rates.values()):
        rates = {}  # a BiT has none, and refuses those that are set
    classes = {} if images is None else {"classes": images.classes}
    options = {"image_size": recipe.image_size, "dtype": request.settings.dtype, **classes, **rates}
    return create_model(source, classifier_activation=None, **options)


# Masked patch prediction: corrupt patches, predict their colour

CORRUPTED = 0.5  # of the patches of an image; of these:
MASKED, REPLACED = 0.8, 0.1  # by the mask token, by another patch; the rest stays as it is
LEVELS = 8  # of each colour, that is 3 bits
COLOURS = LEVELS**3

KEEP, MASK = -1, -2  # instead of the number of a patch, in the plan of a corruption
NO_TARGET = -1


def plan_corruption(images: int, patches: int, seed: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns which patches are corrupted, and how, drawn from the seed; of two patches or more."""
    rng = np.random.default_rng(seed)
    count = round(CORRUPTED * patches)
    corrupted = np.argsort(rng.random((images, patches)), axis=1) < count
    fate = rng.random((images, patches))
    # Another patch: a step of 1 to patches - 1 away, round the end.
    others = (np.arange(patches) + rng.integers(1, patches, (images, patches))) % patches
    plan = np.where(fate < MASKED, MASK, np.where(fate < MASKED + REPLACED, others, KEEP))
    return np.where(corrupted, plan, KEEP).astype("int32"), corrupted


def mean_colours(pixels: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Returns the 3-bit mean colour of each patch of `(images, height, width, 3)` with values 0..255."""
    (images, height, width, _), (rows, columns) = pixels.shape, grid
    blocks = np.reshape(pixels, (images, rows, height // rows, columns, width // columns, 3))
    means = np.mean(blocks, axis=(2, 4), dtype="float64").reshape(images, rows * columns, 3)
    levels = np.clip(means * LEVELS // 256, 0, LEVELS - 1).astype("int32")
    return levels @ np.array([LEVELS**2, LEVELS, 1], "int32")


@keras.saving.register_keras_serializable(package="keras_vit")
class CorruptPatches(keras.layers.Layer):
    """Tokens `(batch, N, D)` with a learned token, or another patch, in the place of some, by a plan `(batch, N)`."""

    def build(self, tokens_shape: Any, plan_shape: Any = None) -> None:
        self.mask_token = self.add_weight((tokens_shape[-1],), initializer="zeros", name="mask_token")

    def call(self, tokens: Any, plan: Any) -> Any:
        places = ops.broadcast_to(ops.arange(ops.shape(plan)[1], dtype=plan.dtype), ops.shape(plan))
        source = ops.where(plan < 0, places, plan)
        taken = ops.take_along_axis(tokens, source[..., None], axis=1)
        return ops.where((plan == MASK)[..., None], ops.cast(self.mask_token, tokens.dtype), taken)

    def compute_output_shape(self, tokens_shape: Any, plan_shape: Any = None) -> Any:
        return tokens_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedPatchLoss(keras.losses.Loss):
    """Mean cross-entropy of the colours of corrupted patches: targets `(batch, N)`, predictions `(batch, N, 512)`."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the loss of each image, `(batch,)`: its share of the mean over the batch's corrupted patches."""
        y_true = ops.cast(y_true, "int32")
        logits = ops.cast(y_pred, "float32")
        counts = ops.cast(y_true >= 0, "float32")
        losses = keras.losses.sparse_categorical_crossentropy(ops.maximum(y_true, 0), logits, from_logits=True)
        return ops.sum(losses * counts, axis=-1) / ops.maximum(ops.mean(ops.sum(counts, axis=-1)), 1e-9)


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedPatchAccuracy(keras.metrics.Mean):
    """Share of the corrupted patches whose colour is named right."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        y_true = ops.cast(y_true, "int32")
        right = ops.cast(ops.cast(ops.argmax(y_pred, axis=-1), "int32") == y_true, "float32")
        counts = ops.cast(y_true >= 0, "float32")
        if sample_weight is not None:
            counts = counts * ops.reshape(ops.cast(sample_weight, "float32"), (-1, 1))
        super().update_state(right, sample_weight=counts)


def masked_patch_model(model: VisionTransformer) -> keras.Model:
    """Returns a model that predicts the colours of corrupted patches, on another's encoder, with the same weights."""
    # It takes `{"images", "plan"}`, images as `model` takes them and a plan of `plan_corruption`, and returns logits
    # `(batch, N, 512)`.
    check_type("model", model, VisionTransformer, "a VisionTransformer for masked patches")
    config = model.config
    if config.dynamic:
        raise ValueError("Masked patch prediction needs images of one size: call model.with_image_size((h, w)) first.")
    if config.channels != 3:
        raise ValueError(f"Masked patch prediction needs 3 channels, but {model.name} has {config.channels}.")
    if config.grid_size == (1, 1):
        raise ValueError(f"model must have at least 2 patches, but {config.image_size} pixels are one patch.")
    plan = keras.Input((config.grid_size[0] * config.grid_size[1],), dtype="int32", name="plan")
    corrupt = CorruptPatches(dtype=model.dtype_policy, name="corrupt_patches")
    calls = {"tokens": lambda layer, patches: corrupt(layer(patches), plan)}
    if config.final_norm == "pooled":  # all tokens are normalised, as one would be after the pooling
        calls["pooling"] = lambda layer, tokens: tokens
    last = f"block_{config.depth - 1}" if config.final_norm == "none" else "encoder_norm"
    x = model.run(model.input, calls, until=last)[:, config.prefix_tokens :]
    head = keras.layers.Dense(COLOURS, dtype="float32", name="colours")
    return keras.Model({"images": model.input, "plan": plan}, head(x), name=f"{model.name}_masked_patches")


class MaskedPatches(tasks.Task):
    """Masked patch prediction: labels are not looked at, and the model's head stays as it is."""

    name = "masked_patches"
    title = "masked patches"
    objective = "masked_patches"
    targets = ("class", "multilabel", "number")

    def model(self, request: tasks.Request, recipe: Recipe, images: ImageStream) -> tasks.Model:
        model = model_with_any_head(request, recipe, images)
        return model.with_config(class_token_only=False) if model.config.class_token_only else model  # all are read

    def loss(self, run: tasks.Run) -> tasks.Learning:
        batch = corrupted_batches(run.model, run.images, run.seed)
        return masked_patch_model(run.model), MaskedPatchLoss(), [MaskedPatchAccuracy(name="accuracy")], batch

    def measure(self, run: tasks.Run) -> Any:
        return tasks.measured_loss(run, corrupted_batches(run.model, run.tests, run.seed + 1))


def corrupted_batches(model: VisionTransformer, images: ImageStream, seed: int) -> Batch:
    """A function from the number of a batch to images, a plan of their corruption, and colours to predict."""
    grid = model.config.grid_size

    def batch(number: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        pixels, _ = images.batch(number)
        whole = images.length(number) if images.shard[1] > 1 else len(pixels)
        rows = share(whole, images.shard)
        plan, corrupted = (array[rows] for array in plan_corruption(whole, grid[0] * grid[1], (seed, number)))
        targets = np.where(corrupted, mean_colours(pixels, grid), NO_TARGET).astype("int32")
        return {"images": tasks.as_input(model, pixels), "plan": plan}, targets

    return batch


# LeJEPA

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

    @checked
    def __init__(
        self,
        weight: Share = 0.05,
        slices: Positive = 1024,
        knots: Annotated[int, Whole(2)] = 17,
        t_max: Above0 = 3.0,
        global_views: Positive = 2,
        *,
        seed: int | None = None,
    ) -> None:
        self.weight, self.slices, self.knots, self.t_max = weight, slices, knots, t_max
        self.global_views = global_views
        self._seeds = keras.random.SeedGenerator(seed)

    def __call__(self, embeddings: Any, slices: Any = None) -> Any:
        return self.weighted(self.terms(embeddings, slices))

    def weighted(self, terms: dict[str, Any]) -> Any:
        """`weight * sigreg + (1 - weight) * invariance` of what `terms` returned."""
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


@dataclasses.dataclass(frozen=True)
class LeJEPA(tasks.Task):
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
    targets = (NONE.name,)
    loss_name = objective
    uses_test_split = False

    def __post_init__(self) -> None:
        views = ViewAugmentation() if self.views is None else self.views
        check_type("views", views, ViewAugmentation, "a ViewAugmentation")
        object.__setattr__(self, "views", views)
        object.__setattr__(self, "projector", whole_numbers("projector", self.projector, 1))
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

    def data(self, request: tasks.Request, recipe: Recipe) -> tasks.Request:
        """Returns what is given for pictures without labels; ValueError for what only labelled data has."""
        settings = request.settings
        asked = {"classes": (settings.classes, None), "class_names": (settings.class_names, None)}
        for name, (value, default) in (asked | {"target": (request.target, "class")}).items():
            if value != default:
                raise ValueError(f"{name}={value!r} is about labels, which are not used here. Leave it out.")
        return request.changed(target=NONE.name)

    def model(self, request: tasks.Request, recipe: Recipe, images: ImageStream) -> tasks.Model:
        """Returns a copy of a model, what `load` makes of a file, or a variant, with random weights and no head."""
        model = model_with_any_head(request, recipe, None)
        if is_variant(request.model) and isinstance(model, VisionTransformer):
            model = model.with_config(classes=None)
        config, name = model.config, type(self).__name__
        check_type("model", model, VisionTransformer, f"a VisionTransformer for {name}")
        if config.dynamic:
            raise ValueError(f"{name} needs global views of one size: call model.with_image_size((h, w)) first.")
        if config.pooling == "none":
            raise ValueError(f'{name} needs one vector for each view: call model.with_config(pooling="avg") first.')
        tasks.warn_of_many_patches(recipe, config.grid_size)
        return model

    def loss(self, run: tasks.Run) -> tasks.Learning:
        """Returns `lejepa_model` with a new projector, and a loss and a metric that read its outputs."""
        model, images = run.model, run.images
        check_equal_parts(model, images)
        transform = dataclasses.replace(images.transform, local_size=_local_size(self.views, model))
        images.transform = transform

        def batch(number: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
            packed, labels = images.batch(number)
            views = dict(zip(("global", "local"), transform.unpack(packed), strict=True))
            return {name: tasks.as_input(model, pixels) for name, pixels in views.items() if pixels.shape[1]}, labels

        trained = lejepa_model(model, self.figures_of_loss(), self.projector, self.views)
        metrics = [keras.metrics.MeanMetricWrapper(figure, name, number=i) for i, name in enumerate(FIGURES)]
        return trained, figure, metrics[1:], batch

    def measure(self, run: tasks.Run) -> "Probe":
        """The `Probe` of the model's features."""
        return Probe(run.model, run.tests, run.sharing)


def _local_size(views: ViewAugmentation, model: VisionTransformer) -> tuple[int, int]:
    """(height, width) of local views, in whole patches of the model; ValueError if they cannot be that."""
    size, grid = model.config.image_size, model.config.grid_size
    return views.local_size_for(size, (size[0] // grid[0], size[1] // grid[1]))


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
    """The name of the layer that returns the pooled features of a model."""
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
    """Returns an MLP of these widths with batch normalisation, initialised as PyTorch's `Linear`."""
    # Between them are batch normalisation and ReLU; the last layer has a bias and computes in float32.

    def dense(width: int, use_bias: bool, dtype: Any) -> keras.layers.Layer:
        uniform = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
        return keras.layers.Dense(width, use_bias=use_bias, kernel_initializer=uniform, dtype=dtype)

    parts: list[keras.layers.Layer] = []
    for width in widths[:-1]:
        parts += [dense(width, False, policy), BatchNormalization(dtype=policy), keras.layers.ReLU(dtype=policy)]
    return keras.Sequential([*parts, dense(widths[-1], True, "float32")], name="projector")


class BatchFigures(BaseLayer):
    """The same `FIGURES` in each row, `(pictures, 5)`, of a batch of embeddings `(pictures, views, D)`."""

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


def figure(y_true: Any, y_pred: Any, number: int = 0) -> Any:
    """One of the figures of each picture, `(pictures,)`: 0 is the loss that `BatchFigures` has computed."""
    return y_pred[:, number]


class Probe(tasks.Measured):
    """How often the nearest neighbours of labelled images, among the others of them, have their class."""

    def __init__(self, model: VisionTransformer, images: ImageStream, sharing: Sharing) -> None:
        if sharing.processes.joint:
            raise ValueError("Several processes validate LeJEPA only on torch: call evaluation.knn_accuracy later.")
        if images.kind is not CLASS:
            raise ValueError(f"validation must have the target {CLASS.name!r}, but it has {images.target!r}.")
        super().__init__(model, images, sharing)
        self._features = keras.Model(model.input, model.get_layer(last_feature(model)).output)

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Returns `{"accuracy": share}` over the images of all processes."""
        return {"accuracy": neighbour_accuracy(*gathered(self, self._features, self.model))}


def gathered(measured: tasks.Measured, features: keras.Model, prepared_for: Any = None) -> list[np.ndarray]:
    """Returns vectors `(rows, D)` of the images of all processes, and their labels."""
    found, labels = [], []
    for pixels, targets in measured.images:
        if len(pixels):
            batch = fill_up(pixels, measured.images.batch_size)
            made = features.predict_on_batch(batch if prepared_for is None else tasks.as_input(prepared_for, batch))
            made = made["pooled"] if isinstance(made, dict) else made
            found.append(np.asarray(made, "float32")[: len(pixels)])
        labels.append(np.argmax(targets, axis=-1) if np.ndim(targets) > 1 else np.asarray(targets))
    return [np.concatenate(measured.processes.gather(np.concatenate(parts))) for parts in (found, labels)]


def nearest(features: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the 20 nearest other rows by cosine, and the cosines, of rows in turn; `features` are `(rows, D)`."""
    units = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    for start in range(0, len(units), _ROWS):
        cosines = units[start : start + _ROWS] @ units.T
        rows = np.arange(len(cosines))[:, None]
        cosines[rows, start + rows] = -np.inf  # a row is not its own neighbour
        order = np.argsort(-cosines, axis=1, kind="stable")[:, : min(NEIGHBOURS, len(units) - 1)]
        yield order, cosines[rows, order]


def neighbour_accuracy(features: np.ndarray, labels: np.ndarray) -> float:
    """Returns the share of rows whose class gets most votes of their 20 nearest others: DINO's, exp(cosine / 0.07)."""
    # `features` are `(rows, D)`, of at least two rows, and `labels` their classes, integers from 0.
    answers = []
    for order, cosines in nearest(features):
        votes = np.zeros((len(order), int(labels.max()) + 1))
        np.add.at(votes, (np.arange(len(order))[:, None], labels[order]), np.exp(cosines / TEMPERATURE))
        answers.append(votes.argmax(axis=1))
    return float(np.mean(np.concatenate(answers) == labels))
