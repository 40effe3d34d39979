"""The Gaussian error linear unit, which has been computed in three ways."""

from typing import Any

from keras import ops

from keras_vit.layers.fast_paths import fast_path


def gelu(x: Any, kind: str) -> Any:
    """The activation of the MLPs.

    Args:
        x: A tensor of any shape.
        kind: `"tanh"`: the approximation that the official checkpoints were trained with; `"exact"`: with the error
            function, as timm and Hugging Face compute it; `"quick"`: `x * sigmoid(1.702 x)`, as OpenAI's CLIP.
    """
    if kind == "quick":
        return x * ops.sigmoid(1.702 * x)
    fast = fast_path(f"gelu_{kind}", x)
    return ops.gelu(x, approximate=kind == "tanh") if fast is None else fast(x)
