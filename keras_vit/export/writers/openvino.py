"""OpenVINO: two files, `.xml` and `.bin`, for Intel's processors and graphics."""

import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

from keras_vit.export.metadata import as_strings
from keras_vit.export.signature import INPUT, Signature
from keras_vit.export.writers.tensorflow_function import tensorflow_module


def write(model: Any, signature: Signature, path: Path) -> None:
    """Writes `path` and the `.bin` file beside it."""
    # OpenVINO's converter reports to its makers, from a forked process, where this package can be imported.
    sys.modules.setdefault("openvino_telemetry", None)
    import openvino

    converted = openvino.convert_model(tensorflow_module(model, signature).serve)
    converted.inputs[0].get_tensor().set_names({INPUT})
    converted.outputs[0].get_tensor().set_names({signature.output})
    openvino.save_model(converted, str(path), compress_to_fp16=False)


def annotate(path: Path, metadata: dict[str, Any]) -> None:
    """Puts the metadata into the `.xml` file, as OpenVINO's `rt_info` under `model_info`."""
    tree = xml.etree.ElementTree.parse(path)
    root = tree.getroot()
    info = root.find("rt_info")
    info = xml.etree.ElementTree.SubElement(root, "rt_info") if info is None else info
    section = xml.etree.ElementTree.SubElement(info, "model_info")
    for key, value in as_strings(metadata).items():
        xml.etree.ElementTree.SubElement(section, key, value=value)
    tree.write(path, encoding="utf-8", xml_declaration=True)


def operators(path: Path) -> tuple[list[str], list[str]]:
    """The operators of the model, and those of no opset of OpenVINO's."""
    layers = xml.etree.ElementTree.parse(path).getroot().iter("layer")
    used = {(layer.get("type"), layer.get("version", "")) for layer in layers}
    foreign = {name for name, version in used if not version.startswith("opset")}
    return sorted({name for name, _ in used}), sorted(foreign)
