"""A LiteRT file operator by operator: what the GPU of a phone would not run, and what it computes in float16.

Elementwise operators compute in the dtype that they get; products, convolutions and sums add up in float32 and are
rounded once, as on a good GPU.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit.export.float16 import Computed, erf, layer_of

DTYPES = {0: np.float32, 1: np.float16, 2: np.int32, 3: np.uint8, 4: np.int64, 6: np.bool_, 9: np.int8}
INT8, SAME, RELU6 = 9, 0, 3  # of LiteRT's enumerations
# What LiteRT's WebGPU accelerator 2.3.0 compiled and computed rightly, alone or in a file of this package.
ON_GPU = set(
    "ABS ADD AVERAGE_POOL_2D BATCH_MATMUL CAST CONCATENATION CONV_2D COS DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE "
    "DIV ELU EQUAL EXP EXPAND_DIMS FLOOR FLOOR_DIV FULLY_CONNECTED GATHER GELU HARD_SWISH LEAKY_RELU LESS LOG LOGISTIC "
    "MAXIMUM MAX_POOL_2D MEAN MINIMUM MIRROR_PAD MUL NEG PAD PADV2 POW REDUCE_MAX REDUCE_MIN REDUCE_PROD RELU RELU6 "
    "RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR ROUND RSQRT SELECT SIN SLICE SOFTMAX SPACE_TO_DEPTH SQRT SQUARE "
    "SQUARED_DIFFERENCE SQUEEZE STRIDED_SLICE SUB SUM TANH TILE TRANSPOSE TRANSPOSE_CONV".split()
)


class Operator(NamedTuple):
    """An operator of a graph: its kind, the numbers of its tensors, its options, and words for where it comes from."""

    kind: str
    inputs: list[int]
    outputs: list[int]
    options: Any
    place: str


class Graph:
    """The one graph of a file."""

    def __init__(self, path: Path) -> None:
        """Reads the file; OSError if that fails, ImportError without LiteRT."""
        from ai_edge_litert import schema_py_generated as schema

        model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
        kinds = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
        # The first field had a byte; operators beyond 127 are in the second.
        codes = [kinds[max(code.builtinCode, code.deprecatedBuiltinCode)] for code in model.operatorCodes]
        self.custom = {code.customCode.decode() for code in model.operatorCodes if code.customCode}  # not built in
        self.kinds = {*codes} - {"CUSTOM"} | self.custom
        graph = model.subgraphs[0]
        self.tensors, self.buffers, self.input = graph.tensors, model.buffers, int(graph.inputs[0])
        self.outputs = {end.name.decode(): int(end.tensorIndex) for end in model.signatureDefs[0].outputs}
        self.operators = []
        for row in graph.operators:
            kind, name = codes[row.opcodeIndex], (graph.tensors[row.outputs[0]].name or b"").decode()
            inputs, outputs = [int(i) for i in row.inputs if i >= 0], [*map(int, row.outputs)]
            options = DTYPES[graph.tensors[outputs[0]].type] if kind == "CAST" else row.builtinOptions
            self.operators.append(Operator(kind, inputs, outputs, options, kind + layer_of(name)))

    def shape(self, tensor: int) -> tuple[int, ...]:  # with -1 where a length is not fixed
        found = self.tensors[tensor]
        signature = found.shape if found.shapeSignature is None else found.shapeSignature
        return () if signature is None else tuple(map(int, signature))

    def constant(self, tensor: int) -> np.ndarray | None:  # None for tensors that the file does not hold
        data = self.buffers[self.tensors[tensor].buffer].data
        if data is None:
            return None
        values = np.frombuffer(np.asarray(data, np.uint8).tobytes(), DTYPES[self.tensors[tensor].type])
        return values.reshape(self.shape(tensor))


def off_gpu(path: Path) -> tuple[int, list[str]]:
    """How many operators a file has, and which a phone's GPU would refuse or compute wrongly, with the reasons."""
    graph = Graph(path)
    found = [(operator.place, _reason(graph, operator)) for operator in graph.operators]
    return len(found), [f"{place}: {reason}" for place, reason in found if reason]


