"""The commands about models and their files: list, info, download, inspect, convert and export."""

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from keras_vit._arguments import printable, require_packages
from keras_vit._terminal import megabytes, pairs_table
from keras_vit.cli.inputs import (
    OVERWRITE,
    SOURCE,
    WEIGHTS,
    check_exists,
    check_source,
    check_target,
    chosen,
    lines_of,
    picture_files,
    start_keras,
)
from keras_vit.cli.program import (
    ANY_NUMBER,
    ANY_SIZE,
    COUNT,
    Result,
    at_least_0,
    command,
    derived,
    group,
    option,
    switch,
)

LIKE = derived("keras_vit.checkpoints.checkpoint:inspect_checkpoint", "like")
# Of `keras_vit.export.FORMATS`, which the help need not wait for; a test holds them together.
SUFFIXES = ".tflite, .onnx, .xml (OpenVINO), .pt2 (PyTorch) or .stablehlo (JAX)"


@command(
    "The published checkpoints, or with --models the variants.",
    option("query", "a variant such as B/16, or part of a name (default: all)", nargs="?", metavar="QUERY"),
    derived("keras_vit.checkpoints.catalogue:list_weights", "family"),
    switch("--models", "list the variants instead of checkpoints"),
    examples=("B/16", "--family DINOv2"),
)
def list_(options: Namespace) -> Result:
    """Returns the published checkpoints, or with `--models` the variants, that match the query and the family."""
    from keras_vit.checkpoints import list_models, list_weights

    rows = (list_models if options.models else list_weights)(options.query, options.family)
    return Result([*rows], rows)


@command(
    "What a checkpoint file, a model file, or a name of the catalogue is; without one, what computes here.",
    option("source", nargs="?", metavar="FILE|NAME|URL"),
    LIKE,
    examples=("runs/finetune/model.keras", "hf://google/vit-base-patch16-224"),
)
def info(options: Namespace) -> Result:
    """What a file is, from its contents, what a name is, from the catalogue, or all checkpoints of a variant."""
    from keras_vit import checkpoints
    from keras_vit.checkpoints.catalogue import SHIPPED

    if options.source is None and options.like is None:
        start_keras()
        import keras

        import keras_vit
        from keras_vit.models.changes import arithmetic

        about = {"keras_vit": keras_vit.__version__, "Keras": keras.__version__, "backend": keras.backend.backend()}
        words = ", ".join(f"{name}={value}" for name, value in arithmetic().items())
        return Result(about | arithmetic(), pairs_table("this machine", about | {"arithmetic": words}))
    if options.source is None:
        raise ValueError("--like is for a checkpoint file: name one.")
    is_variant = checkpoints.is_variant(options.source)
    source = options.source if is_variant else os.fspath(checkpoints.resolve_source(options.source))
    is_file = source in SHIPPED or "://" in source or os.path.exists(os.path.expanduser(source))
    if is_file and not checkpoints.is_keras_file(source):
        facts = checkpoints.inspect_checkpoint(checkpoints.find_checkpoint(source), like=options.like)
        return _description(source, facts.to_dict())
    if options.like is not None:
        raise ValueError(f"--like is for checkpoint files, but {printable(source)} is not one: leave it out.")
    if is_file:
        return _description(source, _keras_file(os.path.expanduser(source)))
    rows = checkpoints.list_weights(source)
    if is_variant:
        return Result([*rows], rows)
    (row,) = rows
    return Result(row, pairs_table(source, row))


def _keras_file(path: str) -> dict[str, Any]:
    """Returns what a `.keras` or `.weights.h5` file says of its model, for `--json`."""
    # Needs no Keras.
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


@command(
    "Fetches a checkpoint into the cache and prints where it is.",
    option("name", metavar="NAME|URL"),
    examples=("imagenet21k/ViT-B_16",),
)
def download(options: Namespace) -> Result:
    """The path and the size of a checkpoint, which is fetched into the cache if it is not on this machine yet."""
    from keras_vit.checkpoints import find_checkpoint
    from keras_vit.checkpoints.files import weight_files

    path = find_checkpoint(options.name)
    size = sum(file.stat().st_size for file in weight_files(path))
    return Result({"path": str(path), "bytes": size}, printable(path))


@command(
    "Writes a page that shows a model, and what it makes of images.",
    option("source", SOURCE, metavar="FILE|NAME"),
    option(
        "--image",
        "photos for attention and evidence (default: none)",
        nargs="+",
        default=[],
        action="extend",
        metavar="PHOTO",
    ),
    option("--output", "the page", short="-o", default="report.html", metavar="FILE"),
    switch("--overwrite", "replace the page if it exists"),
    examples=("glyphs", "ViT-B/16 --image photo.jpg -o photo.html"),
)
def inspect(options: Namespace) -> Result:
    """Writes the page of `keras_vit.inspection` and returns its path; images are looked at before Keras is imported."""
    from keras_vit._page import check_page_path

    folder = os.path.dirname(os.path.abspath(options.output))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"There is no folder {folder} for the page.")
    check_page_path(options.output)
    check_target(options.output, options.overwrite)
    images: dict[str, str] = {}
    for path in picture_files(options.image) if options.image else []:
        name = os.path.basename(path)
        images[name if name not in images else path] = path
    check_source(options.source)
    start_keras()
    from keras_vit.inspection import write_page
    from keras_vit.preprocessing.windows import read_picture
    from keras_vit.zoo import load

    model = load(options.source)
    pixels = {name: read_picture(path, getattr(model.config, "channels", 3)) for name, path in images.items()}
    source, notes = _facts_and_notes(options.source)
    title = os.path.basename(os.path.normpath(options.source)) if os.path.exists(options.source) else options.source
    page = write_page(model, options.output, pixels, title=title, source=source, notes=notes)
    size = os.path.getsize(page)
    return Result({"page": str(page), "bytes": size, "images": list(images)}, f"Wrote {page} ({megabytes(size)})")


