"""What queries read: the fused operation, or attention weights with a mask, an offset or dropout."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import dropout
from keras_vit.layers.ops import attention, attention_weights, widened


def attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    causal: bool = False,
    allowed: Any = None,
    offset: Any = None,
    rate: float = 0.0,
    seed: Any = None,
) -> Any:
    """Softmax of the scaled scores, times the values: all `(batch, tokens, heads, d)`.

    Args:
        query: What is compared with the keys.
        key: As many as values.
        value: What is mixed.
        causal: Whether a token sees itself and earlier ones only.
        allowed: Booleans `(batch, Q, T)`: which keys each query sees, at least one each; None for all.
        offset: Added to the attention weights, `(batch, heads, Q, T)`.
        rate: Of dropout on the attention weights.
        seed: Of that dropout; None for none.
    """
    if seed is None and offset is None and allowed is None:
        return attention(query, key, value, causal)
    if seed is None and offset is None and keras.backend.backend() == "torch":  # which chooses the quickest kernel
        import torch.nn.functional as F

        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        return F.scaled_dot_product_attention(query, key, value, allowed[:, None]).transpose(1, 2)
    if allowed is None:
        weights = attention_weights(query, key, causal)
    else:
        scores = widened(ops.einsum("bqhd,bkhd->bhqk", query * (query.shape[-1] ** -0.5), key))
        weights = ops.softmax(ops.where(allowed[:, None], scores, -math.inf))
    weights = ops.cast(weights, query.dtype)
    weights = weights if offset is None else weights + ops.cast(offset, weights.dtype)
    return ops.einsum("bhqk,bkhd->bqhd", dropout(weights, rate, seed), value)
