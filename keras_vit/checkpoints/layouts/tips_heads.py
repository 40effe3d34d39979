"""The DPT heads of TIPS 2 for depth, normals and classes: transformers' files, and the authors' of Scenic.

Transformers has the tower and one or all heads in one file. The authors' heads are zip archives of arrays of Flax, each
beside the tower's `.npz`.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

from keras_vit.checkpoints.accounting import Layout, Notice, Plan, Row, prefixed, shape_of, with_grid
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import dense, huggingface, jsons, tips
from keras_vit.checkpoints.layouts.jsons import Fields
from keras_vit.checkpoints.layouts.pytorch import linear
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.layers.choices import REASSEMBLE_FACTORS
from keras_vit.models import MultiTaskDPTConfig
from keras_vit.models.dense_config import DPT_TASKS

# What transformers and the authors call the parts of a head, by our paths, as in `dense.DPT_NAMES`.
NAMES: dict[str, dict[str, str]] = {
    "transformers": {
        "reassemble_{i}/readout_projection": "reassemble.readout_projects.{i}",
        "reassemble_{i}/projection": "reassemble.out_projections.{i}",
        "reassemble_{i}/resized": "reassemble.resize_layers.{i}",
        "neck_{i}": "convs.{i}",
        "fusion_{i}/unit{n}/conv{m}": "fusion_blocks.{i}.unit{n}.conv{m}",
        "fusion_{i}/projection": "fusion_blocks.{i}.out_conv",
        "project": "project",
    },
    "scenic": {
        "reassemble_{i}/readout_projection": "dpt/reassemble_blocks/readout_projects_{i}",
        "reassemble_{i}/projection": "dpt/reassemble_blocks/out_projection_{i}",
        "reassemble_{i}/resized": "dpt/reassemble_blocks/resize_layers_{i}",
        "neck_{i}": "dpt/convs_{i}",
        "fusion_{i}/unit{n}/conv{m}": "dpt/fusion_blocks_{i}/unit{n}/conv{m}",
        "fusion_{i}/projection": "dpt/fusion_blocks_{i}/Conv_0",
        "project": "dpt/project",
    },
}
# Units are called by what they read, or numbered, where the deepest fusion has the second one alone.
_UNITS = {
    "transformers": {".unit1.": ".residual_unit.", ".unit2.": ".main_unit."},
    "scenic": {
        "_0/unit2/": "_0/PreActResidualConvUnit_0/",
        "/unit1/": "/PreActResidualConvUnit_0/",
        "/unit2/": "/PreActResidualConvUnit_1/",
    },
}
_LAST = {"depth": "pixel_depth_classif", "normals": "pixel_normals", "segmentation": "pixel_segmentation"}
_TYPE, _TOWER, _SCENIC = "tipsv2_dpt", "vision_encoder.", "decoder/"
# The blocks that a head reads, by how many there are; the authors' files do not say it.
BLOCKS = {12: (2, 5, 8, 11), 24: (5, 11, 17, 23), 27: (6, 13, 20, 26), 40: (9, 19, 29, 39)}
_ACTIVATIONS = {"relu": True, "linear": False}  # of `depth_decoder_activation`
_EXPECTED = {"readout_activation": "gelu_pytorch_tanh", "reassemble_factors": [*REASSEMBLE_FACTORS]}
_NUMBERS = {"num_depth_bins": "bins", "min_depth": "min_depth", "max_depth": "max_depth"}


def _rows(config: MultiTaskDPTConfig, kind: str) -> list[Row]:
    """Returns the rows of all heads, in the names of `kind`."""
    outputs, rows = {"depth": config.bins, "normals": 3, "segmentation": config.classes or 0}, []
    for task in config.tasks:
        found = [
            dataclasses.replace(row, path=f"{task}_{row.path}") for row in dense.fused_rows(config, NAMES[kind], True)
        ]
        head = f"{task}_head/scores" if task == "depth" else f"{task}_head"
        name = _LAST[task] if kind == "scenic" else f"{task}_head"
        found += linear(name, head, outputs[task], config.fusion_width)
        rows += [_of_flax(row) for row in found] if kind == "scenic" else prefixed(f"{task}_head.", found)
    return [dataclasses.replace(row, name=_with_units(row.name, kind)) for row in rows]


def _with_units(name: str, kind: str) -> str:
    for old, new in _UNITS[kind].items():
        name = name.replace(old, new)
    return name


def _of_flax(row: Row) -> Row:
    """Returns the row of an array of Flax in place of PyTorch's; kernels of transposed convolutions are turned."""
    name, _, part = row.name.rpartition(".")
    if part == "bias":
        return dataclasses.replace(row, name=f"{_SCENIC}{name}/bias")
    grows = name.endswith(("resize_layers_0", "resize_layers_1"))
    out, into, *size = row.shape
    shape = (*size, out, into) if grows else (*size, into, out)
    axes = (0, 1, 3, 2) if grows else None
    return Row(f"{_SCENIC}{name}/kernel", row.path, shape, axes, turned=grows)


