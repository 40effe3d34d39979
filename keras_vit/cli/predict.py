"""`keras-vit predict`."""

import argparse
from typing import Any

from keras_vit._terminal import Table
from keras_vit.cli.command import COUNT, SOURCE, Answer, Command, check_exists, check_source, start_keras

TOP = 5


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE")
    parser.add_argument("--weights", default="ViT-B/16", help=f"{SOURCE} (default: %(default)s)")
    parser.add_argument("--top", type=COUNT, help=f"how many classes to show (default: {TOP}, or all if fewer)")


def _run(options: argparse.Namespace) -> Answer:
    """Reads all images before anything that takes long, and classifies them as one batch."""
    from keras_vit.preprocessing import decode_predictions, load_image

    check_exists(*options.images)
    pictures = [load_image(path) for path in options.images]
    check_source(options.weights)
    start_keras()
    import keras
    import numpy as np

    from keras_vit.zoo import load

    model = load(options.weights)
    classes = model.config.classes
    if classes is None:
        raise ValueError(
            f"{options.weights} has no head, so it knows no classes. Fine-tune it on images of yours with `keras-vit "
            "finetune`, or measure its features with `keras-vit evaluate --few-shot`."
        )
    if len(model.output_shape) != 2:
        raise ValueError(f"{options.weights} has a head on every token or place, so that no image gets one answer.")
    if options.top is not None and options.top > classes:
        raise ValueError(f"--top must be at most {classes}, the classes of {options.weights}, but got {options.top}.")
    outputs = model.predict(np.concatenate([model.preprocess(picture) for picture in pictures]), verbose=0)
    if model.config.classifier_activation in (None, "linear"):
        outputs = keras.ops.convert_to_numpy(keras.ops.softmax(outputs))
    decoded = decode_predictions(outputs, top=options.top or min(TOP, classes), class_names=model.config.class_names)
    pairs = list(zip(options.images, decoded, strict=True))
    table = Table(
        {"image": "" if place else path, "class": name, "probability": f"{100 * probability:.1f} %"}
        for path, classes in pairs
        for place, (_, name, probability) in enumerate(classes)
    )
    return Answer([{"image": path, "classes": [_class(*entry) for entry in classes]} for path, classes in pairs], table)


def _class(identifier: str, name: str, probability: float) -> dict[str, Any]:
    return {"id": identifier, "name": name, "probability": float(probability)}


PREDICT = Command(
    "Classifies images.", _arguments, _run, ("photo.jpg", "photos/*.jpg --weights runs/finetune/model.keras --top 1")
)
