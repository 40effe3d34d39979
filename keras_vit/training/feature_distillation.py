"""Feature distillation: from pictures without labels, a small model learns to give the features of a large one."""

import dataclasses
import functools
import math
import pkgutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import check_type
from keras_vit._options import From0, Options
from keras_vit.checkpoints.files import read_npz, write_npz
from keras_vit.data import Augmentation, ImageStream
from keras_vit.data.targets import CLASS, NONE
from keras_vit.layers import BatchNormalization, resize
from keras_vit.layers.base import BaseLayer
from keras_vit.models import BiT, VisionTransformer, feature_extractor
from keras_vit.training import tasks
from keras_vit.training.distilling import normalization
from keras_vit.training.distribution import Batch
from keras_vit.training.pretraining import LeJEPA, figure, gathered, nearest, neighbour_accuracy
from keras_vit.zoo import as_model

FEATURES = {"pooled": "pooled", "patches": "encoded"}  # what is learned, and its name among a model's features
PLAIN = Augmentation(crop="resize", flip=False)


@dataclasses.dataclass(frozen=True)
class FeatureDistillation(Options, tasks.Task):
    """The objective of `pretrain(student, pictures, teacher=teacher)`, with your own settings.

    Student and teacher see the same crop, each at its own image size. Linear layers (adaptors), which only the run's
    `adaptors.npz` keeps, map the student's pooled vector (often the class token) and patches to the teacher's, whose
    channels are standardised by running statistics (UNIC, arXiv 2408.05088), because a few are loud; of two grids the
    larger is resized. The loss is the sum of `weight * (cosine * (1 - cosine similarity) + smooth_l1 * smooth L1)`, as
    in UNIC, with equal weights, and for patches in AM-RADIO (arXiv 2312.06709), whose pooled vector has no smooth L1.

    Args:
        teacher: A VisionTransformer, a BiT, or what `load` takes; `load(..., dtype="bfloat16")` computes in bfloat16.
        pooled: Weight of the pooled vector.
        patches: Weight of the mean over patches; 0 leaves them out.
        cosine: Weight of 1 - the cosine similarity.
        smooth_l1: Weight of the smooth L1 distance, the mean over channels.
        standardize: Whether the teacher's features are standardised.
        views: The crops of training pictures.
        cache: Folder for the teacher's features of picture files, computed once by `evaluation.embed`; without random
            crops (`views=Augmentation(crop="resize", flip=False)`): pictures are cut as the teacher needs them.

    Raises TypeError or ValueError if an argument is out of its range.

    Examples:
        >>> task = training.FeatureDistillation(small, patches=0.0)
        >>> recipe = training.recipe("pretrain/feature_distillation").replace(steps=1, batch_size=2, image_size=8)
        >>> "pooled_cosine" in training.pretrain(small, "photos", recipe, objective=task, verbose=False).log[-1]
        True
    """

    teacher: Any = None
    pooled: From0 = 1.0
    patches: From0 = 1.0
    cosine: From0 = 1.0
    smooth_l1: From0 = 1.0
    standardize: bool = True
    views: Augmentation = Augmentation(min_area=0.08)
    cache: str | Path | None = None

    name = objective = "feature_distillation"
    targets = (NONE.name,)
    loss_name = "cosine and smooth L1"
    uses_test_split = False
    data, model = LeJEPA.data, LeJEPA.model

    def _check_together(self) -> None:
        object.__setattr__(self, "teacher", as_model(self.teacher))
        check_type("teacher", self.teacher, (VisionTransformer, BiT), "one VisionTransformer, BiT or what load takes")
        if not (self.pooled or self.patches) or not (self.cosine or self.smooth_l1):
            raise ValueError(
                "pooled or patches, and cosine or smooth_l1, must be above 0, so that something is learned."
            )
        if self.cache is not None and self.views != PLAIN:
            raise ValueError(f"cache is for views={PLAIN}, but {self.views} was given. Leave cache out.")

    @property
    def title(self) -> str:
        how = (f"{name}={getattr(self, name)}" for name in sorted(self.given - {"teacher"}))
        return ", ".join([f"features of {self.teacher.name}", *how])

    @property
    def learned(self) -> dict[str, float]:
        return {"pooled": self.pooled} | ({"patches": self.patches} if self.patches else {})

    def readers(self, run: tasks.Run) -> list[keras.Model]:
        """Returns models from crops to the features of student and teacher; sets the run's image size to such crops."""
        if run.sharing.processes.joint:
            raise ValueError("On JAX a model learns from a teacher in one process only. Start one process.")
        crop = tuple(map(max, run.model.config.image_size, self.teacher.config.image_size))
        for images in filter(None, (run.images, run.tests)):
            images.transform = dataclasses.replace(images.transform, image_size=crop)
        return [features_of(model, self.learned, crop) for model in (run.model, self.teacher)]

    def loss(self, run: tasks.Run) -> tasks.Learning:
        if (found := run.model.config.channels) != (wanted := self.teacher.config.channels):
            raise ValueError(f"The student takes {found} channels, but the teacher {wanted}. Pass another teacher.")
        student, teacher = self.readers(run)
        if not student.trainable_weights:
            raise ValueError(f"All of {run.model.name} but its head is frozen, so it would not learn: unfreeze(model).")
        rows = None if self.cache is None else self.cached(run, teacher)
        batch, inputs, pairs = functools.lru_cache(2)(taught(run.images, teacher, rows)), {"crops": student.input}, []
        first, _ = batch(0)
        for name in self.learned:
            y = inputs[name] = keras.Input(first[name].shape[1:], name=name)
            if self.standardize:
                layer = Standardize(0.99, center=False, scale=False, dtype="float32", name=f"{name}_statistics")
                y, flat = layer(y), first[name].reshape(-1, y.shape[-1])
                layer.moving_mean.assign(flat.mean(axis=0))
                layer.moving_variance.assign(flat.var(axis=0))
            pairs += [keras.layers.Dense(y.shape[-1], dtype="float32", name=f"{name}_adaptor")(student.output[name]), y]
        weights = [(weight * self.cosine, weight * self.smooth_l1) for weight in self.learned.values()]
        trained = keras.Model(inputs, Distances(weights, dtype="float32")(pairs), name=f"{run.model.name}_distilled")
        numbered = enumerate(self.learned, 1)
        metrics = [keras.metrics.MeanMetricWrapper(figure, f"{name}_cosine", number=i) for i, name in numbered]
        return trained, figure, metrics, batch

    def cached(self, run: tasks.Run, teacher: keras.Model) -> Any:
        """Returns a function from the numbers of training pictures to the teacher's features, in files of `embed`."""
        images, processes, arrays = run.images, run.sharing.processes, {}
        files = [] if images.name is None else [Path(images.name(i)) for i in range(images.examples)]
        if not files or not all(map(Path.is_file, files)):
            raise ValueError("cache is for files of pictures, but the data is in memory or a pipeline. Leave it out.")
        for name in self.learned:
            path = Path(self.cache).expanduser() / f"{name}.npz"
            if processes.first:
                path.parent.mkdir(parents=True, exist_ok=True)
                embed = pkgutil.resolve_name("keras_vit.evaluation:embed")  # evaluation stands beside training
                embed(self.teacher, files, path, features=FEATURES[name], distribution="alone", progress=False)
            processes.from_first()
            arrays[name] = read_npz(path, "features")["features"], teacher.output[name].shape[1:]
        places = np.argsort(np.argsort([file.as_posix() for file in files]))  # the rows of `embed` are sorted by name
        # Pictures as `embed` cuts them; their labels, which nobody reads, are their numbers.
        images.transform = dataclasses.replace(images.transform, augmentation=None, resize=self.teacher.config.pipeline)
        images.labels = np.arange(len(files))[:, None]
        return lambda numbers: {name: rows_of(*array, places[numbers]) for name, array in arrays.items()}

    def measure(self, run: tasks.Run) -> "Agreement":
        return Agreement(run, *self.readers(run))

    def finish(self, run: tasks.Run, trained: Any, folder: Path | None) -> None:
        if folder is not None:
            arrays = ((w.path, w.numpy()) for w in trained.weights if w.path.startswith(("pooled_", "patches_")))
            write_npz(folder / "adaptors.npz", arrays, overwrite=True)


