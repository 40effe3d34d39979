"""The head of EoMT: masks from queries, on a map of patches that is enlarged ("Your ViT ...", arXiv 2503.19108)."""

from typing import Any

from keras import ops

from keras_vit._arguments import Shape, Tensor
from keras_vit.layers.base import BaseLayer, CompositeLayer, SameShape, activated, initializer, registered, tensor_of
from keras_vit.layers.ops import dense, depthwise_conv, reshape

_NORM_EPSILON = 1e-6  # of LayerNorm2d, whatever the backbone's is


@registered
class QueryRotation(BaseLayer):
    """A rotation that leaves queries, which have no place in the image, as they are.

    Args:
        count: The number of queries, which stand before the other tokens.

    Input: The output of `RotaryEmbedding`, `(2, T, d)`. Output: `(2, count + T, d)`.

    Examples:
        >>> tuple(layers.QueryRotation(count=3)(np.zeros((2, 5, 8), "float32")).shape)
        (2, 8, 8)
    """

    def __init__(self, count: int, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.count = count

    def call(self, rotation: Tensor) -> Tensor:
        sin = ops.zeros((1, self.count, rotation.shape[-1]), rotation.dtype)
        return ops.concatenate([ops.concatenate([sin, sin + 1]), rotation], axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (2, None if input_shape[1] is None else self.count + input_shape[1], input_shape[2])


@registered
class DoublingConvolution(BaseLayer):
    """A transposed convolution of 2x2 in steps of 2: each place becomes four, so that it is a product."""

    def build(self, input_shape: Shape) -> None:
        """Makes a kernel for squares of two pixels, and a bias."""
        width = input_shape[-1]
        self.kernel = self.add_weight(
            name="kernel", shape=(width, 2, 2, width), initializer=initializer("glorot_uniform")
        )
        self.bias = self.add_weight(name="bias", shape=(width,), initializer="zeros")

    def call(self, x: Tensor) -> Tensor:
        (rows, columns), width = ops.shape(x)[1:3], x.shape[-1]
        y = dense(x, reshape(tensor_of(self.kernel, x), (width, -1)), ops.tile(tensor_of(self.bias, x), 4))
        y = ops.transpose(reshape(y, (-1, rows, columns, 2, 2, width)), (0, 1, 3, 2, 4, 5))
        return reshape(y, (-1, 2 * rows, 2 * columns, width))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], *(None if n is None else 2 * n for n in input_shape[1:3]), input_shape[3])


@registered
class DepthwiseConvolution(SameShape):
    """A depthwise convolution of 3x3 without bias, with zeros around the map."""

    def build(self, input_shape: Shape) -> None:
        shape = (3, 3, input_shape[-1], 1)
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer=initializer("glorot_uniform"))

    def call(self, x: Tensor) -> Tensor:
        return depthwise_conv(x, tensor_of(self.kernel, x))


@registered
class UpscaleBlock(CompositeLayer):
    """Doubles a map: a transposed convolution, an activation, a depthwise convolution and a normalisation.

    `ScaleBlock` in EoMT's `models/scale_block.py`.

    Args:
        activation: As in `keras_vit.EoMTConfig`.

    Input: `(batch, rows, columns, D)`. Output: `(batch, 2 * rows, 2 * columns, D)`.

    Examples:
        >>> tuple(layers.UpscaleBlock()(np.zeros((1, 2, 3, 8), "float32")).shape)
        (1, 4, 6, 8)
    """

    def __init__(self, activation: str = "exact", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = activation

    def build(self, input_shape: Shape) -> None:
        """Makes both convolutions and the normalisation between them."""
        self.conv1 = DoublingConvolution(dtype=self.dtype_policy, name="conv1")
        self.conv2 = DepthwiseConvolution(dtype=self.dtype_policy, name="conv2")
        self.norm = self.inner_norm("norm", input_shape, _NORM_EPSILON)
        self.conv1.build(input_shape)
        self.conv2.build(input_shape)

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        x = self.conv2(activated(self.conv1, x, self.activation, training), training=training)
        return self.norm(x, training=training)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], *(None if n is None else 2 * n for n in input_shape[1:3]), input_shape[3])


@registered
class MaskHead(SameShape, CompositeLayer):
    """Three linear layers from a query to a vector, whose product with each place of a map is its mask (EoMT, 3.2).

    Args:
        activation: Between the linear layers; as in `keras_vit.EoMTConfig`.

    Input and output: `(batch, Q, D)`.

    Examples:
        >>> tuple(layers.MaskHead()(np.zeros((1, 5, 8), "float32")).shape)
        (1, 5, 8)
    """

    def __init__(self, activation: str = "exact", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = activation

    def build(self, input_shape: Shape) -> None:
        for name in ("fc1", "fc2", "fc3"):
            setattr(self, name, self.inner_dense(name, input_shape, input_shape[-1]))

    def call(self, queries: Tensor, training: bool | None = None) -> Tensor:
        for layer in (self.fc1, self.fc2):
            queries = activated(layer, queries, self.activation, training)
        return self.fc3(queries, training=training)
