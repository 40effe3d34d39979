"""The model as a TensorFlow module: what SavedModel, LiteRT, ONNX and OpenVINO are made from."""

import functools
from typing import Any

import keras

from keras_vit._keras import layers_inside
from keras_vit._types import Tensor
from keras_vit.export.served_model import INPUT, Model, Signature, serve
from keras_vit.layers import skip_initialization


def tensorflow_module(model: Model, signature: Signature, *, whole_products: bool = True) -> Any:
    """A `tf.Module` with one function, `serve`, from `images` to a dictionary with the answers.

    It holds the weights as plain variables. Keras's `ExportArchive.track` and `model.export` would hold, and store,
    each of them twice.

    Args:
        model: The model as it is written, on the TensorFlow backend.
        signature: What the function takes and gives.
        whole_products: Whether a product of a sequence and a matrix is one operation, as other runtimes like it;
            otherwise it is flattened first, as TensorFlow itself likes it.
    """
    import tensorflow as tf

    spec = tf.TensorSpec(signature.shape, signature.dtype, name=INPUT)
    module = tf.Module(name="keras_vit")
    module.weights = [weight.value for weight in model.weights]
    traced = _with_whole_products(model) if whole_products else model

    def answers(images: Tensor) -> dict[str, Tensor]:
        with keras.StatelessScope(list(zip(traced.weights, module.weights, strict=True))):
            return {signature.output: serve(traced, images)}

    module.serve = tf.function(answers, input_signature=[spec], autograph=False)
    return module


def _with_whole_products(model: Model) -> Model:
    """A model of the same architecture whose dense layers are one operation each; its own weights mean nothing.

    Keras 3.15 multiplies a sequence by a matrix with `tf.tensordot`, which flattens the sequence to a shape that it
    computes at run time: ten operations around each product, which converters keep, and which cut the graph into
    pieces for the fast kernels of LiteRT. `tf.matmul` computes the same and becomes one product with its bias.
    """
    with skip_initialization():
        twin = type(model)(model.config, name=model.name, dtype="float32")
    for layer in layers_inside(twin):
        if isinstance(layer, keras.layers.Dense):
            layer.call = functools.partial(_dense, layer)
    return twin


def _dense(layer: keras.layers.Dense, inputs: Tensor, training: bool | None = None) -> Tensor:
    """What `keras.layers.Dense.call` computes."""
    import tensorflow as tf

    outputs = tf.matmul(inputs, keras.ops.convert_to_tensor(layer.kernel))
    outputs = outputs if layer.bias is None else keras.ops.add(outputs, layer.bias)
    return layer.activation(outputs)
