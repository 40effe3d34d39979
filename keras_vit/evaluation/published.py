"""Do published weights give the published answers and figures? For a machine with network: weights are fetched."""

import contextlib
import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from keras_vit._arguments import Source, did_you_mean, printable, whole_number
from keras_vit._files import at_home, weights_folder
from keras_vit._terminal import Table
from keras_vit.checkpoints import find_checkpoint, list_weights
from keras_vit.checkpoints.files import open_file
from keras_vit.evaluation.accuracy import evaluate
from keras_vit.zoo import load

_FAILURES = (OSError, ValueError, TypeError, KeyError, ImportError)  # of one row, with the reason


@dataclasses.dataclass(frozen=True)
class PublishedAnswer:
    """What a model answered where it was published: a row of `weights/published_answers.json`.

    Attributes:
        repository: The model, a repository of the Hugging Face Hub.
        output: What is compared: logits, or tokens after the last normalisation.
        source: Who published it.
        picture: An address, or a file of the repository; None where `tensors` is given.
        tensors: A file of the repository with an array `input` (images x channels x height x width, normalised).
        answers: A file of the repository with an array `output`; None for `tensors`.
        expected: The values, one for a class or one row for a token; None for those in the file.
        row: The token that the first row is about.
        image_size: Height and width in pixels; None for the model's own.
        absolute: How far a value may be off,
        relative: and how far in addition, as a share of the expected value.

    Examples:
        >>> evaluation.published_answers()[0].repository
        'google/vit-base-patch16-224'
    """

    repository: str
    output: Literal["logits", "tokens"]
    source: str
    picture: str | None = None
    tensors: str | None = None
    answers: str | None = None
    expected: tuple[Any, ...] | None = None
    row: int = 0
    image_size: int | None = None
    absolute: float = 1e-4
    relative: float = 1e-4


class VerificationTable(Table):
    """A row for each published answer; `agrees` says whether all of it came out.

    Examples:
        >>> evaluation.VerificationTable([]).agrees
        True
    """

    columns = {name: name for name in ("repository", "result", "output", "difference", "allowed", "input")}

    @property
    def agrees(self) -> bool:
        """Returns whether every answer came out as it was published; True without rows."""
        return all(row["agrees"] for row in self)


@functools.cache
def published_answers() -> tuple[PublishedAnswer, ...]:
    """Returns all published answers that are known.

    Returns:
        In the order of `weights/published_answers.json`.

    Raises:
        OSError: if this file, which comes with the package, cannot be read.

    Examples:
        >>> len(evaluation.published_answers()) > 10
        True
    """
    data = json.loads((weights_folder() / "published_answers.json").read_text(encoding="utf-8"))
    rows = [{**row, "picture": data["pictures"].get(row.get("picture"), row.get("picture"))} for row in data["answers"]]
    return tuple(PublishedAnswer(**row) for row in rows)


def verify(
    names: str | Sequence[str], *, picture: Source | None = None, answers: Iterable[PublishedAnswer] | None = None
) -> VerificationTable:
    """Returns how answers of models from the Hugging Face Hub compare with those that were published.

    Models compute as their publishers do, in this machine's precision. A weight file, a picture or a repository that
    cannot be had is a row that does not agree, with the reason.

    Args:
        names: Repositories such as `"google/vit-base-patch16-224"`, one or several, or `"all"`.
        picture: A picture to take instead of those at addresses: the published answers are about a PNG copy of a JPEG
            file, and decoders of JPEG differ by a grey level.
        answers: The published answers; None for `published_answers()`.

    Returns:
        A list of dicts with `repository`, `input`, `output`, `source`, `expected` and `answer` (lists), `difference`
        (the largest one), `allowed` (there), `agrees`, `result` (words) and `error`. Printing it draws a table.

    Raises:
        TypeError, ValueError: if there are no published answers under a name, or no names.
        OSError: if the package's table of answers cannot be read.

    Examples:
        >>> evaluation.verify("nobody/nothing")
        Traceback (most recent call last):
        ValueError: ...
    """
    known = tuple(published_answers() if answers is None else answers)
    chosen = _chosen(names, [answer.repository for answer in known], "answers")
    return VerificationTable(_compare(answer, picture) for answer in known if answer.repository in chosen)


