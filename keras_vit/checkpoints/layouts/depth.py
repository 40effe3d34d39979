"""The layouts of depth models: Depth Anything (its authors' and transformers' names) and the heads of DINOv2.

The backbone's arrays have the names of its own layout, after a prefix or in a file beside the head's.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import Contents, Layout, Row, check_fields, shape_of
from keras_vit.checkpoints.layouts import huggingface, library_configs, pytorch, timm
from keras_vit.checkpoints.layouts.pytorch import CONVOLUTION, linear, mapping, number
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.layers.choices import REASSEMBLE_FACTORS
from keras_vit.models import DPTConfig, LinearDepthConfig

Fields = dict[str, Any]  # of a depth model's config


@dataclasses.dataclass(frozen=True)
class Names:
    """What a publisher calls the parts of a DPT; `{i}` counts maps from the shallowest, `{j}` from 1, `{r}` back.

    Attributes:
        backbone: What stands before the backbone's names.
        anchor: The array that only such files have.
        deepest: Whether files hold the first unit of the deepest fusion, which computes nothing.
        head: The convolutions of the end.
    """

    backbone: str
    anchor: str
    projection: str
    resized: str
    neck: str
    fusion: str
    units: tuple[str, ...]
    fusion_projection: str
    deepest: bool
    head: tuple[str, ...]
    readout: str = ""
    project: str = ""


_SCRATCH, _DECODER = "depth_head.scratch.", "decode_head."
_STAGE, _BLOCKS = "neck.reassemble_stage.layers.{i}.", "decode_head.reassemble_blocks."
NAMES = {
    "authors": Names(
        backbone="pretrained.",
        anchor="depth_head.scratch.output_conv1.weight",
        projection="depth_head.projects.{i}",
        resized="depth_head.resize_layers.{i}",
        neck=f"{_SCRATCH}layer{{j}}_rn",
        fusion=f"{_SCRATCH}refinenet{{r}}.",
        units=tuple(f"resConfUnit{n}.conv{m}" for n in (1, 2) for m in (1, 2)),
        fusion_projection="out_conv",
        deepest=True,
        head=tuple(f"{_SCRATCH}output_conv{n}" for n in ("1", "2.0", "2.2")),
    ),
    "transformers": Names(
        backbone="backbone.",
        anchor="neck.reassemble_stage.layers.0.projection.weight",
        projection=f"{_STAGE}projection",
        resized=f"{_STAGE}resize",
        neck="neck.convs.{i}",
        fusion="neck.fusion_stage.layers.{i}.",
        units=tuple(f"residual_layer{n}.convolution{m}" for n in (1, 2) for m in (1, 2)),
        fusion_projection="projection",
        deepest=True,
        head=("head.conv1", "head.conv2", "head.conv3"),
    ),
    "dinov2": Names(
        backbone="backbone.",
        anchor="decode_head.conv_depth.head.0.weight",
        projection=f"{_BLOCKS}projects.{{i}}.conv",
        resized=f"{_BLOCKS}resize_layers.{{i}}",
        neck=f"{_DECODER}convs.{{i}}.conv",
        fusion=f"{_DECODER}fusion_blocks.{{i}}.",
        units=tuple(f"res_conv_unit{n}.conv{m}.conv" for n in (1, 2) for m in (1, 2)),
        fusion_projection="project.conv",
        deepest=False,
        head=tuple(f"{_DECODER}conv_depth.head.{n}" for n in (0, 2, 4)),
        readout=f"{_BLOCKS}readout_projects.{{i}}.0",
        project=f"{_DECODER}project.conv",
    ),
}
LINEAR_ANCHOR = "decode_head.conv_depth.weight"
# The blocks that are read, by how many there are (0: the last one).
BLOCKS = {12: (2, 5, 8, 11), 24: (4, 11, 17, 23), 40: (9, 19, 29, 39)}
# What the file's name says of the scene, in metres. Nothing in the file does.
RANGES = {"nyu": 10.0, "kitti": 80.0, "hypersim": 20.0, "vkitti": 80.0}


def convolution(name: str, path: str, out: int, into: int, size: int, bias: bool = True) -> list[Row]:
    """The rows of a convolution."""
    rows = [Row(f"{name}.weight", f"{path}/kernel", (out, into, size, size), CONVOLUTION)]
    return [*rows, Row(f"{name}.bias", f"{path}/bias", (out,))] if bias else rows


def head_rows(config: Any, names: Names | None) -> list[Row]:
    """The rows of a depth head; None for the linear one."""
    width = config.backbone.width
    if names is None:
        into = 2 * width * len(config.blocks)
        return convolution(LINEAR_ANCHOR.removesuffix(".weight"), "depth_bins/scores", config.bins, into, 1)
    rows, fused, own = [], config.fusion_width, config.design == "dinov2"
    for i, channels in enumerate(config.widths):
        path, at = f"reassemble_{i}", {"i": i, "j": i + 1, "r": 4 - i}
        if own:
            rows += linear(names.readout.format(**at), f"{path}/readout_projection", width, 2 * width)
        rows += convolution(names.projection.format(**at), f"{path}/projection", channels, width, 1)
        size, name = REASSEMBLE_FACTORS[i], names.resized.format(**at)
        if size > 1:  # transposed: inputs come first there, and last in Keras
            rows += convolution(name, f"{path}/resized", channels, channels, int(size))
        elif size < 1:
            rows += convolution(name, f"{path}/resized", channels, channels, 3)
        rows += convolution(names.neck.format(**at), f"neck_{i}", fused, channels, 3, bias=False)
        fusion = names.fusion.format(**at)
        for unit, conv, part in zip((1, 1, 2, 2), (1, 2, 1, 2), names.units, strict=True):
            of_unit = convolution(f"{fusion}{part}", f"fusion_{i}/unit{unit}/conv{conv}", fused, fused, 3, not own)
            if i or unit == 2:
                rows += of_unit
            elif names.deepest:
                rows += [dataclasses.replace(row, path=None) for row in of_unit]
        rows += convolution(f"{fusion}{names.fusion_projection}", f"fusion_{i}/projection", fused, fused, 1)
    if own:
        rows += convolution(names.project, "project", fused, fused, 3)
    channels = (fused, fused // 2, config.head_width, 1)
    for i, name in enumerate(names.head):
        rows += convolution(name, f"depth_head/conv{i + 1}", channels[i + 1], channels[i], 3 if i < 2 else 1)
    return rows


# Recognition


def read(file: Mapping[str, StoredArray], hints: Mapping[str, Any]) -> Contents | None:
    """The depth model that a file holds; None for other files. `hints["name"]` is the name of the head's file."""
    found = [kind for kind, names in NAMES.items() if names.anchor in file]
    if not found and LINEAR_ANCHOR not in file:
        return None
    kind = found[0] if found else "linear"
    names = NAMES["dinov2" if kind == "linear" else kind]
    start, config, is_hub = names.backbone, hints.get("config") or {}, kind == "transformers"
    if is_hub:
        _check(config, "model_type", "depth_anything")
    inner = _backbone({name.removeprefix(start): file[name] for name in file if name.startswith(start)}, hints, is_hub)
    arrays = {f"{start}{name}": array for name, array in inner.arrays.items()}
    arrays |= {name: array for name, array in file.items() if not name.startswith(start)}
    vit: Any = inner.stored
    vit = vit.replace(classes=None, pooling="none", dynamic=True)
    if kind in ("linear", "dinov2") or mapping(config, "backbone_config").get("apply_layernorm") is False:
        vit = vit.replace(final_norm="none")
        norm = [
            f"{start}{row.name}" for row in inner.layout.rows(inner.stored) if row.path and "encoder_norm" in row.path
        ]
        inner.unused += [arrays.pop(name).name for name in norm if name in arrays]
    contents = Contents(prefix=inner.prefix, arrays=arrays, unused=inner.unused, hints=hints, notes=inner.notes)
    contents.assumed = {field: why for field, why in inner.assumed.items() if field in ("heads", "gelu")}
    fields: Fields = {"backbone": vit, **(_hub_range(config, hints) if is_hub else _range(contents, kind, hints))}
    if kind == "linear":
        bins, into, *_ = shape_of(arrays, LINEAR_ANCHOR, 4)
        layers = into // (2 * vit.width)
        if into % (2 * vit.width) or layers not in (1, 4):
            raise ValueError(f"its linear head reads {into} numbers, but the backbone's width is {vit.width}.")
        fields |= {"bins": bins, "blocks": (vit.depth - 1,) if layers == 1 else _blocks(contents, vit.depth)}
    else:
        at = [{"i": i, "j": i + 1, "r": 4 - i} for i in range(4)]
        shapes = [shape_of(arrays, f"{names.projection.format(**one)}.weight", 4) for one in at]
        if shapes[0][1] != vit.width:
            raise ValueError(f"its head is for a backbone of width {shapes[0][1]}, but this one's is {vit.width}.")
        fields |= {
            "design": "dinov2" if kind == "dinov2" else "depth_anything",
            "widths": tuple(shape[0] for shape in shapes),
            "fusion_width": shape_of(arrays, f"{names.neck.format(**at[0])}.weight", 4)[0],
            "head_width": shape_of(arrays, f"{names.head[1]}.weight", 4)[0],
        }
        stages = mapping(config, "backbone_config")
        fields["blocks"] = _hub_blocks(stages) if is_hub else _blocks(contents, vit.depth)
    described: Any = LinearDepthConfig if kind == "linear" else DPTConfig
    contents.stored = described(**fields)
    contents.dialect = f"{kind}, {inner.dialect}"
    contents.layout = _layout(None if kind == "linear" else names, start, inner.layout)
    return contents


