"""The commands about pictures: predict, classify, detect, segment, depth, embed, similar and duplicates."""

import os
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_vit._arguments import printable
from keras_vit._files import check_folder
from keras_vit._page import check_sheet_path
from keras_vit._terminal import Table
from keras_vit.cli.inputs import (
    OVERWRITE,
    PICTURES,
    SOURCE,
    WEIGHTS_OPTION,
    check_exists,
    check_source,
    chosen,
    files_to_write,
    given,
    lines_of,
    picture_files,
    predicted,
    start_keras,
    summary,
)
from keras_vit.cli.program import COUNT, COUNT_OR_0, METRES, Result, at_least_0, command, only, option, switch, without

TOP = 5  # classes that `predict` shows


@command(
    "Classifies images; without any, the sample picture that the package ships, with the small model `glyphs`.",
    option("images", "pictures, and folders with all that are in them", nargs="*", metavar="IMAGE|FOLDER"),
    option("--weights", f"{SOURCE} (default: ViT-B/16; without pictures glyphs)"),
    option("--top", f"how many classes to show (default: {TOP}, or all if fewer)", type=COUNT),
    option("--threshold", "several labels: the least probability (default: 0.5)", type=at_least_0, metavar="P"),
    examples=("", "photo.jpg", "photos/*.jpg --weights runs/finetune/model.keras --top 1"),
)
def predict(options: Namespace) -> Result:
    """Returns the likeliest classes of each image, or its number by a regression model."""
    from keras_vit.preprocessing import decode_predictions, sample_image

    files = picture_files(options.images) if options.images else [sample_image()]
    weights = options.weights or ("ViT-B/16" if options.images else "glyphs")
    check_source(weights)
    start_keras()
    import keras

    from keras_vit.zoo import load

    model = load(weights)
    count = _count_classes(model, weights)
    if options.top is not None and options.top > count:
        raise ValueError(f"--top must be at most {count}, the classes of {weights}, but got {options.top}.")
    config, several = model.config, model.config.classifier_activation == "sigmoid"
    if options.threshold is not None and not several:
        raise ValueError(f"--threshold is for models of several labels, but {weights} has one for each image.")
    outputs = predicted(model, files)
    if count == 1 and not several:  # a regression
        name = (config.class_names or ("number",))[0]
        data = [{"image": path, "number": float(value)} for path, value in zip(files, outputs[:, 0], strict=True)]
        return Result(data, Table({"image": row["image"], name: f"{row['number']:.4g}"} for row in data))
    if config.classifier_activation in (None, "linear"):
        outputs = keras.ops.convert_to_numpy(keras.ops.softmax(outputs))
    top = options.top or (count if several else min(TOP, count))
    threshold = 0.5 if several and options.threshold is None else options.threshold
    decoded = decode_predictions(outputs, top=top, threshold=threshold, class_names=config.class_names)
    data, named = [], []
    for path, classes in zip(files, decoded, strict=True):
        entries = [{"id": key, "name": name, "probability": float(p)} for key, name, p in classes]
        data.append({"image": path, "classes": entries})
        named.append((path, [(name, float(p)) for _, name, p in classes]))
    return Result(data, _named_table(named, "class"))


def _count_classes(model: Any, weights: str) -> int:
    """Returns the number of classes of a classifier with one answer for an image; ValueError for other models."""
    if hasattr(model.config, "backbone"):
        raise ValueError(
            f"{weights} has an output for each place of a picture, not for the whole: use `keras-vit segment` or "
            "`keras-vit depth`."
        )
    if model.config.classes is None:
        raise ValueError(
            f"{weights} has no head, so it knows no classes. Fine-tune it on your images with `keras-vit "
            "finetune`, or measure its features with `keras-vit evaluate --few-shot`."
        )
    if len(model.output_shape) != 2:
        raise ValueError(f"{weights} has a head on every token or place, and no single output for an image.")
    return model.config.classes


def _named_table(named: list[tuple[str, list[tuple[str, float]]]], column: str) -> Table:
    """Returns a row for each name of an image with its probability; only the first row of an image has its path."""
    table = Table()
    for path, names in named:
        for name, probability in names:
            share = f"{100 * probability:.1f} %"
            table.append({"image": path, column: name, "probability": share})
            path = ""
        if not names:
            table.append({"image": path, column: "(none)", "probability": ""})
    return table


