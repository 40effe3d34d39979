"""Strict accounting: how a file is read (`Plan`), and the rows of a `Layout` applied both ways."""

import contextlib
import dataclasses
import math
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from keras_vit import models
from keras_vit._arguments import printable, warn_caller
from keras_vit.checkpoints.files import Like, Sidecars
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import ModelConfig, ViTConfig

if TYPE_CHECKING:
    import keras

MOST_BLOCKS = 1000  # the deepest published models have 50, BiT-R152 has 50 units
NAMES_LISTED = 8  # in an error message
NAME_LENGTH = 300  # characters of each
_LONGEST_REASON = 3000  # characters of what is wrong with a file, which may repeat what it says
TABLE = "position_embedding/table"
# How images are prepared, as fields of a config.
PREPROCESSING = ("pixel_mean", "pixel_std", "resize", "crop_ratio", "crop_rounding", "filter")
# What no array tells of the computation.
COMPUTATION = ("heads", "gelu", "layer_norm_epsilon", "interpolation")
# What arrays tell as well, and a variant must have in common with them.
_SIZES = ("width", "depth", "mlp_width", "patch_size", "stem_stages", "tokens_mlp_width")
_PARTS = (
    *("distillation_token", "register_tokens", "patch_bias", "pre_norm", "mlp", "attention_norm", "rotary_embedding"),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """A weight and the array that it is stored in."""

    name: str  # of the array in the file
    path: str | None  # of the weight (see `models.weights_by_path`); None for an array that is zero in every file
    shape: tuple[int, ...]  # of the array in the file
    axes: tuple[int, ...] | None = None  # the order of the array's axes in the weight: (1, 0) for a transposed matrix
    # Which of how many equal parts of the array, along its first axis that is longer than 1: (1, 3) for the keys in a
    # matrix that queries, keys and values share. Parts that no row names are written as zeros.
    part: tuple[int, int] = (0, 1)
    turned: bool = False  # by half a circle: the kernel of a transposed convolution of Flax

    def stored(self, array: StoredArray) -> StoredArray:
        """Returns the part of the file's array that is the weight, not read yet; nothing else of it will be read."""
        index, parts = self.part
        if parts == 1:
            return array
        return array.piece(index * math.prod(self.part_shape), self.part_shape)

    @property
    def axis(self) -> int:
        """The axis along which the array is divided into parts."""
        return next((axis for axis, size in enumerate(self.shape) if size > 1), 0)

    @property
    def part_shape(self) -> tuple[int, ...]:
        return tuple(size // self.part[1] if axis == self.axis else size for axis, size in enumerate(self.shape))

    def weight(self, values: np.ndarray) -> np.ndarray:
        """The values of `stored` with the axes in the order of the weight's."""
        values = np.ascontiguousarray(values[::-1, ::-1]) if self.turned else values
        return values if self.axes is None else values.transpose(self.axes)

    def values(self, weight: np.ndarray) -> np.ndarray:
        """Returns a weight as it stands in its part of the file's array: the inverse of `stored` and `weight`."""
        shape = self.part_shape
        if self.axes is None:
            return weight.reshape(shape)
        return weight.reshape([shape[axis] for axis in self.axes]).transpose(np.argsort(self.axes))


def prefixed(start: str, rows: Iterable[Row]) -> list[Row]:
    """The rows with `start` before the name of each array."""
    return [dataclasses.replace(row, name=f"{start}{row.name}") for row in rows]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one family of files stores a model. A file is read in three steps: `recognise`, the config, the plan."""

    name: str  # what users call it
    rows: Callable[[Any], list[Row]] = lambda config: []  # the arrays of a model with a given config
    # Whether a file is of this layout, by the names of its arrays and what lies beside it.
    recognise: Callable[[Collection[str], Sidecars], bool] = lambda names, sidecars: False
    # Reads the config, and returns how the file is read; ValueError for a model that is not computed here.
    plan: Any = None  # a `Callable[[Mapping[str, StoredArray], Sidecars], Plan]`; None where files are only written
    # Of a config and a function that reads a weight by its path: the config of a model that computes the same and has
    # rows for everything, and by path the weights that differ.
    rewritten: Callable[..., tuple[Any, dict[str, np.ndarray]]] = lambda config, read: (config, {})
    stacked: Callable[[str], str] | None = None  # the name of the array that holds those of all blocks; None for none
    computed: Callable[[Any], dict[str, np.ndarray]] = lambda config: {}  # weights that are not stored, by path
    # The JSON files that say what the arrays do not, by name.
    sidecars: Callable[[Any], dict[str, dict[str, Any]]] | None = None
    constants: Callable[[Any], dict[str, np.ndarray]] = lambda config: {}  # arrays that other code misses, by name
    noted: tuple[str, ...] = ()  # fields that the note may say although others compute what they always do
    # The values of fields that the code which reads such files computes, where a file would hold others; the fields of
    # a backbone as `backbone.heads`.
    needs: Callable[[Any], Mapping[str, tuple[Any, ...]]] = lambda config: {}
    advice: str | None = None  # what a user can do about what its files leave open; None where they leave nothing
    config_type: type[Any] = ViTConfig


def having(*arrays: str, ending: str | None = None) -> Callable[..., bool]:
    """Returns a `Layout.recognise`: whether a file has one of these arrays, or one whose name has this ending."""

    def recognise(names: Collection[str], sidecars: Sidecars | None = None) -> bool:
        return any(a in names for a in arrays) or (ending is not None and any(n.endswith(ending) for n in names))

    return recognise


@contextlib.contextmanager
def readable(what: str) -> Iterator[None]:
    """Raises ValueError, which begins with `what`, where something that a file says makes no sense."""
    try:
        yield
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{what}. {printable(error, _LONGEST_REASON)}") from error


def check_needs(config: Any, layout: Layout) -> None:
    """Raises ValueError where the code that reads such files would compute something else than a model does."""
    for field, values in layout.needs(config).items():
        given = operator.attrgetter(field)(config)
        if given not in values:
            wanted = " or ".join(map(repr, values))
            what = f"{field} must be {wanted}, but the model has {field}={given!r}"
            raise ValueError(f"The layout {layout.name!r} cannot store this model. {what}. Save as .keras.")


@dataclasses.dataclass(frozen=True)
class Notice:
    """A sentence about a file for the user."""

    text: str
    field: str = ""  # the field of the config that it is about; empty for none
    # A "note" is only listed; of what is "left out", and of what is "assumed", loading warns, of the second unless the
    # user has chosen another value of the field; what is "unknown" is an error then.
    kind: Literal["note", "left out", "assumed", "unknown"] = "note"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How a file is read: the array of each weight, the config of the model, and what a user should know."""

    layout: Layout
    dialect: str  # which of the layout's ways to name arrays it uses
    prefix: str = ""  # what stands before every name
    stored: Any  # the config of the model whose weights these are, with the image size of its position embeddings
    arrays: Mapping[str, StoredArray]  # by their names in the layout's rows
    unused: Sequence[str] = ()  # arrays beside the model (optimizer state, other towers), deliberately not read
    warnings: Sequence[Notice] = ()  # what was assumed, is unknown or unusual
    image_size: tuple[int, int] | None = None  # at which the publisher uses the model, where that is another one
    is_grid_known: bool = True  # False where the patches are not a square, so that the grid in `stored` is a guess
    unnamed: str = ""  # a sentence where the class names in the file were left out

    @property
    def rows(self) -> list[Row]:
        return self.layout.rows(self.stored)

    @property
    def config(self) -> Any:
        """The config of the model as its publisher uses it: `stored` at `image_size`, where that is given."""
        return self.stored if self.image_size is None else self.stored.replace(image_size=self.image_size)

    @property
    def is_head_zero(self) -> bool:
        """Whether there is a head of zeros alone: the file is for fine-tuning. Reads it."""
        # The bias first: it is small, and a trained head has one that is not zero.
        rows = {row.path: row.name for row in self.rows}
        names = [rows[path] for path in ("head/bias", "head/kernel") if rows.get(path) in self.arrays]
        return bool(names) and not any(self.arrays[name].read().any() for name in names)

    @property
    def oddities(self) -> list[str]:
        """All that a user should know about the file, in sentences. Reads the head."""
        order = {"note": 0, "unknown": 1, "assumed": 2, "left out": 3}
        found = [warning.text for warning in sorted(self.warnings, key=lambda warning: order[warning.kind])]
        if self.unused:
            example = printable(repr(self.unused[0]), 200)
            found.append(f"{len(self.unused)} arrays are not part of the model and are not read, such as {example}")
        if not self.is_grid_known:
            patches = math.prod(self.stored.grid_size)
            found.append(f"the {patches} patches do not form a square: pass image_size or grid_size")
        kinds = sorted({array.stored for array in self.arrays.values()})
        if kinds != ["float32"]:
            found.append(f"the weights are stored as {' and '.join(kinds)}, and read as float32")
        if self.is_head_zero:
            found.append("the head is all zeros, so its logits mean nothing: the file is for fine-tuning")
        return [*found, self.unnamed] if self.unnamed else found


# What trainings call what stands after an encoder.
_HEAD = re.compile(r"(\w+_)?(heads?|classifier|fc|linear|logits?|neck|bottleneck|arcface)\d*[./].*", re.IGNORECASE)


def is_of_head(array: StoredArray, prefix: str) -> bool:
    """Whether an array is that of a head, by the first part of its name that the prefix of the model lacks."""
    shared = os.path.commonprefix([array.name, prefix])
    return _HEAD.fullmatch(array.name[max(map(shared.rfind, "./")) + 1 :]) is not None


def without_heads(plan: Plan) -> Plan:
    """Returns the plan without its head, and without arrays of another: of those in no row, loading warns."""
    rows = {row.name: row.path or "" for row in plan.rows}
    theirs = {name for name, array in plan.arrays.items() if name not in rows and is_of_head(array, plan.prefix)}
    dropped = theirs | {name for name, path in rows.items() if path.startswith(("head/", "head_dist/"))}
    layout = dataclasses.replace(plan.layout, rows=lambda config: [r for r in plan.rows if r.name not in dropped])
    names = sorted(plan.arrays[name].name for name in theirs)
    notices = [Notice(f"its head is left out: {listed(names)}", "", "left out")] if names else []
    return dataclasses.replace(
        plan,
        layout=layout,
        arrays={name: array for name, array in plan.arrays.items() if name not in dropped},
        unused=[*plan.unused, *names],
        warnings=[*plan.warnings, *notices],
    )


def check_arrays(plan: Plan, source: str) -> None:
    """Raises ValueError unless the plan's arrays are exactly those of its rows, in their shapes."""
    wanted = {row.name: row for row in plan.rows}
    # Old versions of Flax gave group normalisation's vectors four axes, (1, 1, 1, C); new ones do not.
    wrong = {
        name: f"{name} has the shape {array.shape}, not {wanted[name].shape}"
        for name, array in sorted(plan.arrays.items())
        if name in wanted and wanted[name].shape not in (array.shape, (1, 1, 1, *array.shape))
    }
    whole = [name for name in plan.arrays.keys() & wanted.keys() if plan.arrays[name].dtype.kind in "iub"]
    if whole:
        raise ValueError(
            f"{source} has whole numbers as weights, in {listed(whole)}: it is quantized. Pass the file with float "
            "weights."
        )
    missing, strange = wanted.keys() - plan.arrays.keys(), plan.arrays.keys() - wanted.keys()
    heads = [name for name in wrong if wanted[name].path == "head/kernel"]
    heads += [name for name in strange if is_of_head(plan.arrays[name], plan.prefix)]
    if heads and len(heads) == len(missing) + len(strange) + len(wrong):
        given = listed([wrong.get(name, plan.arrays[name].name) for name in heads])
        raise ValueError(
            f"The head must be one linear layer on the model's features, but {source} has arrays in it that are not "
            f"part of the model: {given}. Pass include_top=False for features, or classes=... for a new head."
        )
    found = {"missing": missing, "not part of the model": strange, "of the wrong shape": wrong.values()}
    problems = [f"{problem}: {listed(names)}" for problem, names in found.items() if names]
    if problems:
        raise ValueError(
            f"{source} is not a complete checkpoint of the layout {plan.layout.name!r} ({plan.dialect} names). "
            f"Arrays {'; '.join(problems)}. Nothing was loaded: download it again, or pass the file of this model."
        )


def fill(
    model: "keras.Model",
    plan: Plan,
    source: str,
    fresh: tuple[str, ...] = (),
    convert: Callable[[str, np.ndarray], np.ndarray] = lambda path, values: values,
    report: Callable[[int], None] = lambda bytes: None,
) -> None:
    """Assigns every weight of `model` once, from the arrays of a file by its plan, one array in memory at a time.

    `convert(path, values)` is applied to each array, which `check_arrays` has checked; `report` is given the number of
    bytes after each.
    """
    from keras_vit.layers import assign  # needs Keras, unlike everything else about files

    weights = models.weights_by_path(model)
    left = {path for path in weights if not path.startswith(fresh)}
    for path, values in plan.layout.computed(plan.stored).items():
        if path in left:
            assign(weights[path], values.reshape(weights[path].shape))
            left.remove(path)
    rows = [row for row in plan.rows if row.path in left]
    # Largest first: what reading takes beside the weights then falls while the weights are filled. Pieces of one stored
    # array follow each other.
    stored = plan.arrays
    for row in sorted(rows, key=lambda row: (-stored[row.name].bytes, stored[row.name].name, row.part)):
        array = row.stored(stored[row.name])
        values = array.read()
        with np.errstate(over="ignore", invalid="ignore"):
            suspect = not np.isfinite(values.sum())
        if suspect and not np.isfinite(values).all():
            count = values.size - np.isfinite(values).sum()
            raise ValueError(
                f"{source} has {count} NaN or infinite values in {array.name!r}: the training diverged, or the file is "
                "damaged. Nothing was loaded: use an earlier checkpoint, or download the file again."
            )
        values = convert(row.path, row.weight(values))
        assign(weights[row.path], values.reshape(weights[row.path].shape))
        left.remove(row.path)
        del values
        report(array.bytes)
    if left:
        raise ValueError(f"{source} lacks arrays for these weights: {listed(left)}. Pass the file of this model.")


def check_fits_float32(*parts: "keras.Model") -> None:
    """Warns if float64 weights would be rounded to float32; ValueError if one is beyond the range of float32."""
    import keras

    rounded = []
    for part in parts:
        for path, weight in models.weights_by_path(part).items():
            if keras.backend.standardize_dtype(weight.dtype) != "float64":
                continue
            values = keras.ops.convert_to_numpy(weight)
            if (np.abs(values) > np.finfo("float32").max).any():
                raise ValueError(f"{path} has values beyond the range of float32. Save as .keras: model.save(...).")
            if not np.array_equal(values, values.astype("float32"), equal_nan=True):
                rounded.append(path)
    if rounded:
        warn_caller(
            f"{len(rounded)} float64 weights are rounded to float32, the first is {rounded[0]}. To keep float64, save "
            "the model as .keras: model.save(...)."
        )


def extract(model: "keras.Model", layout: Layout, stack: bool = False) -> Iterator[tuple[str, np.ndarray]]:
    """Returns an iterator over (name, float32 array) of a model in a layout, sorted by name, computed one at a time.

    `stack` stacks the arrays of all blocks.
    """
    import keras

    config, weights = model.config, models.weights_by_path(model)

    def read(path: str) -> np.ndarray:
        return keras.ops.convert_to_numpy(weights[path]).astype(np.float32, copy=False)

    if stack and layout.stacked is None:
        raise ValueError(f"The layout {layout.name!r} does not stack blocks: leave stack=True out.")
    config, changed = layout.rewritten(config, read)
    rows, computed = layout.rows(config), layout.computed(config)
    strange = weights.keys() - computed.keys() - {row.path for row in rows}
    if strange:
        raise ValueError(
            f"The layout {layout.name!r} cannot store these weights of the model: {listed(strange)}. Merge LoRA "
            "adapters first: keras_vit.training.merge_lora(model). Write a quantized model before it is quantized."
        )
    for path, values in computed.items():
        if not np.array_equal(read(path).ravel(), values.ravel()):  # Facebook's files store rounded ones
            what = f"{path!r} is computed, but this model has other values"
            raise ValueError(f"The layout {layout.name!r} cannot store this model. {what}. Save as .keras.")

    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(layout.stacked(row.name) if stack else row.name, []).append(row)

    def value(group: list[Row]) -> np.ndarray:
        shape, parts = group[0].shape, group[0].part[1]
        if group[0].path is None:
            return np.zeros(shape, np.float32)
        weight = {row.path: changed[row.path] if row.path in changed else read(row.path) for row in group}
        pieces = {row.part[0]: row.values(weight[row.path]) for row in group}
        if parts == 1:
            return pieces[0]
        zeros = np.zeros(group[0].part_shape, np.float32)
        return np.concatenate([pieces.get(i, zeros) for i in range(parts)], axis=group[0].axis)

    def arrays() -> Iterator[tuple[str, np.ndarray]]:
        for name, group in sorted(groups.items(), key=lambda item: item[0]):
            yield name, value(group) if name == group[0].name else np.stack([value([row]) for row in group])

    return arrays()


def listed(names: Collection[str]) -> str:
    """The first of these names in alphabetical order, safe to show and with commas, and how many more."""
    more = f" and {len(names) - NAMES_LISTED} more" if len(names) > NAMES_LISTED else ""
    return ", ".join(printable(name, NAME_LENGTH) for name in sorted(names)[:NAMES_LISTED]) + more


def with_prefix_positions(config: ViTConfig, read: Callable[[str], np.ndarray]) -> tuple[Any, dict[str, np.ndarray]]:
    """Returns a config whose tokens before the patches have positions, and by its path the table with rows of zeros."""
    special = config.prefix_tokens - config.register_tokens
    if config.position_embedding != "learned_patches" or not special:
        return config, {}
    table = read(TABLE)
    rows = np.concatenate([np.zeros_like(table[:, :special]), table], axis=1)
    kind = "learned_without_registers" if config.register_tokens else "learned"
    return config.replace(position_embedding=kind), {TABLE: rows}


# What layouts read off arrays


def shape_of(arrays: Mapping[str, StoredArray], name: str, ndim: int) -> tuple[int, ...]:
    """Returns the shape of an array; ValueError if it is missing, or has another number of axes than `ndim`."""
    if name not in arrays:
        raise ValueError(f"The file lacks the array {name!r}, which gives the size of the model. Download it again.")
    if arrays[name].shape == (0,):
        advice = "Gather the weights first, such as those of DeepSpeed's ZeRO-3 with its zero_to_fp32.py."
        raise ValueError(f"The array {name!r} is empty: its shape is {arrays[name].shape}. {advice}")
    if len(arrays[name].shape) != ndim:
        raise ValueError(f"The array {name!r} must have {ndim} axes, but its shape is {arrays[name].shape}.")
    return arrays[name].shape


def bounded(blocks: int) -> int:
    """`blocks`, the number that a file claims; ValueError for more than `MOST_BLOCKS`: names cost nothing."""
    if blocks > MOST_BLOCKS:
        raise ValueError(f"The model must have at most {MOST_BLOCKS:,} blocks, but the file has {blocks:,}.")
    return blocks


def depth_of(arrays: Collection[str], start: str) -> int:
    """The number of blocks, by the numbers that follow `start` in the names of arrays."""
    numbers = re.findall(rf"^{re.escape(start)}(\d+)[./]", "\n".join(arrays), re.MULTILINE)
    return bounded(1 + max(map(int, numbers), default=0))


def stages_of(arrays: Collection[str], pattern: str, first: int) -> tuple[int, ...]:
    """Returns how many units each stage of a ResNet has, by numbers in names that a pattern finds, from `first` on."""
    found = re.findall(pattern, "\n".join(arrays), re.MULTILINE)
    units = {(int(stage) + 1 - first, int(unit) + 1 - first) for stage, unit in found}
    highest = bounded(max(map(max, units), default=0))
    if highest > len(units):
        raise ValueError(f"The file has {len(units)} ResNet units, but their numbers go up to {highest}.")
    stages = max((stage for stage, _ in units), default=0)
    return tuple(max((u for s, u in units if s == stage), default=1) for stage in range(1, stages + 1))


def guessed_grid(patch: Sequence[int], size: int = 224) -> tuple[tuple[int, int], Notice]:
    """The grid of patches of images of `size` pixels, where nothing tells it, and a notice that says so."""
    rows, columns = (max(round(size / length), 1) for length in patch)
    guess = f"{rows * patch[0]} x {columns * patch[1]}"
    return (rows, columns), Notice(f"the image size is not in the file; {guess} is a guess", "image_size")


def squarest_grid(patches: int) -> tuple[int, int]:
    """(rows, columns), the factors of `patches` nearest to a square, with rows <= columns; (1, 0) for 0."""
    rows = next((n for n in range(math.isqrt(max(patches, 1)), 0, -1) if patches % n == 0), 1)
    return rows, patches // rows


def rows_before_patches(rows: int, known: Sequence[int], sidecars: Sidecars, patch: Sequence[int]) -> int | None:
    """Returns how many rows of a table of positions are not of patches, one of `known`; None for no sound grid.

    The first that leaves what `grid_size` says; else the first that leaves a square, or the patches of `image_size`.
    That is also the size to resize to: a class token and 8 x 8 patches stay such where 5 x 13 patches are asked for.
    """
    if sidecars.grid_size is not None and rows - math.prod(sidecars.grid_size) in known:
        return rows - math.prod(sidecars.grid_size)
    asked = sidecars.grid_at_size(patch)
    asked = asked and math.prod(asked)
    return next((n for n in known if rows - n == asked or math.isqrt(rows - n) ** 2 == rows - n), None)


def with_grid(plan: Plan, grid_size: tuple[int, int] | None, source: str) -> Plan:
    """Returns the plan with a given grid of patches instead of the one guessed from their number; None: as it is."""
    if grid_size is None:
        return plan
    config, (rows, columns) = plan.stored, grid_size
    if not isinstance(config, ViTConfig):
        raise ValueError(f"{source} has no position embeddings: leave grid_size={grid_size} out.")
    patches = math.prod(config.grid_size)
    if (config.position_rows or config.tokens_mlp_width) and rows * columns != patches:
        wanted = f"{patches} patches, like the position embeddings of {source}"
        raise ValueError(f"grid_size must have {wanted}, but {rows} x {columns} was given.")
    warnings = [warning for warning in plan.warnings if (warning.kind, warning.field) != ("note", "image_size")]
    stored = config.replace(image_size=config.image_size_of((rows, columns)))
    return dataclasses.replace(plan, stored=stored, is_grid_known=True, warnings=warnings)


def renamed(
    arrays: Mapping[str, StoredArray], name: Callable[[str], str], lost: str = "a number that has no meaning"
) -> dict[str, StoredArray]:
    """Returns the arrays by other names; ValueError where two become the same, which says what is `lost`."""
    new = {name(old): array for old, array in arrays.items()}
    if len(new) < len(arrays):
        raise ValueError(f"The file has arrays whose names differ only in {lost}. Keep one of each.")
    return new


def mixer_config(arrays: Collection[str], block: str, tokens: int, fields: dict[str, Any]) -> ViTConfig:
    """Returns the config of an MLP-Mixer with the squarest grid of so many tokens; `fields` are its other fields.

    `block` is what stands before the numbers of the blocks.
    """
    size = tuple(n * patch for n, patch in zip(squarest_grid(tokens), fields["patch_size"], strict=True))
    mixer = {"heads": 1, "class_token": False, "position_embedding": "none", "pooling": "avg"}
    return ViTConfig(image_size=size, depth=depth_of(arrays, block), **mixer, **fields)  # ty: ignore[invalid-argument-type]


# `like=`: a known model, which stands for what a bare file of PyTorch does not tell


def check_like(config: ModelConfig, like: Like, extra: tuple[str, ...], source: str) -> None:
    """Raises ValueError where a variant has other sizes, parts or `extra` fields than the config of a file."""
    # A name of timm's, which has no config, passes.
    known, image_model = like.config, getattr(config, "backbone", config)
    if known is None:
        return
    if not isinstance(image_model, ViTConfig):
        raise ValueError(f"like={like.name!r} is a Vision Transformer, but {source} is not: leave like out.")
    fields = (*_SIZES, *_PARTS, *extra)
    theirs, ours = (
        {field: getattr(config, field) for field in fields} | {"a layer scale": config.layer_scale is not None}
        for config in (image_model, known)
    )
    wrong = [field for field in ours if ours[field] != theirs[field]]
    if wrong:
        found, wanted = (", ".join(f"{field}={of[field]!r}" for field in wrong) for of in (theirs, ours))
        raise ValueError(
            f"like={like.name!r} does not fit {source}: the file has {found}, but {like.name} has {wanted}. Give like= "
            "a model of this size and kind."
        )


def apply_like(plan: Plan, like: Like, source: str) -> Plan:
    """Returns the plan in which the fields that neither arrays nor JSON files tell have the values of `like`."""
    # A name of timm has been read by the layout; the plan stays as it is then, and for layouts that leave nothing open.
    if plan.layout.advice is None:
        if like.config is None:
            raise ValueError(f"{source} has the layout {plan.layout.name!r}: leave like={like.name!r} out.")
        check_like(plan.stored, like, COMPUTATION, source)
        return plan
    if like.config is None:  # a name of timm's, which the layout has read
        return plan
    open_fields = {warning.field for warning in plan.warnings if warning.kind != "note"}
    is_bare = bool(open_fields & {*COMPUTATION})
    # What a JSON file says; how it resizes position embeddings is a matter of its publisher's code.
    check_like(plan.stored, like, () if is_bare else COMPUTATION[:3], source)
    fields = [*COMPUTATION] if is_bare else []
    if "crop_ratio" in open_fields:
        fields += PREPROCESSING
    if "pooling" in open_fields:
        fields.append("pooling")
    if any(warning.field == "image_size" and warning.kind == "note" for warning in plan.warnings):  # a guess
        fields.append("image_size")
    known: Any = like.config
    return dataclasses.replace(
        plan,
        stored=plan.stored.replace(**{field: getattr(known, field) for field in fields}),
        warnings=[warning for warning in plan.warnings if warning.field not in fields],
    )
