"""What fits on which devices: arithmetic before anything is built, without a backend.

Weights, gradients and the optimizer's variables follow from the number of weights. What blocks keep for the backward
pass is the formula of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv
2205.05198, section 4), written for any width of the MLP. docs/distribution.md has both beside what compilers report.
"""

import dataclasses
import math
import os
import re
from typing import TYPE_CHECKING, Any

from keras_vit._arguments import ImageSize, check_choice, printable, whole_number
from keras_vit._files import at_home
from keras_vit._terminal import PlainData, Table, as_text, pairs_table
from keras_vit.models import convolutions, count_weights
from keras_vit.models.config import BiTConfig, ViTConfig
from keras_vit.models.variants import variant_config

if TYPE_CHECKING:
    from rich.console import RenderableType

PRECISIONS = {"float32": 4, "mixed_bfloat16": 2}  # bytes of a number that is computed with; variables are float32
SLOTS = {"adam": 2, "momentum": 1}  # arrays of the weights' size that the optimizer keeps
MARGIN = 1.2  # the arithmetic is within 20 % of compiled programs: what fits shall fit with that
# With fewer images at a time the products of matrices no longer keep a device busy: taken where nothing else fits.
ENOUGH_IMAGES = 8
_MOST = 2**24  # devices, and images of an update
_VARIABLE = 4
MODEL = "model"

# Weight paths (regular expressions), and how the weight lies over the devices: an entry per axis, MODEL for the one
# that is split, None for the others. The first of two matrices in a row is split along its outputs and the second along
# its inputs, so that only the second's result has to be summed over the devices (Megatron-LM, arXiv 1909.08053).
# What is not listed (normalisations, tokens, position and patch embedding: about 1 % of B/16) is whole on every device.
SPLIT: dict[str, tuple[str | None, ...]] = {
    r"attention/(query|key|value)/kernel": (None, MODEL),
    r"attention/(query|key|value)/bias": (MODEL,),
    r"attention/out/kernel": (MODEL, None),
    r"mlp/(fc1|gate|value)/kernel": (None, MODEL),
    r"mlp/(fc1|gate|value)/bias": (MODEL,),
    r"mlp/fc2/kernel": (MODEL, None),
    r"pre_logits/kernel": (None, MODEL),
    r"pre_logits/bias": (MODEL,),
    r"(head|head_dist|projection)/kernel": (MODEL, None),  # inputs: the number of classes seldom divides
    # The ResNets of hybrids and of BiT, along the output channels, each of which is standardised for itself.
    r"(conv_root|conv1|conv2|conv3|conv_proj)/kernel": (None, None, None, MODEL),
}


def split_sizes(config: ViTConfig | BiTConfig) -> dict[str, int]:
    """Returns lengths by fields of a config, each of which the number of shards has to divide."""
    if isinstance(config, BiTConfig):
        return {"width": config.width}
    sizes = {name: getattr(config, name) for name in ("width", "mlp_width", "representation_size")}
    sizes["stem_width"] = config.stem_width if config.stem_stages else 0
    return {name: size for name, size in sizes.items() if size}


@dataclasses.dataclass(frozen=True)
class Memory(PlainData):
    """Bytes on one device at the peak of a training step."""

    weights: int  # with their copies in 16 bit under mixed precision
    optimizer: int  # moments, and the sum of the gradients where batches are accumulated
    gradients: int  # of all weights, which clipping by their common length needs at once
    activations: int  # what the backward pass finds of the forward pass
    workspace: int  # what it computes with: as much as one block keeps, for the gradients of that
    peak: int  # the sum


@dataclasses.dataclass(frozen=True)
class Option(PlainData):
    """One way to train a model on the devices."""

    shards: int  # devices that share one copy of the model: 1 for data parallelism, more for `model_parallel`
    copies: int  # of the model, each with its part of every batch
    remat: bool  # whether blocks are computed again in the backward pass
    accumulate: int  # passes per update, each with `batch_size / accumulate` images
    images: int  # of one copy in one pass
    memory: Memory  # on each device
    fits: str  # "yes", "tight" where less than the margin of the arithmetic (20 %) is free, or "no"


