"""Mixup: each image is blended with another one of its batch, and so is its label."""

import numpy as np


def mixup(
    images: np.ndarray, labels: np.ndarray, p: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Mix every image, and its label, with the one before it in the batch (arXiv 1710.09412, as AugReg uses it).

    One weight `a` for the whole batch, drawn from Beta(p, p) and made the larger of `a` and `1 - a`: big_vision's
    `utils.get_mixup`. (vit_jax's own `mixup_alpha`, which no published recipe sets, pairs with the reversed batch.)

    Args:
        images: float32 `(batch, height, width, 3)`. They are overwritten.
        labels: float32 `(batch, classes)`: one-hot, or the like. Integer labels cannot be mixed.
        p: Of Beta(p, p), above 0.
        generator: Where the weight comes from.

    Returns:
        Images and labels of the same shapes, float32.
    """
    drawn = generator.beta(p, p)
    weight = np.float32(max(drawn, 1 - drawn))
    rest = np.float32(1) - weight
    last = images[-1].copy()
    for i in range(len(images) - 1, -1, -1):  # image by image: a whole batch would not stay in a processor's cache
        images[i] *= weight
        images[i] += rest * (images[i - 1] if i else last)
    return images, weight * labels + rest * np.roll(labels, 1, axis=0)
