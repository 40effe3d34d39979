"""The command about images and words: classes that are named and not trained."""

import argparse

from keras_vit._terminal import Table
from keras_vit.cli.command import (
    COUNT,
    Answer,
    check_exists,
    command,
    lines_of,
    option,
    picture_files,
    predicted,
    start_keras,
)


@command(
    "Classifies images by names that you give, with a CLIP or SigLIP and without training.",
    option("images", nargs="+", metavar="IMAGE|FOLDER"),
    option(
        "--weights",
        required=True,
        metavar="FILE|ADDRESS",
        help="both towers, such as hf://openai/clip-vit-base-patch32",
    ),
    option("--names", metavar="A,B,...", help="what the classes are called"),
    option("--names-from", metavar="FILE", help="a text file with a name on each line instead"),
    option("--templates", default="a photo of a {}.", help="a sentence with {}, or openai_80, openai_cifar10 ..."),
    option("--tokenizer", metavar="FILE", help="a tokenizer.json or .model, where none lies beside the weights"),
    option("--top", type=COUNT, help="how many names to show (default: all)"),
    examples=(
        "photo.jpg --names cat,dog --weights hf://openai/clip-vit-base-patch32",
        "photos/*.jpg --names-from names.txt --templates openai_80 --weights clip/ --top 3",
    ),
)
def classify(options: argparse.Namespace) -> Answer:
    """Reads names and images before anything that takes long."""
    if (options.names is None) == (options.names_from is None):
        raise ValueError("Give either --names A,B,... or --names-from FILE.")
    check_exists(options.names_from)
    if options.names_from is None:
        names = [name.strip() for name in options.names.split(",")]
    else:
        names = lines_of(options.names_from)
    files = picture_files(options.images)
    start_keras()
    import numpy as np

    from keras_vit.text import load_image_text

    both = load_image_text(options.weights, tokenizer=options.tokenizer)
    model = both.zero_shot_classifier(names, options.templates)
    model = model.with_config(classifier_activation=both.activation)
    outputs = predicted(model, files)
    data, table = [], Table()
    for path, shares in zip(files, outputs, strict=True):
        order = np.argsort(-shares)[: options.top]
        data.append({"image": path, "names": {names[i]: float(shares[i]) for i in order}})
        for place, i in enumerate(order):
            row = {"image": "" if place else path, "name": names[i], "probability": f"{100 * shares[i]:.1f} %"}
            table.append(row)
    return Answer(data, table)
