"""Which framework Keras runs on where the user has chosen none; to be called before Keras is imported.

Keras takes TensorFlow then, and fails where that is not installed, even if another framework is.
"""

import contextlib
import importlib.util
import json
import os
import sys
import warnings
from pathlib import Path

from keras_vit._files import write_text
from keras_vit._names import pip_install

BACKENDS = ("tensorflow", "jax", "torch")
DEFAULT = "tensorflow"  # Keras's, which it writes into keras.json without being asked


def choose_backend() -> None:
    """Sets `KERAS_BACKEND` to an installed framework where Keras would insist on one that is not there."""
    # Keras takes the framework that `keras.json` names, a file that it writes by itself when it is first imported, and
    # TensorFlow where there is none.
    # Warns if the user has named a framework in `keras.json` that is not installed, and once if Keras takes another one
    # than before because that has been installed since.
    if "keras" in sys.modules:
        return
    backend = os.environ.get("KERAS_BACKEND")
    if backend:
        if backend not in (*BACKENDS, "numpy", "openvino"):  # the last two for inference only, and not tested
            raise ValueError(f"KERAS_BACKEND must be one of {', '.join(BACKENDS)}, but it is {backend!r}.")
        if backend in BACKENDS and not importlib.util.find_spec(backend):
            raise ImportError(f"KERAS_BACKEND is {backend!r}, which is missing: {pip_install(backend)}")
        return
    home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    backend = _read(home / "keras.json").get("backend") or DEFAULT
    if backend not in BACKENDS:
        return
    installed = [name for name in BACKENDS if importlib.util.find_spec(name)]
    if not installed:
        raise ImportError(f"No backend of Keras is installed: {pip_install('jax')} (or tensorflow, or torch)")
    memory = home / "keras_vit.json"  # what stood in for Keras's choice, by environment
    before = _read(memory).get(sys.prefix)
    if backend in installed:
        if before in installed:
            warnings.warn(
                f"Keras runs on {backend!r}, which has been installed since it ran on {before!r} here. "
                f"The environment variable KERAS_BACKEND={before} brings that back.",
                stacklevel=3,
            )
            _remember(memory, None)
        return
    taken = before if before in installed else installed[0]
    if backend != DEFAULT:
        warnings.warn(
            f"{home / 'keras.json'} names the backend {backend!r}, which is not installed: Keras runs on {taken!r}. "
            "Set KERAS_BACKEND, or change that file.",
            stacklevel=3,
        )
    os.environ["KERAS_BACKEND"] = taken
    if taken != before:
        _remember(memory, taken)


def _read(file: Path) -> dict:
    """Returns what a file of JSON holds; as for Keras, there is nothing in one that cannot be read."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _remember(file: Path, backend: str | None) -> None:
    """Writes into a file, if it can, what stood in for Keras's choice in this environment; None for nothing."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(_read(file) | {sys.prefix: backend}))