@command(
    "Classifies images by names that you give, with a CLIP or SigLIP and without training.",
    PICTURES,
    option(
        "--weights", "both towers, such as hf://openai/clip-vit-base-patch32", required=True, metavar="FILE|ADDRESS"
    ),
    option("--names", "what the classes are called", metavar="A,B,..."),
    option("--names-from", "a text file with a name on each line instead", metavar="FILE"),
    option("--templates", "a sentence with {}, or openai_80, openai_cifar10 ...", default="a photo of a {}."),
    option("--tokenizer", "a tokenizer.json or .model, where none lies beside the weights", metavar="FILE"),
    option("--top", "how many names to show (default: all)", type=COUNT),
    examples=(
        "photo.jpg --names cat,dog --weights hf://openai/clip-vit-base-patch32",
        "photos/*.jpg --names-from names.txt --templates openai_80 --weights clip/ --top 3",
    ),
)
def classify(options: Namespace) -> Result:
    """Returns the probability of each name for each image."""
    if (options.names is None) == (options.names_from is None):
        raise ValueError("Give either --names A,B,... or --names-from FILE.")
    classes = _names_in(options)
    files = picture_files(options.images)
    start_keras()
    import numpy as np

    from keras_vit.text.image_text import load_pair

    both = load_pair(options.weights, tokenizer=options.tokenizer)
    model = both.zero_shot_classifier(classes, options.templates)
    outputs = predicted(model.with_config(classifier_activation=both.activation), files)
    named = [
        (path, [(classes[i], float(shares[i])) for i in np.argsort(-shares)[: options.top]])
        for path, shares in zip(files, outputs, strict=True)
    ]
    data = [{"image": path, "names": dict(pairs)} for path, pairs in named]
    return Result(data, _named_table(named, "name"))


def _names_in(options: Namespace) -> list[str]:
    """Returns the names between the commas of `--names`, or the lines of the file `--names-from` that are not empty."""
    check_exists(options.names_from)
    if options.names is not None:
        return [name.strip() for name in options.names.split(",")]
    return lines_of(options.names_from)


MAPS = (
    PICTURES,
    option("--weights", "a segmentation or depth model, or a backbone with --head", required=True, metavar="WEIGHTS"),
    option("--head", "the head of a backbone, such as DINOv2's for ADE20K, NYU or KITTI", metavar="FILE"),
    option("--output", "a .png or .npy for one picture, otherwise a folder", short="-o", required=True, metavar="OUT"),
    option("--format", "of the files in a folder (default: png)", choices=("png", "npy")),
    switch("--flip", "average with the mirror image (not for EoMT)"),
    switch("--plot", "write figures with names or a scale instead of maps"),
    switch("--skip-unreadable", "leave out files that are not pictures, and say which"),
    OVERWRITE,
)
Row = tuple[dict[str, Any], dict[str, Any]]  # of a picture: for `--json`, and for the table


def _write_maps(options: Namespace, write: Callable[[Any, Any, Path, Path], Row], load: Callable[[], Any]) -> Result:
    """Writes a map or figure for each picture; returns a row for each, also for skipped ones."""
    if options.plot and options.format == "npy":
        raise ValueError("--plot writes figures, not numbers: leave --format npy out.")
    ending = f".{options.format or 'png'}"
    pairs = files_to_write(options.images, options.output, ending, options.overwrite)
    if options.format is not None and pairs[0][1].suffix != ending:
        raise ValueError(f"--format {options.format} is for files in a folder, but OUT is {options.output}.")
    check_source(options.weights)
    check_exists(options.head)
    check_folder(pairs[0][1].parent if len(pairs) == 1 else options.output)
    start_keras()
    from keras_vit.preprocessing.windows import read_picture

    model = load()
    data, table = [], Table()
    for picture, target in pairs:
        try:
            pixels = read_picture(picture, model.config.channels)
        except (OSError, ValueError) as error:
            if not options.skip_unreadable:
                raise
            data.append({"image": str(picture), "output": None, "error": str(error)})
            table.append({"image": str(picture), "output": "none: it cannot be read"})
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        row, words = write(model, pixels, picture, target)
        data.append({"image": str(picture), "output": str(target), **row})
        table.append({"image": str(picture), **words, "output": str(target)})
    return Result(data, table)


