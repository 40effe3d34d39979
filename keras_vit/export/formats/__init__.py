"""What a format is, and the three that a framework writes and runs by itself: SavedModel, `torch.export`, StableHLO.

LiteRT, ONNX and OpenVINO have a file each, with the same things: `write`, `load` and `FORMAT`, a row of `FORMATS`.
Nothing in this folder imports Keras or a framework before it is used: files are checked in a process with their own
runtime alone. Metadata goes where a format has a place for it: as strings, as files, or as an archive at the end.
"""

import dataclasses
import functools
import importlib.util
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from keras_vit._arguments import require_packages

if TYPE_CHECKING:
    import keras

    from keras_vit.export.served_model import Metadata, Signature

FLATBUFFER = 2**31  # bytes that the offsets in a file can reach; also what a protobuf message may have
Answers: TypeAlias = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Precision:
    """One precision of one format: what it needs, or why there is no such file.

    Attributes:
        packages: What has to be installed.
        extra: The extra of keras-vit that brings it.
        calibration: Whether images are needed.
        reason: Why there is no such file, and what to do instead; empty where there is one.
    """

    packages: tuple[str, ...] = ()
    extra: str = ""
    calibration: bool = False
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Format:
    """One way to ship a model.

    Attributes:
        name: The format's name.
        suffix: What the path has to end in; empty for a folder.
        backend: The Keras backend that writes it.
        needs: Packages that have to be installed, to write the file and to check it.
        extra: The extra of keras-vit that brings them.
        runtime: Modules that `load` imports.
        write: Writes a model as the signature says to a path, in float32, under the format's backend.
        load: Opens a file with its runtime: gives a function from a batch of images, float32 or uint8 as the file
            takes them, to the answers by name. It can be copied into a program that ships the file.
        annotate: Puts metadata into a written file, where the format has a place for it.
        precisions: The precisions that a file can have, and those that it cannot have.
        operators: The names of the operators in a file, and of those among them that are not the runtime's own.
            None where any runtime knows all that a file can hold.
        change_precision: Makes a file of another precision from one in float32, without the model: the two paths, the
            precision, and calibration images as the file takes them or None. None where there is only float32.
        beside: Suffixes of further files that lie beside the one at the path.
        largest: Bytes of weights that a file can hold; None for any number.
        any_size: Why a Vision Transformer for images of any size cannot be written; None where it can.
        note: What the runtime does by itself that a check does not measure; None for nothing.

    Examples:
        >>> export.FORMATS["litert"].suffix
        '.tflite'
    """

    name: str
    suffix: str
    backend: str
    needs: tuple[str, ...]
    extra: str
    runtime: tuple[str, ...]
    write: Callable[["keras.Model", "Signature", Path], None]
    load: Callable[[Path], Callable[[np.ndarray], Answers]]
    annotate: Callable[[Path, "Metadata"], None]
    precisions: dict[str, Precision]
    operators: Callable[[Path], tuple[list[str], list[str]]] | None = None
    change_precision: Callable[[Path, Path, str, np.ndarray | None], None] | None = None
    beside: tuple[str, ...] = ()
    largest: int | None = None
    any_size: str | None = None
    note: str | None = None

    def run(self, path: Path, images: np.ndarray) -> Answers:
        """The answers of a written file to a batch of images by name, computed in this process without the model."""
        return self.load(path)(images)

    def files(self, path: Path) -> list[Path]:
        """Everything that an export to a path leaves: first what lies beside it, and the path itself last."""
        return [*(path.with_suffix(suffix) for suffix in self.beside), path]

    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def precision(self, name: str) -> Precision:
        """The row of a precision; ValueError if no such file can be made, ImportError if a package is missing."""
        offered = [known for known, row in self.precisions.items() if not row.reason]
        row = self.precisions.get(name)
        if row is None or row.reason:
            words = f"precision must be one of {offered} for the format {self.name!r}, but {name!r} was given"
            raise ValueError(f"{words}: {row.reason}" if row else f"{words}.")
        require_packages(f"The precision {name!r} of {self.name!r}", row.packages, row.extra)
        return row


def as_strings(metadata: "Metadata") -> dict[str, str]:
    """The metadata as pairs of strings: anything but strings as JSON."""
    return {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in metadata.items()}


