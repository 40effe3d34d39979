"""The commands that answer for every pixel of a picture."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    option,
    start_keras,
)

IMAGES = option("images", nargs="+", metavar="IMAGE|FOLDER", help="pictures, and folders with all that are in them")


def files_to_write(images: Sequence[str], output: str, ending: str, overwrite: bool) -> list[tuple[Path, Path]]:
    """Each picture and the file for its answer: `output` for one picture, otherwise one below the folder `output`."""
    from keras_vit.data import image_files

    check_exists(*images)
    found: list[tuple[Path, Path]] = []
    for path in map(Path, images):
        inside = image_files(path) if path.is_dir() else [path]
        found += [(file, file.relative_to(path) if path.is_dir() else Path(file.name)) for file in inside]
    if not found:
        raise ValueError(f"There are no pictures in {', '.join(images)}.")
    if len(images) == 1 and not Path(images[0]).is_dir():
        pairs = [(found[0][0], Path(output))]
    else:
        pairs = [(file, Path(output, name).with_suffix(ending)) for file, name in found]
    targets = [target for _, target in pairs]
    if twice := next((target for target in targets if targets.count(target) > 1), None):
        raise ValueError(f"Two pictures would be written to {twice}: give them one by one.")
    for target in targets:
        check_target(str(target), overwrite)
    return pairs


@command(
    "Measures the depth of pictures: as 16-bit PNG, as numbers, or as a figure with a scale.",
    IMAGES,
    option("--weights", required=True, metavar="FILE|ADDRESS", help="a depth model, or a backbone with --head"),
    option("--head", metavar="FILE", help="the head of a backbone, such as DINOv2's for NYU or KITTI"),
    option("-o", "--output", required=True, metavar="OUT", help="a .png or .npy for one picture, otherwise a folder"),
    option("--format", choices=("png", "npy"), default="png", help="of the files in a folder"),
    option("--flip", action="store_true", help="average with the depth of the mirror image"),
    option("--plot", action="store_true", help="write figures with a scale instead of numbers"),
    OVERWRITE,
    examples=(
        "photo.jpg -o depth.png --weights hf://depth-anything/Depth-Anything-V2-Small-hf",
        "photos -o depths --format npy --weights dinov2_vits14_pretrain.pth --head dinov2_vits14_nyu_dpt_head.pth",
    ),
)
def depth(options: argparse.Namespace) -> Answer:
    """Looks for the pictures before anything that takes long; writes one file after the other."""
    pairs = files_to_write(options.images, options.output, f".{options.format}", options.overwrite)
    check_source(options.weights)
    check_exists(options.head)
    start_keras()
    from keras_vit.depth import estimate, plot
    from keras_vit.zoo import load

    model = load(options.weights, head=options.head)
    data, table = [], Table()
    for picture, target in pairs:
        result = estimate(model, picture, flip=options.flip)
        target.parent.mkdir(parents=True, exist_ok=True)
        row: dict[str, Any] = {"image": str(picture), "output": str(target), "metric": result.metric}
        row |= {"unit": result.unit, "least": float(result.depth.min()), "largest": float(result.depth.max())}
        if options.plot:
            plot(result, picture, target)
        else:
            row["scale"], row["offset"] = result.save(target)
        data.append(row)
        ends = f"{row['least']:.4g} to {row['largest']:.4g}"
        table.append({"image": row["image"], "depth": f"{ends} {result.unit}", "output": row["output"]})
    return Answer(data, table)


@command(
    "Divides pictures into segments: a map of classes or ids as PNG or numbers, or a figure with names.",
    IMAGES,
    option("--weights", required=True, metavar="FILE|ADDRESS", help="a model of masks, or a backbone with --head"),
    option("--head", metavar="FILE", help="the head of a backbone, such as DINOv2's linear one for ADE20K"),
    option("-o", "--output", required=True, metavar="OUT", help="a .png or .npy for one picture, otherwise a folder"),
    option("--format", choices=("png", "npy"), default="png", help="of the files in a folder"),
    option("--task", choices=("semantic", "panoptic", "instance"), help="(default: the model's)"),
    option("--stuff", type=COUNT_OR_0, nargs="+", metavar="K", help="panoptic: classes whose segments are joined"),
    option(
        "--scales", type=at_least_0, nargs="+", metavar="X", help="linear heads: sizes to average over (default: 1)"
    ),
    option("--flip", action="store_true", help="linear heads: average with the mirror image"),
    option("--plot", action="store_true", help="write figures of the segments over the pictures instead of maps"),
    OVERWRITE,
    examples=(
        "photo.jpg -o masks.png --weights hf://tue-mps/coco_panoptic_eomt_large_640 --plot",
        "photos -o maps --weights dinov2_vits14_pretrain.pth --head dinov2_vits14_ade20k_linear_head.pth --json",
    ),
)
def segment(options: argparse.Namespace) -> Answer:
    """Looks for the pictures before anything that takes long; writes one file after the other."""
    pairs = files_to_write(options.images, options.output, f".{options.format}", options.overwrite)
    check_source(options.weights)
    check_exists(options.head)
    start_keras()
    from keras_vit import segmentation
    from keras_vit.zoo import load

    model = load(options.weights, head=options.head)
    choices = {"task": options.task, "stuff_classes": options.stuff, "scales": options.scales}
    choices = {name: value for name, value in choices.items() if value is not None}
    data, table = [], Table()
    for picture, target in pairs:
        result = segmentation.segment(model, picture, flip=options.flip, **choices)
        target.parent.mkdir(parents=True, exist_ok=True)
        if options.plot:
            segmentation.plot(result, picture, target)
        else:
            result.save(target)
        data.append({"image": str(picture), "output": str(target), **result.to_dict()})
        largest = sorted(result.segments, key=lambda part: -part.area)
        words = ", ".join(f"{part.label} {100 * part.area / result.map.size:.0f} %" for part in largest[:5])
        table.append({"image": str(picture), "segments": len(largest), "largest": words, "output": str(target)})
    return Answer(data, table)
