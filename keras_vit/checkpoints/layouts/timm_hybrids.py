"""The ResNet of timm's hybrids (`vit_*_r50_s16_*`, `vit_*_r26_s32_*`, `vit_*_r_s16_p8_*`), in front of their patches.

It is the official one with other epsilons (timm's `models/resnetv2.py`; `layers.ResNetUnit`). Other networks that timm
has in front of a Transformer have arrays of other names.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from keras_vit.checkpoints.engine import Row, bounded, shape_of
from keras_vit.checkpoints.files.stored_array import StoredArray
from keras_vit.checkpoints.layouts.pictures import Fields
from keras_vit.checkpoints.layouts.pytorch import CONVOLUTION, norm
from keras_vit.models import ViTConfig

_BACKBONE = "patch_embed.backbone."
_MOST_STAGES = 4  # every stage halves the picture, and no such model has more
_ROOT = r"conv\.weight|norm\.(weight|bias)"
_UNIT = r"(conv[123]|downsample\.conv)\.weight|(norm[123]|downsample\.norm)\.(weight|bias)"
# The names of its arrays: without stages, the first convolution stands in no module of its own.
STEM_NAMES = rf"patch_embed\.backbone\.((stem\.)?({_ROOT})|stages\.\d+\.blocks\.\d+\.({_UNIT}))"


def stem_rows(config: ViTConfig) -> list[Row]:
    """The rows of the ResNet; none for a model without one."""
    if config.stem_stages is None:
        return []
    root = f"{_BACKBONE}stem." if config.stem_stages else _BACKBONE
    rows = _convolution(f"{root}conv", "conv_root", config.stem_width, config.channels, 7)
    rows += norm(f"{root}norm", "gn_root", config.stem_width)
    before = config.stem_width
    for stage, units in enumerate(config.stem_stages):
        inner = config.stem_width * 2**stage
        for unit in range(units):
            name, path = f"{_BACKBONE}stages.{stage}.blocks.{unit}", f"block{stage + 1}_unit{unit + 1}"
            sizes = ((inner, before, 1), (inner, inner, 3), (4 * inner, inner, 1))
            for number, (out, into, size) in enumerate(sizes, start=1):
                rows += _convolution(f"{name}.conv{number}", f"{path}/conv{number}", out, into, size)
                rows += norm(f"{name}.norm{number}", f"{path}/gn{number}", out)
            if unit == 0:
                rows += _convolution(f"{name}.downsample.conv", f"{path}/conv_proj", 4 * inner, before, 1)
                rows += norm(f"{name}.downsample.norm", f"{path}/gn_proj", 4 * inner)
            before = 4 * inner
    return rows


def _convolution(name: str, path: str, out: int, into: int, size: int) -> list[Row]:
    return [Row(f"{name}.weight", f"{path}/kernel", (out, into, size, size), CONVOLUTION)]


def stem_fields(arrays: Mapping[str, StoredArray]) -> Fields:
    """The fields of the config that say which ResNet a file has; none for a file without one.

    Raises:
        ValueError: if its stages or units make no sense.
    """
    if not any(name.startswith(_BACKBONE) for name in arrays):
        return {}
    stages = _stages(arrays)
    root = f"{_BACKBONE}stem.conv.weight" if stages else f"{_BACKBONE}conv.weight"
    width, channels, *_ = shape_of(arrays, root, 4)
    return {"stem_stages": stages, "stem_width": width, "stem_epsilons": "timm", "channels": channels}


def _stages(names: Collection[str]) -> tuple[int, ...]:
    """How many units each stage has."""
    places = re.findall(rf"^{re.escape(_BACKBONE)}stages\.(\d+)\.blocks\.(\d+)\.", "\n".join(names), re.MULTILINE)
    units = {(int(stage), int(unit)) for stage, unit in places}
    count = 1 + max((stage for stage, _ in units), default=-1)
    if count > _MOST_STAGES:
        raise ValueError(f"Its ResNet has {count} stages, but those of known models have {_MOST_STAGES} at most.")
    bounded(1 + max((unit for _, unit in units), default=0))
    return tuple(1 + max((unit for stage, unit in units if stage == s), default=0) for s in range(count))


def patch_pixels(patch: Sequence[int], stem: Fields) -> tuple[int, int]:
    """Height and width in pixels of the image that a patch of so many cells of the ResNet's map stands for."""
    cell = 4 * 2 ** max(len(stem["stem_stages"]) - 1, 0) if stem else 1
    return patch[0] * cell, patch[1] * cell
