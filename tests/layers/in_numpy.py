"""The layers once more, in float64 NumPy and straight from the papers: nothing here is taken from the package."""

import math

import numpy as np
import scipy.special


def gelu(x, kind):
    if kind == "exact":
        return x * (1 + scipy.special.erf(x / math.sqrt(2))) / 2
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x, w, name, epsilon):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * w[f"{name}/gamma"] + w[f"{name}/beta"]


def dense(x, w, name):
    return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]


def attention_weights(tokens, queries, w, heads):
    """(batch, heads, Q, T)."""
    q, k = dense(queries, w, "query"), dense(tokens, w, "key")
    size = q.shape[-1] // heads
    scores = [q[..., i : i + size] @ np.swapaxes(k[..., i : i + size], 1, 2) for i in range(0, q.shape[-1], size)]
    return softmax(np.stack(scores, 1) / math.sqrt(size))


def attention(tokens, queries, w, heads):
    weights, v = attention_weights(tokens, queries, w, heads), dense(tokens, w, "value")
    size = v.shape[-1] // heads
    joined = [weights[:, h] @ v[..., h * size : (h + 1) * size] for h in range(heads)]
    return dense(np.concatenate(joined, -1), w, "out")


def mlp(x, w, kind):
    return dense(gelu(dense(x, w, "fc1"), kind), w, "fc2")


def block(x, w, heads, kind, epsilon):
    y = layer_norm(x, w, "norm1", epsilon)
    x = x + attention(y, y, inner(w, "attention"), heads)
    return x + mlp(layer_norm(x, w, "norm2", epsilon), inner(w, "mlp"), kind)


def map_head(tokens, w, heads, kind, epsilon):
    probe = np.repeat(w["probe"], len(tokens), 0)
    x = attention(tokens, probe, inner(w, "attention"), heads)
    return (x + mlp(layer_norm(x, w, "norm", epsilon), inner(w, "mlp"), kind))[:, 0]


def inner(w, name):
    return {path.removeprefix(f"{name}/"): values for path, values in w.items() if path.startswith(f"{name}/")}


def weights_of(layer):
    """The weights of a Keras layer in float64, by their paths inside it."""
    return {
        weight.path.removeprefix(f"{layer.path}/"): np.asarray(values, "f8")
        for weight, values in zip(layer.weights, layer.get_weights(), strict=True)
    }
