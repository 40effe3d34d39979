"""OpenVINO: `pip install openvino`."""

import sys

import numpy as np

PACKAGES = ("openvino",)

# OpenVINO reports to its makers, from a forked process, where this package can be imported; it does without.
sys.modules.setdefault("openvino_telemetry", None)  # ty: ignore[no-matching-overload]


def load(path):
    """A function from a batch of images to the answers of an OpenVINO model.

    Args:
        path: The `.xml` file; the `.bin` file lies beside it.
    """
    import openvino

    # Without the hint, processors that have bfloat16 units compute in bfloat16: faster, with errors of 5e-2.
    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def answers(images: np.ndarray) -> np.ndarray:
        return np.asarray(compiled(images)[0])

    return answers
