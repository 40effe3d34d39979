"""Pictures with a mask each, one number a pixel: in folders, arrays and pipelines of other libraries."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from keras_vit._arguments import (
    check_class_names,
    check_flag,
    listing,
    printable,
    require_packages,
    to_numpy,
    warn_caller,
    whole_number,
)
from keras_vit._terminal import ProgressBar
from keras_vit.data.examples import (
    BadImage,
    Examples,
    Reading,
    fingerprint,
    good_files,
    image_files,
    match_labels,
    pick_split,
    split_of,
)
from keras_vit.data.opening import with_channels
from keras_vit.data.streams import image_pair, is_pipeline, one_pass
from keras_vit.preprocessing import check_pixels
from keras_vit.preprocessing.images import read_channels

IMAGES, MASKS = "images", ("masks", "annotations", "labels")  # what the two folders of a data set are called
CLASSES = "classes.txt"  # beside them: a name on each line, in the order of the numbers
MASK_KEYS = ("mask", "masks", "segmentation_mask", "labels", "label")  # of a dict that a pipeline yields
MODES = ("1", "L", "P", "I", "I;16")  # Pillow's, of one number a pixel


@dataclasses.dataclass(frozen=True, eq=False)
class Masks:
    """What the numbers in segmentation masks stand for, and where the masks are."""

    source: Any = dataclasses.field(repr=False)
    classes: int | None
    class_names: tuple[str, ...] | None
    ignore: int
    reduce_zero_label: bool
    numbers: tuple[int, ...] | None = None  # what the classes become, in their order; None: they stay
    target: str = "mask"

    def __post_init__(self) -> None:
        """Raises ValueError if the number that stands for no class is one of the classes."""
        if 0 <= self.ignore < (self.classes or 0):
            hint = "give a number that is none of them, or reduce_zero_label=True if 0 stands for no class"
            raise ValueError(f"ignore={self.ignore} is one of the {self.classes} classes: {hint}.")

    def in_order(self, names: Sequence[str] | None) -> Self:
        """Returns the same masks with classes in the order of a model's names; itself if either has no names.

        Raises ValueError if a class has a name that is none of the model's, or that several of its classes have, or the
        model has so many that the number for no class is one of them.
        """
        if names is None or self.class_names is None or tuple(names) == self.class_names:
            return self
        numbers = tuple(match_labels(self.class_names, names, "data").tolist())
        if self.numbers is not None:
            numbers = tuple(numbers[number] for number in self.numbers)
        return dataclasses.replace(self, classes=len(names), class_names=tuple(names), numbers=numbers)

    def checked(self, mask: Any, size: tuple[int, ...], name: str) -> np.ndarray:
        """Returns a mask, or a batch of them, as int32 of a size: the numbers of classes, and `ignore`.

        Raises ValueError, which begins with `name`, for another size, no pixels, or numbers that are not whole or no
        classes.
        """
        labels = to_numpy(mask)
        labels = labels[..., 0] if labels.ndim == len(size) + 1 and labels.shape[-1] == 1 else labels
        if labels.shape != size or not labels.size:
            wanted = f"must be as large as the picture, {size}, and have pixels"
            raise ValueError(f"{name}: its mask {wanted}, but it is {labels.shape}.")
        if labels.dtype.kind not in "iub" and not (labels.dtype.kind == "f" and (labels == np.floor(labels)).all()):
            raise ValueError(f"{name}: its mask must hold whole numbers, but its dtype is {labels.dtype}.")
        given = labels = labels.astype("int32")
        if self.reduce_zero_label:
            labels = np.where((given == 0) | (given == self.ignore), self.ignore, given - 1)
        count = self.classes if self.numbers is None else len(self.numbers)
        wrong = (labels != self.ignore) & ((labels < 0) | (labels >= (count or np.inf)))
        if wrong.any():
            known = f"{count} classes are known" if count else "classes count from 0"
            hint = "If 0 stands for no class: reduce_zero_label=True; if another number does: ignore=."
            raise ValueError(f"{name}: its mask has the label {given[wrong][0]}, but {known}. {hint}")
        if self.numbers is not None:
            is_class = labels != self.ignore
            labels = np.where(is_class, np.array(self.numbers, "int32")[np.where(is_class, labels, 0)], self.ignore)
        return labels


class MaskedImages(Masks):
    """Pictures with a mask each: `open_masks` makes it, and `finetune_segmentation` and `open_data` take it.

    Attributes:
        source: A folder, `(images, masks)`, or a dict of these by split.
        classes: How many there are.
        class_names: In the order of the numbers; None where they are not known.
        ignore: The number in masks that stands for no class.
        reduce_zero_label: Whether 0 is no class either, and the others count from 1.
        numbers: What the classes become, in their order (see `in_order`); None where they stay.
        target: `"mask"`.

    Examples:
        >>> masks = data.open_masks((pixels, np.zeros((4, 24, 24), "uint8")), classes=2)
        >>> masks.classes, masks.has_test_split
        (2, False)
    """

    @property
    def has_test_split(self) -> bool:
        """Whether the source says which pictures are there to test or to validate on; OSError without its folder."""
        names = self.source if isinstance(self.source, Mapping) else _split_folders(self.source)
        return any(place is not None and place[0] != "train" for place in map(split_of, names))

    def check_classes_occur(self, on_bad_image: str = "stop") -> None:
        """Raises ValueError if a class does not occur in the masks to train on, or there is only one.

        Also where there are no such pictures, and unless `on_bad_image` is `"skip"` at a mask that cannot be read.
        OSError if a folder is missing (FileNotFoundError) or cannot be read, TypeError if the source is no folder or
        pair, ImportError without Pillow.
        """
        opened = self._open("train", Reading(on_bad_image, check="none"))
        seen, count = self._numbers_seen(opened, on_bad_image == "skip"), self.classes or 0
        missing = [number for number in range(count) if number not in seen]
        if count > 1 and not missing:
            return
        named = [f"{n} ({self.class_names[n]!r})" if self.class_names else str(n) for n in missing]
        words = "All masks to train on have the class 0 alone"
        if missing:
            words = f"No mask to train on has the class {', '.join(named[:5])}{' ...' if len(named) > 5 else ''}"
        hint = ""
        if self.ignore in seen:
            hint = f" They have {self.ignore}, which stands for no class: number the classes from 0, or give ignore=."
        raise ValueError(f"{words}, so nothing could be learned of it.{hint}")

    def _numbers_seen(self, opened: "_Opened", skip: bool = False) -> set[int]:
        """Returns the numbers that occur in masks, `ignore` as well, until all classes have been seen.

        Raises ValueError at a mask that cannot be read or does not fit, unless `skip`; ImportError without Pillow.
        """
        seen: set[int] = set()

        def one(i: int) -> list[int]:
            try:
                mask = opened.mask(i)
                return np.unique(self.checked(mask, np.shape(mask)[:2], opened.called[i])).tolist()
            except (OSError, ValueError):
                if skip:  # the stream warns of it
                    return []
                raise

        count = len(opened.called)
        chunks = [range(i, min(i + 64, count)) for i in range(0, count, 64)]
        with ThreadPoolExecutor() as pool, ProgressBar("Looking for classes", len(chunks), shown=count >= 100) as bar:
            for chunk in bar.track(chunks):
                seen.update(*pool.map(one, chunk))
                if (self.classes or 0) > 1 and seen.issuperset(range(self.classes or 0)):
                    break
        return seen

    def open_examples(self, split: str, class_names: list[str] | None, reading: Reading) -> Examples:
        """Returns the pictures of a split; `read` returns a picture and its mask, which it checks (ValueError).

        With `class_names` the classes come in that order. Raises OSError if a folder is missing (FileNotFoundError) or
        cannot be read, TypeError if the source is no folder or pair, ImportError without Pillow, and ValueError if
        there is no such split, picture or mask, for a picture that cannot be read, or for other names.
        """
        if class_names is not None and self.class_names not in (None, tuple(class_names)):
            return self.in_order(class_names).open_examples(split, class_names, reading)
        opened = self._open(split, reading)

        def read(i: int) -> tuple[np.ndarray, np.ndarray]:
            image = opened.image(i)
            return image, self.checked(opened.mask(i), image.shape[:2], opened.called[i])

        names = class_names or (None if self.class_names is None else list(self.class_names))
        settings = [self.ignore, self.reduce_zero_label]
        if self.numbers:
            settings.append(self.numbers)
        return Examples(
            labels=np.zeros(len(opened.called), "int64"),  # all are alike where a share is held out
            classes=self.classes or 0,
            read=read,
            name=opened.called.__getitem__,
            kind=opened.kind,
            fingerprint=fingerprint(len(opened.called), *settings, *opened.digest),
            class_names=names,
            bad=opened.bad,
            converted=opened.converted,
            target=self.target,
            ignore=self.ignore,
        )

    def _open(self, split: str, reading: Reading) -> "_Opened":
        """Returns the pictures of a split and their masks, in folders or arrays, each to be read by its number.

        Masks without a picture are left out with a warning. Raises OSError if a folder is missing (FileNotFoundError)
        or cannot be read, TypeError for data of another kind, ImportError without Pillow, and ValueError if there is no
        such split or no picture, not a mask for each, or a picture that cannot be read and is not to be skipped.
        """
        source = pick_split(self.source, split) if isinstance(self.source, Mapping) else self.source
        if isinstance(source, (str, os.PathLike)):
            files = _files(Path(source), split)
            keep, bad, converted = good_files([p for p, _ in files], reading, lambda i: str(files[i][0]))
            files = [files[i] for i in keep]
            return _Opened(
                called=[str(path) for path, _ in files],
                image=lambda i: read_channels(files[i][0], reading.channels),
                mask=lambda i: read_mask(files[i][1]),
                kind="folder of masks",
                digest=[(path.name, mask.stat().st_size if mask.exists() else 0) for path, mask in files],
                bad=bad,
                converted=converted,
            )
        images, masks = _arrays(source)
        called = [f"images[{i}]" for i in range(len(images))]
        digest = [to_numpy(part[i]) for part in (images, masks) for i in (0, -1)]

        def pixels(i: int) -> np.ndarray:
            image = with_channels(to_numpy(images[i])[None], reading.channels)[0]
            return check_pixels(image, reading.channels, name=called[i], scaled="raise")

        return _Opened(called, pixels, masks.__getitem__, "arrays of masks", digest, [], [])


class _Opened(NamedTuple):
    """The pictures of a split and their masks, each read by its number; what could not be read has been left out."""

    called: list[str]
    image: Callable[[int], np.ndarray]
    mask: Callable[[int], Any]
    kind: str
    digest: list[Any]
    bad: list[BadImage]
    converted: list[BadImage]


class MaskPipeline(Masks):
    """Batches of pictures and masks of another library, which `PipelineStream` checks one by one."""

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields pictures and masks of one pass; ValueError for no such pair, and what the pipeline raises."""
        for element in one_pass(self.source):
            yield image_pair(element, MASK_KEYS)

    def __len__(self) -> int:
        return len(self.source)


