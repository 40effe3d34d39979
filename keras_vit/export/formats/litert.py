"""LiteRT (TensorFlow Lite): one file for phones and small boards.

Other precisions are made by ai-edge-quantizer. With int8, matrix products with weights and convolutions are integer;
layer normalisation, softmax, GELU and the products of attention compute in float32: they are a small part of the
time, and most of the error where all is integers.
"""

import contextlib
import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export import litert_graph
from keras_vit.export.float16 import layer_of
from keras_vit.export.format import FLATBUFFER, Answers, Format, Model, Operators, Precision, Run, Signature, batches
from keras_vit.export.formats.frameworks import tensorflow_module

CALIBRATION_BATCH = 4  # images at a time: all values of all layers are kept meanwhile


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
        graph = litert_graph.Graph(path)
        return Operators(sorted(graph.kinds), sorted(graph.custom))

    off_gpu = staticmethod(litert_graph.off_gpu)
    compute = staticmethod(litert_graph.compute)

    def change_precision(
        self, source: Path, target: Path, precision: str, calibration: np.ndarray | None = None
    ) -> None:
        """Writes the file `target`, of another precision, from one in float32, without TensorFlow."""
        # `"float16"` stores weights as float16, which the runtime widens when it loads the file.
        from ai_edge_litert.tools import flatbuffer_utils
        from ai_edge_quantizer import qtyping, quantizer, recipe_manager

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
                layer = layer_of(tensor.name.decode()).removeprefix(" in ") if index in made and tensor.name else ""
                tensor.name = tensor.name if index in ends else f"model/{layer}/" if layer else None
        flatbuffer_utils.write_model(model, str(target))
