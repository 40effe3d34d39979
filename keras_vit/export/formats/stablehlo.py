"""JAX: an exported function in StableHLO, with the weights inside, for CPUs, GPUs and TPUs."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keras_vit.export.format import FLATBUFFER, Answers, Format, append_archive, only_float32

if TYPE_CHECKING:
    import keras

    from keras_vit.export.served_model import Metadata, Signature


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

    def write(self, model: "keras.Model", signature: "Signature", path: Path) -> None:
        """Writes the model as a function of images, for CPUs, GPUs and TPUs; OSError, ImportError or JAX's errors."""
        import jax
        from jax import export

        from keras_vit.export.served_model import serve

        batch, height, width, channels = signature.shape
        rows, columns = signature.steps
        # Sizes as multiples of what a patch needs: JAX has to prove that the patches fit.
        names = (batch or "batch", height or f"{rows}*rows", width or f"{columns}*columns", channels)
        shape = export.symbolic_shape(", ".join(map(str, names)))
        images = jax.ShapeDtypeStruct(shape, signature.dtype)
        function = jax.jit(functools.partial(serve, model, signature))
        path.write_bytes(export.export(function, platforms=("cpu", "cuda", "tpu"))(images).serialize())

    def load(self, path: Path) -> Callable[[np.ndarray], Answers]:
        """Opens a file with JAX; returns a function from a batch of images to outputs by name."""
        import jax
        from jax import export

        call = jax.jit(export.deserialize(bytearray(Path(path).read_bytes())).call)
        return lambda images: {name: np.asarray(answer) for name, answer in call(images).items()}

    def annotate(self, path: Path, metadata: "Metadata") -> None:
        """Appends the metadata to the file as a zip archive; OSError if it cannot be written."""
        append_archive(path, metadata)  # which JAX does not look at
