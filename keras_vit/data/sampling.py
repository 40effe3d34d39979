"""Which examples a stream has, and how often: a share that is held out, the order of an epoch, classes balanced."""

import dataclasses
from collections.abc import Callable

import numpy as np

from keras_vit.data.augmentation import HOLDOUT
from keras_vit.data.examples import Examples, fingerprint

Draw = Callable[[np.random.Generator], np.ndarray]


def hold_out(examples: Examples, share: float, seed: int, split: str) -> Examples:
    """The examples without a share of them (`split="train"`), or only that share (others), which the seed decides.

    Stratified: each class has its share to within one image, and keeps one to train on; of several labels the rarest
    one counts, and numbers are held out from small to large.
    """
    groups, generator = _groups(examples), np.random.default_rng([seed, HOLDOUT])
    order = np.lexsort((generator.random(len(groups)), groups))
    if examples.target != "number":
        order = order[1:][groups[order][1:] == groups[order][:-1]]  # without one of each class
    count = round(share * len(groups))
    if not 1 <= count <= len(order):
        raise ValueError(f"holdout={share} of {len(groups)} images cannot be held out: give another share.")
    held = np.array([generator.choice(part) for part in np.array_split(order, count)])
    keep = np.sort(held) if split != "train" else np.setdiff1d(np.arange(len(groups)), held)
    return dataclasses.replace(
        examples,
        labels=examples.labels[keep],
        read=lambda i: examples.read(keep[i]),
        name=lambda i: examples.name(keep[i]),
        files=None if examples.files is None else [examples.files[i] for i in keep],
        fingerprint=fingerprint(examples.fingerprint, share, seed, split),
    )


def shuffled(examples: Examples) -> Draw:
    """A function from a generator to the examples of an epoch: each once."""
    return lambda generator: generator.permutation(len(examples.labels))


def sampled(examples: Examples, sampling: str) -> Draw:
    """A function from a generator to the examples of an epoch: as many as there are, some of them several times.

    A class has as many as any other (`"balanced"`), or as the root of its size says (`"sqrt"`), to within one; an
    image with several labels is drawn as its rarest one is (as in LVIS's repeat factor sampling, arXiv 1908.03195).
    """
    if examples.target == "number":
        raise ValueError(f"sampling={sampling!r} is for classes, but the labels are numbers.")
    groups = _groups(examples)
    counts = np.bincount(groups)
    if examples.target == "multilabel":
        counts = np.append(examples.labels.sum(axis=0), np.sum(groups == examples.classes))
    weights = counts[groups] ** (-1.0 if sampling == "balanced" else -0.5)

    def draw(generator: np.random.Generator) -> np.ndarray:
        order = np.lexsort((generator.random(len(groups)), groups))
        ends = np.cumsum(weights[order])
        places = (generator.random() + np.arange(len(groups))) * (ends[-1] / len(groups))
        return generator.permutation(order[np.minimum(np.searchsorted(ends, places, "right"), len(groups) - 1)])

    return draw


def _groups(examples: Examples) -> np.ndarray:
    """The group of each example: its class, its rarest label (`classes` for none), or for regression its label."""
    labels = examples.labels
    if labels.ndim == 1:
        return labels
    if examples.target != "multilabel":
        return labels[:, 0] if examples.target == "number" else labels.argmax(axis=1)
    rarest = np.where(labels > 0, labels.sum(axis=0), np.inf).argmin(axis=1)
    return np.where(labels.any(axis=1), rarest, examples.classes)
