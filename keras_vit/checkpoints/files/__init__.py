"""How arrays are stored: the formats of files, each read without its framework."""

import os

from keras_vit.checkpoints.files.npz import NpzFile, write_npz
from keras_vit.checkpoints.files.safetensors_file import SafetensorsFile, write_safetensors
from keras_vit.checkpoints.files.stored_array import INDEX, NPZ, SAFETENSORS, TORCH, ArrayFile, StoredArray, kind_of
from keras_vit.checkpoints.files.torch_file import TorchFile
from keras_vit.checkpoints.folder import read_sidecars, weights_in

__all__ = [
    "ArrayFile",
    "NpzFile",
    "SafetensorsFile",
    "StoredArray",
    "TorchFile",
    "open_file",
    "read_sidecars",
    "weights_in",
    "write_npz",
    "write_safetensors",
]

_READERS: dict[str, type[ArrayFile]] = {
    **dict.fromkeys((NPZ, ".npz"), NpzFile),
    **dict.fromkeys((SAFETENSORS, INDEX, ".safetensors", ".json"), SafetensorsFile),
    **dict.fromkeys((TORCH, ".pth", ".pt", ".bin", ".tar"), TorchFile),
}


def open_file(path: str | os.PathLike[str]) -> ArrayFile:
    """The arrays of a file. What kind it is tells what it begins with; its name matters only for messages.

    Args:
        path: An `.npz`, a `.safetensors` file or the index of several, or a `.pth` of any form; or a folder with one of
            them (see `weights_in`).

    Raises:
        TypeError: if `path` is no path.
        FileNotFoundError, IsADirectoryError: if there is no such file, or none in the folder.
        ValueError: if the file is of none of these kinds, or damaged, or the folder has several.
    """
    path = weights_in(path)
    kind = kind_of(path) if path.is_file() else None
    return _READERS.get(kind or path.suffix.lower(), NpzFile)(path)
