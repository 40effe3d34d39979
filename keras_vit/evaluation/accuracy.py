"""Accuracy on labelled images, over all and per class; and how images in any form become batches for a model."""

import contextlib
import dataclasses
import itertools
import math
import os
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import keras
import numpy as np

from keras_vit._arguments import check_choice, check_type, to_numpy, whole_numbers
from keras_vit._files import expanded_path
from keras_vit._options import INSIDE, Count, Positive, checked, option, refuse
from keras_vit._pictures import shown
from keras_vit._processes import ALONE, Processes, batch_shares, connect, fill_up, local_model, share
from keras_vit._terminal import ClassesResult, Column, PlainData, ProgressBar
from keras_vit.data import ImageStream, match_labels, open_data, pick_split
from keras_vit.data.examples import check_labels, is_folder, split_folders, visible
from keras_vit.data.targets import CLASS, MULTILABEL, TARGETS, kind_of_data
from keras_vit.evaluation.targets import CLASSES, IMAGES, LOSS, SPEED, TINY, measure_labels, measure_regression
from keras_vit.models import BiT, ImageModel, VisionTransformer
from keras_vit.preprocessing import imagenet1k_classes, resize_images
from keras_vit.zoo import as_model

CONFUSION_CLASSES = 4096  # a matrix for more classes would take over 128 MiB
CROP = 7 / 8  # 224 of 256 pixels, as Krizhevsky et al. (2012) cut them
CROP_PLACES = ((0, 0), (0, 1), (1, 0), (1, 1), (0.5, 0.5))  # shares of what is left over above and left of a crop
SCALED_MOST = 16  # No scaling of pixels that is in use reaches it: mean 0 and deviation 1 end below 3.
Pairs = Iterator[tuple[np.ndarray, np.ndarray]]
_OUTPUTS = {None: "logits", "linear": "logits", "softmax": "softmax", "sigmoid": "sigmoid"}  # by the activation


@dataclasses.dataclass(frozen=True, eq=False)
class Mistake(PlainData):
    """An image that the model classifies wrongly.

    Attributes:
        number: Number of the image in the data, from 0.
        label: The true class.
        guess: The class that the model predicts.
        margin: Output of the predicted class minus output of the true class.
        image: The model's input as pixels, uint8 `(height, width, 3)`: its first three channels, or its first as grey.
        name: Name of the image: its path, or `"images[95]"`; None if unknown.

    Examples:
        >>> wrong = evaluation.evaluate(small, (small_images, labels), mistakes=4, progress=False).mistakes
        >>> all(mistake.guess != mistake.label for mistake in wrong)
        True
    """

    number: int
    label: int
    guess: int
    margin: float
    image: np.ndarray
    name: str | None

    hidden = ("image",)


