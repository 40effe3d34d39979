"""The commands about pictures: predict, classify, detect, segment, depth, anomaly, embed, similar, duplicates."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from cyclopts import Parameter

from keras_vit._arguments import printable
from keras_vit._options import check_shard
from keras_vit._page import check_sheet_path
from keras_vit._terminal import Table
from keras_vit.cli import inputs
from keras_vit.cli.program import MANY, AtLeast0, Count, CountOr0, Result, command, given, only_for

TOP = 5  # classes that `predict` shows


@command("", "photo.jpg", "photos/*.jpg --weights runs/finetune/model.keras --top 1")
def predict(
    *images: str,
    weights: str | None = None,
    top: Count | None = None,
    threshold: AtLeast0 | None = None,
    skip_unreadable: bool = False,
) -> Result:
    """Classifies images; without any, the sample picture that the package ships, with the small model `glyphs`.

    Args:
        images: pictures, and folders with all that are in them
        weights: a file, a folder, an address, a name of the catalogue, or a variant (default: ViT-B/16; without
            pictures glyphs)
        top: how many classes to show (default: 5, or all if fewer)
        threshold: several labels: the least probability (default: 0.5)
        skip_unreadable: leave out files that are not pictures, and say which
    """
    from keras_vit.preprocessing import decode_predictions, sample_image

    files = inputs.picture_files(images, skip_unreadable) if images else [sample_image()]
    weights = weights or ("ViT-B/16" if images else "glyphs")
    inputs.check_source(weights)
    inputs.start_keras()
    import keras

    from keras_vit.zoo import load

    model = load(weights)
    count = _count_classes(model, weights)
    if top is not None and top > count:
        raise ValueError(f"--top must be at most {count}, the classes of {weights}, but got {top}.")
    config, several = model.config, model.config.classifier_activation == "sigmoid"
    if threshold is not None and not several:
        raise ValueError(f"--threshold is for models of several labels, but {weights} has one for each image.")
    outputs = inputs.predicted(model, files)
    if count == 1 and not several:  # a regression
        name = (config.class_names or ("number",))[0]
        data = [{"image": path, "number": float(value)} for path, value in zip(files, outputs[:, 0], strict=True)]
        return Result(data, Table({"image": row["image"], name: f"{row['number']:.4g}"} for row in data))
    if config.classifier_activation in (None, "linear"):
        outputs = keras.ops.convert_to_numpy(keras.ops.softmax(outputs))
    top = top or (count if several else min(TOP, count))
    threshold = 0.5 if several and threshold is None else threshold
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
            f"{weights} is a {type(model).__name__}, which has no answer for the whole picture: use `keras-vit "
            "segment`, `depth`, `detect` or `anomaly`."
        )
    if not hasattr(model.config, "classes"):
        raise ValueError(
            f"{weights} is a {type(model).__name__}, but `keras-vit predict` takes a classifier of images."
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
    "photo.jpg --names cat,dog --weights hf://openai/clip-vit-base-patch32",
    "photos/*.jpg --names-from names.txt --templates openai_80 --weights clip/ --top 3",
)
def classify(
    images: inputs.Pictures,
    /,
    *,
    weights: str,
    names: inputs.Names = None,
    names_from: inputs.NamesFrom = None,
    templates: str = "a photo of a {}.",
    tokenizer: inputs.Tokenizer = None,
    top: Count | None = None,
) -> Result:
    """Classifies images by names that you give, with a CLIP or SigLIP and without training.

    Args:
        weights: both towers, such as hf://openai/clip-vit-base-patch32
        templates: a sentence with {}, or openai_80, openai_cifar10 ...
        top: how many names to show (default: all)
    """
    classes = inputs.names_in(names, names_from)
    if classes is None:
        raise ValueError("Give either --names A,B,... or --names-from FILE.")
    files = inputs.picture_files(images)
    inputs.start_keras()
    import numpy as np

    both = _load_for("classify", weights, tokenizer=tokenizer)
    model = both.zero_shot_classifier(classes, templates)
    outputs = inputs.predicted(model.with_config(classifier_activation=both.activation), files)
    named = [
        (path, [(classes[i], float(shares[i])) for i in np.argsort(-shares)[:top]])
        for path, shares in zip(files, outputs, strict=True)
    ]
    data = [{"image": path, "names": dict(pairs)} for path, pairs in named]
    return Result(data, _named_table(named, "name"))


@Parameter(name="*")
class Maps(TypedDict, total=False):
    """How maps are written."""

    head: Annotated[str, Parameter(help="the head of a backbone, such as DINOv2's for ADE20K, NYU or KITTI")]
    format: Annotated[Literal["png", "npy"], Parameter(help="of the files in a folder (default: png)")]
    flip: Annotated[bool, Parameter(help="average with the mirror image (not for EoMT)")]
    plot: Annotated[bool, Parameter(help="write figures with names or a scale instead of maps")]
    skip_unreadable: Annotated[bool, Parameter(help="leave out files that are not pictures, and say which")]
    overwrite: inputs.Overwrite


MapWeights = Annotated[str, Parameter(help="a segmentation or depth model, or a backbone with --head")]
MapOutput = Annotated[str, Parameter(alias="-o", help="a .png or .npy for one picture, otherwise a folder")]
Row = tuple[dict[str, Any], dict[str, Any]]  # of a picture: for `--json`, and for the table
# The classes of models that commands take, none for both towers; and where to get one.
_TAKES = {
    "classify": ((), "both towers of a CLIP, SigLIP, LiT or TIPS, such as hf://openai/clip-vit-base-patch32"),
    "segment": (
        ("EoMT", "LinearSegmenter", "MultiTaskDPT"),
        "a segmentation model, such as hf://tue-mps/coco_panoptic_eomt_large_640",
    ),
    "segment --names": ((), "both towers of a TIPS, such as hf://google/tipsv2-b14"),
    "depth": (
        ("DPT", "LinearDepth", "MultiTaskDPT"),
        "a depth model, such as hf://depth-anything/Depth-Anything-V2-Small-hf",
    ),
    "detect": (("Detector",), "a detector of `finetune --task detection`, or with --names an OWL"),
    "detect --names": ((), "an OWL, such as hf://google/owlv2-base-patch16-ensemble"),
}


def _load_for(command: str, weights: str, **options: Any) -> Any:
    """Returns the model of a command; ValueError, with what the command takes, for a model of another kind."""
    from keras_vit import text, zoo
    from keras_vit.checkpoints import is_keras_file
    from keras_vit.text.image_text import load_pair

    kinds, takes = _TAKES[command]
    load: Any = zoo.load if kinds else text.load_image_text if "detect" in command else load_pair
    try:
        model = load(weights, **options)
        if not kinds or type(model).__name__ in kinds:
            return model
        problem = f"is a {type(model).__name__}"
    except ValueError as error:
        if kinds or ("no text tower" not in str(error) and not is_keras_file(weights)):
            raise
        problem = "has no text tower"
    raise ValueError(f"{weights} {problem}, but `keras-vit {command}` takes {takes}.")


def _write_maps(
    images: list[str],
    weights: str,
    output: str,
    maps: Maps,
    write: Callable[[Any, Any, Path, Path], Row],
    load: Callable[[], Any],
) -> Result:
    """Writes a map or figure for each picture; returns a row for each, also for skipped ones."""
    format = maps.get("format")
    if maps.get("plot") and format == "npy":
        raise ValueError("--plot writes figures, not numbers: leave --format npy out.")
    pairs = inputs.files_to_write(images, output, format, maps.get("overwrite", False))
    inputs.check_source(weights)
    inputs.check_exists(maps.get("head"))
    inputs.start_keras()
    from keras_vit.preprocessing.images import read_picture

    model = load()
    data, table = [], Table()
    for picture, target in pairs:
        try:
            pixels = read_picture(picture, model.config.channels)
        except (OSError, ValueError) as error:
            if not maps.get("skip_unreadable"):
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
    "photo.jpg -o depth.png --weights hf://depth-anything/Depth-Anything-V2-Small-hf",
    "photos -o depths --format npy --weights dinov2_vits14_pretrain.pth --head dinov2_vits14_nyu_dpt_head.pth",
)
def depth(
    images: inputs.Pictures,
    /,
    *,
    weights: MapWeights,
    output: MapOutput,
    maps: Maps = {},
    max_depth: AtLeast0 | Literal["relative"] | None = None,
    focal: AtLeast0 | None = None,
) -> Result:
    """Measures the depth of pictures: as 16-bit PNG, as numbers, or as a figure with a scale.

    Args:
        max_depth: the largest depth in metres, or relative, if it is in no file
        focal: focal length in pixels of the pictures, by which a metric Depth Anything 3 tells metres
    """

    def write(model: Any, pixels: Any, picture: Path, target: Path) -> Row:
        from keras_vit.depth import estimate, plot

        result = estimate(model, pixels, flip=maps.get("flip", False), focal=focal)
        ends = {"least": float(result.depth.min()), "largest": float(result.depth.max())}
        row: dict[str, Any] = {"metric": result.metric, "unit": result.unit, **ends}
        if maps.get("plot"):
            plot(result, picture, target)
        else:
            row["scale"], row["offset"] = result.save(target)
        return row, {"depth": f"{ends['least']:.4g} to {ends['largest']:.4g} {result.unit}"}

    def load() -> Any:
        return _load_for("depth", weights, head=maps.get("head"), max_depth=max_depth)

    return _write_maps(images, weights, output, maps, write, load)


@command(
    "photo.jpg -o masks.png --weights hf://tue-mps/coco_panoptic_eomt_large_640 --plot",
    "photos -o maps --weights dinov2_vits14_pretrain.pth --head dinov2_vits14_ade20k_linear_head.pth --json",
    'photo.jpg -o masks.png --names "cat,grass,sky" --weights hf://google/tipsv2-b14 --plot',
)
def segment(
    images: inputs.Pictures,
    /,
    *,
    weights: MapWeights,
    output: MapOutput,
    maps: Maps = {},
    task: Literal["semantic", "panoptic", "instance"] | None = None,
    stuff: Annotated[list[CountOr0] | None, MANY] = None,
    scales: Annotated[list[AtLeast0] | None, MANY] = None,
    names: inputs.Names = None,
    names_from: inputs.NamesFrom = None,
    templates: str | None = None,
    mode: Literal["slide", "whole"] | None = None,
    tokenizer: inputs.Tokenizer = None,
) -> Result:
    """Divides pictures into segments: a map of classes or ids as PNG or numbers, or a figure with names.

    Args:
        task: what segments are (default: the model's)
        stuff: panoptic: classes whose segments are merged into one
        scales: linear heads: sizes to average over (default: 1)
        names: with both towers of a TIPS: what the classes are called
        templates: with names: a sentence with {}, or a list such as tcl (default)
        mode: with names: crops that overlap (default), or the whole picture
    """
    classes = inputs.names_in(names, names_from)
    only_for("--names A,B,...", classes is not None, templates=templates, mode=mode, tokenizer=tokenizer)
    only_for("runs without --names", classes is None, head=maps.get("head"))

    def write(model: Any, pixels: Any, picture: Path, target: Path) -> Row:
        from keras_vit import segmentation

        choices = given(task=task, stuff_classes=stuff, scales=scales)
        result = segmentation.segment(model, pixels, flip=maps.get("flip", False), **choices)
        if maps.get("plot"):
            segmentation.plot(result, picture, target)
        else:
            result.save(target)
        largest = sorted(result.segments, key=lambda part: -part.area)
        words = ", ".join(f"{part.label} {100 * part.area / result.map.size:.0f} %" for part in largest[:5])
        return result.to_dict(), {"segments": len(largest), "largest": words}

    def load() -> Any:
        if classes is None:
            return _load_for("segment", weights, head=maps.get("head"))
        both = _load_for("segment --names", weights, tokenizer=tokenizer, image_size="dynamic")
        return both.zero_shot_segmenter(classes, **given(templates=templates, mode=mode))

    return _write_maps(images, weights, output, maps, write, load)


@Parameter(name="*")
class Chosen(TypedDict, total=False):
    """Which boxes are kept."""

    threshold: Annotated[AtLeast0, Parameter(help="the least score (default: 0.1)")]
    nms: Annotated[AtLeast0, Parameter(help="the largest overlap of two boxes of a class (default: any)")]
    most: Annotated[Count, Parameter(help="how many boxes with the best scores (default: all)")]


@command(
    'photo.jpg --names "cat,remote control" --weights hf://google/owlv2-base-patch16-ensemble -o boxes.png',
    "photos --like cat.jpg --box 40 10 120 90 --weights hf://google/owlv2-base-patch16-ensemble --json",
)
def detect(
    images: inputs.Pictures,
    /,
    *,
    weights: str,
    names: inputs.Names = None,
    names_from: inputs.NamesFrom = None,
    templates: str | None = None,
    tokenizer: inputs.Tokenizer = None,
    like: str | None = None,
    box: tuple[AtLeast0, AtLeast0, AtLeast0, AtLeast0] | None = None,
    chosen: Chosen = {},
    output: Annotated[str | None, Parameter(alias="-o")] = None,
    format: Literal["png", "json", "csv"] | None = None,
    overwrite: inputs.Overwrite = False,
) -> Result:
    """Finds objects in pictures: boxes with names and scores, named by words or by an example.

    Args:
        weights: an OWL, or without --names and --like a detector
        names: what to look for
        templates: with names: a sentence with {}, or a published list (default: the name alone)
        like: in place of names a picture of what to look for
        box: of --like: left, top, right and bottom in pixels
        output: a .json, .csv or .png for one picture, otherwise a folder
        format: of the files in a folder (default: png)
    """
    classes = inputs.names_in(names, names_from)
    only_for("--output OUT", output is not None, format=format)
    only_for("--names A,B,...", classes is not None, templates=templates, tokenizer=tokenizer)
    only_for("--like IMAGE", like is not None, box=box)
    only_for("runs without --names", classes is None, like=like)
    pairs: list[tuple[Path, Path | None]]
    if output is None:
        pairs = [(Path(file), None) for file in inputs.picture_files(images)]
    else:
        pairs = [*inputs.files_to_write(images, output, format, overwrite)]
    inputs.check_source(weights)
    inputs.check_exists(like)
    inputs.start_keras()
    from keras_vit import detection

    model = _detector(weights, classes, templates, tokenizer, like, box)
    data, table = [], Table()
    for picture, target in pairs:
        found = detection.detect(model, picture, **chosen)
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


def _detector(weights: str, classes: Any, templates: Any, tokenizer: Any, like: Any, box: Any) -> Any:
    """Returns a detector of the names or of the example that are given, or the one that a file holds."""
    from keras_vit import text

    if classes is None and like is None:
        return _load_for("detect", weights)
    both = _load_for("detect --names", weights, tokenizer=tokenizer)
    if not isinstance(both, text.OpenVocabularyDetector):
        raise TypeError(f"{weights} names whole pictures, not boxes: use `keras-vit classify`, or an OWL.")
    if like is not None:
        return both.one_shot_detector(like, box)
    return both.zero_shot_detector(classes, **given(templates=templates))


def _shard(_: Any, tokens: Any) -> tuple[int, int]:
    index, _, count = tokens[0].value.partition("/")
    return check_shard((int(index), int(count)))


@command("photos -o features.npz", "photos --weights glyphs --features block_-1 -o features.npz")
def embed(
    images: Annotated[list[str], Parameter(help="a folder with all that is in it, or files and folders")],
    /,
    *,
    output: inputs.Output,
    weights: inputs.Weights = "ViT-B/16",
    features: str | None = None,
    skip_unreadable: bool = False,
    shard: Annotated[Any, Parameter(converter=_shard, n_tokens=1, metavar="I/N")] = None,
    batch_size: Count = 32,
    dtype: Literal["float32", "float16"] = "float32",
    texts: bool = False,
    overwrite: inputs.Overwrite = False,
) -> Result:
    """Writes the features of many images to a file; a run that is killed goes on.

    Args:
        output: the .npz file to write
        features: which, such as block_-1 or encoded (default: pre_logits)
        skip_unreadable: leave out files that are not images, and say which
        shard: the I-th slice of N of the images only, from 0 (default: 0/1)
        batch_size: images at a time
        dtype: in the file
        texts: the files hold texts, one a line; the weights have a text tower
    """
    only_for("runs without --texts", not texts, features=features, skip_unreadable=skip_unreadable, shard=shard)
    inputs.check_exists(*images)
    inputs.check_source(weights)
    inputs.start_keras()
    from keras_vit.evaluation import embed
    from keras_vit.evaluation.embedding import check_output

    check_output(output)
    if texts:
        return _embed_texts(images, output, weights, batch_size, dtype, overwrite)
    done = embed(
        weights,
        images if len(images) > 1 else images[0],
        output,
        shard=shard or (0, 1),
        on_bad_image="skip" if skip_unreadable else "stop",
        batch_size=batch_size,
        dtype=dtype,
        overwrite=overwrite,
        **given(features=features),
    )
    shape = " x ".join(map(str, done.shape))
    start = f"{printable(done.path)} is already complete" if done.already_complete else f"Wrote {printable(done.path)}"
    text = f"{start}: {done.count:,} images, {shape} features each"
    if done.skipped:
        names = ", ".join(printable(name) for name in done.skipped[:5])
        text += f"; {len(done.skipped)} could not be read: {names}{' ...' if len(done.skipped) > 5 else ''}"
    data = {"path": str(done.path), "images": done.count, "shape": [*done.shape], "skipped": [*done.skipped]}
    following = ["similar", "photo.jpg", str(done.path)], ["duplicates", str(done.path)]
    return Result({**data, "already_complete": done.already_complete}, inputs.summary(text, *following))


def _embed_texts(files: list[str], output: str, weights: str, batch_size: int, dtype: str, overwrite: bool) -> Result:
    """Writes the embeddings of texts, each of length 1, with the texts as names; the result says how many."""
    import numpy as np

    from keras_vit._files import replacing
    from keras_vit.text import load_image_text

    inputs.check_target(output, overwrite)
    texts = [line for path in files for line in inputs.lines_of(path)]
    features = load_image_text(weights).embed_texts(texts, batch_size).astype(dtype)
    with replacing(output) as temporary, open(temporary, "wb") as stream:
        np.savez(stream, names=np.array(texts), features=features)
    shape = [*features.shape[1:]]
    text = f"Wrote {printable(output)}: {len(texts):,} texts, {shape[0]} features each"
    return Result({"path": output, "texts": len(texts), "shape": shape}, text)


Features = Annotated[str, Parameter(help="a file of `keras-vit embed`")]
Folder = Annotated[str | None, Parameter(help="where the images are (default: the folder that was embedded)")]
Sheet = Annotated[str | None, Parameter(help="a contact sheet, .html, .png, .svg or .pdf (default: none)")]


@command("photo.jpg features.npz", "--text 'a red car' features.npz --weights clip/ --output similar.html")
def similar(
    files: list[str],
    /,
    *,
    text: str | None = None,
    count: Count = 12,
    weights: str | None = None,
    folder: Folder = None,
    output: Sheet = None,
) -> Result:
    """Finds the images that are most like one, or like words, among the features that `keras-vit embed` has written.

    Args:
        files: the image to search for, unless there is --text, and the file of `keras-vit embed`
        text: what to search for in place of an image, with a CLIP or SigLIP
        count: how many to find
        weights: the model of the features (default: as named in the file)
    """
    if len(files) != (2 if text is None else 1):
        raise ValueError("Give either an IMAGE or --text 'some words', and FEATURES, a file of `keras-vit embed`.")
    image, features = (None if text is not None else files[0]), files[-1]
    if text is not None and not weights:
        raise ValueError("--text needs --weights with an image and a text tower; the features are of the image tower.")
    inputs.check_exists(image, features, folder)
    if output:
        check_sheet_path(output)
    inputs.start_keras()
    from keras_vit import evaluation

    model: Any = weights
    query = None
    if text is not None and weights:
        from keras_vit.text.image_text import load_pair

        both = load_pair(weights)
        model, query = both.image_encoder, both.embed_texts(text)[0]
    rows = evaluation.find_similar(image, features, query=query, k=count, model=model, folder=folder)
    if output:
        title = f"Most like {printable(image or text)}"
        evaluation.draw_similar(rows, output, title, image)
    return Result([*rows], rows)


@command("features.npz --threshold 0.98", "features.npz --output duplicates.html")
def duplicates(
    features: Features, /, *, threshold: AtLeast0 = 0.95, folder: Folder = None, output: Sheet = None
) -> Result:
    """Finds images that are almost the same, among the features that `keras-vit embed` has written.

    Args:
        threshold: the least cosine similarity
    """
    inputs.check_exists(features, folder)
    if output:
        check_sheet_path(output)
    inputs.start_keras()
    from keras_vit import evaluation

    rows = evaluation.find_duplicates(features, threshold, folder=folder)
    if output and rows:
        evaluation.draw_similar(rows, output, "Near-duplicates")
    return Result([*rows], rows or "No near-duplicates.")


@command(
    "fit good -o detector.keras --weights dinov2_vits14_pretrain.pth",
    "detect detector.keras photo.jpg -o map.png",
    "evaluate detector.keras bottle",
)
def anomaly(
    action: Literal["fit", "detect", "evaluate"],
    paths: list[str],
    /,
    *,
    weights: str | None = None,
    output: Annotated[str | None, Parameter(alias="-o")] = None,
    image_size: Count | None = None,
    coreset: AtLeast0 | None = None,
    false_alarms: AtLeast0 | None = None,
    rotations: bool = False,
    masking: bool = False,
    overwrite: inputs.Overwrite = False,
) -> Result:
    """Finds what is unlike good pictures, without training.

    Args:
        action: fit makes a detector, detect looks at pictures, evaluate measures it on a folder like MVTec AD's
        paths: of fit good pictures or their folder; else the file that fit has written, then pictures or a folder
        weights: fit: the Vision Transformer
        output: fit: the .keras file to write; detect: a figure of the one picture, .png, .svg or .pdf
        image_size: fit: pixels of the shorter side (default: 448)
        coreset: fit: the share of the patches that is kept (default: all)
        false_alarms: fit: the share of good pictures that may be reported (default: 0.05)
        rotations: fit: parts may lie in any direction
        masking: fit: the background does not count
    """
    options = given(image_size=image_size, coreset=coreset, false_alarms=false_alarms)
    flags = {"rotations": rotations, "masking": masking}
    only_for("anomaly fit", action == "fit", weights=weights, **options, **flags)
    only_for("anomaly fit and detect", action != "evaluate", output=output, overwrite=overwrite)
    inputs.check_exists(*paths)
    if output is not None:
        inputs.check_target(output, overwrite)
    if action == "fit":
        if weights is None or Path(output or "").suffix != ".keras":
            raise ValueError("anomaly fit needs --weights, a Vision Transformer, and --output, a .keras file.")
        inputs.start_keras()
        from keras_vit.anomaly import fit

        with contextlib.redirect_stdout(sys.stderr):  # the names of pictures
            made = fit(weights, paths[0] if Path(paths[0]).is_dir() else paths, **options, **flags)
        made.save(output)
        found = {"path": output, "threshold": made.threshold, "false_alarms": made.false_alarms}
        text = f"Wrote {printable(output)}: threshold {made.threshold} for {made.false_alarms} false alarms"
        return Result(found, inputs.summary(text, ["anomaly", "detect", str(output), "photo.jpg"]))
    if len(paths) < 2 or (len(paths) > 2 and (action == "evaluate" or output)):
        raise ValueError(f"anomaly {action} needs a detector, and one folder, or pictures (with --output one picture).")
    inputs.start_keras()
    from keras_vit import AnomalyDetector, zoo
    from keras_vit import anomaly as anomalies

    model: Any = zoo.load(paths[0])
    if not isinstance(model, AnomalyDetector):
        raise ValueError(f"{paths[0]} must be what `keras-vit anomaly fit` has written, but it is another model.")
    if action == "evaluate":
        result = anomalies.evaluate(model, paths[1])
        return Result(result.to_dict(), result)
    rows = []
    for path in inputs.picture_files(paths[1:]):
        result = anomalies.detect(model, path)
        figures = {"score": result.score, "threshold": result.threshold, "anomalous": result.is_anomalous}
        rows.append({"image": path, **figures})
        if output is not None:
            anomalies.plot(result, path, output)
    return Result(rows, Table(rows))
