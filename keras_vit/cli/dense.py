"""The commands that answer for every pixel of a picture."""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keras_vit._files import check_folder
from keras_vit._terminal import Table
from keras_vit.cli.command import (
    COUNT_OR_0,
    OVERWRITE,
    Answer,
    at_least_0,
    check_exists,
    check_source,
    check_target,
    command,
    given,
    option,
    start_keras,
)

Row = tuple[dict[str, Any], dict[str, Any]]  # of a picture: for `--json`, and for the table
PICTURES = (
    option("images", nargs="+", metavar="IMAGE|FOLDER", help="pictures, and folders with all that are in them"),
    option("--weights", required=True, metavar="WEIGHTS", help="a model that does it, or a backbone with --head"),
    option("--head", metavar="FILE", help="the head of a backbone, such as DINOv2's for ADE20K, NYU or KITTI"),
    option("-o", "--output", required=True, metavar="OUT", help="a .png or .npy for one picture, otherwise a folder"),
    option("--format", choices=("png", "npy"), default="png", help="of the files in a folder"),
    option("--flip", action="store_true", help="average with the mirror image (not for masks of queries)"),
    option("--plot", action="store_true", help="write figures with names or a scale instead of maps"),
    option("--skip-unreadable", action="store_true", help="leave out files that are no pictures, and say which"),
    OVERWRITE,
)


def files_to_write(images: Sequence[str], output: str, ending: str, overwrite: bool) -> list[tuple[Path, Path]]:
    """Each picture and the file for its answer: `output` for one picture, otherwise one below the folder `output`."""
    from keras_vit.data import image_files

    check_exists(*images)
    pairs: list[tuple[Path, Path]] = []
    for path in map(Path, images):
        root, files = (path, image_files(path)) if path.is_dir() else (path.parent, [path])
        pairs += [(file, Path(output, file.relative_to(root)).with_suffix(ending)) for file in files]
    if not pairs:
        raise ValueError(f"There are no pictures in {', '.join(images)}.")
    if len(images) == 1 and not Path(images[0]).is_dir():
        pairs = [(Path(images[0]), Path(output))]
    targets = Counter(target for _, target in pairs)
    for target, pictures in targets.items():
        if pictures > 1:
            raise ValueError(f"Two pictures would be written to {target}: give them one by one.")
        check_target(str(target), overwrite)
    return pairs


def answers(options: argparse.Namespace, answer: Callable[[Any, Any, Path, Path], Row]) -> Answer:
    """Looks for the pictures before anything that takes long; writes one file after the other.

    `answer` takes the model, the pixels of a picture, its path and its file, and returns what `--json` and the table
    say of them.
    """
    pairs = files_to_write(options.images, options.output, f".{options.format}", options.overwrite)
    check_source(options.weights)
    check_exists(options.head)
    check_folder(pairs[0][1].parent if len(pairs) == 1 else options.output)
    start_keras()
    from keras_vit.preprocessing.windows import read_picture
    from keras_vit.zoo import load

    model = load(options.weights, head=options.head, max_depth=getattr(options, "max_depth", None))
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
        row, words = answer(model, pixels, picture, target)
        data.append({"image": str(picture), "output": str(target), **row})
        table.append({"image": str(picture), **words, "output": str(target)})
    return Answer(data, table)


def metres(text: str) -> float | str:
    """Lengths, and `relative` for depth without a unit."""
    return text if text == "relative" else at_least_0(text)


@command(
    "Measures the depth of pictures: as 16-bit PNG, as numbers, or as a figure with a scale.",
    *PICTURES,
    option(
        "--max-depth", type=metres, metavar="X", help="the largest depth in metres, or `relative`, if no file tells"
    ),
    examples=(
        "photo.jpg -o depth.png --weights hf://depth-anything/Depth-Anything-V2-Small-hf",
        "photos -o depths --format npy --weights dinov2_vits14_pretrain.pth --head dinov2_vits14_nyu_dpt_head.pth",
    ),
)
def depth(options: argparse.Namespace) -> Answer:
    """The least and the largest depth of each picture."""

    def answer(model: Any, pixels: Any, picture: Path, target: Path) -> Row:
        from keras_vit.depth import estimate, plot

        result = estimate(model, pixels, flip=options.flip)
        ends = {"least": float(result.depth.min()), "largest": float(result.depth.max())}
        row: dict[str, Any] = {"metric": result.metric, "unit": result.unit, **ends}
        if options.plot:
            plot(result, picture, target)
        else:
            row["scale"], row["offset"] = result.save(target)
        return row, {"depth": f"{ends['least']:.4g} to {ends['largest']:.4g} {result.unit}"}

    return answers(options, answer)


@command(
    "Divides pictures into segments: a map of classes or ids as PNG or numbers, or a figure with names.",
    *PICTURES,
    option("--task", choices=("semantic", "panoptic", "instance"), help="(default: the model's)"),
    option(
        "--stuff",
        dest="stuff_classes",
        type=COUNT_OR_0,
        nargs="+",
        metavar="K",
        help="panoptic: classes whose segments are joined",
    ),
    option(
        "--scales", type=at_least_0, nargs="+", metavar="X", help="linear heads: sizes to average over (default: 1)"
    ),
    examples=(
        "photo.jpg -o masks.png --weights hf://tue-mps/coco_panoptic_eomt_large_640 --plot",
        "photos -o maps --weights dinov2_vits14_pretrain.pth --head dinov2_vits14_ade20k_linear_head.pth --json",
    ),
)
def segment(options: argparse.Namespace) -> Answer:
    """The segments of each picture."""

    def answer(model: Any, pixels: Any, picture: Path, target: Path) -> Row:
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

    return answers(options, answer)
