"""TensorFlow's SavedModel, and the TensorFlow function that LiteRT, ONNX and OpenVINO files are made from as well.

A SavedModel is a folder for TensorFlow, TensorFlow Serving and TensorFlow.js.
"""

import functools
from pathlib import Path
from typing import Any

import keras

from keras_vit._arguments import Tensor
from keras_vit._keras import layers_inside
from keras_vit.export.formats import Format, as_files, only_float32
from keras_vit.export.served_model import INPUT, Metadata, Signature, serve


def tensorflow_module(model: keras.Model, signature: Signature, *, whole_products: bool = True) -> Any:
    """A `tf.Module` with one traced function, `serve`, from `images` to a dictionary with the answers.

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
    module.serve = tf.function(functools.partial(serve, model, signature), input_signature=[spec], autograph=False)
    dense = [layer for layer in layers_inside(model) if isinstance(layer, keras.layers.Dense) and whole_products]
    dense = [layer for layer in dense if "call" not in vars(layer)]  # one that somebody has replaced stays
    try:
        for layer in dense:
            layer.call = functools.partial(_whole_product, layer)
        module.serve.get_concrete_function()  # traced now, and not again
    finally:
        for layer in dense:
            del layer.call
    return module


def _whole_product(layer: keras.layers.Dense, inputs: Tensor, training: bool | None = None) -> Tensor:
    """What `keras.layers.Dense.call` computes, as one operation.

    Keras 3.15 multiplies a sequence by a matrix with `tf.tensordot`, which flattens the sequence to a shape that it
    computes at run time: ten operations around each product, which converters keep, and which cut the graph into
    pieces for the fast kernels of LiteRT. `tf.matmul` computes the same and becomes one product with its bias.
    """
    import tensorflow as tf

    outputs = tf.matmul(inputs, keras.ops.convert_to_tensor(layer.kernel))
    outputs = outputs if layer.bias is None else keras.ops.add(outputs, layer.bias)
    return layer.activation(outputs)


def write(model: keras.Model, signature: Signature, path: Path) -> None:
    """Writes the folder, with one signature, `serving_default`."""
    import tensorflow as tf

    module = tensorflow_module(model, signature, whole_products=False)
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})


def annotate(path: Path, metadata: Metadata) -> None:
    """Puts the metadata into `assets.extra/`, the folder in a SavedModel that is anybody's to fill."""
    folder = path / "assets.extra"
    folder.mkdir(exist_ok=True)
    for name, text in as_files(metadata).items():
        (folder / name).write_text(text, encoding="utf-8")


FORMAT = Format(
    name="saved_model",
    suffix="",
    backend="tensorflow",
    needs=("tensorflow",),
    extra="export",
    write=write,
    annotate=annotate,
    precisions=only_float32("a SavedModel", "export to litert, which is TensorFlow's way to smaller files."),
)
