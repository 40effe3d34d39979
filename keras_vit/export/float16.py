"""What a file computes in float16, as GPUs do: the check that a runtime on a CPU cannot make.

ONNX files by onnx's reference evaluator: ONNX Runtime on CPUs widens float16 to float32 around almost every operator.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np

LARGEST = 65504.0  # of float16
TOLERANCE = 2e-2  # largest difference to the model, in relation to its largest answer
LOUD = 300.0  # added to one channel of what each normalisation reads: as loud as DINOv2's, CLIP's and SAM's


@dataclasses.dataclass
class Computed:
    """Answers by name, and the largest magnitude that came up on the way, with the operator that it came from."""

    answers: dict[str, np.ndarray]
    peak: float = 0.0
    place: str = ""

    def see(self, value: Any, place: str) -> None:
        """Takes a value into account; the first that is not finite is the peak, as infinity."""
        if value.dtype.kind != "f" or not value.size or not np.isfinite(self.peak):
            return
        peak = float(max(value.max(), -value.min()))
        if not peak <= self.peak:
            self.peak, self.place = (peak if np.isfinite(peak) else np.inf), place


def layer_of(name: str) -> str:
    """The layer of a value that TensorFlow named, such as " in block_0/attention"; "" where there is none."""
    *_, name = [part for part in name.split(";") if part] or [""]
    model, *parts = name.removeprefix("StatefulPartitionedCall/").split("/")[:-1] or [""]
    if parts and re.search(r"_\d+$", model) and re.search(r"_\d+$", parts[0]):  # Keras counts the calls of a layer
        parts = [re.sub(r"_\d+$", "", part) for part in parts]
    return f" in {'/'.join(parts)}" if parts else ""


def erf(x: np.ndarray) -> np.ndarray:
    """The error function within 2e-7 (Abramowitz and Stegun, 7.1.26)."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.sign(x) * (1 - series * np.exp(-x * x))


def distance(answers: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """The largest difference in relation to the largest value of an output: of the output that is farthest off."""
    found = []
    for name, values in expected.items():
        off = np.abs(answers[name].reshape(values.shape) - values).max()
        found.append(off / max(np.abs(values).max(), 1e-6))
    return float(np.max(found))


def check(row: Any, path: Path, float32: Path, images: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The answers of a file in float16, and as plain data `peak`, its `place`, and `loud`, the error of loud norms."""
    # `float32` is the same file in float32, which says what is right there. Without a way to compute the file there are
    # no answers, and the reason stands under `why`.
    with np.errstate(all="ignore"):
        try:
            found = row.compute(path, images, np.float16)
            loud, truth = row.compute(path, images, np.float16, LOUD), row.compute(float32, images, np.float32, LOUD)
        except (NotImplementedError, ImportError) as error:
            return {}, {"why": str(error)}
        error = distance(loud.answers, truth.answers)
    return found.answers, {"peak": found.peak, "place": found.place, "loud": error}


OWN = "keras_vit"  # the domain of the operator that makes a value louder
WIDE = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Softmax", "ReduceMean", "ReduceSum", "GlobalAveragePool")


def _operators(opset: int, loud: float) -> list[type]:
    """Operators in place of the evaluator's: sums in float32 that are rounded once, and norms by the specification."""
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops import load_op

    def wide(name: str) -> type:
        class Wide(load_op("", name, opset)):
            op_domain = ""

            def _run(self, *inputs: Any, **options: Any) -> Any:
                given = (x.astype("float32") if x.dtype == np.float16 else x for x in inputs)
                return tuple(y.astype(inputs[0].dtype) for y in super()._run(*given, **options))

        Wide.__name__ = name
        return Wide

    class LayerNormalization(OpRun):
        """The evaluator's own (onnx 1.23) ignores `stash_type` and computes in float16."""

        op_domain = ""

        def _run(self, x: Any, gamma: Any, beta: Any, axis: int, epsilon: float, stash_type: int) -> Any:
            wide = x.astype("float32" if stash_type == 1 else x.dtype)
            centred = wide - wide.mean(axis, keepdims=True)
            y = centred / np.sqrt(np.square(centred).mean(axis, keepdims=True) + wide.dtype.type(epsilon))
            return (y.astype(x.dtype) * gamma + beta,)

    class Erf(OpRun):
        op_domain = ""

        def _run(self, x: Any) -> Any:
            return (erf(x.astype("float32")).astype(x.dtype),)

    class Louder(OpRun):
        op_domain = OWN

        def _run(self, x: Any) -> Any:
            y = x.copy()
            y[..., 0] += x.dtype.type(loud)
            return (y,)

    return [*map(wide, WIDE), LayerNormalization, Erf, Louder]


def compute_onnx(path: Path, images: np.ndarray, loud: float = 0.0) -> Computed:
    """What an ONNX file answers to images, in its own dtypes; see `Computed`."""
    import onnx
    from onnx.reference import ReferenceEvaluator
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = onnx.load_model(str(path))
    opset = next(row.version for row in model.opset_import if row.domain == "")
    if loud:
        read = {(node.op_type, node.input[0]) for node in model.graph.node}
        normalized = {name for kind, name in read if kind == "LayerNormalization"}
        divided = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Div"}
        means = {name for kind, name in read if kind == "ReduceMean" and ("Sub", name) in read}
        normalized |= {divided.get(name, name) for name in means}  # some norms scale by peaks first
        for node in list(model.graph.node):
            for i, name in enumerate(node.output):
                if name in normalized:
                    node.output[i] = f"{name}, quiet"
                    model.graph.node.append(onnx.helper.make_node("Louder", [node.output[i]], [name], domain=OWN))
        model.opset_import.append(onnx.helper.make_opsetid(OWN, 1))
    OnnxModel(model).topological_sort()  # tf2onnx writes nodes in any order
    evaluator = ReferenceEvaluator(model, new_ops=_operators(opset, loud))
    feeds = {model.graph.input[0].name: images}
    values = evaluator.run(None, feeds, intermediate=True)
    computed = Computed({output.name: values[output.name].astype("float32") for output in model.graph.output})
    for node in model.graph.node:
        for name in node.output:
            if name:
                computed.see(values[name], f"{node.op_type}{layer_of(name.partition(':')[0])}")
    return computed
