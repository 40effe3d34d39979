"""ONNX: one file for ONNX Runtime, TensorRT and many others."""

import contextlib
import functools
import logging
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export import float16
from keras_vit.export.format import FLATBUFFER, Format, Model, Operators, Precision, Run, Signature, as_strings, batches
from keras_vit.export.formats.frameworks import tensorflow_module

OPSET = 18  # the newest that tf2onnx writes
PRODUCTS = ["MatMul", "Gemm"]
# Layers that stay in float32, because 1 - cosine may be smaller than float16 can tell from 0.
EXACT = "/(unit_patches|distances|anomaly_map|anomaly_score)"


def _nodes(graph: Any) -> Any:
    """Yields all nodes of a graph, each before those of the graphs inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for part in [attribute.g, *attribute.graphs]:
                yield from _nodes(part)


def _erfc(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Replaces a node in tf2onnx's graph `context` by 1 - erf(x)."""
    # TensorFlow writes the exact GELU with erfc, which ONNX does not have. tf2onnx gives `name` and `arguments` as
    # well.
    shape, dtype = context.get_shape(node.output[0]), context.get_dtype(node.output[0])
    context.remove_node(node.name)
    erf = context.make_node("Erf", node.input[:1], shapes=[shape], dtypes=[dtype])
    one = context.make_const(f"{node.name}_one", np.array(1, "float32"))
    context.make_node(
        "Sub", [one.output[0], erf.output[0]], outputs=node.output, name=node.name, shapes=[shape], dtypes=[dtype]
    )


