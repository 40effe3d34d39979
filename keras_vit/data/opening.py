"""`open_data`: the front door to labelled images of every kind."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from keras_vit._arguments import ImageSize, check_choice, pair, whole_number
from keras_vit.data.augmentation import Augmentation, ImageTransform
from keras_vit.data.examples import check_class_name, open_arrays, open_tfds
from keras_vit.data.folder import open_folder, pick_split
from keras_vit.data.pipelines import PipelineStream, is_pipeline
from keras_vit.data.streams import ExampleStream, ImageStream
from keras_vit.preprocessing import RESIZES, Pipeline

WITHOUT = Augmentation(crop="resize", flip=False)


def open_data(
    source: Any,
    *,
    image_size: ImageSize,
    batch_size: int,
    split: str = "train",
    shuffle: bool | None = None,
    augmentation: Augmentation | None = None,
    seed: int = 0,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    on_bad_image: str = "stop",
    check: str = "headers",
    resize: str | Pipeline = "squash",
    workers: int | None = None,
    processes: bool | None = None,
    prefetch: int = 1,
    shard: tuple[int, int] = (0, 1),
) -> ImageStream:
    """A stream of batches.

    Args:
        source: One of

            - a folder with `train/` and `test/` (`Training/`, `val/` and the like: see `splits.py`), each with one
              folder of pictures for each class; or the folder of the classes itself. Needs Pillow.
            - `(images, labels)`: arrays, tensors, or a list of images of different sizes.
            - `"tfds:NAME"`: a data set of tensorflow-datasets that was prepared as `array_record`; any other is a
              pipeline, `tfds.load(NAME, split="train", as_supervised=True)`.
            - a `tf.data.Dataset`, a grain dataset or loader, a torch `DataLoader`, a `keras.utils.PyDataset`, a list
              of batches, or any iterable of (images, labels): used as it is, in its own order, with its own crops
              (`keras_vit.data.pipelines` says what is added).
            - a dict with any of these for `"train"` and `"test"`.
        image_size: Of the images that come out, an integer or `(height, width)`.
        batch_size: Images in a batch.
        split: `"train"` or `"test"`.
        shuffle: `True`: shuffled, without end, every batch full, for training. `False`: in order, once. `None`: as
            `split` says.
        augmentation: What is done to training images; `None`: they are scaled to size.
        seed: A whole number from 0. The same seed gives the same batches.
        classes: How many there are, where the data does not say it.
        class_names: Their names in order; of a folder, which folders they are.
        on_bad_image: `"stop"` raises an error that names the file; `"skip"` leaves it out, says so once and keeps
            it in `stream.bad`. In training, the next good image takes its place.
        check: What is looked at in a folder before the first step: `"headers"` (opens every file and decodes those
            that do not end as their format does: finds files that are cut short), `"decode"` (decodes all: also finds
            what is damaged in the middle) or `"none"`.
        resize: How test images come to size: `"squash"` (vit_jax), `"big_vision"` or `"timm"`, as in `load_image`; or
            the pipeline of a model, `model.config.pipeline`, which crops as its family does. Pixels are not normalised.
        workers: How many threads or processes read and decode; `None` for one on every core.
        processes: Whether they are processes of their own, which image files can be read by: threads of one Python
            process wait for each other where there are many. They import neither Keras nor your program. `None`: for
            training on 8 cores or more.
        prefetch: How many batches are made ahead while the model trains; each takes
            `batch_size * height * width * 12` bytes.
        shard: (i, n): only the i-th of n parts of every batch, counted from 0, for the i-th of n processes. The parts
            of a batch are as long as each other, or shorter by one. Together they are the batch of `(0, 1)`, with the
            same augmentation and mixup. Of files and arrays only the part is read, and for mixup one image more; a
            pipeline of another library is read as a whole by each process, and must give the same to all of them.

    Returns:
        The stream. Close it, or use it in a `with` statement, to end its threads early.

    Raises:
        ValueError: if an argument or the data is wrong; it names the file or the place.
        TypeError: if `source` is nothing of the above.
        FileNotFoundError: if the folder does not exist.
        ImportError: if a package is missing; it names the extra.

    Examples:
        >>> with data.open_data((pixels, labels), image_size=16, batch_size=2) as stream:
        ...     batch, targets = stream.batch(0)
        >>> batch.shape, batch.dtype
        ((2, 16, 16, 3), dtype('float32'))
    """
    size = pair("image_size", image_size)
    for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("prefetch", prefetch, 0)):
        whole_number(name, value, least)
    check_choice("split", split, ("train", "test"))
    check_choice("on_bad_image", on_bad_image, ("stop", "skip"))
    check_choice("check", check, ("headers", "decode", "none"))
    if resize not in RESIZES and not isinstance(resize, Pipeline):
        raise ValueError(f"resize must be one of {list(RESIZES)} or a pipeline, but {resize!r} was given.")
    if len(shard) != 2 or not 0 <= shard[0] < shard[1]:
        raise ValueError(f"shard must be (i, n) with 0 <= i < n, but {shard!r} was given.")
    shuffle = split == "train" if shuffle is None else shuffle
    if not isinstance(shuffle, bool) or (shuffle and split == "test"):
        raise ValueError(f'shuffle must be True (for split="train"), False or None, but {shuffle!r} was given.')
    if not shuffle and augmentation is not None:
        raise ValueError("Images that come in order, once, are not augmented: leave augmentation out.")
    if isinstance(source, Mapping):
        source = pick_split(source, split)
    if shuffle:
        augmentation = augmentation or WITHOUT
    if class_names is not None:
        class_names = list(class_names)
        for name in class_names:
            if not isinstance(name, str):
                raise TypeError(f"class_names must be strings in the order of the labels, but {name!r} is among them.")
            check_class_name(name, f"{name!r} in class_names")
        if len(set(class_names)) < len(class_names):
            raise ValueError("class_names must differ from each other.")
        if classes not in (None, len(class_names)):
            raise ValueError(f"There are {len(class_names)} class_names, but classes={classes}.")
        classes = len(class_names)

    if isinstance(source, str) and source.startswith("tfds:"):
        examples = open_tfds(source.removeprefix("tfds:"), split)
    elif isinstance(source, (str, os.PathLike)):
        examples = open_folder(source, split, class_names, on_bad_image, check)
    elif isinstance(source, (tuple, list)) and len(source) == 2 and not is_pipeline(source):
        examples = open_arrays(*source, shuffle, classes, class_names, on_bad_image)
    elif is_pipeline(source):
        options = (batch_size, augmentation, seed, classes, class_names, on_bad_image, shuffle, resize, shard)
        return PipelineStream(source, size, *options)
    else:
        kinds = "an image folder, (images, labels), 'tfds:NAME', a tf.data, grain, torch or Keras data set, or a dict"
        raise TypeError(f"data must be {kinds} of these, but {type(source).__name__} was given.")
    if classes not in (None, examples.classes):
        raise ValueError(f"classes={classes}, but the data has {examples.classes} classes.")
    transform = ImageTransform(size, augmentation, resize, seed)
    stream = ExampleStream(examples, transform, batch_size, on_bad_image, workers, processes, prefetch, shard)
    stream._report()
    return stream