def _layout(names: Names | None, start: str, inner: Layout) -> Layout:
    """The layout of a head beside a backbone of another layout, whose names come after `start`."""
    config_type: Any = LinearDepthConfig if names is None else DPTConfig

    def rows(config: Any) -> list[Row]:
        backbone = [dataclasses.replace(row, name=f"{start}{row.name}") for row in inner.rows(config.backbone)]
        return backbone + head_rows(config, names)

    return Layout(
        "depth",
        rows,
        read,
        _check_writable,
        lambda config, read: (config, {}),
        computed=lambda config: inner.computed(config.backbone),
        sidecars=_sidecars,
        config_type=config_type,
    )


def _backbone(arrays: Mapping[str, StoredArray], hints: Mapping[str, Any], is_hub: bool) -> Contents:
    own = {"heads": hints.get("heads"), "grid_size": hints.get("grid_size")}
    if is_hub:
        config = mapping(hints.get("config"), "backbone_config")
        inner = huggingface.LAYOUT.read(arrays, {**own, "config": config})
    else:
        inner = timm.LAYOUT.read(arrays, {**own, "architecture": "vit_base_patch14_dinov2"})
    if inner is None:
        raise ValueError("it has the head of a depth model without its backbone: pass load(backbone, head=...).")
    return inner


