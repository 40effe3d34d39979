"""Images to patches: the E of equation 1."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.fast_paths import fast_path
from keras_vit.layers.initialization import initializer


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchEmbedding(keras.layers.Layer):
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
    """

    def __init__(self, width: int, patch_size: int | tuple[int, int], bias: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.use_bias = bias
        self.width = width
        self.patch_size = (patch_size, patch_size) if isinstance(patch_size, int) else tuple(patch_size)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.patch_size, input_shape[-1], self.width),
            # Flax's default for convolutions; the file layouts keep this shape.
            initializer=initializer("lecun_normal"),
        )
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(self.width,), initializer="zeros")

    def call(self, images: Any) -> Any:
        if None in self._grid(images.shape):
            images = self._checked_in_graph(images)
        fast = fast_path("conv", images)
        if fast is None:
            patches = ops.conv(images, self.kernel, self.patch_size, "valid", data_format="channels_last")
        else:
            patches = fast(images, ops.convert_to_tensor(self.kernel), self.patch_size, "valid")
        return patches + self.bias if self.use_bias else patches

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (input_shape[0], *self._grid(input_shape), self.width)

    def _grid(self, shape: tuple[int | None, ...]) -> tuple[int | None, int | None]:
        grid = []
        for axis, size, patch in zip(("height", "width"), shape[1:3], self.patch_size, strict=True):
            if size is not None and (size % patch or not size):
                raise ValueError(
                    f"The {axis} of the input of {self.name!r} is {size}, which is not a multiple of the patch size "
                    f"{patch}. Resize or pad it to {max(size // patch, 1) * patch} or {(size // patch + 1) * patch}."
                )
            grid.append(None if size is None else size // patch)
        return tuple(grid)

    def _checked_in_graph(self, images: Any) -> Any:
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