@dataclasses.dataclass(frozen=True, eq=False)
class AccuracyResult(ClassesResult):
    """The result of `evaluate`. Printing it draws a table; `class_table(worst=None)` lists the classes.

    Attributes:
        examples: Number of images.
        classes: Number of outputs of the model.
        top: From k to the share of images whose class is among the k largest outputs.
        loss: Mean cross-entropy in nats; for sigmoid outputs, the sum of the classes' binary cross-entropies. None if
            the kind of outputs is unknown.
        images_per_class: int64 `(classes,)`.
        correct_per_class: int64 `(classes,)`: number of these that are right.
        confusion: int64 `(classes, classes)`: rows are what the images show, columns what the model predicts; None for
            more than `CONFUSION_CLASSES` classes.
        class_names: Names of the classes, or None.
        seconds: Duration, including reading the data.
        mistakes: The worst mistakes, if `evaluate` was asked to keep some.

    Examples:
        >>> result = evaluation.evaluate(small, (small_images, labels), top=(1,), progress=False)
        >>> result.examples, result.confusion.shape
        (4, (2, 2))
    """

    examples: int
    classes: int
    top: dict[int, float]
    loss: float | None
    images_per_class: np.ndarray
    correct_per_class: np.ndarray
    confusion: np.ndarray | None
    class_names: tuple[str, ...] | None
    seconds: float
    mistakes: tuple[Mistake, ...] = ()

    @property
    def accuracy(self) -> float:
        """The share of images whose class has the largest output."""
        return int(self.correct_per_class.sum()) / self.examples

    @property
    def per_class(self) -> np.ndarray:
        """The accuracy on the images of each class, float64 `(classes,)`; NaN where there are none."""
        return self.correct_per_class / np.where(self.images_per_class, self.images_per_class, np.nan)

    @property
    def taken_for(self) -> np.ndarray:
        """For each class, the wrong class that its images get most often, such as `"cat (2)"`.

        The number counts the images. An object array `(classes,)`; None for a class without mistakes, or if there is no
        confusion matrix.
        """
        names = self.class_names or [str(i) for i in range(self.classes)]
        found = np.full(self.classes, None, object)
        if self.confusion is not None:
            wrong = self.confusion * ~np.eye(self.classes, dtype=bool)
            for i in np.flatnonzero(wrong.any(1)):
                found[i] = f"{names[wrong[i].argmax()]} ({wrong[i].max()})"
        return found

    derived = ("accuracy", "per_class")
    class_columns = (
        Column("images", lambda result: result.images_per_class),
        Column("accuracy %", lambda result: result.per_class, percent=True),
        Column("taken for", lambda result: result.taken_for),
    )

    @property
    def columns(self) -> tuple[Column, ...]:  # ty: ignore[incompatible-property-override]
        """The headings of the printed table, with functions that read their values from a result."""
        top = (Column(f"top-{k} %", lambda result, k=k: result.top[k], percent=True) for k in self.top)
        loss = (LOSS,) if self.loss is not None else ()
        return (IMAGES, CLASSES, *top, *loss, SPEED)


