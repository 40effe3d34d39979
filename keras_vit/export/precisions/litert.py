"""LiteRT in float16 and int8: the weights change, and with calibration the matrix products too.

What is quantized are the constants of matrix products and convolutions, symmetrically in -127..127 as LiteRT's
quantization specification asks for, and the position embeddings. Layer normalisation, softmax, GELU and the products
of attention compute in float32: they are a small part of the time, and most of the error where all is integers.
"""

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.precisions import litert_file
from keras_vit.export.precisions.rounding import batches, symmetric_int8

LARGE = 1024  # elements; smaller constants, and vectors (biases), stay float32: they weigh little
# With fewer weights to a row than this, on average, a matrix has one scale in place of one for each row: those of 4
# bytes each, and again for the biases, would make the file much larger than a quarter. Published ViTs have more.
SHORT = 128


def to_float32(source: Path, target: Path) -> None:
    """Writes the same computation with fewer operations: nothing is lost."""
    model = litert_file.read(source)
    litert_file.simplify(model)
    litert_file.write(model, target)


def to_float16(source: Path, target: Path) -> None:
    """Stores large constants as float16; runtimes that cannot compute in float16 widen them when they load."""
    model = litert_file.read(source)
    litert_file.simplify(model)
    _store_tables(model, _as_float16)
    litert_file.write(model, target)


def to_dynamic_int8(source: Path, target: Path) -> None:
    """Stores weights as int8; the runtime quantizes what they are multiplied with, row by row, when it has it."""
    model = litert_file.read(source)
    litert_file.simplify(model)
    products = _products(model)
    axis = _axis(model, products)
    for operator in products:
        _quantize_weights(model, operator, axis)
        if hasattr(operator.builtinOptions, "asymmetricQuantizeInputs"):
            operator.builtinOptions.asymmetricQuantizeInputs = True  # GELU's answers lie on one side of zero
    _store_tables(model, _as_int8)
    litert_file.write(model, target)


def to_int8(source: Path, target: Path, images: np.ndarray) -> None:
    """Lets products with weights compute in int8 throughout, within the ranges seen on some images.

    Args:
        source: A float32 file.
        target: Where to write.
        images: Calibration images `(count, height, width, channels)`, as the file takes them.
    """
    model = litert_file.read(source)
    litert_file.simplify(model)
    graph, products = model.subgraphs[0], _products(model)
    axis = _axis(model, products)
    wanted = {int(index) for operator in products for index in (operator.inputs[0], operator.outputs[0])}
    ranges = _ranges(source, target.parent, wanted, images)
    quantized: dict[int, int] = {}
    operators = []
    for operator in graph.operators:
        if not any(operator is product for product in products):
            operators.append(operator)
            continue
        given, answer = int(operator.inputs[0]), int(operator.outputs[0])
        scales = _quantize_weights(model, operator, axis)
        if given not in quantized:
            quantized[given] = _int8_like(model, given, ranges[given])
            operators.append(litert_file.new_operator(model, "QUANTIZE", 1, given, quantized[given]))
        operator.inputs[0] = quantized[given]
        if len(operator.inputs) > 2 and operator.inputs[2] >= 0:
            _quantize_bias(model, operator, scales * graph.tensors[quantized[given]].quantization.scale)
        operator.outputs[0] = _int8_like(model, answer, ranges[answer])
        operators += [operator, litert_file.new_operator(model, "DEQUANTIZE", 2, operator.outputs[0], answer)]
    graph.operators = operators
    _store_tables(model, _as_int8)
    litert_file.write(model, target)


def _products(model: Any) -> list[Any]:
    """The matrix products and convolutions whose weights are float32 constants."""
    from ai_edge_litert import schema_py_generated as schema

    kinds = (schema.BuiltinOperator.FULLY_CONNECTED, schema.BuiltinOperator.CONV_2D)
    return [
        operator
        for operator in model.subgraphs[0].operators
        if litert_file.kind(model, operator) in kinds
        and litert_file.constant(model, int(operator.inputs[1])) is not None
    ]


def _axis(model: Any, products: list[Any]) -> int | None:
    """The axis of weights along which scales differ: the first one, that of the outputs, or None."""
    shapes = [litert_file.signature(model.subgraphs[0].tensors[int(operator.inputs[1])]) for operator in products]
    return 0 if sum(map(math.prod, shapes)) >= SHORT * sum(shape[0] for shape in shapes) else None


def _quantize_weights(model: Any, operator: Any, axis: int | None) -> np.ndarray:
    """Makes an operator's weights int8; gives back their scales, one for each output or a single one."""
    tensor = model.subgraphs[0].tensors[int(operator.inputs[1])]
    values = litert_file.constant(model, int(operator.inputs[1]))
    if values is None:  # shared with an operator that was here before
        return tensor.quantization.scale
    integers, scales = symmetric_int8(values, axis)
    scales = scales.ravel()
    litert_file.store(model, tensor, integers)
    tensor.quantization = _quantization(scales, np.zeros(len(scales)))
    code = model.operatorCodes[operator.opcodeIndex]
    code.version = max(code.version, 5)
    return scales


