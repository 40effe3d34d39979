"""`open_data`: labelled images of every kind as a stream; arrays, and data sets of tensorflow-datasets."""

import dataclasses
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from keras_vit._arguments import (
    SKIP,
    ImageSize,
    Message,
    check_choice,
    check_class_names,
    pair,
    to_numpy,
    warn_caller,
    whole_number,
)
from keras_vit.data.augmentation import Augmentation, ImageTransform
from keras_vit.data.examples import (
    IN_PLACE_OF,
    SPLITS,
    TARGETS,
    BadImage,
    Examples,
    Reading,
    ReadingOptions,
    check_labels,
    fingerprint,
    hold_out,
    match_labels,
    pick_split,
)
from keras_vit.data.folders import open_folder
from keras_vit.data.mask_augmentation import PLAIN, MaskAugmentation, MaskTransform
from keras_vit.data.streams import ExampleStream, ImageStream, PipelineStream, inputs_of, is_pipeline
from keras_vit.preprocessing import RESIZES, Pipeline, check_pixels, load_image


def open_data(
    source: Any,
    *,
    image_size: ImageSize | None,
    batch_size: int,
    split: str = "train",
    shuffle: bool | None = None,
    augmentation: Augmentation | None = None,
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
    """Returns a stream of batches of labelled images.

    Args:
        source: One of

            - a folder with `train/` and `test/` (or `val/` and the like), each with one folder of images for each
              class; or the folder of the classes itself. Needs Pillow.
            - `(images, labels)`: arrays, tensors, or a list of images of different sizes.
            - `"tfds:NAME"`: a data set of tensorflow-datasets that was prepared as `array_record`; any other is a
              pipeline, `tfds.load(NAME, split="train", as_supervised=True)`.
            - a `tf.data.Dataset`, a grain dataset or loader, a torch `DataLoader`, a `keras.utils.PyDataset`, a list
              of batches, or any iterable of (images, labels): used as it is, in its own order, with its own crops;
              `randaugment` and `mixup` of an augmentation are added.
            - a table of image files and labels: `open_table`; pictures with masks: `open_masks`.
            - a dict with any of these for `"train"` and `"test"`.
        image_size: Of the images that come out, an integer or `(height, width)`. None: arrays or a pipeline of what a
            model takes already, of any shape and unit, to go through once: labels are checked, images are as they are.
        batch_size: Images in a batch.
        split: `"train"`, `"test"` or `"validation"`; where there is only one of the last two, it is taken for both.
        shuffle: `True`: shuffled, without end, every batch full, for training. `False`: in order, once. `None`: as
            `split` says.
        augmentation: What is done to training images; `None`: they are scaled to size.
        seed: A whole number from 0. The same seed yields the same batches.
        classes: How many there are, where the data does not say it.
        class_names: Their names in the order that labels are to have; of arrays and pipelines, in that which they have.
        target: What the labels of arrays and pipelines are: `"class"`, one of n; `"multilabel"`, any of n, as rows
            `(n, classes)` of 0 and 1; `"number"`, a quantity such as an age.
        on_bad_image: `"stop"` raises an error that names the file; `"skip"` leaves it out, warns once and keeps
            it in `stream.bad`. In training, the next good image takes its place.
        check: What is looked at in a folder before the first step: `"headers"` (opens every file: finds those that are
            cut short), `"decode"` (decodes all: also finds what is damaged in the middle) or `"none"`.
        resize: How test images come to size: as in `load_image`, or the pipeline of a model, `model.config.pipeline`,
            which crops as its family does. Pixels are not normalised.
        workers: How many threads or processes read and decode; `None` for one on every core.
        processes: Whether they are processes, for image files only: many threads of one process wait for each other.
            `None`: for training on 8 cores or more.
        prefetch: How many batches, of `batch_size * height * width * 12` bytes, are made ahead while the model trains.
        shard: (i, n): only the i-th of n parts of every batch, counted from 0, for the i-th of n processes; together
            they are the batch of `(0, 1)`. Of files and arrays only the part is read; a pipeline of another library is
            read as a whole by each process, and must yield the same to all of them.
        holdout: A share of the training images, drawn by the seed, every class alike: `split="train"` has the others,
            the others have these. None: the data's own splits.
        sampling: `"balanced"`: in training, each class is drawn as often as any other; `"sqrt"`: as often as the root
            of its size says; None: each image once an epoch.
        channels: Of the images: others than three have values of any range, in arrays, grey pictures and TIFFs of 8
            and 16 bits or floats; such files are not looked at before they are read.

    Returns:
        The stream. Close it, or use it in a `with` statement, to end its threads early.

    Raises:
        ValueError, TypeError: if an argument or the data is wrong; the file or the place is named.
        OSError: if the folder does not exist (FileNotFoundError), or a folder cannot be read.
        ImportError: if a package is missing; it names the extra.

    What a pipeline or tensorflow-datasets raises by itself is raised, too.

    Examples:
        >>> with data.open_data((pixels, labels), image_size=16, batch_size=2) as stream:
        ...     batch, targets = stream.batch(0)
        >>> batch.shape, batch.dtype
        ((2, 16, 16, 3), dtype('float32'))
    """
    how, size = Reading(**reading), None if image_size is None else pair("image_size", image_size)
    whole_number("batch_size", batch_size, 1)
    whole_number("seed", seed, 0)
    check_choice("split", split, tuple(SPLITS))
    check_choice("target", target, TARGETS)
    check_choice("sampling", sampling, (None, "balanced", "sqrt"))
    if not isinstance(resize, Pipeline):
        check_choice("resize", resize, tuple(RESIZES))
    if len(shard) != 2 or not 0 <= shard[0] < shard[1]:
        raise ValueError(f"shard must be (i, n) with 0 <= i < n, but {shard!r} was given.")
    if holdout is not None and (isinstance(holdout, bool) or not 0 < holdout < 1):
        raise ValueError(f"holdout must be a share between 0 and 1, such as 0.1, but {holdout!r} was given.")
    shuffle = split == "train" if shuffle is None else shuffle
    if not isinstance(shuffle, bool) or (shuffle and split != "train"):
        raise ValueError(f'shuffle must be True (for split="train"), False or None, but {shuffle!r} was given.')
    if not shuffle and augmentation is not None:
        raise ValueError("Images that come in order, once, are not augmented: leave augmentation out.")
    if sampling is not None and not shuffle:
        raise ValueError(f"sampling={sampling!r} is for shuffled training data: leave it out.")
    part = "train" if holdout is not None else split
    if isinstance(source, Mapping):
        source = pick_split(source, part)
    names, classes = check_class_names(class_names, classes)
    has_files = hasattr(source, "open_examples")
    if size is None or (not has_files and is_pipeline(source)):
        if holdout is not None or sampling is not None or how.processes:
            raise ValueError("A pipeline goes its own way: holdout, sampling and processes are for other data.")
    if size is None:
        if shuffle:
            raise ValueError("image_size=None is for data that is gone through once: shuffle=False, or give a size.")
        return PipelineStream(inputs_of(source, batch_size), None, batch_size, classes, names, how, shard, target)
    transform = _transform(source, size, augmentation, resize, shuffle, seed, how.channels)
    if not has_files and is_pipeline(source):
        if getattr(source, "target", "class") == "mask":
            source = source.in_order(names)
            if target != "class" or classes not in (None, source.classes):
                raise ValueError(f"classes={classes}, target={target!r} are not those of the masks: leave them out.")
            target, classes, names = source.target, source.classes, list(names or source.class_names or ()) or None
        return PipelineStream(source, transform, batch_size, classes, names, how, shard, target)
    if isinstance(source, (tuple, list)) and len(source) == 2:
        examples = open_arrays(*source, shuffle, classes, names, how, target)
    else:
        examples = _open_examples(source, part, names, how)
    if target not in ("class", examples.target):
        raise ValueError(f"target={target!r} is for arrays, pipelines and tables: these labels are classes.")
    if classes not in (None, examples.classes):
        raise ValueError(f"classes={classes}, but the data has {examples.classes} classes.")
    if how.channels != 3 and examples.files is not None:
        files = examples.files
        examples = dataclasses.replace(examples, read=lambda i: transform.read(files[i]))
    if holdout is not None:
        examples = hold_out(examples, holdout, seed, split)
    return ExampleStream(examples, transform, batch_size, how, shard, sampling)


def _transform(
    source: Any,
    size: tuple[int, int],
    augmentation: Any,
    resize: str | Pipeline,
    shuffle: bool,
    seed: int,
    channels: int,
) -> ImageTransform | MaskTransform:
    """Returns what brings each image to size, with its mask where there are masks.

    Shuffled images without an augmentation are scaled to size, and pictures with masks cropped. Raises TypeError for an
    augmentation of the other kind, ValueError for one that images of this many channels cannot have.
    """
    has_masks = getattr(source, "target", "class") == "mask"
    if has_masks and isinstance(augmentation, Augmentation):
        raise TypeError(
            "Pictures with masks are changed by a data.MaskAugmentation, as those of the recipes segmentation/..., "
            "but an Augmentation was given: recipe.replace(augmentation=data.MaskAugmentation())."
        )
    kind = MaskAugmentation if has_masks else Augmentation
    if not isinstance(augmentation, kind | None):
        raise TypeError(f"augmentation must be of {kind.__name__} or None, but {augmentation!r} was given.")
    if augmentation is not None:
        augmentation.check_channels(channels)
    if has_masks:
        plain = PLAIN if channels == 3 else dataclasses.replace(PLAIN, fill=0.0)
        augmentation = plain if shuffle and augmentation is None else augmentation
        return MaskTransform(size, augmentation, seed, channels, source.ignore)
    plain = Augmentation(crop="resize", flip=False) if shuffle else None
    return ImageTransform(size, augmentation or plain, resize, seed, channels)


def _open_examples(source: Any, split: str, names: list[str] | None, reading: Reading) -> Examples:
    """Returns the images of a split in a folder, a table, a folder of masks or a data set of tensorflow-datasets.

    Raises TypeError for any other source; OSError for a folder that is missing (FileNotFoundError) or cannot be read,
    ValueError for what is wrong with its content, ImportError for a missing package.
    """
    if hasattr(source, "open_examples"):
        return source.open_examples(split, names, reading)
    if isinstance(source, str) and source.startswith("tfds:"):
        return open_tfds(source.removeprefix("tfds:"), split, names)
    if isinstance(source, (str, os.PathLike)):
        return open_folder(source, split, names, reading)
    kinds = "an image folder, (images, labels), 'tfds:NAME', a tf.data, grain, torch or Keras data set"
    raise TypeError(f"data must be {kinds}, or a dict of these, but {type(source).__name__} was given.")


# Arrays and data sets of tensorflow-datasets


def open_arrays(
    images: Any,
    labels: Any,
    training: bool,
    classes: int | None,
    class_names: list[str] | None,
    reading: Reading,
    target: str,
) -> Examples:
    """Returns images in memory with their labels as examples; what is in arrays already is not copied.

    Raises ValueError or TypeError if images or labels are no such, not as many, of one class in training, or not
    finite; with `reading.skip` images that are not finite are left out. Warns where most classes have no image.

    Args:
        images: `(n, height, width)` or `(n, height, width, channels)` in 0..255, or a list of images of any sizes.
        labels: As `check_labels` takes them, one for each image.
        training: Whether there have to be two classes.
        classes: How many there are; None for as many as the labels say.
        class_names: Their names; None where they have none.
        reading: Says the channels, and whether bad images are left out.
        target: What the labels are, of `TARGETS`.
    """

    def name(i: int) -> str:
        return f"images[{i}]"

    channels = reading.channels
    ragged = isinstance(images, (list, tuple)) and len({np.shape(image) for image in images}) > 1
    images = [to_numpy(image) for image in images] if ragged else to_numpy(images)
    labels = to_numpy(labels)
    if not len(images):
        raise ValueError("data must hold images, but there are none.")
    if labels.ndim == 0 or len(images) != len(labels):
        count = len(labels) if labels.ndim else "one"
        raise ValueError(f"There are {len(images)} images, but {count} labels: each image needs one.")
    are_counted = classes is None
    labels, classes = check_labels(labels, classes, "labels", name, target)
    if training and target == "class" and (classes < 2 or (labels == labels[0]).all()):
        raise ValueError(f"A classifier needs two classes or more, but all {len(labels)} labels are the same.")
    if training and are_counted and labels.ndim == 1:
        empty = classes - len(np.unique(labels))
        if 2 * empty > classes:
            largest = f"the largest label is {labels.max()}, of {name(int(labels.argmax()))}"
            hint = f"Correct it, or give classes={classes}."
            warn_caller(f"{empty} of {classes} classes have no picture: {largest}. {hint}")
    finite = [image.dtype.kind in "iu" or np.isfinite(np.sum(image, dtype="float64")) for image in images]
    keep = np.flatnonzero(finite)
    bad = [BadImage(name(i), "NaN or infinite values") for i, good in enumerate(finite) if not good]
    if bad and not (reading.skip and len(keep)):
        words = f"{bad[0].path} holds NaN or infinite values. Go on without: "
        raise ValueError(Message(words, SKIP, "."))
    if ragged:
        for i in keep:
            one = with_channels(images[i][None], channels)
            check_pixels(one, channels, name=name(i), item=lambda _, i=i: name(i), scaled="raise")
    else:
        good = with_channels(images[keep] if bad else images, channels)
        check_pixels(good, channels, item=lambda i: name(keep[i]), scaled="raise")
    return Examples(
        labels=labels[keep],
        classes=classes,
        read=lambda i: with_channels(images[keep[i]][None], channels)[0],
        name=lambda i: name(keep[i]),
        kind="arrays",
        fingerprint=fingerprint(labels[keep], np.shape(images[keep[0]]), images[keep[0]], images[keep[-1]]),
        class_names=class_names,
        bad=bad,
        target=target,
    )


def with_channels(images: np.ndarray, channels: int) -> np.ndarray:
    """Returns grey images `(n, height, width)` with an axis for channels, and three of them if `channels` is 3.

    Images `(n, height, width, 1)` get three channels likewise; others are returned as they are.
    """
    if images.ndim == 3 and images.shape[-1] not in (3, 4, channels):
        images = images[..., None]
    if images.ndim == 4 and images.shape[-1] == 1 and channels == 3:
        return np.broadcast_to(images, (*images.shape[:-1], 3))
    return images


def open_tfds(name: str, split: str, class_names: list[str] | None) -> Examples:
    """Returns a split of a data set of tensorflow-datasets, such as `"oxford_iiit_pet:4.0.0"`, prepared if it is not.

    Labels are numbers of `class_names`, or without these as the data set has them. Raises ImportError without the
    package, ValueError if the data set has no images with labels, no such split, a class that is not named, or was not
    prepared for random access; and the package's own errors if there is no such data set or it cannot be prepared.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        hint = "pip install tensorflow-datasets, or give an image folder"
        raise ImportError(f'data="tfds:{name}" needs tensorflow-datasets: {hint}.') from error

    builder = tfds.builder(name)
    if not {"image", "label"} <= set(builder.info.features or ()):
        raise ValueError(f"tfds:{name} has {sorted(builder.info.features or ())}, but image and label are needed.")
    if getattr(builder.info.file_format, "value", None) != "array_record":
        prepare = f'tfds.builder({name!r}, file_format="array_record").download_and_prepare()'
        raise ValueError(f"tfds:{name} cannot be read at random. Call {prepare}, or give tfds.load(...) and classes=.")
    builder.download_and_prepare()
    wanted = [s for s in (split, IN_PLACE_OF.get(split)) if s]
    found = next((s for s in wanted if s in builder.info.splits), None)
    if found is None:
        raise ValueError(f"tfds:{name} has no split {' or '.join(wanted)}, only {list(builder.info.splits)}.")
    pictures = builder.as_data_source(split=found, decoders={"image": tfds.decode.SkipDecoding()})
    label = builder.info.features["label"]

    def called(i: int) -> str:
        return f"tfds:{name}/{found}[{i}]"

    # The labels of test splits that are kept secret are -1: check_labels says so.
    numbers = np.array([int(picture["label"]) for picture in pictures])
    labels, _ = check_labels(numbers, label.num_classes, f"tfds:{name}", called)
    names = class_names or list(label.names)
    if names != list(label.names):
        labels = match_labels(label.names, names, f"tfds:{name}")[labels]
    return Examples(
        labels=labels,
        classes=len(names),
        read=lambda i: load_image(io.BytesIO(pictures[i]["image"]), orient=False),  # As tfds decodes.
        name=called,
        kind=f"tfds:{name}",
        fingerprint=fingerprint(labels),
        class_names=names,
    )
