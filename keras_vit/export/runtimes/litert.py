"""LiteRT (TensorFlow Lite): `pip install ai-edge-litert`."""

import numpy as np

PACKAGES = ("ai_edge_litert.interpreter",)


def load(path):
    """A function from a batch of images to the answers of a `.tflite` file.

    Args:
        path: The file.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    (input_,), (output,) = interpreter.get_input_details(), interpreter.get_output_details()
    state = {"shape": None}

    def answers(images: np.ndarray) -> np.ndarray:
        if state["shape"] != images.shape:
            # A file for any batch is stored for a batch of 1 and is resized to the one that comes.
            interpreter.resize_tensor_input(input_["index"], images.shape, strict=True)
            interpreter.allocate_tensors()
            state["shape"] = images.shape
        interpreter.set_tensor(input_["index"], images)
        interpreter.invoke()
        return interpreter.get_tensor(output["index"])

    return answers