@dataclasses.dataclass(frozen=True)
class Plan(PlainData):
    """What `plan` finds; printing it shows a table.

    Attributes:
        name: The model.
        parameters: The number of weights.
        tokens: Tokens of an image; of a BiT the places of its last map.
        devices: Number of devices.
        memory_bytes: Of each device.
        batch_size: Images of an update.
        dtype: The precision.
        optimizer: The optimizer.
        options: The ways to train it: those that fit first, of these whole models without `remat` first.
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
        """Returns what to do, as a sentence or two: the best way, or what would help where nothing fits."""
        best = self.best
        if best is None:
            least = min(self.options, key=lambda option: option.memory.peak)
            how = f"images={least.images}, remat={least.remat}, shards={least.shards}"
            size = _gigabytes(least.memory.peak)
            return f"Nothing fits: the least is {size} a device ({how}). Take more devices, smaller images or momentum."
        how = "data_parallel()" if best.shards == 1 else f"model_parallel({self.name!r}, shards={best.shards})"
        how = "one device" if self.devices == 1 else f"training.{how}"
        passes = "one pass" if best.accumulate == 1 else f"accumulate={best.accumulate}"
        tight = f" It is tight: the arithmetic is good to {MARGIN - 1:.0%}." if best.fits == "tight" else ""
        return f"Best: {how}, remat={best.remat}, {passes}.{tight}"

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def __rich__(self) -> "RenderableType":
        """Returns what rich draws: the facts, a row for each way, and the advice."""
        from rich.console import Group

        facts = {
            "parameters": f"{self.parameters:,}",
            "tokens of an image": self.tokens,
            "devices": f"{self.devices} with {_gigabytes(self.memory_bytes)}",
            "images of an update": self.batch_size,
            "precision, optimizer": f"{self.dtype}, {self.optimizer}",
        }
        columns = ("fits", "shards", "copies", "remat", "accumulate", "images")
        rows = Table(
            {name: getattr(option, name) for name in columns}
            | {name: _gigabytes(size) for name, size in option.memory.to_dict().items()}
            for option in self.options
        )
        return Group(pairs_table(self.name, facts), rows, self.advice())


def plan(
    model: str | os.PathLike[str] | ViTConfig | BiTConfig,
    devices: int = 1,
    memory: str | int = "80GB",
    batch_size: int = 4096,
    dtype: str = "mixed_bfloat16",
    optimizer: str = "adam",
    image_size: ImageSize | None = None,
    classes: int | None = None,
    fused_attention: bool = False,
) -> Plan:
    """Returns what fits on the devices, and how to divide the work among them.

    Nothing is built or measured: docs/distribution.md has the formulas, and what compilers report beside them. Programs
    of XLA take 20 % more or less. Runs of PyTorch on CPUs took 1.4 times as much, and with `remat` 2.8 times.

    Args:
        model: The name of a variant such as `"ViT-H/14"` or `"BiT-R50x1"`, `"glyphs"`, the path of a checkpoint, a
            config, or a model. Its rates of dropout count; `remat` is tried both ways.
        devices: Number of devices.
        memory: Of each device: a text with a unit, such as `"80GB"` or `"16GiB"`, or a number of bytes.
        batch_size: Images of an update, on all devices together.
        dtype: `"float32"` or `"mixed_bfloat16"`.
        optimizer: `"adam"` (also AdamW) or `"momentum"`.
        image_size: Height and width in pixels, or one number for both; None for the model's.
        classes: Outputs of the head; None for the model's, or 1,000 where a variant's name was given.
        fused_attention: Whether attention never writes its weights to memory, as FlashAttention on GPUs.

    Returns:
        A `Plan`: every way to divide the work, the best one first. A BiT is not split, and has no `remat`.

    Raises:
        TypeError: if `model` is none of these, or `image_size` no integers.
        ValueError: if a name is unknown, a file is damaged, a number makes no sense, or the batch cannot be divided
            among the devices.
        OSError: if a file cannot be read, or has no weights.

    Example:
        >>> answer = training.plan("ViT-H/14", devices=8, memory="80GB", batch_size=4096)
        >>> answer.advice()
        'Best: training.data_parallel(), remat=False, accumulate=8.'
    """
    config, name = _config(model, image_size, classes)
    devices, batch_size = whole_number("devices", devices, 1), whole_number("batch_size", batch_size, 1)
    if max(devices, batch_size) > _MOST:
        raise ValueError(f"devices and batch_size must be at most {_MOST:,}, but {devices:,} and {batch_size:,} are.")
    limit = memory_bytes(memory)
    check_choice("dtype", dtype, tuple(PRECISIONS))
    check_choice("optimizer", optimizer, tuple(SLOTS))
    is_vit, options = isinstance(config, ViTConfig), []
    for shards in _divisors(devices) if is_vit else [1]:
        copies = devices // shards
        if batch_size % copies or any(size % shards for size in split_sizes(config).values()):
            continue
        for remat in (False, True) if is_vit else (False,):
            changed = config.replace(remat=remat) if is_vit else config
            ways = []
            for passes in _divisors(batch_size // copies):
                images = batch_size // copies // passes
                taken = step_memory(changed, images, dtype, optimizer, passes, shards, fused_attention)
                if taken.peak * MARGIN <= limit:
                    fits = "yes"
                else:
                    fits = "tight" if taken.peak <= limit else "no"
                ways.append(Option(shards, copies, remat, passes, images, taken, fits))
            # The fewest passes with which a copy's images fit; the most where nothing does.
            fitting = [way for wanted in ("yes", "tight") for way in ways if way.fits == wanted]
            options.append(fitting[0] if fitting else ways[-1])
    if not options:
        raise ValueError(
            f"{batch_size} images cannot be divided among {devices} devices: take a multiple as batch_size."
        )
    options.sort(key=_preference)
    best = options[0] if options[0].fits != "no" else None
    facts = (name, count_weights(config), _tokens(config), devices, limit, batch_size, dtype, optimizer)
    return Plan(*facts, options=tuple(options), best=best)


def _preference(option: Option) -> tuple[Any, ...]:
    """Returns a key to sort by: what fits first, then enough images at a time, no remat, whole models, few passes."""
    few_images = option.images < min(ENOUGH_IMAGES, option.images * option.accumulate)
    return ("yes", "tight", "no").index(option.fits), few_images, option.remat, option.shards, option.accumulate


def step_memory(
    config: ViTConfig | BiTConfig,
    images: int,
    dtype: str = "float32",
    optimizer: str = "adam",
    accumulate: int = 1,
    shards: int = 1,
    fused_attention: bool = False,
) -> Memory:
    """Returns the memory of a training step on one device, of which one pass has so many images."""
    weights = count_weights(config) // shards  # all but tokens, positions and normalisations is split
    copies = PRECISIONS[dtype] if dtype != "float32" else 0
    slots = SLOTS[optimizer] + (1 if accumulate > 1 else 0)
    activations, workspace = _activations(config, PRECISIONS[dtype], shards, fused_attention)
    parts = {
        "weights": (_VARIABLE + copies) * weights,
        "optimizer": _VARIABLE * weights * slots,
        "gradients": _VARIABLE * weights,
        "activations": images * activations,
        "workspace": images * workspace,
    }
    return Memory(**parts, peak=sum(parts.values()))


def _activations(config: ViTConfig | BiTConfig, size: int, shards: int, fused_attention: bool) -> tuple[int, int]:
    """Returns the bytes that all layers keep of an image, and those of one block (of a BiT its largest map)."""
    # A number has `size` bytes. Of each convolution its inputs and outputs; of a block `s b h (34 + 5 a s / h)` bytes
    # in 16 bit, as table 2 of the source has it, with its masks of dropout only where there is dropout.
    maps = [2 * size * conv.filters * math.prod(conv.map_size) // shards for conv in convolutions(config)]
    if isinstance(config, BiTConfig):
        return sum(maps), max(maps)
    tokens, width, hidden = _tokens(config), config.width, config.mlp_width
    # Whole on every device: what both normalisations and both halves take, and what is scaled by layer scale.
    whole = tokens * width * (4 if config.layer_scale is None else 6)
    # Queries, keys, values, what the heads return; inputs and outputs of the activation, for SwiGLU also the product.
    split = tokens * (4 * width + hidden * (2 if config.mlp.startswith("plain") else 3))
    masks = 2 * tokens * width if config.dropout else 0
    if config.tokens_mlp_width is not None:  # what goes into the perceptron across tokens, and into and out of its GELU
        whole += 2 * width * config.tokens_mlp_width
    elif config.attention_dropout:  # the weights before and after it, and its mask; never fused
        split += 2 * config.heads * tokens**2
        masks += config.heads * tokens**2 // shards
    elif fused_attention:  # two numbers for each row of weights
        split += 2 * config.heads * tokens
    else:
        split += config.heads * tokens**2
    block = size * (whole + split // shards) + masks
    if config.remat:  # what each block takes, and one of them whole
        blocks = config.depth * size * tokens * width + block
    else:
        blocks = config.depth * block
    return sum(maps) + blocks + size * tokens * width, block - masks  # and what the last normalisation takes


def _tokens(config: ViTConfig | BiTConfig) -> int:
    """Returns the number of tokens of an image; of a BiT the places of its last map."""
    if isinstance(config, BiTConfig):
        return math.prod(config.feature_map_size)
    return math.prod(config.grid_size) + config.prefix_tokens


def memory_bytes(memory: str | int) -> int:
    """Returns a number of bytes, also from text with a unit such as `"80GB"` or `"16GiB"`."""
    size = memory
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt])(i?)b\s*", memory.lower())
        if match is None:
            given = printable(repr(memory), 60)
            raise ValueError(f"memory must be a number with a unit such as '80GB' or '16GiB', but {given} was given.")
        size = int(float(match[1]) * (1024 if match[3] else 1000) ** ("kmgt".index(match[2]) + 1))
    size = whole_number("memory", size, 0)
    if size < 2**20:
        raise ValueError(f"memory must be that of one device, such as '80GB', but {memory!r} was given.")
    return size


def _config(model: Any, image_size: ImageSize | None, classes: int | None) -> tuple[ViTConfig | BiTConfig, str]:
    """Returns the config of a model, a file or a variant, with another size and classes where given, and its name."""
    config, name, changes = getattr(model, "config", model), getattr(model, "name", "model"), {}
    if isinstance(model, (str, os.PathLike)):
        name = str(model)
        if name == "glyphs" or os.path.exists(at_home(model)):
            from keras_vit.zoo import load  # needs Keras, which names of variants do not

            config = load(model).config
        else:
            config, changes = variant_config(name), {"classes": 1000}
    if not isinstance(config, (ViTConfig, BiTConfig)):
        raise TypeError(
            "model must be the name of a variant, 'glyphs', the path of a checkpoint, a config or a model, but "
            f"{printable(repr(model), 60)} was given."
        )
    given = {"image_size": image_size, "classes": classes}
    return config.replace(**changes | {field: value for field, value in given.items() if value is not None}), name


def _divisors(number: int) -> list[int]:
    """Returns all divisors of a number of at least 1, in ascending order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if not number % n]
    return sorted({*small, *(number // n for n in small)})


def _gigabytes(size: int) -> str:
    """Returns a number of bytes as text, such as "1.25 GB" or, below 10 MB, "3.10 MB"."""
    return f"{size / 1e9:.2f} GB" if size >= 1e7 else f"{size / 1e6:.2f} MB"
