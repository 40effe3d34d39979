"""ONNX in float16 and int8, by the tools that ONNX Runtime brings along."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.precisions.rounding import batches, symmetric_int8

PRODUCTS = ["MatMul", "Gemm"]


def to_float16(source: Path, target: Path) -> None:
    """Lets everything compute in float16; the file still takes and gives what it did."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _quiet(target.parent):
        model = convert_float_to_float16(onnx.load_model(str(source)), keep_io_types=True)
    # Where two operators that stay in float32 take one value, the converter adds the same cast twice.
    seen, nodes = set(), []
    for node in model.graph.node:
        if not seen.intersection(node.output):
            seen.update(filter(None, node.output))
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save_model(model, str(target))


def to_dynamic_int8(source: Path, target: Path) -> None:
    """Stores weights as int8; what matrix products multiply them with is quantized when it is there.

    Convolutions still compute in float32, with weights that are widened again: ONNX Runtime's integer convolution is
    slower.
    """
    import onnx
    from onnxruntime import quantization

    model = onnx.load_model(str(source))
    _store_convolutions(model)
    with _quiet(target.parent):
        quantization.quantize_dynamic(
            model,
            str(target),
            op_types_to_quantize=PRODUCTS,
            per_channel=True,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},  # not the products of attention
        )


def to_int8(source: Path, target: Path, images: np.ndarray) -> None:
    """Lets products with weights take int8 alone, within the ranges seen on some images.

    Args:
        source: A float32 file.
        target: Where to write.
        images: Calibration images `(count, height, width, channels)`, as the file takes them.
    """
    import onnx
    from onnxruntime import quantization

    model = onnx.load_model(str(source))
    name, (shape, _) = model.graph.input[0].name, input_of(source)

    class Images(quantization.CalibrationDataReader):
        """The images one batch at a time, as the quantizer asks for them."""

        parts = batches(images, shape[0] or 1)

        def get_next(self) -> dict[str, np.ndarray] | None:
            """The next batch; None after the last one."""
            part = next(self.parts, None)
            return None if part is None else {name: part}

    with _quiet(target.parent):
        quantization.quantize_static(
            model,
            str(target),
            Images(),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=[*PRODUCTS, "Conv"],
            per_channel=True,
            activation_type=quantization.QuantType.QInt8,
            weight_type=quantization.QuantType.QInt8,
            extra_options={
                "MatMulConstBOnly": True,
                # A product's answer is a float32 sum already: rounding it again would cost half of the accuracy.
                "OpTypesToExcludeOutputQuantization": PRODUCTS,
            },
        )


def input_of(source: Path) -> tuple[tuple[int | None, ...], np.dtype]:
    """The shape that a file takes, None where any length will do, and the dtype."""
    import onnx

    value = onnx.load_model(str(source), load_external_data=False).graph.input[0].type.tensor_type
    shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in value.shape.dim)
    return shape, np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.elem_type))


def _store_convolutions(model: Any) -> None:
    """Makes the constant weights of convolutions int8, with a scale for each output."""
    import onnx

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    names = {node.input[1] for node in graph.node if node.op_type == "Conv" and node.input[1] in constants}
    widened = []
    for name in sorted(names):
        values = onnx.numpy_helper.to_array(constants[name])
        if values.dtype != np.float32:
            continue
        integers, scales = symmetric_int8(values, 0)
        graph.initializer.remove(constants[name])
        small, scale = f"{name}_int8", f"{name}_scales"
        graph.initializer.append(onnx.numpy_helper.from_array(integers, small))
        graph.initializer.append(onnx.numpy_helper.from_array(scales.ravel(), scale))
        widened.append(onnx.helper.make_node("DequantizeLinear", [small, scale], [name], f"{name}_widened", axis=0))
    nodes = [*widened, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


@contextlib.contextmanager
def _quiet(folder: Path) -> Iterator[Any]:
    """Temporary files are as large as the model: they go where it goes. Advice on preparing a model is not shown."""
    old, tempfile.tempdir = tempfile.tempdir, str(folder)
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        tempfile.tempdir = old
        logging.disable(before)
