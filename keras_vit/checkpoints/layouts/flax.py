"""What the layouts of the original Flax models share: where in a file the model stands, and what to say about it."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from keras_vit.checkpoints.files.npz import StoredArray
from keras_vit.models import ViTConfig

MOST_BLOCKS = 1000  # the deepest published models have 50, BiT-R152 has 50 units
# Prefixes that loaders know, most trusted first; and what may stand beside the model in a file without a prefix.
_PREFIXES = ("", "params/", "opt/target/", "target/", "params/img/", "img/")
_BESIDE = ("opt/", "opt_state/", "optimizer/", "extra/", "txt/", "step", "t", "b")
# Every Vision Transformer has the first name and one of the others.
_PATCHES = "embedding/kernel"
_BLOCKS = ("Transformer/encoderblock_0/LayerNorm_0/scale", "Transformer/encoderblock/LayerNorm_0/scale")
# Modules that Flax named and numbered itself: a class and a number.
_NUMBERED = re.compile(r"([A-Z]\w*)_(\d+)")


def find_model(file: Mapping[str, StoredArray]) -> tuple[str, dict[str, StoredArray]] | None:
    """What stands before the names of a Vision Transformer, and its arrays without that; None if there is none.

    Raises:
        ValueError: if there are several, none of which is under a prefix that loaders know.
    """
    found = {
        name.removesuffix(_PATCHES)
        for name in file
        if re.search(rf"(^|/){_PATCHES}$", name)
        and any(f"{name.removesuffix(_PATCHES)}{block}" in file for block in _BLOCKS)
    }
    return model_under(found, file)


def model_under(found: set[str], file: Mapping[str, StoredArray]) -> tuple[str, dict[str, StoredArray]] | None:
    """Of the prefixes under which a model was seen, the one that loaders know best, and the arrays without it.

    Args:
        found: The prefixes; where there are none, None is returned.
        file: The file.

    Raises:
        ValueError: if there are several, none of which loaders know.
    """
    known = [prefix for prefix in _PREFIXES if prefix in found]
    if not known and len(found) > 1:
        raise ValueError(f"The file holds several models, under the prefixes {sorted(found)}; keep one of them.")
    if not found:
        return None
    prefix = known[0] if known else found.pop()
    inside = {name.removeprefix(prefix): array for name, array in file.items() if name.startswith(prefix)}
    # Under a prefix lies the model and nothing else; without one, other things may stand beside it.
    return prefix, {name: array for name, array in inside.items() if prefix or not _is_beside(name)}


def _is_beside(name: str) -> bool:
    return any(name.startswith(root) if root.endswith("/") else name == root for root in _BESIDE)


def is_linen(names: Iterable[str]) -> bool:
    """Whether the modules of a block have one counter per class (Linen) instead of one for all (before)."""
    return any(f"/{module}/" in name for name in names for module in ("MlpBlock_0", "MultiHeadDotProductAttention_0"))


def renumbered(names: Collection[str]) -> dict[str, str]:
    """Linen's names for names from before Linen, as `flax.training.checkpoints.convert_pre_linen` makes them.

    In every module, those of its modules that Flax numbered itself are counted again, each class from 0. Modules
    that the model's code numbers, such as the blocks, keep their numbers: a hole in them is an error of the file.
    """
    modules = {name[: end.start()] for name in names for end in re.finditer("/", name)}
    new = {}
    counts: dict[tuple[str, str], int] = {}

    def order(module: str) -> tuple[str, int]:
        number = re.search(r"\d+$", module)
        return module.rpartition("/")[0], int(number[0]) if number else -1

    for module in sorted(modules, key=order):
        parent, _, last = module.rpartition("/")
        match = _NUMBERED.fullmatch(last)
        if match:
            count = counts[parent, match[1]] = counts.get((parent, match[1]), -1) + 1
            last = f"{match[1]}_{count}"
        new[module] = last

    def rename(name: str) -> str:
        ends = [end.start() for end in re.finditer("/", name)]
        return "/".join([*(new[name[:end]] for end in ends), name.rpartition("/")[2]])

    return {name: rename(name) for name in names}


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


def depth_of(names: Iterable[str]) -> int:
    """The number of blocks, from the highest number that one has."""
    numbers = re.findall(r"^Transformer/encoderblock_(\d+)/", "\n".join(names), re.MULTILINE)
    return bounded(1 + max(int(number) for number in numbers))


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
    """What a user should know about a file, in words (see `layout.Contents`); `head` is what it calls the head."""
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


# What the models of vit_jax and big_vision all have.
ORIGINAL = {
    "patch_bias": True,
    "distillation_token": False,
    "register_tokens": 0,
    "rotary_embedding": None,
    "pre_norm": False,
    "attention_bias": "all",
    "attention_norm": False,
    "mlp": "plain",
    "gelu": "tanh",
    "layer_scale": None,
    "layer_norm_epsilon": 1e-6,
    "final_norm": "tokens",
    "projection": None,
}


def check_writable(config: ViTConfig, layout: str, poolings: tuple[str, ...]) -> None:
    """Raises ValueError unless whoever reads the arrays in the original code computes what the model computes.

    Args:
        config: The model's.
        layout: The layout's name, for messages.
        poolings: What the layout can say of a model with its tokens; `"none"` is always added.
    """
    for field, value in ORIGINAL.items():
        if getattr(config, field) != value:
            raise ValueError(
                f"The layout {layout!r} is for models with {field}={value!r}, but this one has "
                f"{getattr(config, field)!r}. Whoever reads the file would compute something else. Save it as .keras."
            )
    if config.position_embedding in ("learned_without_registers", "none"):
        raise ValueError(
            f"The layout {layout!r} has no place for position_embedding={config.position_embedding!r}. Save the model "
            "as .keras instead."
        )
    if config.stem_folded:
        raise ValueError(
            f"The layout {layout!r} keeps raw kernels, but those of this model have been standardised by folded(). "
            "Write the model that it was made from."
        )
    if config.pooling == "map" and config.class_token and not config.map_prefix:
        raise ValueError(f"The layout {layout!r} is for attention pooling of all tokens: map_prefix=True.")
    if config.pooling not in (*poolings, "none"):
        raise ValueError(
            f"The layout {layout!r} has no place for pooling={config.pooling!r} "
            f"{'with' if config.class_token else 'without'} a class token. Save the model as .keras instead."
        )
