"""Files that say in words of their own which model they hold: the config, and whether its weights fit into the file."""

import os
from typing import Any

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


def check_size(path: str | os.PathLike[str], config: Any, size: int) -> None:
    """Raises ValueError where the weights of a model do not fit into so many bytes, before anything is built.

    Counting goes over every block: first a bound that a file which claims a billion of them does not pass. A block or
    unit has more weights than its width squared; a weight takes four bits at least (int4).
    """
    trunk = getattr(config, "backbone", config)
    blocks = trunk.depth if isinstance(trunk, ViTConfig) else sum(trunk.stages)
    least = blocks * trunk.width**2 // 2
    if least <= size:
        least = count_weights(trunk) // 2
    if least > size:
        raise ValueError(f"{path} is damaged: its model has at least {least:,} bytes of weights, it has only {size:,}.")
