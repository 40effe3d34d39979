"""Patch embeddings at another patch size, as FlexiViT makes them."""

import numpy as np

from keras_vit.interpolation import interpolation_matrix


def resize_patch_kernel(kernel: np.ndarray, patch_size: tuple[int, int]) -> np.ndarray:
    """Resizes the kernel of a patch embedding by the pseudo-inverse method (FlexiViT, arXiv 2212.08013, section 3.4).

    Where B resizes patches bilinearly (half-pixel centres, no antialiasing), the new kernel is `pinv(B^T) w`. For a
    larger patch size this makes a resized patch give exactly the embedding of the original one, which resizing the
    kernel like an image does not; for a smaller one it is the nearest to that on average.

    Args:
        kernel: `(height, width, channels, D)`.
        patch_size: New height and width.

    Returns:
        `(*patch_size, channels, D)` in the kernel's dtype, computed in float64.

    Source: `resample_patchemb` in big_vision's `models/proj/flexi/vit.py`.
    """
    # B is the Kronecker product of what it does to rows and to columns, and so is the pseudo-inverse.
    by_row, by_column = (
        np.linalg.pinv(interpolation_matrix(old, new, "bilinear").T)
        for old, new in zip(kernel.shape[:2], patch_size, strict=True)
    )
    resized = np.einsum("hi,wj,ijcd->hwcd", by_row, by_column, kernel.astype("float64"), optimize=True)
    return resized.astype(kernel.dtype)
