"""What files call the parts of an MLP-Mixer: the official `models_mixer.py` in Flax, and timm's `mlp_mixer.py`.

The official code has had two spellings of the perceptron across tokens: Dense layers in a module `token_mixing`, as the
published files have it, and matrices and biases of the block itself, with their number of rows in their names.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_vit.checkpoints.accounting import (
    Layout,
    Plan,
    Row,
    bounded,
    check_fields,
    plain_values,
    shape_of,
    squarest_grid,
)
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import pytorch
from keras_vit.checkpoints.layouts.sidecars import Fields, class_names, preparation_in, timm_stated
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import ViTConfig

FLAX_ANCHOR = "MixerBlock_0/channel_mixing/Dense_0/kernel"
TIMM_ANCHOR = "blocks.0.mlp_tokens.fc1.weight"
# timm's models by patch, depth and width, which no argument changes.
_TIMM = {
    **{(patch, 8, 512): f"mixer_s{patch}_224" for patch in (16, 32)},
    **{(patch, 12, 768): f"mixer_b{patch}_224" for patch in (16, 32)},
    **{(patch, 24, 1024): f"mixer_l{patch}_224" for patch in (16, 32)},
}
_TIMM_ACCEPTED = {"gelu": ("exact",), "pooling": ("avg", "none")}
_TIMM_ACCEPTED |= plain_values(
    "layer_norm_epsilon", "patch_bias", "pre_norm", "final_norm", "projection", "representation_size"
)


def _mixed_sizes(config: ViTConfig) -> tuple[int, int]:
    """The number of tokens, and the length of the hidden layer across them."""
    return math.prod(config.grid_size), config.tokens_mlp_width or 0


# Flax


def flax_rows(config: ViTConfig, old: bool = False) -> list[Row]:
    """The rows in the official names; `old` for those without a module for the perceptron across tokens."""
    width, (tokens, mixed) = config.width, _mixed_sizes(config)
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "stem/kernel": ("embedding/kernel", (*config.patch_size, config.channels, width)),
        "stem/bias": ("embedding/bias", (width,)),
    }

    def norm(name: str, path: str) -> None:
        shapes.update({f"{name}/scale": (f"{path}/gamma", (width,)), f"{name}/bias": (f"{path}/beta", (width,))})

    def dense(name: str, path: str, into: int, out: int) -> None:
        shapes.update({f"{name}/kernel": (f"{path}/kernel", (into, out)), f"{name}/bias": (f"{path}/bias", (out,))})

    for i in range(config.depth):
        name, path = f"MixerBlock_{i}", f"block_{i}"
        for number, (into, out) in enumerate(((tokens, mixed), (mixed, tokens))):
            layer = f"{path}/token_mixing/fc{number + 1}"
            if old:
                shapes[f"{name}/kernel{into}"] = (f"{layer}/kernel", (into, out))
                shapes[f"{name}/bias{into}"] = (f"{layer}/bias", (1, out, 1))
            else:
                dense(f"{name}/token_mixing/Dense_{number}", layer, into, out)
            norm(f"{name}/LayerNorm_{number}", f"{path}/norm{number + 1}")
        dense(f"{name}/channel_mixing/Dense_0", f"{path}/mlp/fc1", width, config.mlp_width)
        dense(f"{name}/channel_mixing/Dense_1", f"{path}/mlp/fc2", config.mlp_width, width)
    norm("pre_head_layer_norm", "encoder_norm")
    if config.classes:
        dense("head", "head", width, config.classes)
    return [Row(name, path, shape) for name, (path, shape) in shapes.items()]


def flax_config(arrays: Mapping[str, StoredArray], grid: tuple[int, int] | None) -> tuple[ViTConfig, bool]:
    """The config that the arrays tell, and whether they have the old spelling; `grid` is what somebody knows.

    Raises ValueError where the old spelling does not tell patches from hidden units.
    """
    height, width, channels, hidden = shape_of(arrays, "stem/kernel", 4)
    old = sorted({int(n) for n in re.findall(r"^MixerBlock_0/kernel(\d+)$", "\n".join(arrays), re.MULTILINE)})
    if old:  # whose names do not say which of two numbers is that of the patches
        default_tokens = math.prod(grid or (max(round(224 / height), 1), max(round(224 / width), 1)))
        ranks = {n: (n == default_tokens, math.isqrt(n) ** 2 == n) for n in old}
        *_, mixed, tokens = sorted([0, *old], key=lambda n: ranks.get(n, ()))
        if len(old) != 2 or ranks[mixed] == ranks[tokens]:
            words = f"nothing tells which of {old}, the sizes of its matrices, is the number of patches"
            raise ValueError(f"{words}: pass grid_size=(rows, columns).")
    else:
        tokens, mixed = shape_of(arrays, "MixerBlock_0/token_mixing/Dense_0/kernel", 2)
    classes = shape_of(arrays, "head/kernel", 2)[1] if "head/kernel" in arrays else None
    sizes = {"width": hidden, "mlp_width": shape_of(arrays, FLAX_ANCHOR, 2)[1], "tokens_mlp_width": mixed}
    fields = {"patch_size": (height, width), "channels": channels, "classes": classes, **sizes}
    return _config(arrays, r"^MixerBlock_(\d+)/", tokens, fields), bool(old)


def _config(arrays: Mapping[str, StoredArray], block: str, tokens: int, fields: dict[str, Any]) -> ViTConfig:
    """A config for the squarest grid of as many tokens; `block` is a pattern for the numbers of the blocks."""
    depth = bounded(1 + max(int(number) for number in re.findall(block, "\n".join(arrays), re.MULTILINE)))
    size = tuple(n * patch for n, patch in zip(squarest_grid(tokens), fields["patch_size"], strict=True))
    mixer = {"heads": 1, "class_token": False, "position_embedding": "none", "pooling": "avg"}
    return ViTConfig(image_size=size, depth=depth, **mixer, **fields)  # ty: ignore[invalid-argument-type]


# timm


def timm_rows(config: ViTConfig) -> list[Row]:
    """The rows in timm's names."""
    width, (tokens, mixed) = config.width, _mixed_sizes(config)
    kernel = (width, config.channels, *config.patch_size)
    rows = [Row("stem.proj.weight", "embedding/kernel", kernel, pytorch.CONVOLUTION)]
    rows.append(Row("stem.proj.bias", "embedding/bias", (width,)))
    for i in range(config.depth):
        parts = (("tokens", "token_mixing", tokens, mixed), ("channels", "mlp", width, config.mlp_width))
        for number, (name, layer, size, hidden) in enumerate(parts, 1):
            rows += pytorch.norm(f"blocks.{i}.norm{number}", f"block_{i}/norm{number}", width)
            rows += pytorch.linear(f"blocks.{i}.mlp_{name}.fc1", f"block_{i}/{layer}/fc1", hidden, size)
            rows += pytorch.linear(f"blocks.{i}.mlp_{name}.fc2", f"block_{i}/{layer}/fc2", size, hidden)
    rows += pytorch.norm("norm", "encoder_norm", width)
    return rows + (pytorch.linear("head", "head", config.classes, width) if config.classes else [])


