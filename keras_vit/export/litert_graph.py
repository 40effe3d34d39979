"""A LiteRT file operator by operator: what the GPU of a phone would not run, and what each computes alone."""

import copy
import functools
import os
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export import float16

DTYPES = {0: np.float32, 1: np.float16, 2: np.int32, 3: np.uint8, 4: np.int64, 6: np.bool_, 9: np.int8}
INT8 = 9  # of LiteRT's enumeration
# What LiteRT's WebGPU accelerator 2.3.0 compiled and computed rightly, alone or in a file of this package.
ON_GPU = set(
    "ABS ADD AVERAGE_POOL_2D BATCH_MATMUL CAST CONCATENATION CONV_2D COS DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE "
    "DIV ELU EQUAL EXP EXPAND_DIMS FLOOR FLOOR_DIV FULLY_CONNECTED GATHER GELU HARD_SWISH LEAKY_RELU LESS LOG LOGISTIC "
    "MAXIMUM MAX_POOL_2D MEAN MINIMUM MIRROR_PAD MUL NEG PAD PADV2 POW REDUCE_MAX REDUCE_MIN REDUCE_PROD RELU RELU6 "
    "RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR ROUND RSQRT SELECT SIN SLICE SOFTMAX SPACE_TO_DEPTH SQRT SQUARE "
    "SQUARED_DIFFERENCE SQUEEZE STRIDED_SLICE SUB SUM TANH TILE TRANSPOSE TRANSPOSE_CONV".split()
)


class Graph:
    """The one graph of a file."""

    def __init__(self, path: Path) -> None:
        """Reads the file; OSError if that fails, ImportError without LiteRT."""
        from ai_edge_litert.tools import flatbuffer_utils

        model = flatbuffer_utils.read_model_from_bytearray(bytearray(path.read_bytes()))
        (graph,), self.codes, self.buffers = model.subgraphs, model.operatorCodes, model.buffers
        kinds = [flatbuffer_utils.opcode_to_name(model, place) for place in range(len(self.codes))]
        self.custom = {code.customCode.decode() for code in self.codes if code.customCode}  # not built in
        self.kinds = {*kinds} - {"CUSTOM"} | self.custom
        self.tensors, (self.input,) = graph.tensors, graph.inputs
        self.outputs = {end.name.decode(): end.tensorIndex for end in model.signatureDefs[0].outputs}
        self.operators = []  # with their rows in the file
        for row in graph.operators:
            kind, name = kinds[row.opcodeIndex], (graph.tensors[row.outputs[0]].name or b"").decode()
            run = functools.partial(_run_alone, self, row)
            inputs = [tensor for tensor in row.inputs if tensor >= 0]
            self.operators.append((float16.Step(kind, inputs, row.outputs, kind + float16.layer_of(name), run), row))

    def shape(self, tensor: int) -> tuple[int, ...]:  # with -1 where a length is not fixed
        found = self.tensors[tensor]
        return tuple(found.shapeSignature or found.shape or ())

    def constant(self, tensor: int) -> np.ndarray | None:  # None for tensors that the file does not hold
        found = self.tensors[tensor]
        data = self.buffers[found.buffer].data
        return None if data is None else np.frombuffer(data, DTYPES[found.type]).reshape(self.shape(tensor))


def off_gpu(path: Path) -> tuple[int, list[str]]:
    """How many operators a file has, and which a phone's GPU would refuse or compute wrongly, with the reasons."""
    graph = Graph(path)
    found = [(step.place, _reason(graph, step, row.builtinOptions)) for step, row in graph.operators]
    return len(found), [f"{place}: {reason}" for place, reason in found if reason]


