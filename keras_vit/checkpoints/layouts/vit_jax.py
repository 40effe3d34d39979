"""The layout of the official checkpoints: `vit_models/*.npz`, written by google-research/vision_transformer.

Two dialects name the same arrays. The published files number all modules of a block with one counter; today's Flax
(Linen) has one counter per class. Either may stand under a prefix, with other things beside it. What big_vision's and
BiT's files have in common with these stands first.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.engine import (
    Contents,
    Hints,
    Layout,
    Row,
    bounded,
    length_of,
    oddities,
    shape_of,
    squarest_grid,
)
from keras_vit.checkpoints.files.stored_array import StoredArray
from keras_vit.models import ViTConfig

# Prefixes that loaders know, most trusted first; and what may stand beside the model in a file without a prefix.
_PREFIXES = ("", "params/", "opt/target/", "target/", "params/img/", "img/")
_BESIDE = ("opt/", "opt_state/", "optimizer/", "extra/", "txt/", "step", "t", "b")
# Every Vision Transformer has the first name and one of the others.
_PATCHES = "embedding/kernel"
_FIRST_BLOCK = ("Transformer/encoderblock_0/LayerNorm_0/scale", "Transformer/encoderblock/LayerNorm_0/scale")
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
        and any(f"{name.removesuffix(_PATCHES)}{block}" in file for block in _FIRST_BLOCK)
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


def depth_of(names: Iterable[str]) -> int:
    """The number of blocks, from the highest number that one has."""
    numbers = re.findall(r"^Transformer/encoderblock_(\d+)/", "\n".join(names), re.MULTILINE)
    return bounded(1 + max(int(number) for number in numbers))


# What the models of vit_jax and big_vision all have.
ORIGINAL = {
    "stem_epsilons": "official",
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


_TABLE = "position_embedding/table"
_BLOCK = "Transformer/encoderblock_{i}"
_ATTENTION = f"{_BLOCK}/MultiHeadDotProductAttention_1"

# Names are the published ones. D width, H heads, d width of a head, M width of the MLP, P and Q height and width of a
# patch, C channels of the image, E of what is cut into patches, T tokens, R representation size, K classes.
_EMBEDDING = [
    Row("embedding/kernel", "embedding/kernel", ("P", "Q", "E", "D")),
    Row("embedding/bias", "embedding/bias", ("D",)),
    Row("Transformer/posembed_input/pos_embedding", _TABLE, (1, "T", "D")),
]
_CLASS_TOKEN = [Row("cls", "class_token/token", (1, 1, "D"))]
_BLOCKS = [
    Row(f"{_BLOCK}/LayerNorm_0/scale", "block_{i}/norm1/gamma", ("D",)),
    Row(f"{_BLOCK}/LayerNorm_0/bias", "block_{i}/norm1/beta", ("D",)),
    Row(f"{_ATTENTION}/query/kernel", "block_{i}/attention/query/kernel", ("D", "H", "d")),
    Row(f"{_ATTENTION}/query/bias", "block_{i}/attention/query/bias", ("H", "d")),
    Row(f"{_ATTENTION}/key/kernel", "block_{i}/attention/key/kernel", ("D", "H", "d")),
    Row(f"{_ATTENTION}/key/bias", "block_{i}/attention/key/bias", ("H", "d")),
    Row(f"{_ATTENTION}/value/kernel", "block_{i}/attention/value/kernel", ("D", "H", "d")),
    Row(f"{_ATTENTION}/value/bias", "block_{i}/attention/value/bias", ("H", "d")),
    Row(f"{_ATTENTION}/out/kernel", "block_{i}/attention/out/kernel", ("H", "d", "D")),
    Row(f"{_ATTENTION}/out/bias", "block_{i}/attention/out/bias", ("D",)),
    Row(f"{_BLOCK}/LayerNorm_2/scale", "block_{i}/norm2/gamma", ("D",)),
    Row(f"{_BLOCK}/LayerNorm_2/bias", "block_{i}/norm2/beta", ("D",)),
    Row(f"{_BLOCK}/MlpBlock_3/Dense_0/kernel", "block_{i}/mlp/fc1/kernel", ("D", "M")),
    Row(f"{_BLOCK}/MlpBlock_3/Dense_0/bias", "block_{i}/mlp/fc1/bias", ("M",)),
    Row(f"{_BLOCK}/MlpBlock_3/Dense_1/kernel", "block_{i}/mlp/fc2/kernel", ("M", "D")),
    Row(f"{_BLOCK}/MlpBlock_3/Dense_1/bias", "block_{i}/mlp/fc2/bias", ("D",)),
]
_NORM = [
    Row("Transformer/encoder_norm/scale", "encoder_norm/gamma", ("D",)),
    Row("Transformer/encoder_norm/bias", "encoder_norm/beta", ("D",)),
]
_PRE_LOGITS = [
    Row("pre_logits/kernel", "pre_logits/kernel", ("D", "R")),
    Row("pre_logits/bias", "pre_logits/bias", ("R",)),
]
_HEAD = [
    Row("head/kernel", "head/kernel", ("R", "K")),
    Row("head/bias", "head/bias", ("K",)),
]

# The ResNet of the hybrids: w channels of a convolution in, F and 4F of a unit in stage s. Published files keep group
# normalisation's arrays with four axes (Flax before 0.3.6), today's Flax with one.
_ROOT = [
    Row("conv_root/kernel", "conv_root/kernel", (7, 7, "C", "w")),
    Row("gn_root/scale", "gn_root/gamma", (1, 1, 1, "w")),
    Row("gn_root/bias", "gn_root/beta", (1, 1, 1, "w")),
]


def _unit_rows(stage: int, unit: int, config: ViTConfig) -> list[Row]:
    """The arrays of one bottleneck; stages and units count from 1."""
    name, path = f"block{stage}/unit{unit}", f"block{stage}_unit{unit}"
    inner = config.stem_width * 2 ** (stage - 1)
    outer = 4 * inner
    before = outer if unit > 1 else config.stem_width if stage == 1 else outer // 2
    kernels = {
        "1": (1, 1, before, inner),
        "2": (3, 3, inner, inner),
        "3": (1, 1, inner, outer),
    }
    if unit == 1:
        kernels["_proj"] = (1, 1, before, outer)
    rows = []
    for which, shape in kernels.items():
        rows += [
            Row(f"{name}/conv{which}/kernel", f"{path}/conv{which}/kernel", shape),
            Row(f"{name}/gn{which}/scale", f"{path}/gn{which}/gamma", (1, 1, 1, shape[-1])),
            Row(f"{name}/gn{which}/bias", f"{path}/gn{which}/beta", (1, 1, 1, shape[-1])),
        ]
    return rows


# Linen's names of the modules of a block, and the published ones.
_LINEN = {
    "LayerNorm_1": "LayerNorm_2",
    "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
    "MlpBlock_0": "MlpBlock_3",
}
_IN_BLOCK = re.compile(r"(Transformer/encoderblock_\d+/)(\w+)(/.*)")


def _rows(config: ViTConfig) -> list[Row]:
    rows = list(_ROOT) if config.stem_stages is not None else []
    for stage, units in enumerate(config.stem_stages or (), start=1):
        for unit in range(1, units + 1):
            rows += _unit_rows(stage, unit, config)
    rows += [*_EMBEDDING, *(_CLASS_TOKEN if config.class_token else [])]
    for i in range(config.depth):
        rows += [Row(row.name.format(i=i), row.path.format(i=i), row.shape) for row in _BLOCKS]
    rows += _NORM
    rows += _PRE_LOGITS if config.representation_size else []
    rows += _HEAD if config.classes else []
    return rows


def _sizes(config: ViTConfig) -> dict[str, int]:
    rows, columns = config.grid_size
    return {
        "D": config.width,
        "H": config.heads,
        "d": config.width // config.heads,
        "M": config.mlp_width,
        "P": config.patch_size[0],
        "Q": config.patch_size[1],
        "C": config.channels,
        "E": config.feature_map_channels,
        "w": config.stem_width,
        "T": config.prefix_tokens + rows * columns,
        "R": config.representation_size or config.width,
        "K": config.classes or 0,
    }


def _read(file: Mapping[str, StoredArray], hints: Hints) -> Contents | None:
    found = find_model(file)
    if found is None:
        return None
    prefix, arrays = found
    linen = is_linen(arrays)
    if linen:
        arrays = {_IN_BLOCK.sub(_publish, name): array for name, array in arrays.items()}
    config, square = _config(arrays)
    unused = sorted(file.keys() - {array.name for array in arrays.values()})
    told = oddities(arrays, unused, config, square)
    return Contents(LAYOUT, "Linen" if linen else "published", prefix, config, arrays, unused, told, square)


def _publish(match: re.Match[str]) -> str:
    before, module, after = match.groups()
    return f"{before}{_LINEN.get(module, module)}{after}"


def _config(arrays: Mapping[str, StoredArray]) -> tuple[ViTConfig, bool]:
    """The model that the arrays' shapes tell of, and whether its grid is known to be square."""
    height, width, channels, hidden = shape_of(arrays, "embedding/kernel", 4)
    stem: dict[str, Any] = {}
    if "conv_root/kernel" in arrays:
        _, _, channels, stem["stem_width"] = shape_of(arrays, "conv_root/kernel", 4)
        stem["stem_stages"] = _stages(arrays)
    step = 4 * 2 ** len(stem["stem_stages"]) if stem else 1  # any size that divides will do until the grid is known
    _, heads, _ = shape_of(arrays, f"{_ATTENTION}/query/kernel".format(i=0), 3)
    _, mlp_width = shape_of(arrays, f"{_BLOCK}/MlpBlock_3/Dense_0/kernel".format(i=0), 2)
    _, tokens, _ = shape_of(arrays, "Transformer/posembed_input/pos_embedding", 3)
    rows, columns = squarest_grid(tokens - ("cls" in arrays))
    config = ViTConfig(
        image_size=(height * step, width * step),
        patch_size=(height, width),
        width=hidden,
        depth=depth_of(arrays),
        heads=heads,
        mlp_width=mlp_width,
        channels=channels,
        class_token="cls" in arrays,
        pooling="token" if "cls" in arrays else "avg",
        representation_size=length_of(arrays, "pre_logits/kernel"),
        classes=length_of(arrays, "head/kernel"),
        **stem,
    )
    return config.replace(image_size=config.image_size_of((rows, columns))), rows == columns


