"""Search among features: the most similar rows, votes of the nearest neighbours, near-duplicates. Exact, in NumPy."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._arguments import Source, printable, to_numpy, whole_number
from keras_vit._page import check_sheet_path, html_tiles, small_image, thumbnail, write_page
from keras_vit._pictures import plot_map
from keras_vit._terminal import Table
from keras_vit.evaluation.embedding import model_fingerprint, model_with_features, read_embeddings
from keras_vit.models import BiT, VisionTransformer, feature_extractor
from keras_vit.preprocessing import load_image

PathLike = str | os.PathLike[str]
_CONTENT = ("settings", "origin", "names", "features")  # of a file of `embed`
ROWS = 4096  # features at a time: few enough to stay in a processor's cache between their norm and their products
QUERIES = 1024  # at a time: with `ROWS`, 16 MiB of similarities
COLDEST = 0.002  # temperature: of lower ones, votes overflow


def search(features: np.ndarray, queries: np.ndarray, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Returns the features most similar to each query by cosine, best first; of equal ones the lowest rows.

    The search is exact and runs in blocks: it takes about 50 MB beside its arguments. Two arrays `(queries, k)`, or
    `(k,)` for one query, are returned: rows of `features`, int64, and cosine similarities, float32.

    Args:
        features: `(n, length)`, such as the `features` in a file of `embed`; any float dtype, also a memory map.
        queries: `(queries, length)`, or `(length,)` for one.
        k: Number of features to find for each query, at most n.

    Raises:
        ValueError: if the lengths differ, a row has no direction (zero, infinite or NaN), or k is out of range.

    Examples:
        >>> rows, similarities = evaluation.search(np.eye(4), np.array([1.0, 0.5, 0.0, 0.0]), k=2)
        >>> rows, similarities.round(2)
        (array([0, 1]), array([0.89, 0.45], dtype=float32))
    """
    features, queries = _rows("features", features), to_numpy(queries)
    one = queries.ndim == 1
    queries = _rows("queries", queries[None] if one else queries, features.shape[1])
    if whole_number("k", k, 1) > len(features):
        raise ValueError(f"k must be at most the number of features, {len(features)}, but {k} was given.")
    indices, similarities = np.empty((len(queries), k), "int64"), np.empty((len(queries), k), "float32")
    for start, units in _blocks("queries", queries, QUERIES):
        best, found = np.empty((len(units), 0), "float32"), np.empty((len(units), 0), "int64")
        for first, others in _blocks("features", features, ROWS):
            numbers = np.broadcast_to(np.arange(first, first + len(others)), (len(units), len(others)))
            best = np.concatenate([best, _cosines(units, others)], axis=1)
            found = np.concatenate([found, numbers], axis=1)
            if best.shape[1] > k:
                chosen = _largest(best, k)
                best, found = best[chosen].reshape(-1, k), found[chosen].reshape(-1, k)
        order = np.lexsort((found, -best), axis=1)
        part = slice(start, start + len(units))
        indices[part] = np.take_along_axis(found, order, 1)
        similarities[part] = np.clip(np.take_along_axis(best, order, 1), -1, 1)
    return (indices[0], similarities[0]) if one else (indices, similarities)


