"""`keras-vit convert`."""

import argparse
from pathlib import Path

from keras_vit._arguments import printable
from keras_vit._terminal import megabytes
from keras_vit.cli.command import Answer, Command, check_source, check_target, start_keras


def _arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="IN", help="a file, a folder, an address or a name")
    add("target", metavar="OUT", help="the .keras, .weights.h5, .npz or .safetensors to write, or a folder")
    add(
        "--layout",
        help="of an .npz: vit_jax, big_vision, bit_tf or bit_bv (default: that of the official files); of a "
        ".safetensors or a folder: timm, huggingface or clip",
    )
    add("--overwrite", action="store_true", help="replace OUT if it exists")


def _run(options: argparse.Namespace) -> Answer:
    """Loads the model and writes it in the format that the target names."""
    from keras_vit.checkpoints import check_format, save_model

    check_source(options.source)
    check_format(options.target, options.layout)
    check_target(options.target, options.overwrite)
    start_keras()
    from keras_vit.zoo import load

    save_model(load(options.source), options.target, layout=options.layout, overwrite=options.overwrite)
    target = Path(options.target)
    files = [file for file in target.rglob("*") if file.is_file()] if target.is_dir() else [target]
    size = sum(file.stat().st_size for file in files)
    return Answer({"path": options.target, "bytes": size}, f"Wrote {printable(options.target)} ({megabytes(size)})")


CONVERT = Command(
    "Converts between the files of Keras, the original code, timm, Hugging Face and open_clip, both ways.",
    _arguments,
    _run,
    ("ViT-B_16.npz model.keras", "model.keras folder --layout timm"),
)