@checked
def evaluate(
    model: Any,
    data: Any,
    *,
    top: Sequence[int] = (1, 5),
    outputs: Literal["logits", "softmax", "sigmoid"] | None = None,
    preprocess: bool | None = None,
    batch_size: Positive = 64,
    class_names: Sequence[str] | None = None,
    target: str | None = None,
    threshold: Annotated[float, INSIDE] = 0.5,
    views: Literal["flip", "crops"] | None = None,
    mistakes: Count = 0,
    on_bad_image: str = "stop",
    distribution: str | None = None,
    progress: bool = True,
) -> Any:
    """Evaluates a model on labelled images: accuracy, for several labels mAP and F1, for a regression its errors.

    Args:
        model: A Keras model or a function from images to outputs `(batch, classes)`, or what `keras_vit.load` takes.
        data: What `keras_vit.data.open_data` takes or returns, or a list or generator of batches. Of a folder, the
            `test/` is taken. Labels are integers or one-hot. Images in arrays and pipelines are preprocessed, or pixels
            with `preprocess=True`.
        top: Values of k for top-k accuracies; values above the number of classes are left out.
        outputs: Kind of outputs, for the loss: `"logits"`, `"softmax"` or `"sigmoid"`. None: from the model's config;
            models of other packages then have no loss.
        preprocess: Whether to preprocess images, pixels of 0..255 of any size. None: yes for files, streams and lists
            of images of different sizes.
        batch_size: Images per batch, if the data is not in batches.
        class_names: Names of the labels, in their order, if the data has no names (see `open_data`). If the model also
            has names, labels and outputs are matched by name: the data may have fewer classes than the model, in
            another order.
        target: Kind of the labels: `"class"`, `"multilabel"` (rows of 0 and 1) or `"number"`; other kinds, such as
            masks, are evaluated by their own function. None: the target of the data, otherwise `"class"`.
        threshold: For several labels: a class is predicted if its probability is at least this.
        views: Test-time augmentation, whose outputs are averaged: `"flip"`: the image and its mirror image; `"crops"`:
            both for crops of 7/8 of the sides at the four corners and the centre (Krizhevsky et al., 2012).
        mistakes: Number of worst mistakes to keep, with their images; 0 if processes share the images.
        on_bad_image: `"stop"` or `"skip"`, for pixels (see `open_data`).
        distribution: None: all processes that the program was started in share the images, and each gets the result for
            all (see `keras_vit.training.connect`). `"alone"`: this process evaluates all images.
        progress: Whether to show a progress bar.

    Returns:
        An `AccuracyResult`: accuracy over all images and per class, loss, and the confusion matrix. For several labels
        a `MultilabelResult` with mAP and F1, for regression a `NumberResult` with R2 and the mean absolute error.

    Raises:
        TypeError, ValueError: if an argument or the data is invalid, a class is unknown to the model, or an output is
            not finite.
        OSError: if data or a model file is missing (FileNotFoundError), cannot be read or fetched (DownloadError), or
            another process ends (ConnectionError).
        ImportError, RuntimeError: if a package that reads the data is missing, or processes cannot work together.

    Examples:
        >>> result = evaluation.evaluate(small, (pixels, labels), preprocess=True, progress=False)
        >>> 0 <= result.top[1] <= 1
        True
    """
    top = whole_numbers("top", top, 1)
    given = {"top": top, "threshold": threshold, "outputs": outputs, "mistakes": mistakes, "class_names": class_names}
    given |= {"preprocess": preprocess, "batch_size": batch_size, "views": views}
    if target is not None:
        check_choice("target", target, tuple(name for name, of in TARGETS.items() if of.evaluate))
    of = kind_of_data(None if target else data, target or CLASS.name)
    if target is not None or not of.is_label:
        refuse(_OF_TARGETS, given, {"target": of.name})
    if not of.is_label:
        common = {"on_bad_image": on_bad_image, "distribution": distribution, "progress": progress}
        measure = pkgutil.resolve_name(of.evaluate) if isinstance(of.evaluate, str) else of.evaluate
        return measure(as_model(model), data, **common)
    processes = connect(distribution)  # before anything is computed
    model = as_model(model)
    config = getattr(model, "config", None)
    check_type("model", model, Callable, "a Keras model or a function")
    if getattr(config, "classes", 0) is None:
        raise ValueError("The model has no head, so it cannot classify. Build it with include_top=True.")
    kind: str | None = outputs
    if kind is None and hasattr(config, "classifier_activation"):
        kind = _OUTPUTS.get(config.classifier_activation)
    mistakes = mistakes if processes.count == 1 else 0
    started = time.perf_counter()
    settings: dict[str, Any] = {"preprocess": preprocess, "batch_size": batch_size, "class_names": class_names}
    settings |= {"classes": getattr(config, "classes", None), "on_bad_image": on_bad_image, "target": target}
    settings |= {"title": "images" if progress and processes.first else None, "processes": processes}
    opened = open_batches(model, data, "test", **settings)
    with processes.explaining_lost_processes(), opened as (pairs, data_names, found_target, image_names):
        refuse(_OF_TARGETS, given, {"target": found_target})
        computed = _with_outputs(predictor(model), pairs, views)
        first = next(computed)
        count = first[1].shape[1]
        computed = itertools.chain([first], computed)
        rows = ((scores, labels) for _, scores, labels in computed)  # images are forgotten
        if not TARGETS[found_target].has_classes:
            return measure_regression(*all_outputs(rows, processes), started)
        label_outputs, names = _match(config, data_names, count)
        if TARGETS[found_target].several:
            if kind not in ("logits", "sigmoid"):
                raise ValueError(f"target='multilabel' needs 'logits' or 'sigmoid', but the outputs are {kind!r}.")
            return measure_labels(*all_outputs(rows, processes), kind, label_outputs, threshold, names, started)
        counts, worst = _Counts(count, top, kind), []
        for images, scores, labels in computed:
            labels = labels if label_outputs is None else label_outputs[labels]
            counts.add(scores, labels)
            if mistakes:
                number = counts.examples - len(labels)
                worst = _worst_mistakes(worst, mistakes, images, scores, labels, number, config)
        known = image_names() if worst else []
        if known:
            worst = [dataclasses.replace(mistake, name=known[mistake.number]) for mistake in worst]
        return counts.result(processes, names, started, tuple(worst))


