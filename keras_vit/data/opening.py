"""`open_data`: labelled images of every kind as a stream; folders, arrays, and data sets of tensorflow-datasets."""

import collections
import contextlib
import dataclasses
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import keras
import numpy as np

from keras_vit._arguments import (
    SKIP,
    ImageSize,
    check_choice,
    check_class_name,
    check_class_names,
    listing,
    pair,
    printable,
    require_packages,
    to_numpy,
    warn_caller,
    whole_number,
)
from keras_vit._files import expanded_path, fingerprint
from keras_vit._options import check_shard
from keras_vit.data.augmentation import (
    HOLDOUT,
    ORDER,
    PLAIN,
    PLAIN_SEGMENTS,
    Augmentation,
    ImageTransform,
    MaskAugmentation,
    SegmentAugmentation,
    Transform,
)
from keras_vit.data.boxes import PLAIN_BOXES, BoxAugmentation
from keras_vit.data.examples import (
    DENSE,
    IMAGE_SUFFIXES,
    IN_PLACE_OF,
    NO_TARGET,
    SPLITS,
    TARGETS,
    BadImage,
    Examples,
    Reading,
    ReadingOptions,
    check_labels,
    check_order,
    extremes,
    folders_of_splits,
    groups_of,
    image_files,
    is_folder,
    is_pipeline,
    match_labels,
    pick_split,
    split_folders,
    split_of,
    visible,
    with_channels,
)
from keras_vit.data.streams import ExampleStream, ImageStream, Labels, PipelineStream
from keras_vit.data.views import ViewAugmentation
from keras_vit.preprocessing import RESIZES, Pipeline, check_pixels, load_image


