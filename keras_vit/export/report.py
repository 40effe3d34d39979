"""`ExportReport`: what an export wrote, and how the file compares with the model."""

import dataclasses
from typing import Any

from keras_vit.tables import as_text, megabytes, pairs_table


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What was written, and what was measured on it in a fresh process. Printing it draws a table.

    Attributes:
        format: A key of `FORMATS`.
        path: The file or folder.
        precision: What it computes in.
        bytes: Its size, with files beside it.
        batch: Images at a time; None for any number.
        input: Name, dtype, shape and value range of the input, in words.
        output: Name of the answers.
        operators: Names of the operators that it uses.
        select_operators: Those among them that the runtime does not bring (LiteRT's Flex operators, for example).
        images: How many images were compared.
        max_abs_error: Largest difference between the answers of the file and of the model in float32.
        mean_abs_error: Mean difference.
        tolerance: What the largest difference was allowed to be.
        top1_agreement: Share of the images for which both name the same class; None without classes.
        accuracy: The file's accuracy on the labels that were given; None without labels.
        model_accuracy: The model's accuracy on them.
        load_seconds: From opening the file to its first answer, without importing the runtime.
        latency_ms: Median time of an answer to `batch` images, or to one; None if it was not measured.
        peak_memory_bytes: Most memory while loading and answering `batch` images, or one, above what the runtime
            takes without a file; None where the system does not tell.
        seconds: What the export took.
    """

    format: str
    path: str
    precision: str
    bytes: int
    batch: int | None
    input: str
    output: str
    operators: tuple[str, ...]
    select_operators: tuple[str, ...]
    images: int
    max_abs_error: float
    mean_abs_error: float
    tolerance: float
    top1_agreement: float | None
    accuracy: float | None
    model_accuracy: float | None
    load_seconds: float
    latency_ms: float | None
    peak_memory_bytes: int | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data, for JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    def __str__(self) -> str:
        return as_text(self, 120)

    def __rich__(self) -> Any:
        """The table that rich draws, for a terminal of any width."""
        return pairs_table(self.path, dict(self._rows()))

    def _rows(self) -> list[tuple[str, str | None]]:
        def share(value: float | None) -> str | None:
            return None if value is None else f"{100 * value:.2f} %"

        accuracy = None
        if self.accuracy is not None:
            accuracy = f"{share(self.accuracy)} (the model: {share(self.model_accuracy)})"
        latency = None
        if self.latency_ms is not None:
            latency = f"{self.latency_ms:.2f} ms for a batch of {self.batch or 1}"
        outside = ", ".join(self.select_operators)
        return [
            ("format", f"{self.format}, {self.precision}"),
            ("size", megabytes(self.bytes)),
            ("input", self.input),
            ("output", self.output),
            ("largest difference", f"{self.max_abs_error:.1e} (allowed: {self.tolerance:.1e}), {self.images} images"),
            ("mean difference", f"{self.mean_abs_error:.1e}"),
            ("same top class", share(self.top1_agreement)),
            ("accuracy", accuracy),
            ("load", f"{self.load_seconds:.2f} s to the first answer"),
            ("latency", latency),
            ("memory", None if self.peak_memory_bytes is None else f"{megabytes(self.peak_memory_bytes)} at most"),
            ("operators", ", ".join(self.operators)),
            ("outside the runtime", outside or "none"),
            ("export took", f"{self.seconds:.1f} s"),
        ]
