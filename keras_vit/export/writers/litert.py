"""LiteRT (TensorFlow Lite): one file for phones and small boards."""

from pathlib import Path
from typing import Any

from keras_vit.export.metadata import append_archive
from keras_vit.export.signature import Signature
from keras_vit.export.writers.tensorflow_function import tensorflow_module


def write(model: Any, signature: Signature, path: Path) -> None:
    """Writes the file, with one signature, `serving_default`.

    TensorFlow's own operators are not refused here: `operators` names them, and the caller decides.
    """
    import tensorflow as tf

    module = tensorflow_module(model, signature)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.serve.get_concrete_function()], module)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    path.write_bytes(converter.convert())


def annotate(path: Path, metadata: dict[str, Any]) -> None:
    """Appends the metadata as a zip archive, the way TensorFlow Lite packs label files."""
    append_archive(path, metadata)


def operators(path: Path) -> tuple[list[str], list[str]]:
    """The operators of the file, and those that are not builtin: Flex operators run TensorFlow's code."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    used, custom = set(), set()
    for code in model.operatorCodes:
        # The first field had a byte; operators beyond 127 are in the second.
        builtin = max(code.builtinCode, code.deprecatedBuiltinCode)
        if builtin == schema.BuiltinOperator.CUSTOM:
            custom.add(code.customCode.decode())
        else:
            used.add(names[builtin])
    return sorted(used | custom), sorted(custom)
