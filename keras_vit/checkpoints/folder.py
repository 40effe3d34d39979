"""What lies in the folder or the repository of a checkpoint: weights, and JSON files and class names beside them."""

import json
import os
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from keras_vit._arguments import is_class_name, printable

if TYPE_CHECKING:
    from keras_vit.models import ModelConfig


INDEX_ENDING = ".index.json"
# The preferred first.
WEIGHT_NAMES = (
    "model.safetensors",
    f"model.safetensors{INDEX_ENDING}",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
    "model.pth",
    "model.npz",
)
# What lies beside them and says what arrays do not.
CLASSES = "classes.txt"
SIDECAR_NAMES = ("config.json", "open_clip_config.json", "preprocessor_config.json")
ENDINGS = (".safetensors", ".pth", ".pt", ".bin", ".tar", ".npz")
NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt", "optimizer.bin", "scheduler.bin")
LONGEST = 2**23  # bytes of JSON; twice the names of ImageNet-21k's classes have a quarter of it
LONGEST_LIST = 2**24  # bytes of a classes.txt; the 21,843 names of ImageNet-21k are a sixtieth of it


def choose_weights(names: Iterable[str], where: str) -> str | None:
    """The file with a model's weights among others.

    Args:
        names: Their names; those with a folder are passed over.
        where: What has them, for the message.

    Returns:
        The first of `WEIGHT_NAMES`, or the only one with one of `ENDINGS`; None where there is none.

    Raises:
        ValueError: if several have such an ending, none of them a known name.
    """
    candidates = {name for name in names if "/" not in name}
    for name in WEIGHT_NAMES:
        if name in candidates:
            return name
    others = sorted(name for name in candidates - {*NOT_WEIGHTS} if pathlib.PurePath(name).suffix in ENDINGS)
    if len(others) > 1:
        more = " ..." if len(others) > 5 else ""
        raise ValueError(
            f"{where} has several files of weights ({', '.join(others[:5])}{more}): name the one that is meant."
        )
    return others[0] if others else None


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


def read_sidecars(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """The JSON files beside a file of weights, or in a folder, as plain data.

    Args:
        path: The file, which need not exist, or the folder.

    Returns:
        By name, those that are there: `"config"` (`config.json`, timm's or that of transformers), `"open_clip"` and
        `"preprocessor"` (`open_clip_config.json` and `preprocessor_config.json`).

    Raises:
        ValueError: if one of them is no object of JSON in UTF-8, too long or damaged.
    """
    path = pathlib.Path(path)
    folder = path if path.is_dir() else path.parent
    files = {"config": "config.json"} | {name.removesuffix("_config.json"): name for name in SIDECAR_NAMES[1:]}
    return {
        name: parse_json(_read(folder / file, LONGEST), str(folder / file))
        for name, file in files.items()
        if (folder / file).is_file()
    }


def with_names_beside(config: "ModelConfig", path: str | os.PathLike[str]) -> "ModelConfig":
    """The config with the names in a `classes.txt` beside a file, where it has none and the numbers agree.

    Raises:
        ValueError: if that file is no list of names.
    """
    if not config.classes or config.class_names is not None:
        return config
    names = names_beside(path)
    return config if names is None or len(names) != config.classes else config.replace(class_names=names)


def names_beside(path: str | os.PathLike[str]) -> tuple[str, ...] | None:
    """The lines of the `classes.txt` in the folder of a file, or in a folder; None where there is none.

    Raises:
        ValueError: if it is not UTF-8, too large, or has lines that cannot be names.
    """
    path = pathlib.Path(path)
    file = (path if path.is_dir() else path.parent) / CLASSES
    if not file.is_file():
        return None
    try:
        names = tuple(_read(file, LONGEST_LIST).decode("utf-8-sig").splitlines())
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not a list of class names in UTF-8: {error}.") from None
    for number, name in enumerate(names, 1):
        if not is_class_name(name):
            raise ValueError(
                f"{file} is not a list of class names, one a line: line {number} is {printable(repr(name), 80)}."
            )
    return names


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """The object that untrusted JSON says.

    Args:
        data: The text, in UTF-8. The caller bounds its length: parsed, it may take forty times as many bytes.
        what: What it is, for messages.

    Raises:
        ValueError: if it is not UTF-8 or no JSON, is nested too deeply, is no object, or has one name twice in an
            object.
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError(f"{what} is damaged: it is nested too deeply.") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are, too
        raise ValueError(f"{what} is damaged: {printable(error, 200)}.") from None
    if not isinstance(value, dict):
        raise ValueError(f"{what} is damaged: it is a {type(value).__name__}, expected an object of JSON.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"the name {name[:100]!r} stands in it twice")
        values[name] = value
    return values


def _read(file: pathlib.Path, most: int) -> bytes:
    size = file.stat().st_size
    if size > most:
        raise ValueError(f"{file} has {size:,} bytes; at most {most:,} are read.")
    with file.open("rb") as opened:
        return opened.read(most)
