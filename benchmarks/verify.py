"""Do published weights give the published answers and figures? For a machine with network: weights are fetched.

    python benchmarks/verify.py google/vit-base-patch16-224               # or `all`: answers, published_answers.json
    python benchmarks/verify.py openai/clip-vit-base-patch32 --data imagenet/val         # figures of the catalogue
    python benchmarks/verify.py --smallest 60 --ledger docs/ledger.jsonl  # beside the publishers' own code

Ends with 1 if something differs or could not be had. Figures, by what `--data` holds:

- top-1 and zero-shot top-1, percent: ImageNet-1k's validation images, a folder for each class (`n01440764`). Zero-shot
  as the authors measured it: OpenAI's 80 templates and 1,000 names, for SigLIP by big_vision's rule and numerics.
- PQ, percent: pictures, a file `*panoptic*.json` as COCO's, and its PNGs.
- mIoU, percent: what `data.open_masks` takes; of ADE20K 0 stands for no class.
- delta1: `images/` and `depth/`, PNGs of 16 bits in millimetres, NYU's 654 test pictures.

The ledger has a row for each checkpoint, written when it is complete: a run that was ended goes on where it was. The
publisher's own code is timm, transformers or open_clip, where it is installed and the file is one of its own; it gets
the same prepared picture.
"""

import argparse
import datetime
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import math
import platform
import sys
from pathlib import Path

import keras
import numpy as np

import keras_vit
from keras_vit import depth, evaluation, segmentation, text
from keras_vit.checkpoints import find_checkpoint, list_weights, resolve_source
from keras_vit.checkpoints.files import open_file, shards_of
from keras_vit.data.coco import pictures_by_name, read_annotation, read_ids
from keras_vit.preprocessing.images import read_channels
from keras_vit.text.image_text import load_pair
from keras_vit.zoo import load

ANSWERS = Path(__file__).with_name("published_answers.json")
DEFAULTS = {"picture": None, "tensors": None, "answers": None, "expected": None, "row": 0, "image_size": None}
DEFAULTS |= {"absolute": 1e-4, "relative": 1e-4}  # how far a value may be off, and by which share in addition
# The largest error that counts as agreement, as a share of the largest value: float32, and other orders of sums.
CLOSE = 1e-4
PATCH = 32  # pixels: no model has larger patches
EIGEN_CROP = slice(45, 471), slice(41, 601)  # of NYU's 480 x 640 pixels: the projected edges do not count


# Answers


def published_answers():
    """The rows of the file, each with `repository`, `output` (logits or tokens), `source` and all of `DEFAULTS`."""
    data = json.loads(ANSWERS.read_text(encoding="utf-8"))
    rows = [{**DEFAULTS, **row} for row in data["answers"]]
    return [{**row, "picture": data["pictures"].get(row["picture"], row["picture"])} for row in rows]


def compared(about, compute):
    """A row: `about`, and what `compute` finds (expected, answer, difference, allowed, agrees); or why it could not."""
    row = about | dict.fromkeys(("expected", "answer", "difference", "allowed", "error")) | {"agrees": False}
    try:
        row |= compute()
        return row | {"result": "agrees" if row["agrees"] else "differs"}
    except Exception as error:  # also of other packages: the other rows are compared all the same
        reason = " ".join(str(error).split())
        return row | {"result": f"failed: {reason[:120]}", "error": reason[:500]}


def verify(names, picture=None, answers=None):
    """A row for each published answer of the repositories, or of `all`."""
    rows = published_answers() if answers is None else answers
    about = ("repository", "output", "source")
    return [
        compared({key: row[key] for key in about}, lambda row=row: compare(row, picture)) for row in chosen(names, rows)
    ]


def chosen(names, rows):
    known = {row["repository"] for row in rows}
    unknown = {*names} - known - {"all"}
    if unknown:
        sys.exit(f"Nothing published is known of {', '.join(sorted(unknown))}. Known are: {', '.join(sorted(known))}.")
    return [row for row in rows if "all" in names or row["repository"] in names]


