"""Metadata in the forms that formats have a place for: pairs of strings, files, an archive at the end of a file."""

import json
import zipfile
from pathlib import Path
from typing import Any

# The two files that hold the metadata where a format stores files.
DETAILS = "keras_vit.json"
LABELS = "labels.txt"


def as_strings(metadata: dict[str, Any]) -> dict[str, str]:
    """The metadata for a format that stores pairs of strings: anything but strings as JSON."""
    return {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in metadata.items()
    }


def as_files(metadata: dict[str, Any]) -> dict[str, str]:
    """The metadata for a format that stores files: one of JSON, and one with a class name on every line."""
    files = {DETAILS: json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"}
    if "class_names" in metadata:
        files[LABELS] = "\n".join(metadata["class_names"]) + "\n"
    return files


def write_folder(folder: Path, metadata: dict[str, Any]) -> None:
    """Writes the files of the metadata into a folder."""
    folder.mkdir(exist_ok=True)
    for name, text in as_files(metadata).items():
        (folder / name).write_text(text, encoding="utf-8")


def append_archive(path: Path, metadata: dict[str, Any]) -> None:
    """Appends the files of the metadata to a file as a zip archive.

    Formats that are read from their beginning ignore it, and `zipfile.ZipFile(path)` finds it from the end.
    """
    with zipfile.ZipFile(path, "a") as archive:
        for name, text in as_files(metadata).items():
            # With a fixed date, so that the same model gives the same bytes.
            archive.writestr(zipfile.ZipInfo(name), text)
