"""Equation 1: an image becomes a sequence of tokens, each with its place."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import Shape, Tensor
from keras_vit.interpolation import interpolation_matrix
from keras_vit.layers.base import SeedGenerator, WatchedLayer, dropout, initializer, may_be_plain
from keras_vit.layers.ops import conv


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class PatchEmbedding(WatchedLayer):
    """Cuts an image into patches and projects each one linearly (section 3.1).

    A convolution whose stride is its kernel, without padding (`embedding` in the official `models_vit.py`).

    Args:
        width: D, the length of an embedding.
        patch_size: Height and width of a patch in pixels; one integer for square patches.
        bias: Whether a bias is added; CLIP has none.

    Input: `(batch, height, width, channels)`, floating point; the sizes are multiples of the patch's.
    Output: `(batch, rows, columns, D)`, one embedding per patch.

    Raises:
        ValueError: if an image does not divide into whole patches. In graphs of TensorFlow for any size, where this
            shows only when they run, TensorFlow raises its InvalidArgumentError.

    Examples:
        >>> tuple(layers.PatchEmbedding(width=8, patch_size=4)(np.zeros((1, 8, 12, 3), "float32")).shape)
        (1, 2, 3, 8)
    """

    def __init__(self, width: int, patch_size: int | tuple[int, int], bias: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.use_bias = bias
        self.width = width
        self.patch_size = (patch_size, patch_size) if isinstance(patch_size, int) else tuple(patch_size)

    def build(self, input_shape: Shape) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.patch_size, input_shape[-1], self.width),
            # Flax's default for convolutions; the file layouts keep this shape.
            initializer=initializer("lecun_normal"),
        )
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(self.width,), initializer="zeros")

    def call(self, images: Tensor) -> Tensor:
        if None in self._grid(images.shape):
            images = self._checked_in_graph(images)
        patches = conv(images, ops.convert_to_tensor(self.kernel), self.patch_size, "valid")
        return patches + self.bias if self.use_bias else patches

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], *self._grid(input_shape), self.width)

    def _grid(self, shape: Shape) -> tuple[int | None, int | None]:
        grid: list[int | None] = []
        for axis, size, patch in zip(("height", "width"), shape[1:3], self.patch_size, strict=True):
            if size is not None and (size % patch or not size):
                raise ValueError(
                    f"The {axis} of the input of {self.name!r} is {size}, which is not a multiple of the patch size "
                    f"{patch}. Resize or pad it to {max(size // patch, 1) * patch} or {(size // patch + 1) * patch}."
                )
            grid.append(None if size is None else size // patch)
        rows, columns = grid
        return rows, columns

    def _checked_in_graph(self, images: Tensor) -> Tensor:
        """The images, where their size shows only when a graph of TensorFlow runs (other backends know all sizes)."""
        import tensorflow as tf

        size, patch = tf.shape(images)[1:3], tf.constant(self.patch_size)
        whole = tf.reduce_all((size % patch == 0) & (size > 0))
        message = (
            f"The height and width of the input of {self.name!r} are no multiple of the patch size {self.patch_size}:"
        )
        with tf.control_dependencies([tf.debugging.Assert(whole, [message, size])]):
            # XLA drops the assertion, but no reshape to another number of values.
            return tf.reshape(images, tf.concat([tf.shape(images)[:1], size // patch * patch, images.shape[3:]], 0))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "width": self.width, "patch_size": self.patch_size, "bias": self.use_bias}


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

    Examples:
        >>> layers.resize_patch_kernel(np.zeros((4, 4, 3, 8), "float32"), (6, 6)).shape
        (6, 6, 3, 8)
    """
    # B is the Kronecker product of what it does to rows and to columns, and so is the pseudo-inverse.
    by_row, by_column = (
        np.linalg.pinv(interpolation_matrix(old, new, "bilinear").T)
        for old, new in zip(kernel.shape[:2], patch_size, strict=True)
    )
    resized = np.einsum("hi,wj,ijcd->hwcd", by_row, by_column, kernel.astype("float64"), optimize=True)
    return resized.astype(kernel.dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class ClassToken(WatchedLayer):
    """Puts one learned token, the same for every image, before the patch tokens (section 3.1).

    Input: `(batch, tokens, D)`. Output: `(batch, 1 + tokens, D)`.
    The token starts as zeros, as `cls` does in the official `models_vit.py`.

    Examples:
        >>> tuple(layers.ClassToken()(np.zeros((1, 4, 8), "float32")).shape)
        (1, 5, 8)
    """

    def build(self, input_shape: Shape) -> None:
        self.token = self.add_weight(name="token", shape=(1, 1, input_shape[-1]), initializer="zeros")

    def call(self, tokens: Tensor) -> Tensor:
        token = ops.cast(ops.convert_to_tensor(self.token), tokens.dtype)
        token = ops.broadcast_to(token, (ops.shape(tokens)[0], 1, tokens.shape[-1]))
        return ops.concatenate([token, tokens], axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, tokens, width = input_shape
        return (batch, None if tokens is None else tokens + 1, width)

    def get_config(self) -> dict[str, Any]:
        # Keras wants to see that this layer has no arguments of its own.
        return super().get_config()


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class RegisterTokens(WatchedLayer):
    """Puts learned tokens, the same for every image, before the others ("Vision Transformers Need Registers").

    The model keeps there what it would otherwise write over patches that say little (arXiv 2309.16588). Nothing reads
    them in the end. DINOv2 with registers and DINOv3 have four.

    Args:
        count: How many.

    Input: `(batch, tokens, D)`. Output: `(batch, count + tokens, D)`.

    Examples:
        >>> tuple(layers.RegisterTokens(4)(np.zeros((1, 5, 8), "float32")).shape)
        (1, 9, 8)
    """

    def __init__(self, count: int = 4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = count

    def build(self, input_shape: Shape) -> None:
        shape = (1, self.count, input_shape[-1])
        self.tokens = self.add_weight(name="tokens", shape=shape, initializer=initializer("normal", stddev=0.02))

    def call(self, tokens: Tensor) -> Tensor:
        registers = ops.cast(ops.convert_to_tensor(self.tokens), tokens.dtype)
        registers = ops.broadcast_to(registers, (ops.shape(tokens)[0], self.count, tokens.shape[-1]))
        return ops.concatenate([registers, tokens], axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, tokens, width = input_shape
        return (batch, None if tokens is None else self.count + tokens, width)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "count": self.count}


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class TokenDropout(WatchedLayer):
    """Dropout whose seed is optional in weight files, unlike that of Keras's own layer.

    Args:
        dropout: Rate while training.

    Input: `(batch, T, D)`. Output: the same shape.

    Examples:
        >>> tuple(layers.TokenDropout(0.1)(np.zeros((1, 5, 8), "float32"), training=True).shape)
        (1, 5, 8)
    """

    def __init__(self, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = dropout
        self.seed_generator = SeedGenerator() if dropout else None

    def call(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        seed = self.seed_generator.next() if training and self.dropout else None
        return dropout(tokens, self.dropout, seed)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dropout": self.dropout}