def features_of(model: tasks.Model, names: Any, crop: tuple[int, ...]) -> keras.Model:
    """Returns a model from crops in 0..255, `(batch, *crop, channels)`, to vectors and maps of features by name."""
    images = crops = keras.Input((*crop, model.config.channels), name="crops")
    if crop != model.config.image_size:
        images = ops.image.resize(images, model.config.image_size, antialias=True, data_format="channels_last")
    mean, std = (np.asarray(value, "float32") for value in normalization(model))
    made = feature_extractor(model, [FEATURES[name] for name in names], layout="map")((images - mean) / std)
    return keras.Model(crops, {name: ops.cast(made[FEATURES[name]], "float32") for name in names})


def rows_of(array: Any, shape: tuple[int, ...], places: np.ndarray) -> np.ndarray:
    """Returns rows of a stored array of vectors, maps, or tokens, of which the last become maps of a shape."""
    made = np.stack([array.piece(int(i) * math.prod(array.shape[1:]), array.shape[1:]).read_stored() for i in places])
    return made.reshape(len(made), -1, shape[-1])[:, -math.prod(shape[:-1]) :].reshape(-1, *shape)


def taught(images: ImageStream, teacher: keras.Model, rows: Any = None) -> Batch:
    """Returns a function from the number of a batch to its crops and the teacher's features, and labels."""

    def batch(number: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        crops, labels = images.batch(number)
        wanted = teacher.predict_on_batch(crops) if rows is None else rows(labels[:, 0])
        if not all(np.isfinite(features).all() for features in wanted.values()):
            raise ValueError(f"The teacher's features of batch {number} are not finite. Check its weights and dtype.")
        return {"crops": crops, **wanted}, labels

    return batch


class Standardize(BatchNormalization):
    """Features by their running mean and variance, also in training."""

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        super().call(inputs, training=training)  # moves the statistics
        return super().call(inputs, training=False)


class Distances(BaseLayer):
    """From a list of the student's and the teacher's features in turn to the loss and each cosine, `(batch, 1 + n)`."""

    weights_of: Any  # by pair: those of 1 - cosine and of smooth L1

    def call(self, features: list[Any]) -> Any:
        loss, cosines = 0.0, []
        for x, y, (of_cosine, of_smooth) in zip(features[::2], features[1::2], self.weights_of, strict=True):
            if len(x.shape) == 4:
                x, y = (resize(one, tuple(map(min, x.shape[1:3], y.shape[1:3])), "half_pixel") for one in (x, y))
            x, y = (ops.reshape(one, (-1, math.prod(one.shape[1:-1]), one.shape[-1])) for one in (x, y))
            cosines.append(ops.mean(ops.sum(ops.normalize(x) * ops.normalize(y), axis=-1), axis=1))
            loss += of_cosine * (1.0 - cosines[-1]) + of_smooth * ops.mean(keras.losses.huber(y, x), axis=1)
        return ops.stack([loss, *cosines], axis=-1)


class Agreement(tasks.Measured):
    """How far a student agrees with its teacher on held-out pictures, also before; with labels, the accuracies."""

    def __init__(self, run: tasks.Run, student: keras.Model, teacher: keras.Model) -> None:
        super().__init__(student, run.tests, run.sharing)
        self.loss = tasks.measured_loss(run, taught(run.tests, teacher))
        self.wanted, _ = gathered(self, teacher)
        self.before = {f"{name}_before": value for name, value in self.figures().items() if "teacher" not in name}

    def figures(self) -> dict[str, float]:
        found, labels = gathered(self, self.model)
        both = {"accuracy": found, "accuracy_teacher": self.wanted} if self.images.kind is CLASS else {}
        return agreement(found, self.wanted) | {name: neighbour_accuracy(x, labels) for name, x in both.items()}

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        return self.loss.evaluate(model) | self.figures() | self.before


def agreement(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Returns the linear centred kernel alignment (arXiv 1905.00414) and the share of common neighbours of rows."""
    pairs = zip(nearest(x), nearest(y), strict=True)
    shared = np.concatenate([(a[:, :, None] == b[:, None]).any(2).mean(1) for (a, _), (b, _) in pairs])
    x, y = (one.astype("float64") - one.mean(axis=0, dtype="float64") for one in (x, y))
    both, own, other = (np.linalg.norm(a.T @ b) for a, b in ((x, y), (x, x), (y, y)))
    return {"cka": float(both**2 / max(own * other, 1e-12)), "knn": float(shared.mean())}