@command(
    "Measures the depth of pictures: as 16-bit PNG, as numbers, or as a figure with a scale.",
    *MAPS,
    option("--max-depth", "the largest depth in metres, or `relative`, if it is in no file", type=METRES, metavar="X"),
    examples=(
        "photo.jpg -o depth.png --weights hf://depth-anything/Depth-Anything-V2-Small-hf",
        "photos -o depths --format npy --weights dinov2_vits14_pretrain.pth --head dinov2_vits14_nyu_dpt_head.pth",
    ),
)
def depth(options: Namespace) -> Result:
    """Writes the depth of each picture; the result has its least and its largest depth.

    Raises FileNotFoundError for a missing path or folder, FileExistsError for an output that is there, OSError for a
    file that cannot be read, fetched or written, ValueError for a picture that cannot be decoded, no pictures, an
    unknown name or an output of another ending, TypeError or ValueError for a model of another kind, ImportError
    without Pillow, a backend of Keras or, for `--plot`, matplotlib.
    """

    def write(model: Any, pixels: Any, picture: Path, target: Path) -> Row:
        """Writes the depth of a picture, or a figure, and returns its row; OSError if the file cannot be written."""
        from keras_vit.depth import estimate, plot

        result = estimate(model, pixels, flip=options.flip)
        ends = {"least": float(result.depth.min()), "largest": float(result.depth.max())}
        row: dict[str, Any] = {"metric": result.metric, "unit": result.unit, **ends}
        if options.plot:
            plot(result, picture, target)
        else:
            row["scale"], row["offset"] = result.save(target)
        return row, {"depth": f"{ends['least']:.4g} to {ends['largest']:.4g} {result.unit}"}

    def load() -> Any:
        """Returns the model; OSError if a file cannot be read or fetched, TypeError or ValueError if none fits."""
        from keras_vit import zoo

        return zoo.load(options.weights, head=options.head, max_depth=options.max_depth)

    return _write_maps(options, write, load)


@command(
    "Divides pictures into segments: a map of classes or ids as PNG or numbers, or a figure with names.",
    *MAPS,
    option("--task", "what segments are (default: the model's)", choices=("semantic", "panoptic", "instance")),
    option(
        "--stuff",
        "panoptic: classes whose segments are merged into one",
        dest="stuff_classes",
        type=COUNT_OR_0,
        nargs="+",
        metavar="K",
    ),
    option("--scales", "linear heads: sizes to average over (default: 1)", type=at_least_0, nargs="+"),
    option("--names", "with both towers of a TIPS: what the classes are called", metavar="A,B,..."),
    option("--names-from", "a text file with a name on each line instead", metavar="FILE"),
    option("--templates", "with names: a sentence with {}, or a list such as tcl (default)"),
    option("--mode", "with names: crops that overlap (default), or the whole picture", choices=("slide", "whole")),
    option("--tokenizer", "a tokenizer.json or .model, where none lies beside the weights", metavar="FILE"),
    examples=(
        "photo.jpg -o masks.png --weights hf://tue-mps/coco_panoptic_eomt_large_640 --plot",
        "photos -o maps --weights dinov2_vits14_pretrain.pth --head dinov2_vits14_ade20k_linear_head.pth --json",
        'photo.jpg -o masks.png --names "cat,grass,sky" --weights hf://google/tipsv2-b14 --plot',
    ),
)
def segment(options: Namespace) -> Result:
    """Writes the segments of each picture; the result has all of them, and its table how many and the five largest.

    Raises FileNotFoundError for a missing path or folder, FileExistsError for an output that is there, OSError for a
    file that cannot be read, fetched or written, ValueError for a picture that cannot be decoded, no pictures, an
    unknown name, an output of another ending, or options that contradict each other or do not fit the model, TypeError
    for a model of another kind, ImportError without Pillow, a backend of Keras, a library that the tokenizer needs or,
    for `--plot`, matplotlib.
    """

    def write(model: Any, pixels: Any, picture: Path, target: Path) -> Row:
        """Writes the segments of a picture, or a figure, and returns its row; OSError if the file cannot be written."""
        from keras_vit import segmentation

        choices = given(options, "task", "stuff_classes", "scales")
        result = segmentation.segment(model, pixels, flip=options.flip, **choices)
        if options.plot:
            segmentation.plot(result, picture, target)
        else:
            result.save(target)
        largest = sorted(result.segments, key=lambda part: -part.area)
        words = ", ".join(f"{part.label} {100 * part.area / result.map.size:.0f} %" for part in largest[:5])
        return result.to_dict(), {"segments": len(largest), "largest": words}

    return _write_maps(options, write, lambda: _segmenter(options))


