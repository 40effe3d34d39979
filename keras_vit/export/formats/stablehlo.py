"""JAX's exported function: one file of StableHLO, with the weights inside, for CPUs, GPUs and TPUs."""

import functools
from pathlib import Path

import keras

from keras_vit.export.formats import FLATBUFFER, Format, append_archive, only_float32
from keras_vit.export.served_model import Signature, serve

PLATFORMS = ("cpu", "cuda", "tpu")


def write(model: keras.Model, signature: Signature, path: Path) -> None:
    """Writes the file with `jax.export`: a function from images to a dictionary with the answers."""
    import jax
    from jax import export

    batch, height, width, channels = signature.shape
    rows, columns = signature.steps
    # Sizes as multiples of what a patch needs: JAX has to prove that the patches fit.
    names = (batch or "batch", height or f"{rows}*rows", width or f"{columns}*columns", channels)
    shape = export.symbolic_shape(", ".join(map(str, names)))
    images = jax.ShapeDtypeStruct(shape, signature.dtype)
    function = jax.jit(functools.partial(serve, model, signature))
    path.write_bytes(export.export(function, platforms=PLATFORMS)(images).serialize())


FORMAT = Format(
    name="stablehlo",
    suffix=".stablehlo",
    backend="jax",
    needs=("jax", "flatbuffers"),
    extra="jax",
    write=write,
    annotate=append_archive,  # which JAX does not look at
    precisions=only_float32("a StableHLO program", "export to litert, onnx or openvino."),
    largest=FLATBUFFER,
)
