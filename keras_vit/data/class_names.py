"""Names of classes: what may be one, and which labels of the data are which outputs of a model."""

import collections
from collections.abc import Sequence

import numpy as np

from keras_vit._text import printable
from keras_vit.preprocessing import imagenet1k_classes

SHOWN = 5  # names in a message


def check_class_name(name: str, where: str) -> None:
    """Refuse a name that cannot be written on a line of its own.

    Args:
        name: Of a folder, or one that was given.
        where: What the name belongs to, for the message.

    Raises:
        ValueError: if it is empty, has line breaks or space around it, or is not valid UTF-8.
    """
    if not name.strip():
        fault = "it is empty"
    elif len(name.splitlines()) > 1 or name != name.strip():
        fault = "it has line breaks, or space around it"
    elif any("\ud800" <= character <= "\udfff" for character in name):
        fault = "it is not valid UTF-8"
    else:
        return
    raise ValueError(f"{printable(where)} cannot be the name of a class: {fault}. Rename it.")


def match_labels(data_names: Sequence[str], model_names: Sequence[str], where: str = "The data") -> np.ndarray:
    """Which output of a model each class of the data is, by name.

    The data may have fewer classes than the model, in any order. Where the model's classes are those of ImageNet-1k,
    the folders may also be called by WordNet's ids, such as `n01440764`.

    Args:
        data_names: In the order of the labels.
        model_names: In the order of the outputs.
        where: What has these classes, for the message.

    Returns:
        int64 `(len(data_names),)`: the output of each label.

    Raises:
        ValueError: if the data has names that the model does not have, or that stand for several of its outputs.
    """
    if tuple(model_names) == tuple(name for _, name in imagenet1k_classes()):
        ids = [wnid for wnid, _ in imagenet1k_classes()]
        model_names = ids if set(data_names) <= set(ids) else model_names
    counts = collections.Counter(model_names)
    foreign = [name for name in data_names if name not in counts]
    if foreign:
        raise ValueError(
            f"{where} has classes that the model does not know: {_listed(foreign)}. Its {len(model_names)} classes are "
            f"{_listed(model_names)}. Fine-tune it on these classes, or rename those that only have another name."
        )
    ambiguous = [name for name in data_names if counts[name] > 1]
    if ambiguous:
        raise ValueError(f"{where} has {_listed(ambiguous)}, which several outputs of the model are called.")
    outputs = {name: output for output, name in enumerate(model_names)}
    return np.array([outputs[name] for name in data_names], "int64")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(printable(name, 40)) for name in names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown
