"""The demo's target: 1,797 real scans of handwritten digits, which come with scikit-learn."""

import dataclasses

import numpy as np

TEST_IMAGES = 500


@dataclasses.dataclass(frozen=True)
class Digits:
    """Scans and what they show.

    Attributes:
        pixels: uint8 `(images, 8, 8, 3)`, ink bright on black.
        labels: int32 `(images,)`, 0 to 9.
    """

    pixels: np.ndarray
    labels: np.ndarray


def load_digits(train_images: int | None = None) -> tuple[Digits, Digits]:
    """Loads the digits in a fixed split: 500 for testing, in which all digits are equally frequent, 1,297 to train on.

    Args:
        train_images: How many images to train on; None for all.

    Returns:
        The training and the test images.

    Raises:
        ImportError: if scikit-learn is not installed.
        ValueError: if there are not that many training images.
    """
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    scans = datasets.load_digits()
    pixels = np.repeat(np.round(scans.images * (255 / 16)).astype("uint8")[..., None], 3, axis=-1)
    labels = scans.target.astype("int32")
    train, test = train_test_split(
        np.arange(len(labels)), test_size=TEST_IMAGES, random_state=0, shuffle=True, stratify=labels
    )
    if train_images is not None and not 10 <= train_images <= len(train):
        raise ValueError(f"train_images must be between 10 and {len(train)}, but {train_images} was given.")
    train = train[:train_images]
    return Digits(pixels[train], labels[train]), Digits(pixels[test], labels[test])