def compare(row, picture):
    answer, expected = answers_of(row, picture)
    if answer.shape != expected.shape:
        raise ValueError(f"the answer has the shape {answer.shape}, expected {expected.shape}")
    differences = np.abs(answer.astype("float64") - expected)
    limits = row["absolute"] + row["relative"] * np.abs(expected)
    worst = int(np.argmax(np.nan_to_num(differences / limits, nan=math.inf)))
    found = {"difference": float(differences.flat[worst]), "allowed": float(limits.flat[worst])}
    found["agrees"] = bool((differences <= limits).all())
    return found | {"expected": expected.tolist(), "answer": answer.tolist()}


def answers_of(row, picture):
    """Those values of the model's answer that were published, and the published ones."""
    repository = f"hf://{row['repository']}"
    options = {} if row["image_size"] is None else {"image_size": row["image_size"]}
    if row["output"] == "tokens":
        options |= {"include_top": False, "pooling": "none"}
    model = load(repository, **options)
    if row["tensors"] is not None:
        pixels = open_file(find_checkpoint(f"{repository}/{row['tensors']}"))["input"].read()
        images = np.ascontiguousarray(np.moveaxis(pixels, 1, -1))
    elif "://" in row["picture"]:
        images = model.preprocess(picture or find_checkpoint(row["picture"]))
    else:
        images = model.preprocess(find_checkpoint(f"{repository}/{row['picture']}"))
    answer = np.asarray(model.predict(np.reshape(images, (-1, *images.shape[-3:])), verbose=0))
    if row["expected"] is None:
        file = open_file(find_checkpoint(f"{repository}/{row['answers'] or row['tensors']}"))
        return answer, file["output"].read().astype("float64")
    expected = np.asarray(row["expected"], "float64")
    answer = answer[0, row["row"] :] if row["output"] == "tokens" else answer[0]
    return answer[tuple(slice(n) for n in expected.shape)], expected


# Figures


def verify_figures(names, data, rows=None):
    """A row for each figure of the catalogue that is measured on such data."""
    figures = figures_on(data)
    listed = [row for row in chosen(names, list_figures(rows)) if row["figure"] in figures]
    if not listed:
        sys.exit(f"{data} is for {', '.join(sorted(figures))}, of which nothing is published for these names.")
    about = ("repository", "figure")
    return [compared({key: row[key] for key in about}, lambda row=row: compare_figure(row, data)) for row in listed]


def list_figures(rows=None):
    """A row for each published figure that can be measured: of the catalogue, with repository, figure, published."""
    listed = []
    for row in list_weights() if rows is None else rows:
        figures = dict(row["figures"])
        if row.get("top1") is not None and row.get("classes") == 1000:
            figures["top-1"] = row["top1"]
        repository = row["name"].removeprefix("hf://")
        listed += [
            {**row, "repository": repository, "figure": figure, "published": published}
            for figure, published in figures.items()
            if figure in MEASURES
        ]
    return listed


def figures_on(data):
    """The names of the figures that are measured on such data, by what lies in its folder."""
    root = Path(data)

    def has(*names):
        return any(path.is_dir() for name in names for path in (root / name, *root.glob(f"*/{name}")))

    figures = {"PQ"} if panoptic_files(root) else set()
    if has("images") and has("masks", "annotations", "labels"):
        figures.add("mIoU")
    if has("images") and has("depth"):
        figures.add("delta1")
    return figures or {"top-1", "zero-shot top-1"}


def compare_figure(row, data):
    compute, allowed = MEASURES[row["figure"]]
    figure = compute(row, data)
    difference = abs(figure - row["published"])
    found = {"expected": [row["published"]], "answer": [figure], "difference": difference, "allowed": allowed}
    return found | {"agrees": difference <= allowed}


def zero_shot_accuracy(row, data):
    both = load_pair(row["name"], numerics="official" if row["family"].startswith("SigLIP") else None)
    # Labels are matched by the ids of ImageNet's classes, which the words are in the order of.
    model = both.zero_shot_classifier(text.imagenet_names(), "openai_80").with_config(class_names=None)
    return 100 * evaluation.evaluate(model, data, top=(1,), preprocess=True).accuracy


def accuracy(row, data):
    model = load(row["name"]).with_config(class_names=None)
    return 100 * evaluation.evaluate(model, data, top=(1,), preprocess=True).accuracy