def open_masks(
    source: Any,
    *,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    ignore: int = 255,
    reduce_zero_label: bool = False,
) -> MaskedImages | MaskPipeline:
    """Returns pictures with a mask each: one number for each pixel, which says its class.

    Args:
        source: One of

            - a folder with `images/` and `masks/` (or `annotations/`, `labels/`), whose files have the same names but
              for their endings. Masks are PNGs or other files of one number a pixel, also of colours by number. The
              two folders may lie in `train/` and `val/`, or have these inside them. Needs Pillow.
            - `(images, masks)`: arrays `(n, height, width, channels)` and `(n, height, width)`, or lists of arrays of
              different sizes.
            - a `tf.data.Dataset`, a torch `DataLoader` or another iterable of such pairs, in batches or one by one:
              used as it is, in its own order and with its own crops.
            - a dict with any of the first two for `"train"` and `"test"`.
        classes: How many there are. None: as `class_names` or a file `classes.txt` in the folder say, or else one more
            than the largest number in the masks to train on, which are all read for that.
        class_names: Their names, in the order of the numbers.
        ignore: The number that stands for no class: such pixels neither train nor count.
        reduce_zero_label: Whether 0 stands for no class as well, and 1 is the first one, as in ADE20K.

    Returns:
        What `finetune_segmentation` and `open_data` take. Files are read when they are used.

    Raises:
        OSError: if the folder does not exist (FileNotFoundError) or `classes.txt` cannot be read; without classes also
            if it lacks one of the two, or they cannot be read.
        ValueError, TypeError: if an argument makes no sense, or `classes.txt` is no UTF-8 or has no names of classes;
            without classes also if a picture has no mask, or a mask is wrong. Otherwise that is reported when they are
            opened and read.
        ImportError: without classes, if Pillow is not installed.

    Examples:
        >>> masks = data.open_masks((pixels, np.zeros((4, 24, 24), "uint8")), class_names=["floor", "wall"])
        >>> with data.open_data(masks, image_size=32, batch_size=2) as stream:
        ...     batch, labels = stream.batch(0)
        >>> batch.shape, labels.shape
        ((2, 32, 32, 3), (2, 32, 32))
    """
    ignore = whole_number("ignore", ignore, -1)
    check_flag("reduce_zero_label", reduce_zero_label)
    names, classes = check_class_names(class_names, classes)
    classes = None if classes is None else whole_number("classes", classes, 1)
    if isinstance(source, Masks):
        raise TypeError("source is what open_masks has made already: give that as it is.")
    if isinstance(source, (str, os.PathLike)):
        if not os.path.isdir(source):
            raise FileNotFoundError(f"data must be a folder of images/ and masks/, but {str(source)!r} is none.")
        names, classes = check_class_names(names or names_beside(source), classes)
    options = (classes, None if names is None else tuple(names), ignore, reduce_zero_label)
    if not isinstance(source, (str, os.PathLike, Mapping)) and is_pipeline(source):
        if hasattr(source, "__next__"):
            raise TypeError("An iterator only goes forward. Give what it came from: a data set, or a list.")
        if classes is None:
            raise ValueError("A pipeline does not say how many classes its masks have: give classes= or class_names=.")
        return MaskPipeline(source, *options)
    data = MaskedImages(source, *options)
    if classes is None:
        seen = data._numbers_seen(data._open("train", Reading(check="none"))) - {ignore}  # noqa: SLF001
        if not seen:
            raise ValueError(f"All masks say {ignore} everywhere, which stands for no class.")
        data = dataclasses.replace(data, classes=max(seen) + 1)
    return data


