"""Files that say in words of their own which model they hold: the config, and whether its weights fit into the file."""

import math
import os
from typing import Any

from keras_vit.checkpoints.accounting import MOST_BLOCKS
from keras_vit.models import (
    BiTConfig,
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
