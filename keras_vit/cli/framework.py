"""Starting Keras and its framework, as late as possible and without their start-up lines."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

from keras_vit._backend import choose_backend

TRACEBACK = "KERAS_VIT_TRACEBACK"  # set: errors show where they came from, and libraries may print what they like


def start_keras() -> None:
    """Imports Keras; a command that needs it calls this before it imports anything that does.

    Raises:
        ImportError, ValueError: if there is no framework, or `KERAS_BACKEND` names another one.
    """
    # 3: fatal errors only. TensorFlow also reports CUDA libraries that are loaded twice, as errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    choose_backend()
    with _silence():
        import keras  # noqa: F401


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keeps what libraries write to standard error, unless an error shows that it matters.

    TensorFlow 2.21 reports the lack of CUDA whatever its log level is, past `sys.stderr`.
    """
    if "keras" in sys.modules or os.environ.get(TRACEBACK):
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as written, contextlib.ExitStack() as stack:
        terminal = os.dup(2)
        stack.callback(os.close, terminal)
        os.dup2(written.fileno(), 2)
        try:
            yield
        except Exception:
            written.seek(0)
            os.write(terminal, written.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
