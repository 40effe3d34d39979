"""Calls of layers as files hold them: the same values, from operators that the GPUs of phones have, also in float16.

They replace `call` while a graph is traced. LiteRT's GPU accelerator (2.3.0) refuses an index that drops an axis, ranks
above 4, BROADCAST_TO and products with a constant on the left; it ignores on OpenCL that a side of a product is
transposed, pads with -inf before a maximum, and computes in float16, where squares overflow from 256 on.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._keras import layers_inside
from keras_vit.export.format import Signature
from keras_vit.layers import ClassToken, DepthBins, MAPHead, PaddedMaxPooling2D, RegisterTokens, resize
from keras_vit.layers.blocks import MultiHeadAttention
from keras_vit.layers.dense_prediction import DoublingConvolution, WithClassToken
from keras_vit.layers.resnet import GroupNormalization

MASKED = -1e4  # added to scores that do not count: finite in float16, and its exponential is 0


def _product(x: Any, kernel: Any, bias: Any = None) -> Any:
    """A product as one operation, where Keras 3.15 has ten, with a shape that is computed."""
    import tensorflow as tf

    y = tf.matmul(x, ops.convert_to_tensor(kernel))  # in `ops.matmul` as well, a matrix gets axes
    return y if bias is None else y + bias


def _dense(layer: Any, x: Any) -> Any:
    return layer.activation(_product(x, layer.kernel, layer.bias))


def _embedding(dtype: str, layer: Any, ids: Any) -> Any:
    """Float32 rows of a table of tokens, which the file holds in `dtype`: integers have a peak for each row."""
    import tensorflow as tf

    if dtype == "float32":
        return tf.gather(ops.convert_to_tensor(layer.embeddings), ids)
    with tf.init_scope():  # outside of the graph that is traced
        table = ops.convert_to_numpy(layer.embeddings)
    peaks = np.maximum(np.abs(table).max(1, keepdims=True), 2.0**-24)
    most = np.iinfo(dtype).max
    rows = tf.cast(tf.gather(np.rint(table / peaks * most).astype(dtype), ids), "float32")
    return rows * (1 / most) * tf.gather(peaks, ids)  # no factor is too small for float16


def _peak(x: Any, least: float = 2.0**-8) -> Any:
    """The largest magnitude of each row; at least what zeros are divided by."""
    return ops.maximum(ops.max(ops.abs(x), -1, keepdims=True), least)


def _layer_norm(onnx: bool, layer: Any, x: Any) -> Any:
    """`LayerNormalization.call`; for ONNX what `formats.onnx` replaces by its operator, whose sums are float32."""
    last = len(x.shape) - 1
    if layer.axis not in (-1, [-1], last, [last]) or layer.gamma is None or layer.beta is None:
        return type(layer).call(layer, x)
    if onnx:
        import tensorflow as tf

        inputs = [x, *(ops.convert_to_tensor(weight) for weight in (layer.gamma, layer.beta))]
        return tf.ensure_shape(tf.raw_ops.PyFunc(input=inputs, token=str(layer.epsilon), Tout=[x.dtype])[0], x.shape)
    centred = x - ops.mean(x, -1, keepdims=True)
    peak = _peak(centred)
    scaled, root = centred / peak, layer.epsilon**0.5 / peak  # no square is above 1
    y = scaled * ops.rsqrt(ops.mean(ops.square(scaled), -1, keepdims=True) + ops.square(root))
    return y * layer.gamma + layer.beta


def _group_norm(float16: bool, layer: Any, x: Any) -> Any:
    """`GroupNormalization.call` at rank 4: statistics over places, then channels; over both, runtimes are slow."""
    groups, size = layer.groups, x.shape[-1] // layer.groups

    def of_groups(statistic: Any, x: Any) -> Any:  # for each channel that of its group, `(batch, 1, 1, channels)`
        y = statistic(ops.reshape(statistic(x, (1, 2)), (-1, 1, groups, size)), -1, keepdims=True)
        return ops.reshape(ops.tile(y, (1, 1, 1, size)), (-1, 1, 1, groups * size))

    def divided(x: Any) -> Any:  # in float16, squares can overflow, and also a sum of small values over all places
        if not float16:
            return x, 1.0
        peak = ops.maximum(of_groups(ops.max, ops.abs(x)), 2.0**-8)
        return x / peak, peak

    x, first = divided(x)
    x, second = divided(x - of_groups(ops.mean, x))
    scale = ops.rsqrt(of_groups(ops.mean, ops.square(x)) + ops.square(layer.epsilon**0.5 / (first * second)))
    return x * (scale * layer.gamma) + layer.beta


def _unit_norm(layer: Any, x: Any) -> Any:
    """`keras.layers.UnitNormalization.call`, by a mean: of a sum, the converter makes an operator that GPUs lack."""
    if layer.axis not in (-1, [-1]):
        return type(layer).call(layer, x)
    scaled = x / _peak(x, 2.0**-14)
    return scaled * ops.rsqrt(ops.mean(ops.square(scaled), -1, keepdims=True) * x.shape[-1])


def _learned_tokens(layer: Any, tokens: Any) -> Any:
    return ops.concatenate([ops.tile(layer.learned, (tokens.shape[0], 1, 1)), tokens], 1)


def _with_class_token(layer: Any, patches: Any, tokens: Any) -> Any:
    return ops.concatenate([patches, ops.tile(tokens[:, :1, None], (1, *patches.shape[1:3], 1))], -1)


def _by_heads(dense: Any, x: Any, heads: int, order: Any = None) -> Any:
    """What a projection, its columns in an order, makes of tokens: `(batch, tokens, heads, d)`."""
    weights = [] if order is None else [ops.take(w, order, -1) for w in (dense.kernel, dense.bias) if w is not None]
    y = _product(x, *weights) if weights else dense(x)
    return ops.reshape(y, (*x.shape[:2], heads, y.shape[-1] // heads))


def _mixed(layer: Any, scores: Any, tokens: Any) -> Any:
    """What attention makes of scores, `(batch, heads, Q, T)`, and the values of tokens: `(batch, Q, D)`."""
    value = ops.transpose(_by_heads(layer.value, tokens, layer.heads), (0, 2, 1, 3))
    y = ops.transpose(ops.matmul(ops.softmax(scores), value), (0, 2, 1, 3))
    y = ops.reshape(y, (*y.shape[:2], layer.width))
    return layer.out(layer.norm(y) if layer.use_norm else y)


def _attention(
    layer: Any, tokens: Any, queries: Any = None, rotation: Any = None, allowed: Any = None, **options: Any
) -> Any:
    """`MultiHeadAttention.call`: keys are transposed once, and rotary pairs (2i, 2i + 1) are columns (i, i + d/2)."""
    if options.get("offset") is not None or layer.causal:
        return type(layer).call(layer, tokens, queries, rotation, allowed=allowed, **options)
    heads, size, order = layer.heads, layer.width // layer.heads, None
    if layer.rotary_embedding not in (None, "dinov3"):  # no product of queries and keys sees the order of columns
        within = np.r_[0:size:2, 1:size:2]
        order, rotation = (np.arange(heads)[:, None] * size + within).ravel(), ops.take(rotation, within, -1)
    query = _by_heads(layer.query, tokens if queries is None else queries, heads, order)
    key = _by_heads(layer.key, tokens, heads, order)
    if rotation is not None:
        query, key = _turned(query, rotation[:, : query.shape[1]]), _turned(key, rotation)
    scores = ops.matmul(ops.transpose(query * size**-0.5, (0, 2, 1, 3)), ops.transpose(key, (0, 2, 3, 1)))
    scores = scores if allowed is None else scores + ops.where(allowed[:, None], 0.0, MASKED)
    return _mixed(layer, scores, tokens)


def _turned(x: Any, rotation: Any) -> Any:
    """Queries or keys, `(batch, tokens, heads, d)`, of which channel i is turned with channel i + d/2."""
    sin, cos = rotation[0][:, None], rotation[1][:, None]
    half = x.shape[3] // 2
    return x * cos + ops.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def _map_head(layer: Any, tokens: Any) -> Any:
    """`MAPHead.call`: its query is a constant, so that it and the keys' kernel are one kernel, `(D, heads)`."""
    attention, tokens = layer.attention, tokens[:, layer.skipped_tokens :]
    heads, (batch, count, width) = attention.heads, tokens.shape
    query = ops.reshape(attention.query(layer.probe), (heads, -1)) * (width // heads) ** -0.5
    kernel = ops.einsum("dhc,hc->dh", ops.reshape(attention.key.kernel, (width, heads, -1)), query)
    # The keys' bias is the same for all tokens of a head, which changes no softmax.
    scores = ops.transpose(_product(tokens, kernel), (0, 2, 1))
    x = _mixed(attention, ops.reshape(scores, (batch, heads, 1, count)), tokens)
    return (x + layer.mlp(layer.norm(x)))[:, 0]


def _max_pooling(layer: Any, x: Any) -> Any:
    for axis in (1, 2):
        first, last = (x[:, :1], x[:, -1:]) if axis == 1 else (x[:, :, :1], x[:, :, -1:])
        first, last = (ops.zeros_like(first),) * 2 if layer.padding == "zeros" else (first, last)
        x = ops.concatenate([first, x, last], axis)
    return ops.max_pool(x, 3, 2, "valid", "channels_last")


def _doubling(layer: Any, x: Any) -> Any:
    batch, rows, columns, width = x.shape
    kernel, bias = ops.reshape(layer.kernel, (width, -1)), ops.tile(layer.bias, 4)
    y = _product(ops.reshape(x, (-1, width)), kernel, bias)
    y = ops.transpose(ops.reshape(y, (batch * rows, columns, 2, 2 * width)), (0, 2, 1, 3))
    return ops.reshape(y, (batch, 2 * rows, 2 * columns, width))


def _depth_bins(layer: Any, x: Any) -> Any:
    x = resize(layer.scores(x), [n * layer.factor for n in x.shape[1:3]], "half_pixel")
    x = ops.relu(x) + layer.least_share
    x = x / ops.max(x, -1, keepdims=True)
    centres = np.linspace(layer.min_depth, layer.max_depth, layer.bins, dtype="float32")
    return ops.clip(ops.mean(x * centres, -1) / ops.mean(x, -1), layer.min_depth, layer.max_depth)


def _masks(operation: Any, vectors: Any, features: Any) -> Any:
    """Products of an EoMT's queries and the places of a map, at rank 4: the converter undoes others."""
    batch, rows, columns, width = features.shape
    places = ops.transpose(ops.reshape(features, (batch, rows * columns, 1, width)), (0, 2, 3, 1))
    return ops.reshape(ops.matmul(vectors[:, None], places), (batch, vectors.shape[1], rows, columns))


Calls = dict[Any, Callable[..., Any]]  # by the class of a layer, or by what an einsum computes
EVERYWHERE: Calls = {keras.layers.Dense: _dense, PaddedMaxPooling2D: _max_pooling}  # ONNX Runtime pads so, too
FIXED: Calls = {
    **{ClassToken: _learned_tokens, RegisterTokens: _learned_tokens, WithClassToken: _with_class_token},
    **{MultiHeadAttention: _attention, MAPHead: _map_head, DoublingConvolution: _doubling},
    **{GroupNormalization: functools.partial(_group_norm, False), DepthBins: _depth_bins, "bqd,brcd->bqrc": _masks},
}
FLOAT16: Calls = {
    keras.layers.LayerNormalization: functools.partial(_layer_norm, False),
    **{GroupNormalization: functools.partial(_group_norm, True), keras.layers.UnitNormalization: _unit_norm},
}
ONNX: Calls = {keras.layers.LayerNormalization: functools.partial(_layer_norm, True)}


def is_for_gpu(signature: Signature, format: str) -> bool:
    """Whether the GPU of a phone may run a file: where the sizes are known, it costs nothing that it can."""
    return signature.is_fixed and (format == "litert" or signature.float16)


def calls_for(signature: Signature, format: str) -> Calls:
    """The calls that a file has in place of the layers' own; none in TensorFlow's own format."""
    if format == "saved_model":
        return {}
    calls = EVERYWHERE | {keras.layers.Embedding: functools.partial(_embedding, signature.table)}
    calls |= (FIXED if is_for_gpu(signature, format) else {}) | (FLOAT16 if signature.float16 else {})
    return calls | (ONNX if format == "onnx" else {})


def separate_outputs(answers: dict[str, Any]) -> dict[str, Any]:
    """Answers that no operator reads: of a sum that is read as well, LiteRT's accelerator returns one of its parts."""
    # A maximum with the least number: the converter removes whatever else changes nothing.
    return {name: ops.maximum(x, -3.4e38) for name, x in answers.items()} if len(answers) > 1 else answers


@contextlib.contextmanager
def replaced(model: keras.Model, calls: Calls) -> Iterator[None]:
    """Within it, layers of a model compute these calls, and an index that drops an axis is a slice and a reshape."""
    import tensorflow as tf

    layers = layers_inside(model)
    rows = [(layer, next((calls[cls] for cls in type(layer).__mro__ if cls in calls), None)) for layer in layers]
    operations = [operation for layer in layers for operation in getattr(layer, "operations", ())]
    rows += [(operation, calls.get(getattr(operation, "subscripts", None))) for operation in operations]
    rows = [(layer, call) for layer, call in rows if call and "call" not in vars(layer)]  # what somebody replaced stays
    index = tf.Tensor.__getitem__
    try:
        tf.Tensor.__getitem__ = functools.partialmethod(_sliced, index) if calls else index
        for layer, call in rows:
            layer.call = functools.partial(_without_training, call, layer)
        yield
    finally:
        tf.Tensor.__getitem__ = index
        for layer, _ in rows:
            del layer.call


def _without_training(call: Callable[..., Any], layer: Any, *args: Any, training: Any = None, **options: Any) -> Any:
    """What a replaced call returns, which is the same in training; it refuses options that it does not know."""
    return call(layer, *args, **options)


def _sliced(x: Any, index: Any, key: Any) -> Any:
    """`x[key]` by slices and a reshape, where sizes are known and the key has only integers, slices, `...` and None."""
    keys = key if isinstance(key, tuple) else (key,)
    if x.shape.rank is None or not all(k is None or k is ... or isinstance(k, (int, slice)) for k in keys):
        return index(x, key)
    rest = [slice(None)] * (x.shape.rank - sum(k is not None and k is not ... for k in keys))
    keys = [part for k in (keys if ... in keys else (*keys, ...)) for part in (rest if k is ... else [k])]
    y = index(x, tuple(slice(k, k + 1 or None) if isinstance(k, int) else k for k in keys if k is not None))
    lengths = iter(y.shape)
    shape = [1 if k is None else next(lengths) for k in keys]
    shape = [n for k, n in zip(keys, shape, strict=True) if not isinstance(k, int)]
    if shape == [*y.shape] or shape.count(None) > 1:
        return y if shape == [*y.shape] else index(x, key)
    return ops.reshape(y, [-1 if n is None else n for n in shape])