def _last(task: str, kind: str) -> str:
    """Returns the name of the last matrix of a head."""
    return f"{_SCENIC}{_LAST[task]}/kernel" if kind == "scenic" else f"{task}_head.{task}_head.weight"


def recognise(names: Collection[str], sidecars: Sidecars) -> bool:
    """Whether a file has heads of TIPS 2."""
    is_named = sidecars.config.get("model_type") == _TYPE
    return is_named or any(_last(task, kind) in names for task in DPT_TASKS for kind in NAMES)


def plan(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """Returns the plan of a file of transformers with tower and heads, or of a head beside its tower."""
    kind = next((kind for kind in NAMES if any(_last(task, kind) in file for task in DPT_TASKS)), "transformers")
    tasks, is_scenic = tuple(task for task in DPT_TASKS if _last(task, kind) in file), kind == "scenic"
    if not tasks or (is_scenic and len(tasks) > 1):
        raise ValueError(f"The file must have {'one head' if tasks else 'a head'}, but it has {len(tasks)}.")
    if is_scenic != (sidecars.backbone is not None):
        where = "load(tower, head=...), with the tower's .npz" if is_scenic else "load(file) without head="
        raise ValueError(f"The file {'is a head alone' if is_scenic else 'has the tower as well'}: use {where}.")
    fields: Fields = {"tasks": tasks, "classes": None}
    warnings: list[Notice] = []
    if "segmentation" in tasks:
        fields["classes"] = shape_of(file, _last("segmentation", kind), 2)[1 if is_scenic else 0]
    if is_scenic:
        backbone = sidecars.backbone
        blocks, warnings = dense.blocks_of(backbone.stored.depth, BLOCKS)
        fields |= {"depth_relu": False, "blocks": blocks}
    else:
        inside = {name.removeprefix(_TOWER): array for name, array in file.items() if name.startswith(_TOWER)}
        known = Sidecars(config=jsons.mapping(sidecars.config, "backbone_config"), like=sidecars.like)
        if not tips.recognise(inside, known):
            raise ValueError(f"The file must have the tower {_TOWER}*, but it has heads alone.")
        backbone = dense.with_start(with_grid(tips.plan(inside, known), sidecars.grid_size, sidecars.name), _TOWER)
        fields |= _fields_of_metadata(sidecars.config, sidecars.preprocessor or {}, fields["classes"])
    vit = dense.without_top(backbone)
    if not tips.is_tips(vit):
        raise ValueError("The backbone must be the tower of a TIPS 2, but it is another model. Pass its own .npz file.")
    # The widths, off a head's first convolutions: `neck_{i}` has (out, in, 3, 3), of Flax (3, 3, in, out).
    start, end, order = (_SCENIC, "/kernel", (2, 3)) if is_scenic else (f"{tasks[0]}_head.", ".weight", (1, 0))
    shapes = [shape_of(file, f"{start}{NAMES[kind]['neck_{i}'].format(i=i)}{end}", 4) for i in range(4)]
    fields |= {"widths": tuple(shape[order[0]] for shape in shapes), "fusion_width": shapes[0][order[1]]}
    arrays = {name: array for name, array in file.items() if is_scenic or not name.startswith(_TOWER)}
    unused = () if "depth" in tasks else (*_NUMBERS.values(), "depth_relu")
    stored = MultiTaskDPTConfig(backbone=vit, **{name: v for name, v in fields.items() if name not in unused})
    made = dense.with_head(backbone, stored, functools.partial(_rows, kind=kind), arrays, f"TIPS 2 heads, {kind}")
    return dataclasses.replace(made, warnings=[*made.warnings, *warnings])


def _fields_of_metadata(config: Mapping[str, Any], pictures: Mapping[str, Any], classes: int | None) -> Fields:
    """Returns the fields that config.json says of heads, and preprocessor_config.json (`pictures`) of preprocessing."""
    backbone = jsons.mapping(config, "backbone_config")
    for known, expected in ((config, _EXPECTED), (backbone, {"apply_layernorm": True})):
        for key, value in expected.items():
            jsons.value_in(known, key, [value])
    plain = {"do_normalize": False, "resample": 2, "do_center_crop": False, "do_pad": False}
    jsons.check_prepared(pictures, jsons.PREPARED | plain, ("size", "default_to_square", "image_mean", "image_std"))
    numbers = {field: config[key] for key, field in _NUMBERS.items() if config.get(key) is not None}
    return (
        dense.blocks_and_size(backbone, pictures, (448, 448))
        | numbers
        | {
            "depth_relu": _ACTIVATIONS[jsons.value_in(config, "depth_decoder_activation", _ACTIVATIONS)],
            "class_names": huggingface.names_of_classes(config, classes) if classes else None,
            "pictures": "tips_transformers",
        }
    )


def _written_rows(config: MultiTaskDPTConfig) -> list[Row]:
    return prefixed(_TOWER, tips.HUGGINGFACE.rows(config.backbone)) + _rows(config, "transformers")


def _rewritten(config: MultiTaskDPTConfig, read: Callable[[str], Any]) -> tuple[MultiTaskDPTConfig, dict[str, Any]]:
    stored, changed = tips.HUGGINGFACE.rewritten(config.backbone, read)
    return config.replace(backbone=stored), changed


def _sidecars(config: MultiTaskDPTConfig) -> dict[str, dict[str, Any]]:
    kinds = {"depth": "DepthEstimation", "normals": "NormalEstimation", "segmentation": "SemanticSegmentation"}
    kind = kinds[config.tasks[0]] if len(config.tasks) == 1 else "DensePrediction"
    metadata = {
        "architectures": [f"Tipsv2DptFor{kind}"],
        "model_type": _TYPE,
        **dense.written_backbone(config),
        **{key: getattr(config, field) for key, field in _NUMBERS.items()},
        "depth_decoder_activation": next(key for key, value in _ACTIVATIONS.items() if value == config.depth_relu),
        **(huggingface.labels_of(config) if config.classes else {}),
        **_EXPECTED,
    }
    size = dict(zip(("height", "width"), config.picture_size, strict=True))
    pictures = jsons.written_preprocessor("Tipsv2DptImageProcessor", config.backbone, 2, do_normalize=False, size=size)
    return {"config.json": metadata, "preprocessor_config.json": pictures}


LAYOUT = Layout("TIPS 2 heads", recognise=recognise, plan=plan)
HUGGINGFACE = Layout(
    "TIPS 2 heads, transformers",
    _written_rows,
    rewritten=_rewritten,
    needs=huggingface.needs_of_backbone,
    sidecars=_sidecars,
    config_type=MultiTaskDPTConfig,
)