def panoptic_quality(row, data):
    model = load(row["name"])
    names = segmentation.label_set("ade20k" if "ADE20K" in row["dataset"] else "coco")
    stuff = [k for k in names.stuff if k < model.config.classes]
    metric = segmentation.PanopticQuality(model.config.classes, stuff)
    for path, ids, segments, crowd in read_panoptic(data, model.config.class_names):
        metric.add(segmentation.segment(model, path, task="panoptic", stuff_classes=stuff), ids, segments, crowd)
    return 100 * metric.result().quality


def mean_iou(row, data):
    return 100 * segmentation.evaluate(load(row["name"]), data, reduce_zero_label="ADE20K" in row["dataset"]).mean_iou


def delta1(row, data):
    model = load(row["name"])
    errors = [depth.depth_errors(depth.estimate(model, path), metres) for path, metres in read_nyu(data)]
    return depth.mean_depth_errors(errors).delta1


# How each figure is measured, and by how much it may be off. How pictures are decoded and resized decides half a point
# of an accuracy, and less of segmentation. They are published with one digit of a percent, delta1 with three.
MEASURES = {
    "zero-shot top-1": (zero_shot_accuracy, 0.5),
    "top-1": (accuracy, 0.5),
    "PQ": (panoptic_quality, 0.3),
    "mIoU": (mean_iou, 0.3),
    "delta1": (delta1, 0.002),
}


def panoptic_files(folder):
    """Paths of annotations of COCO's panoptic form in a folder, sorted, without those of training."""
    found = [*folder.glob("*panoptic*.json"), *folder.glob("annotations/*panoptic*.json")]
    return sorted(path for path in found if "train" not in path.name)


def read_panoptic(folder, names=None):
    """Yields a picture, its ids `(height, width)`, the class of each id, and the crowds; `names` are the model's.

    The PNGs of ids lie in a folder beside the file and of its name, the pictures anywhere in the folder.
    """
    (file,) = panoptic_files(Path(folder))
    ids = file.with_suffix("")
    find = pictures_by_name(Path(folder), ids)
    for row in read_annotation(file, names, is_panoptic=True).rows:
        yield find(row.picture), read_ids(ids / row.png), row.labels, row.crowds


def read_nyu(folder):
    """Yields the path of a picture and its metres, 0 outside of the crop of Eigen et al. where it has NYU's size."""
    for path in sorted(path for path in Path(folder, "images").iterdir() if path.suffix.lower() in (".jpg", ".png")):
        levels = read_channels(Path(folder, "depth", f"{path.stem}.png"), 1)[..., 0]
        if levels.dtype == "uint8":
            raise ValueError(f"depth/{path.stem}.png must have 16 bits, millimetres, but has 8")
        metres = levels.astype("float64") / 1000
        if metres.shape == (480, 640):
            whole, metres = metres, np.zeros_like(metres)
            metres[EIGEN_CROP] = whole[EIGEN_CROP]
        yield path, metres


# The ledger


def read_ledger(path):
    """The rows of a ledger, JSON lines; none where there is no such file yet."""
    path = Path(path)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def smallest_checkpoints(count):
    rows = sorted((row for row in list_weights() if row["params"]), key=lambda row: row["params"])
    return [row["name"] for row in rows[:count]]


def write_ledger(names, path, data=None):
    """The rows of these names; those that the ledger lacks are added, except for checkpoints that cannot be had."""
    listed, known, rows = {row["name"] for row in list_weights()}, {row["name"]: row for row in read_ledger(path)}, []
    for name in (f"hf://{name}" if f"hf://{name}" in listed else name for name in names):
        if name not in known:
            try:
                known[name] = ledger_row(name, data)
            except Exception as error:  # also of other packages: the other checkpoints get their rows
                rows.append({"name": name, "result": f"failed: {' '.join(str(error).split())[:300]}"})
                continue
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in known.values()]
            part = Path(f"{path}.part")
            part.write_text("".join(lines), encoding="utf-8")
            part.replace(path)
        rows.append(known[name])
    return rows


