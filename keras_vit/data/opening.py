"""`open_data`: labelled images of every kind as a stream."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from keras_vit._arguments import ImageSize, check_choice, check_class_names, pair, whole_number
from keras_vit.data.augmentation import Augmentation, ImageTransform
from keras_vit.data.examples import TARGETS, Examples, Reading, ReadingOptions, hold_out
from keras_vit.data.folders import SPLITS, open_folder, pick_split
from keras_vit.data.mask_augmentation import MaskTransform
from keras_vit.data.sources import PipelineStream, inputs_of, is_pipeline, open_arrays, open_tfds
from keras_vit.data.streams import ExampleStream, ImageStream
from keras_vit.preprocessing import RESIZES, Pipeline


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
    """A stream of batches.

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
        class_names: Their names in order; of a folder, which folders they are.
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
        FileNotFoundError: if the folder does not exist.
        ImportError: if a package is missing; it names the extra.

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
    if not isinstance(resize, Pipeline):
        check_choice("resize", resize, tuple(RESIZES))
    if len(shard) != 2 or not 0 <= shard[0] < shard[1]:
        raise ValueError(f"shard must be (i, n) with 0 <= i < n, but {shard!r} was given.")
    check_choice("sampling", sampling, (None, "balanced", "sqrt"))
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
    if size is None:
        if shuffle:
            raise ValueError("image_size=None is for data that is gone through once: shuffle=False, or give a size.")
        return PipelineStream(inputs_of(source, batch_size), None, batch_size, classes, names, how, shard, target)
    transform = _transform(source, size, augmentation, resize, shuffle, seed, how.channels)
    if not hasattr(source, "open_examples") and is_pipeline(source):
        if holdout is not None or sampling is not None:
            raise ValueError("A pipeline goes its own way: holdout and sampling are for other data.")
        target, classes = getattr(source, "target", target), getattr(source, "classes", classes)
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
    """What brings each image to size, with its mask where there are masks.

    Raises TypeError or ValueError where the augmentation does not fit the data.
    """
    if channels != 3 and getattr(augmentation, "randaugment", None) is not None:
        raise ValueError(f"RandAugment is for red, green and blue, but channels={channels}: leave it out.")
    if getattr(source, "target", "class") == "mask":
        return MaskTransform.of(size, augmentation, shuffle, seed, channels, source.ignore)
    if not isinstance(augmentation, Augmentation | None):
        raise TypeError(f"augmentation must be an Augmentation or None, but {augmentation!r} was given.")
    plain = Augmentation(crop="resize", flip=False) if shuffle else None
    return ImageTransform(size, augmentation or plain, resize, seed, channels)


def _open_examples(source: Any, split: str, names: list[str] | None, reading: Reading) -> Examples:
    """The images of a split in a folder, a table, a folder of masks or a data set of tensorflow-datasets.

    Raises TypeError for any other source, and the errors of what opens it.
    """
    if hasattr(source, "open_examples"):
        return source.open_examples(split, names, reading)
    if isinstance(source, str) and source.startswith("tfds:"):
        return open_tfds(source.removeprefix("tfds:"), split)
    if isinstance(source, (str, os.PathLike)):
        return open_folder(source, split, names, reading)
    kinds = "an image folder, (images, labels), 'tfds:NAME', a tf.data, grain, torch or Keras data set"
    raise TypeError(f"data must be {kinds}, or a dict of these, but {type(source).__name__} was given.")
