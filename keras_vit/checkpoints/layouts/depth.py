"""The layouts of depth models: Depth Anything (its authors' and transformers' names) and the heads of DINOv2.

The backbone's arrays have the names of its own layout, after a prefix or in a file beside the head's.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import Layout, Plan, Remark, Row, check_fields, having, shape_of
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import dense, huggingface, library_configs, timm
from keras_vit.checkpoints.layouts.pytorch import CONVOLUTION, linear
from keras_vit.checkpoints.layouts.sidecars import Fields, is_length, mapping, not_done, number
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.layers.choices import REASSEMBLE_FACTORS
from keras_vit.models import DPTConfig, LinearDepthConfig, ViTConfig
from keras_vit.models.dense_config import WITHOUT_TOP


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


def _head_rows(config: Any, names: Names | None) -> list[Row]:
    """The rows of a depth head; None for the linear one."""
    width = config.backbone.width
    if names is None:
        into = 2 * width * len(config.blocks)
        return convolution(LINEAR_ANCHOR.removesuffix(".weight"), "depth_bins/scores", config.bins, into, 1)
    rows, fused, is_dinov2 = [], config.fusion_width, config.design == "dinov2"
    for i, channels in enumerate(config.widths):
        path, at = f"reassemble_{i}", {"i": i, "j": i + 1, "r": 4 - i}
        if is_dinov2:
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
            of_unit = convolution(
                f"{fusion}{part}", f"fusion_{i}/unit{unit}/conv{conv}", fused, fused, 3, not is_dinov2
            )
            if i or unit == 2:
                rows += of_unit
            elif names.deepest:
                rows += [dataclasses.replace(row, path=None) for row in of_unit]
        rows += convolution(f"{fusion}{names.fusion_projection}", f"fusion_{i}/projection", fused, fused, 1)
    if is_dinov2:
        rows += convolution(names.project, "project", fused, fused, 3)
    channels = (fused, fused // 2, config.head_width, 1)
    for i, name in enumerate(names.head):
        rows += convolution(name, f"depth_head/conv{i + 1}", channels[i + 1], channels[i], 3 if i < 2 else 1)
    return rows


# Reading


def _kind(names: Collection[str]) -> str:
    """The key of `NAMES`, or `"linear"`."""
    return next((kind for kind, known in NAMES.items() if known.anchor in names), "linear")


def config(
    arrays: Mapping[str, StoredArray], sidecars: Sidecars, backbone: ViTConfig
) -> tuple[DPTConfig | LinearDepthConfig, list[Remark]]:
    """The config that the arrays of a head and the JSON files tell, and what was assumed.

    Raises ValueError where the head is of another backbone, or nothing tells how far it reaches.
    """
    kind, is_hub = _kind(arrays), _kind(arrays) == "transformers"
    names = NAMES["dinov2" if kind == "linear" else kind]
    is_dinov2 = kind in ("linear", "dinov2")
    vit = backbone.replace(**WITHOUT_TOP, dynamic=True)
    if is_dinov2 or mapping(sidecars.config, "backbone_config").get("apply_layernorm") is False:
        vit = vit.replace(final_norm="none")
    fields: Fields = {"backbone": vit, "pictures": "dinov2" if is_dinov2 else "depth_anything"}
    remarks: list[Remark] = []
    if is_hub:
        if sidecars.max_depth is not None:
            raise ValueError("its config.json says how far it reaches. Leave max_depth=... out, or change the model.")
        fields |= _stated(sidecars.config, sidecars.preprocessor or {})
    else:
        reach, remarks = _range(is_dinov2, sidecars)
        fields |= reach
    blocks, of_blocks = _blocks(vit.depth)
    if kind == "linear":
        fields["bins"], into, *_ = shape_of(arrays, LINEAR_ANCHOR, 4)
        if into not in (2 * vit.width, 8 * vit.width):
            raise ValueError(f"it reads {into} numbers of a place, one or four times twice the width {vit.width}.")
        if into == 2 * vit.width:  # it reads the last block alone
            return LinearDepthConfig(**fields, blocks=(vit.depth - 1,)), remarks
        return LinearDepthConfig(**fields, blocks=blocks), [*remarks, *of_blocks]
    shapes = [shape_of(arrays, f"{names.projection.format(i=i)}.weight", 4) for i in range(4)]
    if shapes[0][1] != vit.width:
        raise ValueError(f"its head is for a backbone of width {shapes[0][1]}, but this one has {vit.width}.")
    fields |= {
        "design": "dinov2" if is_dinov2 else "depth_anything",
        "widths": tuple(shape[0] for shape in shapes),
        "fusion_width": shape_of(arrays, f"{names.neck.format(i=0, j=1)}.weight", 4)[0],
        "head_width": shape_of(arrays, f"{names.head[1]}.weight", 4)[0],
    }
    if is_hub:
        return DPTConfig(**fields), remarks
    return DPTConfig(**fields, blocks=blocks), [*remarks, *of_blocks]


def plan(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """The plan by which a depth model, or its head beside a backbone, is read; ValueError if it cannot be computed."""
    kind = _kind(file)
    names = NAMES["dinov2" if kind == "linear" else kind]
    inside = {name.removeprefix(names.backbone): a for name, a in file.items() if name.startswith(names.backbone)}
    if sidecars.backbone is None:
        backbone = _backbone(inside, sidecars, names.backbone, kind == "transformers")
    elif inside or kind not in ("linear", "dinov2"):
        raise ValueError("it is no head, but a whole depth model: leave head=... out.")
    else:
        backbone = sidecars.backbone
    arrays = {name: array for name, array in file.items() if not name.startswith(names.backbone)}
    stored, remarks = config(arrays, sidecars, backbone.stored)
    rows = functools.partial(_head_rows, names=None if kind == "linear" else names)
    made = dense.with_head(backbone, stored, rows, arrays, f"depth, {kind}")
    return dataclasses.replace(made, warnings=[*made.warnings, *remarks])


def _backbone(arrays: dict[str, StoredArray], sidecars: Sidecars, start: str, is_hub: bool) -> Plan:
    """The plan of the backbone in a file of both, whose names come after `start`; `is_hub` for that of transformers.

    Raises ValueError if there is no backbone of a known kind.
    """
    like = None if sidecars.architecture else sidecars.like
    known = Sidecars(like=like, heads=sidecars.heads, grid_size=sidecars.grid_size)
    if is_hub:
        _check(sidecars.config, "model_type", "depth_anything")
        layout = huggingface.LAYOUT
        known = dataclasses.replace(known, config=mapping(sidecars.config, "backbone_config"))
    else:  # of Facebook's models, any of which tells that heads have 64 channels
        layout = timm.LAYOUT
        known = dataclasses.replace(known, config={"architecture": "vit_base_patch14_dinov2"})
    if not layout.recognise(arrays, known):
        raise ValueError("it has no backbone of a known kind. A head alone: keras_vit.load(backbone, head=file).")
    found = layout.plan(arrays, known)
    inner = found.layout
    return dataclasses.replace(
        found,
        arrays={f"{start}{name}": array for name, array in found.arrays.items()},
        layout=dataclasses.replace(inner, rows=lambda vit: _renamed(inner.rows(vit), start)),
    )


def _renamed(rows: list[Row], start: str) -> list[Row]:
    return [dataclasses.replace(row, name=f"{start}{row.name}") for row in rows]


def _blocks(depth: int) -> tuple[tuple[int, ...], list[Remark]]:
    """The blocks that a head reads which reads four, and what was assumed."""
    if depth in BLOCKS:
        return BLOCKS[depth], []
    quarters = tuple(depth * n // 4 - 1 for n in (1, 2, 3, 4))
    text = f"no published model has {depth} blocks; its head is taken to read {quarters}"
    return quarters, [Remark(text, "blocks", "assumed")]


def _range(is_dinov2: bool, sidecars: Sidecars) -> tuple[Fields, list[Remark]]:
    """What depth means: what the user says of it, else what the name of the file suggests; nothing in the file does.

    Returns fields of the config, and remarks on what was assumed. Raises ValueError if nobody tells, or `max_depth`
    makes no sense.
    """
    given, name = sidecars.max_depth, pathlib.Path(sidecars.name).name.lower()
    if given == "relative" and not is_dinov2:
        return {"metric": False, "max_depth": 1.0}, []
    if given is not None:
        is_distance = isinstance(given, (int, float)) and not isinstance(given, bool) and 0 < given < float("inf")
        if not is_distance:
            wanted = "a number of metres" if is_dinov2 else "a number of metres or 'relative'"
            raise ValueError(f"max_depth must be {wanted}, but {given!r} was given.")
        return {"metric": True, "max_depth": float(given)}, []
    scene = re.search("vkitti|hypersim|nyu|kitti", name)
    if scene is not None:
        metres = RANGES[scene[0]]
        suggested = f"its name has {scene[0]!r}, so its depth is taken to reach {metres:g} m"
        text = f"{suggested}; max_depth={metres:g} or another number settles it"
        return {"metric": True, "max_depth": metres}, [Remark(text, "max_depth", "assumed")]
    if is_dinov2:
        raise ValueError(
            "nothing in it tells how far it reaches. Pass max_depth: 10 for heads trained on NYU, 80 for KITTI."
        )
    relative: Fields = {"metric": False, "max_depth": 1.0}
    if re.fullmatch(r"depth_anything_v2_vit[sblg]\.\w+", name):
        return relative, []
    unknown = "its name has neither 'hypersim' nor 'vkitti'; its depth is taken to be relative"
    text = f"{unknown}; max_depth='relative' or a number of metres settles it"
    return relative, [Remark(text, "metric", "assumed")]


# The JSON files of transformers

# What is computed here of what they may say.
_STATED = {"reassemble_factors": [4, 2, 1, 0.5], "head_in_index": -1}
_PREPARED: Fields = dict.fromkeys(("do_resize", "do_rescale", "do_normalize", "keep_aspect_ratio"), True)
_PREPARED |= {"do_pad": False, "resample": 3, "size_divisor": None}


def _check(config: Mapping[str, Any], key: str, *expected: Any) -> Any:
    value = config.get(key, expected[0])
    if value not in expected:
        raise ValueError(f"its config.json says {key}={printable(value, 60)}; one of {[*expected]} was expected.")
    return value


def _stated(config: Mapping[str, Any], pictures: Mapping[str, Any]) -> Fields:
    """The fields that config.json says of depth, and preprocessor_config.json of preprocessing.

    Raises ValueError for what is not computed here.
    """
    for key, value in _STATED.items():
        _check(config, key, value)
    backbone = mapping(config, "backbone_config")
    for key, value in {**_PREPARED, "ensure_multiple_of": backbone.get("patch_size", 14)}.items():
        if pictures.get(key, value) != value:
            raise not_done(key, pictures[key])
    size = mapping(pictures, "size")
    edges = (size.get("height", 518), size.get("width", 518))
    if not all(map(is_length, edges)):
        raise not_done("size", pictures["size"])
    # transformers counts blocks from 1.
    stages = backbone.get("out_indices")
    if not stages:
        stages = [str(name).removeprefix("stage") for name in backbone.get("out_features") or []]
    if len(stages) != 4 or not all(str(stage).isdecimal() and int(stage) for stage in stages):
        given = f"its config.json says out_indices={printable(stages, 60)}"
        raise ValueError(f"{given}; four numbers of blocks were expected, in a config.json beside the file.")
    return {
        "metric": _check(config, "depth_estimation_type", "relative", "metric") == "metric",
        "max_depth": number(config, "max_depth", 1.0) if config.get("max_depth") else 1.0,
        "pictures": "depth_anything_transformers",
        "picture_size": edges,
        "blocks": tuple(int(stage) - 1 for stage in stages),
    }


def to_write(config: Any) -> Layout:
    """The layout in which transformers reads a model; ValueError where it cannot."""
    problems = [] if float(config.max_depth).is_integer() else ["there max_depth is a whole number"]
    what = "'huggingface', which would write a DepthAnything,"
    check_fields(config, what, {"design": ("depth_anything",)}, problems)
    vit, names, below = config.backbone, NAMES["transformers"], huggingface.LAYOUT
    below.check_writable(vit)
    if library_configs.family_to_write(vit) not in ("dinov2", "dinov2_with_registers"):
        raise ValueError("transformers has no DepthAnything on another backbone than DINOv2. Save the model as .keras.")

    def restate(config: DPTConfig, read: Callable[[str], Any]) -> tuple[DPTConfig, dict[str, Any]]:
        stored, changed = below.restate(config.backbone, read)
        return config.replace(backbone=stored), changed

    return Layout(
        "huggingface",
        lambda config: _renamed(below.rows(config.backbone), names.backbone) + _head_rows(config, names),
        restate=restate,
        sidecars=_sidecars,
        config_type=DPTConfig,
    )


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
        "max_depth": int(config.max_depth),
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


LAYOUT = Layout(
    "depth",
    functools.partial(_head_rows, names=None),
    having(LINEAR_ANCHOR, *(names.anchor for names in NAMES.values())),
    plan,
)
