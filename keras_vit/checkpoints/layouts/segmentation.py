"""The layouts of linear heads for segmentation: DINOv2's and DINOv3's, beside a backbone of any layout."""

import dataclasses
import functools
import os
import re
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.accounting import Contents, Row, shape_of
from keras_vit.checkpoints.layouts import timm
from keras_vit.checkpoints.layouts.dense import joined
from keras_vit.checkpoints.layouts.pytorch import CONVOLUTION
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import LinearSegmenterConfig, ViTConfig
from keras_vit.models.dense_config import WITHOUT_TOP
from keras_vit.preprocessing import LABEL_SETS, label_set

_BACKBONE = "backbone."  # in files that mmsegmentation has saved
_MULTISCALE = 4  # how many of the last blocks DINOv2's larger heads read


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
    into = config.backbone.width * len(config.blocks)
    parts = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    rows = [Row(f"{names.norm}.{part}", f"head_norm/{path}", (into,)) for part, path in parts.items()]
    rows.append(Row(f"{names.matrix}.weight", "head/kernel", (config.classes, into, 1, 1), CONVOLUTION))
    return [*rows, Row(f"{names.matrix}.bias", "head/bias", (config.classes,))]


def read(file: Mapping[str, StoredArray], hints: Mapping[str, Any]) -> Contents:
    """Describes a head and its backbone; ValueError where the backbone is missing or another one."""
    names = next(names for names in HEADS if f"{names.matrix}.weight" in file)
    arrays, backbone = dict(file), hints.get("backbone")
    if backbone is None:
        inside = {name: arrays.pop(name) for name in file if name.startswith(_BACKBONE)}
        own = {name: hints.get(name) for name in ("heads", "like", "grid_size")}
        backbone = timm.LAYOUT.read({name.removeprefix(_BACKBONE): array for name, array in inside.items()}, own)
    if backbone is None:
        raise ValueError("it is a head without its backbone: load(backbone, head=...), or both files in one folder.")
    if not isinstance(backbone.stored, ViTConfig):
        raise ValueError("its backbone is no Vision Transformer.")
    vit = backbone.stored.replace(**WITHOUT_TOP, dynamic=True)
    classes, into, *_ = shape_of(arrays, f"{names.matrix}.weight", 4)
    blocks = into // vit.width
    if into % vit.width or blocks not in (1, _MULTISCALE) or blocks > vit.depth:
        wanted = f"{vit.width} or {_MULTISCALE * vit.width} for a backbone of the width {vit.width}"
        raise ValueError(f"its head reads {into} numbers a patch; {wanted} were expected. Is it of another backbone?")
    fields = names.fields if blocks == 1 else names.fields_of_four
    if fields is None:
        raise ValueError("its head reads four blocks, and nothing tells which: DINOv3's published ones read the last.")
    config = LinearSegmenterConfig(
        backbone=vit,
        classes=classes,
        class_names=_class_names(str(hints.get("path", "")), classes),
        blocks=tuple(range(vit.depth - blocks, vit.depth)),
        **fields,
    )
    unused = [arrays.pop(name).name for name in file if name == f"{names.norm}.num_batches_tracked"]
    title = "linear segmentation"
    return joined(backbone, config, functools.partial(_rows, names=names), arrays, title, tuple(unused))


def _class_names(path: str, classes: int) -> tuple[str, ...] | None:
    """The names of the data set that a file's name says, where it has as many classes."""
    data_set = re.search("|".join(LABEL_SETS), os.path.basename(path).lower())
    found = label_set(data_set[0]).names if data_set else ()
    return found if len(found) == classes else None
