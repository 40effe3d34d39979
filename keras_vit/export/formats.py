"""The formats, one row each: how a file is made by TensorFlow, and how it is run without the model."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np


@dataclasses.dataclass(frozen=True)
class Format:
    """One way to ship a model.

    Attributes:
        write: Writes a model to a path that does not exist yet. Called on the TensorFlow backend.
        run: The answers of the written file to a batch of images, computed without the model.
        suffix: What the path has to end in; empty for a folder.
        needs: Packages that have to be installed; all of them come with the extra `export`.
    """

    write: Callable[[keras.Model, Path], None]
    run: Callable[[Path, np.ndarray], np.ndarray]
    suffix: str
    needs: tuple[str, ...]


def write_litert(model: keras.Model, path: Path) -> None:
    """Writes a `.tflite` file that takes any batch size and uses builtin operations alone."""
    import tensorflow as tf

    # Without TensorFlow's own operations among the choices: a file that needs them does not run on a phone.
    builtin = {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}
    model.export(str(path), format="litert", verbose=False, target_spec=builtin)


def run_litert(path: Path, images: np.ndarray) -> np.ndarray:
    """The answers of a `.tflite` file, computed by LiteRT."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    given, answer = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
    interpreter.resize_tensor_input(given, images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given, images)
    interpreter.invoke()
    return interpreter.get_tensor(answer)


def write_saved_model(model: keras.Model, path: Path) -> None:
    """Writes a SavedModel folder with the signatures `serve` and `serving_default` for any batch size."""
    import tensorflow as tf

    # `model.export` and `archive.track` would both store every weight twice.
    archive = keras.export.ExportArchive()
    signature = [tf.TensorSpec(model.inputs[0].shape, model.inputs[0].dtype, name="images")]
    archive.add_endpoint("serve", lambda images: model(images, training=False), input_signature=signature)
    archive.write_out(str(path), verbose=False)


def run_saved_model(path: Path, images: np.ndarray) -> np.ndarray:
    """The answers of a SavedModel folder, computed by TensorFlow."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))  # kept while it works: its functions do not keep its variables
    return loaded.serve(images).numpy()


FORMATS: dict[str, Format] = {
    "litert": Format(write_litert, run_litert, ".tflite", ("tensorflow", "ai_edge_litert")),
    "saved_model": Format(write_saved_model, run_saved_model, "", ("tensorflow",)),
}
