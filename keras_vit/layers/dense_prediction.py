"""Layers of dense prediction: resizing of maps, BatchNormalization, parts of DPT, depth from bins, EoMT's and OWL's."""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import keras
import numpy as np
from keras import layers, ops

from keras_vit._arguments import Shape, Tensor, check_choice
from keras_vit._options import OneOf, Pair
from keras_vit.interpolation import neighbours
from keras_vit.layers.base import BaseLayer, CompositeLayer, SameShape, activated, initializer, registered, tensor_of
from keras_vit.layers.choices import DEPTH_OUTPUTS, GELUS, HEAD_ACTIVATIONS, REASSEMBLE_FACTORS, RESIZES
from keras_vit.layers.ops import (
    activate,
    conv,
    dense,
    depthwise_conv,
    float32_or_better,
    reshape,
    widened,
    with_faster_forms,
)


def resize(x: Tensor, size: Sequence[Any], how: str) -> Tensor:
    """Returns a map resized bilinearly, `(batch, *size, channels)` in the dtype of `x`; ValueError for unknown `how`.

    Args:
        x: `(batch, rows, columns, channels)`, floating point.
        size: New rows and columns; integers, or scalar integer tensors.
        how: `"corners"` as PyTorch's `align_corners=True`: cell i is read at `i (old - 1) / (new - 1)`. `"half_pixel"`
            as `align_corners=False`: cell i is read at `(i + 1/2) old / new - 1/2`, at least 0.

    Examples:
        >>> row = layers.resize(np.array([[[[0.0], [3.0]]]], "float32"), (1, 4), "corners")
        >>> keras.ops.convert_to_numpy(row)[0, 0, :, 0].round(4).tolist()
        [0.0, 1.0, 2.0, 3.0]
    """
    check_choice("how", how, RESIZES)
    x = ops.convert_to_tensor(x)
    return x if tuple(x.shape[1:3]) == tuple(size) else resize_bilinear(x, size, how == "corners")


@with_faster_forms
def resize_bilinear(x: Tensor, size: Sequence[Any], aligned: bool) -> Tensor:
    """Returns `(batch, *size, channels)`: a map resized with aligned corners, or else with half-pixel centres."""
    for axis, new in zip((1, 2), size, strict=True):
        old = ops.shape(x)[axis]
        known = isinstance(old, int) and isinstance(new, int)
        low, high, share = neighbours(old, new, aligned, np if known else ops)
        share = ops.convert_to_tensor(share.astype("float32") if known else share)
        share = ops.cast(ops.reshape(share, (-1, *[1] * (3 - axis))), x.dtype)
        first = ops.take(x, low, axis)
        x = first + (ops.take(x, high, axis) - first) * share
    return x


@registered
class BatchNormalization(keras.layers.BatchNormalization, BaseLayer):
    """`keras.layers.BatchNormalization` over the last axis that computes as `torch.nn.BatchNorm2d`.

    The running variance is the unbiased one (divided by n - 1), and defaults are PyTorch's; Keras divides by n.

    Args:
        momentum: Share of the running statistics that a step keeps: 1 minus PyTorch's momentum.
        epsilon: Added to the variance.

    Input: `(batch, ..., D)`. Output: the same shape.

    Examples:
        >>> layer = layers.BatchNormalization()
        >>> y = layer(np.array([[0.0], [2.0]], "float32"), training=True)
        >>> [round(float(layer.moving_variance[0]), 6), float(layer.moving_mean[0]) > 0]  # 0.9 + 0.1 * 2
        [1.1, True]
    """

    processes = None  # those of a run, each with a part of the batch; None where all of it is here

    def __init__(self, momentum: float = 0.9, epsilon: float = 1e-5, **kwargs: Any) -> None:
        """Keeps the arguments; ValueError for another `axis` than -1, and for what Keras's own layer refuses."""
        check_choice("axis", kwargs.get("axis", -1), (-1,))
        super().__init__(momentum=momentum, epsilon=epsilon, **kwargs)

    def call(self, inputs: Tensor, training: bool | None = None, mask: Any = None) -> Tensor:
        """Returns normalised inputs; in training by mean and variance of the batches of all processes."""
        if not (training and self.trainable):
            return super().call(inputs, training=False)
        x = ops.cast(inputs, float32_or_better(inputs.dtype))
        axes, parts = [*range(len(x.shape) - 1)], 1
        mean, variance = ops.moments(x, axes=axes)
        if self.processes is not None:
            parts = self.processes.count
            mean = self.processes.mean_with_gradient(mean)
            variance = self.processes.mean_with_gradient(ops.mean(ops.square(x - mean), axis=axes))
        count = ops.cast(math.prod(ops.shape(x)[:-1]) * parts, x.dtype)
        sample = variance * count / ops.maximum(count - 1, 1)
        for running, now in ((self.moving_mean, mean), (self.moving_variance, sample)):
            old = ops.convert_to_tensor(running)  # a Variable would make the momentum a float32
            running.assign(self.momentum * old + (1 - self.momentum) * ops.cast(now, running.dtype))
        outputs = ops.batch_normalization(x, mean, variance, -1, self.beta, self.gamma, self.epsilon)
        return ops.cast(outputs, self.compute_dtype)