def _blocks(contents: Contents, depth: int) -> tuple[int, ...]:
    if depth not in BLOCKS:
        quarters = tuple(depth * n // 4 - 1 for n in (1, 2, 3, 4))
        contents.assumed["blocks"] = f"no published model has {depth} blocks; its head is taken to read {quarters}"
        return quarters
    return BLOCKS[depth]


def _range(contents: Contents, kind: str, hints: Mapping[str, Any]) -> Fields:
    """What depth means, which only the name of the file tells, or the user."""
    name, given = str(hints.get("name", "")).lower(), hints.get("max_depth")
    scenes = re.findall("|".join(sorted(RANGES, key=len, reverse=True)), name)
    pictures = "depth_anything" if kind == "authors" else "dinov2"
    if given is not None or scenes:
        return {"metric": True, "max_depth": given or RANGES[scenes[-1]], "pictures": pictures}
    if kind != "authors":
        raise ValueError(
            "its arrays do not tell how far it reaches, nor does the file's name, which has neither 'nyu' (10 m) nor "
            "'kitti' (80 m): pass max_depth=10.0 or max_depth=80.0."
        )
    if not re.search(r"depth_anything_v2_vit[sblg]\.", name):
        contents.assumed["metric"] = "nothing tells whether its depth is metric; relative depth is assumed"
    return {"metric": False, "max_depth": 1.0, "pictures": pictures}


# The JSON files of transformers

# What is computed here of what they may say.
_STATED = {"reassemble_factors": [4, 2, 1, 0.5], "head_in_index": -1}
_PREPARED: Fields = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_pad": False,
    "keep_aspect_ratio": True,
}
_PREPARED |= {"keep_aspect_ratio": True, "resample": 3, "size_divisor": None}


