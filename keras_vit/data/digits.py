"""Scans of handwritten digits, which come with scikit-learn: real data without network."""

from typing import NamedTuple

import numpy as np

from keras_vit._arguments import require_packages


class Digits(NamedTuple):
    """Images of handwritten digits, and their labels.

    Attributes:
        pixels: uint8 `(images, 8, 8, 3)`, ink bright on black.
        labels: int32 `(images,)`, 0 to 9.

    Examples:
        >>> digits = data.Digits(np.zeros((2, 8, 8, 3), "uint8"), np.array([0, 1], "int32"))
        >>> digits.labels.tolist()
        [0, 1]
    """

    pixels: np.ndarray
    labels: np.ndarray


def load_digits() -> tuple[Digits, Digits]:
    """Returns 1,797 scans of handwritten digits as training and test images, always the same.

    Returns:
        `(train, test)`: 1,297 images to train on and 500 to test on, stratified by digit.

    Raises:
        ImportError: if scikit-learn is not installed.

    Examples:
        >>> train, test = data.load_digits()
        >>> train.pixels.shape, len(test.labels)
        ((1297, 8, 8, 3), 500)
    """
    require_packages("The digits", ("sklearn",), "demo")
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    scans = datasets.load_digits()
    pixels = np.repeat(np.round(scans.images * (255 / 16)).astype("uint8")[..., None], 3, axis=-1)
    labels = scans.target.astype("int32")
    train, test = train_test_split(np.arange(len(labels)), test_size=500, random_state=0, stratify=labels)
    return Digits(pixels[train], labels[train]), Digits(pixels[test], labels[test])
