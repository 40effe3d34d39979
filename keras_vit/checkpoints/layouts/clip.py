"""The layout of CLIP's image tower in the names of OpenAI's code, which open_clip has, too."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_vit._text import printable
from keras_vit.checkpoints.engine import Contents, Hints, Layout, Row, shape_of
from keras_vit.checkpoints.files.stored_array import StoredArray
from keras_vit.checkpoints.layouts.pictures import CLIP, FILTER_NAMES, of_open_clip, pictures
from keras_vit.checkpoints.layouts.pytorch import (
    Names,
    account,
    depth_of,
    find,
    fused,
    grid_oddity,
    grid_of,
    heads_of,
    image_size_in,
    linear,
    norm,
    patches,
    value_oddities,
)
from keras_vit.checkpoints.layouts.timm_architectures import HEADS
from keras_vit.models import ViTConfig

_ANCHOR = "conv1.weight"
_TABLE = "position_embedding/table"
_PAIR = r"\.(weight|bias)"
_NAMES = Names(
    model=re.compile(
        rf"conv1{_PAIR}|class_embedding|positional_embedding|(ln_pre|ln_post){_PAIR}|proj"
        rf"|transformer\.resblocks\.\d+\.((ln_1|ln_2|attn\.out_proj|mlp\.c_fc|mlp\.c_proj){_PAIR}"
        r"|attn\.in_proj_(weight|bias))"
    ),
    beside=re.compile(r"input_resolution|context_length|vocab_size|attn_mask"),
)
_POOLINGS = {"tok": "token", "token": "token", "avg": "avg"}
# What open_clip's vision_cfg may say that leaves the computation as it is read here; anything else is refused.
_HARMLESS = {"ls_init_value": None, "attentional_pool": False, "input_patchnorm": False, "no_ln_pre": False}


def _rows(config: ViTConfig) -> list[Row]:
    width, hidden = config.width, config.mlp_width
    rows = patches("conv1", config)
    rows.append(Row("class_embedding", "class_token/token", (width,)))
    rows.append(Row("positional_embedding", _TABLE, (config.position_rows, width)))
    rows += norm("ln_pre", "pre_norm", width)
    for i in range(config.depth):
        name, path = f"transformer.resblocks.{i}", f"block_{i}"
        inputs = [f"{path}/attention/{module}" for module in ("query", "key", "value")]
        rows += norm(f"{name}.ln_1", f"{path}/norm1", width)
        rows += fused(f"{name}.attn.in_proj_weight", f"{name}.attn.in_proj_bias", inputs, width, (0, 1, 2))
        rows += linear(f"{name}.attn.out_proj", f"{path}/attention/out", width, width)
        rows += norm(f"{name}.ln_2", f"{path}/norm2", width)
        rows += linear(f"{name}.mlp.c_fc", f"{path}/mlp/fc1", hidden, width)
        rows += linear(f"{name}.mlp.c_proj", f"{path}/mlp/fc2", width, hidden)
    rows += norm("ln_post", "encoder_norm", width)
    if config.projection:
        rows.append(Row("proj", "projection/kernel", (width, config.projection)))
    return rows


def _read(file: Mapping[str, StoredArray], hints: Hints) -> Contents | None:
    names = [
        name for name in file if not name.endswith(_ANCHOR) or f"{name.removesuffix(_ANCHOR)}class_embedding" in file
    ]
    place = find(names, _ANCHOR, ("visual.",))
    if place is None:
        return None
    arrays, unused = account(file, place, _NAMES)
    told: list[str] = []
    if hints.architecture is not None:
        raise ValueError(
            f"it has OpenAI's names, but architecture={hints.architecture!r} is a name of timm's: leave it out, and "
            "put the repository's open_clip_config.json beside the file."
        )
    model = _mapping((hints.open_clip or {}).get("model_cfg"))
    vision = _mapping(model.get("vision_cfg"))
    width, channels, *patch = shape_of(arrays, _ANCHOR, 4)
    block = "transformer.resblocks.0."
    rows = shape_of(arrays, "positional_embedding", 2)[0]
    position, grid, square = grid_of(rows, image_size_in(vision.get("image_size")), tuple(patch), 1, 0, told)
    head_width = vision.get("head_width", 64 if vision else None)
    if head_width is not None and (type(head_width) is not int or head_width < 1):
        raise ValueError(f"its open_clip_config.json says head_width={printable(head_width, 60)}; expected an integer.")
    stated = None if head_width is None else width // head_width
    if hints.open_clip is None:
        told.append(
            "no open_clip_config.json is beside it: it is read as OpenAI's own, with QuickGELU; open_clip's others "
            "have the exact GELU"
        )
    config = ViTConfig(
        image_size=(grid[0] * patch[0], grid[1] * patch[1]),
        patch_size=tuple(patch),
        width=width,
        depth=depth_of(arrays, "transformer.resblocks."),
        heads=heads_of(width, hints.heads, stated, told, HEADS),
        mlp_width=shape_of(arrays, f"{block}mlp.c_fc.weight", 2)[0],
        channels=channels,
        patch_bias="conv1.bias" in arrays,
        position_embedding=position,
        interpolation="bicubic",
        pre_norm=True,
        gelu=_gelu(model, vision, hints.open_clip is None),
        layer_norm_epsilon=_epsilon(vision),
        pooling=_pooling(vision),
        projection=shape_of(arrays, "proj", 2)[1] if "proj" in arrays else None,
        **of_open_clip(_mapping((hints.open_clip or {}).get("preprocess_cfg")), pictures(CLIP, "shortest", 1.0), told),
    )
    told += value_oddities(arrays, unused)
    told += [] if square else [grid_oddity(config.grid_size)]
    dialect = "OpenAI" if hints.open_clip is None else "open_clip"
    return Contents(LAYOUT, dialect, place.prefix, config, arrays, unused, told, square)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _gelu(model: Mapping[str, Any], vision: Mapping[str, Any], of_openai: bool) -> str:
    if of_openai or model.get("quick_gelu"):
        return "quick"
    return "tanh" if _mapping(vision.get("act_kwargs")).get("approximate") == "tanh" else "exact"


def _epsilon(vision: Mapping[str, Any]) -> float:
    value = _mapping(vision.get("norm_kwargs")).get("eps", 1e-5)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"its open_clip_config.json says norm_kwargs.eps={printable(value, 60)}; expected a number.")
    return float(value)


def _pooling(vision: Mapping[str, Any]) -> str:
    for key, usual in _HARMLESS.items():
        if vision.get(key, usual) not in (usual, None):
            raise ValueError(
                f"its open_clip_config.json says {key}={printable(vision[key], 60)}, which is not known here."
            )
    kind = vision.get("pool_type", "tok")
    after = vision.get("final_ln_after_pool", False)
    if not isinstance(kind, str) or kind not in _POOLINGS or (kind != "tok" and after):
        raise ValueError(f"its open_clip_config.json says pool_type={printable(kind, 60)}, which is not known here.")
    return _POOLINGS[kind]


def _check_writable(config: ViTConfig) -> None:
    for field, accepted in {
        "stem_stages": (None,),
        "class_token": (True,),
        "distillation_token": (False,),
        "register_tokens": (0,),
        "position_embedding": ("learned", "learned_patches"),
        "rotary_embedding": (None,),
        "pre_norm": (True,),
        "attention_bias": ("all",),
        "attention_norm": (False,),
        "mlp": ("plain",),
        "layer_scale": (None,),
        "final_norm": ("tokens",),
        "pooling": ("token", "none"),
        "representation_size": (None,),
        "classes": (None,),
    }.items():
        if getattr(config, field) not in accepted:
            raise ValueError(
                f"The layout 'clip' is for models with {field} in {accepted}, but this one has "
                f"{getattr(config, field)!r}. Save it as .keras."
            )


def _restate(config: ViTConfig, read: Callable[[str], np.ndarray]) -> tuple[ViTConfig, dict[str, np.ndarray]]:
    """Gives the class token the position that it has there: zero, where the model has none."""
    if config.position_embedding == "learned":
        return config, {}
    table = read(_TABLE)
    rows = np.concatenate([np.zeros_like(table[:, :1]), table], axis=1)
    return config.replace(position_embedding="learned"), {_TABLE: rows}


def _sidecars(config: ViTConfig) -> dict[str, dict[str, Any]]:
    vision = {
        "image_size": list(config.image_size),
        "layers": config.depth,
        "width": config.width,
        "head_width": config.width // config.heads,
        "patch_size": config.patch_size[0],
        "mlp_ratio": config.mlp_width / config.width,
    }
    if config.gelu == "tanh":
        vision["act_kwargs"] = {"approximate": "tanh"}
    if config.layer_norm_epsilon != 1e-5:
        vision["norm_kwargs"] = {"eps": config.layer_norm_epsilon}
    prepared = {
        "mean": list(config.pixel_mean),
        "std": list(config.pixel_std),
        "interpolation": FILTER_NAMES[config.filter],
        "resize_mode": config.resize,
    }
    model = {"embed_dim": config.projection, "quick_gelu": config.gelu == "quick", "vision_cfg": vision}
    return {"open_clip_config.json": {"model_cfg": model, "preprocess_cfg": prepared}}


LAYOUT = Layout("clip", _rows, lambda config: {}, _read, _check_writable, _restate, sidecars=_sidecars)
