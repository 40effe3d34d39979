"""What `ops.py` computes in another way than Keras does, in TensorFlow on CPUs.

A graph does not know where it will run, and may be exported: these functions consist of plain operations, which every
exporter and every device knows, and sizes that are known stay known. docs/speed.md has the measurements.
"""

from typing import Any


def attention(query: Any, key: Any, value: Any) -> Any:
    """Two products of float32 or better, heads before tokens.

    Keras takes `Einsum`, which adds up in bfloat16 where the tokens are in bfloat16, and takes twenty times as long.
    """
    import tensorflow as tf

    dtype = query.dtype
    query, key, value = (_wide(tf.transpose(x, (0, 2, 1, 3))) for x in (query, key, value))
    weights = tf.nn.softmax(tf.matmul(query * query.shape[-1] ** -0.5, key, transpose_b=True))
    return tf.transpose(tf.cast(tf.matmul(weights, value), dtype), (0, 2, 1, 3))


def dense(x: Any, kernel: Any, bias: Any) -> Any:
    """A product of two matrices, directly before its bias: TensorFlow makes one operation of both."""
    import tensorflow as tf

    y = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), kernel)
    y = y if bias is None else tf.nn.bias_add(y, bias)
    return _reshape(y, x, y.shape[-1])


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Values less their mean are worked out once, for the variance and for the result."""
    import tensorflow as tf

    wide = _wide(x)
    centred = wide - tf.reduce_mean(wide, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
    y = centred * tf.math.rsqrt(variance + epsilon) * tf.cast(gamma, wide.dtype)
    return tf.cast(tf.nn.bias_add(y, tf.cast(beta, wide.dtype)), x.dtype)


def group_norm(x: Any, groups: int, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Means of channels, then of groups: TensorFlow is slow to reduce axes on both sides of one that stays."""
    import tensorflow as tf

    channels = x.shape[-1]

    def means(values: Any) -> Any:
        of_channels = tf.reshape(tf.reduce_mean(values, (1, 2)), (-1, groups, channels // groups))
        of_groups = tf.reduce_mean(of_channels, -1, keepdims=True)
        return tf.reshape(tf.tile(of_groups, (1, 1, channels // groups)), (-1, 1, 1, channels))

    wide = _wide(x)
    centred = wide - means(wide)
    scale = tf.math.rsqrt(means(tf.square(centred)) + epsilon) * tf.cast(gamma, wide.dtype)
    return tf.cast(tf.nn.bias_add(centred * scale, tf.cast(beta, wide.dtype)), x.dtype)


def _wide(x: Any) -> Any:
    """`x` in float32 or better."""
    import tensorflow as tf

    return tf.cast(x, "float64" if x.dtype == tf.float64 else "float32")


def _reshape(y: Any, x: Any, width: int) -> Any:
    """`y` with all axes of `x` but the last; sizes that are known stay known, which exporters need."""
    import tensorflow as tf

    sizes = x.shape[:-1].as_list()
    if sizes.count(None) > 1:
        dynamic = tf.shape(x)
        sizes = [dynamic[i] if size is None else size for i, size in enumerate(sizes)]
    return tf.reshape(y, [*(-1 if size is None else size for size in sizes), width])
