"""JAX's exported function: one file of StableHLO, with the weights inside, for CPUs, GPUs and TPUs."""

from pathlib import Path
from typing import Any

from keras_vit.export.formats.format import FLATBUFFER, Format, append_archive, only_float32
from keras_vit.export.served_model import Model, Signature, serve

PLATFORMS = ("cpu", "cuda", "tpu")


def write(model: Model, signature: Signature, path: Path) -> None:
    """Writes the file with `jax.export`: a function from images to a dictionary with the answers."""
    import jax
    from jax import export

    batch, height, width, channels = signature.shape
    rows, columns = signature.steps
    # Sizes as multiples of what a patch needs: JAX has to prove that the patches fit.
    names = (batch or "batch", height or f"{rows}*rows", width or f"{columns}*columns", channels)
    shape = export.symbolic_shape(", ".join(map(str, names)))
    images = jax.ShapeDtypeStruct(shape, signature.dtype)
    function = jax.jit(lambda images: {signature.output: serve(model, images)})
    path.write_bytes(export.export(function, platforms=PLATFORMS)(images).serialize())


def operators(path: Path) -> tuple[list[str], list[str]]:
    """The operators of the function; any runtime of StableHLO knows them all."""
    from jax import export
    from jax.extend.mlir import ir
    from jax.extend.mlir.dialects import stablehlo

    exported = export.deserialize(bytearray(path.read_bytes()))
    with ir.Context() as context:
        stablehlo.register_dialect(context)
        module = stablehlo.deserialize_portable_artifact(context, exported.mlir_module_serialized)
        names = set()

        def visit(operation: Any) -> Any:
            names.add(operation.name)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
    return sorted(name.removeprefix("stablehlo.") for name in names if name.startswith("stablehlo.")), []


FORMAT = Format(
    name="stablehlo",
    suffix=".stablehlo",
    backend="jax",
    runtime="stablehlo",
    needs=("jax", "flatbuffers"),
    extra="jax",
    write=write,
    annotate=append_archive,  # which JAX does not look at
    operators=operators,
    precisions=only_float32("a StableHLO program", "export to litert, onnx or openvino."),
    largest=FLATBUFFER,
)
