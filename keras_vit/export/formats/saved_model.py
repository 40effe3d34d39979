"""TensorFlow's SavedModel: a folder for TensorFlow, TensorFlow Serving and TensorFlow.js."""

from pathlib import Path

from keras_vit.export.formats.format import Format, as_files, only_float32
from keras_vit.export.formats.tensorflow_function import tensorflow_module
from keras_vit.export.served_model import Metadata, Model, Signature


def write(model: Model, signature: Signature, path: Path) -> None:
    """Writes the folder, with one signature, `serving_default`."""
    import tensorflow as tf

    module = tensorflow_module(model, signature, whole_products=False)
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})


def annotate(path: Path, metadata: Metadata) -> None:
    """Puts the metadata into `assets.extra/`, the folder in a SavedModel that is anybody's to fill."""
    folder = path / "assets.extra"
    folder.mkdir(exist_ok=True)
    for name, text in as_files(metadata).items():
        (folder / name).write_text(text, encoding="utf-8")


def operators(path: Path) -> tuple[list[str], list[str]]:
    """The operators of the serving function; TensorFlow knows them all."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    (graph,) = (meta.graph_def for meta in saved.meta_graphs)
    nodes = (node for function in graph.library.function for node in function.node_def)
    functions = {function.signature.name for function in graph.library.function}
    return sorted({node.op for node in nodes} - functions), []


FORMAT = Format(
    name="saved_model",
    suffix="",
    backend="tensorflow",
    runtime="saved_model",
    needs=("tensorflow",),
    extra="export",
    write=write,
    annotate=annotate,
    operators=operators,
    precisions=only_float32("a SavedModel", "export to litert, which is TensorFlow's way to smaller files."),
)
