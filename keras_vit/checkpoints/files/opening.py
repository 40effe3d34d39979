"""Files with arrays, whatever their format."""

import os
import pathlib

from keras_vit.checkpoints.files.npz import NpzFile
from keras_vit.checkpoints.files.safetensors_file import SafetensorsFile
from keras_vit.checkpoints.files.stored_array import INDEX, NPZ, SAFETENSORS, TORCH, ArrayFile, kind_of
from keras_vit.checkpoints.files.torch_file import TorchFile
from keras_vit.checkpoints.folder import ENDINGS, WEIGHT_NAMES, choose_weights

_BY_ENDING: dict[str, type[ArrayFile]] = {
    ".npz": NpzFile,
    ".safetensors": SafetensorsFile,
    ".json": SafetensorsFile,
    ".pth": TorchFile,
    ".pt": TorchFile,
    ".bin": TorchFile,
    ".tar": TorchFile,
}
_READERS: dict[str, type[ArrayFile]] = {
    NPZ: NpzFile,
    SAFETENSORS: SafetensorsFile,
    INDEX: SafetensorsFile,
    TORCH: TorchFile,
}


def open_file(path: str | os.PathLike[str]) -> ArrayFile:
    """The arrays of a file. What kind it is tells what it begins with; its name matters only for messages.

    Args:
        path: An `.npz`, a `.safetensors` file or the index of several, or a `.pth` of either form; or a folder with
            one of them (see `weights_in`).

    Raises:
        TypeError: if `path` is no path.
        FileNotFoundError, IsADirectoryError: if there is no such file, or none in the folder.
        ValueError: if the file is of none of these kinds, or damaged, or the folder has several.
    """
    path = weights_in(path)
    kind = kind_of(path) if path.is_file() else None
    reader = _READERS[kind] if kind is not None else _BY_ENDING.get(path.suffix.lower(), NpzFile)
    return reader(path)


def weights_in(path: str | os.PathLike[str]) -> pathlib.Path:
    """The file with weights in a folder (see `choose_weights`).

    Args:
        path: The folder, or a file, which is given back as it is.

    Raises:
        TypeError: if `path` is no path.
        IsADirectoryError: if the folder has no such file.
        ValueError: if it has several, none of them of a known name.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"The path of a checkpoint file must be a string or a path, but {path!r} was given.")
    folder = pathlib.Path(path)
    if not folder.is_dir():
        return folder
    name = choose_weights((file.name for file in folder.iterdir() if file.is_file()), f"The folder {folder}")
    if name is None:
        raise IsADirectoryError(
            f"{folder} is a folder without weights: the path of a checkpoint file was expected, or a folder with "
            f"{', '.join(WEIGHT_NAMES)} or one other file of a kind in {', '.join(ENDINGS)}."
        )
    return folder / name
