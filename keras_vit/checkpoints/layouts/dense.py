"""The layouts of dense models other than EoMT: linear heads for segmentation, Depth Anything, and DINOv2's depth heads.

The backbone's arrays have the names of its own layout, after a prefix or in a file of their own beside the head's.
"""

import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import Layout, Notice, Plan, Row, having, prefixed, shape_of, with_grid
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import huggingface, jsons, timm
from keras_vit.checkpoints.layouts.jsons import Fields
from keras_vit.checkpoints.layouts.pytorch import CONVOLUTION, linear
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.layers.choices import REASSEMBLE_FACTORS
from keras_vit.models import DPTConfig, LinearDepthConfig, LinearSegmenterConfig, ViTConfig
from keras_vit.models.dense_config import WITHOUT_TOP
from keras_vit.preprocessing import LABEL_SETS, label_set


def with_head(
    backbone: Plan,
    config: Any,
    rows: Callable[[Any], list[Row]],
    arrays: Mapping[str, StoredArray],
    title: str,
    unused: Sequence[str] = (),
) -> Plan:
    """Returns the plan of a dense model: that of its backbone, with the head's rows and arrays added."""
    below = backbone.layout
    wanted = {row.name for row in below.rows(config.backbone)}
    kept = {name: array for name, array in backbone.arrays.items() if name in wanted}
    left = sorted(array.name for name, array in backbone.arrays.items() if name not in wanted)
    layout = Layout(
        title,
        lambda config: [*below.rows(config.backbone), *rows(config)],
        computed=lambda config: below.computed(config.backbone),
        advice="",
        config_type=type(config),
    )
    # Warnings on the size at which the backbone is used by itself do not hold here.
    warnings = [warning for warning in backbone.warnings if warning.field != "image_size"]
    return dataclasses.replace(
        backbone,
        layout=layout,
        dialect=title,
        stored=config,
        image_size=None,  # of the backbone by itself
        arrays={**kept, **arrays},
        unused=[*backbone.unused, *left, *unused],
        warnings=[dataclasses.replace(r, kind="note") if r.kind == "assumed" else r for r in warnings],
    )


def _check_fits(reads: int, *known: int) -> None:
    """Raises ValueError unless a head reads as many numbers of each patch as its backbone has."""
    if reads not in known:
        wanted = " or ".join(map(str, known))
        raise ValueError(f"The head reads {reads} numbers per patch, but this backbone has {wanted}. Pass its own.")


def without_top(backbone: Plan) -> ViTConfig:
    """Returns the config of a backbone without pooling and head, for pictures of any size."""
    if not isinstance(backbone.stored, ViTConfig):
        raise ValueError(f"The backbone must be a Vision Transformer, but is a {backbone.stored.model}.")
    return backbone.stored.replace(**WITHOUT_TOP, dynamic=True)


def with_start(plan: Plan, start: str) -> Plan:
    """Returns the plan of a backbone in a file where `start` stands before its names."""
    inner = plan.layout
    return dataclasses.replace(
        plan,
        arrays={f"{start}{name}": array for name, array in plan.arrays.items()},
        layout=dataclasses.replace(inner, rows=lambda vit: prefixed(start, inner.rows(vit))),
    )


# Linear heads for segmentation, of DINOv2 and DINOv3

_BACKBONE = "backbone."  # in files that mmsegmentation has saved
_MULTISCALE = 4  # how many of the last blocks DINOv2's larger heads read


# What the publishers of linear heads call the convolution of 1 x 1 and the batch normalisation.
HEADS = {
    "dinov2": ("decode_head.conv_seg", "decode_head.bn"),
    "dinov3": ("segmentation_model.1.conv", "segmentation_model.1.batchnorm_layer"),
}