def _quantize_bias(model: Any, operator: Any, scales: np.ndarray) -> None:
    graph = model.subgraphs[0]
    values = litert_file.constant(model, int(operator.inputs[2]))
    # A tensor of its own: two operators may share a bias, but not its scales.
    tensor = type(graph.tensors[0])(shape=np.array(values.shape), hasRank=True)
    integers = np.clip(np.rint(values / scales), -(2**31), 2**31 - 1).astype("int32")
    litert_file.store(model, tensor, integers)
    tensor.quantization = _quantization(scales.astype("float32"), np.zeros(len(scales)))
    graph.tensors.append(tensor)
    operator.inputs[2] = len(graph.tensors) - 1


def _int8_like(model: Any, index: int, limits: tuple[float, float]) -> int:
    """A new int8 tensor for the values of a float32 one that lie between two limits."""
    from ai_edge_litert import schema_py_generated as schema

    graph = model.subgraphs[0]
    tensor = graph.tensors[index]
    low, high = min(limits[0], 0.0), max(limits[1], 0.0)
    scale = np.float32((high - low) / 255 or 1)
    zero = np.clip(np.rint(-128 - low / scale), -128, 127)
    graph.tensors.append(
        schema.TensorT(
            shape=tensor.shape,
            shapeSignature=tensor.shapeSignature,
            type=schema.TensorType.INT8,
            hasRank=tensor.hasRank,
            quantization=_quantization(np.array([scale]), np.array([zero])),
        )
    )
    return len(graph.tensors) - 1


def _quantization(scales: np.ndarray, zeros: np.ndarray, axis: int = 0) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    return schema.QuantizationParametersT(scale=scales, zeroPoint=zeros.astype("int64"), quantizedDimension=axis)


def _store_tables(model: Any, convert: Callable[[Any, Any, np.ndarray], int]) -> None:
    """Converts large float32 constants, each behind an operator that widens it once, when the file is loaded.

    Args:
        model: What to change.
        convert: Stores values in a tensor of a model, and gives back the version of DEQUANTIZE that widens them.
    """
    from ai_edge_litert import schema_py_generated as schema

    graph = model.subgraphs[0]
    widened, operators = {}, []
    for operator in graph.operators:
        for place, index in enumerate(map(int, operator.inputs)):
            values = litert_file.constant(model, index) if index not in widened else None
            if values is not None and values.ndim > 1 and values.size >= LARGE:
                version = convert(model, graph.tensors[index], values)
                graph.tensors.append(schema.TensorT(shape=np.array(values.shape), hasRank=True))
                widened[index] = len(graph.tensors) - 1
                operators.append(litert_file.new_operator(model, "DEQUANTIZE", version, index, widened[index]))
            operator.inputs[place] = widened.get(index, index)
        operators.append(operator)
    graph.operators = operators


def _as_float16(model: Any, tensor: Any, values: np.ndarray) -> int:
    limit = np.finfo("float16").max
    litert_file.store(model, tensor, np.clip(values, -limit, limit).astype("float16"))
    return 3


def _as_int8(model: Any, tensor: Any, values: np.ndarray) -> int:
    """One scale for each row: the class token's position may be of another size than all the others."""
    integers, scales = symmetric_int8(values, values.ndim - 2)
    litert_file.store(model, tensor, integers)
    tensor.quantization = _quantization(scales.ravel(), np.zeros(scales.size), values.ndim - 2)
    return 5


def _ranges(source: Path, folder: Path, wanted: set[int], images: np.ndarray) -> dict[int, tuple[float, float]]:
    """The smallest and largest value of some tensors over some images.

    Args:
        source: A float32 file.
        folder: Where a temporary file of the same size can be written.
        wanted: Indices of tensors in the simplified graph.
        images: What the file takes.
    """
    from ai_edge_litert.interpreter import Interpreter

    with tempfile.TemporaryDirectory(dir=folder, prefix=".calibration.") as temporary:
        # All of them as outputs: what is not one does not outlive the fast kernels.
        watched = Path(temporary) / "watched.tflite"
        model = litert_file.read(source)
        litert_file.simplify(model)
        graph = model.subgraphs[0]
        graph.outputs = sorted({*map(int, graph.outputs), *wanted} - {*map(int, graph.inputs)})
        litert_file.write(model, watched)
        del model, graph
        interpreter = Interpreter(model_path=str(watched), num_threads=os.cpu_count())
        detail = interpreter.get_input_details()[0]
        batch = max(1, int(detail["shape_signature"][0]))  # -1 where any will do
        interpreter.resize_tensor_input(detail["index"], (batch, *images.shape[1:]))
        interpreter.allocate_tensors()
        ranges = dict.fromkeys(wanted, (np.inf, -np.inf))
        for part in batches(images, batch):
            interpreter.set_tensor(detail["index"], part)
            interpreter.invoke()
            for index in wanted:
                values = interpreter.get_tensor(index)
                ranges[index] = (min(ranges[index][0], float(values.min())), max(ranges[index][1], float(values.max())))
        del interpreter  # it has the file open
    return ranges


def input_of(source: Path) -> tuple[tuple[int | None, ...], np.dtype]:
    """The shape that a file takes, None where any length will do, and the dtype."""
    from ai_edge_litert.interpreter import Interpreter

    detail = Interpreter(model_path=str(source)).get_input_details()[0]
    return tuple(None if length < 0 else int(length) for length in detail["shape_signature"]), np.dtype(detail["dtype"])
