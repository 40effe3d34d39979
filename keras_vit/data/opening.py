"""`open_data`: labelled images of every kind as a stream; folders, arrays, and data sets of tensorflow-datasets."""

import dataclasses
import functools
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Unpack

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
)
from keras_vit._files import expanded_path, fingerprint
from keras_vit._options import GIVEN, INSIDE, Count, Positive, check_shard, checked, option, refuse
from keras_vit.data import boxes, segments  # noqa: F401 - they register their kinds of targets
from keras_vit.data import examples as base
from keras_vit.data.augmentation import HOLDOUT, ORDER, ImageTransform, PictureAugmentation, Transform
from keras_vit.data.streams import ExampleStream, ImageStream, Labels, PipelineStream
from keras_vit.data.targets import CLASS, LABELLED, NONE, TARGETS, TargetKind
from keras_vit.preprocessing import RESIZES, Pipeline, check_pixels, load_image


@checked
def open_data(
    source: Any,
    *,
    image_size: Annotated[ImageSize, pair] | None,
    batch_size: Positive,
    split: Literal["train", "test", "validation"] = "train",
    shuffle: bool | None = None,
    augmentation: "PictureAugmentation | None" = None,
    seed: Count = 0,
    classes: Positive | None = None,
    class_names: Sequence[str] | None = None,
    target: str = "class",
    resize: str | Pipeline = "squash",
    shard: tuple[int, int] = (0, 1),
    holdout: Annotated[float, INSIDE] | None = None,
    sampling: Literal["balanced", "sqrt"] | None = None,
    **reading: Unpack[base.ReadingOptions],
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
    how, size, shard = base.Reading(**reading), image_size, check_shard(shard)
    shuffle = split == "train" if shuffle is None else shuffle
    part, source = "train" if holdout is not None else split, expanded_path(source)
    source = base.pick_split(source, part) if isinstance(source, Mapping) else source
    named, count = check_class_names(class_names, classes)
    names = None if named is None else list(named)
    # What has been opened says its target; only labels may be left out.
    known = getattr(source, "target", None)
    known_kinds = [name for name, kind in TARGETS.items() if kind.is_label or kind.check or name == known]
    check_choice("target", target, tuple(known_kinds))
    kind = TARGETS[target if target == NONE.name or known is None else known]
    pipeline = getattr(source, "pipeline", source if known is None and base.is_pipeline(source) else None)
    given = {"augmentation": augmentation, "sampling": sampling, "holdout": holdout, "processes": how.processes or None}
    given |= {"shuffle": shuffle, "classes": classes, "resize": resize}
    situation = {"split": split, "shuffle": shuffle, "image_size": size, "target": kind.name, "channels": how.channels}
    situation["data"] = "examples" if size and pipeline is None else "a pipeline, which has its own order"
    if isinstance(resize, str):
        check_choice("resize", resize, tuple(RESIZES))
        refuse(_OF_RESIZES, given, situation)
    refuse(_OF_DATA, given, situation)
    if size is None:
        inputs, labels = inputs_of(source, batch_size), Labels(target, count, names)
        return PipelineStream(inputs, labels, None, batch_size, how, shard)
    fields = {"image_size": size, "seed": seed, "channels": how.channels}
    transform = _transform(kind, augmentation, resize, shuffle, source, **fields)
    if pipeline is not None:
        labels = Labels(kind.name, 1 if kind is NONE else count, names) if known is None else source.in_order(names)
        _check_given(target, count, labels)
        stream = PipelineStream(pipeline, labels, transform, batch_size, how, shard)
        stream.class_names = stream.class_names or names
        return stream
    if kind is NONE and holdout is None:
        examples = open_pictures(source, part, how)
    else:  # a share is held out as of labelled images
        labels = Labels(CLASS.name if kind is NONE else target, count, names)
        examples = _open_examples(source, part, shuffle, labels, how)
    if holdout is not None:
        examples = hold_out(examples, holdout, seed, split)
    examples = examples.without_labels() if kind is NONE else examples
    return ExampleStream(examples, transform, batch_size, how, shard, sampling)


ANY_CLASS = Labels(CLASS.name, None, None)
# Options that are not for all data, or not for data in order.
_OF_DATA = {
    "shuffle": option(False, when={"split": ("train",), "image_size": GIVEN}),
    "resize": option("squash", when={"shuffle": (False,), "image_size": GIVEN}),
    "classes": option(when={"target": LABELLED}),
    "augmentation": option(when={"shuffle": (True,)}),
    "sampling": option(when={"shuffle": (True,), "data": ("examples",)}),
    "holdout": option(when={"data": ("examples",)}),
    "processes": option(when={"data": ("examples",)}),
}
# Where `resize` may be a name.
_LABELS = tuple(name for name, kind in TARGETS.items() if kind.is_label)
_OF_RESIZES = {"resize": option("squash", when={"target": _LABELS, "channels": (3,)})}


def _check_given(target: str, classes: int | None, data: Any) -> None:
    """Raises ValueError for another target or number of classes than the data has."""
    if target not in (CLASS.name, data.target):
        raise ValueError(f"target={target!r} was given, but the data has the target {data.target!r}. Leave it out.")
    if classes not in (None, data.classes):
        raise ValueError(f"classes={classes} was given, but the data has {data.classes} classes. Leave it out.")


def hold_out(examples: base.Examples, share: float, seed: int, split: str) -> base.Examples:
    """Returns the examples without a share of them for `split="train"`, or else those of that share alone."""
    # The seed draws them, and the share is that of each class to within one image, of which one is kept to train on; of
    # several labels the rarest counts, and numbers are held out from small to large.
    strata, generator = base.strata_of(examples), np.random.default_rng([seed, HOLDOUT])
    count, kind = round(share * len(strata)), TARGETS[examples.target]
    if kind.parts:
        order, count = np.random.default_rng([seed, ORDER]).permutation(len(strata)), max(1, count)
        held = order[:count]
    else:
        order = np.lexsort((generator.random(len(strata)), strata))
        if kind.has_classes:
            order = order[1:][strata[order][1:] == strata[order][:-1]]  # without one of each class
        held = np.array([generator.choice(part) for part in np.array_split(order, count)]) if count else order[:0]
    most = min(len(order), len(strata) - 1)
    if not 1 <= count <= most:
        found = f"holdout={share} of {len(strata)} images is {count}"
        raise ValueError(f"{found}, but 1 to {most} can be held out. Pass another share.")
    keep = np.sort(held) if split != "train" else np.setdiff1d(np.arange(len(strata)), held)
    return dataclasses.replace(
        examples.part(keep), fingerprint=fingerprint(examples.fingerprint, float(share), seed, split)
    )


def _transform(
    kind: TargetKind,
    augmentation: Any,
    resize: str | Pipeline,
    shuffle: bool,
    source: Any,
    channels: int,
    **fields: Any,
) -> Transform:
    if not shuffle and not kind.is_label:
        return Transform(channels=channels, **fields)
    if not shuffle:
        return ImageTransform(channels=channels, resize=resize, **fields)
    if augmentation is None:  # a fill for three channels does not fit others
        names = [name for name in kind.plain.per_channel if isinstance(getattr(kind.plain, name), tuple)]
        augmentation = dataclasses.replace(kind.plain, **dict.fromkeys(names if channels != 3 else (), 0.0))
    if not isinstance(augmentation, (type(kind.plain), *kind.others)):
        own = type(kind.plain)
        wanted = f"data.{own.__name__}" if own.__module__.startswith("keras_vit.") else own.__name__
        hint = f"Use a recipe {kind.command}/..., or recipe.replace(augmentation={wanted}())."
        hint = "" if kind.is_label or not kind.recipe else hint
        given = f"for data of the target {kind.name!r}, but {type(augmentation).__name__} was given."
        raise TypeError(f"augmentation must be a {wanted} {given} {hint}".rstrip())
    augmentation.check_channels(channels)
    if hasattr(augmentation.transform, "ignore"):  # of masks
        fields["ignore"] = source.ignore
    return augmentation.transform(augmentation=augmentation, channels=channels, **fields)


def open_pictures(source: Any, split: str, reading: base.Reading) -> base.Examples:
    """Returns pictures without labels: a folder, files, arrays, or what else `open_data` takes, except pipelines."""
    if isinstance(source, tuple) and len(source) == 2:
        source = source[0]
    if isinstance(source, list) and source and all(isinstance(item, (str, os.PathLike)) for item in source):
        paths = [Path(expanded_path(item)) for item in source]
        return _open_files(paths, [path.as_posix() for path in paths], reading)
    if isinstance(source, list) or len(getattr(source, "shape", ())) in (3, 4):
        return open_arrays(source, None, False, ANY_CLASS, reading)
    if isinstance(source, (str, os.PathLike)) and not str(source).startswith("tfds:"):
        return open_folder_of_pictures(Path(source), reading)
    return _open_examples(source, split, False, ANY_CLASS, reading)


def _open_examples(source: Any, split: str, training: bool, given: Labels, reading: base.Reading) -> base.Examples:
    names = given.class_names
    if hasattr(source, "open_examples"):
        examples = source.open_examples(split, names, reading)
    elif isinstance(source, (tuple, list)) and len(source) == 2:
        examples = open_arrays(*source, training, given, reading)
    elif isinstance(source, str) and source.startswith("tfds:"):
        if reading.channels != 3:
            raise ValueError(f"channels must be 3 for {source}, but {reading.channels} was given. Leave it out.")
        examples = open_tfds(source.removeprefix("tfds:"), split, names)
    elif isinstance(source, (str, os.PathLike)):
        examples = open_folder(source, split, names, reading)
    else:
        expected = "an image folder, (images, labels), 'tfds:NAME', a data set of tf.data, grain, torch or Keras"
        raise TypeError(f"data must be {expected}, or a dict of these, but {type(source).__name__} was given.")
    _check_given(given.target, given.classes, examples)
    return examples


# Folders


def open_folder(
    root: str | os.PathLike, split: str, class_names: list[str] | None, reading: base.Reading
) -> base.Examples:
    """Returns the images of a split, sorted by class and name; the arguments are those of `open_data`."""
    root = Path(root)
    base.check_folder(root, "the images of each class")
    folders = base.split_folders(root, class_names)
    if split not in folders:
        other = next(iter(folders.values()))
        missing = "train" if split == "train" else "test or val"
        raise ValueError(f"{printable(root)} has a folder {other.name}, but no folder {missing}. Add this folder.")
    folder, training = folders[split], folders.get("train", folders[split])
    files, others = _class_files(folder)
    bad: list[base.BadImage] = []

    def leave_out(path: Path, reason: str, advice: str) -> None:
        if not reading.skip:
            raise ValueError(f"{printable(path)}: {reason}. {advice}, or pass {SKIP} to leave it out.")
        bad.append(base.BadImage(str(path), reason))

    in_training = files if folder == training else _class_files(training)[0]
    names = class_names or _names_of_folders(training, in_training, leave_out)
    found = f"only {names[0]!r}" if names else "none"
    if len(names) < 2 and (class_names is None or split == "train"):
        raise ValueError(
            f"A classifier needs two classes or more, but {str(training)!r} has {found}. Make one folder of "
            "pictures for each class, directly or in train/ and test/."
        )
    unknown = [name for name, paths in files.items() if name not in names and paths]
    if unknown:
        other = "class_names" if folder == training else "the training data"
        found = f"{str(folder)!r} has classes that {other} does not have: {listing(unknown)}."
        raise ValueError(f"{found} Add them there, or remove them. The known classes are {listing(names)}.")
    for name in (name for name in names if not files.get(name)):
        leave_out(folder / name, f"it has no pictures of the class {name!r}", "Add some")
    if others:
        count = "1 other file is" if len(others) == 1 else f"{len(others)} other files are"
        first = ", ".join(map(printable, others[:3]))
        warn_caller(f"Only images in class folders are used. {count} left out: {first}.")
    paths = [path for name in names for path in files.get(name, ())]
    labels = np.repeat(np.arange(len(names)), [len(files.get(name, ())) for name in names])
    examples = base.Examples(
        pictures=paths,
        labels=labels,
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


def open_folder_of_pictures(root: Path, reading: base.Reading) -> base.Examples:
    """Returns all pictures below a folder, or below its `train/`, without labels."""
    base.check_folder(root, "the pictures")
    training = {name: path for name, path in base.folders_of_splits(root).items() if base.split_of(name)[0] == "train"}
    folder = base.pick_split(training, "train") if training else root
    paths = base.image_files(folder)
    if not paths:
        raise ValueError(f"data must be a folder of pictures, but {printable(folder)} has none.")
    return _open_files(paths, [path.relative_to(folder).as_posix() for path in paths], reading)


def _open_files(paths: list[Path], names: list[str], reading: base.Reading) -> base.Examples:
    fields = {"labels": np.zeros(len(paths), "int64"), "fingerprint": fingerprint(names)}
    return base.Examples(pictures=paths, kind="pictures", **fields).readable(reading)


def _names_of_folders(
    training: Path, files: Mapping[str, Sequence[Path]], leave_out: Callable[[Path, str, str], None]
) -> list[str]:
    names = []
    for name, paths in files.items():
        if paths:
            check_class_name(name, f"The folder {str(training / name)!r}")
            names.append(name)
        else:
            leave_out(training / name, "it is a class folder without pictures", "Add pictures, remove the folder")
    base.check_order(names, printable(training))
    base.warn_of_spellings(names, printable(training))
    return names


def _class_files(folder: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """Returns the images in the folder of each class, and the paths of files that are none, by name or by place."""
    others: list[str] = []
    files = {}
    for entry in base.visible(folder):
        if base.is_folder(entry):
            files[entry.name] = base.image_files(entry.path, others)
        elif Path(entry.name).suffix.lower() in base.IMAGE_SUFFIXES:
            others.append(entry.path)
    return files, others


# Arrays and data sets of tensorflow-datasets


def inputs_of(source: Any, batch_size: int) -> Any:
    """Returns a pipeline of what a model takes: arrays `(images, labels)` in batches, other iterables as given."""
    if isinstance(source, tuple) and len(source) == 2:
        try:
            images, labels = map(to_numpy, source)
        except ValueError as error:
            raise ValueError("Images must be equally large to form a batch. Pass image_size to resize them.") from error
        if images.ndim < 2 or labels.ndim < 1 or len(images) != len(labels):
            shapes = f"{images.shape} and {labels.shape}"
            raise ValueError(f"Images and labels must be equally long batches, but have {shapes}.")
        return [(images[i : i + batch_size], labels[i : i + batch_size]) for i in range(0, len(images), batch_size)]
    if isinstance(source, (str, os.PathLike, Mapping, tuple, np.ndarray)) or not hasattr(source, "__iter__"):
        wanted = "With image_size=None, data must be (images, labels) or an iterable of such batches"
        raise TypeError(f"{wanted}, but {type(source).__name__} was given. Pass image_size to read files.")
    return source


def open_arrays(images: Any, labels: Any, training: bool, given: Labels, reading: base.Reading) -> base.Examples:
    """Returns images in memory with their labels as examples; what is in arrays already is not copied."""
    # Images are `(n, height, width)` or `(n, height, width, channels)` in 0..255, or a list of images of any sizes.
    channels, name = reading.channels, "images[{}]".format
    ragged = isinstance(images, (list, tuple)) and len({np.shape(image) for image in images}) > 1
    images = [to_numpy(image) for image in images] if ragged else np.atleast_1d(to_numpy(images))
    labels = np.zeros(len(images), "int64") if labels is None else to_numpy(labels)
    if not all(map(np.size, images) if ragged else [images.size]):
        raise ValueError("data must hold images with pixels, but it has no images, or an image without pixels.")
    if labels.ndim == 0 or len(images) != len(labels):
        count = f"{len(labels)} labels" if labels.ndim else "a single number as labels"
        raise ValueError(f"Each image needs a label, but there are {len(images)} images and {count}.")
    kind, annotations, classes = TARGETS[given.target], {}, given.classes or 1
    if kind.is_label:
        labels, classes = base.check_labels(labels, given.classes, "labels", name, kind.name)
    else:
        annotations = {"notes": labels, "annotate": functools.partial(_checked, kind.check)}
        labels = np.zeros(len(images), "int64")
    if training and kind is CLASS and (classes < 2 or (labels == labels[0]).all()):
        raise ValueError(f"A classifier needs two classes or more, but all {len(labels)} labels are the same.")
    if training and kind.is_label and given.classes is None and labels.ndim == 1:
        empty = classes - len(np.unique(labels))
        if 2 * empty > classes:
            largest = f"the largest label is {labels.max()}, of {name(int(labels.argmax()))}"
            hint = f"Correct this label, or pass classes={classes}."
            warn_caller(f"{empty} of {classes} classes have no picture: {largest}. {hint}")
    finite = [image.dtype.kind in "iu" or np.isfinite(np.sum(image, dtype="float64")) for image in images]
    keep = np.flatnonzero(finite)
    bad = [base.BadImage(name(i), "it has NaN or infinite values") for i, good in enumerate(finite) if not good]
    if bad and not (reading.skip and len(keep)):
        raise ValueError(f"{bad[0].path} has NaN or infinite values. Correct it, or pass {SKIP} to leave it out.")
    if ragged:
        ready = {i: base.with_channels(images[i][None], channels) for i in keep}
        for i, one in ready.items():
            check_pixels(one, channels, name=name(i), item=lambda _, i=i: name(i), scaled="ignore")
        floats = {i: one for i, one in ready.items() if one.dtype != "uint8"}
        base.check_scale([*floats.values()], channels, f"{name(next(iter(floats), 0))} and later images")
    else:
        good = base.with_channels(images[keep] if bad else images, channels)
        check_pixels(good, channels, item=lambda i: name(keep[i]), scaled="raise")
    examples = base.Examples(
        pictures=images,
        labels=labels,
        name=name,
        kind="arrays",
        fingerprint=fingerprint(labels[keep], np.shape(images[keep[0]]), images[keep[0]], images[keep[-1]]),
        classes=classes,
        class_names=given.class_names,
        target=given.target,
        load=lambda image: base.with_channels(image[None], channels)[0],
        in_files=False,
        bad=bad,
        **annotations,
    )
    return examples.part(keep) if bad else examples


def _checked(check: Callable[..., Any], target: Any, pixels: np.ndarray, name: str) -> Any:
    return check(target, pixels.shape[:2], name)


def open_tfds(name: str, split: str, class_names: list[str] | None) -> base.Examples:
    """A split of a data set of tensorflow-datasets, such as `"oxford_iiit_pet:4.0.0"`, prepared if it is not."""
    require_packages(f"data='tfds:{name}'", ("tensorflow_datasets",), "tfds")
    import tensorflow_datasets as tfds

    builder = tfds.builder(name)
    features = builder.info.features or {}
    if not {"image", "label"} <= set(features) or not hasattr(features["label"], "names"):
        raise ValueError(f"tfds:{name} must have 'image' and 'label', a ClassLabel, but it has {sorted(features)}.")
    if getattr(builder.info.file_format, "value", None) != "array_record":
        call = f'tfds.builder({name!r}, file_format="array_record").download_and_prepare()'
        raise ValueError(f"tfds:{name} is not an array_record. Call {call}, or pass tfds.load(...) and classes=.")
    builder.download_and_prepare()
    wanted = [s for s in (split, base.IN_PLACE_OF.get(split)) if s]
    found = next((s for s in wanted if s in builder.info.splits), None)
    if found is None:
        raise ValueError(f"tfds:{name} has no split {' or '.join(wanted)}, only {list(builder.info.splits)}.")
    pictures = builder.as_data_source(split=found, decoders={"image": tfds.decode.SkipDecoding()})
    label, called = features["label"], f"tfds:{name}/{found}[{{}}]".format
    # The labels of test splits that are kept secret are -1: check_labels says so.
    numbers = np.array([int(picture["label"]) for picture in pictures])
    labels, _ = base.check_labels(numbers, label.num_classes, f"tfds:{name}", called)
    names = class_names or list(label.names)
    if names != list(label.names):
        labels = base.match_labels(label.names, names, f"tfds:{name}")[labels]
    return base.Examples(
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