def _chosen(names: str | Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """Returns the repositories that `names` has, or all of `known` for "all"."""
    repositories = list(dict.fromkeys(known))
    chosen = [names] if isinstance(names, str) else names
    if not isinstance(chosen, Sequence) or not all(isinstance(name, str) for name in chosen):
        raise TypeError(f"names must be repositories such as 'google/vit-base-patch16-224', but {names!r} was given.")
    if not chosen:
        raise ValueError(f"names must name at least one of: {', '.join(repositories)}; or pass 'all'.")
    for name in chosen:
        if name not in ("all", *repositories):
            hint = did_you_mean(name, {repository.lower(): repository for repository in repositories})
            raise ValueError(f"No published {what} of {name!r} are known.{hint} Known are: {', '.join(repositories)}.")
    return repositories if "all" in chosen else list(chosen)


def _row(
    about: tuple[str, Any, str, str], *, figures: str = "", error: Exception | None = None, **found: Any
) -> dict[str, Any]:
    """Returns one row of a `VerificationTable`: `found` has what was compared; with an error, the reason why not."""
    repository, path, output, source = about
    row = {"repository": repository, "input": os.path.basename(path), "output": output, "source": source}
    row |= dict.fromkeys(("expected", "answer", "difference", "allowed")) | {"agrees": False} | found
    result = f"{'agrees' if row['agrees'] else 'differs'}{figures}"
    if error is not None:
        result = f"failed: {printable(error, 120)}"
    return {**row, "result": result, "error": None if error is None else printable(error, 500)}


def _compare(published: PublishedAnswer, picture: Source | None) -> dict[str, Any]:
    """Returns one row: the output of the model beside the published one, or the error that kept it from that."""
    about = published.repository, published.picture or published.tensors or "", published.output, published.source
    try:
        answer, expected = _answers(published, picture)
        if answer.shape != expected.shape:
            raise ValueError(f"the answer has the shape {answer.shape}, expected {expected.shape}")
    except _FAILURES as error:
        return _row(about, error=error)
    differences = np.abs(answer.astype("float64") - expected)
    limits = published.absolute + published.relative * np.abs(expected)
    worst = int(np.argmax(np.nan_to_num(differences / limits, nan=math.inf)))
    return _row(
        about,
        expected=expected.tolist(),
        answer=answer.tolist(),
        difference=float(differences.flat[worst]),
        allowed=float(limits.flat[worst]),
        agrees=bool((differences <= limits).all()),
    )


def _answers(published: PublishedAnswer, picture: Source | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns those values of the model's answer that were published, and the published ones, as arrays."""
    repository = f"hf://{published.repository}"
    options: dict[str, Any] = {} if published.image_size is None else {"image_size": published.image_size}
    if published.output == "tokens":
        options |= {"include_top": False, "pooling": "none"}
    model = load(repository, **options)
    if published.tensors is not None:
        pixels = open_file(find_checkpoint(f"{repository}/{published.tensors}"))["input"].read()
        images = np.ascontiguousarray(np.moveaxis(pixels, 1, -1))
    else:
        name = str(published.picture)
        address = name if "://" in name else f"{repository}/{name}"
        mine = picture is not None and "://" in name
        images = model.preprocess(picture if mine else find_checkpoint(address))
    answer = np.asarray(model.predict(np.reshape(images, (-1, *images.shape[-3:])), verbose=0))
    if published.expected is None:
        file = open_file(find_checkpoint(f"{repository}/{published.answers or published.tensors}"))
        return answer, file["output"].read().astype("float64")
    expected = np.asarray(published.expected, "float64")
    answer = answer[0, published.row :] if published.output == "tokens" else answer[0]
    return answer[tuple(slice(n) for n in expected.shape)], expected


def verify_figures(
    names: str | Sequence[str],
    data: Any,
    *,
    batch_size: int | None = None,
    rows: Iterable[Mapping[str, Any]] | None = None,
) -> VerificationTable:
    """Returns what models reach on data, beside the figures that were published of them.

    - `"top-1"`, percent, of a model with ImageNet-1k's classes: its accuracy on the validation images, in one view.
    - `"zero-shot top-1"` of a CLIP and a SigLIP: the accuracy on ImageNet-1k's validation images without training, in
      percent, as their authors measured it: OpenAI's 80 templates and 1,000 names, for SigLIP by big_vision's rule and
      numerics. `data` has a folder for each class, called by WordNet's ids (`n01440764`).
    - `"PQ"`, percent, of an EoMT: `data` has the pictures, a file `*panoptic*.json` as COCO's, and its PNGs.
    - `"mIoU"`, percent: `data` is what `open_masks` takes; of ADE20K 0 stands for no class.
    - `"delta1"`: `data` has `images/` and `depth/`, PNGs of 16 bits in millimetres, NYU's 654 test pictures.

    Args:
        names: Repositories such as `"openai/clip-vit-base-patch32"`, one or several, or `"all"` whose figures are
            measured on such data.
        data: The folder with all images that the figure is about, for zero-shot also what else `evaluate` takes.
        batch_size: Images per batch, for accuracies alone; None for 64.
        rows: Rows of the catalogue with `name`, `family` and `figures`; None for those of `list_weights`.

    Returns:
        A list of dicts as of `verify`, one for each figure; `allowed` is by how much a figure may be off. What could
        not be measured is a row that does not agree, with the reason in `error`.

    Raises:
        OSError: if there is no such folder (FileNotFoundError), it cannot be read, or the package's data are missing.
        TypeError, ValueError: if there are no published figures under a name, or no names; if the figure of a name is
            measured on other data, or not in batches, or `batch_size` is less than 1. No weights are fetched before.
        KeyError: if one of `rows` lacks `name` or `figures`.

    Examples:
        >>> evaluation.verify_figures("nobody/nothing", "photos")
        Traceback (most recent call last):
        ValueError: ...
    """
    listed = list_figures(rows)
    chosen = _chosen(names, [row["repository"] for row in listed], "figures")
    batch = 64 if batch_size is None else whole_number("batch_size", batch_size, 1)
    figures = figures_on(data)
    measured = [row for row in listed if row["repository"] in chosen and row["figure"] in figures]
    others = set(chosen) - {row["repository"] for row in measured}  # whose figures are of other data
    wants_all = names == "all" or "all" in tuple(names)
    if not measured or (others and not wants_all):
        wanted = sorted({row["figure"] for row in listed if row["repository"] in chosen} - figures)
        raise ValueError(f"data is for {', '.join(sorted(figures))}, but {', '.join(wanted)} was to be measured.")
    if batch_size is not None and all(row["figure"] not in _ACCURACIES for row in measured):
        raise ValueError(f"batch_size={batch_size!r} is for accuracies, but {measured[0]['figure']} is measured.")
    return VerificationTable(_measure(row, data, batch) for row in measured)


def list_figures(rows: Iterable[Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Returns a row for each published figure that can be measured: one of the catalogue, with three keys more."""
    listed = []
    for row in list_weights() if rows is None else rows:
        figures = dict(row["figures"])
        if row.get("top1") is not None and row.get("classes") == _IMAGENET_CLASSES:
            figures[_TOP_1] = row["top1"]
        repository = row["name"].removeprefix("hf://")
        listed += [
            {**row, "repository": repository, "figure": figure, "published": published}
            for figure, published in figures.items()
            if figure in _MEASURES
        ]
    return listed


def figures_on(data: Any) -> set[str]:
    """Returns the names of the figures that are measured on such data, by what lies in its folder."""
    if not isinstance(data, (str, os.PathLike)) or str(data).startswith("tfds:"):
        return set(_ACCURACIES)
    data = at_home(data)
    if not os.path.exists(data):
        raise FileNotFoundError(f"There is no {os.fspath(data)!r} to measure on.")
    from keras_vit.segmentation.panoptic import panoptic_files

    def has(*names: str) -> bool:
        return any(path.is_dir() for name in names for path in (root / name, *root.glob(f"*/{name}")))

    root = Path(data)
    figures = set()
    if panoptic_files(root):
        figures.add("PQ")
    if has("images") and has("masks", "annotations", "labels"):
        figures.add("mIoU")
    if has("images") and has("depth"):
        figures.add("delta1")
    return figures or set(_ACCURACIES)


def _measure(published: Mapping[str, Any], data: Any, batch_size: int) -> dict[str, Any]:
    """Returns one row: the figure that is measured beside the published one, or why it could not be measured."""
    path = data if isinstance(data, (str, os.PathLike)) else ""
    about = published["repository"], path, published["figure"], "the catalogue's figures"
    compute, allowed = _MEASURES[published["figure"]]
    wanted: dict[str, Any] = {"expected": [published["published"]], "allowed": allowed}
    try:
        figure = compute(published, data, batch_size)
    except _FAILURES as error:
        return _row(about, **wanted, error=error)
    difference = abs(figure - published["published"])
    figures = f": {figure:.4g}, published {published['published']:g}"
    agrees = difference <= allowed
    return _row(about, **wanted, answer=[figure], difference=difference, agrees=agrees, figures=figures)


def _zero_shot_accuracy(published: Mapping[str, Any], data: Any, batch_size: int) -> float:
    """Returns top-1 in percent of ImageNet's classes as words, as the authors of a family measured it."""
    from keras_vit.text import imagenet_names
    from keras_vit.text.image_text import load_pair

    numerics = "official" if published["family"].startswith("SigLIP") else None
    both = load_pair(published["name"], numerics=numerics)
    # Labels are matched by the ids of ImageNet's classes, which the words are in the order of.
    model = both.zero_shot_classifier(imagenet_names(), "openai_80").with_config(class_names=None)
    return 100 * evaluate(model, data, top=(1,), preprocess=True, batch_size=batch_size).accuracy


def _accuracy(published: Mapping[str, Any], data: Any, batch_size: int) -> float:
    """Returns top-1 in percent; the folders of the classes have their WordNet ids, in whose order the outputs are."""
    model = load(published["name"]).with_config(class_names=None)
    return 100 * evaluate(model, data, top=(1,), preprocess=True, batch_size=batch_size).accuracy


def _panoptic_quality(published: Mapping[str, Any], data: Any, batch_size: int) -> float:
    """Returns the panoptic quality (PQ) of a published EoMT in percent, on pictures with panoptic annotations."""
    from keras_vit.segmentation import PanopticQuality, label_set, segment
    from keras_vit.segmentation.panoptic import read_panoptic

    model: Any = load(published["name"])
    names = label_set("ade20k" if "ADE20K" in published["dataset"] else "coco")
    stuff = [k for k in names.stuff if k < model.config.classes]
    metric = PanopticQuality(model.config.classes, stuff)
    for path, ids, segments, crowd in read_panoptic(data, model.config.class_names):
        with _naming(path):
            metric.add(segment(model, path, task="panoptic", stuff_classes=stuff), ids, segments, crowd)
    return 100 * metric.result().quality


def _mean_iou(published: Mapping[str, Any], data: Any, batch_size: int) -> float:
    """Returns the mean IoU of a published model in percent; `batch_size` is not used."""
    from keras_vit.segmentation import evaluate

    return 100 * evaluate(load(published["name"]), data, reduce_zero_label="ADE20K" in published["dataset"]).mean_iou


def _delta1(published: Mapping[str, Any], data: Any, batch_size: int) -> float:
    """Returns the mean delta1 of NYU's pictures, a share; `batch_size` is not used."""
    from keras_vit.depth import depth_errors, estimate, mean_depth_errors
    from keras_vit.depth.metrics import read_nyu

    model, errors = load(published["name"]), []
    for path, metres in read_nyu(data):
        with _naming(path):
            errors.append(depth_errors(estimate(model, path), metres))
    return mean_depth_errors(errors).delta1


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raises a ValueError of the `with` statement again, with the name of the file `path` before its text."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


_ZERO_SHOT, _TOP_1 = "zero-shot top-1", "top-1"
_ACCURACIES = (_ZERO_SHOT, _TOP_1)  # on ImageNet's validation images
_IMAGENET_CLASSES = 1000
# How each figure is measured, and by how much it may be off. How pictures are decoded and resized decides half a point
# of an accuracy, and less of segmentation. They are published with one digit of a percent, delta1 with three.
_MEASURES: dict[str, tuple[Callable[[Mapping[str, Any], Any, int], float], float]] = {
    _ZERO_SHOT: (_zero_shot_accuracy, 0.5),
    _TOP_1: (_accuracy, 0.5),
    "PQ": (_panoptic_quality, 0.3),
    "mIoU": (_mean_iou, 0.3),
    "delta1": (_delta1, 0.002),
}