def _stages(arrays: Mapping[str, StoredArray]) -> tuple[int, ...]:
    """How many units each stage of the ResNet has."""
    units = {(int(s), int(u)) for s, u in re.findall(r"^block(\d+)/unit(\d+)/", "\n".join(arrays), re.MULTILINE)}
    stages = max((stage for stage, _ in units), default=0)
    bounded(max(map(max, units), default=0))
    return tuple(max((u for s, u in units if s == stage), default=1) for stage in range(1, stages + 1))


def _check_writable(config: ViTConfig) -> None:
    check_writable(config, "vit_jax", ("token",) if config.class_token else ("avg",))
    if config.position_embedding == "sincos2d":
        raise ValueError(
            "The layout 'vit_jax' has no place for position_embedding='sincos2d'. Write layout='big_vision' instead."
        )


def _restate(config: ViTConfig, read: Callable[[str], np.ndarray]) -> tuple[ViTConfig, dict[str, np.ndarray]]:
    """Gives the class token the position that this layout has for it: zero, where the model has none."""
    if config.position_embedding == "learned":
        return config, {}
    table = read(_TABLE)
    prefix = np.zeros_like(table[:, : config.prefix_tokens])
    return config.replace(position_embedding="learned"), {_TABLE: np.concatenate([prefix, table], axis=1)}


LAYOUT = Layout("vit_jax", _rows, _sizes, _read, _check_writable, _restate)