def _segmentation_rows(config: LinearSegmenterConfig, matrix: str, norm: str) -> list[Row]:
    into = config.backbone.width * len(config.blocks)
    parts = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    rows = [Row(f"{norm}.{part}", f"head_norm/{path}", (into,)) for part, path in parts.items()]
    return rows + _convolution(matrix, "head", config.classes, into, 1)


def plan_of_segmentation(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """Returns the plan of a linear head and its backbone, which is in the same file or is `sidecars.backbone`."""
    kind, (matrix, norm) = next(item for item in HEADS.items() if f"{item[1][0]}.weight" in file)
    backbone, arrays = sidecars.backbone, dict(file)
    if backbone is None:
        inside = {name.removeprefix(_BACKBONE): a for name, a in file.items() if name.startswith(_BACKBONE)}
        arrays = {name: array for name, array in file.items() if not name.startswith(_BACKBONE)}
        known = Sidecars(like=sidecars.like, grid_size=sidecars.grid_size, image_size=sidecars.image_size)
        if not timm.recognise(inside, known):
            raise ValueError("The file is a head. Use load(backbone, head=...), or put both files in one folder.")
        backbone = with_grid(timm.plan(inside, known), sidecars.grid_size, sidecars.name)
    vit = without_top(backbone)
    classes, into, *_ = shape_of(arrays, f"{matrix}.weight", 4)
    blocks = into // vit.width
    fields: Fields = {"pictures": kind}
    _check_fits(into, vit.width, *([_MULTISCALE * vit.width] if kind == "dinov2" and vit.depth >= _MULTISCALE else []))
    if kind == "dinov3":
        fields["dropout"] = 0.1
    elif blocks == _MULTISCALE:
        fields |= {"short_side": 640, "crop_size": 640, "stride": 320}
    data_set = re.search("|".join(LABEL_SETS), os.path.basename(sidecars.name).lower())  # whose classes these may be
    labels = label_set(data_set[0]).names if data_set else ()
    stored = LinearSegmenterConfig(
        backbone=vit,
        classes=classes,
        class_names=labels if len(labels) == classes else None,
        blocks=tuple(range(vit.depth - blocks, vit.depth)),
        **fields,
    )
    counter = f"{norm}.num_batches_tracked"
    unused = [arrays.pop(counter).name] if counter in arrays else []
    rows = functools.partial(_segmentation_rows, matrix=matrix, norm=norm)
    return with_head(backbone, stored, rows, arrays, "linear segmentation", unused)


_IS_LINEAR = having(*(f"{matrix}.weight" for matrix, _ in HEADS.values()))
LINEAR = Layout("linear segmentation", recognise=_IS_LINEAR, plan=plan_of_segmentation)


# Depth: names


_SCRATCH, _DECODER = "depth_head.scratch.", "decode_head."
_STAGE, _BLOCKS = "neck.reassemble_stage.layers.{i}.", "decode_head.reassemble_blocks."
_FUSION = {
    "authors": f"{_SCRATCH}refinenet{{r}}.",
    "transformers": "neck.fusion_stage.layers.{i}.",
    "dinov2": f"{_DECODER}fusion_blocks.{{i}}.",
}
# What publishers call the parts of a DPT, by our paths, and what stands before the backbone's names. `{i}` counts maps
# from the shallowest, `{j}` from 1, `{r}` back; `{n}` and `{m}` are the numbers of a unit and its convolution.
DPT_NAMES: dict[str, dict[str, str]] = {
    "authors": {
        "backbone": "pretrained.",
        "reassemble_{i}/projection": "depth_head.projects.{i}",
        "reassemble_{i}/resized": "depth_head.resize_layers.{i}",
        "neck_{i}": f"{_SCRATCH}layer{{j}}_rn",
        "fusion_{i}/unit{n}/conv{m}": f"{_FUSION['authors']}resConfUnit{{n}}.conv{{m}}",
        "fusion_{i}/projection": f"{_FUSION['authors']}out_conv",
        **{f"depth_head/conv{n}": f"{_SCRATCH}output_conv{name}" for n, name in ((1, "1"), (2, "2.0"), (3, "2.2"))},
    },
    "transformers": {
        "backbone": "backbone.",
        "reassemble_{i}/projection": f"{_STAGE}projection",
        "reassemble_{i}/resized": f"{_STAGE}resize",
        "neck_{i}": "neck.convs.{i}",
        "fusion_{i}/unit{n}/conv{m}": f"{_FUSION['transformers']}residual_layer{{n}}.convolution{{m}}",
        "fusion_{i}/projection": f"{_FUSION['transformers']}projection",
        **{f"depth_head/conv{n}": f"head.conv{n}" for n in (1, 2, 3)},
    },
    "dinov2": {
        "backbone": "backbone.",
        "reassemble_{i}/readout_projection": f"{_BLOCKS}readout_projects.{{i}}.0",
        "reassemble_{i}/projection": f"{_BLOCKS}projects.{{i}}.conv",
        "reassemble_{i}/resized": f"{_BLOCKS}resize_layers.{{i}}",
        "neck_{i}": f"{_DECODER}convs.{{i}}.conv",
        "fusion_{i}/unit{n}/conv{m}": f"{_FUSION['dinov2']}res_conv_unit{{n}}.conv{{m}}.conv",
        "fusion_{i}/projection": f"{_FUSION['dinov2']}project.conv",
        "project": f"{_DECODER}project.conv",
        **{f"depth_head/conv{n}": f"{_DECODER}conv_depth.head.{2 * (n - 1)}" for n in (1, 2, 3)},
    },
}
# The authors' names of Depth Anything 3: V2's with another beginning, and a second end for the sky.
_DA3, _DA3_MODELS = "depth_anything_3", {"da3mono-large": False, "da3metric-large": True}  # whether it is metric
DPT_NAMES[_DA3] = {path: name.replace("depth_head.", "model.head.") for path, name in DPT_NAMES["authors"].items()}
DPT_NAMES[_DA3]["backbone"] = "model.backbone.pretrained."
DPT_NAMES[_DA3] |= {f"depth_head/sky_conv{n}": f"model.head.scratch.sky_output_conv2.{2 * n - 4}" for n in (2, 3)}
# Of its backbone: DINOv2's positions, though it has no mask token, by which DINOv2's files are known; and PyTorch's
# default of the last normalisation, unlike in the blocks.
_OF_DA3: Fields = {"interpolation": "bicubic_offset", "final_norm_epsilon": 1e-5}
_FIRST = {kind: f"{names['reassemble_{i}/projection']}.weight".format(i=0) for kind, names in DPT_NAMES.items()}
LINEAR_ANCHOR = "decode_head.conv_depth.weight"
# The blocks that are read, by how many there are (0: the last one).
BLOCKS = {12: (2, 5, 8, 11), 24: (4, 11, 17, 23), 40: (9, 19, 29, 39)}
# What the file's name says of the scene, in metres. Nothing in the file does.
RANGES = {"nyu": 10.0, "kitti": 80.0, "hypersim": 20.0, "vkitti": 80.0}

# Depth: reading


def _convolution(name: str, path: str, out: int, into: int, size: int, bias: bool = True) -> list[Row]:
    rows = [Row(f"{name}.weight", f"{path}/kernel", (out, into, size, size), CONVOLUTION)]
    return [*rows, Row(f"{name}.bias", f"{path}/bias", (out,))] if bias else rows


def _linear_depth_rows(config: LinearDepthConfig) -> list[Row]:
    into = 2 * config.backbone.width * len(config.blocks)
    return _convolution(LINEAR_ANCHOR.removesuffix(".weight"), "depth_bins/scores", config.bins, into, 1)


def fused_rows(config: Any, names: Mapping[str, str], reads_token: bool, is_whole: bool = False) -> list[Row]:
    """Returns the rows of a DPT up to its last map; `is_whole`: with the deepest unit, which is unused."""
    width, fused = config.backbone.width, config.fusion_width
    rows: list[Row] = []

    def add(path: str, out: int, into: int, size: int, bias: bool = True, computes: bool = True, **at: int) -> None:
        found = _convolution(names[path].format(**at), path.format(**at), out, into, size, bias)
        rows.extend(found if computes else [dataclasses.replace(row, path=None) for row in found])

    for i, channels in enumerate(config.widths):
        if reads_token:
            path = "reassemble_{i}/readout_projection"
            rows += linear(names[path].format(i=i), path.format(i=i), width, 2 * width)
        add("reassemble_{i}/projection", channels, width, 1, i=i)
        factor = REASSEMBLE_FACTORS[i]
        if factor != 1:  # a transposed convolution has its inputs first there, and last in Keras
            add("reassemble_{i}/resized", channels, channels, int(factor) if factor > 1 else 3, i=i)
        add("neck_{i}", fused, channels, 3, bias=False, i=i, j=i + 1)
        for n, m in ((1, 1), (1, 2), (2, 1), (2, 2)):
            used = i > 0 or n == 2
            if used or is_whole:
                add("fusion_{i}/unit{n}/conv{m}", fused, fused, 3, not reads_token, used, i=i, r=4 - i, n=n, m=m)
        add("fusion_{i}/projection", fused, fused, 1, i=i, r=4 - i)
    if reads_token:
        add("project", fused, fused, 3)
    return rows


def _dpt_rows(config: DPTConfig, names: Mapping[str, str]) -> list[Row]:
    rows, half = (
        fused_rows(config, names, config.design == "dinov2", config.design == "depth_anything"),
        config.fusion_width // 2,
    )
    sizes = {
        "conv1": (half, config.fusion_width, 3),
        "conv2": (config.head_width, half, 3),
        "conv3": (1, config.head_width, 1),
    }
    sizes |= {f"sky_{name}": sizes[name] for name in ("conv2", "conv3") if config.design == _DA3}
    for name, size in sizes.items():
        rows += _convolution(names[f"depth_head/{name}"], f"depth_head/{name}", *size)
    return rows


def blocks_of(depth: int, known: Mapping[int, tuple[int, ...]]) -> tuple[tuple[int, ...], list[Notice]]:
    """Returns the blocks that a head reads, by how many there are, and a warning where they are not known."""
    if depth in known:
        return known[depth], []
    blocks = tuple(depth * n // 4 - 1 for n in (1, 2, 3, 4))
    text = f"the blocks that the head reads are unknown for {depth} blocks, {blocks} are assumed"
    return blocks, [Notice(text, "blocks", "assumed")]


def _depth_config(
    arrays: Mapping[str, StoredArray], kind: str, sidecars: Sidecars, vit: ViTConfig
) -> tuple[DPTConfig | LinearDepthConfig, list[Notice]]:
    """Returns the config that the arrays of a head and the JSON files tell, and warnings on what was assumed."""
    is_hub, is_dinov2 = kind == "transformers", kind in ("linear", "dinov2")
    if is_dinov2 or jsons.mapping(sidecars.config, "backbone_config").get("apply_layernorm") is False:
        vit = vit.replace(final_norm="none")
    fields: Fields = {"backbone": vit, "pictures": "dinov2" if is_dinov2 else "depth_anything"}
    warnings: list[Notice] = []
    if is_hub:
        if sidecars.max_depth is not None:
            raise ValueError(f"max_depth is in config.json: leave max_depth={sidecars.max_depth!r} out.")
        pictures = sidecars.preprocessor or {}
        means = jsons.means_in(pictures.get("image_mean"), pictures.get("image_std"))
        fields |= _fields_of_metadata(sidecars.config, pictures) | {"backbone": vit.replace(**means)}
    elif kind == _DA3:
        if sidecars.max_depth is not None:
            raise ValueError(f"Depth Anything 3 has no largest depth: leave max_depth={sidecars.max_depth!r} out.")
        name = sidecars.config.get("model_name")
        metric = _DA3_MODELS[jsons.value_in({"model_name": name or "da3mono-large"}, "model_name", _DA3_MODELS)]
        fields |= {"backbone": vit.replace(**_OF_DA3), "pictures": _DA3, "metric": metric}
        fields["picture_size"] = (504, 504)
        text = "without a config.json that names the model, depth without a unit is assumed (da3mono-large)"
        warnings = [] if name else [Notice(text, "metric", "assumed")]
    else:
        reach, warnings = _range(is_dinov2, sidecars)
        fields |= reach
    if kind == "linear":
        fields["bins"], into, *_ = shape_of(arrays, LINEAR_ANCHOR, 4)
        _check_fits(into, 2 * vit.width, 2 * _MULTISCALE * vit.width)
        if into == 2 * vit.width:  # it reads the last block alone
            return LinearDepthConfig(**fields, blocks=(vit.depth - 1,)), warnings
    if not is_hub:
        fields["blocks"], assumed = blocks_of(vit.depth, BLOCKS)
        warnings = [*warnings, *assumed]
    if kind == "linear":
        return LinearDepthConfig(**fields), warnings
    names = DPT_NAMES[kind]
    shapes = [shape_of(arrays, f"{names['reassemble_{i}/projection']}.weight".format(i=i), 4) for i in range(4)]
    _check_fits(shapes[0][1], vit.width)
    fields |= {
        "design": kind if kind in ("dinov2", _DA3) else "depth_anything",
        "widths": tuple(shape[0] for shape in shapes),
        "fusion_width": shape_of(arrays, f"{names['neck_{i}']}.weight".format(i=0, j=1), 4)[0],
        "head_width": shape_of(arrays, f"{names['depth_head/conv2']}.weight", 4)[0],
    }
    return DPTConfig(**fields), warnings


def plan_of_depth(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """Returns the plan of a depth model, or of a head whose backbone is `sidecars.backbone`."""
    kind = next((kind for kind, first in _FIRST.items() if first in file), "linear")
    start = DPT_NAMES["dinov2" if kind == "linear" else kind]["backbone"]
    inside = {name.removeprefix(start): array for name, array in file.items() if name.startswith(start)}
    if sidecars.backbone is None:
        backbone = _backbone(inside, sidecars, start, kind == "transformers")
    elif inside or kind not in ("linear", "dinov2"):
        raise ValueError("head must be a file with only a head, but it is a whole depth model: pass it without head=.")
    else:
        backbone = sidecars.backbone
    arrays = {name: array for name, array in file.items() if not name.startswith(start)}
    stored, warnings = _depth_config(arrays, kind, sidecars, without_top(backbone))
    rows = _linear_depth_rows if kind == "linear" else functools.partial(_dpt_rows, names=DPT_NAMES[kind])
    made = with_head(backbone, stored, rows, arrays, f"depth, {kind}")
    return dataclasses.replace(made, warnings=[*made.warnings, *warnings])


def _backbone(arrays: dict[str, StoredArray], sidecars: Sidecars, start: str, is_hub: bool) -> Plan:
    """Returns the plan of the backbone in a file of both, whose names come after `start`."""
    # `is_hub` is for a file of transformers.
    if sidecars.architecture and "dinov2" not in sidecars.architecture:
        raise ValueError(f"like must be a DINOv2 for this file, but {sidecars.architecture!r} was given.")
    like = None if sidecars.architecture else sidecars.like
    known = Sidecars(like=like, grid_size=sidecars.grid_size, image_size=sidecars.image_size)
    if is_hub:
        jsons.value_in(sidecars.config, "model_type", ["depth_anything"])
        layout = huggingface.LAYOUT
        known = dataclasses.replace(known, config=jsons.mapping(sidecars.config, "backbone_config"))
    else:  # of Facebook's models, any of which tells that heads have 64 channels
        layout = timm.LAYOUT
        known = dataclasses.replace(known, config={"architecture": "vit_base_patch14_dinov2"})
    if not layout.recognise(arrays, known):
        raise ValueError("The file has no supported backbone. If it is only a head, use load(backbone, head=file).")
    return with_start(with_grid(layout.plan(arrays, known), sidecars.grid_size, sidecars.name), start)


def _range(is_dinov2: bool, sidecars: Sidecars) -> tuple[Fields, list[Notice]]:
    """Returns the fields `metric` and `max_depth`, and warnings on what was assumed of them."""
    given, name = sidecars.max_depth, pathlib.Path(sidecars.name).name.lower()
    relative: Fields = {"metric": False, "max_depth": 1.0}
    if given == "relative" and not is_dinov2:
        return relative, []
    if given is not None:
        if not jsons.is_number(given) or given <= 0:
            also = "" if is_dinov2 else " or 'relative'"
            raise ValueError(f"max_depth must be a number of metres above 0{also}, but {given!r} was given.")
        return {"metric": True, "max_depth": float(given)}, []
    scene = re.search("vkitti|hypersim|nyu|kitti", name)
    if scene is not None:
        metres = RANGES[scene[0]]
        text = f"max_depth={metres:g} metres is assumed from the file name {name!r}; pass max_depth to change it"
        return {"metric": True, "max_depth": metres}, [Notice(text, "max_depth", "assumed")]
    if is_dinov2:
        raise ValueError("The file lacks its largest depth. Pass max_depth=10 for a head trained on NYU, 80 for KITTI.")
    if re.fullmatch(r"depth_anything_v2_vit[sblg]\.\w+", name):
        return relative, []
    text = "relative depth is assumed, as the file name has no data set; pass max_depth, 'relative' or in metres"
    return relative, [Notice(text, "metric", "assumed")]


# Depth Anything: the JSON files of transformers

# What is computed here of what they may say.
_EXPECTED = {"reassemble_factors": [4, 2, 1, 0.5], "head_in_index": -1}
_PREPARED: Fields = {"do_pad": False, "keep_aspect_ratio": True}


def _fields_of_metadata(config: Mapping[str, Any], pictures: Mapping[str, Any]) -> Fields:
    """Returns the fields that config.json says of depth, and preprocessor_config.json (`pictures`) of preprocessing."""
    for key, value in _EXPECTED.items():
        jsons.value_in(config, key, [value])
    backbone = jsons.mapping(config, "backbone_config")
    more = {"resample": 3, "do_center_crop": False, "ensure_multiple_of": backbone.get("patch_size", 14)}
    read = ("size", "default_to_square", "image_mean", "image_std", "size_divisor")
    jsons.check_prepared(pictures, jsons.PREPARED | _PREPARED | more, read)
    return blocks_and_size(backbone, pictures, (518, 518)) | {
        "metric": jsons.value_in(config, "depth_estimation_type", ["relative", "metric"]) == "metric",
        "max_depth": jsons.number(config, "max_depth", 1.0) if config.get("max_depth") else 1.0,
        "pictures": "depth_anything_transformers",
    }


def blocks_and_size(backbone: Mapping[str, Any], pictures: Mapping[str, Any], default: tuple[int, int]) -> Fields:
    """Which blocks of a backbone a DPT of transformers reads, and the size of its pictures."""
    size = jsons.edges_in(pictures, "size", pictures.get("default_to_square") is False) or default
    if isinstance(size, int):  # of the shorter edge
        raise jsons.unsupported_value("size", pictures["size"])
    # transformers counts blocks from 1.
    stages = backbone.get("out_indices") or backbone.get("out_features")
    numbers = [str(stage).removeprefix("stage") for stage in stages] if isinstance(stages, list) else []
    if len(numbers) != 4 or not all(n.isdecimal() and int(n) for n in numbers):
        raise ValueError(f"out_indices in config.json must be four numbers of blocks, but is {printable(stages, 60)}.")
    return {"picture_size": size, "blocks": tuple(int(n) - 1 for n in numbers)}


def written_backbone(config: Any) -> dict[str, Any]:
    """Returns what config.json says of the backbone of a DPT and of its maps: `blocks_and_size` back."""
    backbone = dict(huggingface.sidecars_of(config.backbone)["config.json"])
    del backbone["architectures"]
    stages = [block + 1 for block in config.blocks]
    backbone |= {"out_indices": stages, "out_features": [f"stage{n}" for n in stages]}
    backbone |= {"apply_layernorm": True, "reshape_hidden_states": False}
    widths = {"neck_hidden_sizes": [*config.widths], "fusion_hidden_size": config.fusion_width}
    return {"backbone_config": backbone, **widths, "dtype": "float32"}


def _needs(config: DPTConfig) -> dict[str, tuple[Any, ...]]:
    of_dinov2 = {"backbone.rotary_embedding": (None,), "backbone.layer_scale": (config.backbone.layer_scale or 1.0,)}
    of_dinov2["backbone.final_norm"] = ("tokens",)
    return {"design": ("depth_anything",), **huggingface.needs_of_backbone(config), **of_dinov2}


def _written_rows(config: DPTConfig) -> list[Row]:
    names = DPT_NAMES["transformers"]
    return prefixed(names["backbone"], huggingface.LAYOUT.rows(config.backbone)) + _dpt_rows(config, names)


def _rewritten(config: DPTConfig, read: Callable[[str], Any]) -> tuple[DPTConfig, dict[str, Any]]:
    stored, changed = huggingface.LAYOUT.rewritten(config.backbone, read)
    return config.replace(backbone=stored), changed


def _depth_sidecars(config: DPTConfig) -> dict[str, dict[str, Any]]:
    vit = config.backbone
    metadata = {
        "architectures": ["DepthAnythingForDepthEstimation"],
        "model_type": "depth_anything",
        **written_backbone(config),
        "depth_estimation_type": "metric" if config.metric else "relative",
        "max_depth": int(config.max_depth),
        "head_hidden_size": config.head_width,
        "reassemble_hidden_size": vit.width,
        "patch_size": vit.patch_size[0],
        **_EXPECTED,
    }
    sizes = {"size": dict(zip(("height", "width"), config.picture_size, strict=True))}
    sizes["ensure_multiple_of"] = vit.patch_size[0]
    pictures = jsons.written_preprocessor("DPTImageProcessor", vit, 3, **_PREPARED, **sizes)
    return {"config.json": metadata, "preprocessor_config.json": pictures}


def _da3_rows(config: DPTConfig) -> list[Row]:
    names = DPT_NAMES[_DA3]
    return prefixed(names["backbone"], timm.LAYOUT.rows(config.backbone)) + _dpt_rows(config, names)


def _da3_sidecars(config: DPTConfig) -> dict[str, dict[str, Any]]:
    return {
        "config.json": {"model_name": next(name for name, metric in _DA3_MODELS.items() if metric == config.metric)}
    }


DEPTH = Layout("depth", recognise=having(LINEAR_ANCHOR, *_FIRST.values()), plan=plan_of_depth)
HUGGINGFACE = Layout(
    "depth, transformers",
    _written_rows,
    rewritten=_rewritten,
    needs=_needs,
    sidecars=_depth_sidecars,
    noted=("min_depth",),
    config_type=DPTConfig,
)
# What the authors' code loads by `from_pretrained`.
DEPTH_ANYTHING_3 = Layout(f"depth, {_DA3}", _da3_rows, sidecars=_da3_sidecars, config_type=DPTConfig)