def open_data(
    source: Any,
    *,
    image_size: ImageSize | None,
    batch_size: int,
    split: str = "train",
    shuffle: bool | None = None,
    augmentation: Augmentation | MaskAugmentation | SegmentAugmentation | BoxAugmentation | ViewAugmentation | None = (
        None
    ),
    seed: int = 0,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    target: str = "class",
    resize: str | Pipeline = "squash",
    shard: tuple[int, int] = (0, 1),
    holdout: float | None = None,
    sampling: str | None = None,
    **reading: Unpack[ReadingOptions],
) -> ImageStream:
    """Returns a stream of batches of labelled images: close it after use, or use it in a `with` statement.

    Args:
        source: One of

            - a folder with `train/` and `test/` (or `val/` and the like), each with one folder of images for each
              class; or the folder of the classes itself.
            - `(images, labels)`: arrays, tensors, or a list of images of different sizes.
            - `"tfds:NAME"`: a data set of tensorflow-datasets that was prepared as `array_record`; any other is a
              pipeline, `tfds.load(NAME, split="train", as_supervised=True)`.
            - a `tf.data.Dataset`, a grain dataset or loader, a torch `DataLoader`, a `keras.utils.PyDataset`, a list of
              batches, or any iterable of (images, labels): used as it is, in its own order, with its own crops;
              `randaugment` and `mixup` of an augmentation are added.
            - what `open_table`, `open_masks`, `open_segments` or `open_boxes` return.
            - a dict with any of these for `"train"` and `"test"`.
        image_size: Size of the images in a batch, an integer or `(height, width)`. None: arrays or a pipeline of inputs
            that are ready for a model; labels are checked, images are not changed.
        batch_size: Images in a batch.
        split: `"train"`, `"test"` or `"validation"`; if only one of the last two exists, it serves as both.
        shuffle: `True`: shuffled, endless, all batches full. `False`: in order, once. `None`: `True` for `"train"`.
        augmentation: An `Augmentation` of training images; `None`: they are scaled to size. A `MaskAugmentation` for
            masks, a `SegmentAugmentation` for segments, a `BoxAugmentation` for boxes, and a `ViewAugmentation` for the
            target `"none"`.
        seed: A non-negative integer. The same seed yields the same batches.
        classes: Number of classes, if the data does not contain it.
        class_names: Names of the classes. Labels get this order; labels of arrays and pipelines already have it.
        target: What the labels of arrays and pipelines are: `"class"`, one of n; `"multilabel"`, any of n, as rows
            `(n, classes)` of 0 and 1; `"number"`, a quantity such as an age. `"none"`: labels are not read and may be
            missing: all pictures in a folder or its `train/`, an array, a list, a pipeline.
        on_bad_image: `"stop"` raises an error that names the file; `"skip"` leaves it out, warns once and keeps it in
            `stream.bad`. In training, the next good image takes its place.
        check: How files of a folder are checked before the first step: `"headers"` (opens every file: finds those that
            are cut short), `"decode"` (decodes all: also finds what is damaged in the middle) or `"none"`.
        resize: How images are resized without `shuffle`: as in `load_image`, or `model.config.pipeline`, which crops as
            the model's family does. Pixels are not normalised. Pictures with masks or boxes keep their sizes.
        workers: How many threads or processes read and decode; `None`: one per core.
        processes: Whether workers are processes, for image files only. `None`: for training on 8 cores or more.
        prefetch: How many batches, of `batch_size * height * width * 12` bytes, are made ahead while the model trains.
        shard: (i, n): only the i-th of n parts of every batch, counted from 0, for the i-th of n processes. Of files
            and arrays only the part is read; a pipeline must yield the same to all processes.
        holdout: Share of the training images of each class, drawn by the seed, that becomes the validation and test
            split. None: the data's own splits.
        sampling: For training. `"balanced"`: draws all classes equally often; `"sqrt"`: in proportion to the square
            root of their sizes; None: each image once per epoch.
        channels: Channels of the images. If not three, values may have any range, in arrays, grey pictures and TIFFs of
            8 and 16 bits or floats; such files are not checked before they are read.

    Raises:
        TypeError, ValueError: if an argument or the data is wrong, or an option does not apply; it names the file.
        OSError, ImportError: if a folder is missing or cannot be read; if a package is missing; it names the extra.

    Examples:
        >>> with data.open_data((pixels, labels), image_size=16, batch_size=2) as stream:
        ...     batch, targets = stream.batch(0)
        >>> batch.shape, batch.dtype
        ((2, 16, 16, 3), dtype('float32'))
    """
    how, size = Reading(**reading), None if image_size is None else pair("image_size", image_size)
    batch_size, seed = whole_number("batch_size", batch_size, 1), whole_number("seed", seed, 0)
    check_choice("split", split, tuple(SPLITS))
    check_choice("sampling", sampling, (None, "balanced", "sqrt"))
    shard = check_shard(shard)
    if holdout is not None and (isinstance(holdout, (bool, str)) or not 0 < holdout < 1):
        raise ValueError(f"holdout must be a share between 0 and 1, such as 0.1, but {holdout!r} was given.")
    shuffle = split == "train" if shuffle is None else shuffle
    if not isinstance(shuffle, bool) or (shuffle and split != "train"):
        raise ValueError(f'shuffle must be True (for split="train"), False or None, but {shuffle!r} was given.')
    if not shuffle and augmentation is not None:
        raise ValueError("augmentation is for shuffled training data: leave it out.")
    if sampling is not None and not shuffle:
        raise ValueError(f"sampling={sampling!r} is for shuffled training data: leave it out.")
    part, source = "train" if holdout is not None else split, expanded_path(source)
    source = pick_split(source, part) if isinstance(source, Mapping) else source
    named, classes = check_class_names(class_names, classes)
    names = None if named is None else list(named)
    # What has been opened says its target; only labels may be left out.
    known = getattr(source, "target", None)
    check_choice("target", target, (*TARGETS, NO_TARGET, *([known] if known else [])))
    kind = target if target == NO_TARGET or known is None else known
    if not isinstance(resize, Pipeline):
        check_choice("resize", resize, tuple(RESIZES))
        if resize != "squash" and (shuffle or size is None or kind in DENSE or how.channels != 3):
            raise ValueError(
                f"resize={resize!r} needs shuffle=False, image_size, three channels, and data without masks and boxes. "
                "Leave resize out."
            )
    pipeline = getattr(source, "pipeline", source if known is None and is_pipeline(source) else None)
    if (size is None or pipeline is not None) and (holdout is not None or sampling is not None or how.processes):
        raise ValueError("A pipeline decides its own order. Leave out holdout, sampling and processes.")
    if size is None:
        if shuffle:
            raise ValueError("image_size=None needs shuffle=False. Pass that, or an image size.")
        inputs, labels = inputs_of(source, batch_size), Labels(target, classes, names)
        return PipelineStream(inputs, labels, None, batch_size, how, shard)
    ignore = getattr(source, "ignore", 255)
    transform = _transform(kind, size, augmentation, resize, shuffle, seed, int(how.channels), ignore)
    if pipeline is not None:
        labels = source.in_order(names) if kind in DENSE else Labels(kind, 1 if kind == NO_TARGET else classes, names)
        if kind in DENSE and (target not in ("class", kind) or classes not in (None, labels.classes)):
            raise ValueError(
                f"classes={classes} and target={target!r} do not match the data, with {labels.classes} classes and the "
                f"target {kind!r}. Leave them out."
            )
        stream = PipelineStream(pipeline, labels, transform, batch_size, how, shard)
        stream.class_names = stream.class_names or names
        return stream
    if kind == NO_TARGET and holdout is None:
        examples = _open_pictures(source, part, how)
    else:  # a share is held out as of labelled images
        examples = _open_examples(source, part, shuffle, classes, names, how, "class" if kind == NO_TARGET else target)
    if holdout is not None:
        examples = hold_out(examples, holdout, seed, split)
    examples = examples.without_labels() if kind == NO_TARGET else examples
    return ExampleStream(examples, transform, batch_size, how, shard, sampling)


