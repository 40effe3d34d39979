"""Which framework Keras runs on where nobody has said it: on import, before Keras is imported.

Keras takes TensorFlow then, and fails where that is not installed, even if another framework is.
"""

import importlib.util
import os
import sys
from pathlib import Path


def choose_backend() -> None:
    """Sets `KERAS_BACKEND` to an installed framework where Keras would insist on a TensorFlow that is not there."""
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    chosen = "keras" in sys.modules or "KERAS_BACKEND" in os.environ or (Path(home) / "keras.json").exists()
    if chosen or importlib.util.find_spec("tensorflow"):
        return
    installed = [name for name in ("jax", "torch") if importlib.util.find_spec(name)]
    if not installed:
        raise ImportError('No backend of Keras is installed: pip install "keras-vit[jax]" (or tensorflow, or torch)')
    os.environ["KERAS_BACKEND"] = installed[0]


choose_backend()
