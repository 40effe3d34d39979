"""What fits on which devices, how to split it, and how long a step takes: arithmetic before anything is started."""

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

from keras_vit._text import printable
from keras_vit._types import ImageSize, whole_number
from keras_vit.models.bit_config import BiTConfig
from keras_vit.models.config import ViTConfig
from keras_vit.models.counts import count_weights
from keras_vit.models.macs import count_macs
from keras_vit.models.variants import variant_config
from keras_vit.tables import Table, as_text, pairs_table
from keras_vit.training.memory import PRECISIONS, Memory, training_memory
from keras_vit.training.splitting import count_split_weights, split_sizes

if TYPE_CHECKING:
    from rich.console import RenderableType

# The memory model is held to 20 % of what compilers report (`benchmarks/planning.py`): what fits shall fit with that.
MARGIN = 1.2
# With fewer images at a time the products of matrices no longer keep a device busy: taken where nothing else fits.
ENOUGH_IMAGES = 8
CLASSES = 1000
_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_LEAST_MEMORY, _MOST_MEMORY = 2**20, 2**50
_MOST = 2**24  # devices, and images of an update


@dataclasses.dataclass(frozen=True)
class Option:
    """One way to train a model on the devices.

    Attributes:
        shards: Devices that share one copy of the model: 1 for data parallelism, more for `model_parallel`.
        copies: Copies of the model, each with its part of every batch.
        remat: Whether blocks are computed again in the backward pass.
        accumulate: Passes per update, each with `batch_size / accumulate` images.
        images: Images of one copy in one pass.
        memory: Bytes on each device.
        share_of_memory: The peak over the memory of a device.
        fits: `"yes"`, `"tight"` where less than the margin of the arithmetic (20 %) is free, or `"no"`.
        sent_bytes: What each device sends to others in an update: sums of gradients, and of a split model's tokens. For
            split models counted as XLA compiles them for CPUs, within 5 %; other compilers may send a third less.
        flops: Floating point operations of an update, on all devices.
        seconds: Of an update, computing only; None where the devices' peak was not given.
    """

    shards: int
    copies: int
    remat: bool
    accumulate: int
    images: int
    memory: Memory
    share_of_memory: float
    fits: str
    sent_bytes: int
    flops: int
    seconds: float | None

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data, for JSON."""
        memory = {**dataclasses.asdict(self.memory), "peak": self.memory.peak}
        return {**dataclasses.asdict(self), "memory": memory}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What `plan` answers; printing it shows a table.

    Attributes:
        name: What was asked for.
        parameters: The number of weights.
        tokens: Tokens of an image.
        devices: Number of devices.
        memory_bytes: Of each device.
        batch_size: Images of an update.
        dtype: The precision.
        optimizer: The optimizer.
        options: The ways to train it, the quickest that fit first.
        best: The first of them, if it fits; None if none does.

    Example:
        >>> best = training.plan(config, memory="1GB", batch_size=8).best
        >>> best.fits, best.shards, best.images
        ('yes', 1, 8)
    """

    name: str
    parameters: int
    tokens: int
    devices: int
    memory_bytes: int
    batch_size: int
    dtype: str
    optimizer: str
    options: tuple[Option, ...]
    best: Option | None

    def advice(self) -> str:
        """What to do, in a sentence or two."""
        best = self.best
        if best is None:
            least = min(self.options, key=lambda option: option.memory.peak)
            return (
                f"Nothing fits: the least is {_gigabytes(least.memory.peak)} on each device, with {least.images} "
                f"image{'s' * (least.images != 1)} at a time, remat={least.remat} and shards={least.shards}. Take more "
                "devices or memory, a smaller image size, or optimizer='momentum'."
            )
        how = "data_parallel()" if best.shards == 1 else f"model_parallel({self.name!r}, shards={best.shards})"
        how = "one device" if self.devices == 1 else f"training.{how}"
        passes = "one pass" if best.accumulate == 1 else f"accumulate={best.accumulate}"
        return f"Best: {how}, remat={best.remat}, {passes}." + (
            f" It is tight: the arithmetic is good to {MARGIN - 1:.0%}." if best.fits == "tight" else ""
        )

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, for JSON."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        best = None if self.best is None else self.best.to_dict()
        return {**fields, "options": [option.to_dict() for option in self.options], "best": best}

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def __rich__(self) -> "RenderableType":
        """What rich draws."""
        from rich.console import Group

        facts = pairs_table(
            self.name,
            {
                "parameters": f"{self.parameters:,}",
                "tokens of an image": self.tokens,
                "devices": f"{self.devices} with {_gigabytes(self.memory_bytes)}",
                "images of an update": self.batch_size,
                "precision, optimizer": f"{self.dtype}, {self.optimizer}",
            },
        )
        return Group(facts, _OptionsTable(_row(option) for option in self.options), self.advice())


