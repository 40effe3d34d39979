"""Images to patches: the E of equation 1."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.initialization import initializer


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchEmbedding(keras.layers.Layer):
    """Cuts an image into patches and projects each one linearly (section 3.1).

    A convolution whose stride is its kernel, without padding (`embedding` in the official `models_vit.py`).

    Args:
        width: D, the length of an embedding.
        patch_size: Height and width of a patch in pixels; one integer for square patches.

    Input: `(batch, height, width, channels)`, floating point; the sizes are multiples of the patch's.
    Output: `(batch, rows, columns, D)`, one embedding per patch.

    Raises:
        ValueError: if an image does not divide into whole patches.
    """

    def __init__(self, width: int, patch_size: int | tuple[int, int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.width = width
        self.patch_size = (patch_size, patch_size) if isinstance(patch_size, int) else tuple(patch_size)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.patch_size, input_shape[-1], self.width),
            # Flax's default for convolutions; the file layouts keep this shape.
            initializer=initializer("lecun_normal"),
        )
        self.bias = self.add_weight(name="bias", shape=(self.width,), initializer="zeros")

    def call(self, images: Any) -> Any:
        self._grid(images.shape)
        return ops.conv(images, self.kernel, self.patch_size, "valid", data_format="channels_last") + self.bias

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

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "width": self.width, "patch_size": self.patch_size}