@registered
class Convolution(BaseLayer):
    """A convolution with an odd kernel and zeros on every side, half a kernel wide: one place for each step.

    Input: `(batch, rows, columns, channels)`. Output: `(batch, ceil(rows / strides), ..., filters)`.
    """

    filters: int
    size: int
    strides: int = 1
    use_bias: bool = True  # the argument `bias`

    def build(self, input_shape: Shape) -> None:
        shape = (self.size, self.size, input_shape[-1], self.filters)
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer=initializer("glorot_uniform"))
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(self.filters,), initializer="zeros")

    def call(self, x: Tensor) -> Tensor:
        y = conv(x, tensor_of(self.kernel, x), self.strides, self.size // 2)
        return y + tensor_of(self.bias, x) if self.use_bias else y

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        rows, columns = (None if n is None else math.ceil(n / self.strides) for n in input_shape[1:3])
        return (input_shape[0], rows, columns, self.filters)


@registered
class WithClassToken(BaseLayer):
    """`[patch, class token]` for each place, from patches `(batch, rows, columns, D)` and tokens `(batch, T, D)`."""

    def call(self, patches: Tensor, tokens: Tensor) -> Tensor:
        token = ops.broadcast_to(tokens[:, None, :1], ops.shape(patches))
        return ops.concatenate([patches, token], axis=-1)

    def compute_output_shape(self, patches_shape: Any, tokens_shape: Shape) -> Shape:
        return (*patches_shape[:3], 2 * patches_shape[-1])


@registered
class Reassemble(CompositeLayer):
    """Projects and resizes the map of a block's patch tokens (DPT, section 3, `Reassemble`).

    Args:
        width: Channels of the output.
        factor: Scale of the output: 4 or 2 (a transposed convolution), 1, or 0.5 (a 3x3 convolution of stride 2).
        readout: Length to which `[patch, class token]` is projected first, before a GELU; None if the input has no
            class token.
        gelu: Kind of this GELU: `"exact"` (DINOv2) or `"tanh"` (TIPS).

    Input: `(batch, rows, columns, channels)`. Output: `(batch, factor * rows, factor * columns, width)`; sizes that
    are halved are rounded up.

    Raises:
        ValueError: if `factor` is not 4, 2, 1 or 0.5.

    Examples:
        >>> tuple(layers.Reassemble(width=8, factor=0.5)(np.zeros((1, 5, 4, 6), "float32")).shape)
        (1, 3, 2, 8)
    """

    width: int
    factor: Annotated[float, OneOf(REASSEMBLE_FACTORS)]
    readout: int | None = None
    gelu: Annotated[str, OneOf(GELUS)] = "exact"

    def build(self, input_shape: Shape) -> None:
        shape, policy = input_shape, self.dtype_policy
        if self.readout is not None:
            self.readout_projection = self.inner_dense("readout_projection", shape, self.readout)
            shape = (*shape[:3], self.readout)
        self.projection = self.inner_dense("projection", shape, self.width)
        self.resized: Any = None
        if self.factor > 1:
            common = {"data_format": "channels_last", "dtype": policy, "name": "resized"}
            self.resized = layers.Conv2DTranspose(self.width, self.factor, self.factor, **common)
        elif self.factor < 1:
            self.resized = Convolution(self.width, 3, strides=2, dtype=policy, name="resized")
        if self.resized is not None:
            self.resized.build((*shape[:3], self.width))

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        if self.readout is not None:
            x = activated(self.readout_projection, x, self.gelu, training)
        x = self.projection(x, training=training)
        return x if self.resized is None else self.resized(x, training=training)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        rows, columns = (None if n is None else math.ceil(n * self.factor) for n in input_shape[1:3])
        return (input_shape[0], rows, columns, self.width)


@registered
class ResidualConvUnit(SameShape, CompositeLayer):
    """Two convolutions of 3x3, a ReLU before each, added to the input (`ResidualConvUnit` in DPT's `blocks.py`)."""

    use_bias: bool = True  # the argument `bias`

    def build(self, input_shape: Any) -> None:
        for name in ("conv1", "conv2"):
            inner = Convolution(input_shape[-1], 3, bias=self.use_bias, dtype=self.dtype_policy, name=name)
            inner.build(input_shape)
            setattr(self, name, inner)

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        y = activated(self.conv1, activate(x, "relu"), "relu", training)
        return x + self.conv2(y, training=training)


@registered
class FeatureFusion(CompositeLayer):
    """Adds a map of a shallower block, resizes with aligned corners and projects (DPT, section 3, `Fusion`).

    Args:
        skip: Whether there is a shallower map; the deepest block has none.
        bias: Whether the convolutions of 3x3 have a bias; DINOv2's have none.

    Call arguments:
        x: `(batch, rows, columns, channels)`, from the deeper block.
        skip: The shallower map, which is resized (half-pixel centres) to the size of `x`.
        like: A map with the rows and columns of the output; None: the output has twice the size of `x`.

    Output: `(batch, *like.shape[1:3], channels)`.

    Examples:
        >>> x = np.zeros((1, 3, 3, 8), "float32")
        >>> tuple(layers.FeatureFusion()(x, skip=x).shape)
        (1, 6, 6, 8)
    """

    use_skip: bool = True  # the argument `skip`
    use_bias: bool = True  # the argument `bias`

    def build(self, x_shape: Shape, skip_shape: Shape | None = None, like_shape: Shape | None = None) -> None:
        for name in ("unit1", "unit2") if self.use_skip else ("unit2",):
            unit = ResidualConvUnit(self.use_bias, dtype=self.dtype_policy, name=name)
            unit.build(x_shape)
            setattr(self, name, unit)
        self.projection = self.inner_dense("projection", x_shape, x_shape[-1])

    def call(
        self, x: Tensor, skip: Tensor | None = None, like: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        if self.use_skip != (skip is not None):
            needed = "must" if self.use_skip else "must not"
            raise ValueError(f"{self.name!r} has skip={self.use_skip}, so a shallower map {needed} be passed as skip.")
        if self.use_skip:
            x = x + self.unit1(resize(skip, ops.shape(x)[1:3], "half_pixel"), training=training)
        x = self.unit2(x, training=training)
        size = [2 * n for n in ops.shape(x)[1:3]] if like is None else ops.shape(like)[1:3]
        return self.projection(resize(x, size, "corners"), training=training)

    def compute_output_shape(
        self, x_shape: Shape, skip_shape: Shape | None = None, like_shape: Shape | None = None
    ) -> Shape:
        size = [None if n is None else 2 * n for n in x_shape[1:3]] if like_shape is None else like_shape[1:3]
        return (x_shape[0], *size, x_shape[-1])


@registered
class DepthHead(CompositeLayer):
    """Three convolutions from the last map to one number for each place (DPT, section 3; `DPTHead`, `HeadDepth`).

    The map is resized, with aligned corners, after the first of them. Numbers are computed in at least float32.

    Args:
        hidden: Channels between the last two convolutions.
        patch_size: Height and width of a patch, if the output has as many pixels as the image; None: the output has
            twice the map's rows and columns (DINOv2).
        output: `"relu"` (times `max_depth`), `"sigmoid"` (times `max_depth`), `"clipped"`: a ReLU plus `min_depth`,
            at most `max_depth` (DINOv2), or `"exp"` (Depth Anything 3); ValueError for another.
        min_depth: The least depth, for `"clipped"`.
        max_depth: The largest depth; not for `"exp"`.
        sky: Whether the last two convolutions exist a second time, before a ReLU, for a score of the sky.

    Call arguments:
        x: `(batch, rows, columns, channels)`. The output is `(batch, height, width)`; with `sky` a dict of two such
            maps, `depth` and `sky`.
        patches: The map of patches `(batch, grid rows, grid columns, D)`, only with `patch_size`.

    Examples:
        >>> tuple(layers.DepthHead(hidden=4)(np.zeros((1, 3, 5, 8), "float32")).shape)
        (1, 6, 10)
    """

    hidden: int
    patch_size: Pair | None = None
    use_output: Annotated[str, OneOf(DEPTH_OUTPUTS)] = "clipped"  # the argument `output`
    min_depth: float = 0.001
    max_depth: float = 1.0
    use_sky: bool = False

    def build(self, x_shape: Any, patches_shape: Shape | None = None) -> None:
        channels, half = x_shape[-1], x_shape[-1] // 2
        sizes = {"conv1": (half, 3, channels), "conv2": (self.hidden, 3, half), "conv3": (1, 1, self.hidden)}
        sizes |= {f"sky_{name}": sizes[name] for name in ("conv2", "conv3") if self.use_sky}
        for name, (filters, size, inputs) in sizes.items():
            inner = Convolution(filters, size, dtype=self.dtype_policy, name=name)
            inner.build((*x_shape[:3], inputs))
            setattr(self, name, inner)

    def call(self, x: Tensor, patches: Tensor | None = None, training: bool | None = None) -> Tensor:
        if (patches is None) != (self.patch_size is None):
            needed = "must not" if self.patch_size is None else "must"
            raise ValueError(f"{self.name!r} has patch_size={self.patch_size}, so patches {needed} be passed.")
        x = self.conv1(x, training=training)
        places, factors = x if patches is None else patches, self.patch_size or (2, 2)
        size = [n * factor for n, factor in zip(ops.shape(places)[1:3], factors, strict=True)]
        x = resize(x, size, "corners")
        depth = _number(x, self.conv2, self.conv3, training)
        if self.use_output == "exp":
            depth = ops.exp(depth)
        elif self.use_output == "sigmoid":
            depth = ops.sigmoid(depth) * self.max_depth
        elif self.use_output == "relu":
            depth = ops.relu(depth) * self.max_depth
        else:
            depth = ops.minimum(ops.relu(depth) + self.min_depth, self.max_depth)
        if not self.use_sky:
            return depth
        return {"depth": depth, "sky": ops.relu(_number(x, self.sky_conv2, self.sky_conv3, training))}

    def compute_output_spec(self, x: Tensor, patches: Tensor | None = None, training: Any = None) -> Any:
        shape = self.compute_output_shape(x.shape, None if patches is None else patches.shape)
        depth, sky = (keras.KerasTensor(shape, float32_or_better(self.compute_dtype)) for _ in range(2))
        return {"depth": depth, "sky": sky} if self.use_sky else depth

    def compute_output_shape(self, x_shape: Shape, patches_shape: Shape | None = None) -> Shape:
        """Returns the shape of each map."""
        places, factors = x_shape, (2, 2)
        if patches_shape is not None:
            places, factors = patches_shape, self.patch_size or factors
        return (x_shape[0], *(None if n is None else n * f for n, f in zip(places[1:3], factors, strict=True)))


def _number(x: Tensor, first: Any, last: Any, training: bool | None) -> Tensor:
    """Returns one number for each place, by two convolutions with a ReLU between them; at least float32."""
    return widened(last(activated(first, x, "relu", training), training=training))[..., 0]


@registered
class DepthBins(CompositeLayer):
    """Depth as a mean of equally spaced bins, weighted by a linear function of the tokens (`BNHead` in DINOv2's depth).

    Args:
        min_depth: Depth of the first bin.
        max_depth: Depth of the last bin.
        bins: Number of bins.
        factor: Scale of the output: rows and columns for one of the map.
        least_share: What is added to the score of each bin before the scores are divided by their sum (TIPS: 0.001).

    Input: `(batch, rows, columns, channels)`. Output: float32 or better, `(batch, factor * rows, factor * columns)`.

    Examples:
        >>> tuple(layers.DepthBins(max_depth=10.0)(np.zeros((1, 2, 3, 8), "float32")).shape)
        (1, 8, 12)
    """

    min_depth: float = 0.001
    max_depth: float = 10.0
    bins: int = 256
    factor: int = 4
    least_share: float = 0.1

    def build(self, input_shape: Shape) -> None:
        self.scores = self.inner_dense("scores", input_shape, self.bins)

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        # The original resizes before the linear function. The other way round is the same except for rounding, as the
        # weights of a resize add up to 1, and has 256 channels in place of 2 D for each layer.
        x = widened(self.scores(x, training=training))
        x = resize(x, [n * self.factor for n in ops.shape(x)[1:3]], "half_pixel")
        x = ops.relu(x) + self.least_share
        centres = np.linspace(self.min_depth, self.max_depth, self.bins)
        depth = ops.sum(x * ops.convert_to_tensor(centres, x.dtype), -1) / ops.sum(x, -1)
        return ops.clip(depth, self.min_depth, self.max_depth)

    def compute_output_spec(self, x: Tensor, training: Any = None) -> keras.KerasTensor:
        return keras.KerasTensor(self.compute_output_shape(x.shape), float32_or_better(self.compute_dtype))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], *(None if n is None else n * self.factor for n in input_shape[1:3]))