def timm_config(arrays: Mapping[str, StoredArray], prepared: dict[str, Any]) -> ViTConfig:
    """The config that the arrays tell, with how images are prepared; timm computes the exact GELU."""
    hidden, channels, *patch = shape_of(arrays, "stem.proj.weight", 4)
    mixed, tokens = shape_of(arrays, TIMM_ANCHOR, 2)
    mlp_width = shape_of(arrays, "blocks.0.mlp_channels.fc1.weight", 2)[0]
    classes = shape_of(arrays, "head.weight", 2)[0] if "head.weight" in arrays else None
    fields = {"patch_size": tuple(patch), "channels": channels, "width": hidden, "classes": classes, **prepared}
    fields |= {"mlp_width": mlp_width, "tokens_mlp_width": mixed, "gelu": "exact", "interpolation": "bicubic"}
    return _config(arrays, r"^blocks\.(\d+)\.", tokens, fields)


def timm_plan(
    file: Mapping[str, StoredArray],
    sidecars: Sidecars,
    layout: Layout,
    modules: Sequence[str],
    default_preparation: Callable[[str], Fields],
) -> Plan:
    """The plan by which an MLP-Mixer in timm's names is read; ValueError for what is not computed here."""
    found = pytorch.collect(file, TIMM_ANCHOR, modules, r"(head|dino_head|ibot_head)\..*")
    stated, remarks = timm_stated(sidecars, False), []
    size = stated.image_size or stated.input_size
    default = default_preparation(stated.architecture or "mixer_")
    if not stated.published.get("mean"):
        remarks.append(pytorch.assumption("crop_ratio", pytorch.UNPREPARED, stated.architecture))
    stored = timm_config(found.arrays, preparation_in(stated.published, default))
    labels = class_names(stated.labels, stored.classes or 0)
    stored = stored.replace(pooling="none" if stated.pooling == "" else "avg", class_names=labels or None)
    grid = size and (size[0] // stored.patch_size[0], size[1] // stored.patch_size[1])
    if grid and math.prod(grid) == math.prod(stored.grid_size):
        stored = stored.replace(image_size=stored.image_size_of(grid))
    made = Plan(
        layout=layout,
        dialect="timm",
        prefix=f"{found.outer}{found.module}",
        stored=stored,
        arrays=found.arrays,
        unused=found.unused,
        warnings=[*stated.remarks, *remarks],
        is_grid_known=grid is not None or stored.grid_size[0] == stored.grid_size[1],
        head=("head.bias", "head.weight"),
    )
    return pytorch.without_unused(made, "")


def check_writable_by_timm(config: ViTConfig) -> None:
    """Raises ValueError unless timm can compute what the model computes."""
    size = (config.patch_size[0], config.depth, config.width)
    is_unknown = size not in _TIMM or len(set(config.patch_size)) > 1
    sizes = f"timm has no Mixer of {config.depth} blocks, {config.width} wide, for patches of {config.patch_size}"
    advice = "timm has no others. Change it with model.with_config({field}=...) where that is what you mean. "
    check_fields(config, "'timm'", _TIMM_ACCEPTED, [sizes] if is_unknown else [], advice)


def timm_architecture(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """The name of one of timm's models, and the arguments that make it this one."""
    ratios = [pytorch.mlp_ratio(n, config.width) for n in (_mixed_sizes(config)[1], config.mlp_width)]
    arguments: dict[str, Any] = {
        "img_size": list(config.image_size),
        "in_chans": config.channels,
        "num_classes": config.classes or 0,
    }
    arguments |= {"mlp_ratio": ratios, "global_pool": "avg" if config.pooling == "avg" else ""}
    return _TIMM[config.patch_size[0], config.depth, config.width], arguments
