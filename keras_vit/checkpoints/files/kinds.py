"""What a file is, by the bytes that it begins with and not by its name."""

import pathlib
import zipfile
import zlib

NPZ, SAFETENSORS, TORCH, INDEX = "npz", "safetensors", "torch", "index"  # what `kind_of` tells apart
PICKLE_START = b"\x80\x02"  # protocol 2, which torch.save writes
_HEAD = 512  # bytes that are looked at


def kind_of(path: pathlib.Path) -> str | None:
    """Which kind of file with arrays a file looks like; None for anything else.

    Returns:
        `NPZ` for any zip archive that PyTorch did not write, `SAFETENSORS`, `TORCH` (both of its forms), `INDEX` for
        the list of the parts of a safetensors file in several pieces.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(b"PK"):
        return TORCH if _is_torch_zip(path, head) else NPZ
    if head.startswith(PICKLE_START):
        return TORCH
    # A length of 123 is a brace as well, but one of 2**40 is text.
    if head.lstrip().startswith(b"{") and (head[8:9] != b"{" or int.from_bytes(head[:8], "little") >= 2**40):
        return INDEX
    return SAFETENSORS if head[8:9] == b"{" else None


def what_it_is(path: pathlib.Path) -> str:
    """A guess at what a file is, for messages about files of another kind than expected."""
    with path.open("rb") as file:
        start = file.read(_HEAD)
    if not start:
        return "it is empty"
    if start.startswith(b"PK"):
        if _is_torch_zip(path, start):
            return "it looks like a PyTorch file"
        if b"metadata.json" in start or b"config.json" in start:
            return "it looks like a .keras file; load it with keras.saving.load_model"
        return "its end is missing or it holds something else. It was probably not fetched completely"
    if start.startswith(b"\x89HDF"):
        return "it is an HDF5 file; load it with model.load_weights"
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, probably the error message of a download"
    if start.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS and not the file itself; fetch that with `git lfs pull`"
    if start.startswith(b"\x93NUMPY"):
        return "it is a single array (.npy)"
    if start[8:9] == b"{":
        return "it looks like a safetensors file"
    return f"it starts with {start[:8]!r}"


def _is_torch_zip(path: pathlib.Path, head: bytes) -> bool:
    """Whether a zip archive is one that PyTorch wrote: it has a member `data.pkl` in a folder."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError, NotImplementedError):
        return b"data.pkl" in head or b"archive/" in head  # incomplete: its list of members is at its end