def as_masks(
    source: Any, *, classes: int | None, class_names: Sequence[str] | None, ignore: int, reduce_zero_label: bool
) -> Masks:
    """Returns what `open_masks` makes of a source; masks that are open are returned as they are.

    Raises ValueError if the options are neither the defaults nor those that the masks were opened with; OSError,
    TypeError, ValueError or ImportError for what `open_masks` cannot open.
    """
    if not isinstance(source, Masks):
        options = {"classes": classes, "class_names": class_names, "ignore": ignore}
        return open_masks(source, **options, reduce_zero_label=reduce_zero_label)
    names = None if class_names is None else tuple(class_names)
    options = {"classes": classes, "class_names": names, "ignore": ignore, "reduce_zero_label": reduce_zero_label}
    defaults = {"classes": None, "class_names": None, "ignore": 255, "reduce_zero_label": False}
    for name, value in options.items():
        if value not in (defaults[name], getattr(source, name)):
            found = f"the masks were opened with {getattr(source, name)!r}"
            raise ValueError(f"{name}={value!r}, but {found}: give it to open_masks, and leave it out here.")
    return source


def read_mask(path: Path) -> np.ndarray:
    """Returns the numbers in a file of one number a pixel, `(height, width)` of booleans or integers.

    Raises ValueError if it has colours, is larger than Pillow allows or cannot be read, also if there is none;
    ImportError without Pillow, and MemoryError.
    """
    require_packages("A mask", ("PIL",), "images")
    from PIL import Image

    try:
        with Image.open(path) as image:
            mode = image.mode
            numbers = np.asarray(image) if mode in MODES else None
    except MemoryError:
        raise
    except Exception as error:  # Decoders raise errors of many kinds on damaged data.
        raise ValueError(f"{printable(path)}: not a mask that can be read: {error}") from error
    if numbers is None:
        raise ValueError(f"{printable(path)} has colours (mode {mode}), but a mask has one number for each pixel.")
    return numbers


