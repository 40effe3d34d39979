"""The engine: applies any table of names, both ways, with strict accounting."""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit import models
from keras_vit._text import printable
from keras_vit.checkpoints.files.stored_array import StoredArray
from keras_vit.models import ModelConfig, ViTConfig

if TYPE_CHECKING:
    import keras

MOST_BLOCKS = 1000  # the deepest published models have 50, BiT-R152 has 50 units
ROWS_SHOWN = 8  # names listed in an error message
NAME_SHOWN = 300  # characters of each


@dataclasses.dataclass(frozen=True)
class Row:
    """A weight and the array of a layout that it is stored in; one per block where the names contain `{i}`.

    Attributes:
        name: The array's name in the file.
        path: The weight of the model (see `models.weights_by_path`); None for an array that is zero in every file.
        shape: The array's shape in the file, in the symbols of `Layout.sizes`.
        axes: The order in which the weight has the array's axes: `(1, 0)` for a transposed matrix. None where the
            order of the values is the weight's.
        part: Which of how many equal parts of the array, along its first axis, the weight is: `(1, 3)` for the keys
            in a matrix that queries, keys and values share. Parts that no row names are zero where they are written.
    """

    name: str
    path: str | None
    shape: tuple[str | int, ...]
    axes: tuple[int, ...] | None = None
    part: tuple[int, int] = (0, 1)

    def stored(self, array: StoredArray) -> StoredArray:
        """The part of the file's array that is the weight, of which only that will be read."""
        index, parts = self.part
        if parts == 1:
            return array
        shape = (array.shape[0] // parts, *array.shape[1:])
        return array.piece(index * math.prod(shape), shape)

    def weight(self, values: np.ndarray) -> np.ndarray:
        """Values in the order of the weight, from those of `stored`."""
        return values if self.axes is None else values.transpose(self.axes)

    def values(self, weight: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The part of an array of a given shape that holds a weight: the inverse of `stored` and `weight`."""
        shape = (shape[0] // self.part[1], *shape[1:]) if self.part[1] > 1 else shape
        if self.axes is None:
            return weight.reshape(shape)
        return weight.reshape([shape[axis] for axis in self.axes]).transpose(np.argsort(self.axes))


@dataclasses.dataclass(frozen=True)
class Hints:
    """What is known of a file beside its arrays.

    Attributes:
        config: The `config.json` beside it, as timm and transformers write; None where there is none.
        open_clip: The `open_clip_config.json` beside it.
        preprocessor: The `preprocessor_config.json` beside it.
        heads: The number of attention heads, where the user gives it.
        architecture: timm's name of the model, where the user gives it.
    """

    config: dict[str, Any] | None = None
    open_clip: dict[str, Any] | None = None
    preprocessor: dict[str, Any] | None = None
    heads: int | None = None
    architecture: str | None = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one family of files stores a model.

    Attributes:
        name: What users call it.
        rows: Lists the arrays of a model with a given config.
        sizes: The meaning of the symbols in the rows' shapes.
        read: Recognises a file, with what is known beside its arrays, and describes it; None if the file is of another
            layout.
        check_writable: Raises ValueError if a model with that config cannot be said in this layout.
        restate: Takes the config of a writable model and a function that reads a weight by its path. Gives the
            config of a model that computes the same and has rows for everything, and the values, by path, of the
            weights that differ.
        stacked: The name of the array that holds a block's array stacked with those of the other blocks; None if the
            layout has no such way to store blocks.
        computed: The weights of a model that the layout does not store, by path: they are computed.
        sidecars: The JSON files that say what the arrays do not, by name, for a model with a given config; None for
            layouts that have none.
        config_type: The class of the configs of its models.
    """

    name: str
    rows: Callable[[Any], list[Row]]
    sizes: Callable[[Any], dict[str, int]]
    read: Callable[[Mapping[str, StoredArray], Hints], "Contents | None"]
    check_writable: Callable[[Any], None]
    restate: Callable[..., tuple[Any, dict[str, np.ndarray]]] = lambda config, read: (config, {})
    stacked: Callable[[str], str] | None = None
    computed: Callable[[Any], dict[str, np.ndarray]] = lambda config: {}
    sidecars: Callable[[Any], dict[str, dict[str, Any]]] | None = None
    config_type: type[ModelConfig] = ViTConfig


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a file of a known layout holds.

    Attributes:
        layout: Its layout.
        dialect: Which of the layout's ways to name arrays it uses.
        prefix: What stands before every name.
        config: The model, as far as the arrays tell.
        arrays: The model's arrays by their names in the layout.
        unused: Names of arrays beside the model (optimizer state, other towers), deliberately not read.
        oddities: What a user should know about the file, in words.
        square: False where the number of patches is no square, so that the grid in `config` is only a guess.
    """

    layout: Layout
    dialect: str
    prefix: str
    config: ModelConfig
    arrays: dict[str, StoredArray]
    unused: list[str]
    oddities: list[str]
    square: bool = True


def check_arrays(contents: Contents, source: str) -> None:
    """Raises ValueError unless the arrays are exactly those that the config needs, in the right shapes."""
    layout, config = contents.layout, contents.config
    sizes = layout.sizes(config)
    wanted = {row.name: tuple(sizes.get(n, n) for n in row.shape) for row in layout.rows(config)}
    missing = sorted(wanted.keys() - contents.arrays.keys())
    extra = sorted(contents.arrays.keys() - wanted.keys())
    wrong = [
        f"{name} is {array.shape}, expected {wanted[name]}"
        for name, array in sorted(contents.arrays.items())
        if name in wanted and not _fits(array.shape, wanted[name])
    ]
    problems = [
        f"{words}: {_some(names)}"
        for words, names in (("missing", missing), ("not part of the model", extra), ("of the wrong shape", wrong))
        if names
    ]
    if problems:
        raise ValueError(
            f"{source} is not a complete checkpoint of the layout {layout.name!r} ({contents.dialect} names). Arrays "
            + "; ".join(problems)
            + ". Nothing was loaded."
        )


def fill(
    model: "keras.Model",
    contents: Contents,
    source: str,
    fresh: tuple[str, ...] = (),
    convert: Callable[[str, np.ndarray], np.ndarray] | None = None,
    report: Callable[[int], None] = lambda bytes: None,
) -> None:
    """Assigns every weight of `model` once from a file's arrays, one array in memory at a time.

    Args:
        model: The model; its weights may be uninitialised.
        contents: What the file holds, checked with `check_arrays`.
        source: The file's name, for errors.
        fresh: Beginnings of the paths of weights that keep what they have; the file's arrays for them are left.
        convert: Applied to each array after reading, with the weight's path; for position embeddings.
        report: Called with the number of bytes read after each array.

    Raises:
        ValueError: if an array holds NaN or infinity, or a weight of the model has no array.
    """
    from keras_vit.layers import assign  # needs Keras, unlike everything else about files

    weights = models.weights_by_path(model)
    left = {path for path in weights if not path.startswith(fresh)}
    for path, values in contents.layout.computed(contents.config).items():
        if path in left:
            assign(weights[path], values.reshape(weights[path].shape))
            left.remove(path)
    rows = [row for row in contents.layout.rows(contents.config) if row.path in left]
    # Largest first: what reading takes beside the weights then falls while the weights fill up. Pieces of one stored
    # array follow each other.
    stored = contents.arrays
    for row in sorted(rows, key=lambda row: (-stored[row.name].bytes, stored[row.name].name, row.part)):
        array = row.stored(stored[row.name])
        values = array.read()
        with np.errstate(over="ignore", invalid="ignore"):
            suspect = not np.isfinite(values.sum())
        if suspect and not np.isfinite(values).all():
            count = values.size - np.isfinite(values).sum()
            raise ValueError(
                f"{source} holds {count} values that are NaN or infinite in {array.name!r}: the training that wrote it "
                "has diverged, or the file is damaged. Nothing was loaded."
            )
        values = row.weight(values)
        if convert is not None:
            values = convert(row.path, values)
        assign(weights[row.path], values.reshape(weights[row.path].shape))
        left.remove(row.path)
        del values
        report(array.bytes)
    if left:
        raise ValueError(f"{source} has no arrays for these weights of the model: {_some(sorted(left))}.")


def extract(model: "keras.Model", layout: Layout, stack: bool = False) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a model in the names and shapes of a layout, sorted by name.

    Args:
        model: A `VisionTransformer`.
        layout: The layout.
        stack: Whether the arrays of all blocks are stacked along a new first axis.

    Raises:
        ValueError: if the model cannot be said in this layout, or has been quantized or given LoRA weights, or the
            layout does not stack.
    """
    import keras

    weights = models.weights_by_path(model)

    def read(path: str) -> np.ndarray:
        return keras.ops.convert_to_numpy(weights[path]).astype(np.float32, copy=False)

    return arrays_of(model.config, weights.keys(), read, layout, stack)


def arrays_of(
    config: ModelConfig,
    paths: Collection[str],
    read: Callable[[str], np.ndarray],
    layout: Layout,
    stack: bool = False,
) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a model as `extract` gives them, from its config and a function that reads a weight by its path.

    Args:
        config: The model's.
        paths: Those of all its weights.
        read: Gives the float32 values of one.
        layout: As for `extract`, as are `stack` and what is raised.
        stack: See there.
    """
    layout.check_writable(config)
    if getattr(config, "preprocessing_folded", False):
        raise ValueError(
            f"The layout {layout.name!r} is for patch embeddings of normalised images, but that of this model "
            "normalises pixels itself, by optimize_for_inference(). Write the model that it was made from, or save "
            "this one as .keras."
        )
    if stack and layout.stacked is None:
        raise ValueError(f"The layout {layout.name!r} has no stacked blocks; leave stack=True out.")
    config, changed = layout.restate(config, read)
    sizes = layout.sizes(config)
    rows = layout.rows(config)
    computed = layout.computed(config)
    strange = sorted(set(paths) - computed.keys() - {row.path for row in rows})
    if strange:
        raise ValueError(
            f"The model has weights that the layout {layout.name!r} has no place for: {_some(strange)}. If it was "
            "quantized, write it before; LoRA adapters have to be merged first: keras_vit.training.merge_lora(model)."
        )

    for path, values in computed.items():
        # Where they were read from a file, they may be those of another precision.
        if not np.array_equal(read(path).ravel(), values.ravel()):
            raise ValueError(
                f"The layout {layout.name!r} does not store {path!r}, which is computed where the file is read, but "
                "this model has other values there. Save it as .keras."
            )

    def value(group: list[Row]) -> np.ndarray:
        shape = tuple(sizes.get(n, n) for n in group[0].shape)
        parts = group[0].part[1]
        zeros = np.zeros((shape[0] // parts, *shape[1:]), np.float32) if len(group) < parts else None
        pieces = [zeros] * parts
        for row in group:
            if row.path is None:
                return np.zeros(shape, np.float32)
            values = changed[row.path] if row.path in changed else read(row.path)
            pieces[row.part[0]] = row.values(values, shape)
        return pieces[0] if parts == 1 else np.concatenate(pieces)

    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(layout.stacked(row.name) if stack else row.name, []).append(row)

    def arrays() -> Iterator[tuple[str, np.ndarray]]:
        for name, group in sorted(groups.items(), key=lambda item: item[0]):
            if name == group[0].name:
                yield name, value(group)
            else:
                yield name, np.stack([value([row]) for row in group])

    return arrays()


def _fits(given: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    # Old versions of Flax gave group normalisation's vectors four axes, (1, 1, 1, C); new ones do not.
    return given == wanted or (wanted[:-1] == (1, 1, 1) and given == wanted[-1:])


def _some(names: list[str]) -> str:
    more = f" and {len(names) - ROWS_SHOWN} more" if len(names) > ROWS_SHOWN else ""
    return ", ".join(printable(name, NAME_SHOWN) for name in names[:ROWS_SHOWN]) + more


# What layouts read off arrays


def shape_of(arrays: Mapping[str, StoredArray], name: str, ndim: int) -> tuple[int, ...]:
    """The shape of an array that has to be there and have `ndim` axes.

    Raises:
        ValueError: if it is missing, or has another number of axes.
    """
    if name not in arrays:
        raise ValueError(f"The checkpoint has no array {name!r}, which tells the size of the model.")
    if len(arrays[name].shape) != ndim:
        raise ValueError(f"The array {name!r} has the shape {arrays[name].shape}; {ndim} axes were expected.")
    return arrays[name].shape


def length_of(arrays: Mapping[str, StoredArray], name: str) -> int | None:
    """The number of columns of a matrix, or None if there is no such array."""
    return shape_of(arrays, name, 2)[1] if name in arrays else None


def bounded(blocks: int) -> int:
    """The number of blocks, units or stages that a file claims, if a model can have as many.

    Raises:
        ValueError: if there are more than `MOST_BLOCKS`: a name or a shape costs nothing, and each block is looked at.
    """
    if blocks > MOST_BLOCKS:
        raise ValueError(f"It claims to have {blocks:,} blocks, more than the {MOST_BLOCKS:,} that are read.")
    return blocks


def squarest_grid(patches: int) -> tuple[int, int]:
    """The factors of `patches` nearest to a square, rows first and not more of them than columns."""
    rows = next((n for n in range(math.isqrt(max(patches, 1)), 0, -1) if patches % n == 0), 1)
    return rows, patches // rows


def oddities(
    arrays: Mapping[str, StoredArray], unused: list[str], config: Any, square: bool = True, head: str = "head"
) -> list[str]:
    """What a user should know about a file, in words (see `Contents`); `head` is what it calls the head."""
    found = []
    if unused:
        found.append(f"{len(unused)} arrays beside the model are not part of it, such as {unused[0]!r}")
    if not square:
        patches = math.prod(config.grid_size)
        found.append(f"its {patches} patches are no square: image_size or grid_size has to be given")
    kinds = sorted({array.stored for array in arrays.values()})
    if kinds != ["float32"]:
        found.append(f"stored as {' and '.join(kinds)}, read as float32")
    # The bias first: it is small, and a trained head has one that is not zero.
    names = [name for name in (f"{head}/bias", f"{head}/kernel") if name in arrays]
    if config.classes and not any(arrays[name].read().any() for name in names):
        found.append("the head is all zeros: its logits mean nothing, the file is for fine-tuning")
    return found
