"""The block of MLP-Mixer (arXiv 2105.01601): a perceptron across tokens, then one across channels."""

from typing import Any

from keras import ops

from keras_vit._arguments import Shape, Tensor
from keras_vit.layers.base import ResidualBlock, SameShape, SeedGenerator, drop_path, not_none, registered
from keras_vit.layers.transformer_block import MLP


@registered
class MixerMLP(MLP):
    """An `MLP` with the first values of `MlpBlock` in the official `models_mixer.py`."""

    def build(self, input_shape: Shape) -> None:
        hidden = (*input_shape[:-1], self.width)
        self.fc1 = self.inner_dense("fc1", input_shape, self.width, kernel="lecun_normal")
        self.fc2 = self.inner_dense("fc2", hidden, input_shape[-1], kernel="lecun_normal")


@registered
class MixerBlock(SameShape, ResidualBlock):
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
        """Keeps the arguments; a generator of seeds only where paths are dropped."""
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
        """Makes both perceptrons and normalisations; ValueError if the number of tokens is not known."""
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
        """The tokens `(batch, tokens, D)` after mixing across tokens and across channels."""
        path_seeds = self.draw(training, self.drop_path, self.drop_path)
        seeds = self.draw_inner_seeds(training, self.token_mixing, self.mlp)

        def block(x: Any, path_seeds: Any, token_mixing_seeds: Any, mlp_seeds: Any) -> Any:
            y = ops.swapaxes(self.norm1(x, training=training), 1, 2)
            y = self.token_mixing(y, training=training, **not_none(seeds=token_mixing_seeds))
            x = x + drop_path(ops.swapaxes(y, 1, 2), self.drop_path, path_seeds[0])
            y = self.norm2(x, training=training)
            y = self.mlp(y, training=training, **not_none(seeds=mlp_seeds))
            return x + drop_path(y, self.drop_path, path_seeds[1])

        return self.compute(block, x, path_seeds, *seeds, training=training)
