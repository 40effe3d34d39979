"""Which framework Keras runs on where nobody has said it; to be called before Keras is imported.

Keras takes TensorFlow then, and fails where that is not installed, even if another framework is.
"""

import importlib.util
import os
import sys
from pathlib import Path

BACKENDS = ("tensorflow", "jax", "torch")
_MORE_OF_KERAS = ("numpy", "openvino")  # for inference only; keras_vit is not tested with them


def choose_backend() -> None:
    """Sets `KERAS_BACKEND` to an installed framework where Keras would insist on a TensorFlow that is not there.

    Raises:
        ValueError: if `KERAS_BACKEND` names something else than a backend of Keras.
        ImportError: if no framework is installed, or not the one that `KERAS_BACKEND` names.
    """
    if "keras" in sys.modules:
        return
    backend = os.environ.get("KERAS_BACKEND")
    if backend:
        _check(backend)
        return
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    if (Path(home) / "keras.json").exists() or importlib.util.find_spec("tensorflow"):
        return
    installed = [name for name in ("jax", "torch") if importlib.util.find_spec(name)]
    if not installed:
        raise ImportError('No backend of Keras is installed: pip install "keras-vit[jax]" (or tensorflow, or torch)')
    os.environ["KERAS_BACKEND"] = installed[0]


def _check(backend: str) -> None:
    if backend not in (*BACKENDS, *_MORE_OF_KERAS):
        raise ValueError(f"KERAS_BACKEND must be one of {', '.join(BACKENDS)}, but it is {backend!r}.")
    if backend in BACKENDS and not importlib.util.find_spec(backend):
        raise ImportError(
            f'KERAS_BACKEND is {backend!r}, but {backend} is not installed: pip install "keras-vit[{backend}]", or set '
            "KERAS_BACKEND to a framework that is."
        )
