"""The model as a TensorFlow module: what SavedModel, LiteRT, ONNX and OpenVINO are made from."""

from typing import Any

from keras_vit.export.signature import INPUT, Signature, serve


def tensorflow_module(model: Any, signature: Signature) -> Any:
    """A `tf.Module` with one function, `serve`, from `images` to a dictionary with the answers.

    It holds the weights as plain variables. Keras's `ExportArchive.track` and `model.export` would hold, and store,
    each of them twice.

    Args:
        model: The model as it is written, on the TensorFlow backend.
        signature: What the function takes and gives.
    """
    import tensorflow as tf

    spec = tf.TensorSpec(signature.shape, signature.dtype, name=INPUT)
    module = tf.Module(name="keras_vit")
    module.weights = [weight.value for weight in model.weights]
    module.serve = tf.function(lambda images: {signature.output: serve(model, images)}, input_signature=[spec])
    return module
