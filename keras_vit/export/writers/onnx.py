"""ONNX: one file for ONNX Runtime, TensorRT and many others."""

import contextlib
import logging
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.metadata import as_strings
from keras_vit.export.signature import INPUT, Signature
from keras_vit.export.writers.tensorflow_function import tensorflow_module

OPSET = 18  # the newest that tf2onnx writes


def write(model: Any, signature: Signature, path: Path) -> None:
    """Writes the file through tf2onnx."""
    import onnx
    import tf2onnx

    module = tensorflow_module(model, signature)
    with _quiet():
        proto, _ = tf2onnx.convert.from_function(
            module.serve,
            input_signature=module.serve.input_signature,
            opset=OPSET,
            custom_op_handlers={"Erfc": (_erfc, [])},
        )
    _name_dimensions(proto.graph.input[0], signature.shape)
    for dimension in proto.graph.output[0].type.tensor_type.shape.dim[:1]:
        _set_dimension(dimension, signature.batch, "batch")
    proto.producer_name = "keras_vit"
    onnx.save_model(proto, str(path))


def annotate(path: Path, metadata: dict[str, Any]) -> None:
    """Puts the metadata into the file's `metadata_props`."""
    import onnx

    proto = onnx.load_model(str(path))
    onnx.helper.set_model_props(proto, as_strings(metadata))
    onnx.save_model(proto, str(path))


def operators(path: Path) -> tuple[list[str], list[str]]:
    """The operators of the file, and those of another domain than ONNX's own."""
    import onnx

    nodes = {(node.domain, node.op_type) for node in _nodes(onnx.load_model(str(path)).graph)}
    foreign = {f"{domain}.{name}" for domain, name in nodes if domain not in ("", "ai.onnx")}
    return sorted({name for domain, name in nodes if domain in ("", "ai.onnx")} | foreign), sorted(foreign)


def _nodes(graph: Any) -> Any:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for part in [attribute.g, *attribute.graphs]:
                yield from _nodes(part)


def _erfc(context: Any, node: Any, name: str, arguments: Any) -> None:
    """TensorFlow writes the exact GELU with 1 - erf(x) as one operator, which ONNX does not have."""
    shape, dtype = context.get_shape(node.output[0]), context.get_dtype(node.output[0])
    given = node.input[0]
    context.remove_node(node.name)
    erf = context.make_node("Erf", [given], shapes=[shape], dtypes=[dtype])
    one = context.make_const(f"{node.name}_one", np.array(1, "float32"))
    context.make_node(
        "Sub", [one.output[0], erf.output[0]], outputs=node.output, name=node.name, shapes=[shape], dtypes=[dtype]
    )


def _name_dimensions(value: Any, shape: tuple[int | None, ...]) -> None:
    """Calls what may have any length by its name, where tf2onnx says `unk__123`."""
    if value.name != INPUT:
        raise RuntimeError(f"tf2onnx called the input {value.name!r}; {INPUT!r} was expected.")
    names = ("batch", "height", "width", "channels")
    for dimension, length, name in zip(value.type.tensor_type.shape.dim, shape, names, strict=True):
        _set_dimension(dimension, length, name)


def _set_dimension(dimension: Any, length: int | None, name: str) -> None:
    if length is None:
        dimension.dim_param = name
    else:
        dimension.dim_value = length


@contextlib.contextmanager
def _quiet() -> Any:
    """tf2onnx tells every step, and warns of each operator that it folds."""
    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