# Options that are not for every target.
_OF_LABELS = {"target": tuple(name for name, kind in TARGETS.items() if kind.is_label)}
_OF_TARGETS = {
    "top": option((1, 5), when={"target": (CLASS.name,)}),
    "mistakes": option(0, when={"target": (CLASS.name,)}),
    "threshold": option(0.5, when={"target": (MULTILABEL.name,)}),
    "outputs": option(None, when={"target": (CLASS.name, MULTILABEL.name)}),
    "class_names": option(None, when={"target": (CLASS.name, MULTILABEL.name)}),
    "preprocess": option(None, when=_OF_LABELS),
    "batch_size": option(64, when=_OF_LABELS),
    "views": option(None, when=_OF_LABELS),
}


def _with_outputs(
    predict: Callable[[np.ndarray], np.ndarray], pairs: Pairs, views: str | None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields images, the mean of the outputs for the views of each, and labels, batch by batch."""
    for images, labels in pairs:
        if views is not None and images.ndim != 4:
            raise ValueError(f"views={views!r} needs images (batch, height, width, channels), not {images.shape}.")
        outputs = [predict(view) for view in _views(images, views)]
        yield images, sum(outputs[1:], outputs[0]) / len(outputs), labels


def _views(images: np.ndarray, views: str | None) -> Iterator[np.ndarray]:
    """Yields batches of one size: the images, or for `"crops"` ten crops; for `"flip"` also mirror images."""
    cuts = [images]
    if views == "crops":
        height, width = images.shape[1:3]
        rows, columns = max(1, round(CROP * height)), max(1, round(CROP * width))
        places = [(round(y * (height - rows)), round(x * (width - columns))) for y, x in CROP_PLACES]
        cuts = [resize_images(images[:, y : y + rows, x : x + columns], (height, width)) for y, x in places]
    yield from cuts
    if views is not None:
        yield from (np.ascontiguousarray(view[:, :, ::-1]) for view in cuts)


def _worst_mistakes(
    known: Sequence[Mistake],
    count: int,
    images: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    number: int,
    config: Any,
) -> list[Mistake]:
    """Returns at most `count` mistakes, of those known and those of a batch: the largest margins, the largest first."""
    guesses, rows = scores.argmax(1), np.arange(len(labels))
    margins = scores[rows, guesses] - scores[rows, labels]
    found, pipeline = list(known), None if getattr(config, "include_preprocessing", True) else config.pipeline
    for i in np.argsort(-margins, kind="stable")[:count].tolist():
        if guesses[i] != labels[i]:
            label, guess, margin = int(labels[i]), int(guesses[i]), float(margins[i])
            image = shown(images[i], pipeline) if images.ndim == 4 else np.zeros((1, 1, 3), "uint8")
            found.append(Mistake(number + i, label, guess, margin, image, None))
    return sorted(found, key=lambda mistake: (-mistake.margin, mistake.number))[:count]


def _match(
    config: Any, data_names: Sequence[str] | None, classes: int
) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """Returns the output of each label, int64, or None where labels are outputs; and the outputs' names, or None."""
    names = getattr(config, "class_names", None)
    if data_names is None:
        return None, names
    if names is None and classes == 1000:
        ids, imagenet = zip(*imagenet1k_classes(), strict=True)
        names = imagenet if set(data_names) <= set(ids) else None
    if names is not None:
        return match_labels(data_names, names), tuple(names)
    if len(data_names) != classes:
        raise ValueError(
            f"The data has {len(data_names)} classes, but the model has {classes} outputs without names. Pass a model "
            "for this data, or name the outputs with model.with_config(class_names=[...])."
        )
    return None, tuple(data_names)


class _Counts:
    """What is added up from batch to batch: images, those that are right, losses, the confusion matrix."""

    def __init__(self, classes: int, top: Sequence[int], outputs: str | None) -> None:
        self.classes, self.outputs, self.examples, self.loss = classes, outputs, 0, 0.0
        self.top = [k for k in top if k <= classes]
        self.images, self.correct = np.zeros((2, classes), "int64")
        self.within = np.zeros(len(self.top), "int64")
        self.confusion = np.zeros((classes, classes), "int64") if classes <= CONFUSION_CLASSES else None

    def add(self, scores: np.ndarray, labels: np.ndarray) -> None:
        """Adds a batch of scores `(batch, classes)` and labels `(batch,)`; the part of a process may be empty."""
        if scores.shape[1] != self.classes:
            raise ValueError(f"The model must return {self.classes} outputs for each batch, not {scores.shape[1]}.")
        if labels.max(initial=0) >= self.classes:
            raise ValueError(
                f"Labels must be from 0 to {self.classes - 1} for a model with {self.classes} outputs, but one is "
                f"{labels.max()}. Pass the model for this data."
            )
        # Of equal outputs the first counts as the largest, as argmax has it.
        score = scores[np.arange(len(labels)), labels][:, None]
        earlier = np.arange(self.classes) < labels[:, None]
        rank = ((scores > score) | ((scores == score) & earlier)).sum(1)
        self.examples += len(labels)
        self.within += np.array([(rank < k).sum() for k in self.top], "int64")
        self.images += np.bincount(labels, minlength=self.classes)
        self.correct += np.bincount(labels[rank == 0], minlength=self.classes)
        if self.confusion is not None:
            np.add.at(self.confusion, (labels, scores.argmax(1)), 1)
        if self.outputs is not None:
            self.loss += float(_losses(self.outputs, scores.astype("float64"), labels).sum())

    def result(
        self, processes: Processes, class_names: tuple[str, ...] | None, started: float, mistakes: tuple[Mistake, ...]
    ) -> AccuracyResult:
        images, correct, within, loss = map(processes.total, (self.images, self.correct, self.within, self.loss))
        examples = int(images.sum())
        return AccuracyResult(
            examples,
            self.classes,
            {k: int(count) / examples for k, count in zip(self.top, within, strict=True)},
            None if self.outputs is None else float(loss) / examples,
            images,
            correct,
            None if self.confusion is None else processes.total(self.confusion),
            class_names,
            time.perf_counter() - started,
            mistakes,
        )


def _losses(outputs: str, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the cross-entropy of each image, float64 `(batch,)`; of sigmoids, the sum of the classes' binary ones."""
    rows = np.arange(len(labels))
    if outputs == "logits":
        top = scores.max(1)
        return np.log(np.exp(scores - top[:, None]).sum(1)) + top - scores[rows, labels]
    if outputs == "softmax":
        return -np.log(np.maximum(scores[rows, labels], TINY))
    yes, no = np.log(np.maximum(scores, TINY)), np.log(np.maximum(1 - scores, TINY))
    return -(yes[rows, labels] + no.sum(1) - no[rows, labels])


# Labelled images in whatever form they come, as batches for a model, with a progress bar; and the model's outputs.


def batches(
    data: Any, batch_size: int = 64, *, title: str = "images", progress: bool = True, target: str = "class"
) -> Pairs:
    """Yields batches of images and labels from labelled data of any kind, once.

    Images or features `(batch, ...)` are yielded as they are given. Labels are int64 `(batch,)`, for several labels
    float32 `(batch, classes)`, for regression `(batch, 1)`. `title` is the text before the progress bar.

    Args:
        data: A tuple `(images, labels)` of arrays, what `keras_vit.data.open_data` returns, or anything that yields
            such tuples batch by batch: a list, a generator, a `tf.data.Dataset`, a torch `DataLoader`, a grain dataset.
        batch_size: Images per batch, for arrays.
        target: As in `evaluate`, which names all errors, and `progress` as well.

    Examples:
        >>> [batch.shape for batch, _ in evaluation.batches((small_images, labels), batch_size=3, progress=False)]
        [(3, 8, 8, 3), (1, 8, 8, 3)]
    """
    known = None if isinstance(data, ImageStream) and target == "class" else target  # a stream has its own
    bar = title if progress else None
    with open_batches(None, data, "test", batch_size=batch_size, title=bar, target=known) as (pairs, *_):
        yield from pairs


@contextlib.contextmanager
def open_batches(
    model: Any,
    data: Any,
    split: str,
    *,
    preprocess: bool | None = None,
    batch_size: int = 64,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    on_bad_image: str = "stop",
    title: str | None = "images",
    processes: Processes = ALONE,
    target: str | None = None,
) -> Iterator[tuple[Pairs, list[str] | None, str, Callable[[], list[str]]]]:
    """Yields batches as a model takes them, names of classes, the target, and a function that names the images then."""
    if isinstance(data, Mapping):
        data = pick_split(data, split)
    config: Any = model.config if isinstance(model, (VisionTransformer, BiT)) else None
    if isinstance(model, ImageModel):
        expected = "a classifier (see segmentation.evaluate, detection.evaluate and depth.depth_errors for others)"
        check_type("model", model, (VisionTransformer, BiT), expected)
    pixels = _are_pixels(data)
    if pixels and preprocess is False:
        raise ValueError("preprocess=False needs preprocessed images, but this data holds pixels. Leave it out.")
    pixels = pixels or bool(preprocess)
    if pixels and config is None and not (model is None and isinstance(data, ImageStream)):
        raise ValueError("preprocess=True and image files need a model of keras_vit. Preprocess the images yourself.")
    if not pixels and on_bad_image != "stop":
        raise ValueError(f"on_bad_image={on_bad_image!r} needs pixels, not preprocessed images. Leave it out.")
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "class_names": _numbers_in_order(config, data, split) if class_names is None else class_names,
        "on_bad_image": on_bad_image,
        "split": split,
        "shuffle": False,
        "shard": processes.shard,
        "target": target or "class",
    }
    if isinstance(data, ImageStream):
        if class_names is not None or on_bad_image != "stop":
            raise ValueError("class_names and on_bad_image belong to open_data, which made the stream. Leave them out.")
        context: Any = contextlib.nullcontext(data)  # its owner closes it
    elif pixels:
        # Names of folders and tables say how many classes there are; the model may have others.
        named = class_names is not None or isinstance(data, (str, os.PathLike)) or hasattr(data, "open_examples")
        options["classes"] = None if named or target == "number" else classes
        options |= {"resize": config.pipeline, "channels": config.channels}
        context = open_data(data, image_size=config.image_size, **options)
    else:
        context = open_data(data, image_size=None, **options)
    with context as stream, ProgressBar(title or "", stream.steps_per_epoch, shown=title is not None) as bar:
        if target not in (None, stream.target):
            raise ValueError(f"target={target!r} was given, but the data has the target {stream.target!r}.")
        limit = np.inf if pixels or config is None or config.include_preprocessing else SCALED_MOST

        def prepared(step: int, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            most = images.max(initial=0)
            if most > limit:
                raise ValueError(f"The images reach {most:g}, so they are not normalised. Pass preprocess=True.")
            if pixels and config is not None and not config.include_preprocessing:
                images = config.pipeline.normalized(images)
            rows = share(len(labels), processes.shard) if stream.shard != processes.shard else slice(None)
            return images[rows], one_class_each(labels, f"batch {step}", stream.target, stream.classes)[rows]

        def image_names() -> list[str]:
            if stream.name is None or stream.shard[1] > 1:
                return []
            left_out = {image.path for image in stream.bad}
            return [name for name in map(stream.name, range(stream.examples or 0)) if name not in left_out]

        yield bar.track(stream.map(prepared)), stream.class_names, stream.target, image_names


def _numbers_in_order(config: Any, data: Any, split: str) -> list[str] | None:
    """Returns the names of classes that are numbers, as the model orders them: in a folder their order is ambiguous."""
    names = [*(getattr(config, "class_names", None) or ())]
    known = [*(getattr(data, "class_names", None) or ())]
    if isinstance(data, (str, os.PathLike)) and os.path.isdir(expanded_path(data)):
        folders = split_folders(Path(expanded_path(data)))
        folder = folders.get("train") or folders[split]
        known = [entry.name for entry in visible(folder) if is_folder(entry)]
    fit = known and {*known} <= {*names} and all(map(str.isdecimal, known))
    return [name for name in names if name in known] if fit else None


def _are_pixels(data: Any) -> bool:
    """Whether data can be nothing but pixels: a path, a table, a stream, a list of images of several sizes."""
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], (tuple, list)):
        return len({np.shape(image) for image in data[0]}) > 1
    return isinstance(data, (str, os.PathLike, ImageStream)) or hasattr(data, "open_examples")


