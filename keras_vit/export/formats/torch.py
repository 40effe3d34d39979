"""PyTorch's exported program: one `.pt2` file, a graph that runs without the model's code."""

from pathlib import Path
from typing import Any

import keras

from keras_vit.export.formats import Format, as_files, only_float32
from keras_vit.export.served_model import Metadata, Signature, serve

LARGEST_BATCH = 2**15


def write(model: keras.Model, signature: Signature, path: Path) -> None:
    """Writes the file with `torch.export`; the input is called `images`, the answer is a plain tensor."""
    import torch

    class Served(torch.nn.Module):
        """The model as a function of its weights.

        PyTorch swaps parameters for symbols while it traces, but Keras's layers hold on to the real ones, and every
        weight would be stored twice. Passing the parameters to the variables avoids that.
        """

        def __init__(self) -> None:
            super().__init__()
            for index, weight in enumerate(model.weights):
                self.register_parameter(
                    f"{index}:{weight.path}".replace(".", "_"), torch.nn.Parameter(weight.value, requires_grad=False)
                )

        def forward(self, images: Any) -> Any:
            """The answers by name, a single one as a plain tensor; PyTorch calls the input by this argument's name."""
            with keras.StatelessScope(list(zip(model.weights, self.parameters(), strict=True))):
                answers = serve(model, signature, images)
                return answers if len(answers) > 1 else answers[signature.outputs[0]]

    batch, height, width, channels = signature.shape
    # Any length but 0 and 1, which PyTorch would take for fixed.
    sample = torch.zeros(
        (batch or 2, height or 64 * signature.steps[0], width or 96 * signature.steps[1], channels),
        dtype=getattr(torch, signature.dtype),
    )
    dynamic = {} if batch else {0: torch.export.Dim("batch", min=1, max=LARGEST_BATCH)}
    if signature.any_size:
        dynamic |= {1: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO}
    with torch.no_grad():
        program = torch.export.export(Served().eval(), (sample,), dynamic_shapes=(dynamic or None,))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # where this package lies on this machine, for every node
    torch.export.save(program, str(path))


def annotate(path: Path, metadata: Metadata) -> None:
    """Adds the metadata as extra files."""
    import torch

    program = torch.export.load(str(path))
    torch.export.save(program, str(path), extra_files=as_files(metadata))


FORMAT = Format(
    name="torch",
    suffix=".pt2",
    backend="torch",
    needs=("torch",),
    extra="torch",
    write=write,
    annotate=annotate,
    precisions=only_float32(
        "an exported program", "cast or quantize the model in PyTorch, or export to onnx or openvino."
    ),
    any_size="PyTorch's tracing cannot make position embeddings for sizes that it does not know yet",
)
