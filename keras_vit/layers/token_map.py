"""From a sequence of tokens back to a map."""

from typing import Any

import keras
from keras import ops

from keras_vit._types import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenMap(keras.layers.Layer):
    """Lays the patch tokens out as they lie in the image, without the tokens before them.

    What detectors and segmentation heads read: a map as a convolutional network gives it.

    Args:
        grid_size: Rows and columns of the patches.
        prefix_tokens: Number of tokens before the patches.

    Call arguments:
        tokens: `(batch, prefix_tokens + rows * columns, D)`.
        patches: Optional `(batch, rows, columns, D)`, the patch map that the tokens come from, where the grid is
            another than `grid_size`.

    Output: `(batch, rows, columns, D)`.

    Examples:
        >>> tuple(layers.TokenMap(grid_size=(2, 3))(np.zeros((1, 7, 8), "float32")).shape)
        (1, 2, 3, 8)
    """

    def __init__(self, grid_size: tuple[int, int], prefix_tokens: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grid_size = tuple(grid_size)
        self.prefix_tokens = prefix_tokens

    def call(self, tokens: Tensor, patches: Tensor | None = None) -> Tensor:
        rows, columns = self.grid_size if patches is None else ops.shape(patches)[1:3]
        return ops.reshape(tokens[:, self.prefix_tokens :], (-1, rows, columns, tokens.shape[-1]))

    def compute_output_shape(self, tokens_shape: Shape, patches_shape: Shape | None = None) -> Shape:
        grid = self.grid_size if patches_shape is None else patches_shape[1:3]
        return (tokens_shape[0], *grid, tokens_shape[-1])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "grid_size": self.grid_size, "prefix_tokens": self.prefix_tokens}
