"""Types that are said again and again."""

import os
from typing import TYPE_CHECKING, Any, TypeAlias, Union

if TYPE_CHECKING:
    import keras

# A tensor of the running backend, or a symbolic one. No type covers those of all frameworks.
Tensor: TypeAlias = Any
# Pixels: an integer for squares, or (height, width).
ImageSize: TypeAlias = int | tuple[int, int]
# What a model comes from: the name of a variant or of a published checkpoint, an address, or the path of a file.
Source: TypeAlias = str | os.PathLike[str]
# A Keras dtype policy or its name, such as "mixed_bfloat16"; None for the global one.
DType: TypeAlias = Union[str, "keras.DTypePolicy", None]