def _segmenter(options: Namespace) -> Any:
    """Returns the model that a file holds, or of both towers of a TIPS one for the names that are given."""
    from keras_vit import zoo
    from keras_vit.text.image_text import load_pair

    if options.names is None and options.names_from is None:
        for_names = given(options, "templates", "mode", "tokenizer")
        if for_names:
            raise ValueError(f"--{', --'.join(for_names)} needs --names A,B,... or --names-from FILE.")
        return zoo.load(options.weights, head=options.head)
    if options.head is not None or None not in (options.names, options.names_from):
        raise ValueError("Give one of --names A,B,..., --names-from FILE and --head FILE.")
    both = load_pair(options.weights, tokenizer=options.tokenizer)
    return both.zero_shot_segmenter(_names_in(options), **given(options, "templates", "mode"))


@command(
    "Finds objects in pictures: boxes with names and scores, named by words or by an example.",
    option("images", "pictures, and folders with all that are in them", nargs="+", metavar="IMAGE|FOLDER"),
    option("--weights", "an OWL, or without --names and --like a detector", required=True, metavar="WEIGHTS"),
    option("--names", "what to look for", metavar="A,B,..."),
    option("--names-from", "a text file with a name on each line instead", metavar="FILE"),
    option("--templates", "with names: a sentence with {}, or a published list (default: the name alone)"),
    option("--tokenizer", "a tokenizer.json or .model, where none lies beside the weights", metavar="FILE"),
    option("--like", "in place of names a picture of what to look for", metavar="IMAGE"),
    option("--box", "of --like: left, top, right and bottom in pixels", type=at_least_0, nargs=4, metavar="X"),
    option("--threshold", "the least score (default: 0.1)", type=at_least_0, metavar="P"),
    option("--nms", "the largest overlap of two boxes of a class (default: any)", type=at_least_0, metavar="IOU"),
    option("--most", "how many boxes with the best scores (default: all)", type=COUNT),
    option("--output", "a .json, .csv or .png for one picture, otherwise a folder", short="-o", metavar="OUT"),
    option("--format", "of the files in a folder (default: png)", choices=("png", "json", "csv")),
    OVERWRITE,
    examples=(
        'photo.jpg --names "cat,remote control" --weights hf://google/owlv2-base-patch16-ensemble -o boxes.png',
        "photos --like cat.jpg --box 40 10 120 90 --weights hf://google/owlv2-base-patch16-ensemble --json",
    ),
)
def detect(options: Namespace) -> Result:
    """Returns the boxes of each picture; with `--output` also files or figures of them."""
    ending = f".{options.format or 'png'}"
    if options.format is not None and options.output is None:
        raise ValueError(f"--format {options.format} is for files: give --output OUT.")
    pairs: list[tuple[Path, Path | None]]
    if options.output is None:
        pairs = [(Path(file), None) for file in picture_files(options.images)]
    else:
        pairs = [*files_to_write(options.images, options.output, ending, options.overwrite)]
    check_source(options.weights)
    check_exists(options.like)
    start_keras()
    from keras_vit import detection

    model, data, table = _detector(options), [], Table()
    for picture, target in pairs:
        found = detection.detect(model, picture, **given(options, "threshold", "nms", "most"))
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.suffix in (".json", ".csv"):
                found.save(target)
            else:
                detection.plot(found, picture, target)
        best = found.scores.argsort()[::-1][:5].tolist()
        words = ", ".join(f"{found.names[i]} {found.scores[i]:.2f}" for i in best)
        data.append({"image": str(picture), **found.to_dict()})
        table.append({"image": str(picture), "boxes": len(found.scores), "surest": words})
    return Result(data, table)


