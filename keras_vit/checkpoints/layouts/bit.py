"""The two layouts of BiT checkpoints: the published `bit_models/*.npz`, and big_vision's `models/bit_paper.py`.

`bit_tf` has the names of the TensorFlow code that trained the published files, `bit_bv` those of big_vision, which
reads both. The arrays are the same but for axes of length 1.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.accounting import Contents, Hints, Layout, Row, bounded, resnet_convolutions, shape_of
from keras_vit.checkpoints.files.stored_array import StoredArray
from keras_vit.checkpoints.layouts.flax import model_under
from keras_vit.models import BiTConfig

_CONV = "standardized_conv2d"
# What each layout calls the parts of the model: `modules` are those of a unit by our names; `vector` and `head_axes`
# are the axes of length 1 that it puts before an array's own.
_NAMES: dict[str, dict[str, Any]] = {
    "bit_tf": {
        "dialect": "published",
        "top": "resnet/",
        "root": f"resnet/root_block/{_CONV}",
        "unit": "resnet/block{:d}/unit{:02d}",
        "modules": {
            "gn1": "a/group_norm",
            "conv1": f"a/{_CONV}",
            "conv_proj": f"a/proj/{_CONV}",
            "gn2": "b/group_norm",
            "conv2": f"b/{_CONV}",
            "gn3": "c/group_norm",
            "conv3": f"c/{_CONV}",
        },
        "norm": "resnet/group_norm",
        "head": "resnet/head/conv2d",
        "scale": "gamma",
        "shift": "beta",
        "vector": (),
        "head_axes": (1, 1),
    },
    "bit_bv": {
        "dialect": "big_vision",
        "top": "",
        "root": "root_block/conv_root",
        "unit": "block{:d}/unit{:02d}",
        "modules": {name: name for name in ("gn1", "conv1", "conv_proj", "gn2", "conv2", "gn3", "conv3")},
        "norm": "norm-pre-head",
        "head": "head",
        "scale": "scale",
        "shift": "bias",
        "vector": (1, 1, 1),
        "head_axes": (),
    },
}
# Some published files number the convolutions of the whole model; big_vision drops the number too.
_NUMBERED = re.compile(rf"/{_CONV}_\d+/")


def _rows(config: BiTConfig, layout: str) -> list[Row]:
    names = _NAMES[layout]

    def norm(name: str, path: str, channels: int) -> list[Row]:
        shape = (*names["vector"], channels)
        return [
            Row(f"{name}/{names['scale']}", f"{path}/gamma", shape),
            Row(f"{name}/{names['shift']}", f"{path}/beta", shape),
        ]

    rows = []
    for stage, unit, conv, size, into, out in resnet_convolutions(config.channels, config.width, config.stages):
        name, path = names["unit"].format(stage, unit), f"block{stage}_unit{unit}"
        kernel = (size, size, into, out)
        if not stage:
            rows.append(Row(f"{names['root']}/kernel", "conv_root/kernel", kernel))
            continue
        rows.append(Row(f"{name}/{names['modules'][conv]}/kernel", f"{path}/{conv}/kernel", kernel))
        if conv != "conv_proj":  # the normalisation is before the convolution
            group = conv.replace("conv", "gn")
            rows += norm(f"{name}/{names['modules'][group]}", f"{path}/{group}", into)
    rows += norm(names["norm"], "norm_pre_head", config.features)
    if config.classes:
        shape = (*names["head_axes"], config.features, config.classes)
        rows.append(Row(f"{names['head']}/kernel", "head/kernel", shape))
        rows.append(Row(f"{names['head']}/bias", "head/bias", (config.classes,)))
    return rows


def _read(file: Mapping[str, StoredArray], hints: Hints, layout: str) -> Contents | None:
    names = _NAMES[layout]
    plain = {_NUMBERED.sub(f"/{_CONV}/", name): array for name, array in file.items()}
    ends = (f"{names['root']}/kernel", f"{names['unit'].format(1, 1)}/{names['modules']['conv1']}/kernel")
    roots, units = ({name.removesuffix(end) for name in plain if name.endswith(end)} for end in ends)
    model = model_under({prefix for prefix in roots & units if not prefix or prefix.endswith("/")}, plain)
    if model is None:
        return None
    if len(plain) < len(file):
        raise ValueError("It has several arrays whose names differ in nothing but a number that has no meaning.")
    prefix, inside = model
    arrays = {name: array for name, array in inside.items() if name.startswith(names["top"])}
    numbered = any(array.name != f"{prefix}{name}" for name, array in arrays.items())
    unused = sorted(file.keys() - {array.name for array in arrays.values()})
    head = (f"{names['head']}/bias", f"{names['head']}/kernel")
    contents = Contents(prefix=prefix, arrays=arrays, unused=unused, head=head)
    contents.layout = TF if layout == "bit_tf" else BV
    contents.dialect, contents.stored = "numbered" if numbered else names["dialect"], _config(arrays, names)
    return contents


def _config(arrays: Mapping[str, StoredArray], names: Mapping[str, Any]) -> BiTConfig:
    """The model that the arrays' names and shapes tell of; it takes images of any size."""
    pattern = names["unit"].replace("{:d}", r"(\d+)").replace("{:02d}", r"(\d+)")
    units = {(int(s), int(u)) for s, u in re.findall(f"^{pattern}/", "\n".join(arrays), re.MULTILINE)}
    stages = bounded(max(stage for stage, _ in units))
    if max(map(max, units)) > len(units):
        raise ValueError(f"It has {len(units)} units, but their numbers go up to {max(map(max, units))}.")
    *_, channels, width = shape_of(arrays, f"{names['root']}/kernel", 4)
    head = f"{names['head']}/kernel"
    return BiTConfig(
        stages=tuple(max((u for s, u in units if s == stage), default=1) for stage in range(1, stages + 1)),
        width=width,
        channels=channels,
        dynamic=True,
        classes=shape_of(arrays, head, len(names["head_axes"]) + 2)[-1] if head in arrays else None,
    )


def _check_writable(config: BiTConfig, layout: str) -> None:
    if config.folded:
        raise ValueError(
            "The layouts of BiT keep raw kernels, but those of this model have been standardised by folded(). Write "
            "the model that it was made from."
        )
    if layout == "bit_bv" and config.pool_padding != "-inf":
        raise ValueError(
            f"The layout 'bit_bv' is for models with pool_padding='-inf', but this one has {config.pool_padding!r}. "
            "big_vision would compute something else. Write it as layout='bit_tf', or save it as .keras."
        )


def _layout(name: str) -> Layout:
    return Layout(
        name,
        functools.partial(_rows, layout=name),
        functools.partial(_read, layout=name),
        functools.partial(_check_writable, layout=name),
        config_type=BiTConfig,
    )


TF, BV = _layout("bit_tf"), _layout("bit_bv")
