"""OpenVINO in float16 and with int8 weights, by OpenVINO itself: no other package is needed."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.precisions.rounding import symmetric_int8

PRODUCTS = ("MatMul", "Convolution")


def to_float16(source: Path, target: Path) -> None:
    """Stores constants as float16; the runtime widens them when it loads the file."""
    import openvino

    openvino.save_model(_read(source), str(target), compress_to_fp16=True)


def to_dynamic_int8(source: Path, target: Path) -> None:
    """Stores the weights of matrix products and convolutions as int8; everything else stays float32.

    The runtime quantizes what the weights are multiplied with when it has it, where the processor has such
    instructions; elsewhere it widens the weights.
    """
    import openvino
    from openvino import opset13

    model = _read(source)
    for operator in model.get_ordered_ops():
        values = _weights(operator)
        if values is None:
            continue
        integers, scales = symmetric_int8(values, _output_axis(operator, values.ndim))
        widened = opset13.convert(opset13.constant(integers, dtype=np.int8), "f32")
        weights = opset13.multiply(widened, opset13.constant(scales))
        operator.input(1).replace_source_output(weights.output(0))
    openvino.save_model(model, str(target), compress_to_fp16=False)


def _read(source: Path) -> Any:
    import openvino

    return openvino.Core().read_model(str(source))


def _weights(operator: Any) -> np.ndarray | None:
    """The float32 weights of a matrix product or a convolution; None for other operators and computed weights."""
    import openvino

    if operator.get_type_name() not in PRODUCTS:
        return None
    node = operator.input_value(1).get_node()
    if node.get_type_name() != "Constant" or node.get_element_type() != openvino.Type.f32:
        return None
    return node.get_data()


def _output_axis(operator: Any, rank: int) -> int:
    """The axis of the weights along which there is a scale for each index: that of the outputs."""
    if operator.get_type_name() == "Convolution":
        return 0
    return rank - 2 if operator.get_attributes()["transpose_b"] else rank - 1