def one_class_each(labels: Any, where: str, target: str = "class", classes: int | None = None) -> np.ndarray:
    """Returns the class of each image, int64 `(batch,)`, from integers or one-hot rows.

    Labels of other targets become float32 `(batch, classes)`, `(batch, 1)` for numbers.
    """
    if target == "class" and classes == 1:  # one-hot rows of one column would be read as the number of class 1
        return np.zeros(len(labels), "int64")
    checked, _ = check_labels(labels, None, where, target=target)
    if checked.ndim == 1 or target != "class":
        return checked
    wrong = ((checked == 1).sum(1) != 1) | ((checked == 0).sum(1) != checked.shape[1] - 1)
    if wrong.any():
        raise ValueError(f"Row {np.argmax(wrong)} of the labels of {where} is not one-hot. Pass labels without mixup.")
    return checked.argmax(1)


def predictor(model: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function from a batch of images to the outputs of a model, or function, as floats `(batch, n)`."""
    # Shorter batches are filled up to the size of the largest before them, which spares JAX another compilation, and
    # every batch to a multiple of the number of devices that share it.
    length, shares = 0, batch_shares(model)
    model = local_model(model) if isinstance(model, keras.Model) else model

    def predict(inputs: np.ndarray) -> np.ndarray:
        nonlocal length
        count = len(inputs)
        length = max(length, math.ceil(count / shares) * shares)
        inputs = inputs if count else fill_up(inputs, 1)  # the part of a process may be empty
        if isinstance(model, keras.Model):
            inputs = fill_up(inputs, length)
            found = model.predict(inputs, batch_size=len(inputs), verbose=0)
        else:
            found = model(inputs)
        outputs = keras.tree.flatten(found)
        if len(outputs) != 1:
            raise ValueError(f"The model must have one output, but it has {len(outputs)}.")
        rows = to_numpy(outputs[0])[:count]
        rows = rows if np.issubdtype(rows.dtype, np.floating) else rows.astype("float32")
        if rows.ndim != 2 or len(rows) != count:
            raise ValueError(
                f"The model must return one vector for each image, ({count}, n), but it returned {rows.shape}. A model "
                "without pooling returns one for each token: build it with pooling='token' or 'avg'."
            )
        finite = np.isfinite(rows).all(1)
        if not finite.all():
            row = int(np.argmin(finite))
            raise ValueError(f"The model's output for image {row} of a batch is not finite. Check image and weights.")
        return rows

    return predict


def all_outputs(rows: Pairs, processes: Processes) -> tuple[np.ndarray, np.ndarray]:
    """The outputs and the labels of all batches and processes, each joined along the first axis.

    `rows` yields `(outputs, labels)` for each batch of this process, one or more.
    """
    outputs, labels = zip(*rows, strict=True)
    return processes.in_order(outputs), processes.in_order(labels)
