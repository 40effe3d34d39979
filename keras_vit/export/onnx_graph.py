"""An ONNX file operator by operator in the dtypes that it has, by onnx's own reference evaluator.

ONNX Runtime on CPUs widens float16 to float32 around almost every operator.
"""

from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.float16 import Computed, erf, layer_of

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


def compute(path: Path, images: np.ndarray, loud: float = 0.0) -> Computed:
    """What a file answers to images, in its own dtypes; see `float16.Computed`."""
    import onnx
    from onnx.reference import ReferenceEvaluator
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = onnx.load_model(str(path))
    opset = next(row.version for row in model.opset_import if row.domain == "")
    if loud:
        read = {(node.op_type, node.input[0]) for node in model.graph.node}
        normalized = {name for kind, name in read if kind == "LayerNormalization"}
        normalized |= {name for kind, name in read if kind == "ReduceMean" and ("Sub", name) in read}
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