def _facts_and_notes(source: str) -> tuple[dict[str, Any], list[str]]:
    """Returns what a checkpoint file says about itself: facts that are not empty by name, and notes on what is odd."""
    # Both are empty for files of Keras, and for addresses and names of weights that were fetched.
    from keras_vit.checkpoints import find_checkpoint, inspect_checkpoint, is_keras_file
    from keras_vit.checkpoints.catalogue import SHIPPED

    if is_keras_file(source) or not (os.path.exists(source) or source in SHIPPED):
        return {}, []
    facts = inspect_checkpoint(find_checkpoint(source)).to_dict()
    del facts["config"]
    notes = [str(note) for note in facts.pop("oddities", None) or ()]
    return {name: value for name, value in facts.items() if value not in (None, [], "")}, notes


@command(
    "Converts between the files of Keras, the original code, timm, Hugging Face and open_clip, both ways.",
    option("source", "a file, a folder, an address or a name", metavar="IN"),
    option("target", "the .keras, .weights.h5, .npz or .safetensors to write, or a folder", metavar="OUT"),
    option(
        "--layout",
        "of an .npz: vit_jax, big_vision, bit_tf or bit_bv (default: as in the official files); of a "
        ".safetensors or a folder: timm, huggingface or clip",
    ),
    LIKE,
    option("--channels", "of images that are not red, green and blue (default: the model's)", type=COUNT),
    OVERWRITE,
    examples=("model.keras folder --layout timm", "glyphs grey.keras --channels 1"),
)
def convert(options: Namespace) -> Result:
    """Returns the path and the size of a model that is loaded and written in the format that the target names."""
    from keras_vit.checkpoints import check_format, save_model

    check_source(options.source)
    check_format(options.target, options.layout)
    check_target(options.target, options.overwrite)
    start_keras()
    from keras_vit.zoo import load

    model = load(options.source, channels=options.channels, like=options.like)
    save_model(model, options.target, layout=options.layout, overwrite=options.overwrite)
    target = Path(options.target)
    files = [file for file in target.rglob("*") if file.is_file()] if target.is_dir() else [target]
    size = sum(file.stat().st_size for file in files)
    return Result({"path": options.target, "bytes": size}, f"Wrote {printable(options.target)} ({megabytes(size)})")


@command(
    "Writes a file that runs without Keras, and checks it.",
    WEIGHTS,
    option("out", f"the file to write; its suffix decides the format: {SUFFIXES}", metavar="OUT"),
    option("--format", "saved_model for a folder (default: by the suffix)"),
    option("--precision", "float16, dynamic_int8, int8 ...", default="float32"),
    option("--image-size", "pixels, or dynamic for any size (default: the checkpoint's)", type=ANY_SIZE),
    option("--batch-size", "images at a time, or any (default: any number; LiteRT one)", type=ANY_NUMBER),
    option("--target", "gpu: a file that a phone's GPU runs in float16"),
    switch("--uint8", "take pixels of 0..255 and scale them in the file", dest="uint8_input"),
    switch("--softmax", "answer with probabilities"),
    option("--classes", "a text file with a class name on each line (default: the checkpoint's)", metavar="FILE"),
    switch("--allow-select-ops", "allow operators that the runtime lacks"),
    OVERWRITE,
    group(
        "pictures",
        option("--calibration", "for int8: a folder of typical pictures", metavar="FOLDER"),
        option("--images", "to compare outputs on; with a folder per class also accuracy", metavar="FOLDER"),
        option("--tolerance", "largest difference, relative to the answers (default: by precision)", type=at_least_0),
    ),
    examples=(
        "runs/finetune/model.keras model.onnx --softmax",
        "ViT-B/16 model.tflite --uint8 --precision int8 --calibration photos",
    ),
)
def export(options: Namespace) -> Result:
    """Returns the report on a checkpoint that is exported as the arguments say.

    Raises, before Keras is imported, ValueError for an unknown source or format, FileNotFoundError for a missing file,
    FileExistsError for a file that is there, ImportError where the format needs a package or Keras a backend; then
    ValueError for options or pictures that do not fit, a damaged file, or one of class names that is not UTF-8,
    TypeError for a model of another kind, OSError for a file that cannot be read, fetched or written, RuntimeError if
    it cannot be made or answers otherwise.
    """
    from keras_vit.export.formats import format_of

    check_source(options.weights)
    check_exists(options.classes, options.calibration, options.images)
    check_target(options.out, options.overwrite)
    row = format_of(Path(options.out), options.format)
    require_packages(f"The format {row.name!r}", row.needs, row.extra)
    start_keras()
    from keras_vit.export import export
    from keras_vit.export.served_model import labelled_pictures
    from keras_vit.zoo import load

    model = load(options.weights)
    if options.image_size is not None:
        model = model.with_image_size(options.image_size)
    names = model.config.class_names
    if options.classes is not None:
        names = lines_of(options.classes)
    pictures, labels = (None, None) if options.images is None else labelled_pictures(options.images, model, names)
    report = export(
        model,
        options.out,
        options.format,
        class_names=names,
        source=Path(options.weights).name if Path(options.weights).exists() else options.weights,
        images=pictures,
        labels=labels,
        **chosen(options, "precision", "batch_size", "target", "uint8_input", "softmax", "calibration"),
        **chosen(options, "tolerance", "overwrite", *(["allow_select_ops"] if options.allow_select_ops else [])),
    )
    return Result(report.to_dict(), report)
