"""The layouts of dense models: what those of two files share, and the linear heads of DINOv2 and DINOv3."""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from keras_vit.checkpoints.accounting import Layout, Plan, Row, having, shape_of
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import timm
from keras_vit.checkpoints.layouts.pytorch import CONVOLUTION
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import LinearSegmenterConfig, ViTConfig
from keras_vit.models.dense_config import WITHOUT_TOP
from keras_vit.preprocessing import LABEL_SETS, label_set

_BACKBONE = "backbone."  # in files that mmsegmentation has saved
_MULTISCALE = 4  # how many of the last blocks DINOv2's larger heads read


def with_head(
    backbone: Plan,
    config: Any,
    rows: Callable[[Any], list[Row]],
    arrays: Mapping[str, StoredArray],
    title: str,
    unused: Sequence[str] = (),
) -> Plan:
    """The plan to read a dense model of two files: that of its backbone, with the rows and arrays of the head added.

    Arrays of the backbone's file that the dense model does not need, such as those of a classification head, become
    unused ones. What is assumed of the backbone is a note instead of a warning.
    """
    below = backbone.layout
    wanted = {row.name for row in below.rows(config.backbone)}
    kept = {name: array for name, array in backbone.arrays.items() if name in wanted}
    left = sorted(array.name for name, array in backbone.arrays.items() if name not in wanted)
    layout = Layout(
        title,
        lambda config: [*below.rows(config.backbone), *rows(config)],
        computed=lambda config: below.computed(config.backbone),
        settled_by="",
        config_type=type(config),
    )
    remarks = [
        dataclasses.replace(remark, kind="note") if remark.kind == "assumed" else remark for remark in backbone.warnings
    ]
    return dataclasses.replace(
        backbone,
        layout=layout,
        dialect=title,
        stored=config,
        arrays={**kept, **arrays},
        unused=[*backbone.unused, *left, *unused],
        # Those about the size at which the backbone is used by itself do not hold here.
        warnings=[remark for remark in remarks if remark.field != "image_size"],
        head=(),
    )


# Linear heads for segmentation


@dataclasses.dataclass(frozen=True)
class Names:
    """What a publisher calls the parts of a linear head, and how it is used.

    Attributes:
        matrix: The convolution of 1 x 1.
        norm: The batch normalisation.
        fields: Of the config, for a head on the last block; of one on four blocks, where the publisher has such.
        fields_of_four: Likewise.
    """

    matrix: str
    norm: str
    fields: Mapping[str, Any]
    fields_of_four: Mapping[str, Any] | None


_LARGER = {"pictures": "dinov2", "short_side": 640, "crop_size": 640, "stride": 320}
HEADS = (
    Names("decode_head.conv_seg", "decode_head.bn", {"pictures": "dinov2"}, _LARGER),
    Names(
        "segmentation_model.1.conv",
        "segmentation_model.1.batchnorm_layer",
        {"pictures": "dinov3", "dropout": 0.1},
        None,
    ),
)


def _rows(config: LinearSegmenterConfig, names: Names) -> list[Row]:
    """The rows of a linear segmentation head: its batch normalisation and its matrix."""
    into = config.backbone.width * len(config.blocks)
    parts = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    rows = [Row(f"{names.norm}.{part}", f"head_norm/{path}", (into,)) for part, path in parts.items()]
    rows.append(Row(f"{names.matrix}.weight", "head/kernel", (config.classes, into, 1, 1), CONVOLUTION))
    return [*rows, Row(f"{names.matrix}.bias", "head/bias", (config.classes,))]


def config(arrays: Mapping[str, StoredArray], sidecars: Sidecars, backbone: ViTConfig) -> LinearSegmenterConfig:
    """The config of a head and its backbone; ValueError where they do not belong together."""
    names = _names(arrays)
    vit = backbone.replace(**WITHOUT_TOP, dynamic=True)
    classes, into, *_ = shape_of(arrays, f"{names.matrix}.weight", 4)
    blocks = into // vit.width
    if into % vit.width or blocks not in (1, _MULTISCALE) or blocks > vit.depth:
        wanted = f"{vit.width} or {_MULTISCALE * vit.width} for a backbone of the width {vit.width}"
        raise ValueError(f"its head reads {into} numbers a patch; {wanted} were expected. Is it of another backbone?")
    fields = names.fields if blocks == 1 else names.fields_of_four
    if fields is None:
        raise ValueError("its head reads four blocks, and nothing tells which: DINOv3's published ones read the last.")
    return LinearSegmenterConfig(
        backbone=vit,
        classes=classes,
        class_names=_class_names(sidecars.name, classes),
        blocks=tuple(range(vit.depth - blocks, vit.depth)),
        **fields,
    )


def plan(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """The plan by which a head and its backbone are read; ValueError where the backbone is missing or does not fit."""
    backbone, arrays = sidecars.backbone, dict(file)
    if backbone is None:
        inside = {name.removeprefix(_BACKBONE): a for name, a in file.items() if name.startswith(_BACKBONE)}
        arrays = {name: array for name, array in file.items() if not name.startswith(_BACKBONE)}
        known = Sidecars(like=sidecars.like, heads=sidecars.heads, grid_size=sidecars.grid_size)
        if not timm.recognise(inside, known):
            raise ValueError(
                "it is a head without its backbone: load(backbone, head=...), or both files in one folder."
            )
        backbone = timm.plan(inside, known)
    if not isinstance(backbone.stored, ViTConfig):
        raise ValueError("its backbone is no Vision Transformer.")
    names, stored = _names(file), config(arrays, sidecars, backbone.stored)
    counter = f"{names.norm}.num_batches_tracked"
    unused = [arrays.pop(counter).name] if counter in arrays else []
    return with_head(backbone, stored, functools.partial(_rows, names=names), arrays, "linear segmentation", unused)


def _names(arrays: Collection[str]) -> Names:
    return next(names for names in HEADS if f"{names.matrix}.weight" in arrays)


def _class_names(path: str, classes: int) -> tuple[str, ...] | None:
    """The names of the data set that a file's name says, where it has as many classes."""
    data_set = re.search("|".join(LABEL_SETS), os.path.basename(path).lower())
    found = label_set(data_set[0]).names if data_set else ()
    return found if len(found) == classes else None


LINEAR = Layout(
    "linear segmentation",
    functools.partial(_rows, names=HEADS[0]),
    having(*(f"{head.matrix}.weight" for head in HEADS)),
    plan,
)
