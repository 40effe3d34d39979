"""What a format is: `Format`, which each file of `formats` fills in, and what several of them share.

Nothing here or in `formats` imports Keras or a framework before it is used: files are checked in a process with their
own runtime alone. Metadata goes where a format has a place for it: as strings, as files, or as an archive at the end.
"""

import abc
import dataclasses
import importlib
import importlib.util
import itertools
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from keras_vit._arguments import require_packages

if TYPE_CHECKING:
    from keras import Model

    from keras_vit.export.float16 import Computed
    from keras_vit.export.served_model import Signature
else:
    Model = Signature = Any  # whose modules import Keras

FLATBUFFER = 2**31  # bytes that the offsets in a file can reach; also what a protobuf message may have
Answers: TypeAlias = dict[str, np.ndarray]  # the outputs by name
Run: TypeAlias = Callable[[np.ndarray], Answers]  # an opened file, for images as it takes them


@dataclasses.dataclass(frozen=True)
class Precision:
    """One precision of one format: what it needs, or why there is no such file."""

    packages: tuple[str, ...] = ()  # that have to be installed
    extra: str = ""  # of keras-vit that brings them
    calibration: bool = False  # whether images are needed
    reason: str = ""  # why there is no such file, and what to do instead


class Operators(NamedTuple):
    """The sorted names of the operators in a file, and of those among them that are foreign to its runtime."""

    names: list[str]
    foreign: list[str]


class Format(abc.ABC):
    """An export format: how a file is written and run, and which packages both need.

    Attributes:
        name: The format's name.
        suffix: What the path has to end in; empty for a folder without one.
        inside: Name of a file that every folder of this format has: only such a folder is overwritten.
        backend: The Keras backend that writes it.
        needs: Packages that have to be installed, to write the file and to check it.
        extra: The extra of keras-vit that brings them.
        runtime: Modules that `load` imports.
        precisions: A `Precision` for each name, such as `"float16"`: what it needs, or why files cannot have it.
        beside: Suffixes of further files that lie beside the one at the path.
        largest: Bytes of weights that a file can hold; None for any number.
        any_size: Reason why a model for images of any size cannot be written; None if it can.
        note: Behaviour of the runtime that a check does not measure; None if there is none.
        batch: Default number of images at a time; None for any number.
        gpu: The precisions that a file for the GPU of a phone can have.

    Examples:
        >>> export.FORMATS["litert"].suffix
        '.tflite'
    """

    name: ClassVar[str]
    suffix: ClassVar[str]
    inside: ClassVar[str] = ""
    backend: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    extra: ClassVar[str]
    runtime: ClassVar[tuple[str, ...]]
    precisions: ClassVar[dict[str, Precision]]
    beside: ClassVar[tuple[str, ...]] = ()
    largest: ClassVar[int | None] = None
    any_size: ClassVar[str | None] = None
    note: ClassVar[str | None] = None
    batch: ClassVar[int | None] = None
    gpu: ClassVar[tuple[str, ...]] = ()

    def import_runtime(self) -> None:
        """Imports the runtime that `load` uses; ImportError if it is missing."""
        for module in self.runtime:
            importlib.import_module(module)

    @abc.abstractmethod
    def write(self, model: Model, signature: Signature, path: Path) -> None:
        """Writes a model as the signature says to a path, in float32; the running backend has to be the format's."""

    @abc.abstractmethod
    def load(self, path: Path) -> Run:
        """Opens a file with its runtime."""

    def annotate(self, path: Path, metadata: dict[str, Any]) -> None:
        """Puts metadata into a written file or folder: here into a zip archive behind it, which runtimes ignore."""
        with zipfile.ZipFile(path, "a") as archive:
            for name, text in as_files(metadata).items():
                # With a fixed date, so that the same model becomes the same bytes.
                archive.writestr(zipfile.ZipInfo(name), text)

    def operators(self, path: Path) -> Operators:
        """The operators of a file; empty if every runtime has all operators of the format."""
        return Operators([], [])

    def change_precision(self, source: Path, target: Path, precision: str, calibration: np.ndarray | None) -> None:
        """Makes the file `target`, of another precision, from one in float32, without the model.

        Calibration images are as the file takes them, None for precisions that need none.
        """
        raise NotImplementedError(f"{self.name} files have only the precision float32.")

    def run(self, path: Path, images: np.ndarray) -> Answers:
        """The outputs of a written file for a batch of images by name, computed in this process by `load`."""
        return self.load(path)(images)

    def off_gpu(self, path: Path) -> tuple[int, list[str]] | None:
        """How many operators a file has, and those that a phone's GPU would not run; None if not looked at."""
        return None

    def compute(self, path: Path, images: np.ndarray, dtype: Any, loud: float = 0.0) -> "Computed":
        """The outputs of the file at `path` for images, with every intermediate value rounded to `dtype`."""
        raise NotImplementedError(f"{self.name} files cannot be computed in another dtype.")

    def files(self, path: Path) -> list[Path]:
        """The paths of all files of an export; `path` is the last."""
        return [*(path.with_suffix(suffix) for suffix in self.beside), path]

    def missing(self) -> list[str]:
        """Those packages of `needs` that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def precision(self, name: str) -> Precision:
        """Returns the `Precision` of a name such as `"float16"`.

        Raises ValueError if this format does not offer it, ImportError if a package that it needs is missing.
        """
        offered = [known for known, row in self.precisions.items() if not row.reason]
        row = self.precisions.get(name)
        if row is None or row.reason:
            words = f"precision must be one of {offered} for the format {self.name!r}, but {name!r} was given"
            raise ValueError(f"{words}: {row.reason}" if row else f"{words}.")
        require_packages(f"The precision {name!r} of {self.name!r}", row.packages, row.extra)
        return row


def as_strings(metadata: dict[str, Any]) -> dict[str, str]:
    """The metadata as strings by name: anything but strings as JSON."""
    return {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in metadata.items()}


def as_files(metadata: dict[str, Any]) -> dict[str, str]:
    """Returns texts by the names of files: `keras_vit.json` with the metadata and, if it has them, `labels.txt`."""
    files = {"keras_vit.json": json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"}
    if "class_names" in metadata:
        files["labels.txt"] = "\n".join(metadata["class_names"]) + "\n"
    return files


def batches(images: np.ndarray, *sizes: int) -> Iterator[np.ndarray]:
    """Yields the images in batches, of which the last size repeats; the first images come again to fill the last."""
    start = 0
    for size in itertools.chain(sizes, itertools.repeat(sizes[-1])):
        if start >= len(images):
            return
        yield images.take(range(start, start + size), axis=0, mode="wrap")
        start += size


def only_float32(what: str, instead: str) -> dict[str, Precision]:
    """The precisions of a format with float32 alone; `what` and `instead` are words of the reason why."""
    reason = f"{what} names the dtype of each of its operations, so the weights cannot change without them: {instead}"
    others = ("float16", "bfloat16", "dynamic_int8", "int8")
    return {"float32": Precision(), **dict.fromkeys(others, Precision(reason=reason))}