def _layer_normalization(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Replaces what stands for a layer normalisation by ONNX's operator; arguments as of `_erfc`."""
    shape, dtype = context.get_shape(node.output[0]), context.get_dtype(node.output[0])
    attributes = {"epsilon": float(node.get_attr_value("token")), "axis": -1}
    context.remove_node(node.name)
    options = {"outputs": node.output, "name": node.name, "shapes": [shape], "dtypes": [dtype]}
    context.make_node("LayerNormalization", node.input, attr=attributes, **options)


def _run_alone(node: Any, opsets: Any, *values: np.ndarray) -> list[np.ndarray]:
    """What ONNX Runtime returns for a file of one node, all of whose inputs are given; float16 as float32."""
    import onnxruntime
    from onnx import helper

    wide = [x.astype("float32") if x.dtype == np.float16 else x for x in values]
    feeds = dict(zip(filter(None, node.input), wide, strict=True))
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    graph = helper.make_graph([node], "alone", inputs, [*map(helper.make_empty_tensor_value_info, node.output)])
    model = helper.make_model_gen_version(graph, opset_imports=opsets)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run([*node.output], feeds)


def _set_dimensions(value: Any, shape: tuple[int | None, ...]) -> None:
    """Writes the lengths of the axes of an input or output into it: numbers, or names for lengths that are None."""
    names = ("batch", "height", "width", "channels")
    for dimension, length, name in zip(value.type.tensor_type.shape.dim, shape, names, strict=False):
        if length is None:
            dimension.dim_param = name
        else:
            dimension.dim_value = length


def _to_float16(source: Path, target: Path) -> None:
    """Writes a file in which all but input and outputs is float16; OSError, ImportError, the packages' own errors."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = onnx.load_model(str(source))
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    peak = max(float(np.abs(array).max()) for array in arrays if array.dtype.kind == "f" and array.size > 1)
    if peak > float16.LARGEST:  # which the converter would cut to
        raise RuntimeError(
            f"In float16, in which GPUs compute, numbers end at {float16.LARGEST:.0f}, but the weights reach "
            f"{peak:.3g}. Take precision='float32'."
        )
    exact = [node.name for node in model.graph.node if re.search(EXACT, node.name)]
    with _quietly_in(target.parent):
        options = {"max_finite_val": float16.LARGEST, "keep_io_types": True, "node_block_list": exact}
        model = convert_float_to_float16(model, **options)
    # Where two operators that stay in float32 take one value, the converter adds the same cast twice.
    outputs, nodes = set(), []
    for node in model.graph.node:
        if not outputs.intersection(node.output):
            outputs.update(filter(None, node.output))
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save_model(model, str(target))


@contextlib.contextmanager
def _quietly_in(folder: Path) -> Iterator[None]:
    """Within it, temporary files, which are as large as the model, go into a folder, and libraries log errors only."""
    old, tempfile.tempdir = tempfile.tempdir, str(folder)
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        tempfile.tempdir = old
        logging.disable(before)


@contextlib.contextmanager
def _uncopied_constants() -> Iterator[None]:
    """Within it, the passes of tf2onnx do not copy the weights."""
    # Each pass writes each constant into its node again, and protobuf frees none of the copies: 15 GB for a ViT-B/16.
    # A file gets the constants from elsewhere.
    from tf2onnx.graph import Node

    update = Node.update_proto
    Node.update_proto = lambda node, *storage: None if node.is_const() else update(node, *storage)
    try:
        yield
    finally:
        Node.update_proto = update


_NEEDS = (("onnx", "onnxruntime"), "onnx")


class ONNX(Format):
    """A file for ONNX Runtime and others, `.onnx`."""

    name = "onnx"
    suffix = ".onnx"
    backend = "tensorflow"
    needs = ("tensorflow", "tf2onnx", "onnx", "onnxruntime")
    extra = "onnx"
    runtime = ("onnxruntime",)
    precisions = {
        "float32": Precision(),
        "float16": Precision(*_NEEDS),
        "bfloat16": Precision(reason="ONNX Runtime has no bfloat16 convolution on CPUs: take float16."),
        "dynamic_int8": Precision(*_NEEDS),
        "int8": Precision(*_NEEDS, calibration=True),
    }
    largest = FLATBUFFER
    gpu = ("float16",)

    def write(self, model: Model, signature: Signature, path: Path) -> None:
        import onnx
        import tf2onnx

        module = tensorflow_module(model, signature, self.name)
        with _quietly_in(path.parent), _uncopied_constants():
            proto, _ = tf2onnx.convert.from_function(
                module.serve,
                input_signature=module.serve.input_signature,
                opset=OPSET,
                custom_op_handlers={"Erfc": (_erfc, []), "PyFunc": (_layer_normalization, [])},
            )
        # What may have any length gets a name, where tf2onnx says `unk__123`.
        _set_dimensions(proto.graph.input[0], signature.shape)
        for output in proto.graph.output:
            _set_dimensions(output, (signature.batch,))
        proto.producer_name = "keras_vit"
        onnx.save_model(proto, str(path))

    def load(self, path: Path) -> Run:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        (input_,) = session.get_inputs()
        return lambda images: dict(zip(names, session.run(names, {input_.name: images}), strict=True))

    def annotate(self, path: Path, metadata: dict[str, Any]) -> None:
        import onnx

        proto = onnx.load_model(str(path))
        onnx.helper.set_model_props(proto, as_strings(metadata))
        onnx.save_model(proto, str(path))

    def operators(self, path: Path) -> Operators:
        import onnx

        standard, foreign = set(), set()
        for node in _nodes(onnx.load_model(str(path)).graph):
            if node.domain in ("", "ai.onnx"):
                standard.add(node.op_type)
            else:
                foreign.add(f"{node.domain}.{node.op_type}")
        return Operators(sorted(standard | foreign), sorted(foreign))

    def compute(self, path: Path, images: np.ndarray, dtype: Any, loud: float = 0.0) -> float16.Computed:
        import onnx
        from onnxruntime.transformers.onnx_model import OnnxModel

        model = onnx.load_model(str(path))
        OnnxModel(model).topological_sort()  # tf2onnx writes nodes in any order
        graph = model.graph
        steps = [float16.Step("", [], [graph.input[0].name], "the input", lambda: [images])]
        for node in graph.node:
            place = node.op_type + float16.layer_of(node.output[0].partition(":")[0])
            run = functools.partial(_run_alone, node, model.opset_import)
            steps.append(float16.Step(node.op_type, [*filter(None, node.input)], [*node.output], place, run))
        constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
        return float16.compute(steps, constants, {output.name: output.name for output in graph.output}, loud)

    def change_precision(
        self, source: Path, target: Path, precision: str, calibration: np.ndarray | None = None
    ) -> None:
        """Writes the file `target`, of another precision, from one in float32, with the tools of ONNX Runtime.

        `"float16"`: all computes in float16. `"dynamic_int8"`: weights of matrix products are stored in 8 bits, and
        what they are multiplied with is quantized when it is there; convolutions stay in float32, because ONNX
        Runtime's integer convolution is slower.
        """
        if precision == "float16":
            _to_float16(source, target)
            return
        import onnx
        from onnxruntime import quantization

        model = onnx.load_model(str(source))
        # Unsigned: with signed weights, processors without VNNI add pairs of products in 16 bits, which overflow. The
        # error was three to six times as large there, and not detected by anything. The products of attention stay in
        # float32.
        unsigned, extra = quantization.QuantType.QUInt8, {"MatMulConstBOnly": True}
        options: dict[str, Any] = {"per_channel": True, "weight_type": unsigned}
        with _quietly_in(target.parent):
            if precision == "dynamic_int8":
                options |= {"op_types_to_quantize": PRODUCTS, "extra_options": extra}
                quantization.quantize_dynamic(model, str(target), **options)
                return

            class Images(quantization.CalibrationDataReader):
                # The length of a batch is 0 where any number will do.
                parts = batches(calibration, model.graph.input[0].type.tensor_type.shape.dim[0].dim_value or 1)

                def get_next(self) -> dict[str, np.ndarray] | None:
                    part = next(self.parts, None)
                    return None if part is None else {"images": part}

            # A product's output is a float32 sum already: rounding it again would cost half of the accuracy.
            extra |= {"OpTypesToExcludeOutputQuantization": PRODUCTS}
            options |= {
                "op_types_to_quantize": [*PRODUCTS, "Conv"],
                "activation_type": unsigned,
                "extra_options": extra,
            }
            options |= {"quant_format": quantization.QuantFormat.QDQ}
            quantization.quantize_static(model, str(target), Images(), **options)
