"""Files that say in words of their own which model they hold: whether its weights fit, and our `.npz` of dense models.

That has each weight by its path, and the config in the note beside them.
"""

import math
import os
from collections.abc import Mapping
from typing import Any

from keras_vit import layers, models
from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import MOST_BLOCKS, Layout, Plan, Row
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import (
    BiTConfig,
    DenseConfig,
    DPTConfig,
    EoMTConfig,
    LinearDepthConfig,
    LinearSegmenterConfig,
    ViTConfig,
    count_weights,
)

CONFIG_TYPES: dict[str, type[Any]] = {
    "VisionTransformer": ViTConfig,
    "BiT": BiTConfig,
    "EoMT": EoMTConfig,
    "LinearSegmenter": LinearSegmenterConfig,
    "DPT": DPTConfig,
    "LinearDepth": LinearDepthConfig,
}
_MOST_PATCHES = 2**18  # of an image, whose tables are computed and not in the file: 8192 x 8192 pixels in patches of 16


def check_size(path: str | os.PathLike[str], config: Any, size: int) -> None:
    """Raises ValueError where a model cannot be in a file with so many bytes of weights, before anything is built.

    A weight takes four bits at least (int4). What costs nothing in a file is bounded: numbers of blocks, which counting
    goes over, and of patches.
    """
    trunk = getattr(config, "backbone", config)
    is_vit = isinstance(trunk, ViTConfig)
    blocks = trunk.depth + sum(trunk.stem_stages or ()) if is_vit else sum(trunk.stages)
    least = blocks * trunk.width**2 // 2  # a block or unit has more weights than its width squared
    if least <= size:
        if max(blocks, getattr(config, "upscale_blocks", 0)) > MOST_BLOCKS:
            raise ValueError(f"{path} is damaged: its model has more than {MOST_BLOCKS:,} blocks.")
        if is_vit and not trunk.dynamic and math.prod(trunk.grid_size) > _MOST_PATCHES:
            raise ValueError(f"{path} is damaged: its images have more than {_MOST_PATCHES:,} patches.")
        least = count_weights(config) // 2
    if least > size:
        raise ValueError(f"{path} is damaged: its model has at least {least:,} bytes of weights, it has only {size:,}.")


def config(arrays: Mapping[str, StoredArray], sidecars: Sidecars) -> DenseConfig:
    """The config in the note, which may be a stranger's; ValueError where it or its size makes no sense."""
    note = sidecars.note
    try:
        stored = CONFIG_TYPES[note["model"]](**note["config"])
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"its note says nothing sensible about its model: {printable(error, 200)}.") from None
    if not isinstance(stored, DenseConfig):
        raise ValueError(f"its note names the model {note['model']!r}, which is not stored so.")
    check_size(sidecars.name, stored, sum(array.bytes for array in arrays.values()))
    return stored


def plan(file: Mapping[str, StoredArray], sidecars: Sidecars) -> Plan:
    """The plan by which a file with a config in its note is read.

    Raises ValueError for options that say what the note says.
    """
    given = {name: getattr(sidecars, name) for name in ("grid_size", "heads", "like", "max_depth")}
    for option, value in {"head": sidecars.backbone, **given}.items():
        if value is not None:
            raise ValueError(f"it says all of its model itself: leave {option}=... out.")
    return Plan(layout=LAYOUT, dialect="keras_vit", stored=config(file, sidecars), arrays=dict(file))


def _rows(config: Any) -> list[Row]:
    """The weights of a model by their paths."""
    with layers.skip_initialization():  # takes no memory
        weights = models.weights_by_path(getattr(models, config.model)(config))
    return [Row(path, path, tuple(weight.shape)) for path, weight in weights.items()]


def note_of_dense(config: Any) -> dict[str, Any]:
    """What stands beside the weights."""
    return {"written_by": "keras_vit", "model": config.model, "config": config.to_dict()}


LAYOUT = Layout("keras_vit", _rows, plan=plan, config_type=DenseConfig)