def _cosines(units: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The products of all rows of two arrays, `(units, others)`, the same for equal rows wherever they stand."""
    # Rows have length 1, so that these are cosines.
    # Libraries add up the last few columns of a product in another order: there equal rows would differ.
    padding = np.zeros((-len(others) % 64, others.shape[1]), "float32")
    return (units @ np.concatenate([others, padding]).T)[:, : len(others)]


def _largest(values: np.ndarray, k: int) -> np.ndarray:
    """Returns which values are the k largest of their row, as booleans of the same shape; of equal ones the first."""
    least = -np.partition(-values, k - 1, axis=1)[:, k - 1 : k]
    more, equal = values > least, values == least
    missing = k - more.sum(axis=1, keepdims=True)  # places for values that are equal to the last one
    return more | (equal & (equal.cumsum(axis=1, dtype="int32") <= missing))


def knn(
    features: np.ndarray,
    labels: np.ndarray,
    queries: np.ndarray,
    k: int = 20,
    temperature: float = 0.07,
    classes: int | None = None,
) -> np.ndarray:
    """Returns votes of the k nearest neighbours, float64 `(queries, classes)`, as DINO's `eval_knn.py` counts them.

    The class with most votes is predicted. A neighbour of cosine similarity s has a vote of `exp(s / temperature)`.

    Args:
        features: Features of known classes, `(n, length)`.
        labels: Class of each feature, integers `(n,)` from 0.
        queries: Features to classify, `(queries, length)`.
        k: Number of neighbours that vote; DINO uses 10, 20, 100 and 200.
        temperature: Lower values, from 0.002, give more weight to the nearest features.
        classes: Number of classes; None: the largest label plus one.

    ValueError as in `search`, or if an argument is invalid.
    """
    labels, features = to_numpy(labels), to_numpy(features)
    if labels.shape != features.shape[:1] or labels.dtype.kind not in "iu" or labels.min(initial=0) < 0:
        raise ValueError(
            f"labels must be {len(features)} integers of at least 0, one for each feature, but {labels.dtype} "
            f"{labels.shape} was given."
        )
    most = int(labels.max(initial=-1)) + 1
    classes = most if classes is None else whole_number("classes", classes, most)
    if not COLDEST <= temperature < np.inf:
        raise ValueError(f"temperature must be a number of at least {COLDEST}, but {temperature!r} was given.")
    indices, similarities = search(features, queries, k)
    votes = np.zeros((*indices.shape[:-1], classes))
    weights = np.exp(similarities / np.float64(temperature))
    np.add.at(votes, (*np.indices(indices.shape)[:-1], labels[indices]), weights)
    return votes


def near_duplicates(features: np.ndarray, threshold: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Returns pairs of rows whose cosine similarity reaches the threshold, such as copies of a photo, best first.

    They are int64 `(pairs, 2)`, rows of `features` `(n, length)`, the lower one first; and float32 `(pairs,)`, their
    similarities. `threshold` is lowered by a margin for rounding in float32: 4 times the square root of the length,
    times 2**-24. 1.0 finds equal rows. ValueError as in `search`, or if it is not in (-1, 1].

    Examples:
        >>> evaluation.near_duplicates(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1]]))[0]
        array([[0, 2]])
    """
    if not -1 < threshold <= 1:
        raise ValueError(f"threshold must be a cosine similarity in (-1, 1], but {threshold!r} was given.")
    features = _rows("features", features)
    pairs, similarities = [np.empty((0, 2), "int64")], [np.empty(0, "float32")]
    least = np.float32(threshold - 4 * features.shape[1] ** 0.5 * 2**-24)
    for start, units in _blocks("features", features, QUERIES):
        for first, others in _blocks("features", features[start:], ROWS):
            products = units @ others.T
            rows, columns = np.nonzero(products >= least)
            later = columns + first > rows
            pairs.append(np.stack([rows, columns + first], axis=1)[later] + start)
            similarities.append(products[rows[later], columns[later]])
    found, values = np.concatenate(pairs), np.clip(np.concatenate(similarities), -1, 1)
    order = np.lexsort((found[:, 1], found[:, 0], -values))
    return found[order], values[order]


def _rows(name: str, values: Any, length: int | None = None) -> np.ndarray:
    """Returns rows of numbers as an array; ValueError unless there are some, all of `length` where that is given."""
    values = to_numpy(values)
    if values.ndim != 2 or 0 in values.shape or values.dtype.kind not in "fiu" or length not in (None, values.shape[1]):
        expected = "length" if length is None else length
        raise ValueError(f"{name} must be numbers (rows, {expected}), but {values.dtype} {values.shape} was given.")
    return values


def _blocks(name: str, values: np.ndarray, size: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields blocks of at most `size` rows: the number of the first one, and the rows as float32 of length 1."""
    for start in range(0, len(values), size):
        block = np.asarray(values[start : start + size], "float32")
        norms = np.sqrt(np.einsum("ij,ij->i", block, block))[:, None]
        wrong = np.flatnonzero(~np.isfinite(norms) | (norms == 0))
        if len(wrong):
            row, norm = start + wrong[0], norms[wrong[0], 0]
            raise ValueError(f"Row {row} of {name} has no direction to compare, because its norm is {norm}. Remove it.")
        yield start, block / norms


def find_similar(
    image: Any,
    features: PathLike,
    *,
    query: Any = None,
    k: int = 12,
    model: VisionTransformer | BiT | Source | None = None,
    folder: PathLike | None = None,
) -> Table:
    """Returns the images of an `embed` file whose features are most similar to a query, by cosine, best first.

    The rows have `image` (a path) and `similarity`, and print as a table.

    Args:
        image: The image to compare with, such as a path (see `model.preprocess`); None if `query` is given.
        features: The `.npz` file.
        query: Features to compare with, `(D,)`, such as `both.embed_texts("a red car")[0]` for a file with embeddings
            of the image tower of `both` (see `keras_vit.load_image_text`).
        k: Number of images; all if there are fewer.
        model: The model that the file was made with, or what `keras_vit.load` takes; None: from the origin in the file.
        folder: Where the images are. None: the folder that was embedded.

    Raises:
        OSError, ImportError: if a file is missing, cannot be read or fetched (DownloadError), or Pillow is missing.
        TypeError, ValueError: if an argument or the file is invalid, the file is of another model, or not exactly one
            of `image` and `query` is given.

    Examples:
        >>> features = evaluation.embed("glyphs", "photos/train", "train.npz", progress=False).path
        >>> evaluation.find_similar("photos/train/cat/1.jpg", features, k=1)[0]["image"]
        'photos/train/cat/1.jpg'
    """
    if (image is None) == (query is None):
        raise ValueError("Exactly one of image and query must be given. Pass None for the other.")
    file = read_embeddings(features, *_CONTENT)
    vectors, paths = _features_and_paths(file, folder)
    source = file["origin"]["model"] if model is None else model
    if source is not None and (model is not None or query is None):
        model = model_with_features(source)
        if model_fingerprint(model) != file["settings"]["model"]:
            raise ValueError(
                f"{printable(features)} was made with another model than {printable(source)}. Pass the model of embed."
            )
    if query is None:
        if model is None:
            raise ValueError(f"{printable(features)} does not name its model. Pass model=.")
        found = feature_extractor(model, [file["settings"]["features"]])(model.preprocess(image))
        query = next(iter(found.values()))
    query = to_numpy(query).reshape(-1)
    if len(query) != vectors.shape[1]:
        raise ValueError(
            f"query must have {vectors.shape[1]} numbers, as the {file['settings']['features']!r} of "
            f"{printable(features)}, but {len(query)} were given."
        )
    rows, similarities = search(vectors, query, min(k, len(vectors)))
    pairs = zip(rows, similarities.tolist(), strict=True)
    return Table({"image": paths[row], "similarity": round(similarity, 4)} for row, similarity in pairs)


def find_duplicates(features: PathLike, threshold: float = 0.95, *, folder: PathLike | None = None) -> Table:
    """Returns pairs of images in an `embed` file that are almost the same: rows with `image`, `like` and `similarity`.

    The most similar pair comes first. `draw_similar` draws them. `features`, `folder` and errors are as in
    `find_similar`, `threshold` as in `near_duplicates`.
    """
    vectors, paths = _features_and_paths(read_embeddings(features, *_CONTENT), folder)
    pairs, similarities = near_duplicates(vectors, threshold)
    return Table(
        {"image": paths[first], "like": paths[second], "similarity": round(similarity, 4)}
        for (first, second), similarity in zip(pairs, similarities.tolist(), strict=True)
    )


def draw_similar(rows: Table, path: PathLike, title: str = "Similar images", image: PathLike | None = None) -> None:
    """Draws the images of `find_similar` or `find_duplicates` as a contact sheet, at most 200 of their `rows`.

    The sheet with this `title` is written to `path` (`.html`, `.png`, `.svg` or `.pdf`). The query `image` is shown
    first.

    Raises:
        ImportError, OSError: if Pillow or matplotlib is missing; if an image cannot be opened or the file not written.
        ValueError: if there are no rows, the path has another suffix, or an image cannot be decoded.

    Examples:
        >>> features = evaluation.embed("glyphs", "photos/train", "train.npz", progress=False).path
        >>> evaluation.draw_similar(evaluation.find_duplicates(features, threshold=0.5), "similar.html")
    """
    if not rows:
        raise ValueError("rows must have images to draw, but there are none.")
    check_sheet_path(path)
    files: list[tuple[str, PathLike]] = [] if image is None else [("searched for", image)]
    for row in rows[:200]:
        files.append((f"{row['similarity']:.3f}  {Path(row['image']).name}", row["image"]))
        if "like" in row:
            files.append((f"and  {Path(row['like']).name}", row["like"]))
    # Images become small as they are read: 200 photos as they are would fill the memory.
    tiles = [(words, small_image(load_image(file))) for words, file in files]
    if Path(path).suffix.lower() in (".html", ".htm"):
        write_page(path, title, [html_tiles((thumbnail(one), words) for words, one in tiles)])
    else:
        plot_map(tiles, path, title=title, columns=6, side=2, gap=0.15)


def _features_and_paths(file: dict[str, Any], folder: PathLike | None) -> tuple[np.ndarray, list[str]]:
    """Returns features as rows `(n, length)`, and the paths of their images."""
    home = file["origin"]["images"] if folder is None else folder
    paths = [os.fspath(Path(home or "", name)) for name in file["names"].tolist()]
    features = file["features"]
    return features.reshape(len(paths), math.prod(features.shape[1:])), paths  # -1 would not do for no images
