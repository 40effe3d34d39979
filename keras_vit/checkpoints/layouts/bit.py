"""The two layouts of BiT checkpoints: the published `bit_models/*.npz`, and big_vision's `models/bit_paper.py`.

`bit_tf` has the names of the TensorFlow code that trained the published files, `bit_bv` those of big_vision, which
reads both. The arrays are the same but for axes of length 1.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping

from keras_vit.checkpoints.engine import Contents, Hints, Layout, Row, bounded, oddities, shape_of
from keras_vit.checkpoints.files.stored_array import StoredArray
from keras_vit.checkpoints.layouts.vit_jax import model_under
from keras_vit.models import BiTConfig


@dataclasses.dataclass(frozen=True)
class _Names:
    """What a layout calls the modules of the model, and the axes of length 1 that it puts before an array's own.

    `dialect` is the name of the dialect, `top` where all modules are, `units` a template of a unit's name; `modules`
    are our names of what is in a unit, and the layout's.
    """

    dialect: str
    top: str
    root: str
    units: str
    modules: dict[str, str]
    norm: str
    head: str
    scale: str
    bias: str
    vector_axes: tuple[int, ...]
    head_axes: tuple[int, ...]


_CONV = "standardized_conv2d"
_TF = _Names(
    dialect="published",
    top="resnet/",
    root=f"resnet/root_block/{_CONV}",
    units="resnet/block{stage}/unit{unit:02d}",
    modules={
        "gn1": "a/group_norm",
        "conv1": f"a/{_CONV}",
        "conv_proj": f"a/proj/{_CONV}",
        "gn2": "b/group_norm",
        "conv2": f"b/{_CONV}",
        "gn3": "c/group_norm",
        "conv3": f"c/{_CONV}",
    },
    norm="resnet/group_norm",
    head="resnet/head/conv2d",
    scale="gamma",
    bias="beta",
    vector_axes=(),
    head_axes=(1, 1),
)
_BV = _Names(
    dialect="big_vision",
    top="",
    root="root_block/conv_root",
    units="block{stage}/unit{unit:02d}",
    modules={name: name for name in _TF.modules},
    norm="norm-pre-head",
    head="head",
    scale="scale",
    bias="bias",
    vector_axes=(1, 1, 1),
    head_axes=(),
)

# Some published files number the convolutions of the whole model; big_vision drops the number too.
_NUMBERED = re.compile(rf"/{_CONV}_\d+/")


def _rows(config: BiTConfig, names: _Names) -> list[Row]:
    def norm(name: str, path: str, channels: int) -> list[Row]:
        shape = (*names.vector_axes, channels)
        return [
            Row(f"{name}/{names.scale}", f"{path}/gamma", shape),
            Row(f"{name}/{names.bias}", f"{path}/beta", shape),
        ]

    rows = [Row(f"{names.root}/kernel", "conv_root/kernel", (7, 7, config.channels, config.width))]
    before = config.width
    for stage, units in enumerate(config.stages, start=1):
        inner = config.width * 2 ** (stage - 1)
        for unit in range(1, units + 1):
            name, path = names.units.format(stage=stage, unit=unit), f"block{stage}_unit{unit}"
            kernels = {
                "conv1": (1, 1, before, inner),
                "conv2": (3, 3, inner, inner),
                "conv3": (1, 1, inner, 4 * inner),
            }
            if unit == 1:
                kernels["conv_proj"] = (1, 1, before, 4 * inner)
            for module, shape in kernels.items():
                rows.append(Row(f"{name}/{names.modules[module]}/kernel", f"{path}/{module}/kernel", shape))
            for module, channels in {"gn1": before, "gn2": inner, "gn3": inner}.items():
                rows += norm(f"{name}/{names.modules[module]}", f"{path}/{module}", channels)
            before = 4 * inner
    rows += norm(names.norm, "norm_pre_head", before)
    if config.classes:
        rows.append(Row(f"{names.head}/kernel", "head/kernel", (*names.head_axes, before, config.classes)))
        rows.append(Row(f"{names.head}/bias", "head/bias", (config.classes,)))
    return rows


def _read(file: Mapping[str, StoredArray], layout: Layout, names: _Names) -> Contents | None:
    plain = {_NUMBERED.sub(f"/{_CONV}/", name): array for name, array in file.items()}
    ends = (f"{names.root}/kernel", f"{names.units.format(stage=1, unit=1)}/{names.modules['conv1']}/kernel")
    roots, units = ({name.removesuffix(end) for name in plain if name.endswith(end)} for end in ends)
    model = model_under({prefix for prefix in roots & units if not prefix or prefix.endswith("/")}, plain)
    if model is None:
        return None
    if len(plain) < len(file):
        raise ValueError("It has several arrays whose names differ in nothing but a number that has no meaning.")
    prefix, inside = model
    arrays = {name: array for name, array in inside.items() if name.startswith(names.top)}
    config = _config(arrays, names)
    unused = sorted(file.keys() - {array.name for array in arrays.values()})
    numbered = any(array.name != f"{prefix}{name}" for name, array in arrays.items())
    told = oddities(arrays, unused, config, head=names.head)
    return Contents(layout, "numbered" if numbered else names.dialect, prefix, config, arrays, unused, told)


def _config(arrays: Mapping[str, StoredArray], names: _Names) -> BiTConfig:
    """The model that the arrays' names and shapes tell of; it takes images of any size."""
    pattern = names.units.replace("{stage}", r"(\d+)").replace("{unit:02d}", r"(\d+)")
    units = {(int(s), int(u)) for s, u in re.findall(f"^{pattern}/", "\n".join(arrays), re.MULTILINE)}
    stages = bounded(max(stage for stage, _ in units))
    if max(map(max, units)) > len(units):
        raise ValueError(f"It has {len(units)} units, but their numbers go up to {max(map(max, units))}.")
    *_, channels, width = shape_of(arrays, f"{names.root}/kernel", 4)
    head = f"{names.head}/kernel"
    return BiTConfig(
        stages=tuple(max((u for s, u in units if s == stage), default=1) for stage in range(1, stages + 1)),
        width=width,
        channels=channels,
        dynamic=True,
        classes=shape_of(arrays, head, len(names.head_axes) + 2)[-1] if head in arrays else None,
    )


def _check_writable(config: BiTConfig) -> None:
    if config.folded:
        raise ValueError(
            "The layouts of BiT keep raw kernels, but those of this model have been standardised by folded(). Write "
            "the model that it was made from."
        )


def _check_writable_bv(config: BiTConfig) -> None:
    _check_writable(config)
    if config.pool_padding != "-inf":
        raise ValueError(
            f"The layout 'bit_bv' is for models with pool_padding='-inf', but this one has {config.pool_padding!r}. "
            "big_vision would compute something else. Write it as layout='bit_tf', or save it as .keras."
        )


def _layout(name: str, names: _Names, check: Callable[[BiTConfig], None]) -> Layout:
    def read(file: Mapping[str, StoredArray], hints: Hints) -> Contents | None:
        return _read(file, layout, names)

    def rows(config: BiTConfig) -> list[Row]:
        return _rows(config, names)

    layout = Layout(name, rows, lambda config: {}, read, check, config_type=BiTConfig)
    return layout


TF = _layout("bit_tf", _TF, _check_writable)
BV = _layout("bit_bv", _BV, _check_writable_bv)
