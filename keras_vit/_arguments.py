"""Arguments: their types, checks of them, tensors as arrays; names in messages, and messages that keep them."""

import difflib
import fnmatch
import importlib.util
import math
import numbers
import os
import re
import sys
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import ml_dtypes  # noqa: F401 (makes NumPy know the name "bfloat16")
import numpy as np

from keras_vit._importing import pip_install

if TYPE_CHECKING:
    import keras

# A tensor of the running backend, or a symbolic one. No type covers those of all frameworks.
Tensor: TypeAlias = Any
# Lengths of the axes of a tensor; None where they are not known before the program runs.
Shape: TypeAlias = tuple[int | None, ...]
# Pixels: an integer for squares, or (height, width).
ImageSize: TypeAlias = int | tuple[int, int]
# What a model comes from: the name of a variant or of a published checkpoint, an address, or the path of a file.
Source: TypeAlias = str | os.PathLike[str]
# A Keras dtype policy or its name, such as "mixed_bfloat16"; None for the global one.
DType: TypeAlias = Union[str, "keras.DTypePolicy", None]


def pair(name: str, value: Any) -> tuple[int, int]:
    """Returns (height, width) of a size given as one integer or as two.

    Raises TypeError for anything else than integers, ValueError for fractions and numbers below 1, and for
    `image_size="native"`.
    """
    if name == "image_size" and isinstance(value, str) and value == "native":
        words = "='native' would be another size for each picture; a model here has one size. Pass (height, width): "
        advice = "preprocessing.naflex_size(height, width, patch, patches) returns what NaFlex takes for a picture."
        raise ValueError(f"{name}{words + advice}")
    values = (value, value) if isinstance(value, numbers.Integral) else value
    try:
        height, width = values
        if isinstance(height, bool) or isinstance(width, bool):
            raise TypeError
        sizes = (int(height), int(width))
    except (TypeError, ValueError, OverflowError):  # of infinities
        raise TypeError(
            f"{name} must be an integer or a pair (height, width) of integers, but {value!r} was given."
        ) from None
    if sizes != (height, width) or min(sizes) < 1:
        raise ValueError(f"{name} must be positive integers, but {value!r} was given.")
    return sizes


def whole_number(name: str, value: Any, least: int) -> int:
    """Returns an integer, of Python or NumPy, as int; TypeError for anything else, ValueError for less than `least`."""
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or value < least:
        words = f" must be a whole number of at least {least}, but {value!r} was given."
        raise (ValueError if is_whole else TypeError)(f"{name}{words}")
    return int(value)


def whole_numbers(name: str, values: Any, least: int) -> tuple[int, ...]:
    """Returns one integer or several as a tuple of int."""
    values = tuple(values) if isinstance(values, Iterable) else (values,)
    if not values:
        raise ValueError(f"{name} must be at least one integer, but it is empty.")
    return tuple(whole_number(name, value, least) for value in values)


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raises ValueError unless the argument `name` has one of the values that it can take."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, but {value!r} was given.")


