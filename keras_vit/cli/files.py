"""The commands about models and their files: list, info, download, inspect, convert and export."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from cyclopts import Parameter

from keras_vit._arguments import printable, require_packages
from keras_vit._terminal import megabytes, pairs_table
from keras_vit.cli import inputs
from keras_vit.cli.program import MANY, AtLeast0, Count, Result, SizeOrDynamic, command

# Of `keras_vit.export.FORMATS`, which the help need not wait for; a test holds them together.
SUFFIXES = ".tflite, .onnx, .xml (OpenVINO), .pt2 (PyTorch) or .stablehlo (JAX)"


@command("B/16", "--family DINOv2")
def list_(query: str | None = None, /, *, family: str | None = None, models: bool = False) -> Result:
    """The published checkpoints, or with --models the variants.

    Args:
        query: a variant such as B/16, or part of a name (default: all)
        family: only those of a family, such as DINOv2 or hybrid
        models: list the variants instead of checkpoints
    """
    from keras_vit.checkpoints import list_models, list_weights

    rows = (list_models if models else list_weights)(query, family)
    return Result([*rows], rows)


@command("runs/finetune/model.keras", "hf://google/vit-base-patch16-224")
def info(source: str | None = None, /, *, like: inputs.Like = None) -> Result:
    """What a checkpoint file, a model file, or a name of the catalogue is; without one, what computes here.

    Args:
        source: a file, an address or a name
    """
    from keras_vit import checkpoints
    from keras_vit.checkpoints.catalogue import SHIPPED

    if source is None and like is None:
        inputs.start_keras()
        import keras

        import keras_vit
        from keras_vit.models.changes import arithmetic

        about = {"keras_vit": keras_vit.__version__, "Keras": keras.__version__, "backend": keras.backend.backend()}
        words = ", ".join(f"{name}={value}" for name, value in arithmetic().items())
        return Result(about | arithmetic(), pairs_table("this machine", about | {"arithmetic": words}))
    if source is None:
        raise ValueError("--like is for a checkpoint file: name one.")
    is_variant = checkpoints.is_variant(source)
    source = source if is_variant else os.fspath(checkpoints.resolve_source(source))
    is_file = source in SHIPPED or "://" in source or os.path.exists(os.path.expanduser(source))
    if is_file and not checkpoints.is_keras_file(source):
        facts = checkpoints.inspect_checkpoint(checkpoints.find_checkpoint(source), like=like)
        return _description(source, facts.to_dict())
    if like is not None:
        raise ValueError(f"--like is for checkpoint files, but {printable(source)} is not one: leave it out.")
    if is_file:
        return _description(source, _keras_file(os.path.expanduser(source)))
    rows = checkpoints.list_weights(source)
    if is_variant:
        return Result([*rows], rows)
    (row,) = rows
    return Result(row, pairs_table(source, row))


def _keras_file(path: str) -> dict[str, Any]:
    """Returns what a `.keras` or `.weights.h5` file says of its model, for `--json`. Needs no Keras."""
    from keras_vit.checkpoints import config_in_file
    from keras_vit.models import count_weights, variant_of

    config: Any = config_in_file(path)
    if config is None:
        raise ValueError(f"{path} does not contain the name of its model.")
    backbone = getattr(config, "backbone", None)  # of a model with a head for each place
    return {
        "layout": "weights.h5" if path.endswith(".weights.h5") else "keras",
        "variant": variant_of(config) if backbone is None else f"{config.model} on {variant_of(backbone) or 'a ViT'}",
        "parameters": count_weights(config),
        "bytes": os.path.getsize(path),
        "config": config.to_dict(),
    }


def _description(source: str, facts: dict[str, Any]) -> Result:
    """Returns the result of `info` for these facts: the model and its layout first, the names of its classes last."""
    rows = {"model": facts["variant"] or "none of the named variants", "layout": facts["layout"]}
    if "parameters" in facts:
        rows["parameters"] = f"{facts['parameters']:,}"
    rows["size"] = megabytes(facts["bytes"])
    # There may be hundreds of unused arrays; the oddities say how many.
    shown = {"variant", "config", "bytes", "unused", *rows}
    rows |= {name: value for name, value in facts.items() if name not in shown}
    rows |= facts["config"]
    names = rows.pop("class_names", None) or []
    rows["class_names"] = ", ".join(map(str, names[:5]))
    if len(names) > 5:
        rows["class_names"] += f" and {len(names) - 5:,} more"
    return Result(facts, pairs_table(source, rows))


@command("imagenet21k/ViT-B_16")
def download(name: str, /) -> Result:
    """Fetches a checkpoint into the cache and prints where it is.

    Args:
        name: of the catalogue, an address, or a variant, such as ViT-B/16, for its recommended checkpoint
    """
    from keras_vit.checkpoints import find_checkpoint, resolve_source
    from keras_vit.checkpoints.files import weight_files

    path = find_checkpoint(resolve_source(name))
    size = sum(file.stat().st_size for file in weight_files(path))
    return Result({"path": str(path), "bytes": size}, printable(path))


@command("glyphs", "ViT-B/16 --image photo.jpg -o photo.html")
def inspect(
    source: inputs.Weights,
    /,
    *,
    image: Annotated[list[str] | None, MANY] = None,
    output: inputs.Output = "report.html",
    overwrite: inputs.Overwrite = False,
) -> Result:
    """Writes a page that shows a model, and what it makes of images.

    Args:
        image: photos for attention and evidence (default: none)
        output: the page
    """
    from keras_vit._page import check_page_path

    check_page_path(output)
    inputs.check_target(output, overwrite)
    images: dict[str, str] = {}
    for path in inputs.picture_files(image) if image else []:
        name = os.path.basename(path)
        images[name if name not in images else path] = path
    inputs.check_source(source)
    inputs.start_keras()
    from keras_vit.inspection import write_page
    from keras_vit.preprocessing.images import read_picture
    from keras_vit.zoo import load

    model = load(source)
    pixels = {name: read_picture(path, getattr(model.config, "channels", 3)) for name, path in images.items()}
    facts, notes = _facts_and_notes(source)
    title = os.path.basename(os.path.normpath(source)) if os.path.exists(source) else source
    page = write_page(model, output, pixels, title=title, source=facts, notes=notes)
    size = os.path.getsize(page)
    return Result({"page": str(page), "bytes": size, "images": list(images)}, f"Wrote {page} ({megabytes(size)})")


def _facts_and_notes(source: str) -> tuple[dict[str, Any], list[str]]:
    """Returns facts of a checkpoint file by name, and notes on what is odd; none of files of Keras or not on disk."""
    from keras_vit.checkpoints import find_checkpoint, inspect_checkpoint, is_keras_file
    from keras_vit.checkpoints.catalogue import SHIPPED

    if is_keras_file(source) or not (os.path.exists(source) or source in SHIPPED):
        return {}, []
    facts = inspect_checkpoint(find_checkpoint(source)).to_dict()
    del facts["config"]
    notes = [str(note) for note in facts.pop("oddities", None) or ()]
    return {name: value for name, value in facts.items() if value not in (None, [], "")}, notes


@command("model.keras folder --layout timm", "glyphs grey.keras --channels 1")
def convert(
    source: inputs.Weights,
    target: str,
    /,
    *,
    layout: str | None = None,
    like: inputs.Like = None,
    channels: Count | None = None,
    overwrite: inputs.Overwrite = False,
) -> Result:
    """Converts between the files of Keras, the original code, timm, Hugging Face and open_clip, both ways.

    Args:
        target: the .keras, .weights.h5, .npz or .safetensors to write, or a folder
        layout: of an .npz: vit_jax, big_vision, bit_tf or bit_bv (default: as in the official files); of a
            .safetensors or a folder: timm, huggingface or clip (default: a .safetensors of keras_vit, for any model)
        channels: of images that are not red, green and blue (default: the model's)
    """
    from keras_vit.checkpoints import check_format, save_model

    inputs.check_source(source)
    check_format(target, layout)
    inputs.check_target(target, overwrite)
    inputs.start_keras()
    from keras_vit.zoo import load

    model = load(source, channels=channels, like=like)
    save_model(model, target, layout=layout, overwrite=overwrite)
    files = [file for file in Path(target).rglob("*") if file.is_file()] or [Path(target)]
    size = sum(file.stat().st_size for file in files)
    return Result({"path": target, "bytes": size}, f"Wrote {printable(target)} ({megabytes(size)})")


_PICTURES = Parameter(group="pictures")


@Parameter(name="*")
class Exporting(TypedDict, total=False):
    """Options of `keras_vit.export.export`."""

    precision: Annotated[str, Parameter(help="float16, dynamic_int8, int8 ... (default: float32)")]
    batch_size: Annotated[
        Count | Literal["any"], Parameter(help="images at a time, or any (default: any number; LiteRT one)")
    ]
    target: Annotated[str, Parameter(help="gpu: a file that a phone's GPU runs in float16")]
    uint8_input: Annotated[bool, Parameter(name="--uint8", help="take pixels of 0..255 and scale them in the file")]
    softmax: Annotated[bool, Parameter(help="answer with probabilities")]
    allow_select_ops: Annotated[bool, Parameter(help="allow operators that the runtime lacks")]
    calibration: Annotated[str, _PICTURES, Parameter(help="for int8: a folder of typical pictures")]
    tolerance: Annotated[
        AtLeast0, _PICTURES, Parameter(help="largest difference, relative to the answers (default: by precision)")
    ]


@command(
    "runs/finetune/model.keras model.onnx --softmax",
    "ViT-B/16 model.tflite --uint8 --precision int8 --calibration photos",
)
def export(
    weights: inputs.Weights,
    out: Annotated[str, Parameter(help=f"the file to write; its suffix decides the format: {SUFFIXES}")],
    /,
    *,
    format: str | None = None,
    image_size: SizeOrDynamic = None,
    classes: str | None = None,
    overwrite: inputs.Overwrite = False,
    how: Exporting = {},
    images: Annotated[str | None, _PICTURES] = None,
) -> Result:
    """Writes a file that runs without Keras, and checks it.

    Args:
        format: saved_model for a folder (default: by the suffix)
        image_size: pixels, or dynamic for any size (default: the checkpoint's)
        classes: a text file with a class name on each line (default: the checkpoint's)
        images: to compare outputs on; with a folder per class also accuracy
    """
    from keras_vit.export.formats import format_of

    inputs.check_source(weights)
    inputs.check_exists(classes, how.get("calibration"), images)
    inputs.check_target(out, overwrite)
    row = format_of(Path(out), format)
    require_packages(f"The format {row.name!r}", row.needs, row.extra)
    inputs.start_keras()
    from rich.console import Console

    from keras_vit.export import export
    from keras_vit.export.served_model import labelled_pictures
    from keras_vit.zoo import load

    model = load(weights, image_size=image_size)
    names = getattr(model.config, "class_names", None) if classes is None else inputs.lines_of(classes)
    pictures, labels = (None, None) if images is None else labelled_pictures(images, model, names)
    with Console(stderr=True).status(f"Writes the file, and compares it with the model: {row.name}"):  # on a terminal
        report = export(
            model,
            out,
            format,
            class_names=names,
            source=Path(weights).name if Path(weights).exists() else weights,
            images=pictures,
            labels=labels,
            overwrite=overwrite,
            **how,
        )
    return Result(report.to_dict(), report)