def instance_mask(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Returns the mask of an instance, booleans: of COCO's polygons `(height, width)`, of run lengths at their size.

    Raises ImportError if pycocotools is not installed, and ValueError if they are neither.
    """
    require_packages("COCO's masks", ("pycocotools",), "coco")
    from pycocotools import mask

    try:
        runs = segmentation
        if not isinstance(runs, Mapping):
            runs = mask.merge(mask.frPyObjects(segmentation, height, width))
        elif isinstance(runs["counts"], list):
            runs = mask.frPyObjects(segmentation, height, width)
        return mask.decode(runs).astype(bool)
    except Exception as error:  # pycocotools raises what the wrong form leads it to
        words = f"an instance has no polygons or run lengths of COCO's form: {printable(segmentation, 60)}"
        raise ValueError(words) from error


def mask_at_size(mask: np.ndarray, picture: np.ndarray, file: Path) -> np.ndarray:
    """Returns a mask `(height, width, ...)` at the size of its picture, of the nearest pixels, as EoMT's authors do.

    Raises ValueError, which names the file, if its aspect ratio is another by more than rounding.
    """
    old, new = mask.shape[:2], picture.shape[:2]
    if abs(new[0] * old[1] - new[1] * old[0]) > max(*old, *new):  # more than rounding
        raise ValueError(f"{printable(file)} has {old[0]} x {old[1]} pixels, but its picture {new[0]} x {new[1]}.")
    rows, columns = (np.arange(side) * before // side for before, side in zip(old, new, strict=True))
    return mask[rows[:, None], columns]


def names_beside(source: Any) -> list[str] | None:
    """Returns the names of classes, one a line in `classes.txt` of a folder; None where there is none, or no folder.

    Raises ValueError if the file is no UTF-8, empty, or has lines that are alike or name no class, and OSError if it
    cannot be read.
    """
    file = Path(source, CLASSES) if isinstance(source, (str, os.PathLike)) else None
    if file is None or not file.exists():
        return None
    names = file.read_text(encoding="utf-8-sig").splitlines()
    if not names:
        raise ValueError(f"{printable(file)} is empty: a name on each line was expected.")
    return check_class_names(names, None)[0]


def _arrays(source: Any) -> tuple[Any, Any]:
    """Returns the images and the masks of a pair; TypeError for anything else, ValueError if none or not as many."""
    if not isinstance(source, (tuple, list)) or len(source) != 2:
        kinds = "a folder of images/ and masks/, (images, masks), or a dict of these"
        raise TypeError(f"data must be {kinds}, but {type(source).__name__} was given.")
    images, masks = source
    if not len(images) or len(images) != len(masks):
        raise ValueError(f"There are {len(images)} images and {len(masks)} masks: each image needs one.")
    return images, masks


# Folders


def _split_folders(root: Any) -> dict[str, tuple[Path, Path]]:
    """Returns the folders of pictures and masks of each split by its name; none if there are none, or no folder.

    Raises OSError if the root does not exist (FileNotFoundError), is no folder or cannot be read.
    """
    if not isinstance(root, (str, os.PathLike)):
        return {}
    root, found = Path(root), {}
    inside = root / IMAGES if (root / IMAGES).is_dir() else root
    for folder in sorted(inside.iterdir()):
        if folder.is_dir() and split_of(folder.name):
            above = inside == root  # train/images, and not images/train
            below = (folder, _mask_folder(root) / folder.name)
            found[folder.name] = (folder / IMAGES, _mask_folder(folder)) if above else below
    return found


def _mask_folder(root: Path) -> Path:
    """Returns the folder of masks beside the pictures, of whichever of its names; that of the first name if missing."""
    return next((root / name for name in MASKS if (root / name).is_dir()), root / MASKS[0])


def files_by_name(folder: Path) -> dict[Path, Path]:
    """Returns the images below a folder, by their paths in it without the ending; ValueError if two have one.

    Raises OSError if the folder is missing or cannot be read, ValueError if a link leads back to a folder above it.
    """
    files: dict[Path, Path] = {}
    for path in image_files(folder):
        other = files.setdefault(path.relative_to(folder).with_suffix(""), path)
        if other != path:
            raise ValueError(f"{printable(other)} and {printable(path.name)} differ by their endings only: keep one.")
    return files


def _files(root: Path, split: str) -> list[tuple[Path, Path]]:
    """Returns each picture of a split with its mask, sorted; masks without a picture are left out with a warning.

    Raises OSError if a folder is missing (FileNotFoundError) or cannot be read, ValueError without the split or
    pictures, if the split has two folders, two files have one name but for the ending, a link leads back to a folder
    that it lies in, or a picture has no mask.
    """
    folders = _split_folders(root)
    pictures, masks = pick_split(folders, split) if folders else (root / IMAGES, _mask_folder(root))
    for folder, kind in ((pictures, "pictures"), (masks, "masks")):
        if not folder.is_dir():
            raise FileNotFoundError(f"There is no folder {printable(folder)} with the {kind} of the data.")
    by_name, files = files_by_name(masks), files_by_name(pictures)
    if not files:
        raise ValueError(f"{printable(pictures)} has no pictures.")
    without = [str(name) for name in files if name not in by_name]
    if without:
        raise ValueError(f"{len(without)} pictures in {printable(pictures)} have no mask: {listing(without)}.")
    unused = [str(name) for name in by_name if name not in files]
    if unused:
        warn_caller(f"{len(unused)} masks in {printable(masks)} have no picture, and are left out: {listing(unused)}.")
    return [(path, by_name[name]) for name, path in files.items()]
