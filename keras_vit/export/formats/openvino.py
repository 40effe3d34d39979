"""OpenVINO: two files, `.xml` and `.bin`, for Intel's processors and graphics."""

import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.format import Answers, Format, Model, Operators, Precision, Run, Signature, as_strings
from keras_vit.export.formats.frameworks import tensorflow_module


def symmetric_int8(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns values as int8 of -127..127, and float32 scales to multiply them with, one for each index of `axis`."""
    others = tuple(other for other in range(values.ndim) if other != axis)
    scales = np.abs(values).max(others, keepdims=True) / 127
    scales = np.where(scales > 0, scales, 1).astype("float32")
    return np.rint(values / scales).astype("int8"), scales


def _weights(operator: Any) -> tuple[np.ndarray, int] | None:
    """Returns the float32 weights of a matrix product or convolution and the axis of their outputs."""
    kind = operator.get_type_name()
    if kind not in ("MatMul", "Convolution"):
        return None
    node = operator.input_value(1).get_node()
    if node.get_type_name() != "Constant" or node.get_element_type().get_type_name() != "f32":
        return None
    values = node.get_data()
    if kind == "Convolution":
        return values, 0
    return values, values.ndim - (2 if operator.get_attributes()["transpose_b"] else 1)


_NEEDS = (("openvino",), "openvino")


class OpenVINO(Format):
    """Two files for Intel's processors and graphics, `.xml` and `.bin`."""

    name = "openvino"
    suffix = ".xml"
    beside = (".bin",)
    backend = "tensorflow"
    needs = ("tensorflow", "openvino")
    extra = "openvino"
    runtime = ("openvino",)
    note = (
        "on processors with bfloat16, OpenVINO computes in it unless the file is loaded with "
        "INFERENCE_PRECISION_HINT=f32, as it was for this check"
    )
    precisions = {
        "float32": Precision(),
        "float16": Precision(*_NEEDS),
        "bfloat16": Precision(reason="OpenVINO decides when it loads a file (INFERENCE_PRECISION_HINT): take float16."),
        "dynamic_int8": Precision(*_NEEDS),
        "int8": Precision(reason="NNCF calibrates the float32 file; dynamic_int8 is as small without it."),
    }

    def import_runtime(self) -> None:
        """Imports OpenVINO, and hides the package with which it would report to its makers from a forked process."""
        sys.modules.setdefault("openvino_telemetry", None)  # ty: ignore[no-matching-overload]
        super().import_runtime()

    def write(self, model: Model, signature: Signature, path: Path) -> None:
        self.import_runtime()
        import openvino

        # There OpenVINO 2026.4 fails as it asks for TensorFlow's version: exec("del ...").
        if sys.version_info >= (3, 13):
            import tensorflow as tf
            from openvino.frontend.tensorflow import utils

            utils.get_environment_setup = lambda framework: {"tensorflow": tf.__version__}

        converted = openvino.convert_model(tensorflow_module(model, signature, self.name).serve)
        converted.inputs[0].get_tensor().set_names({"images"})
        for output, name in zip(converted.outputs, sorted(signature.outputs), strict=True):  # as TensorFlow orders them
            output.get_tensor().set_names({name})
        openvino.save_model(converted, str(path), compress_to_fp16=False)

    def load(self, path: Path) -> Run:
        self.import_runtime()
        import openvino

        # Without the hint, processors that have bfloat16 units compute in bfloat16: faster, with errors of 5e-2.
        model = openvino.Core().read_model(str(path))
        names = [output.get_any_name() for output in model.outputs]  # compiled, outputs have other names as well
        compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

        def run(images: np.ndarray) -> Answers:
            answers = compiled(images)
            return {name: np.asarray(answers[place]) for place, name in enumerate(names)}

        return run

    def annotate(self, path: Path, metadata: dict[str, Any]) -> None:
        tree = xml.etree.ElementTree.parse(path)
        root = tree.getroot()
        info = root.find("rt_info")
        info = xml.etree.ElementTree.SubElement(root, "rt_info") if info is None else info
        section = xml.etree.ElementTree.SubElement(info, "model_info")
        for key, value in as_strings(metadata).items():
            xml.etree.ElementTree.SubElement(section, key, value=value)
        tree.write(path, encoding="utf-8", xml_declaration=True)

    def operators(self, path: Path) -> Operators:
        layers = xml.etree.ElementTree.parse(path).getroot().iter("layer")
        kinds = {(layer.get("type", ""), layer.get("version", "")) for layer in layers}
        foreign = {name for name, version in kinds if not version.startswith("opset")}
        return Operators(sorted({name for name, _ in kinds}), sorted(foreign))

    def change_precision(
        self, source: Path, target: Path, precision: str, calibration: np.ndarray | None = None
    ) -> None:
        """Writes the file `target` and its `.bin`, with smaller constants, from one in float32, by OpenVINO itself."""
        # In float16 the runtime widens them when it loads the file. With `"dynamic_int8"`, the weights of matrix
        # products and convolutions are int8, everything else stays float32; the runtime quantizes what the weights are
        # multiplied with when it has it, where the processor has such instructions, and widens the weights elsewhere.
        import openvino
        from openvino import opset13

        model = openvino.Core().read_model(str(source))
        if precision == "dynamic_int8":
            for operator in model.get_ordered_ops():
                found = _weights(operator)
                if found is None:
                    continue
                integers, scales = symmetric_int8(*found)
                widened = opset13.convert(opset13.constant(integers, dtype=np.int8), "f32")
                weights = opset13.multiply(widened, opset13.constant(scales))
                operator.input(1).replace_source_output(weights.output(0))
        openvino.save_model(model, str(target), compress_to_fp16=precision == "float16")
