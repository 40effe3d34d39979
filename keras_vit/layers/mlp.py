"""The two-layer perceptron of equation 3, and the one with a gate."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import initializers, ops

from keras_vit._arguments import Shape, Tensor, check_choice
from keras_vit.layers.base import (
    CompositeLayer,
    Dense,
    LayerNormalization,
    SeedGenerator,
    call_inside,
    dropout,
    initializer,
    may_be_plain,
    own_policy,
)
from keras_vit.layers.choices import GELUS


class _HiddenLayer(CompositeLayer):
    """What both have: a hidden layer of a width, and a dropout before and after the last product."""

    def __init__(self, width: int, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.width = width
        self.dropout = dropout
        self.seed_generator = SeedGenerator() if dropout else None

    def dense(self, units: int | None, name: str, bias: str | initializers.Initializer = "zeros") -> Dense:
        """A layer of this one, not built yet; `bias` is what its bias starts with."""
        return Dense(
            units,
            kernel_initializer=initializer("glorot_uniform"),
            bias_initializer=bias,
            dtype=own_policy(self.dtype_policy, f"{self.path}/{name}"),
            name=name,
        )

    def draw_seeds(self, training: bool | None) -> list[Tensor | None]:
        """The seeds of one call, one per dropout; None where nothing is dropped."""
        return [self.seed_generator.next() if training and self.dropout else None for _ in range(2)]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "width": self.width, "dropout": self.dropout}


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class MLP(_HiddenLayer):
    """Dense, GELU, dropout, Dense, dropout (`MlpBlock` in the official `models_vit.py`).

    Args:
        width: Length of the hidden layer.
        gelu: `"tanh"`, the approximation that the official checkpoints were trained with, `"exact"` or `"quick"`.
        dropout: Rate of both dropouts while training.
        norm: Whether the hidden layer is normalised before the last one, as in BEiT-3.
        epsilon: Added to the variance by that normalisation.

    Call arguments:
        x: `(..., D)`.
        seeds: Seeds drawn beforehand with `draw_seeds`, for use inside a rematerialised function.

    Output: as `x`.

    Raises:
        ValueError: if `gelu` is unknown.

    Examples:
        >>> layers.MLP(width=16)(np.zeros((1, 5, 8), "float32")).shape[-1]
        8
    """

    def __init__(
        self,
        width: int,
        gelu: str = "tanh",
        dropout: float = 0.0,
        norm: bool = False,
        epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(width, dropout, **kwargs)
        check_choice("gelu", gelu, GELUS)
        self.gelu = gelu
        self.use_norm = norm
        self.epsilon = epsilon

    def build(self, input_shape: Shape) -> None:
        self.fc1 = self.dense(self.width, "fc1", initializer("normal", stddev=1e-6))
        self.fc2 = self.dense(input_shape[-1], "fc2", initializer("normal", stddev=1e-6))
        self.fc1.build(input_shape)
        if self.use_norm:
            self.norm = LayerNormalization(epsilon=self.epsilon, dtype=self.dtype_policy, name="norm")
            self.norm.build((*input_shape[:-1], self.width))
        self.fc2.build((*input_shape[:-1], self.width))

    def call(self, x: Tensor, training: bool | None = None, seeds: Sequence[Tensor | None] | None = None) -> Tensor:
        hidden_seed, out_seed = self.draw_seeds(training) if seeds is None else seeds
        x = dropout(call_inside(self.fc1, x, training, activation=self.gelu), self.dropout, hidden_seed)
        x = call_inside(self.norm, x, training) if self.use_norm else x
        return dropout(call_inside(self.fc2, x, training), self.dropout, out_seed)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "gelu": self.gelu, "norm": self.use_norm, "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(package="keras_vit")
@may_be_plain
class SwiGLU(_HiddenLayer):
    """`fc2(silu(gate(x)) * value(x))` (Shazeer, arXiv 2002.05202), with a dropout before and after `fc2`.

    The MLP of DINOv2's giant, of DINOv3's S+, H+ and 7B, and of EVA-02.

    Args:
        width: Length of the hidden layer, that is of gate and value each.
        norm: Whether the product is normalised before `fc2`, as in EVA-02's B and L.
        epsilon: Added to the variance by that normalisation.
        dropout: Rate of both dropouts while training.

    Call arguments:
        x: `(..., D)`.
        seeds: Seeds drawn beforehand with `draw_seeds`, for use inside a rematerialised function.

    Output: as `x`.

    Examples:
        >>> tuple(layers.SwiGLU(width=16)(np.zeros((1, 5, 8), "float32")).shape)
        (1, 5, 8)
    """

    def __init__(
        self, width: int, norm: bool = False, epsilon: float = 1e-6, dropout: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(width, dropout, **kwargs)
        self.use_norm = norm
        self.epsilon = epsilon

    def build(self, input_shape: Shape) -> None:
        hidden_shape = (*input_shape[:-1], self.width)
        self.gate = self.dense(self.width, "gate")
        self.value = self.dense(self.width, "value")
        self.fc2 = self.dense(input_shape[-1], "fc2")
        self.gate.build(input_shape)
        self.value.build(input_shape)
        if self.use_norm:
            self.norm = LayerNormalization(epsilon=self.epsilon, dtype=self.dtype_policy, name="norm")
            self.norm.build(hidden_shape)
        self.fc2.build(hidden_shape)

    def call(self, x: Tensor, training: bool | None = None, seeds: Sequence[Tensor | None] | None = None) -> Tensor:
        hidden_seed, out_seed = self.draw_seeds(training) if seeds is None else seeds
        gate, value = call_inside(self.gate, x, training), call_inside(self.value, x, training)
        x = dropout(ops.silu(gate) * value, self.dropout, hidden_seed)
        x = call_inside(self.norm, x, training) if self.use_norm else x
        return dropout(call_inside(self.fc2, x, training), self.dropout, out_seed)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "norm": self.use_norm, "epsilon": self.epsilon}