def _check(config: Mapping[str, Any], key: str, *expected: Any) -> Any:
    value = config.get(key, expected[0])
    if value not in expected:
        raise ValueError(f"its config.json says {key}={printable(value, 60)}; one of {[*expected]} was expected.")
    return value


def _hub_range(config: Mapping[str, Any], hints: Mapping[str, Any]) -> Fields:
    """What config.json says of depth, and preprocessor_config.json of pictures."""
    for key, value in _STATED.items():
        _check(config, key, value)
    metric = _check(config, "depth_estimation_type", "relative", "metric") == "metric"
    pictures = hints.get("preprocessor") or {}
    for key, value in (*_PREPARED.items(), ("ensure_multiple_of", mapping(config).get("patch_size", 14))):
        if pictures.get(key, value) != value:
            raise pytorch.not_done(key, pictures[key])
    size = mapping(pictures, "size")
    edges = (size.get("height", 518), size.get("width", 518))
    if not all(map(pytorch.is_length, edges)):
        raise pytorch.not_done("size", pictures["size"])
    largest = number({**config, "max_depth": config.get("max_depth") or 1}, "max_depth", 1.0)
    return {"metric": metric, "max_depth": largest, "pictures": "depth_anything_transformers", "picture_size": edges}


def _hub_blocks(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The numbers of the blocks, which transformers counts from 1."""
    stages = config.get("out_indices") or [str(name).removeprefix("stage") for name in config.get("out_features") or []]
    if len(stages) != 4 or not all(str(stage).isdecimal() and int(stage) for stage in stages):
        raise ValueError(f"its backbone_config says out_indices={printable(stages, 60)}; four numbers were expected.")
    return tuple(int(stage) - 1 for stage in stages)


def _check_writable(config: Any) -> None:
    """Raises ValueError unless transformers' DepthAnything computes what the model computes."""
    library_configs.check_writable_by_transformers(config.backbone)
    check_fields(config, "'huggingface', which would write a DepthAnything,", {"design": ("depth_anything",)})


def _sidecars(config: DPTConfig) -> dict[str, dict[str, Any]]:
    """The files beside the weights, by name."""
    vit = config.backbone
    backbone = dict(library_configs.transformers_sidecars(vit)["config.json"])
    del backbone["architectures"]
    stages = [block + 1 for block in config.blocks]
    backbone |= {"out_indices": stages, "out_features": [f"stage{n}" for n in stages]}
    backbone |= {"apply_layernorm": True, "reshape_hidden_states": False}
    stated = {
        "architectures": ["DepthAnythingForDepthEstimation"],
        "model_type": "depth_anything",
        "backbone_config": backbone,
        "depth_estimation_type": "metric" if config.metric else "relative",
        "max_depth": config.max_depth,
        "fusion_hidden_size": config.fusion_width,
        "head_hidden_size": config.head_width,
        "neck_hidden_sizes": list(config.widths),
        "reassemble_hidden_size": vit.width,
        "patch_size": vit.patch_size[0],
        "dtype": "float32",
        **_STATED,
    }
    pictures = {
        "image_processor_type": "DPTImageProcessor",
        **{key: value for key, value in _PREPARED.items() if value is not None},
        "ensure_multiple_of": vit.patch_size[0],
        "size": dict(zip(("height", "width"), config.picture_size, strict=True)),
        "rescale_factor": 1 / 255,
        "image_mean": list(vit.pixel_mean),
        "image_std": list(vit.pixel_std),
    }
    return {"config.json": stated, "preprocessor_config.json": pictures}
