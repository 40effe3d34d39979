"""The JSON files beside a model's weights, which say what arrays do not."""

import dataclasses
import os
import pathlib
from typing import Any

from keras_vit.checkpoints.files.json_text import parse_json
from keras_vit.checkpoints.weight_names import SIDECAR_NAMES

LONGEST = 2**23  # bytes; twice the names of ImageNet-21k's classes have a quarter of it


@dataclasses.dataclass(frozen=True)
class Sidecars:
    """What lies beside a file of weights, as plain data; None for what is not there.

    Attributes:
        config: `config.json`: timm's, or that of Hugging Face's transformers.
        open_clip: `open_clip_config.json`.
        preprocessor: `preprocessor_config.json` of transformers.
        folder: Where they were looked for.
    """

    config: dict[str, Any] | None = None
    open_clip: dict[str, Any] | None = None
    preprocessor: dict[str, Any] | None = None
    folder: pathlib.Path | None = None


FILES = dict(zip(("config", "open_clip", "preprocessor"), SIDECAR_NAMES, strict=True))


def read_sidecars(path: str | os.PathLike[str]) -> Sidecars:
    """The JSON files beside a file of weights, or in a folder.

    Args:
        path: The file, which need not exist, or the folder.

    Raises:
        ValueError: if one of them is no object of JSON in UTF-8, too long or damaged.
    """
    path = pathlib.Path(path)
    folder = path if path.is_dir() else path.parent
    contents: dict[str, dict[str, Any]] = {}
    for field, name in FILES.items():
        file = folder / name
        if not file.is_file():
            continue
        size = file.stat().st_size
        if size > LONGEST:
            raise ValueError(f"{file} has {size:,} bytes; at most {LONGEST:,} are read.")
        with file.open("rb") as opened:
            contents[field] = parse_json(opened.read(LONGEST), str(file))
    return Sidecars(**contents, folder=folder)
