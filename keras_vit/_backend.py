"""Which framework Keras runs on where the user has chosen none; to be called before Keras is imported.

Keras takes TensorFlow then, and fails where that is not installed, even if another framework is.
"""

import importlib.util
import json
import os
import sys
import warnings
from pathlib import Path

from keras_vit._names import pip_install

BACKENDS = ("tensorflow", "jax", "torch")


def choose_backend() -> None:
    """Sets `KERAS_BACKEND` to an installed framework where Keras would insist on one that is not there.

    Keras takes the framework that `keras.json` names, a file that it writes by itself when it is first imported, and
    TensorFlow where there is none.

    Raises:
        ValueError: if `KERAS_BACKEND` names something else than a backend of Keras.
        ImportError: if no framework is installed, or not the one that `KERAS_BACKEND` names.

    Warns:
        UserWarning: if the framework in `keras.json` is not installed.
    """
    if "keras" in sys.modules:
        return
    backend = os.environ.get("KERAS_BACKEND")
    if backend:
        if backend not in (*BACKENDS, "numpy", "openvino"):  # the last two for inference only, and not tested
            raise ValueError(f"KERAS_BACKEND must be one of {', '.join(BACKENDS)}, but it is {backend!r}.")
        if backend in BACKENDS and not importlib.util.find_spec(backend):
            raise ImportError(f"KERAS_BACKEND is {backend!r}, which is missing: {pip_install(backend)}")
        return
    file = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "keras.json"
    try:
        configured = json.loads(file.read_text(encoding="utf-8")).get("backend")
    except (OSError, ValueError, AttributeError):  # as for Keras, there is nothing in a file that cannot be read
        configured = None
    backend = configured or "tensorflow"
    if backend not in BACKENDS or importlib.util.find_spec(backend):
        return
    installed = [name for name in BACKENDS if importlib.util.find_spec(name)]
    if not installed:
        raise ImportError(f"No backend of Keras is installed: {pip_install('jax')} (or tensorflow, or torch)")
    if configured:
        warnings.warn(
            f"{file} names the backend {configured!r}, which is not installed: Keras runs on {installed[0]!r}. Set "
            "KERAS_BACKEND, or change that file.",
            stacklevel=3,
        )
    os.environ["KERAS_BACKEND"] = installed[0]
