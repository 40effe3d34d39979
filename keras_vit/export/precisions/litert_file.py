"""LiteRT (`.tflite`) files as data: read, rid of operations that do nothing, and written without waste.

The schema is that of `ai_edge_litert`, the runtime: a model is a tree of `ModelT`, `SubGraphT`, `OperatorT`,
`TensorT` and `BufferT`, the same names as in LiteRT's `schema.fbs`.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

MOST_BYTES = 2**31 - 1  # what the offsets of a flatbuffer can reach


def read(path: Path) -> Any:
    """Reads a file that has one subgraph.

    Args:
        path: A `.tflite` file.

    Returns:
        Its `ModelT`.

    Raises:
        ValueError: if it is no such file.
    """
    from ai_edge_litert.tools import flatbuffer_utils

    data = Path(path).read_bytes()
    if data[4:8] != b"TFL3":
        raise ValueError(f"source must be a LiteRT (.tflite) file, but {path} is none.")
    model = flatbuffer_utils.read_model_from_bytearray(bytearray(data))
    if len(model.subgraphs) != 1:
        raise ValueError(f"source must have one subgraph, but {path} has {len(model.subgraphs)}.")
    return model


def write(model: Any, path: Path) -> None:
    """Writes a model; equal parts are stored once, and only inputs and outputs keep their names.

    Raises:
        ValueError: if the model is larger than the format allows, 2 GiB.
    """
    graph = model.subgraphs[0]
    ends = {*map(int, graph.inputs), *map(int, graph.outputs)}
    for index, tensor in enumerate(graph.tensors):
        if index not in ends:
            tensor.name = None
        tensor.shape = _vector(tensor.shape, np.int32)
        tensor.shapeSignature = _vector(tensor.shapeSignature, np.int32)
        if tensor.quantization is not None:
            if tensor.quantization.scale is None:
                tensor.quantization = None
            else:
                tensor.quantization.scale = _vector(tensor.quantization.scale, np.float32)
                tensor.quantization.zeroPoint = _vector(tensor.quantization.zeroPoint, np.int64)
    for operator in graph.operators:
        operator.inputs, operator.outputs = _vector(operator.inputs, np.int32), _vector(operator.outputs, np.int32)
        if operator.builtinOptions is not None:
            operator.builtinOptions = _Once(operator.builtinOptions)
    _drop_unused(model)
    size = sum(len(buffer.data) for buffer in model.buffers if buffer.data is not None)
    if size > MOST_BYTES:
        raise ValueError(f"The LiteRT file would have {size / 2**30:.1f} GiB, and the format ends at 2 GiB.")
    builder = _builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    start = builder.Head()
    Path(path).write_bytes(memoryview(builder.Bytes)[start:])


def kind(model: Any, operator: Any) -> int:
    """The `BuiltinOperator` of an operator."""
    code = model.operatorCodes[operator.opcodeIndex]
    return max(code.builtinCode, code.deprecatedBuiltinCode)  # small numbers stand in the old, narrow field alone


def signature(tensor: Any) -> tuple[int, ...] | None:
    """The shape of a tensor with -1 where it is known at run time alone; None where not even the rank is known."""
    known = tensor.shapeSignature
    shape = known if known is not None and len(known) else tensor.shape
    return None if shape is None else tuple(map(int, shape))


def constant(model: Any, index: int) -> np.ndarray | None:
    """The float32 values of a constant tensor; None if it is not constant or not float32."""
    from ai_edge_litert import schema_py_generated as schema

    tensor = model.subgraphs[0].tensors[index]
    data = model.buffers[tensor.buffer].data if index >= 0 else None  # -1: an operator's input that is left out
    if data is None or not len(data) or tensor.type != schema.TensorType.FLOAT32:
        return None
    return np.frombuffer(bytes(data), "<f4").reshape(tensor.shape)


def store(model: Any, tensor: Any, values: np.ndarray) -> None:
    """Gives a tensor new contents of any of the types float16, int8, int32 and float32."""
    from ai_edge_litert import schema_py_generated as schema

    model.buffers.append(schema.BufferT(data=np.frombuffer(values.tobytes(), np.uint8)))
    tensor.buffer = len(model.buffers) - 1
    tensor.type = getattr(schema.TensorType, values.dtype.name.upper())


def new_operator(model: Any, name: str, version: int, given: int, answer: int) -> Any:
    """An operator without options, from one tensor to another, for the caller to put in its place."""
    from ai_edge_litert import schema_py_generated as schema

    code = getattr(schema.BuiltinOperator, name)
    codes = [max(known.builtinCode, known.deprecatedBuiltinCode) for known in model.operatorCodes]
    if code not in codes:
        codes.append(code)
        old = min(code, 127)  # the narrow field says 127 for what it cannot hold
        model.operatorCodes.append(schema.OperatorCodeT(deprecatedBuiltinCode=old, builtinCode=code, version=version))
    known = model.operatorCodes[codes.index(code)]
    known.version = max(known.version, version)
    return schema.OperatorT(opcodeIndex=codes.index(code), inputs=np.array([given]), outputs=np.array([answer]))


def simplify(model: Any) -> int:
    """Lets matrix products take tensors of any rank, as LiteRT can, and add their biases.

    TensorFlow's `tensordot` flattens what it multiplies, by a shape that it computes at run time: ten operations
    around each product, which the converter keeps and which cut the graph into pieces for LiteRT's fast kernels.

    Returns:
        How many products were freed of it.
    """
    from ai_edge_litert import schema_py_generated as schema

    graph, builtin = model.subgraphs[0], schema.BuiltinOperator
    shapes = [signature(tensor) for tensor in graph.tensors]
    users: dict[int, list[Any]] = {}
    for operator in graph.operators:
        for index in map(int, operator.inputs):
            users.setdefault(index, []).append(operator)
    maker = {int(index): operator for operator in graph.operators for index in operator.outputs}
    place = {id(operator): number for number, operator in enumerate(graph.operators)}
    ends = set(map(int, graph.outputs))

    def is_a(operator: Any, code: int) -> bool:
        return operator is not None and kind(model, operator) == code

    def only_user(index: int) -> Any:
        return users[index][0] if len(users.get(index, [])) == 1 and index not in ends else None

    def one_unknown(shape: tuple[int, ...] | None) -> bool:
        # With one unknown dimension, an equal number of elements makes two shapes of this kind equal.
        return shape is not None and shape.count(-1) <= 1

    for reshape in [operator for operator in graph.operators if is_a(operator, builtin.RESHAPE)]:
        before, after = int(reshape.inputs[0]), int(reshape.outputs[0])
        if shapes[before] == shapes[after] and one_unknown(shapes[before]) and after not in ends:
            for user in users.pop(after, []):
                user.inputs = np.where(np.asarray(user.inputs) == after, before, user.inputs)
                users[before].append(user)
    freed = 0
    for product in [operator for operator in graph.operators if is_a(operator, builtin.FULLY_CONNECTED)]:
        flatten, unflatten = maker.get(int(product.inputs[0])), only_user(int(product.outputs[0]))
        if not (is_a(flatten, builtin.RESHAPE) and is_a(unflatten, builtin.RESHAPE)):
            continue
        units, width = shapes[int(product.inputs[1])]
        result = int(unflatten.outputs[0])
        if not one_unknown(shapes[result]) or shapes[result][-1:] != (units,):
            continue
        # What is flattened, or another view of it that exists before the product.
        whole = int(flatten.inputs[0])
        views = [user for user in users[whole] if is_a(user, builtin.RESHAPE) and place[id(user)] < place[id(product)]]
        views = [whole, *(int(user.outputs[0]) for user in views)]
        views = [view for view in views if shapes[view] == (*shapes[result][:-1], width)]
        if not views:
            continue
        product.inputs = np.array([views[0], *product.inputs[1:]])
        # Nothing else may write the result: where no bias is added after it, the old reshape would stay.
        product.outputs, unflatten.outputs = unflatten.outputs, []
        product.builtinOptions.keepNumDims = True
        model.operatorCodes[product.opcodeIndex].version = max(5, model.operatorCodes[product.opcodeIndex].version)
        users.setdefault(views[0], []).append(product)
        freed += 1
        add = only_user(result)
        if (
            is_a(add, builtin.ADD)
            and not add.builtinOptions.fusedActivationFunction
            and max(product.inputs[2:], default=-1) < 0
        ):
            bias = [int(index) for index in add.inputs if int(index) != result]
            if len(bias) == 1 and shapes[bias[0]] == (units,) and constant(model, bias[0]) is not None:
                product.inputs = np.array([*product.inputs[:2], bias[0]])
                product.outputs, add.outputs = add.outputs, []
    _drop_unused(model)
    return freed


def _drop_unused(model: Any) -> None:
    """Removes what nothing needs: operators, tensors, kinds of operators and buffers; equal buffers become one."""
    graph = model.subgraphs[0]
    ends = {*map(int, graph.inputs), *map(int, graph.outputs)}
    needed, kept = set(map(int, graph.outputs)), []
    for operator in reversed(graph.operators):
        if needed.intersection(map(int, operator.outputs)):
            needed.update(map(int, operator.inputs))
            kept.append(operator)
    graph.operators = kept[::-1]
    used = ends.union(*({*map(int, o.inputs), *map(int, o.outputs)} for o in graph.operators)) - {-1}
    moved = {old: new for new, old in enumerate(sorted(used))} | {-1: -1}
    graph.tensors = [graph.tensors[index] for index in sorted(used)]
    for part in [graph, *graph.operators]:
        part.inputs = np.array([moved[int(index)] for index in part.inputs], np.int32)
        part.outputs = np.array([moved[int(index)] for index in part.outputs], np.int32)
    for named in [end for part in model.signatureDefs or [] for end in [*part.inputs, *part.outputs]]:
        named.tensorIndex = moved[named.tensorIndex]
    codes = sorted({operator.opcodeIndex for operator in graph.operators})
    model.operatorCodes = [model.operatorCodes[index] for index in codes]
    for operator in graph.operators:
        operator.opcodeIndex = codes.index(operator.opcodeIndex)
    # The first buffer is the empty one of everything that is computed.
    buffers, places = [model.buffers[0]], {hashlib.sha256(b"").digest(): 0}
    for holder in [*graph.tensors, *(model.metadata or [])]:
        buffer = model.buffers[holder.buffer]
        key = hashlib.sha256(b"" if buffer.data is None else buffer.data).digest()
        if key not in places:
            places[key] = len(buffers)
            buffers.append(buffer)
        holder.buffer = places[key]
    model.buffers = buffers


class _Once:
    """A table of the file without offsets: a second one that is equal becomes a reference to the first."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def Pack(self, builder: Any) -> int:
        """Writes the table, if it is not there; gives back its place."""
        key = (type(self.table), repr(sorted(vars(self.table).items())))
        if key not in builder.places:
            builder.places[key] = self.table.Pack(builder)
        return builder.places[key]


def _vector(values: Any, dtype: type) -> np.ndarray | None:
    return None if values is None else np.asarray(values, dtype)


def _builder() -> Any:
    """A flatbuffer builder that stores equal vectors once, and constants where fast kernels like to find them."""
    from ai_edge_litert.tools import flatbuffer_utils

    base = flatbuffer_utils.flatbuffers.Builder

    class Builder(base):
        def __init__(self) -> None:
            super().__init__(1024)
            self.places: dict[Any, int] = {}

        def CreateNumpyVector(self, values: np.ndarray) -> int:
            """Writes a vector, if it is not there; gives back its place."""
            data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
            key = (values.dtype.str, data) if values.dtype != np.uint8 else None  # buffers are different already
            if key is None or key not in self.places:
                # The schema asks that the data of a buffer start at a multiple of 16 bytes.
                self.StartVector(values.itemsize, values.size, 16 if key is None else values.itemsize)
                self.head -= len(data)
                self.Bytes[self.head : self.head + len(data)] = data
                self.vectorNumElems = values.size
                self.places[key] = self.EndVector()
            return self.places[key]

    return Builder()