def as_files(metadata: "Metadata") -> dict[str, str]:
    """The metadata for a format that stores files: one of JSON, and one with a class name on every line."""
    files = {"keras_vit.json": json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"}
    if "class_names" in metadata:
        files["labels.txt"] = "\n".join(metadata["class_names"]) + "\n"
    return files


def append_archive(path: Path, metadata: "Metadata") -> None:
    """Appends the files of the metadata as a zip archive, which formats that are read from the front ignore."""
    with zipfile.ZipFile(path, "a") as archive:
        for name, text in as_files(metadata).items():
            # With a fixed date, so that the same model gives the same bytes.
            archive.writestr(zipfile.ZipInfo(name), text)


def batches(images: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """The images in batches of one size; the first images come again to fill the last one."""
    for start in range(0, len(images), size):
        yield images.take(range(start, start + size), axis=0, mode="wrap")


def _only_float32(what: str, instead: str) -> dict[str, Precision]:
    """The precisions of a format whose programs name the dtype of every step."""
    reason = f"{what} names the dtype of each of its operations, so the weights cannot change without them: {instead}"
    others = ("float16", "bfloat16", "dynamic_int8", "int8")
    return {"float32": Precision(), **dict.fromkeys(others, Precision(reason=reason))}


# TensorFlow: a SavedModel, and the function that LiteRT, ONNX and OpenVINO files are made from as well


def tensorflow_module(model: "keras.Model", signature: "Signature", *, whole_products: bool = True) -> Any:
    """A `tf.Module` with one traced function, `serve`, from `images` to a dictionary with the answers.

    It holds the weights as plain variables; Keras's `ExportArchive.track` would store each of them twice. With
    `whole_products`, a product of a sequence and a matrix is one operation, as other runtimes like it.
    """
    import keras
    import tensorflow as tf

    from keras_vit._keras import layers_inside
    from keras_vit.export.served_model import INPUT, serve

    spec = tf.TensorSpec(signature.shape, signature.dtype, name=INPUT)
    module = tf.Module(name="keras_vit")
    module.weights = [weight.value for weight in model.weights]
    module.serve = tf.function(functools.partial(serve, model, signature), input_signature=[spec], autograph=False)
    dense = [layer for layer in layers_inside(model) if isinstance(layer, keras.layers.Dense) and whole_products]
    dense = [layer for layer in dense if "call" not in vars(layer)]  # one that somebody has replaced stays
    try:
        for layer in dense:
            layer.call = functools.partial(_whole_product, layer)
        module.serve.get_concrete_function()  # traced now, and not again
    finally:
        for layer in dense:
            del layer.call
    return module


def _whole_product(layer: Any, inputs: Any, training: bool | None = None) -> Any:
    """What `keras.layers.Dense.call` computes, as one operation.

    Keras 3.15 multiplies a sequence by a matrix with `tf.tensordot`, which flattens the sequence to a shape that it
    computes at run time: ten operations, which converters keep, and which cut the graph into pieces for LiteRT.
    """
    import keras
    import tensorflow as tf

    outputs = tf.matmul(inputs, keras.ops.convert_to_tensor(layer.kernel))
    outputs = outputs if layer.bias is None else keras.ops.add(outputs, layer.bias)
    return layer.activation(outputs)


def _write_saved_model(model: "keras.Model", signature: "Signature", path: Path) -> None:
    import tensorflow as tf

    module = tensorflow_module(model, signature, whole_products=False)
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})


def _load_saved_model(path: Path) -> Callable[[np.ndarray], Answers]:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))

    def run(images: np.ndarray) -> Answers:
        # `loaded` is named here, so that it lives as long as this function: a signature does not keep its variables.
        answers = loaded.signatures["serving_default"](images=tf.constant(images))
        return {name: answer.numpy() for name, answer in answers.items()}

    return run


def _annotate_saved_model(path: Path, metadata: "Metadata") -> None:
    folder = path / "assets.extra"  # the folder in a SavedModel that is anybody's to fill
    folder.mkdir(exist_ok=True)
    for name, text in as_files(metadata).items():
        (folder / name).write_text(text, encoding="utf-8")


SAVED_MODEL = Format(
    name="saved_model",
    suffix="",
    backend="tensorflow",
    needs=("tensorflow",),
    extra="export",
    runtime=("tensorflow",),
    write=_write_saved_model,
    load=_load_saved_model,
    annotate=_annotate_saved_model,
    precisions=_only_float32("a SavedModel", "export to litert, which is TensorFlow's way to smaller files."),
)


# PyTorch: an exported program, a graph that runs without the model's code


def _write_torch(model: "keras.Model", signature: "Signature", path: Path) -> None:
    import keras
    import torch

    from keras_vit.export.served_model import serve

    class Served(torch.nn.Module):
        """The model as a function of its weights, of which PyTorch would store those that Keras holds a second time."""

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


def _load_torch(path: Path) -> Callable[[np.ndarray], Answers]:
    import torch

    module = torch.export.load(str(path)).module()

    def run(images: np.ndarray) -> Answers:
        with torch.inference_mode():
            answers = module(torch.from_numpy(images))
        answers = answers if isinstance(answers, dict) else {"output": answers}  # a single one is a plain tensor
        return {name: answer.float().numpy() for name, answer in answers.items()}

    return run


def _annotate_torch(path: Path, metadata: "Metadata") -> None:
    import torch

    torch.export.save(torch.export.load(str(path)), str(path), extra_files=as_files(metadata))


TORCH = Format(
    name="torch",
    suffix=".pt2",
    backend="torch",
    needs=("torch",),
    extra="torch",
    runtime=("torch", "torch.export"),
    write=_write_torch,
    load=_load_torch,
    annotate=_annotate_torch,
    precisions=_only_float32("an exported program", "quantize in PyTorch, or export to onnx or openvino."),
    any_size="PyTorch's tracing cannot make position embeddings for sizes that it does not know yet",
)


# JAX: an exported function in StableHLO, with the weights inside, for CPUs, GPUs and TPUs


def _write_stablehlo(model: "keras.Model", signature: "Signature", path: Path) -> None:
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


def _load_stablehlo(path: Path) -> Callable[[np.ndarray], Answers]:
    import jax
    from jax import export

    call = jax.jit(export.deserialize(bytearray(Path(path).read_bytes())).call)
    return lambda images: {name: np.asarray(answer) for name, answer in call(images).items()}


STABLEHLO = Format(
    name="stablehlo",
    suffix=".stablehlo",
    backend="jax",
    needs=("jax", "flatbuffers"),
    extra="jax",
    runtime=("jax", "jax.export"),
    write=_write_stablehlo,
    load=_load_stablehlo,
    annotate=append_archive,  # which JAX does not look at
    precisions=_only_float32("a StableHLO program", "export to litert, onnx or openvino."),
    largest=FLATBUFFER,
)