_NORM_EPSILON = 1e-6  # of LayerNorm2d, whatever the backbone's is


@registered
class QueryRotation(BaseLayer):
    """Extends a rotation by queries, which have no place in the image and are not rotated.

    Args:
        count: The number of queries, which stand before the other tokens.

    Input: The output of `RotaryEmbedding`, `(2, T, d)`. Output: `(2, count + T, d)`.

    Examples:
        >>> tuple(layers.QueryRotation(count=3)(np.zeros((2, 5, 8), "float32")).shape)
        (2, 8, 8)
    """

    count: int

    def _check_together(self) -> None:
        self.autocast = False

    def call(self, rotation: Tensor) -> Tensor:
        sin = ops.zeros((1, self.count, rotation.shape[-1]), rotation.dtype)
        return ops.concatenate([ops.concatenate([sin, sin + 1]), rotation], axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (2, None if input_shape[1] is None else self.count + input_shape[1], input_shape[2])


@registered
class DoublingConvolution(BaseLayer):
    """A transposed convolution of 2x2 in steps of 2: each place becomes four, so that it is a product.

    Input: `(batch, rows, columns, D)`. Output: `(batch, 2 * rows, 2 * columns, D)`.
    """

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1]
        # The deviation of PyTorch's own first values; Keras would take axes of this shape for others.
        first = initializer("normal", stddev=(12 * width) ** -0.5)  # ty: ignore[unsupported-operator]
        self.kernel = self.add_weight(name="kernel", shape=(width, 2, 2, width), initializer=first)
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
        activation: As in `keras_vit.models.EoMTConfig`.

    Input: `(batch, rows, columns, D)`. Output: `(batch, 2 * rows, 2 * columns, D)`.

    Examples:
        >>> tuple(layers.UpscaleBlock()(np.zeros((1, 2, 3, 8), "float32")).shape)
        (1, 4, 6, 8)
    """

    activation: Annotated[str, OneOf(HEAD_ACTIVATIONS)] = "exact"

    def build(self, input_shape: Shape) -> None:
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
    """Three linear layers that make a mask embedding of each query token (EoMT, section 3.2).

    The dot product of a query's embedding with the features of each place of a map is the logit of its mask.

    Args:
        activation: Activation between the linear layers, as in `keras_vit.models.EoMTConfig`.

    Input and output: `(batch, Q, D)`.

    Examples:
        >>> tuple(layers.MaskHead()(np.zeros((1, 5, 8), "float32")).shape)
        (1, 5, 8)
    """

    activation: Annotated[str, OneOf(HEAD_ACTIVATIONS)] = "exact"

    def build(self, input_shape: Shape) -> None:
        for name in ("fc1", "fc2", "fc3"):
            setattr(self, name, self.inner_dense(name, input_shape, input_shape[-1]))

    def call(self, queries: Tensor, training: bool | None = None) -> Tensor:
        for layer in (self.fc1, self.fc2):
            queries = activated(layer, queries, self.activation, training)
        return self.fc3(queries, training=training)


# Boxes: the heads of OWL-ViT and OWLv2 on the patches of a plain Vision Transformer (arXiv 2205.06230, section 3.1)

LEAST_NORM = 1e-6  # added to the length of a patch's embedding
_LEAST_SIDE = 1e-4  # keeps logits of 0 and 1 finite


def box_bias(rows: int, columns: int) -> np.ndarray:
    """What is added to the logits of boxes, float32 `(rows * columns, 4)`: the lower right corner, one patch."""
    # As `compute_box_bias` of transformers' OWL-ViT, in the order centre x, centre y, width, height.
    x, y = np.meshgrid(np.arange(1, columns + 1) / columns, np.arange(1, rows + 1) / rows)
    place = np.stack([x, y, np.full_like(x, 1 / columns), np.full_like(y, 1 / rows)], -1).reshape(-1, 4)
    place = np.clip(place, 0, 1).astype("float32")
    return (np.log(place + _LEAST_SIDE) - np.log1p(-place + _LEAST_SIDE)).astype("float32")


@registered
class DetectionHead(CompositeLayer):
    """A box and the logits of all classes for each patch, from tokens that have taken the final norm.

    Args:
        classes: C, the number of classes.
        embedding: E, the length of the embeddings of patches and classes.
        grid_size: Rows and columns of patches.
        prefix_tokens: Tokens before the patches.
        class_token: Whether patches are multiplied by the first token.
        objectness: Whether there is a head for the probability that a patch shows an object (OWLv2).
        activation: Activation of the heads of boxes and objectness, as in `keras_vit.models.DetectorConfig`.
        epsilon: Epsilon of the normalisation after the product with the class token.

    Input: `(batch, prefix_tokens + P, D)`. Output: a dictionary of float32 or better: `logits` `(batch, P, C)`, `boxes`
    `(batch, P, 4)`, centre and size in 0..1, and `objectness` `(batch, P)` where there is such a head.

    Source: `OwlViTForObjectDetection` and `Owlv2ForObjectDetection` of transformers; `scenic/projects/owl_vit`.
    """

    classes: int
    embedding: int
    grid_size: Pair
    prefix_tokens: int = 1
    class_token: bool = True
    objectness: bool = False
    activation: Annotated[str, OneOf(HEAD_ACTIVATIONS)] = "exact"
    epsilon: float = 1e-5

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1]
        self.norm = self.inner_norm("norm", input_shape, self.epsilon)
        self.embed = self.inner_dense("embed", input_shape, self.embedding)
        shape = (*input_shape[:-1], self.embedding)
        self.queries = self.inner_dense("queries", shape, self.classes, use_bias=False)
        # A probability of 0.01 at first, as Scenic trains new heads.
        bias = keras.initializers.Constant(float(np.log(0.01 / 0.99)))
        self.logit_shift = self.inner_dense("logit_shift", input_shape, 1, bias=bias)
        self.logit_scale = self.inner_dense("logit_scale", input_shape, 1)
        for name, outputs in (("box", 4), *([("object", 1)] if self.objectness else [])):
            for layer in ("fc1", "fc2"):
                setattr(self, f"{name}_{layer}", self.inner_dense(f"{name}_{layer}", input_shape, width))
            setattr(self, f"{name}_fc3", self.inner_dense(f"{name}_fc3", input_shape, outputs, kernel="zeros"))

    def features(self, tokens: Tensor) -> Tensor:
        """What all heads read, `(batch, P, D)`."""
        patches = tokens[:, self.prefix_tokens :]
        return self.norm(patches * tokens[:, :1] if self.class_token else patches)

    def call(self, tokens: Tensor, queries: Tensor | None = None, training: bool | None = None) -> dict[str, Tensor]:
        """Returns `logits`, `boxes` and, in an OWLv2, `objectness` of tokens; `queries` `(E, C)` replace the kernel."""
        x = self.features(tokens)
        vectors = widened(self.embed(x, training=training))
        vectors = vectors / (ops.sqrt(ops.sum(ops.square(vectors), -1, keepdims=True)) + LEAST_NORM)
        shift = widened(self.logit_shift(x, training=training))
        scale = ops.elu(widened(self.logit_scale(x, training=training))) + 1
        cosines = self.queries(vectors, training=training) if queries is None else ops.matmul(vectors, queries)
        found = {"logits": (widened(cosines) + shift) * scale}
        boxes = widened(self._mlp("box", x, training))
        found["boxes"] = ops.sigmoid(boxes + ops.convert_to_tensor(box_bias(*self.grid_size), boxes.dtype))
        if self.objectness:  # its gradient ends here, as in transformers
            found["objectness"] = widened(self._mlp("object", ops.stop_gradient(x), training))[..., 0]
        return found

    def _mlp(self, name: str, x: Tensor, training: bool | None) -> Tensor:
        for layer in (getattr(self, f"{name}_fc1"), getattr(self, f"{name}_fc2")):
            x = activated(layer, x, self.activation, training)
        return getattr(self, f"{name}_fc3")(x, training=training)

    def compute_output_spec(
        self, tokens: Tensor, queries: Any = None, training: Any = None
    ) -> dict[str, keras.KerasTensor]:
        shape = (tokens.shape[0], self.grid_size[0] * self.grid_size[1])
        classes = self.classes if queries is None else queries.shape[-1]
        ends = {"logits": (classes,), "boxes": (4,)} | ({"objectness": ()} if self.objectness else {})
        dtype = float32_or_better(self.compute_dtype)
        return {name: keras.KerasTensor((*shape, *end), dtype) for name, end in ends.items()}
