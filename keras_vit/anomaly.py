"""Anomaly detection without training: good pictures make the score and the map of any other one, and a threshold.

Patches of a Vision Transformer are compared with those of good pictures, as in AnomalyDINO (arXiv 2405.14529).
"""

import dataclasses
import math
import operator
import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_vit._arguments import Source, check_type, listing, printable, require_packages, to_numpy, warn_caller
from keras_vit._arguments import unit_vectors as unit
from keras_vit._files import expanded_path
from keras_vit._options import INSIDE, Count, From0, Part, Positive, checked
from keras_vit._pictures import ColourBar, colour_numbers, palette, plot_map
from keras_vit._terminal import Column, TableResult
from keras_vit.data import image_files
from keras_vit.data.examples import Reading, is_folder, is_pipeline, one_pass, pair_of, visible
from keras_vit.data.opening import open_pictures
from keras_vit.data.targets import NONE
from keras_vit.layers import anomaly as layers
from keras_vit.models import AnomalyConfig, AnomalyDetector, VisionTransformer
from keras_vit.models.changes import copy_state
from keras_vit.models.dense import token_map
from keras_vit.models.dense_config import WITHOUT_TOP
from keras_vit.preprocessing.images import picture_to_draw, read_channels, read_picture, short_side
from keras_vit.zoo import as_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    *("Anomaly", "AnomalyMetrics", "conformal_threshold", "detect", "evaluate", "fit", "foreground_mask"),
    *("greedy_coreset", "metrics", "plot"),
]


class _Good(NamedTuple):
    """A good picture: its name, its patches `(N, D)`, which of them count, and those for the bank."""

    name: str
    patches: np.ndarray
    mask: np.ndarray | bool
    kept: np.ndarray


@checked
def fit(
    model: VisionTransformer | Source,
    good_pictures: Any,
    *,
    image_size: Positive = 448,
    rotations: bool = False,
    masking: bool = False,
    neighbours: Positive = 1,
    metric: Literal["cosine", "L2"] = "cosine",
    coreset: Part | None = None,
    sigma: From0 = 4.0,
    false_alarms: Annotated[float, INSIDE] = 0.05,
    verbose: bool = True,
) -> AnomalyDetector:
    """Returns an `AnomalyDetector` that compares pictures with good ones; nothing is trained.

    Args:
        model: A Vision Transformer, such as a DINOv2, or what `keras_vit.load` takes.
        good_pictures: A folder (or its `train/`), a list of files or pictures, an array, or a pipeline.
        image_size: Pixels of the shorter side. All pictures share one aspect ratio; what fills no patch is cut off.
        rotations: Whether good pictures are also turned by 45, 90, ... 315 degrees, for parts that lie anyhow.
        masking: Whether patches of the background count as good (`foreground_mask`). Exports refuse such detectors.
        neighbours: How many of the nearest neighbours a distance is the mean of.
        metric: `"cosine"`: 1 - cosine, or `"L2"`: the root of the mean of squared distances.
        coreset: The share of each picture's patches that is kept, by `greedy_coreset`; None for all.
        sigma: The standard deviation in pixels of the Gaussian that smooths maps; 0 for none.
        false_alarms: The share of good pictures above the threshold, `conformal_threshold` of the scores of each good
            picture against the other ones. If good pictures are exchangeable with new ones, it is about this share, and
            at most twice (jackknife+, arXiv 1905.02928, theorem 1; a coreset of each picture alone keeps it valid).
        verbose: Whether to print the good pictures with the largest scores.

    Raises:
        TypeError, ValueError: if an argument is invalid, a picture cannot be read, or has another aspect ratio.
        OSError, ImportError: if a file or folder cannot be read; if a package is missing.

    Warns if there are too few pictures for `false_alarms`, or one picture twice.

    Examples:
        >>> inspector = keras_vit.anomaly.fit(model, pixels, image_size=24, false_alarms=0.3, verbose=False)
        >>> inspector.good_scores.shape
        (4,)
    """
    source = as_model(model, image_size="dynamic")
    check_type("model", source, VisionTransformer, "a VisionTransformer")
    extractor, parts, angles = None, [], range(0, 360, 45) if rotations else range(1)
    for name, picture in _pictures(good_pictures, source.config.channels):
        if extractor is None:
            options = {"neighbours": neighbours, "metric": metric, "masking": masking, "sigma": sigma}
            backbone, config = _configured(source, short_side(picture.shape[:2], image_size), options)
            features, _ = token_map(backbone, source.config.depth - 1, backbone.dtype_policy)
            extractor = keras.Model(backbone.input, features)
        try:
            turned = [rotated(picture, angle) for angle in angles]
            images = config.pipeline(turned, config.channels, normalize=not config.include_preprocessing)
        except ValueError as error:
            raise ValueError(f"{printable(name)}: {error}") from error
        maps = to_numpy(extractor.predict_on_batch(images)).astype("float32")
        if not np.isfinite(maps).all():
            raise ValueError(f"{printable(name)} has features that are NaN or infinite. Check the weights and dtype.")
        patches = maps.reshape(-1, maps.shape[-1])
        patches = unit(patches) if metric == "cosine" else patches
        count = len(patches) if coreset is None else int(len(patches) * coreset)
        if not count:
            raise ValueError(f"coreset={coreset} of the {len(patches)} patches of a picture is none. Pass more.")
        kept = patches if coreset is None else patches[greedy_coreset(patches, count)]
        mask = foreground_mask(maps[0]).ravel() if masking else True
        parts.append(_Good(name, patches[: math.prod(config.grid_size)], mask, kept))
    if extractor is None:
        raise ValueError("good_pictures must hold at least one picture, but it has none.")
    scores, threshold, rate = _good_scores(parts, neighbours, metric), None, None
    if len(parts) > 1:
        threshold, rate = conformal_threshold(scores, false_alarms)
    else:
        warn_caller("good_pictures has one picture, which cannot be compared with others: there is no threshold.")
    for i in np.argsort(-scores, kind="stable")[: 5 if verbose else 0].tolist():
        print(f"good picture, score {scores[i]:.4f}: {printable(parts[i].name)}")
    bank = np.concatenate([part.kept.T for part in parts], axis=1)
    figures = {"good_scores": scores.tolist(), "threshold": threshold, "false_alarms": rate}
    detector = AnomalyDetector(config.replace(bank_size=bank.shape[1], **figures), dtype=backbone.dtype_policy)
    copy_state(backbone, detector.backbone)
    detector.get_layer("distances").bank.assign(bank)
    return detector


