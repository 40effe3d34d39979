"""Starting Keras and its framework, as late as possible and without their start-up lines."""

import faulthandler
import os
import sys

from keras_vit._backend import choose_backend
from keras_vit._lazy import IS_PROGRAM

TRACEBACK = "KERAS_VIT_TRACEBACK"  # set: errors show where they came from, and libraries may print what they like


def start_keras() -> None:
    """Imports Keras; a command that needs it calls this before it imports anything that does.

    Raises:
        ImportError, ValueError: if there is no framework, or `KERAS_BACKEND` names another one.
    """
    choose_backend()
    if IS_PROGRAM and "keras" not in sys.modules and not os.environ.get(TRACEBACK):
        _silence_libraries()
    import keras  # noqa: F401


def _silence_libraries() -> None:
    """Lets only Python write to standard error from now on.

    Frameworks report what they miss at their start, and when they first compute; Keras starts TensorFlow late on the
    other backends, too. TensorFlow 2.21 does it whatever its log level is, past `sys.stderr`.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # for worker processes
    sys.stderr.flush()
    sys.stderr = open(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    os.close(silence)
    faulthandler.enable(sys.stderr)  # a library that ends the process cannot say so any more