def hold_out(examples: Examples, share: float, seed: int, split: str) -> Examples:
    """Returns the examples without a share of them for `split="train"`, or else those of that share alone."""
    # The seed draws them, and the share is that of each class to within one image, of which one is kept to train on; of
    # several labels the rarest counts, and numbers are held out from small to large.
    groups, generator = groups_of(examples), np.random.default_rng([seed, HOLDOUT])
    count = round(share * len(groups))
    if examples.target in ("segments", "boxes"):
        order, count = np.random.default_rng([seed, ORDER]).permutation(len(groups)), max(1, count)
        held = order[:count]
    else:
        order = np.lexsort((generator.random(len(groups)), groups))
        if examples.target != "number":
            order = order[1:][groups[order][1:] == groups[order][:-1]]  # without one of each class
        held = np.array([generator.choice(part) for part in np.array_split(order, count)]) if count else order[:0]
    most = min(len(order), len(groups) - 1)
    if not 1 <= count <= most:
        raise ValueError(
            f"holdout={share} of {len(groups)} images is {count}, but 1 to {most} can be held out. Pass another share."
        )
    keep = np.sort(held) if split != "train" else np.setdiff1d(np.arange(len(groups)), held)
    return dataclasses.replace(
        examples.part(keep), fingerprint=fingerprint(examples.fingerprint, float(share), seed, split)
    )


def _transform(
    kind: str,
    size: tuple[int, int],
    augmentation: Any,
    resize: str | Pipeline,
    shuffle: bool,
    seed: int,
    channels: int,
    ignore: int,
) -> Transform:
    """Returns what becomes of each example of a target `kind`."""
    if not shuffle and kind in DENSE:
        return Transform(size, None, seed, channels)
    if not shuffle:
        return ImageTransform(size, None, seed, channels, resize)
    plain = {"mask": PLAIN, "segments": PLAIN_SEGMENTS, "boxes": PLAIN_BOXES}
    plain = plain.get(kind, Augmentation(crop="resize", flip=False))
    if augmentation is None:
        augmentation = plain if kind != "mask" or channels == 3 else dataclasses.replace(plain, fill=0.0)
    if kind not in getattr(augmentation, "targets", ()):
        wanted = f"data.{type(plain).__name__}"
        rows = "detection" if kind == "boxes" else "segmentation"
        hint = f" Use a recipe {rows}/..., or recipe.replace(augmentation={wanted}())." if kind in DENSE else ""
        raise TypeError(
            f"augmentation must be a {wanted} for data of the target {kind!r}, but "
            f"{type(augmentation).__name__} was given.{hint}"
        )
    augmentation.check_channels(channels)
    of_masks = {"ignore": ignore} if kind == "mask" else {}
    return augmentation.transform(size, augmentation, seed, channels, **of_masks)


