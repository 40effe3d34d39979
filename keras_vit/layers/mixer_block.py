"""The block of MLP-Mixer (arXiv 2105.01601): a perceptron across tokens, then one across channels."""

from typing import Any

from keras import ops

from keras_vit._arguments import Shape, Tensor
from keras_vit.layers.base import CompositeLayer, SeedGenerator, drop_path, given, registered
from keras_vit.layers.ops import rematerialized
from keras_vit.layers.transformer_block import MLP


@registered
class MixerMLP(MLP):
    """An `MLP` with the first values of `MlpBlock` in the official `models_mixer.py`."""

    def build(self, input_shape: Shape) -> None:
        hidden = (*input_shape[:-1], self.width)
        self.fc1 = self.inner_dense("fc1", input_shape, self.width, kernel="lecun_normal")
        self.fc2 = self.inner_dense("fc2", hidden, input_shape[-1], kernel="lecun_normal")


@registered
class MixerBlock(CompositeLayer):
    """Block of MLP-Mixer (`MixerBlock` in the official `models_mixer.py`).

    Args:
        tokens_mlp_width: Length of the hidden layer of the perceptron across tokens.
        mlp_width: Length of the hidden layer of the perceptron across channels.
        dropout: Rate of dropout in both perceptrons.
        drop_path: Rate of stochastic depth: how often each branch of an example is skipped.
        remat: Whether to recompute the block in the backward pass instead of keeping its activations.
        gelu: `"tanh"`, as in the official code, `"exact"`, as timm computes the same weights, or `"quick"`.
        epsilon: Added to the variance by both layer normalisations.

    Call arguments:
        x: `(batch, T, D)`; T is always that of the first call.

    Output: as `x`. All rates apply while training only.

    Raises:
        ValueError: if `gelu` is unknown, or the number of tokens is not known when the layer is built.

    Examples:
        >>> tuple(layers.MixerBlock(tokens_mlp_width=3, mlp_width=16)(np.zeros((1, 4, 8), "float32")).shape)
        (1, 4, 8)
    """

    def __init__(
        self,
        tokens_mlp_width: int,
        mlp_width: int,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        remat: bool = False,
        gelu: str = "tanh",
        epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tokens_mlp_width = tokens_mlp_width
        self.mlp_width = mlp_width
        self.dropout = dropout
        self.drop_path = drop_path
        self.remat = remat
        self.gelu = gelu
        self.epsilon = epsilon
        self.seed_generator = SeedGenerator() if drop_path else None

    def build(self, x_shape: Shape) -> None:
        _, tokens, width = x_shape
        if tokens is None:
            raise ValueError(f"{self.name!r} mixes a fixed number of tokens, but was given the shape {x_shape}.")
        options = {"gelu": self.gelu, "dropout": self.dropout, "dtype": self.dtype_policy}
        self.norm1 = self.inner_norm("norm1", x_shape, self.epsilon)
        self.token_mixing = MixerMLP(self.tokens_mlp_width, **options, name="token_mixing")
        self.token_mixing.build((None, width, tokens))
        self.norm2 = self.inner_norm("norm2", x_shape, self.epsilon)
        self.mlp = MixerMLP(self.mlp_width, **options, name="mlp")
        self.mlp.build(x_shape)

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        # Every seed is drawn here, outside what may run twice. What somebody has put in a part's place draws its own.
        parts = (self.token_mixing, self.mlp)
        inner = [part.draw_seeds(training) if hasattr(part, "draw_seeds") else [None, None] for part in parts]
        seeds = [*self.draw(training, self.drop_path, self.drop_path), *inner[0], *inner[1]]
        if not (self.remat and training):
            return self._block(x, seeds, training)

        def block(x: Any, *drawn: Any) -> Any:
            following = iter(drawn)
            return self._block(x, [None if seed is None else next(following) for seed in seeds], training)

        return rematerialized(x, block, *(seed for seed in seeds if seed is not None))

    def _block(self, x: Any, seeds: list[Any], training: bool | None) -> Any:
        def mixed(part: Any, y: Any, drawn: Any) -> Any:
            return part(y, training=training, **given(seeds=drawn if hasattr(part, "draw_seeds") else None))

        y = ops.swapaxes(self.norm1(x, training=training), 1, 2)
        y = ops.swapaxes(mixed(self.token_mixing, y, seeds[2:4]), 1, 2)
        x = x + drop_path(y, self.drop_path, seeds[0])
        y = mixed(self.mlp, self.norm2(x, training=training), seeds[4:])
        return x + drop_path(y, self.drop_path, seeds[1])

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        return x_shape