def ledger_row(name, data):
    """Hashes of a checkpoint, how far it is from its publisher's code, and published answers and figures."""
    path = find_checkpoint(resolve_source(name))
    model = load(name)
    commit = path.parts[path.parts.index("snapshots") + 1] if "snapshots" in path.parts else None
    beside = beside_publisher(model, name, path)
    published = published_of(name, data)
    agrees = [row["agrees"] for row in published] + ([beside["error"] <= CLOSE] if beside else [])
    result = "read"
    if agrees:
        result = "agrees" if all(agrees) else "differs"
    return {
        "name": name,
        "repository": name.removeprefix("hf://").partition("@")[0] if name.startswith("hf://") else None,
        "commit": commit,
        "files": {file.name: sha256(file) for file in (path, *(path.parent / s for s in {*shards_of(path).values()}))},
        **(beside or dict.fromkeys(("beside", "answer", "error", "largest", "pixels"))),
        "published": published,
        "result": result,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": f"keras_vit {keras_vit.__version__}, Keras {keras.__version__}, {version(keras.backend.backend())}",
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }


def published_of(name, data):
    repository = name.removeprefix("hf://")
    rows = []
    if any(row["repository"] == repository for row in published_answers()):
        rows += verify([repository])
    figures = set() if data is None else figures_on(data)
    if any(row["repository"] == repository and row["figure"] in figures for row in list_figures()):
        rows += [row | {"output": row["figure"]} for row in verify_figures([repository], data)]
    for row in rows:
        if row["error"]:
            raise ValueError(row["error"])
    keys = ("output", "source", "difference", "allowed", "agrees")
    kept = [{key: row.get(key, "the catalogue's figures") for key in keys} for row in rows]
    for row, found in zip(kept, rows, strict=True):
        if "figure" in found:  # single numbers
            row |= {key: found[key][0] for key in ("expected", "answer")}
    return kept


