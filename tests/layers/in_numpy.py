"""The layers once more, in float64 NumPy and straight from the papers: nothing here is taken from the package."""

import math

import numpy as np
import scipy.special


def gelu(x, kind):
    if kind == "exact":
        return x * (1 + scipy.special.erf(x / math.sqrt(2))) / 2
    if kind == "relu":
        return np.maximum(x, 0)
    if kind == "quick":
        return x * sigmoid(1.702 * x)
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x, w, name, epsilon):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * w[f"{name}/gamma"] + w[f"{name}/beta"]


def dense(x, w, name):
    return x @ w[f"{name}/kernel"] + w.get(f"{name}/bias", 0)


def dinov3_angles(rows, columns, size):
    """How far each pair of channels of each patch is turned, (rows * columns, size / 2)."""
    periods = 100 ** (np.arange(size // 4) / (size // 4))
    places = [[(2 * r + 1) / rows - 1, (2 * c + 1) / columns - 1] for r in range(rows) for c in range(columns)]
    return np.array([[2 * math.pi * place / period for place in pair for period in periods] for pair in places])


def eva02_angles(rows, columns, size, grid=(16, 16)):
    bands = 10_000 ** (-np.arange(size // 4) / (size // 4))
    places = [[grid[0] * r / rows, grid[1] * c / columns] for r in range(rows) for c in range(columns)]
    return np.array([[place * band for place in pair for band in bands] for pair in places])


def turned(x, angles, kind):
    """Vectors (..., tokens, size), each pair of channels turned in its plane as a complex number is."""
    half = x.shape[-1] // 2
    first, second = (x[..., :half], x[..., half:]) if kind == "dinov3" else (x[..., ::2], x[..., 1::2])
    z = (first + 1j * second) * np.exp(1j * angles)
    if kind == "dinov3":
        return np.concatenate([z.real, z.imag], -1)
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


def attention_weights(tokens, queries, w, heads, turn=lambda x: x):
    """(batch, heads, Q, T)."""
    q, k = dense(queries, w, "query"), dense(tokens, w, "key")
    size = q.shape[-1] // heads
    parts = [slice(i, i + size) for i in range(0, q.shape[-1], size)]
    scores = [turn(q[..., part]) @ np.swapaxes(turn(k[..., part]), 1, 2) for part in parts]
    return softmax(np.stack(scores, 1) / math.sqrt(size))


def attention(tokens, queries, w, heads, turn=lambda x: x, epsilon=1e-6):
    weights, v = attention_weights(tokens, queries, w, heads, turn), dense(tokens, w, "value")
    size = v.shape[-1] // heads
    joined = np.concatenate([weights[:, h] @ v[..., h * size : (h + 1) * size] for h in range(heads)], -1)
    return dense(layer_norm(joined, w, "norm", epsilon) if "norm/gamma" in w else joined, w, "out")


def mlp(x, w, kind, epsilon=1e-6):
    if "gate/kernel" in w:
        gate = dense(x, w, "gate")
        hidden = gate * sigmoid(gate) * dense(x, w, "value")
    else:
        hidden = gelu(dense(x, w, "fc1"), kind)
    return dense(layer_norm(hidden, w, "norm", epsilon) if "norm/gamma" in w else hidden, w, "fc2")


def block(x, w, heads, kind, epsilon, turn=lambda x: x):
    y = layer_norm(x, w, "norm1", epsilon)
    x = x + w.get("scale1/gamma", 1) * attention(y, y, inner(w, "attention"), heads, turn, epsilon)
    y = mlp(layer_norm(x, w, "norm2", epsilon), inner(w, "mlp"), kind, epsilon)
    return x + w.get("scale2/gamma", 1) * y


def map_head(tokens, w, heads, kind, epsilon):
    probe = np.repeat(w["probe"], len(tokens), 0)
    x = attention(tokens, probe, inner(w, "attention"), heads)
    return (x + mlp(layer_norm(x, w, "norm", epsilon), inner(w, "mlp"), kind))[:, 0]


def inner(w, name):
    return {path.removeprefix(f"{name}/"): values for path, values in w.items() if path.startswith(f"{name}/")}


def weights_of(layer):
    """The weights of a Keras layer in float64, by their paths inside it."""
    pairs = zip(layer.weights, layer.get_weights(), strict=True)
    return {weight.path.removeprefix(f"{layer.path}/"): np.asarray(values, "f8") for weight, values in pairs}
