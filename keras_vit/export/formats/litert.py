"""LiteRT (TensorFlow Lite): one file for phones and small boards.

Other precisions are made by ai-edge-quantizer. With int8, matrix products with weights and convolutions are integer;
layer normalisation, softmax, GELU and the products of attention compute in float32: they are a small part of the
time, and most of the error where all is integers.
"""

import contextlib
import copy
import functools
import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export import float16
from keras_vit.export.format import FLATBUFFER, Answers, Format, Model, Operators, Precision, Run, Signature, batches
from keras_vit.export.formats.frameworks import tensorflow_module

CALIBRATION_BATCH = 4  # images at a time: all values of all layers are kept meanwhile
DTYPES = {0: np.float32, 1: np.float16, 2: np.int32, 3: np.uint8, 4: np.int64, 6: np.bool_, 7: np.int16, 9: np.int8}
INT8 = 9  # of LiteRT's enumeration
# What LiteRT's WebGPU accelerator 2.3.0 compiled and computed rightly, alone or in a file of this package.
ON_GPU = set(
    "ABS ADD AVERAGE_POOL_2D BATCH_MATMUL CAST CONCATENATION CONV_2D COS DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE "
    "DIV ELU EQUAL EXP EXPAND_DIMS FLOOR FLOOR_DIV FULLY_CONNECTED GATHER GELU HARD_SWISH LEAKY_RELU LESS LOG LOGISTIC "
    "MAXIMUM MAX_POOL_2D MEAN MINIMUM MIRROR_PAD MUL NEG PAD PADV2 POW REDUCE_MAX REDUCE_MIN REDUCE_PROD RELU RELU6 "
    "RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR ROUND RSQRT SELECT SIN SLICE SOFTMAX SPACE_TO_DEPTH SQRT SQUARE "
    "SQUARED_DIFFERENCE SQUEEZE STRIDED_SLICE SUB SUM TANH TILE TRANSPOSE TRANSPOSE_CONV".split()
)


class _Graph:
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


def _reason(graph: _Graph, step: float16.Step, options: Any) -> str | None:
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


def _run_alone(graph: _Graph, row: Any, *values: np.ndarray) -> list[np.ndarray]:
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


def _ranges(source: Path, recipe: Any, images: np.ndarray) -> dict[str, Any]:
    """Returns the smallest and largest value of each tensor of a file over some images, by the tensor's name."""
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import calibrator
    from ai_edge_quantizer.utils import qsv_utils

    batch = int(Interpreter(model_path=str(source)).get_input_details()[0]["shape_signature"][0])  # -1 for any
    # The extremes, not the library's moving averages of them, which would clip the outliers of a ViT.
    watching = calibrator.Calibrator(
        str(source),
        num_threads=os.cpu_count() or 1,
        mode=calibrator.CalibrationMode.CALIBRATION_PROFILER_BASED,  # several times as fast as the other one
        qsv_update_func=qsv_utils.min_max_update,
    )
    data = [{"images": part} for part in batches(images, batch if batch > 0 else CALIBRATION_BATCH)]
    watching.calibrate({"serving_default": data}, recipe)  # what TensorFlow calls the one function in the file
    return watching.get_model_qsvs()


def _separate_buffers(path: Path) -> None:
    """Gives each constant a buffer of its own: the converter shares equal ones, the quantizer takes them for one."""
    from ai_edge_litert.tools import flatbuffer_utils

    model, taken = flatbuffer_utils.read_model_from_bytearray(bytearray(path.read_bytes())), set()
    for tensor in (tensor for graph in model.subgraphs for tensor in graph.tensors):
        if tensor.buffer in taken and model.buffers[tensor.buffer].data is not None:
            model.buffers.append(copy.copy(model.buffers[tensor.buffer]))
            tensor.buffer = len(model.buffers) - 1
        taken.add(tensor.buffer)
    flatbuffer_utils.write_model(model, str(path))


_NEEDS = (("ai_edge_litert", "ai_edge_quantizer"), "export")