class _OptionsTable(Table):
    """The options of a plan."""


def plan(
    model: str | ViTConfig,
    devices: int = 1,
    memory: str | int = "80GB",
    batch_size: int = 4096,
    dtype: str = "mixed_bfloat16",
    optimizer: str = "adam",
    image_size: ImageSize | None = None,
    classes: int | None = None,
    peak_tflops: float | None = None,
    share: float = 0.4,
    fused_attention: bool = False,
    compiler: str = "accelerator",
) -> Plan:
    """What fits on the devices, how to split it, and how long an update takes.

    Nothing is built or measured: docs/distribution.md has the formulas, and what compilers report beside them.

    Args:
        model: The name of a variant such as `"ViT-H/14"`, or a config. Its rates of dropout count; `remat` is tried
            both ways.
        devices: Number of devices.
        memory: Of each device: a text with a unit, such as `"80GB"` or `"16GiB"`, or a number of bytes.
        batch_size: Images of an update, on all devices together.
        dtype: `"float32"` or `"mixed_bfloat16"`.
        optimizer: `"adam"` (also AdamW) or `"momentum"`.
        image_size: Height and width in pixels, or one number for both; None for the model's.
        classes: Outputs of the head; None for the model's, or 1,000 where a variant's name was given.
        peak_tflops: What a device can do in that precision, in 10^12 floating point operations a second; None to leave
            the seconds out.
        share: The share of that peak which training reaches. 0.4 is what the paper's own figures come to.
        fused_attention: Whether attention never writes its weights to memory, as FlashAttention on GPUs.
        compiler: Whose way of keeping activations is counted: `"accelerator"`, or `"cpu"`.

    Returns:
        A `Plan`: every way to divide the work, the best one first.

    Raises:
        TypeError: if `model` is neither a name nor a ViTConfig; BiT has no such arithmetic.
        ValueError: if a name is unknown, a number makes no sense, or the batch cannot be divided among the devices.

    Example:
        >>> answer = training.plan("ViT-H/14", devices=8, memory="80GB", batch_size=4096)
        >>> answer.advice()
        'Best: training.data_parallel(), remat=False, accumulate=4.'
    """
    config, name = _config(model, image_size, classes)
    devices = _count("devices", devices)
    batch_size = _count("batch_size", batch_size)
    limit = memory_bytes(memory)
    _check_number("share", share, 1)
    if peak_tflops is not None:
        _check_number("peak_tflops", peak_tflops, math.inf)
    options = []
    for shards in _divisors(devices):
        copies = devices // shards
        if batch_size % copies or any(size % shards for size in split_sizes(config).values()):
            continue
        for remat in (False, True):
            changed = config.replace(remat=remat)
            accumulate, bytes_taken = _smallest(
                changed, batch_size // copies, limit, shards, dtype, optimizer, fused_attention, compiler
            )
            flops = _flops(changed) * batch_size
            taken = bytes_taken.peak / limit
            option = Option(
                shards=shards,
                copies=copies,
                remat=remat,
                accumulate=accumulate,
                images=batch_size // copies // accumulate,
                memory=bytes_taken,
                share_of_memory=taken,
                fits="yes" if taken * MARGIN <= 1 else "tight" if taken <= 1 else "no",
                sent_bytes=sent_in_an_update(changed, batch_size // copies, accumulate, shards, copies, dtype),
                flops=flops,
                seconds=None if peak_tflops is None else flops / (devices * peak_tflops * 1e12 * share),
            )
            options.append(option)
    if not options:
        raise ValueError(
            f"batch_size must be a multiple of the number of copies of the model, but {batch_size} images cannot be "
            f"divided among {devices} devices, nor the model split so that they can. Take a multiple of {devices}."
        )
    options.sort(key=_preference)
    best = options[0] if options[0].fits != "no" else None
    tokens = math.prod(config.grid_size) + config.prefix_tokens
    fields = (name, count_weights(config), tokens, devices, limit, batch_size, dtype, optimizer)
    return Plan(*fields, options=tuple(options), best=best)


def memory_bytes(memory: str | int) -> int:
    """A size of memory in bytes, from a number of bytes or a text with a unit such as `"80GB"` or `"16GiB"`.

    Raises:
        ValueError: if it is neither, the unit is unknown or missing, or no device has so little or so much.
    """
    units = ", ".join(_UNITS)
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*", memory)
        unit = match and {name.lower(): size for name, size in _UNITS.items()}.get(match[2].lower())
        if not match or not unit:
            raise ValueError(
                f"memory must be a number with a unit ({units}) such as '80GB', but {printable(repr(memory), 60)} was "
                "given."
            )
        value = int(float(match[1]) * unit)
    else:
        value = whole_number("memory", memory, 0)
    if not _LEAST_MEMORY <= value <= _MOST_MEMORY:
        raise ValueError(
            f"memory must be that of one device, between 1MiB and 1024TiB, but {memory!r} was given. Say it with a "
            f"unit ({units}), such as '80GB'."
        )
    return value


def _config(model: str | ViTConfig, image_size: ImageSize | None, classes: int | None) -> tuple[ViTConfig, str]:
    if isinstance(model, str):
        config, name = variant_config(model), model
        changes: dict[str, Any] = {"classes": CLASSES}
    else:
        config, name, changes = model, "model", {}
    if not isinstance(config, ViTConfig):
        what = f"{name} is a BiT" if isinstance(config, BiTConfig) else f"{printable(repr(model), 60)} was given"
        raise TypeError(f"model must be the name of a Vision Transformer or a ViTConfig, but {what}.")
    if image_size is not None:
        changes["image_size"] = image_size
    if classes is not None:
        changes["classes"] = classes
    return config.replace(**changes), name


def _count(name: str, value: Any) -> int:
    number = whole_number(name, value, 1)
    if number > _MOST:
        raise ValueError(f"{name} must be at most {_MOST:,}, but {number:,} was given.")
    return number


def _check_number(name: str, value: Any, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most or math.isinf(value):
        upper = f" and at most {most}" if most < math.inf else ""
        raise ValueError(f"{name} must be a number above 0{upper}, but {value!r} was given.")


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if not number % n]
    return sorted({*small, *(number // n for n in small)})


def _smallest(
    config: ViTConfig,
    images: int,
    limit: int,
    shards: int,
    dtype: str,
    optimizer: str,
    fused_attention: bool,
    compiler: str,
) -> tuple[int, Memory]:
    """The smallest number of passes with which a copy's images fit; all of them where nothing does."""
    passes = _divisors(images)
    every = [
        training_memory(config, images // n, dtype, optimizer, n, shards, fused_attention, compiler) for n in passes
    ]
    for margin in (MARGIN, 1):
        for accumulate, taken in zip(passes, every, strict=True):
            if taken.peak * margin <= limit:
                return accumulate, taken
    return passes[-1], every[-1]


def _flops(config: ViTConfig) -> int:
    """Of a training step, for one image: a multiply-accumulate is two, the backward pass two forward passes."""
    if not config.remat:
        return 6 * count_macs(config)
    block = count_macs(config.replace(depth=2)) - count_macs(config.replace(depth=1))
    return 6 * count_macs(config) + 2 * config.depth * block


def sent_in_an_update(config: ViTConfig, images: int, accumulate: int, shards: int, copies: int, dtype: str) -> int:
    """Bytes that a device sends in an update: every sum over n devices sends 2 (n - 1) / n of what is summed."""
    split = count_split_weights(config)
    gradients = 4 * (count_weights(config) - split + split // shards) * accumulate
    tokens = math.prod(config.grid_size) + config.prefix_tokens
    # Of a split block, the results of attention and MLP; backwards the gradients of what queries, keys, values and the
    # first matrices of the MLP start from, each by itself, as XLA compiles it; with remat, attention once more.
    matrices = 1 if config.mlp.startswith("plain") else 2
    sums = config.depth * (2 + 3 + matrices + config.remat)
    summed = images * tokens * config.width * PRECISIONS[dtype] * sums
    return int(2 * (copies - 1) / copies * gradients + 2 * (shards - 1) / shards * summed)


def _preference(option: Option) -> tuple[Any, ...]:
    """What fits first; whole batches for the device; then the least work, the least sent, the fewest passes."""
    return (
        ("yes", "tight", "no").index(option.fits),
        option.images < min(ENOUGH_IMAGES, option.images * option.accumulate),
        option.flops,
        option.sent_bytes,
        option.accumulate,
    )


def _row(option: Option) -> dict[str, Any]:
    memory = option.memory
    return {
        "fits": option.fits,
        "devices per copy": option.shards,
        "copies": option.copies,
        "remat": "yes" if option.remat else "no",
        "passes": option.accumulate,
        "images at a time": option.images,
        "weights": _gigabytes(memory.weights),
        "optimizer": _gigabytes(memory.optimizer),
        "gradients": _gigabytes(memory.gradients),
        "activations": _gigabytes(memory.activations),
        "images": _gigabytes(memory.images),
        "temporaries": _gigabytes(memory.temporaries),
        "peak": _gigabytes(memory.peak),
        "sent": _gigabytes(option.sent_bytes),
        "seconds": option.seconds,
    }


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e7 else f"{size / 1e6:.2f} MB"
