"""The layouts of BiT, the ResNet that the first paper compares with.

They have the names of the TensorFlow code that trained the published `bit_models/*.npz` (`bit_tf`), or those of
big_vision's `models/bit_paper.py` (`bit_bv`). The arrays are the same but for axes of length 1.
"""

import functools
import re
from collections.abc import Collection, Iterator, Mapping

from keras_vit.checkpoints.accounting import Layout, Plan, Row, check_fields, shape_of
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts.flax import FOLDED, best_prefix, check_single, model_under, renamed, stages
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import BiTConfig, convolutions

_CONV = "standardized_conv2d"
# What the two layouts call the model's layers, where that is another name.
_NAMES = {
    "bit_tf": {
        "conv_root": f"root_block/{_CONV}",
        "conv_proj": f"a/proj/{_CONV}",
        **{f"conv{i}": f"{letter}/{_CONV}" for i, letter in enumerate("abc", start=1)},
        **{f"gn{i}": f"{letter}/group_norm" for i, letter in enumerate("abc", start=1)},
        "norm_pre_head": "group_norm",
        "head": "head/conv2d",
    },
    "bit_bv": {
        "conv_root": "root_block/conv_root",
        "norm_pre_head": "norm-pre-head",
        "gamma": "scale",
        "beta": "bias",
    },
}
_TOP = {"bit_tf": "resnet/", "bit_bv": ""}


def _name(path: str, layout: str) -> str:
    """What a layout calls a weight of the model."""
    parts = [_NAMES[layout].get(part, part) for part in path.split("/")]
    name = re.sub(r"block(\d+)_unit(\d+)", lambda m: f"block{m[1]}/unit{int(m[2]):02d}", "/".join(parts))
    return f"{_TOP[layout]}{name}"


def _rows(config: BiTConfig, layout: str) -> list[Row]:
    """The rows of a BiT in a layout, for `"bit_tf"` with axes of length 1 where the older code has them."""
    shapes: dict[str, tuple[int, ...]] = {}
    vector, matrix = ((), (1, 1)) if layout == "bit_tf" else ((1, 1, 1), ())

    def norm(path: str, channels: int) -> None:
        shapes.update({f"{path}/{weight}": (*vector, channels) for weight in ("gamma", "beta")})

    for conv in convolutions(config):
        shapes[f"{conv.unit_path}{conv.layer}/kernel"] = (conv.size, conv.size, conv.inputs, conv.filters)
        if conv.layer in ("conv1", "conv2", "conv3"):  # with a normalisation before it
            norm(f"{conv.unit_path}{conv.layer.replace('conv', 'gn')}", conv.inputs)
    norm("norm_pre_head", config.features)
    if config.classes:
        shapes |= {"head/kernel": (*matrix, config.features, config.classes), "head/bias": (config.classes,)}
    return [Row(_name(path, layout), path, shape) for path, shape in shapes.items()]


def _plain(name: str) -> str:
    """A name without the number of a convolution, which some published files have; big_vision drops it too."""
    return re.sub(rf"/{_CONV}_\d+/", f"/{_CONV}/", name)


def _prefixes(names: Collection[str], layout: str) -> set[str]:
    """What stands before the BiTs that a file holds."""
    plain = [_plain(name) for name in names]
    ends = [_name(path, layout) for path in ("conv_root/kernel", "block1_unit1/conv1/kernel")]
    roots, units = ({name.removesuffix(end) for name in plain if name.endswith(end)} for end in ends)
    return {prefix for prefix in roots & units if not prefix or prefix.endswith("/")}


def recognise(names: Collection[str], sidecars: Sidecars, layout: str) -> bool:
    """Whether a BiT is among the arrays."""
    return bool(_prefixes(names, layout))


def plan(file: Mapping[str, StoredArray], sidecars: Sidecars, layout: str) -> Plan:
    """The plan by which a BiT is read; ValueError for several models, missing arrays or shapes of another model."""
    prefixes, top = _prefixes(file, layout), _TOP[layout]
    check_single(prefixes)
    prefix = best_prefix(prefixes)
    arrays = model_under(prefix, renamed(dict(file), _plain))
    arrays = {name: array for name, array in arrays.items() if name.startswith(top)}
    numbered = any(array.name != f"{prefix}{name}" for name, array in arrays.items())
    head = (_name("head/kernel", layout), _name("head/bias", layout))
    *_, channels, width = shape_of(arrays, _name("conv_root/kernel", layout), 4)
    stored = BiTConfig(
        stages=stages(arrays, rf"^{top}block(\d+)/unit(\d+)/"),
        width=width,
        channels=channels,
        dynamic=True,
        classes=shape_of(arrays, head[0], 4 if layout == "bit_tf" else 2)[-1] if head[0] in arrays else None,
    )
    return Plan(
        layout=BIT_TF if layout == "bit_tf" else BIT_BV,
        dialect="numbered" if numbered else "published" if layout == "bit_tf" else "big_vision",
        prefix=prefix,
        stored=stored,
        arrays=arrays,
        unused=sorted(file.keys() - {array.name for array in arrays.values()}),
        head=head,
    )


def _check_writable(config: BiTConfig, layout: str) -> None:
    check_fields(config, repr(layout), {}, _problems(config, layout))


def _problems(config: BiTConfig, layout: str) -> Iterator[str]:
    """Yields the reasons for which the layout has no place for a model of the config."""
    if config.folded:
        yield FOLDED
    if config.classes and config.pooling == "none":
        yield "it has a head at every place"
    if layout == "bit_bv" and config.pool_padding != "-inf":
        padding = f"pool_padding={config.pool_padding!r}"
        yield f"{padding}, but 'bit_tf' has: big_vision would compute pool_padding='-inf'"


BIT_TF, BIT_BV = (
    Layout(
        name,
        functools.partial(_rows, layout=name),
        functools.partial(recognise, layout=name),
        functools.partial(plan, layout=name),
        functools.partial(_check_writable, layout=name),
        config_type=BiTConfig,
    )
    for name in _NAMES
)
