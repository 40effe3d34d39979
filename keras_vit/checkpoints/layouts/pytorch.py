"""What the layouts of PyTorch's models share: rows, where in a file the model stands, and what its arrays tell.

PyTorch stores a linear layer's matrix as (out, in) and a convolution's kernel as (out, in, height, width); the rows
say so, and the engine transposes.
"""

import dataclasses
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit._text import printable
from keras_vit.checkpoints.engine import Row, bounded, squarest_grid
from keras_vit.checkpoints.files.stored_array import StoredArray
from keras_vit.models import ViTConfig

LINEAR, CONVOLUTION = (1, 0), (2, 3, 1, 0)  # the order in which Keras has the axes
NAMES_SHOWN = 8
USUAL_SIZE = 224  # pixels
# What a layer scale starts from where nothing says it; a trained one is in the file.
LAYER_SCALE = 1e-5

# The keys under which training checkpoints hold models and what belongs to a training, the preferred first: averages
# before what they are averages of, a teacher before its student, a target encoder before the one that follows it.
CONTAINERS = (
    *("state_dict_ema", "model_ema", "ema", "model", "module", "state_dict", "teacher", "target_encoder", "encoder"),
    *("student", "predictor", "optimizer", "optimizer_state", "opt", "scaler", "fp16_scaler", "scheduler"),
    *("lr_scheduler", "loss", "criterion", "dino_loss", "ibot_patch_loss", "koleo_loss", "amp"),
)
# The other tower of a two-tower file, and what joins both.
_TEXT = re.compile(
    r"(text_model|text|transformer|token_embedding|ln_final)\..*|positional_embedding"
    r"|text_projection(\.weight|\.bias)?|logit_scale|logit_bias"
)
_OTHER_MODELS = re.compile(r"(^|\.)(text|text_model|decoder)\.")


def linear(name: str, path: str, out: int, into: int, bias: bool = True) -> list[Row]:
    """The rows of a linear layer."""
    rows = [Row(f"{name}.weight", f"{path}/kernel", (out, into), LINEAR)]
    return [*rows, Row(f"{name}.bias", f"{path}/bias", (out,))] if bias else rows


def fused(weight: str, bias: str | None, paths: Sequence[str], size: int, biased: Collection[int]) -> list[Row]:
    """The rows of linear layers of equal size that share one matrix and one bias, one after the other.

    Args:
        weight: The name of the matrix.
        bias: The name of the bias, None for none.
        paths: The layers in their order.
        size: Inputs and outputs of one of them.
        biased: Which of the layers have a bias; the parts of the others are not read.
    """
    n = len(paths)
    rows = [Row(weight, f"{path}/kernel", (n * size, size), LINEAR, (i, n)) for i, path in enumerate(paths)]
    if bias is not None:
        rows += [Row(bias, f"{paths[i]}/bias", (n * size,), part=(i, n)) for i in biased]
    return rows


def packed(name: str, paths: Sequence[str], out: int, into: int) -> list[Row]:
    """The rows of linear layers that are one in the file, with matrices and biases one after the other."""
    n, rows = len(paths), []
    for i, path in enumerate(paths):
        rows.append(Row(f"{name}.weight", f"{path}/kernel", (n * out, into), LINEAR, (i, n)))
        rows.append(Row(f"{name}.bias", f"{path}/bias", (n * out,), part=(i, n)))
    return rows


def norm(name: str, path: str, size: int) -> list[Row]:
    """The rows of a layer normalisation."""
    return [Row(f"{name}.weight", f"{path}/gamma", (size,)), Row(f"{name}.bias", f"{path}/beta", (size,))]


def patches(name: str, config: ViTConfig) -> list[Row]:
    """The rows of the convolution that embeds the patches."""
    shape = (config.width, config.feature_map_channels, *config.patch_size)
    rows = [Row(f"{name}.weight", "embedding/kernel", shape, CONVOLUTION)]
    return [*rows, Row(f"{name}.bias", "embedding/bias", (config.width,))] if config.patch_bias else rows


def biased(config: ViTConfig) -> tuple[int, ...]:
    """Which of query, key and value (0, 1, 2) have a bias."""
    return {"all": (0, 1, 2), "no_key": (0, 2), "none": ()}[config.attention_bias]


def attention_bias(query: bool, key: bool, value: bool) -> str:
    """The name of which of the projections have a bias.

    Raises:
        ValueError: if no model has just those.
    """
    kinds = {(True, True, True): "all", (True, False, True): "no_key", (False, False, False): "none"}
    if (query, key, value) not in kinds:
        raise ValueError(
            "Of its projections to queries, keys and values, in this order, those marked True have a bias, which is "
            f"the case in no known family: {query}, {key}, {value}."
        )
    return kinds[query, key, value]


