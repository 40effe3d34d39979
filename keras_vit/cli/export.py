"""`keras-vit export`."""

import argparse
from pathlib import Path

from keras_vit.cli.command import (
    COUNT,
    SOURCE,
    Answer,
    Command,
    at_least_0,
    check_exists,
    check_source,
    check_target,
    image_size_or_dynamic,
    start_keras,
)

# Of `keras_vit.export.FORMATS`, which is slow to import; a test holds them together.
SUFFIXES = ".tflite, .onnx, .xml (OpenVINO), .pt2 (PyTorch) or .stablehlo (JAX)"


def _arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("weights", metavar="WEIGHTS", help=SOURCE)
    add("out", metavar="OUT", help=f"the file to write; its suffix tells the format: {SUFFIXES}")
    add("--format", help="saved_model for a folder (default: the suffix tells)")
    add("--precision", default="float32", help="float16, dynamic_int8, int8 ... (default: %(default)s)")
    add("--image-size", type=image_size_or_dynamic, help="pixels, or dynamic for any size (default: the checkpoint's)")
    add("--batch-size", type=COUNT, help="images at a time (default: any number)")
    add("--uint8", action="store_true", help="take pixels of 0..255 and scale them in the file")
    add("--softmax", action="store_true", help="answer with probabilities")
    add("--classes", metavar="FILE", help="a text file with a class name on each line (default: the checkpoint's)")
    add("--calibration", metavar="FOLDER", help="pictures for int8, like those of later; their folders do not matter")
    add("--images", metavar="FOLDER", help="pictures to compare on; in a folder per class: accuracy too")
    add(
        "--tolerance",
        type=at_least_0,
        help="largest difference accepted, relative to the answers (default: by precision, see docs/exports.md)",
    )
    add("--allow-select-ops", action="store_true", help="allow operators that the runtime lacks")
    add("--overwrite", action="store_true", help="replace OUT if it exists")


def _run(options: argparse.Namespace) -> Answer:
    """Exports a checkpoint as the arguments say."""
    check_source(options.weights)
    check_exists(options.classes, options.calibration, options.images)
    if options.format is None and Path(options.out).suffix not in SUFFIXES.replace(",", "").split():
        raise ValueError(f"OUT must end with {SUFFIXES}; or pass --format saved_model. {options.out!r} was given.")
    check_target(options.out, options.overwrite)
    start_keras()
    from keras_vit.export import export
    from keras_vit.export.images import labelled_pictures
    from keras_vit.zoo import load

    model = load(options.weights)
    if options.image_size is not None:
        model = model.with_image_size(options.image_size)
    names = model.config.class_names
    if options.classes is not None:
        names = Path(options.classes).read_text(encoding="utf-8").splitlines()
    pictures, labels = (None, None) if options.images is None else labelled_pictures(options.images, model, names)
    report = export(
        model,
        options.out,
        options.format,
        precision=options.precision,
        batch_size=options.batch_size,
        uint8_input=options.uint8,
        softmax=options.softmax,
        class_names=names,
        source=Path(options.weights).name if Path(options.weights).exists() else options.weights,
        images=pictures,
        labels=labels,
        calibration=options.calibration,
        allow_select_ops=options.allow_select_ops,
        tolerance=options.tolerance,
        overwrite=options.overwrite,
    )
    return Answer(report.to_dict(), report)


EXPORT = Command(
    "Writes a file that runs without Keras, and checks it.",
    _arguments,
    _run,
    (
        "runs/finetune/model.keras model.onnx --softmax",
        "ViT-B/16 model.tflite --uint8 --precision int8 --calibration photos",
    ),
)
