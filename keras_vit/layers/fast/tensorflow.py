"""TensorFlow on CPUs: plain operations, which every exporter and every device knows. Sizes that are known stay so.

With both forms, graphs of ViT take 0.95 to 0.97 of the time, in bfloat16 0.49.
"""

import math
from typing import Any

from keras import ops

from keras_vit.layers.fast import TENSORFLOW_CPU, faster


# Not measured alone: one product, where Keras's takes ten small operations to find the shape.
@faster("dense", TENSORFLOW_CPU)
def dense(x: Any, kernel: Any, bias: Any) -> Any:
    """Returns as `ops.dense`: the bias directly after the product, as TensorFlow makes one operation of both."""
    import tensorflow as tf

    y = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), kernel)
    y = y if bias is None else tf.nn.bias_add(y, bias)
    sizes = x.shape[:-1].as_list()
    if sizes.count(None) > 1:
        sizes = [tf.shape(x)[i] if size is None else size for i, size in enumerate(sizes)]
    return tf.reshape(y, [*(-1 if size is None else size for size in sizes), y.shape[-1]])


# 16.4 to 13.8, g 38.1 to 31.0; in bfloat16 251 to 13.6, g 698 to 33.6 (one thread, batch 4).
@faster("attention", TENSORFLOW_CPU)
def attention(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    """Returns as `ops.attention`, computed in float32 or better: Keras's `Einsum` adds up bfloat16 in bfloat16."""
    import tensorflow as tf

    dtype, wide = query.dtype, tf.float64 if query.dtype == tf.float64 else tf.float32
    query, key, value = (tf.cast(tf.transpose(x, (0, 2, 1, 3)), wide) for x in (query, key, value))
    scores = tf.matmul(query * query.shape[-1] ** -0.5, key, transpose_b=True)
    if is_causal:
        scores = ops.where(ops.tri(*scores.shape[-2:], dtype="bool"), scores, -math.inf)
    return tf.transpose(tf.cast(tf.matmul(tf.nn.softmax(scores), value), dtype), (0, 2, 1, 3))