def check_type(name: str, value: object, kinds: Any, expected: str) -> None:
    """Raises TypeError, which says what was expected of the argument `name`, unless it is of one of some classes."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name} must be {expected}, but {type(value).__name__} was given.")


def to_numpy(values: Any) -> np.ndarray:
    """Returns a tensor of any framework, an array or lists as a NumPy array, without a copy where that is possible."""
    # bfloat16, which NumPy lacks, becomes float32; the bytes of a number come in the order of the machine, as
    # frameworks want them.
    if hasattr(values, "detach"):  # torch: NumPy refuses gradients, other devices and bfloat16
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    if hasattr(values, "numpy") and not isinstance(values, np.ndarray):
        values = values.numpy()
    array = np.asarray(values)
    if array.dtype == "bfloat16":
        return array.astype("float32")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Returns an array of zeros at an address that backends can use without copying (a multiple of 64 bytes)."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    buffer = np.zeros(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(dtype).reshape(shape)


def printable(text: object, limit: int | None = None) -> str:
    r"""Returns text (of any object) on one line in which nothing controls a terminal: escapes replace what would."""
    text = str(text)
    more = " ..." if limit is not None and len(text) > limit else ""
    return "".join(map(_escaped, text[:limit])) + more


def _escaped(character: str) -> str:
    """Returns a character that is safe to print itself, and another as its escape in ASCII."""
    # Spaces of all widths, and the two joiners that Persian, Indic scripts and emoji are written with, stay.
    if character.isprintable() or character in "\u200c\u200d" or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")


def without_password(address: object) -> str:
    """An address, or any other text, without the name and password of a user before its host."""
    return re.sub(r"^(\w+://)[^/?#]*@", r"\1", str(address))


def is_class_name(name: str) -> bool:
    """Whether text can name a class: not empty, one line, no control characters, no space around it."""
    return bool(name) and name == name.strip() == printable(name)


def check_class_name(name: str, where: str) -> None:
    """Raises ValueError unless `is_class_name(name)`; `where` is how the message begins."""
    if not is_class_name(name):
        raise ValueError(
            f"{printable(where)} cannot be the name of a class: it is empty, or has line breaks, control "
            "characters, bytes that are not UTF-8 or space around it. Rename it."
        )


def check_class_names(
    class_names: Sequence[str] | None, classes: int | None, distinct: bool = True
) -> tuple[tuple[str, ...] | None, int | None]:
    """Returns the class names as a tuple, None if there are none, and their number, else `classes`."""
    classes = None if classes is None else whole_number("classes", classes, 1)
    if class_names is None:
        return None, classes
    if isinstance(class_names, (str, bytes)) or not isinstance(class_names, Iterable):
        raise TypeError(
            f"class_names must be a list of strings in the order of the labels, but {class_names!r} was given."
        )
    names = tuple(class_names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"class_names must be strings in the order of the labels, but {name!r} is not a string.")
        check_class_name(name, f"{name!r} in class_names")
    if distinct and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"class_names must differ from each other, but {twice!r} occurs more than once.")
    if classes not in (None, len(names)):
        raise ValueError(f"class_names must name each of the {classes} classes, but has {len(names)} names.")
    return names, len(names)


def did_you_mean(name: str, known: Mapping[str, str]) -> str:
    """Returns ` Did you mean 'a' or 'b'?` with up to five similar names, to add to a message; empty for none."""
    name = name.lower()
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.65)
    longer = [spelling for spelling in known if name and name in spelling]
    names = list(dict.fromkeys(known[spelling] for spelling in (*near, *longer)))[:5]
    return f" Did you mean {' or '.join(map(repr, names))}?" if names else ""


def listing(names: Sequence[object], most: int = 5) -> str:
    """The first `most` of these names, quoted and safe to show: `'a', 'b' and 3 more`."""
    first = ", ".join(repr(printable(name, 40)) for name in names[:most])
    return f"{first} and {len(names) - most} more" if len(names) > most else first


def caller() -> dict[str, Any]:
    """The line of the user's code, or of `keras_vit.cli`, that called this package, as `warn_explicit` has it."""
    # Keras and PyTorch, which call a model that is inside another one, are passed over.
    frame = sys._getframe()  # noqa: SLF001 (inspect.currentframe() is typed as None)
    while frame.f_back is not None and _BETWEEN.match(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    where = {"filename": frame.f_code.co_filename, "lineno": frame.f_lineno, "registry": registry}
    return {**where, "module": frame.f_globals.get("__name__", "<unknown>")}


_BETWEEN = re.compile(r"(keras_vit\.(?!cli\.)|keras\.|torch\.)")


def warn_caller(message: str, category: type[Warning] = UserWarning, where: Mapping[str, Any] | None = None) -> None:
    """Warns at a line that `caller` returned; with None at the one that it returns now."""
    warnings.warn_explicit(message, category, **(where or caller()))


def check_flag(name: str, value: Any) -> bool:
    """The value of an argument or a field; TypeError unless it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, but {value!r} was given.")
    return value


def as_strings(argument: str, patterns: str | Iterable[str]) -> tuple[str, ...]:
    """Returns one string or several as a tuple; TypeError, which names `argument`, if one is not a string."""
    names: tuple[Any, ...] = (patterns,) if isinstance(patterns, str) else (None,)
    if not isinstance(patterns, str) and isinstance(patterns, Iterable):
        names = tuple(patterns)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"{argument} must be a string or several, but {patterns!r:.200} was given.")
    return names


def matches(name: str, pattern: str) -> bool:
    """Whether a path such as `block_0/mlp` fits a pattern with `*`, `?`, `[...]`, all of it or what follows a `/`."""
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*/{pattern}")


_PACKAGES = {"PIL": "Pillow", "sklearn": "scikit-learn"}  # as pip knows what is imported under another name


def require_packages(what: str, packages: tuple[str, ...], extra: str) -> None:
    """Raises ImportError, which names the extra to install, if one of the packages that `what` needs is missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        names = " and ".join(_PACKAGES.get(name, name) for name in missing)
        verb = "is" if len(missing) == 1 else "are"
        raise ImportError(f"{what} needs {names}, which {verb} not installed: {pip_install(extra)}", name=missing[0])


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Vectors along the last axis scaled to length 1; those of zeros stay as they are."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def softmax(logits: np.ndarray) -> np.ndarray:
    """The softmax of logits along the last axis."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


# Messages


SKIP = 'on_bad_image="skip"'  # what to do about images that cannot be read