def _configured(
    source: VisionTransformer, size: tuple[int, int], options: dict[str, Any]
) -> tuple[VisionTransformer, AnomalyConfig]:
    """Returns a backbone for pictures that are resized to a size, and the config of a detector without a bank."""
    norm = {"final_norm": "tokens"} if source.config.final_norm == "pooled" else {}
    patch = source.config.image_size_of((1, 1))
    whole = (size[0] // patch[0] * patch[0], size[1] // patch[1] * patch[1])
    if 0 in whole:
        raise ValueError(f"image_size must be at least a patch, {max(patch)} pixels, but {min(size)} was given.")
    backbone = source.with_config(**WITHOUT_TOP, **norm, image_size=whole)
    size_of_bank = {"bank_size": options["neighbours"]}
    return backbone, AnomalyConfig(backbone=backbone.config, picture_size=size, **size_of_bank, **options)


def _pictures(source: Any, channels: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the name and the pixels of each picture, at its own size."""
    if not is_pipeline(source):
        examples = open_pictures(expanded_path(source), "train", Reading(channels=channels))
        yield from ((examples.called(i), read_picture(examples.read(i)[0], channels)) for i in range(len(examples)))
        return
    for number, element in enumerate(one_pass(source)):
        images, _ = pair_of(element, NONE)
        for picture in images if images.ndim == 4 else images[None]:
            yield f"element {number} of the pipeline", read_picture(picture, channels)


def rotated(pixels: np.ndarray, angle: int) -> np.ndarray:
    """Returns a picture turned about `(width / 2, height / 2)`, as `cv2.warpAffine` with mirrored margins."""
    if angle == 0:
        return pixels
    require_packages("rotations=True", ("scipy",), "segmentation")
    from scipy.ndimage import affine_transform

    # Rounded, because 90 degrees are to read half a pixel, not one billionth less.
    cosine, sine = (round(f(math.radians(angle)), 9) for f in (math.cos, math.sin))
    turn = np.array([[cosine, sine, 0], [-sine, cosine, 0], [0, 0, 1]])
    centre = np.array([pixels.shape[0] / 2, pixels.shape[1] / 2, 0])
    turned = affine_transform(pixels.astype("float64"), turn, centre - turn @ centre, order=1, mode="mirror")
    return np.rint(turned).astype(pixels.dtype) if pixels.dtype.kind in "iu" else turned.astype(pixels.dtype)


def _good_scores(parts: list[_Good], neighbours: int, metric: str) -> np.ndarray:
    """Returns the score of each good picture against the bank of the other ones; warns of equal pictures."""
    step, width = math.ceil(len(parts) / 8), len(parts[0].kept)
    groups = [np.concatenate([part.kept.T for part in parts[start::step]], 1) for start in range(step)]
    banks = [keras.ops.convert_to_tensor(group) for group in groups]

    def compared(x: np.ndarray, found: np.ndarray, banks: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the largest products, those `found` before among them, and the distances that they make."""
        x, found = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(found)
        more = [layers.nearest_products(x, bank, neighbours, metric) for bank in banks]
        found = layers.largest(keras.ops.concatenate([found, *more], -1), found.shape[-1])
        return to_numpy(found), to_numpy(layers.mean_distances(x, found, metric))

    scores = []
    for i, part in enumerate(parts if len(parts) > 1 else []):
        own, start = banks[i % step], i // step * width
        others = [*banks]
        others[i % step] = keras.ops.concatenate([own[:, :start], own[:, start + width :]], 1)
        x, count = part.patches, layers.score_patches(len(part.patches))
        none = np.full((len(x), min(neighbours, width * (len(parts) - 1))), -np.inf, "float32")
        rows, least = np.flatnonzero(np.broadcast_to(part.mask, len(x))), 0.0
        products, distances = none.copy(), np.zeros(len(x))
        # The more banks, the smaller a distance: a patch below `count` complete ones is not compared with the rest.
        for bank in others if rows.size else []:
            products[rows], distances[rows] = compared(x[rows], products[rows], [bank])
            rows = rows[np.argsort(-distances[rows], kind="stable")]
            if bank is others[0] and count <= len(rows):
                least = compared(x[rows[:count]], none[:count], others)[1].min()
            above = int((distances[rows] >= least).sum())
            rows = rows[: 1 << (above - 1).bit_length()]  # a power of two: JAX compiles each shape
        scores.append(np.sort(distances)[-count:].mean())
    marks = [hash(part.patches.tobytes()) for part in parts]
    twice = [part.name for part, mark in zip(parts, marks, strict=True) if marks.count(mark) > 1]
    if twice:
        warn_caller(f"good_pictures has pictures twice: {listing(twice)}. They make the threshold too low.")
    return np.array(scores, "float64")


@checked
def conformal_threshold(scores: ArrayLike, false_alarms: Annotated[float, INSIDE]) -> tuple[float, float]:
    """Returns a threshold of the `scores` of good pictures, and the share `false_alarms` that it stands for.

    It is the k-th smallest of n scores, `k = ceil((n + 1) (1 - false_alarms))`, counted exactly. A score above it is an
    alarm. A new good picture gives one with at most this probability if the scores are of pictures that are not in the
    bank (split conformal prediction). With fewer than `1 / false_alarms - 1` scores, it is the largest, for the share
    `1 / (n + 1)`, with a warning. ValueError if scores are not a row of finite numbers.

    Examples:
        >>> keras_vit.anomaly.conformal_threshold(range(1, 20), 0.1)
        (18.0, 0.1)
    """
    values = np.sort(_numbers("scores", scores, 1))
    share, count = Fraction(str(false_alarms)), len(values)  # as it is written: 0.1 is more in binary
    k = math.ceil((count + 1) * (1 - share))
    if k <= count:
        return float(values[k - 1]), false_alarms
    warn_caller(
        f"false_alarms={false_alarms} needs {math.ceil(1 / share) - 1} good pictures, but there are {count}. The "
        f"threshold is their largest score, which stands for false_alarms={1 / (count + 1):.3g}."
    )
    return float(values[-1]), 1 / (count + 1)


def _numbers(name: str, values: ArrayLike, axes: int) -> np.ndarray:
    array = to_numpy(values)
    if array.ndim != axes or not array.size or array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        wanted = f"{name} must be finite numbers with {axes} axes"
        raise ValueError(f"{wanted}, but {array.dtype} {array.shape} was given, or NaN or infinity.")
    return array.astype("float64")


@checked
def greedy_coreset(vectors: ArrayLike, count: Positive, start: Count = 0) -> np.ndarray:
    """Returns the numbers of `count` vectors that cover all of `vectors` `(n, D)`, int64, in the order of their choice.

    `start` is the first; each next one is the farthest from all before, of equally far ones the first (PatchCore, arXiv
    2106.08265, algorithm 1, without its random projection). TypeError or ValueError if an argument is invalid.

    Examples:
        >>> keras_vit.anomaly.greedy_coreset([[0.0], [1.0], [5.0], [4.0]], 3).tolist()
        [0, 2, 1]
    """
    x = _numbers("vectors", vectors, 2)
    if count > len(x) or start >= len(x):
        raise ValueError(f"count and start must fit {len(x)} vectors, but {count} and {start} were given.")
    chosen, squares, near = [start], np.square(x).sum(1), np.full(len(x), np.inf)
    for _ in range(count - 1):
        near = np.minimum(near, squares + squares[chosen[-1]] - 2 * (x @ x[chosen[-1]]))
        near[chosen] = -1  # below the rounding of vectors that are there twice
        chosen.append(int(near.argmax()))
    return np.array(chosen, "int64")


def foreground_mask(features: ArrayLike) -> np.ndarray:
    """Returns which patches show the object, booleans `(rows, columns)`, from `features` `(rows, columns, D)`.

    Those are in the mask whose projection on the first principal component is above 10, which suits DINOv2, or below
    -10 if at most 35 % of the centre are above. It is then dilated and closed by 3 x 3 patches of the grid, as anomalib
    does; AnomalyDINO's `compute_background_mask` dilates along the row of all patches. ValueError for other features.

    Examples:
        >>> int(keras_vit.anomaly.foreground_mask(np.zeros((4, 4, 8))).sum())
        0
    """
    return to_numpy(layers.foreground(_numbers("features", features, 3)[None].astype("float32")))[0]


# Pictures


@dataclasses.dataclass(frozen=True)
class Anomaly:
    """What `detect` finds in a picture.

    Attributes:
        score: The mean of the largest distances of patches.
        map: float32 `(height, width)` of the picture: the smoothed distances.
        threshold: That of the detector.

    Examples:
        >>> keras_vit.anomaly.Anomaly(0.3, np.zeros((2, 2)), threshold=0.2).is_anomalous
        True
    """

    score: float
    map: np.ndarray
    threshold: float | None

    @property
    def is_anomalous(self) -> bool | None:
        """Whether the score is above the threshold; None without a threshold."""
        # In float32, as in an exported file.
        return None if self.threshold is None else bool(np.float32(self.score) > np.float32(self.threshold))


@checked
def detect(model: AnomalyDetector, picture: Any) -> Anomaly:
    """Returns the score of a picture, its map at its own size, and whether it is anomalous, as an `Anomaly`.

    `picture` is as in `keras_vit.depth.estimate`, also for errors, and has the aspect ratio of the good pictures.

    Examples:
        >>> keras_vit.anomaly.detect(inspector, pixels[0]).is_anomalous
        False
    """
    pixels = read_picture(picture, model.config.channels)
    answers = model.with_distances.predict_on_batch(model.preprocess(pixels))
    score, grid = float(to_numpy(answers["score"])[0]), to_numpy(answers["distances"])[0]
    down, across = (layers.map_matrix(*of, model.config.sigma) for of in zip(pixels.shape, grid.shape, strict=False))
    return Anomaly(score, (down @ grid @ across.T).astype("float32"), model.threshold)


@checked
def plot(result: Anomaly, picture: Any, path: str | os.PathLike[str] | None = None) -> "Figure":
    """Returns a figure of a picture beside its map, where anomalies are bright; arguments as in `keras_vit.depth.plot`.

    Examples:
        >>> figure = keras_vit.anomaly.plot(keras_vit.anomaly.detect(inspector, pixels[0]), pixels[0], "map.png")
    """
    limit, most = result.threshold, max(float(result.map.max()), result.threshold or 1e-6)
    colours = palette("inferno", 256)[colour_numbers(result.map, 0, most, 256)]
    tiles = [("picture", picture_to_draw(picture, result.map.shape)), ("distance to good pictures", colours)]
    words = f"score {result.score:.3g}, " + ("no threshold" if limit is None else f"threshold {limit:.3g}")
    title = {True: "Anomalous", False: "Good", None: "Without a decision"}[result.is_anomalous]
    return plot_map(tiles, path, title=title, words=words, side=4.4, bar=ColourBar("inferno", 0, most))


# How good scores and maps are


@dataclasses.dataclass(frozen=True)
class AnomalyMetrics(TableResult):
    """How well anomalous pictures and pixels are told from good ones. Printing it draws a table.

    Attributes:
        pictures: Number of pictures.
        auroc: The area under the curve of found anomalies over false alarms.
        average_precision: The mean precision over the anomalies, without interpolation.
        f1_max: The largest F1 score over all thresholds.
        pixel_auroc, pixel_f1_max: The same of pixels; None without masks.
        aupro: The mean share of each region that is found, over the share of false pixels up to `fpr_limit`.

    Examples:
        >>> keras_vit.anomaly.metrics([0.1, 0.2, 0.3], [0, 1, 1]).auroc
        1.0
    """

    pictures: int
    auroc: float
    average_precision: float
    f1_max: float
    pixel_auroc: float | None = None
    pixel_f1_max: float | None = None
    aupro: float | None = None

    columns = (Column("pictures", operator.attrgetter("pictures")),) + tuple(
        Column(name.replace("_", " "), operator.attrgetter(name), digits=4)
        for name in ("auroc", "average_precision", "f1_max", "pixel_auroc", "pixel_f1_max", "aupro")
    )


@checked
def metrics(
    scores: ArrayLike, labels: ArrayLike, maps: Any = None, masks: Any = None, fpr_limit: Part = 0.3
) -> AnomalyMetrics:
    """Returns the metrics of scores and, with masks, of maps, as scikit-learn and MVTec's evaluation compute them.

    Args:
        scores: `(n,)`, larger for anomalies.
        labels: `(n,)`: 0 for those that are good.
        maps: `(m, height, width)`, or a list of maps of any sizes.
        masks: The same shapes, 0 for pixels that are good. Pixels that touch, also at corners, are a region.
        fpr_limit: The share of false pixels up to which AU-PRO is integrated.

    Raises:
        ImportError: if SciPy is missing, for masks.
        ValueError: if an argument is invalid, shapes differ, or all labels or all pixels are of one class.

    Examples:
        >>> keras_vit.anomaly.metrics([0.1, 0.4, 0.3, 0.2], [0, 0, 1, 1]).f1_max
        0.8
    """
    values, positive = _flat("scores and labels", [scores], [labels])
    figures = len(values), *_figures(values, positive)
    if maps is None and masks is None:
        return AnomalyMetrics(*figures)
    require_packages("AU-PRO", ("scipy",), "segmentation")
    from scipy import ndimage

    pixels, positive = _flat("maps and masks", () if maps is None else maps, () if masks is None else masks)
    gains, regions = [], 0
    for mask in masks:  # each region counts as much as any other, whatever its size
        numbers, count = ndimage.label(to_numpy(mask) > 0, np.ones((3, 3)))
        gains.append(((numbers > 0) / np.bincount(numbers.ravel())[numbers]).ravel())
        regions += count
    found, alarms = _curve(pixels, np.concatenate(gains), ~positive)
    x, y = np.array([0, *alarms / alarms[-1], 1]), np.array([0, *np.minimum(found / regions, 1), 1])
    within = x <= fpr_limit
    area = np.trapezoid([*y[within], np.interp(fpr_limit, x, y)], [*x[within], fpr_limit]) / fpr_limit
    auroc, _, f1_max = _figures(pixels, positive)
    return AnomalyMetrics(*figures, auroc, f1_max, float(area))


def _flat(name: str, values: Any, truths: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns values as a row of float64, and whether each is anomalous."""
    pairs = [(to_numpy(value), to_numpy(truth)) for value, truth in zip(values, truths, strict=False)]
    if not pairs or len(values) != len(truths) or any(one.shape != two.shape for one, two in pairs):
        raise ValueError(f"{name} must have the same shapes, but they differ, or some are missing.")
    flat = _numbers(name, np.concatenate([value.ravel() for value, _ in pairs]), 1)
    positive = np.concatenate([truth.ravel() for _, truth in pairs]) > 0
    if positive.all() or not positive.any():
        raise ValueError(f"{name} must be both good and anomalous, but all {len(flat)} are of one class.")
    return flat, positive


def _curve(values: np.ndarray, gains: np.ndarray, alarms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sums of gains and of alarms down to each distinct value, from the largest value on."""
    order = np.argsort(-values, kind="stable")
    last = np.append(np.diff(values[order]) != 0, True)  # of equal values
    return np.cumsum(gains[order], dtype="float64")[last], np.cumsum(alarms[order], dtype="float64")[last]


def _figures(values: np.ndarray, positive: np.ndarray) -> tuple[float, float, float]:
    """Returns AUROC, average precision and the largest F1 score."""
    hits, alarms = _curve(values, positive, ~positive)
    recall = hits / hits[-1]
    area = np.trapezoid(np.append(0, recall), np.append(0, alarms / alarms[-1]))
    precision = np.sum(np.diff(recall, prepend=0) * hits / (hits + alarms))
    return float(area), float(precision), float(np.max(2 * hits / (hits + alarms + hits[-1])))


@checked
def evaluate(model: AnomalyDetector, folder: str | os.PathLike[str], *, fpr_limit: Part = 0.3) -> AnomalyMetrics:
    """Returns the `metrics` of a detector, `model`, on a `folder` in the layout of MVTec AD; errors as in `metrics`.

    The folder has `test/good/*`, `test/DEFECT/NAME.*` and, for each of these, `ground_truth/DEFECT/NAME_mask.png` (or
    `NAME.png`). A picture is anomalous if its mask is not 0 everywhere. Without `ground_truth`, there are no pixels.

    Examples:
        >>> keras_vit.anomaly.evaluate(inspector, "bottle").aupro  # doctest: +SKIP
    """
    root, rows = Path(expanded_path(folder)), []
    has_masks = (root / "ground_truth").is_dir()
    for path, mask_path in _test_pictures(root, has_masks):
        found = detect(model, path)
        mask = read_channels(mask_path, 1)[..., 0] > 0 if mask_path else np.zeros(found.map.shape, bool)
        if mask.shape != found.map.shape:
            raise ValueError(f"{printable(mask_path)} has {mask.shape} pixels, but its picture has {found.map.shape}.")
        label = mask.any() if has_masks else path.relative_to(root / "test").parts[0] != "good"
        rows.append((found.score, label, found.map, mask))
    if not rows:
        raise ValueError(f"{printable(root / 'test')} must have folders of pictures, good/ and others, but has none.")
    scores, labels, maps, masks = zip(*rows, strict=True)
    return metrics(scores, labels, maps if has_masks else None, masks if has_masks else None, fpr_limit)


def _test_pictures(root: Path, has_masks: bool) -> Iterator[tuple[Path, Path | None]]:
    """Yields the path of each test picture and of its mask, None where there is no mask."""
    for entry in filter(is_folder, visible(root / "test")):
        paths, masks = image_files(entry.path), {}
        if has_masks and entry.name != "good":
            truth = root / "ground_truth" / entry.name
            masks = {path.stem.removesuffix("_mask"): path for path in image_files(truth)}
            alone = sorted({path.stem for path in paths} ^ masks.keys())
            if alone:
                where = f"{printable(entry.path)} needs a mask in {printable(truth)}, and each mask a picture"
                raise ValueError(f"Each picture in {where}, but these have no partner: {listing(alone)}.")
        yield from ((path, masks.get(path.stem)) for path in paths)