def computed_periods(config: ViTConfig, base: float = 100.0) -> dict[str, np.ndarray]:
    """The periods of DINOv3's rotary embedding by path, for files that do not store them; empty for other models.

    They are those that `layers.RotaryEmbedding` begins with, said without Keras.
    """
    if config.rotary_embedding != "dinov3":
        return {}
    count = config.width // config.heads // 4
    periods = base ** (np.arange(count, dtype=np.float64) / count)
    return {"rotary_embedding/periods": periods.astype(np.float32)}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where in a file a model stands.

    Attributes:
        outer: What stands before the names of the file's model, such as `"model."`; `""` for nothing.
        module: What stands after it before those of the image model, such as `"visual."` or `"vit."`.
    """

    outer: str
    module: str

    @property
    def prefix(self) -> str:
        """All that stands before the names of the image model."""
        return self.outer + self.module


def find(file: Collection[str], anchor: str, modules: Sequence[str]) -> Place | None:
    """Where the model is that has an array of the name `anchor`; None where there is none.

    Args:
        file: The names of a file's arrays.
        anchor: The name.
        modules: What may stand before it in a whole model, the longest first; each ends with a dot.

    Raises:
        ValueError: if there are several such models, and nothing tells which of them is meant.
    """
    prefixes = {name.removesuffix(anchor) for name in file if name == anchor or name.endswith(f".{anchor}")}
    prefixes = {prefix for prefix in prefixes if not _OTHER_MODELS.search(prefix)}
    if not prefixes:
        return None
    ranks = {prefix: _rank(prefix) for prefix in prefixes}
    best = min(ranks.values())
    chosen = [prefix for prefix in prefixes if ranks[prefix] == best]
    if len(chosen) > 1:
        raise ValueError(f"The file holds several models, under the prefixes {sorted(chosen)}; keep one of them.")
    module = next((module for module in modules if f".{chosen[0]}".endswith(f".{module}")), "")
    return Place(chosen[0].removesuffix(module), module)


def _rank(prefix: str) -> int:
    first = prefix.partition(".")[0]
    return -1 if not prefix else CONTAINERS.index(first) if first in CONTAINERS else len(CONTAINERS)


@dataclasses.dataclass(frozen=True)
class Names:
    """The names that a layout knows.

    Attributes:
        model: Those of the image model's arrays.
        top: Those of its arrays that stand outside of the module, such as the head's.
        unused: Those within the module that have no effect on the image model.
        beside: Those outside of the module that have none.
    """

    model: re.Pattern[str]
    top: re.Pattern[str] | None = None
    unused: re.Pattern[str] | None = None
    beside: re.Pattern[str] | None = None


def account(file: Mapping[str, StoredArray], place: Place, names: Names) -> tuple[dict[str, StoredArray], list[str]]:
    """The arrays of a model by their names in the layout, and the names of those that are deliberately left.

    Raises:
        ValueError: if there are arrays that are of no known family: they may mean another computation.
    """
    arrays: dict[str, StoredArray] = {}
    unused, strange = [], []
    for name, array in file.items():
        inner = name.removeprefix(place.prefix) if name.startswith(place.prefix) else None
        outer = name.removeprefix(place.outer) if name.startswith(place.outer) else None
        found = inner if _is(names.model, inner) else outer if _is(names.top, outer) else None
        found = name if found is None and _is(names.top, name) else found  # a head above all that
        if found is not None and found not in arrays:
            arrays[found] = array
        elif _is(names.unused, inner) or _is(names.beside, outer) or (place.module and _is(_TEXT, outer)):
            unused.append(name)
        elif outer is None and name.partition(".")[0] in CONTAINERS:
            unused.append(name)
        else:
            strange.append(name)
    if strange:
        raise ValueError(
            f"It has {len(strange)} arrays that no known family has, so whatever computes with them is another model: "
            f"{shown(strange)}."
        )
    return arrays, sorted(unused)


def _is(pattern: re.Pattern[str] | None, name: str | None) -> bool:
    return pattern is not None and name is not None and pattern.fullmatch(name) is not None


def shown(names: Collection[str]) -> str:
    """The first of some names, for a message."""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(printable(name, 200) for name in sorted(names)[:NAMES_SHOWN]) + more


def depth_of(names: Collection[str], block: str) -> int:
    """The number of blocks, from the highest number after `block`, such as `"blocks."`."""
    numbers = [int(number) for number in re.findall(rf"^{re.escape(block)}(\d+)\.", "\n".join(names), re.MULTILINE)]
    if not numbers:
        raise ValueError(f"It has no blocks: no array's name begins with '{block}0.'.")
    return bounded(1 + max(numbers))


def heads_of(width: int, given: int | None, stated: Any, told: list[str], exceptions: Mapping[int, int] = {}) -> int:
    """The number of attention heads, which no array tells.

    Args:
        width: D.
        given: What the user says.
        stated: What the file's config says; None where it says nothing.
        told: Where an assumption is noted.
        exceptions: By width, the heads of models whose heads do not have 64 channels.

    Raises:
        ValueError: if nothing says it, or it makes no sense.
    """
    if given is None and isinstance(stated, bool) or not isinstance(stated, int | None):
        raise ValueError(f"Its config gives the number of heads as {printable(stated, 60)}, expected an integer.")
    heads = stated if given is None else given
    if heads is None:
        heads = exceptions.get(width, width // 64 if width % 64 == 0 else None)
        if heads is None:
            raise ValueError(
                f"Nothing tells its number of attention heads: there is no config.json beside it, and its width "
                f"{width} is no multiple of 64. Pass heads=..."
            )
        told.append(f"no config.json says how many attention heads it has; {heads} are assumed")
    elif given is not None and stated is not None and given != stated:
        told.append(f"its config says {stated} attention heads, {given} were asked for")
    if heads < 1 or width % heads:
        raise ValueError(f"It cannot have {heads} attention heads: its width is {width}.")
    return heads


def grid_of(
    rows: int | None,
    stated: tuple[int, int] | None,
    patch: tuple[int, int],
    special: int,
    registers: int,
    told: list[str],
    registers_first: bool = False,
    usual_size: int = USUAL_SIZE,
) -> tuple[str, tuple[int, int], bool]:
    """What the rows of the position embeddings belong to, and the grid of patches.

    Args:
        rows: The number of rows; None where there is no table.
        stated: Height and width of the images in pixels, where the config says it.
        patch: Height and width of a patch.
        special: Number of class and distillation tokens.
        registers: Number of register tokens.
        told: Where an assumption is noted.
        registers_first: Whether the names are timm's, whose models with registers and a class token have added the
            class token's position to it.
        usual_size: The size that is assumed without a table and a config.

    Returns:
        The config's `position_embedding`, the grid, and whether the grid is known and no mere guess.
    """
    grid = None if stated is None else (max(stated[0] // patch[0], 1), max(stated[1] // patch[1], 1))
    if stated is not None and (stated[0] % patch[0] or stated[1] % patch[1]):
        told.append(
            f"its images of {stated[0]} x {stated[1]} pixels are no whole number of patches; the rest at their right "
            "and lower edge never had an effect, and is not taken here"
        )
    if rows is None:
        if grid is None:
            grid = tuple(max(round(usual_size / size), 1) for size in patch)
            size = " x ".join(str(n * p) for n, p in zip(grid, patch, strict=True))
            told.append(f"nothing tells the size of its images, as there are no position embeddings; {size} is a guess")
        return "none", grid, True
    # Where two of them mean the same, the last one is the name.
    kinds = {special: "learned_without_registers", 0: "learned_patches", special + registers: "learned"}
    if grid is not None and rows - math.prod(grid) in kinds:
        return kinds[rows - math.prod(grid)], grid, True
    first = 0 if registers_first and registers and special else special
    order = [n for n in (first, special + registers, special, 0) if n < rows]
    extra = next((n for n in order if math.isqrt(rows - n) ** 2 == rows - n), None)
    if grid is not None:
        told.append(
            f"its config says images of {stated[0]} x {stated[1]} pixels, but its {rows} position embeddings are for "
            "others, which count"
        )
    if extra is None:
        extra = order[0] if order else 0
        return kinds[extra], squarest_grid(rows - extra), False
    side = math.isqrt(rows - extra)
    return kinds[extra], (side, side), True


def value_oddities(arrays: Mapping[str, StoredArray], unused: list[str], *head: str) -> list[str]:
    """What a user should know about a file, in words; `head` are the names of the head's arrays."""
    told = []
    if unused:
        told.append(
            f"{len(unused)} arrays beside the model are not part of it, such as {printable(repr(unused[0]), 200)}"
        )
    kinds = sorted({array.stored for array in arrays.values()})
    if kinds != ["float32"]:
        told.append(f"stored as {' and '.join(kinds)}, read as float32")
    # The bias first: it is small, and a trained head has one that is not zero.
    names = [name for name in sorted(head) if name in arrays]
    if names and not any(arrays[name].read().any() for name in names):
        told.append("the head is all zeros: its logits mean nothing, the file is for fine-tuning")
    return told