def sha256(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def version(package):
    return f"{package} {importlib.metadata.version(package)}"


# The publishers' own code. Each function takes the folder, the picture and how `load` prepares it, and returns the
# picture as theirs prepares it, channels last, and their answers to ours, by name.


def beside_publisher(model, name, path):
    """How far a model's output is from that of its publisher's code; None where that reads no such file."""
    from PIL import Image

    package, answer = publisher(path)
    if answer is None or importlib.util.find_spec(package) is None or importlib.util.find_spec("torch") is None:
        return None
    picture = drawn_picture()
    prepared = np.asarray(model.preprocess(picture))
    result = answer(path.parent, Image.fromarray(picture), prepared)
    if result is None or not result[1]:
        return None
    pixels, theirs = result
    kind, found, expected = comparable(model, name, prepared, theirs)
    largest = float(np.abs(expected).max())
    height, width = prepared.shape[1:3]  # ours leaves out what fills no patch
    apart = None
    if not hasattr(model, "backbone"):  # pictures of any size for masks and depth are prepared where they are made
        scale = 255 * np.asarray(model.config.pipeline.std)
        apart = float((np.abs(prepared - pixels[:, :height, :width]) * scale).max())
    return {
        "beside": version(package if package != "open_clip" else "open_clip_torch"),
        "answer": kind,
        "error": float(np.abs(found - expected).max()) / largest,
        "largest": largest,
        "pixels": apart,
    }


def comparable(model, name, prepared, theirs):
    """The first kind of output of which both have as many values, with ours and the publisher's, flat."""
    for kind, expected in theirs.items():
        if kind == "tokens":  # what every image model has, compared where the answers are not the same things
            model = load(name, include_top=False, pooling="none")
        found, expected = np.ravel(model.predict(prepared, verbose=0)), np.ravel(expected)
        if found.shape == expected.shape:
            return kind, found, expected
    raise ValueError(f"the publisher answers with {', '.join(theirs)}, of which none has the shape of the answer here")


def drawn_picture():
    """A picture, uint8 `(270, 360, 3)`, the same each time: colours that change slowly, and noise."""
    rows, columns = np.mgrid[0:270, 0:360] / 360
    waves = [np.sin(9 * rows + 2), np.cos(7 * columns), np.sin(11 * rows * columns + 5 * columns)]
    noise = np.random.default_rng(0).normal(size=(*rows.shape, 3))
    return np.clip(128 + 80 * np.stack(waves, -1) + 20 * noise, 0, 255).astype("uint8")


def publisher(path):
    """The package that a file was made for, by the JSON beside it, and the function that runs it, or None."""
    if (path.parent / "open_clip_config.json").is_file():
        return "open_clip", run_open_clip
    config = path.parent / "config.json"
    about = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    if "architecture" in about:
        return "timm", run_timm
    return "transformers", run_transformers if "model_type" in about else None


def run_timm(folder, picture, prepared):
    import timm
    import torch

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    pixels = timm.data.create_transform(**timm.data.resolve_model_data_config(model))(picture)[None]
    with torch.no_grad():
        answer = model(channels_first(prepared, pixels))
    return np.moveaxis(pixels.numpy(), 1, -1), {"answer": answer.numpy()}


def run_open_clip(folder, picture, prepared):
    import open_clip
    import torch

    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    pixels = transform(picture)[None]
    with torch.no_grad():
        answer = model.eval().encode_image(channels_first(prepared, pixels))
    return np.moveaxis(pixels.numpy(), 1, -1), {"embedding": answer.numpy()}


def run_transformers(folder, picture, prepared):
    import torch
    import transformers

    (architecture,) = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    model = getattr(transformers, architecture).from_pretrained(folder).eval()
    # Pillow, where there is a choice: torchvision rounds its weights to 16 bits, one grey level off.
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor(picture, return_tensors="pt")["pixel_values"]
    if pixels.ndim != 4:  # NaFlex's are patches of no one size
        return None
    options = {}
    if hasattr(model.config, "mask_ratio"):  # MAE shuffles the patches by these numbers: all of them, in their order
        model.config.mask_ratio = 0.0
        patches = (pixels.shape[-1] // model.config.patch_size) ** 2
        options = {"noise": torch.arange(patches)[None] / patches}
    images = channels_first(prepared, pixels)
    tower = model.base_model if options else model
    with torch.no_grad():
        answer = model.get_image_features(images) if hasattr(model, "get_image_features") else tower(images, **options)
    kinds = {"logits": "logits", "image_embeds": "embedding", "pooler_output": "pooled", "predicted_depth": "depth"}
    answers = {title: answer[kind].numpy() for kind, title in kinds.items() if answer.get(kind) is not None}
    if answer.get("last_hidden_state") is not None:
        answers["tokens"] = answer["last_hidden_state"].numpy()
    return np.moveaxis(pixels.numpy(), 1, -1), answers


def channels_first(prepared, pixels):
    """The prepared picture for PyTorch; what it leaves out because it fills no patch is filled in from `pixels`."""
    ours, (height, width) = pixels.new_tensor(np.moveaxis(prepared, -1, 1)), prepared.shape[1:3]
    if not 0 <= pixels.shape[2] - height == pixels.shape[3] - width < PATCH:
        return ours  # depth: theirs keeps the picture's own aspect ratio
    images = pixels.clone()
    images[:, :, :height, :width] = ours
    return images


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="repositories of the Hugging Face Hub, or `all`; with --ledger any")
    parser.add_argument("--picture", help="a copy of the picture, in place of the one at its address")
    parser.add_argument("--data", help="measure figures on this folder")
    parser.add_argument("--ledger", help="add a row for each that has none")
    parser.add_argument("--smallest", type=int, help="with --ledger, in place of names: so many of the catalogue")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args(arguments)
    if bool(options.names) == bool(options.smallest) or (options.smallest and not options.ledger):
        parser.error("name what to verify, or say how many with --smallest COUNT --ledger FILE")
    if options.picture and (options.data or options.ledger):
        parser.error("--picture is for answers alone: leave out --data and --ledger")
    if options.ledger:
        rows = write_ledger(options.names or smallest_checkpoints(options.smallest), options.ledger, options.data)
    elif options.data:
        rows = verify_figures(options.names, options.data)
    else:
        rows = verify(options.names, options.picture)
    if options.json:
        print(json.dumps(rows, indent=2))
    for row in () if options.json else rows:
        what = [row.get("name") or row["repository"], row.get("output") or row.get("figure"), row["result"]]
        numbers = [f"{key} {row[key]:.3g}" for key in ("difference", "allowed", "error") if _is_number(row.get(key))]
        print("  ".join(str(part) for part in (*what, *numbers) if part))
    sys.exit(0 if all(row["result"] in ("agrees", "read") for row in rows) else 1)


def _is_number(value):
    return isinstance(value, float)


if __name__ == "__main__":
    main()