def _open_pictures(source: Any, split: str, reading: Reading) -> Examples:
    """Returns pictures whose labels are not read, of data that need not have any."""
    if isinstance(source, tuple) and len(source) == 2:
        source = source[0]
    if isinstance(source, list) or len(getattr(source, "shape", ())) in (3, 4):
        return open_arrays(source, None, False, None, None, reading, "class")
    if isinstance(source, (str, os.PathLike)) and not str(source).startswith("tfds:"):
        return open_folder_of_pictures(Path(source), reading)
    return _open_examples(source, split, False, None, None, reading, "class")


def _open_examples(
    source: Any,
    split: str,
    training: bool,
    classes: int | None,
    names: list[str] | None,
    reading: Reading,
    target: str,
) -> Examples:
    """Returns the examples of a split of any data but pipelines."""
    if hasattr(source, "open_examples"):
        examples = source.open_examples(split, names, reading)
    elif isinstance(source, (tuple, list)) and len(source) == 2:
        examples = open_arrays(*source, training, classes, names, reading, target)
    elif isinstance(source, str) and source.startswith("tfds:"):
        if reading.channels != 3:
            raise ValueError(f"channels must be 3 for {source}, but {reading.channels} was given. Leave it out.")
        examples = open_tfds(source.removeprefix("tfds:"), split, names)
    elif isinstance(source, (str, os.PathLike)):
        examples = open_folder(source, split, names, reading)
    else:
        raise TypeError(
            "data must be an image folder, (images, labels), 'tfds:NAME', a tf.data, grain, torch or Keras data "
            f"set, or a dict of these, but {type(source).__name__} was given."
        )
    if target not in ("class", examples.target):
        raise ValueError(f"target={target!r} was given, but the data has the target {examples.target!r}. Leave it out.")
    if classes not in (None, examples.classes):
        raise ValueError(f"classes={classes} was given, but the data has {examples.classes} classes. Leave it out.")
    return examples


# Folders


def open_folder(root: str | os.PathLike, split: str, class_names: list[str] | None, reading: Reading) -> Examples:
    """Returns the images of a split, sorted by class and name; the arguments are those of `open_data`."""
    root = Path(root)
    if not root.is_dir():
        hint = "It is a file. Open a table with data.open_table." if root.exists() else "There is no such folder."
        raise FileNotFoundError(f"data must be an image folder, but {str(root)!r} was given. {hint}")
    folders = split_folders(root, class_names)
    if split not in folders:
        other = next(iter(folders.values()))
        missing = "train" if split == "train" else "test or val"
        raise ValueError(f"{printable(root)} has a folder {other.name}, but no folder {missing}. Add this folder.")
    folder, training = folders[split], folders.get("train", folders[split])
    files, others = _class_files(folder)
    bad: list[BadImage] = []

    def leave_out(path: Path, reason: str, advice: str) -> None:
        if not reading.skip:
            raise ValueError(f"{printable(path)}: {reason}. {advice}, or pass {SKIP} to leave it out.")
        bad.append(BadImage(str(path), reason))

    in_training = files if folder == training else _class_files(training)[0]
    names = class_names or _names_of_folders(training, in_training, leave_out)
    if len(names) < 2 and (class_names is None or split == "train"):
        raise ValueError(
            f"A classifier needs two classes or more, but {str(training)!r} has "
            f"{f'only {names[0]!r}' if names else 'none'}. Make one folder of pictures for each class, directly or in "
            "train/ and test/."
        )
    unknown = [name for name, paths in files.items() if name not in names and paths]
    if unknown:
        other = "class_names" if folder == training else "the training data"
        raise ValueError(
            f"{str(folder)!r} has classes that {other} does not have: {listing(unknown)}. Add them there, or remove "
            f"them. The known classes are {listing(names)}."
        )
    for name in (name for name in names if not files.get(name)):
        leave_out(folder / name, f"it has no pictures of the class {name!r}", "Add some")
    if others:
        count = "1 other file is" if len(others) == 1 else f"{len(others)} other files are"
        first = ", ".join(map(printable, others[:3]))
        warn_caller(f"Only images in class folders are used. {count} left out: {first}.")
    paths = [path for name in names for path in files.get(name, ())]
    labels = np.repeat(np.arange(len(names)), [len(files.get(name, ())) for name in names])
    examples = Examples(
        pictures=paths,
        labels=labels,
        name=lambda i: str(paths[i]),
        kind="folder",
        fingerprint=fingerprint(labels, [path.relative_to(folder).as_posix() for path in paths]),
        classes=len(names),
        class_names=names,
        bad=bad,
    ).readable(reading)
    for label, name in enumerate(names):
        if files.get(name) and not (examples.labels == label).any():
            raise ValueError(f"None of the {len(files[name])} pictures in {folder / name} can be read. Replace them.")
    return examples


