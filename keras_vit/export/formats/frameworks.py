"""Formats that a framework runs itself: TensorFlow's SavedModel, JAX's StableHLO and PyTorch's exported program."""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.export.format import FLATBUFFER, Answers, Format, Model, Run, Signature, as_files, only_float32


def tensorflow_module(model: Model, signature: Signature, format: str) -> Any:
    """Returns a `tf.Module` with one traced function, `serve`, from `images` to a dictionary of outputs."""
    # It holds the weights as plain variables; Keras's `ExportArchive.track` would store each of them twice.
    import tensorflow as tf

    from keras_vit.export import rewrites
    from keras_vit.export.served_model import serve

    def served(images: Any) -> Any:
        answers = serve(model, signature, images)
        return rewrites.separate_outputs(answers) if rewrites.is_for_gpu(signature, format) else answers

    spec = tf.TensorSpec(signature.shape, signature.dtype, name=signature.input)
    module = tf.Module(name="keras_vit")
    module.weights = [weight.value for weight in model.weights]
    module.serve = tf.function(served, input_signature=[spec], autograph=False)
    with rewrites.replaced(model, rewrites.calls_for(signature, format)):
        module.serve.get_concrete_function()  # traced now, and not again
    return module


class SavedModel(Format):
    """A folder for TensorFlow."""

    name = "saved_model"
    suffix = ""
    inside = "saved_model.pb"
    backend = "tensorflow"
    needs = ("tensorflow",)
    extra = "export"
    runtime = ("tensorflow",)
    precisions = only_float32("a SavedModel", "export to litert, which is TensorFlow's way to smaller files.")

    def write(self, model: Model, signature: Signature, path: Path) -> None:
        import tensorflow as tf

        module = tensorflow_module(model, signature, self.name)
        tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})

    def load(self, path: Path) -> Run:
        import tensorflow as tf

        loaded = tf.saved_model.load(str(path))
        (name,) = loaded.signatures["serving_default"].structured_input_signature[1]

        def run(images: np.ndarray) -> Answers:
            # `loaded` is named here, so that it lives as long: a signature does not keep its variables.
            answers = loaded.signatures["serving_default"](**{name: tf.constant(images)})
            return {name: answer.numpy() for name, answer in answers.items()}

        return run

    def annotate(self, path: Path, metadata: dict[str, Any]) -> None:
        folder = path / "assets.extra"  # the folder in a SavedModel that is anybody's to fill
        folder.mkdir(exist_ok=True)
        for name, text in as_files(metadata).items():
            (folder / name).write_text(text, encoding="utf-8")


class StableHLO(Format):
    """A serialized function, `.stablehlo`."""

    name = "stablehlo"
    suffix = ".stablehlo"
    backend = "jax"
    needs = ("jax", "flatbuffers")
    extra = "jax"
    runtime = ("jax", "jax.export")
    precisions = only_float32("a StableHLO program", "export to litert, onnx or openvino.")
    largest = FLATBUFFER

    def write(self, model: Model, signature: Signature, path: Path) -> None:
        import jax
        from jax import export

        from keras_vit.export.served_model import serve

        rows, columns = signature.steps
        # Sizes as multiples of what a patch needs: JAX has to prove that the patches fit.
        free = ("batch", f"{rows}*rows", f"{columns}*columns", "channels")
        names = (length or name for length, name in zip(signature.shape, free, strict=False))
        shape = export.symbolic_shape(", ".join(map(str, names)))
        images = jax.ShapeDtypeStruct(shape, signature.dtype)
        function = jax.jit(functools.partial(serve, model, signature))
        path.write_bytes(export.export(function, platforms=("cpu", "cuda", "tpu"))(images).serialize())

    def load(self, path: Path) -> Run:
        import jax
        from jax import export

        call = jax.jit(export.deserialize(bytearray(Path(path).read_bytes())).call)
        return lambda images: {name: np.asarray(answer) for name, answer in call(images).items()}


class Torch(Format):
    """An exported program, `.pt2`."""

    name = "torch"
    suffix = ".pt2"
    backend = "torch"
    needs = ("torch",)
    extra = "torch"
    runtime = ("torch", "torch.export")
    precisions = only_float32("an exported program", "quantize in PyTorch, or export to onnx or openvino.")
    any_size = "PyTorch's tracing cannot make position embeddings for sizes that it does not know yet"

    def write(self, model: Model, signature: Signature, path: Path) -> None:
        import keras
        import torch

        from keras_vit.export.served_model import serve

        class Served(torch.nn.Module):
            """The model as a function of its weights: PyTorch would store those that Keras holds a second time."""

            def __init__(self) -> None:
                super().__init__()
                for index, weight in enumerate(model.weights):
                    self.register_parameter(
                        f"{index}:{weight.path}".replace(".", "_"),
                        torch.nn.Parameter(weight.value, requires_grad=False),
                    )

            def forward(self, images: Any) -> Any:
                with keras.StatelessScope(list(zip(model.weights, self.parameters(), strict=True))):
                    answers = serve(model, signature, images)
                    return answers if len(answers) > 1 else answers[signature.outputs[0]]

        # Any length but 0 and 1, which PyTorch would take for fixed.
        free = (2, 64 * signature.steps[0], 96 * signature.steps[1], 3)
        shape = tuple(length or other for length, other in zip(signature.shape, free, strict=False))
        sample = torch.zeros(shape, dtype=getattr(torch, signature.dtype))
        dynamic = {} if signature.batch else {0: torch.export.Dim("batch", min=1, max=2**15)}
        if signature.any_size:
            dynamic |= {1: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO}
        with torch.no_grad():
            program = torch.export.export(Served().eval(), (sample,), dynamic_shapes=(dynamic or None,))
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # where this package lies on this machine, for every node
        torch.export.save(program, str(path))

    def load(self, path: Path) -> Run:
        import torch

        module = torch.export.load(str(path)).module()

        def run(images: np.ndarray) -> Answers:
            with torch.inference_mode():
                answers = module(torch.from_numpy(images))
            answers = answers if isinstance(answers, dict) else {"output": answers}  # a single one is a plain tensor
            return {name: answer.float().numpy() for name, answer in answers.items()}

        return run

    def annotate(self, path: Path, metadata: dict[str, Any]) -> None:
        import torch

        torch.export.save(torch.export.load(str(path)), str(path), extra_files=as_files(metadata))