def _reason(graph: Graph, step: float16.Step, options: Any) -> str | None:
    """Why a phone's GPU would not run an operator, or not rightly; None where it would."""
    kind, given, (made, *_), *_ = step
    shapes = [graph.shape(tensor) for tensor in (*given, made)]
    if any(-1 in shape for shape in shapes):
        return "its size is not fixed (batch_size=1, and images of one size)"
    if max(map(len, shapes)) > 4:
        return "it has more than four axes"
    if kind not in ON_GPU:
        return "it is not known to run there"
    if kind == "STRIDED_SLICE" and (options.shrinkAxisMask or options.newAxisMask or options.ellipsisMask):
        return "an index drops an axis (a slice and a reshape do not)"
    if kind == "BATCH_MATMUL" and graph.constant(given[0]) is not None:
        return "its left side is constant"
    if kind == "BATCH_MATMUL" and (options.adjX or options.adjY):
        return "OpenCL ignores that a side is transposed, in silence"
    if kind == "GATHER" and graph.constant(given[1]) is None:
        return "its places are computed"
    if kind == "MAX_POOL_2D" and any(s.kind in ("PAD", "PADV2") and given[0] in s.writes for s, _ in graph.operators):
        return "it pads with -inf whatever is padded before it, in silence"
    if kind == "ADD" and made in graph.outputs.values() and any(made in s.reads for s, _ in graph.operators):
        return "it is an answer and is read as well: one of its parts is returned, in silence"
    if kind in ("CONV_2D", "FULLY_CONNECTED") and graph.tensors[given[1]].type == INT8:
        return "int8 fails to compile on some GPUs (float16 does not)"
    return None


def compute(path: Path, images: np.ndarray, dtype: Any, loud: float = 0.0) -> float16.Computed:
    """What a file answers to images, with each value rounded to `dtype`; see `float16.compute`."""
    graph = Graph(path)

    def rounded(value: np.ndarray) -> np.ndarray:
        return value.astype(dtype) if value.dtype.kind == "f" else value

    steps = [float16.Step("", [], [graph.input], "the input", lambda: [rounded(images)])]
    steps += [step for step, _ in graph.operators]
    found = {tensor: graph.constant(tensor) for step in steps for tensor in step.reads}
    constants = {tensor: rounded(value) for tensor, value in found.items() if value is not None}
    return float16.compute(steps, constants, graph.outputs, loud)


def _run_alone(graph: Graph, row: Any, *values: np.ndarray) -> list[np.ndarray]:
    """What LiteRT's interpreter returns for a file of one operator, all of whose inputs are given."""
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.interpreter import Interpreter, OpResolverType
    from ai_edge_litert.tools.flatbuffer_utils import convert_object_to_bytearray

    if graph.codes[row.opcodeIndex].customCode:
        raise NotImplementedError(f"LiteRT alone lacks operators of this file: {', '.join(graph.custom)}.")
    inputs = dict(zip((tensor for tensor in row.inputs if tensor >= 0), values, strict=True))
    places = {tensor: place for place, tensor in enumerate(dict.fromkeys([*inputs, *row.outputs]))}
    tensors = [schema.TensorT(shape=graph.tensors[i].shape, type=graph.tensors[i].type) for i in places]
    alone = copy.copy(row)
    alone.inputs, alone.outputs = ([places.get(i, -1) for i in ends] for ends in (row.inputs, row.outputs))
    part = schema.SubGraphT(tensors, [*range(len(inputs))], alone.outputs, [alone])
    model = schema.ModelT(version=3, operatorCodes=graph.codes, subgraphs=[part], buffers=[schema.BufferT()])
    interpreter = Interpreter(
        model_content=bytes(convert_object_to_bytearray(model)),
        num_threads=os.cpu_count(),
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    for tensor, value in inputs.items():
        interpreter.resize_tensor_input(places[tensor], value.shape)
    interpreter.allocate_tensors()
    for tensor, value in inputs.items():
        interpreter.set_tensor(places[tensor], value.astype(DTYPES[graph.tensors[tensor].type]))
    interpreter.invoke()
    return [interpreter.get_tensor(place) for place in alone.outputs]