def open_folder_of_pictures(root: Path, reading: Reading) -> Examples:
    """Returns all pictures below a folder, or below its `train/`, without labels."""
    if not root.is_dir():
        raise FileNotFoundError(f"data must be a folder of pictures, but there is no folder {printable(root)}.")
    training = {name: path for name, path in folders_of_splits(root).items() if split_of(name)[0] == "train"}
    folder = pick_split(training, "train") if training else root
    paths = image_files(folder)
    if not paths:
        raise ValueError(f"data must be a folder of pictures, but {printable(folder)} has none.")
    return Examples(
        pictures=paths,
        labels=np.zeros(len(paths), "int64"),
        name=lambda i: str(paths[i]),
        kind="pictures",
        fingerprint=fingerprint([path.relative_to(folder).as_posix() for path in paths]),
    ).readable(reading)


def _names_of_folders(
    training: Path, files: Mapping[str, Sequence[Path]], leave_out: Callable[[Path, str, str], None]
) -> list[str]:
    """Returns the names of the folders with pictures; `leave_out` is called for those without."""
    names = []
    for name, paths in files.items():
        if paths:
            check_class_name(name, f"The folder {str(training / name)!r}")
            names.append(name)
        else:
            leave_out(training / name, "it is a class folder without pictures", "Add pictures, remove the folder")
    check_order(names, printable(training))
    spellings = collections.Counter(map(str.casefold, names))
    alike = [name for name in names if spellings[name.casefold()] > 1]
    if alike:
        warn_caller(
            f"The class folders {listing(alike)} in {printable(training)} differ in capitals only. Merge them if they "
            "are the same class."
        )
    return names


