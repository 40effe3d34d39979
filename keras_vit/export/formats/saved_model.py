"""TensorFlow: a SavedModel, and the function that LiteRT, ONNX and OpenVINO files are made from as well."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.export.format import Answers, Format, as_files, only_float32

if TYPE_CHECKING:
    import keras

    from keras_vit.export.served_model import Metadata, Signature


def tensorflow_module(model: "keras.Model", signature: "Signature", format: str) -> Any:
    """Returns a `tf.Module` with one traced function, `serve`, from `images` to a dictionary of outputs."""
    # It holds the weights as plain variables; Keras's `ExportArchive.track` would store each of them twice.
    import tensorflow as tf

    from keras_vit.export import rewrites
    from keras_vit.export.served_model import INPUT, serve

    def served(images: Any) -> Any:
        answers = serve(model, signature, images)
        return rewrites.separate_outputs(answers) if rewrites.is_for_gpu(signature, format) else answers

    spec = tf.TensorSpec(signature.shape, signature.dtype, name=INPUT)
    module = tf.Module(name="keras_vit")
    module.weights = [weight.value for weight in model.weights]
    module.serve = tf.function(served, input_signature=[spec], autograph=False)
    with rewrites.replaced(model, rewrites.calls_for(signature, format)):
        module.serve.get_concrete_function()  # traced now, and not again
    return module


class SavedModel(Format):
    """A folder for TensorFlow."""

    name = "saved_model"
    suffix = ""
    backend = "tensorflow"
    needs = ("tensorflow",)
    extra = "export"
    runtime = ("tensorflow",)
    precisions = only_float32("a SavedModel", "export to litert, which is TensorFlow's way to smaller files.")

    def write(self, model: "keras.Model", signature: "Signature", path: Path) -> None:
        """Writes the folder, `serve` as its signature `serving_default`; ImportError or TensorFlow's errors."""
        import tensorflow as tf

        module = tensorflow_module(model, signature, self.name)
        tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})

    def load(self, path: Path) -> Callable[[np.ndarray], Answers]:
        """Opens a folder with TensorFlow; returns a function from a batch of images to outputs by name."""
        import tensorflow as tf

        loaded = tf.saved_model.load(str(path))

        def run(images: np.ndarray) -> Answers:
            # `loaded` is named here, so that it lives as long: a signature does not keep its variables.
            answers = loaded.signatures["serving_default"](images=tf.constant(images))
            return {name: answer.numpy() for name, answer in answers.items()}

        return run

    def annotate(self, path: Path, metadata: "Metadata") -> None:
        """Writes the metadata as files into the folder's `assets.extra`; OSError if it cannot."""
        folder = path / "assets.extra"  # the folder in a SavedModel that is anybody's to fill
        folder.mkdir(exist_ok=True)
        for name, text in as_files(metadata).items():
            (folder / name).write_text(text, encoding="utf-8")
