"""Layer scale: a learned factor for every channel of a branch."""

from typing import Any

import keras
from keras import initializers, ops

from keras_vit._types import Shape, Tensor
from keras_vit.layers.base import WatchedLayer
from keras_vit.layers.keras_layers import may_be_plain


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class LayerScale(WatchedLayer):
    """Multiplies every channel by a learned factor, at the end of a branch of a block (CaiT, arXiv 2103.17239).

    With small factors a block starts as nearly the identity. DeiT-III, DINOv2 and DINOv3 have it.

    Args:
        initial: First value of all factors, such as 1e-5.

    Input: `(..., D)`. Output: the same shape.

    Examples:
        >>> tuple(layers.LayerScale(0.5)(np.ones((1, 4, 8), "float32")).shape)
        (1, 4, 8)
    """

    def __init__(self, initial: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial = initial

    def build(self, input_shape: Shape) -> None:
        first = initializers.Constant(self.initial)
        self.gamma = self.add_weight(name="gamma", shape=(input_shape[-1],), initializer=first)

    def call(self, x: Tensor) -> Tensor:
        return x * ops.cast(self.gamma, x.dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "initial": self.initial}