def _class_files(folder: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """Returns the images in the folder of each class, and the paths of files that are none, by name or by place."""
    others: list[str] = []
    files = {}
    for entry in visible(folder):
        if is_folder(entry):
            files[entry.name] = image_files(entry.path, others)
        elif Path(entry.name).suffix.lower() in IMAGE_SUFFIXES:
            others.append(entry.path)
    return files, others


# Arrays and data sets of tensorflow-datasets


def inputs_of(source: Any, batch_size: int) -> Any:
    """Returns a pipeline of what a model takes: arrays `(images, labels)` in batches, other iterables as given."""
    if isinstance(source, tuple) and len(source) == 2:
        images, labels = map(to_numpy, source)
        if images.ndim < 2 or labels.ndim < 1 or len(images) != len(labels):
            shapes = f"{images.shape} and {labels.shape}"
            raise ValueError(f"Images and labels must be equally long batches, but have {shapes}.")
        return [(images[i : i + batch_size], labels[i : i + batch_size]) for i in range(0, len(images), batch_size)]
    if isinstance(source, (str, os.PathLike, Mapping, tuple, np.ndarray)) or not hasattr(source, "__iter__"):
        raise TypeError(
            "With image_size=None, data must be (images, labels) or an iterable of such batches, but "
            f"{type(source).__name__} was given. Pass image_size to read files."
        )
    return source


def open_arrays(
    images: Any,
    labels: Any,
    training: bool,
    classes: int | None,
    class_names: list[str] | None,
    reading: Reading,
    target: str,
) -> Examples:
    """Returns images in memory with their labels as examples; what is in arrays already is not copied."""
    # Images are `(n, height, width)` or `(n, height, width, channels)` in 0..255, or a list of images of any sizes.

    def name(i: int) -> str:
        return f"images[{i}]"

    channels = reading.channels
    ragged = isinstance(images, (list, tuple)) and len({np.shape(image) for image in images}) > 1
    images = [to_numpy(image) for image in images] if ragged else np.atleast_1d(to_numpy(images))
    labels = np.zeros(len(images), "int64") if labels is None else to_numpy(labels)
    if not all(map(np.size, images) if ragged else [images.size]):
        raise ValueError("data must hold images with pixels, but it has no images, or an image without pixels.")
    if labels.ndim == 0 or len(images) != len(labels):
        count = f"{len(labels)} labels" if labels.ndim else "a single number as labels"
        raise ValueError(f"Each image needs a label, but there are {len(images)} images and {count}.")
    are_counted = classes is None
    labels, classes = check_labels(labels, classes, "labels", name, target)
    if training and target == "class" and (classes < 2 or (labels == labels[0]).all()):
        raise ValueError(f"A classifier needs two classes or more, but all {len(labels)} labels are the same.")
    if training and are_counted and labels.ndim == 1:
        empty = classes - len(np.unique(labels))
        if 2 * empty > classes:
            largest = f"the largest label is {labels.max()}, of {name(int(labels.argmax()))}"
            hint = f"Correct this label, or pass classes={classes}."
            warn_caller(f"{empty} of {classes} classes have no picture: {largest}. {hint}")
    finite = [image.dtype.kind in "iu" or np.isfinite(np.sum(image, dtype="float64")) for image in images]
    keep = np.flatnonzero(finite)
    bad = [BadImage(name(i), "it has NaN or infinite values") for i, good in enumerate(finite) if not good]
    if bad and not (reading.skip and len(keep)):
        raise ValueError(f"{bad[0].path} has NaN or infinite values. Correct it, or pass {SKIP} to leave it out.")
    if ragged:
        others = [i for i in keep if images[i].dtype != "uint8"]
        for i in keep:
            one = with_channels(images[i][None], channels)
            check_pixels(one, channels, name=name(i), item=lambda _, i=i: name(i), scaled="ignore")
        if others:  # one of several may be dark
            parts = np.stack([extremes(with_channels(images[i][None], channels)) for i in others])
            check_pixels(parts, channels, name=f"{name(others[0])} and later images", scaled="raise")
    else:
        good = with_channels(images[keep] if bad else images, channels)
        check_pixels(good, channels, item=lambda i: name(keep[i]), scaled="raise")
    examples = Examples(
        pictures=images,
        labels=labels,
        name=name,
        kind="arrays",
        fingerprint=fingerprint(labels[keep], np.shape(images[keep[0]]), images[keep[0]], images[keep[-1]]),
        classes=classes,
        class_names=class_names,
        target=target,
        load=lambda image: with_channels(image[None], channels)[0],
        in_files=False,
        bad=bad,
    )
    return examples.part(keep) if bad else examples


def open_tfds(name: str, split: str, class_names: list[str] | None) -> Examples:
    """A split of a data set of tensorflow-datasets, such as `"oxford_iiit_pet:4.0.0"`, prepared if it is not."""
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            f'data="tfds:{name}" needs tensorflow-datasets: pip install tensorflow-datasets, or give an image folder.'
        ) from error

    builder = tfds.builder(name)
    features = builder.info.features or {}
    if not {"image", "label"} <= set(features) or not hasattr(features["label"], "names"):
        raise ValueError(f"tfds:{name} must have 'image' and 'label', a ClassLabel, but it has {sorted(features)}.")
    if getattr(builder.info.file_format, "value", None) != "array_record":
        raise ValueError(
            f"tfds:{name} is not stored as array_record, which random access needs. Call tfds.builder({name!r}, "
            'file_format="array_record").download_and_prepare(), or pass tfds.load(...) and classes=.'
        )
    builder.download_and_prepare()
    wanted = [s for s in (split, IN_PLACE_OF.get(split)) if s]
    found = next((s for s in wanted if s in builder.info.splits), None)
    if found is None:
        raise ValueError(f"tfds:{name} has no split {' or '.join(wanted)}, only {list(builder.info.splits)}.")
    pictures = builder.as_data_source(split=found, decoders={"image": tfds.decode.SkipDecoding()})
    label = features["label"]

    def called(i: int) -> str:
        return f"tfds:{name}/{found}[{i}]"

    # The labels of test splits that are kept secret are -1: check_labels says so.
    numbers = np.array([int(picture["label"]) for picture in pictures])
    labels, _ = check_labels(numbers, label.num_classes, f"tfds:{name}", called)
    names = class_names or list(label.names)
    if names != list(label.names):
        labels = match_labels(label.names, names, f"tfds:{name}")[labels]
    return Examples(
        pictures=pictures,
        labels=labels,
        name=called,
        kind=f"tfds:{name}",
        fingerprint=fingerprint(labels),
        stored_in=sorted(Path(builder.data_dir).iterdir()),
        classes=len(names),
        class_names=names,
        load=lambda picture: load_image(io.BytesIO(picture["image"]), orient=False),  # As tfds decodes.
        in_files=False,
    )