def grid_oddity(grid: tuple[int, int]) -> str:
    """What a user should know where the grid is a guess."""
    return f"its {math.prod(grid)} patches are no square: image_size or grid_size has to be given"


def check_config(config: Mapping[str, Any], key: str, actual: int) -> None:
    """Raises ValueError if a config states another size than the arrays have: it belongs to another file."""
    stated = config.get(key)
    if stated is not None and stated != actual:
        raise ValueError(
            f"The config.json beside it belongs to another file: it says {key}={printable(stated, 60)}, but the arrays "
            f"have {actual}."
        )


def labels_in(value: Any, classes: int) -> tuple[str, ...] | None:
    """The names of the classes from what a config says; None unless it is a list of as many names."""
    if not isinstance(value, list) or len(value) != classes:
        return None
    good = all(isinstance(name, str) and name and name == name.strip() == printable(name) for name in value)
    return tuple(value) if good else None


def image_size_in(value: Any) -> tuple[int, int] | None:
    """Height and width from what a config says: an integer, or a list of two; None for anything else."""
    values = [value, value] if isinstance(value, int) else value
    if not isinstance(values, list) or len(values) != 2:
        return None
    sizes = all(isinstance(size, int) and not isinstance(size, bool) and 0 < size < 2**20 for size in values)
    return (values[0], values[1]) if sizes else None