def _reason(graph: Graph, operator: Operator) -> str | None:
    """Why a phone's GPU would not run an operator, or not rightly; None where it would."""
    kind, given, outputs, options, _ = operator
    shapes = [graph.shape(tensor) for tensor in (*given, *outputs)]
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
    if kind == "MAX_POOL_2D" and any(o.kind in ("PAD", "PADV2") and given[0] in o.outputs for o in graph.operators):
        return "it pads with -inf whatever is padded before it, in silence"
    if kind == "ADD" and outputs[0] in graph.outputs.values() and any(outputs[0] in o.inputs for o in graph.operators):
        return "it is an answer and is read as well: one of its parts is returned, in silence"
    if kind in ("CONV_2D", "FULLY_CONNECTED") and graph.tensors[given[1]].type == INT8:
        return "int8 fails to compile on some GPUs (float16 does not)"
    return None


# Operators in NumPy: functions of the list of inputs and the options.


def _windows(x: np.ndarray, kernel: tuple[int, ...], options: Any, fill: float = 0.0) -> np.ndarray:
    """The windows of a convolution or pooling over a map: `(n, rows, columns, channels, *kernel)`."""
    steps, margins = (options.strideH, options.strideW), [(0, 0)]
    for size, window, step in zip(x.shape[1:3], kernel, steps, strict=True):
        total = max((-(-size // step) - 1) * step + window - size, 0) if options.padding == SAME else 0
        margins.append((total // 2, total - total // 2))
    x = np.pad(x, [*margins, (0, 0)], constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(x, kernel, (1, 2))[:, :: steps[0], :: steps[1]]


def _convolution(x: Any, kernel: Any, bias: Any, options: Any) -> np.ndarray:
    if (options.dilationHFactor, options.dilationWFactor) != (1, 1) or kernel.shape[3] != x.shape[3]:
        raise NotImplementedError("The check in float16 cannot compute convolutions with groups or dilation.")
    return np.tensordot(_windows(x, kernel.shape[1:3], options), kernel, ((3, 4, 5), (3, 1, 2))) + bias


def _depthwise(x: Any, kernel: Any, bias: Any, options: Any) -> np.ndarray:
    kernel = kernel[0].reshape(*kernel.shape[1:3], x.shape[3], -1)
    y = np.einsum("nrcdij,ijdm->nrcdm", _windows(x, kernel.shape[:2], options), kernel)
    return y.reshape(*y.shape[:3], -1) + bias


def _transposed(shape: Any, kernel: Any, x: Any, bias: Any, options: Any) -> np.ndarray:
    if kernel.shape[1:3] != (options.strideH, options.strideW):
        raise NotImplementedError(
            "The check in float16 cannot compute transposed convolutions whose kernel and stride differ."
        )
    return np.einsum("nrcd,oijd->nricjo", x, kernel).reshape(shape) + bias


def _softmax(x: Any, options: Any) -> np.ndarray:
    powers = np.exp(options.beta * (x - x.max(-1, keepdims=True)))
    return powers / powers.sum(-1, keepdims=True)


def _gelu(x: Any, options: Any) -> np.ndarray:
    return x / 2 * (1 + (np.tanh(0.7978845608 * (x + 0.044715 * x**3)) if options.approximate else erf(x / 2**0.5)))


def _slice(x: Any, begin: Any, end: Any, step: Any, options: Any) -> np.ndarray:
    def part(axis: int) -> Any:
        if options.shrinkAxisMask >> axis & 1:
            return begin[axis]
        first, last = options.beginMask >> axis & 1, options.endMask >> axis & 1
        return slice(None if first else begin[axis], None if last else end[axis], step[axis])

    return x[tuple(map(part, range(len(begin))))]


def _over(function: Any) -> Callable[..., Any]:
    return lambda x, axes, o: function(x, axis=tuple(np.atleast_1d(axes)), keepdims=bool(o.keepDims))


_WIDE: dict[str, Callable[..., Any]] = {
    "BATCH_MATMUL": lambda a, b, o: (a.swapaxes(-1, -2) if o.adjX else a) @ (b.swapaxes(-1, -2) if o.adjY else b),
    "FULLY_CONNECTED": lambda x, w, b, o: (x if o.keepNumDims else x.reshape(-1, w.shape[1])) @ w.T + b,
    **{"CONV_2D": _convolution, "DEPTHWISE_CONV_2D": _depthwise, "TRANSPOSE_CONV": _transposed, "GELU": _gelu},
    **{"MEAN": _over(np.mean), "SUM": _over(np.sum), "SOFTMAX": _softmax},
}
_BIASED = {"FULLY_CONNECTED": 3, "CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "TRANSPOSE_CONV": 4}  # inputs, the bias included
_PLAIN: dict[str, Callable[..., Any]] = {
    **{"ABS": np.abs, "ADD": np.add, "DIV": np.divide, "EXP": np.exp, "MAXIMUM": np.maximum, "MINIMUM": np.minimum},
    **{"MUL": np.multiply, "NEG": np.negative, "POW": np.power, "SQRT": np.sqrt, "SQUARE": np.square, "TANH": np.tanh},
    **{"SUB": np.subtract, "DEQUANTIZE": np.asarray, "PAD": np.pad, "TRANSPOSE": np.transpose, "TILE": np.tile},
    "ELU": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "LOGISTIC": lambda x: 1 / (1 + np.exp(-x)),
    "PADV2": lambda x, margins, value: np.pad(x, margins, constant_values=value),
    "RELU": lambda x: np.maximum(x, 0),
    "RESHAPE": lambda x, shape: x.reshape(shape),
    "RSQRT": lambda x: 1 / np.sqrt(x),
    "SQUARED_DIFFERENCE": lambda a, b: np.square(a - b),
}
_WITH_OPTIONS: dict[str, Callable[..., Any]] = {
    "CAST": lambda x, o: x.astype(o),
    "CONCATENATION": lambda *parts: np.concatenate(parts[:-1], parts[-1].axis),
    "GATHER": lambda x, places, o: np.take(x, places.astype(int), o.axis),
    "MAX_POOL_2D": lambda x, o: _windows(x, (o.filterHeight, o.filterWidth), o, -np.inf).max((-2, -1)),
    "PACK": lambda *parts: np.stack(parts[:-1], parts[-1].axis),
    **{"REDUCE_MAX": _over(np.max), "STRIDED_SLICE": _slice, "SHAPE": lambda x, o: np.array(x.shape, "int32")},
}


def _computed(operator: Operator, inputs: list[Any]) -> np.ndarray:
    """What an operator computes; NotImplementedError for one that is not above."""
    kind, options = operator.kind, operator.options
    if kind in _PLAIN:
        y = _PLAIN[kind](*inputs)
    elif kind in _WITH_OPTIONS:
        y = _WITH_OPTIONS[kind](*inputs, options)
    elif kind in _WIDE:
        inputs = [x.astype("float32") if x.dtype == np.float16 else x for x in inputs]
        inputs += [np.float32(0)] * (_BIASED.get(kind, 0) - len(inputs))
        y = _WIDE[kind](*inputs, options)
    else:
        raise NotImplementedError(f"The check in float16 cannot compute the operator {kind}.")
    activation = getattr(options, "fusedActivationFunction", 0)
    return np.clip(y, 0, 6 if activation == RELU6 else None) if activation else y


def compute(path: Path, images: np.ndarray, dtype: Any, loud: float = 0.0) -> Computed:
    """What a file answers to images, with each value rounded to `dtype`; see `float16.Computed`."""
    graph, values, computed = Graph(path), {}, Computed({})
    last = {tensor: operator for operator in graph.operators for tensor in operator.inputs}
    means, differences = ({o.inputs[0] for o in graph.operators if o.kind == kind} for kind in ("MEAN", "SUB"))
    divided = {o.outputs[0]: o.inputs[0] for o in graph.operators if o.kind == "DIV"}  # some norms scale by peaks first
    normalized = {divided.get(tensor, tensor) for tensor in means & differences}

    def keep(tensor: int, value: Any, place: str = "") -> Any:
        value = value.astype(dtype) if value.dtype.kind == "f" else value
        if loud and tensor in normalized:
            value[..., 0] += dtype(loud)
        if place:
            values[tensor] = value
            computed.see(value, place)
        return value

    keep(graph.input, images, "the input")
    for operator in graph.operators:
        inputs = [values[t] if t in values else keep(t, graph.constant(t)) for t in operator.inputs]
        keep(operator.outputs[0], np.asarray(_computed(operator, inputs)), operator.place)
        for tensor in operator.inputs:
            if last[tensor] is operator and tensor not in graph.outputs.values():
                values.pop(tensor, None)
    computed.answers.update((name, values[tensor].astype("float32")) for name, tensor in graph.outputs.items())
    return computed