class Digits(NamedTuple):
    """Images of handwritten digits, and their labels.

    Attributes:
        pixels: uint8 `(images, 8, 8, 3)`, ink bright on black.
        labels: int32 `(images,)`, 0 to 9.

    Examples:
        >>> digits = data.Digits(np.zeros((2, 8, 8, 3), "uint8"), np.array([0, 1], "int32"))
        >>> digits.labels.tolist()
        [0, 1]
    """

    pixels: np.ndarray
    labels: np.ndarray


def load_digits() -> tuple[Digits, Digits]:
    """Returns 1,797 scans of handwritten digits, 1,297 to train on and 500 to test on, always the same.

    The split is stratified by digit. Raises ImportError if scikit-learn is not installed.

    Examples:
        >>> train, test = data.load_digits()
        >>> train.pixels.shape, len(test.labels)
        ((1297, 8, 8, 3), 500)
    """
    require_packages("The digits", ("sklearn",), "demo")
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    scans = datasets.load_digits()
    pixels = np.repeat(np.round(scans.images * (255 / 16)).astype("uint8")[..., None], 3, axis=-1)
    labels = scans.target.astype("int32")
    train, test = train_test_split(np.arange(len(labels)), test_size=500, random_state=0, stratify=labels)
    return Digits(pixels[train], labels[train]), Digits(pixels[test], labels[test])


class Batches(keras.utils.PyDataset):
    """A Keras data set of chosen batches, for `model.fit` and `model.evaluate`.

    Args:
        batch: Function from a batch's number to `(inputs, targets)` or `(inputs, targets, weights)`.
        steps: The numbers of the batches, in order.

    Examples:
        >>> batches = data.Batches(lambda step: (small_images, labels), range(10))
        >>> len(batches)
        10
    """

    def __init__(self, batch: Callable[[int], tuple[Any, ...]], steps: Sequence[int]) -> None:
        super().__init__(workers=1, use_multiprocessing=False)  # Streams read ahead by themselves.
        self._batch, self._steps = batch, steps
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Returns the batch of `steps[index]`; IndexError for an index out of range, or errors of the function."""
        try:
            return self._batch(self._steps[index])
        except Exception as error:
            self._error = error
            raise

    @contextlib.contextmanager
    def own_errors(self) -> Iterator[None]:
        """Context manager for `fit` and `evaluate`: raises an error of a batch unchanged, which TensorFlow wraps."""
        try:
            yield
        except Exception as error:
            if self._error is not None and error is not self._error:
                raise self._error from None
            raise


def as_dataset(stream: ImageStream, steps: Sequence[int]) -> Batches:
    """Returns batches of a stream as a `keras.utils.PyDataset`, for `model.fit` and `model.evaluate` on any backend.

    `steps` are the numbers of the batches of `stream`, such as a `range`. Pass `shuffle=False` to `model.fit` to keep
    their order.

    Examples:
        >>> stream = data.open_data((pixels, labels), image_size=8, batch_size=2)
        >>> data.as_dataset(stream, range(3))[0][0].shape
        (2, 8, 8, 3)
    """
    return Batches(stream.batch, steps)
