"""Search among features: the most similar rows, votes of the nearest neighbours, near-duplicates. Exact, in NumPy."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_vit._arguments import to_numpy, whole_number

ROWS = 4096  # features at a time: few enough to stay in a processor's cache between their norm and their products
QUERIES = 1024  # at a time: with `ROWS`, 16 MiB of similarities


def search(features: np.ndarray, queries: np.ndarray, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """The features most similar to each query by cosine, best first; of equal ones the lowest rows.

    Every query is compared with every feature, a block at a time: beside its arguments a call takes some 50 MB,
    however many there are.

    Args:
        features: `(n, length)`, such as the `features` in a file of `embed`; any floating dtype, also a memory map.
        queries: `(queries, length)`, or `(length,)` for one.
        k: How many to find for each query.

    Returns:
        Two arrays `(queries, k)`, or `(k,)` for one query: rows of `features`, int64, and their cosine similarities,
        float32.

    Raises:
        ValueError: if the arrays are no rows of numbers of one length, a row has no direction (zero, infinite or NaN),
            or there are less than k features.

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
            # Libraries add up the last few columns of a product in another order: there equal rows would differ.
            padding = np.zeros((-len(others) % 64, others.shape[1]), "float32")
            products = (units @ np.concatenate([others, padding]).T)[:, : len(others)]
            best = np.concatenate([best, products], axis=1)
            numbers = np.broadcast_to(np.arange(first, first + len(others)), (len(units), len(others)))
            found = np.concatenate([found, numbers], axis=1)
            if best.shape[1] > k:  # the rows in `found` ascend
                least = -np.partition(-best, k - 1, axis=1)[:, k - 1 : k]
                more, equal = best > least, best == least
                missing = k - more.sum(axis=1, keepdims=True)  # places for rows that are equal to the last one
                chosen = more | (equal & (equal.cumsum(axis=1, dtype="int32") <= missing))
                best, found = best[chosen].reshape(-1, k), found[chosen].reshape(-1, k)
        order = np.lexsort((found, -best), axis=1)
        part = slice(start, start + len(units))
        indices[part] = np.take_along_axis(found, order, 1)
        similarities[part] = np.clip(np.take_along_axis(best, order, 1), -1, 1)
    return (indices[0], similarities[0]) if one else (indices, similarities)


def knn(
    features: np.ndarray,
    labels: np.ndarray,
    queries: np.ndarray,
    k: int = 20,
    temperature: float = 0.07,
    classes: int | None = None,
) -> np.ndarray:
    """Votes of the k nearest features for their classes: DINO's classifier without training (`eval_knn.py`).

    A neighbour of cosine similarity s has a vote of `exp(s / temperature)`.

    Args:
        features: `(n, length)`.
        labels: Integers `(n,)` from 0 on, the class of each.
        queries: `(queries, length)`.
        k: How many neighbours vote; DINO has 10, 20, 100 and 200.
        temperature: The lower, the more the nearest count.
        classes: How many there are; None for the largest label and one.

    Returns:
        float64 `(queries, classes)`; the largest of a row is the answer.

    Raises:
        ValueError: as for `search`, and if labels, temperature or classes make no sense.

    Examples:
        >>> evaluation.knn(np.eye(4), np.array([0, 0, 1, 1]), np.eye(4)[1:3], k=1).argmax(axis=1)
        array([0, 1])
    """
    labels, features = to_numpy(labels), to_numpy(features)
    if labels.shape != features.shape[:1] or labels.dtype.kind not in "iu" or labels.min(initial=0) < 0:
        raise ValueError(
            f"labels must be {len(features)} integers of at least 0, one for each feature, but {labels.dtype} "
            f"{labels.shape} was given."
        )
    most = int(labels.max(initial=-1)) + 1
    classes = most if classes is None else whole_number("classes", classes, most)
    if not 0 < temperature < np.inf:
        raise ValueError(f"temperature must be a number above 0, but {temperature!r} was given.")
    indices, similarities = search(features, queries, k)
    votes = np.zeros((*indices.shape[:-1], classes))
    weights = np.exp(similarities / np.float64(temperature))
    np.add.at(votes, (*np.indices(indices.shape)[:-1], labels[indices]), weights)
    return votes


def near_duplicates(features: np.ndarray, threshold: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rows whose cosine similarity reaches the threshold, such as two copies of a photo; most similar first.

    Args:
        features: `(n, length)`.
        threshold: The cosine similarity from which on two count as the same, less what float32 rounds off it: 4 times
            the square root of the length in units of 2**-24, 7e-6 for a length of 768. 1.0 finds equal rows.

    Returns:
        int64 `(pairs, 2)`, rows of `features`, the lower one first; float32 `(pairs,)`, their similarities.

    Raises:
        ValueError: if the features are no rows of numbers, a row has no direction (zero, infinite or NaN), or the
            threshold is not in (-1, 1].

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
    """Rows of numbers, as they are; ValueError for anything else."""
    values = to_numpy(values)
    if values.ndim != 2 or 0 in values.shape or values.dtype.kind not in "fiu" or length not in (None, values.shape[1]):
        expected = "length" if length is None else length
        raise ValueError(f"{name} must be numbers (rows, {expected}), but {values.dtype} {values.shape} was given.")
    return values


def _blocks(name: str, values: np.ndarray, size: int) -> Iterator[tuple[int, np.ndarray]]:
    """The number of its first row, and `size` rows as float32 of length 1; ValueError for rows without a direction."""
    for start in range(0, len(values), size):
        block = np.asarray(values[start : start + size], "float32")
        norms = np.sqrt(np.einsum("ij,ij->i", block, block))[:, None]
        wrong = np.flatnonzero(~np.isfinite(norms) | (norms == 0))
        if len(wrong):
            raise ValueError(f"Row {start + wrong[0]} of {name} has no direction: its norm is {norms[wrong[0], 0]}.")
        yield start, block / norms
