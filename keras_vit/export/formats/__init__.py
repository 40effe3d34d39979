"""What a format is. Each has a file in this folder, with all that is particular to it, and a row in `FORMATS`.

Metadata goes where a format has a place for it: as pairs of strings, as files, or as an archive at the end of a file.
"""

import dataclasses
import importlib.util
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np

from keras_vit.export.runtimes import RUNTIMES
from keras_vit.export.served_model import Metadata, Signature

# The two files that hold the metadata where a format stores files.
DETAILS = "keras_vit.json"
LABELS = "labels.txt"
FLATBUFFER = 2**31  # bytes that the offsets in a file can reach; also what a protobuf message may have


@dataclasses.dataclass(frozen=True)
class Precision:
    """One precision of one format: what it needs, or why there is no such file.

    Attributes:
        packages: What has to be installed.
        extra: The extra of keras-vit that brings it.
        calibration: Whether images are needed.
        reason: Why there is no such file, and what to do instead; empty where there is one.
    """

    packages: tuple[str, ...] = ()
    extra: str = ""
    calibration: bool = False
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Format:
    """One way to ship a model.

    Attributes:
        name: The format's name, and that of its file in this folder and its function in `runtimes.py`.
        suffix: What the path has to end in; empty for a folder.
        backend: The Keras backend that writes it.
        needs: Packages that have to be installed, to write the file and to check it.
        extra: The extra of keras-vit that brings them.
        write: Writes a model as the signature says to a path, in float32, under the format's backend.
        annotate: Puts metadata into a written file, where the format has a place for it.
        operators: The names of the operators in a file, and of those among them that are not the runtime's own.
            None where any runtime knows all that a file can hold.
        precisions: The precisions that a file can have, and those that it cannot have.
        change_precision: Makes a file of another precision from one in float32, without the model: the two paths, the
            precision, and calibration images as the file takes them or None. None where there is only float32.
        beside: Suffixes of further files that lie beside the one at the path.
        largest: Bytes of weights that a file can hold; None for any number.
        any_size: Why a Vision Transformer for images of any size cannot be written; None where it can.

    Examples:
        >>> export.FORMATS["litert"].suffix
        '.tflite'
    """

    name: str
    suffix: str
    backend: str
    needs: tuple[str, ...]
    extra: str
    write: Callable[[keras.Model, Signature, Path], None]
    annotate: Callable[[Path, Metadata], None]
    precisions: dict[str, Precision]
    operators: Callable[[Path], tuple[list[str], list[str]]] | None = None
    change_precision: Callable[[Path, Path, str, np.ndarray | None], None] | None = None
    beside: tuple[str, ...] = ()
    largest: int | None = None
    any_size: str | None = None

    def run(self, path: Path, images: np.ndarray) -> dict[str, np.ndarray]:
        """The answers of a written file to a batch of images by name, computed in this process without the model."""
        return RUNTIMES[self.name](path)(images)

    def files(self, path: Path) -> list[Path]:
        """Everything that an export to a path leaves: first what lies beside it, and the path itself last."""
        return [*(path.with_suffix(suffix) for suffix in self.beside), path]

    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def precision(self, name: str) -> Precision:
        """The row of a precision.

        Raises:
            ValueError: if there is none, or no such file can be made. The message says what can, and why this cannot.
            ImportError: if a package is missing that it needs.
        """
        offered = [known for known, row in self.precisions.items() if not row.reason]
        row = self.precisions.get(name)
        if row is None or row.reason:
            why = f": {row.reason}" if row else "."
            raise ValueError(
                f"precision must be one of {offered} for the format {self.name!r}, but {name!r} was given{why}"
            )
        require(f"The precision {name!r} of {self.name!r}", row.packages, row.extra)
        return row


def only_float32(what: str, instead: str) -> dict[str, Precision]:
    """The precisions of a format whose programs name the dtype of every step."""
    reason = f"{what} names the dtype of each of its operations, so the weights cannot change without them: {instead}"
    others = ("float16", "bfloat16", "dynamic_int8", "int8")
    return {"float32": Precision(), **dict.fromkeys(others, Precision(reason=reason))}


def require(what: str, packages: tuple[str, ...], extra: str) -> None:
    """Raises ImportError where packages are missing that `what` needs, with the extra that brings them."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f'{what} needs {" and ".join(missing)}, which is not installed: pip install "keras-vit[{extra}]"',
            name=missing[0],
        )


def as_strings(metadata: Metadata) -> dict[str, str]:
    """The metadata for a format that stores pairs of strings: anything but strings as JSON."""
    return {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in metadata.items()
    }


def as_files(metadata: Metadata) -> dict[str, str]:
    """The metadata for a format that stores files: one of JSON, and one with a class name on every line."""
    files = {DETAILS: json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"}
    if "class_names" in metadata:
        files[LABELS] = "\n".join(metadata["class_names"]) + "\n"
    return files


def append_archive(path: Path, metadata: Metadata) -> None:
    """Appends the files of the metadata to a file as a zip archive.

    Formats that are read from their beginning ignore it, and `zipfile.ZipFile(path)` finds it from the end.
    """
    with zipfile.ZipFile(path, "a") as archive:
        for name, text in as_files(metadata).items():
            # With a fixed date, so that the same model gives the same bytes.
            archive.writestr(zipfile.ZipInfo(name), text)


def batches(images: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """The images in batches of one size; the first images come again to fill the last one."""
    for start in range(0, len(images), size):
        yield images.take(range(start, start + size), axis=0, mode="wrap")