def _detector(options: Namespace) -> Any:
    """Returns a detector of the names or of the example that are given, or the one that a file holds."""
    from keras_vit import text, zoo

    by_words = options.names is not None or options.names_from is not None
    if sum((options.names is not None, options.names_from is not None, options.like is not None)) > 1:
        raise ValueError("Give one of --names A,B,..., --names-from FILE and --like IMAGE.")
    for flag, value, needs in (
        ("--templates", options.templates, by_words),
        ("--tokenizer", options.tokenizer, by_words),
        ("--box", options.box, options.like is not None),
    ):
        if value is not None and not needs:
            raise ValueError(f"{flag} needs {'--like IMAGE' if flag == '--box' else '--names A,B,...'}.")
    if not by_words and options.like is None:
        return zoo.load(options.weights)
    both = text.load_image_text(options.weights, tokenizer=options.tokenizer)
    if not isinstance(both, text.OpenVocabularyDetector):
        raise TypeError(f"{options.weights} names whole pictures, not boxes: use `keras-vit classify`, or an OWL.")
    if options.like is not None:
        return both.one_shot_detector(options.like, options.box)
    return both.zero_shot_detector(_names_in(options), **given(options, "templates"))


def _shard(text: str) -> tuple[int, int]:
    """Returns the slice that a text such as `0/4` says, as (index, count); argparse's ArgumentTypeError otherwise."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise ArgumentTypeError(f"must be I/N, from 0/N to (N-1)/N, but {text!r} was given")
    return int(index), int(count)


@command(
    "Writes the features of many images to a file; a run that is killed goes on.",
    option("images", "a folder with all that is in it, or files and folders", nargs="+", metavar="FOLDER|FILE"),
    option("--output", "the .npz file to write", short="-o", required=True, metavar="OUT"),
    WEIGHTS_OPTION,
    only(
        [without("texts")],
        option("--features", "which, such as block_-1 or encoded (default: pre_logits)"),
        switch("--skip-unreadable", "leave out files that are not images, and say which"),
        option("--shard", "the I-th slice of N of the images only, from 0 (default: 0/1)", type=_shard, metavar="I/N"),
    ),
    option("--batch-size", "images at a time", type=COUNT, default=32),
    option("--dtype", "in the file", choices=("float32", "float16"), default="float32"),
    switch("--texts", "the files hold texts, one a line; the weights have a text tower"),
    OVERWRITE,
    examples=("photos -o features.npz", "photos --weights glyphs --features block_-1 -o features.npz"),
)
def embed(options: Namespace) -> Result:
    """Writes the features of images, or of texts, to the file `options.output`; returns what is in it.

    Raises FileNotFoundError for a missing path or folder; ValueError for an unknown model or features, another ending
    than .npz, an image that cannot be read unless such are skipped, texts that are not UTF-8, or an output with other
    features unless it may be replaced (FileExistsError for texts); TypeError for a model of another kind; OSError if a
    file cannot be read, fetched or written, as on a full disk; ImportError without Pillow, a backend of Keras or a
    library that the tokenizer needs.
    """
    check_exists(*options.images)
    check_source(options.weights)
    start_keras()
    from keras_vit.evaluation import embed
    from keras_vit.evaluation.embedding import check_output

    check_output(options.output)
    if options.texts:
        return _embed_texts(options)
    done = embed(
        options.weights,
        options.images if len(options.images) > 1 else options.images[0],
        options.output,
        shard=options.shard or (0, 1),
        on_bad_image="skip" if options.skip_unreadable else "stop",
        **chosen(options, "batch_size", "dtype", "overwrite"),
        **given(options, "features"),
    )
    shape = " x ".join(map(str, done.shape))
    start = f"{printable(done.path)} is already complete" if done.already_complete else f"Wrote {printable(done.path)}"
    text = f"{start}: {done.count:,} images, {shape} features each"
    if done.skipped:
        names = ", ".join(printable(name) for name in done.skipped[:5])
        text += f"; {len(done.skipped)} could not be read: {names}{' ...' if len(done.skipped) > 5 else ''}"
    data = {"path": str(done.path), "images": done.count, "shape": [*done.shape], "skipped": [*done.skipped]}
    following = ["similar", "photo.jpg", str(done.path)], ["duplicates", str(done.path)]
    return Result({**data, "already_complete": done.already_complete}, summary(text, *following))


def _embed_texts(options: Namespace) -> Result:
    """Writes the embeddings of texts, each of length 1, with the texts as names; the result says how many."""
    import numpy as np

    from keras_vit._files import replacing
    from keras_vit.text import load_image_text

    if os.path.exists(options.output) and not options.overwrite:
        raise FileExistsError(f"{options.output} exists. Choose another path or pass --overwrite.")
    texts = [line for path in options.images for line in lines_of(path)]
    features = load_image_text(options.weights).embed_texts(texts, options.batch_size).astype(options.dtype)
    with replacing(options.output) as temporary, open(temporary, "wb") as stream:
        np.savez(stream, names=np.array(texts), features=features)
    shape = [*features.shape[1:]]
    text = f"Wrote {printable(options.output)}: {len(texts):,} texts, {shape[0]} features each"
    return Result({"path": options.output, "texts": len(texts), "shape": shape}, text)


FEATURES = option("features", "a file of `keras-vit embed`", metavar="FEATURES")
FOLDER = option("--folder", "where the images are (default: the folder that was embedded)")
SHEET = option("--output", "a contact sheet, .html, .png, .svg or .pdf (default: none)", metavar="FILE")


@command(
    "Finds the images that are most like one, or like words, among the features that `keras-vit embed` has written.",
    option("image", "what to search for", nargs="?", metavar="IMAGE"),
    FEATURES,
    option("--text", "what to search for in place of an image, with a CLIP or SigLIP", metavar="WORDS"),
    option("--count", "how many to find", type=COUNT, default=12),
    option("--weights", "the model of the features (default: as named in FEATURES)"),
    FOLDER,
    SHEET,
    examples=("photo.jpg features.npz", "--text 'a red car' features.npz --weights clip/ --output similar.html"),
)
def similar(options: Namespace) -> Result:
    """Returns the images that are most similar to an image or a text, and draws them if there is an output."""
    if (options.image is None) == (options.text is None):
        raise ValueError("Give either an IMAGE or --text 'some words'.")
    if options.text is not None and options.weights is None:
        raise ValueError("--text needs --weights with an image and a text tower; the features are of the image tower.")
    check_exists(options.image, options.features, options.folder)
    if options.output:
        check_sheet_path(options.output)
    start_keras()
    from keras_vit import evaluation

    model: Any = options.weights
    query = None
    if options.text is not None:
        from keras_vit.text.image_text import load_pair

        both = load_pair(options.weights)
        model, query = both.image_encoder, both.embed_texts(options.text)[0]
    rows = evaluation.find_similar(
        options.image, options.features, query=query, k=options.count, model=model, folder=options.folder
    )
    if options.output:
        title = f"Most like {printable(options.image or options.text)}"
        evaluation.draw_similar(rows, options.output, title, options.image)
    return Result([*rows], rows)


@command(
    "Finds images that are almost the same, among the features that `keras-vit embed` has written.",
    FEATURES,
    option("--threshold", "the least cosine similarity", type=at_least_0, default=0.95),
    FOLDER,
    SHEET,
    examples=("features.npz --threshold 0.98", "features.npz --output duplicates.html"),
)
def duplicates(options: Namespace) -> Result:
    """Returns pairs of images that are almost the same, and draws them if there are some and an output."""
    check_exists(options.features, options.folder)
    if options.output:
        check_sheet_path(options.output)
    start_keras()
    from keras_vit import evaluation

    rows = evaluation.find_duplicates(options.features, options.threshold, folder=options.folder)
    if options.output and rows:
        evaluation.draw_similar(rows, options.output, "Near-duplicates")
    return Result([*rows], rows or "No near-duplicates.")
