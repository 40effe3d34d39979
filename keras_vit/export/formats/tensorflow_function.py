"""The model as a TensorFlow module: what SavedModel, LiteRT, ONNX and OpenVINO are made from."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from keras_vit.export.served_model import INPUT, Signature, serve

_PATCHING = threading.Lock()


def tensorflow_module(model: Any, signature: Signature, *, whole_products: bool = True) -> Any:
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

    def answers(images: Any) -> dict[str, Any]:
        with _whole_products() if whole_products else contextlib.nullcontext():
            return {signature.output: serve(model, images)}

    module.serve = tf.function(answers, input_signature=[spec], autograph=False)
    return module


@contextlib.contextmanager
def _whole_products() -> Iterator[None]:
    """Within it, what Keras multiplies becomes one operation of the graph that is being made.

    Keras 3.15 multiplies a sequence by a matrix with `tf.tensordot`, which flattens the sequence to a shape that it
    computes at run time: ten operations around each product, which converters keep, and which cut the graph into
    pieces for the fast kernels of LiteRT. `tf.matmul` computes the same and becomes one product with its bias.
    """
    import tensorflow as tf

    with _PATCHING:
        tensordot = tf.tensordot

        def product(a: Any, b: Any, axes: Any, name: str | None = None) -> Any:
            is_matrix = axes == [[-1], [0]] and len(b.shape) == 2
            return tf.matmul(a, b, name=name) if is_matrix else tensordot(a, b, axes, name)

        tf.tensordot = product
        try:
            yield
        finally:
            tf.tensordot = tensordot
