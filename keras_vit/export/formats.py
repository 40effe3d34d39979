"""The formats, one row each: which backend writes it, which runtime runs it, and what both need."""

import dataclasses
import importlib
import importlib.util
from pathlib import Path

import numpy as np

FLATBUFFER = 2**31  # bytes that the offsets in a file can reach; also what a protobuf message may have


@dataclasses.dataclass(frozen=True)
class Format:
    """One way to ship a model.

    Attributes:
        name: The format's name.
        suffix: What the path has to end in; empty for a folder.
        beside: Suffixes of further files that lie beside the one at the path.
        backend: The Keras backend that writes it.
        runtime: The module in `runtimes` that runs it.
        needs: Packages that have to be installed, to write the file and to check it.
        extra: The extra of keras-vit that brings them.
        largest: Bytes of weights that a file can hold; None for any number.
        any_size: Why a Vision Transformer for images of any size cannot be written; None where it can.
    """

    name: str
    suffix: str
    backend: str
    runtime: str
    needs: tuple[str, ...]
    extra: str
    beside: tuple[str, ...] = ()
    largest: int | None = None
    any_size: str | None = None

    def run(self, path: Path, images: np.ndarray) -> np.ndarray:
        """The answers of a written file to a batch of images, computed in this process without the model.

        Args:
            path: The file or folder.
            images: As the file takes them.
        """
        return importlib.import_module(f"{__package__}.runtimes.{self.runtime}").load(path)(images)

    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return _missing(self.needs)


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format("saved_model", "", "tensorflow", "saved_model", ("tensorflow",), "export"),
        Format(
            "litert",
            ".tflite",
            "tensorflow",
            "litert",
            ("tensorflow", "ai_edge_litert"),
            "export",
            largest=FLATBUFFER,
        ),
        Format(
            "onnx",
            ".onnx",
            "tensorflow",
            "onnx_runtime",
            ("tensorflow", "tf2onnx", "onnx", "onnxruntime"),
            "onnx",
            largest=FLATBUFFER,
        ),
        Format(
            "openvino",
            ".xml",
            "tensorflow",
            "openvino_runtime",
            ("tensorflow", "openvino"),
            "openvino",
            beside=(".bin",),
        ),
        Format(
            "torch",
            ".pt2",
            "torch",
            "torch_program",
            ("torch",),
            "torch",
            any_size="PyTorch's tracing cannot make position embeddings for sizes that it does not know yet",
        ),
        Format("stablehlo", ".stablehlo", "jax", "stablehlo", ("jax", "flatbuffers"), "jax", largest=FLATBUFFER),
    )
}


def require(what: str, packages: tuple[str, ...], extra: str) -> None:
    """Refuses to begin where packages are missing.

    Args:
        what: What needs them, for the message.
        packages: Their names.
        extra: The extra of keras-vit that brings them.

    Raises:
        ImportError: if one is not installed.
    """
    missing = _missing(packages)
    if missing:
        raise ImportError(
            f'{what} needs {" and ".join(missing)}, which is not installed: pip install "keras-vit[{extra}]"',
            name=missing[0],
        )


def _missing(packages: tuple[str, ...]) -> list[str]:
    return [name for name in packages if importlib.util.find_spec(name) is None]


def format_of(path: Path, name: str | None) -> Format:
    """The row of a format, by its name or else by the path's suffix.

    Args:
        path: Where the file is to be.
        name: A key of `FORMATS`; None for the one that the suffix belongs to. A path without one is a SavedModel.

    Raises:
        ValueError: if there is no such format, or the path does not end as the format wants.
    """
    if name is None:
        by_suffix = {row.suffix: row for row in FORMATS.values()}
        if path.suffix not in by_suffix:
            choices = ", ".join(f"{suffix or 'no suffix'} ({row.name})" for suffix, row in by_suffix.items())
            raise ValueError(f"path must end in one of {choices}, but {str(path)!r} was given. Or name a format.")
        return by_suffix[path.suffix]
    if name not in FORMATS:
        raise ValueError(f"format must be one of {sorted(FORMATS)}, but {name!r} was given.")
    row = FORMATS[name]
    if row.suffix and path.suffix != row.suffix:
        raise ValueError(f"path must end in {row.suffix!r} for the format {name!r}, but {str(path)!r} was given.")
    return row
