"""PyTorch: an exported program, a graph that runs without the model's code."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.export.format import Answers, Format, as_files, only_float32

if TYPE_CHECKING:
    import keras

    from keras_vit.export.served_model import Metadata, Signature


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

    def write(self, model: "keras.Model", signature: "Signature", path: Path) -> None:
        """Writes the model as a program of `torch.export`, with its weights; ImportError or PyTorch's errors."""
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
                """Returns the outputs by name, a single one as a plain tensor. The file's input is called `images`."""
                with keras.StatelessScope(list(zip(model.weights, self.parameters(), strict=True))):
                    answers = serve(model, signature, images)
                    return answers if len(answers) > 1 else answers[signature.outputs[0]]

        batch, height, width, channels = signature.shape
        # Any length but 0 and 1, which PyTorch would take for fixed.
        shape = (batch or 2, height or 64 * signature.steps[0], width or 96 * signature.steps[1], channels)
        sample = torch.zeros(shape, dtype=getattr(torch, signature.dtype))
        dynamic = {} if batch else {0: torch.export.Dim("batch", min=1, max=2**15)}
        if signature.any_size:
            dynamic |= {1: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO}
        with torch.no_grad():
            program = torch.export.export(Served().eval(), (sample,), dynamic_shapes=(dynamic or None,))
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # where this package lies on this machine, for every node
        torch.export.save(program, str(path))

    def load(self, path: Path) -> Callable[[np.ndarray], Answers]:
        """Opens a file with PyTorch; returns a function from a batch of images to outputs by name."""
        import torch

        module = torch.export.load(str(path)).module()

        def run(images: np.ndarray) -> Answers:
            with torch.inference_mode():
                answers = module(torch.from_numpy(images))
            answers = answers if isinstance(answers, dict) else {"output": answers}  # a single one is a plain tensor
            return {name: answer.float().numpy() for name, answer in answers.items()}

        return run

    def annotate(self, path: Path, metadata: "Metadata") -> None:
        """Writes the file again, with the metadata as extra files; ImportError or PyTorch's errors if it cannot."""
        import torch

        torch.export.save(torch.export.load(str(path)), str(path), extra_files=as_files(metadata))