class LiteRT(Format):
    """A file for phones and small boards, `.tflite`."""

    name = "litert"
    suffix = ".tflite"
    backend = "tensorflow"
    needs = ("tensorflow", "ai_edge_litert")
    extra = "export"
    runtime = ("ai_edge_litert.interpreter",)
    precisions = {
        "float32": Precision(),
        "float16": Precision(*_NEEDS),
        "bfloat16": Precision(reason="LiteRT has no operations for bfloat16: float16 is as small and more accurate."),
        "dynamic_int8": Precision(*_NEEDS),
        "int8": Precision(*_NEEDS, calibration=True),
    }
    largest = FLATBUFFER
    batch = 1  # phones' GPUs take no other sizes than those in the file
    gpu = ("float32", "float16")

    def write(self, model: Model, signature: Signature, path: Path) -> None:
        import tensorflow as tf

        module = tensorflow_module(model, signature, self.name)
        converter = tf.lite.TFLiteConverter.from_concrete_functions([module.serve.get_concrete_function()], module)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
        path.write_bytes(converter.convert())

    def load(self, path: Path) -> Run:
        # The function changes the interpreter, so that only one thread may call it.
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(model_path=str(path))
        (input_,) = interpreter.get_input_details()
        outputs = interpreter.get_signature_runner().get_output_details()
        shape = None

        def run(images: np.ndarray) -> Answers:
            nonlocal shape
            if shape != images.shape:
                # A file for any batch is stored for a batch of 1 and is resized to the one that comes.
                interpreter.resize_tensor_input(input_["index"], images.shape, strict=True)
                interpreter.allocate_tensors()
                shape = images.shape
            interpreter.set_tensor(input_["index"], images)
            interpreter.invoke()
            return {name: interpreter.get_tensor(output["index"]) for name, output in outputs.items()}

        return run

    def operators(self, path: Path) -> Operators:
        graph = _Graph(path)
        return Operators(sorted(graph.kinds), sorted(graph.custom))

    def off_gpu(self, path: Path) -> tuple[int, list[str]] | None:
        graph = _Graph(path)
        found = [(step.place, _reason(graph, step, row.builtinOptions)) for step, row in graph.operators]
        return len(found), [f"{place}: {reason}" for place, reason in found if reason]

    def compute(self, path: Path, images: np.ndarray, dtype: Any, loud: float = 0.0) -> float16.Computed:
        graph = _Graph(path)

        def rounded(value: np.ndarray) -> np.ndarray:
            return value.astype(dtype) if value.dtype.kind == "f" else value

        steps = [float16.Step("", [], [graph.input], "the input", lambda: [rounded(images)])]
        steps += [step for step, _ in graph.operators]
        found = {tensor: graph.constant(tensor) for step in steps for tensor in step.reads}
        constants = {tensor: rounded(value) for tensor, value in found.items() if value is not None}
        return float16.compute(steps, constants, graph.outputs, loud)

    def change_precision(
        self, source: Path, target: Path, precision: str, calibration: np.ndarray | None = None
    ) -> None:
        """Writes the file `target`, of another precision, from one in float32, without TensorFlow."""
        # `"float16"` stores weights as float16, which the runtime widens when it loads the file.
        from ai_edge_litert.tools import flatbuffer_utils
        from ai_edge_quantizer import qtyping, quantizer, recipe_manager

        _separate_buffers(source)
        recipe = recipe_manager.RecipeManager()
        for kind in (qtyping.TFLOperationName.FULLY_CONNECTED, qtyping.TFLOperationName.CONV_2D):
            if precision == "float16":
                recipe.add_weight_only_config(".*", kind, 16, algorithm_key="float_casting")
            elif precision == "dynamic_int8":
                recipe.add_dynamic_config(".*", kind, 8)
            else:
                recipe.add_static_config(".*", kind, 8, 8)
        # The quantizer draws progress bars on standard error, and warns of the memory that calibration takes.
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ranges = None if calibration is None else _ranges(source, recipe, calibration)
            result = quantizer.Quantizer(str(source), recipe.get_quantization_recipe()).quantize(
                ranges, enable_progress_bar=False, enable_progress_report=False
            )
        # Of inner tensors the layer that they come from: full names weigh as much as the graph of a small model.
        model = flatbuffer_utils.read_model_from_bytearray(bytearray(result.quantized_model))
        for graph in model.subgraphs:
            ends = {*map(int, graph.inputs), *map(int, graph.outputs)}
            made = {int(index) for operator in graph.operators for index in operator.outputs}
            for index, tensor in enumerate(graph.tensors):
                layer = (
                    float16.layer_of(tensor.name.decode()).removeprefix(" in ") if index in made and tensor.name else ""
                )
                tensor.name = tensor.name if index in ends else f"model/{layer}/" if layer else None
        flatbuffer_utils.write_model(model, str(target))
