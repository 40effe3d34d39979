"""How much memory a training step takes on each device: arithmetic on a config; no model is built.

Weights, gradients and the optimizer's variables follow from the number of weights. What a block keeps for the backward
pass depends on the compiler, because much of what automatic differentiation asks for can be computed once more from
something else that is kept. The tables below say what is kept; they were read off the programs that XLA makes (buffers
that are alive at the peak), and `benchmarks/planning.py` compares the sums with what the compiler reports.

- On TPUs, XLA keeps what the matrix products gave, and the sums on the way: normalisations, softmax and GELU are
  computed again inside the products that want their results. GPUs are counted alike.
- On CPUs, XLA keeps exponentials and results of GELU and of normalisations as well. It has no products in 16 bit: it
  computes them in float32, and keeps everything in float32, with a rounded copy of the weights.
"""

import dataclasses
import math
from collections.abc import Collection

from keras_vit._text import printable
from keras_vit.models.config import ViTConfig
from keras_vit.models.counts import count_weights
from keras_vit.training.splitting import count_split_weights, stem_kernels

# Bytes of a number that is computed with. Variables are float32 either way.
PRECISIONS = {"float32": 4, "mixed_bfloat16": 2}
# Arrays of the weights' size that the optimizer keeps.
SLOTS = {"adam": 2, "momentum": 1}
COMPILERS = ("accelerator", "cpu")
_VARIABLE = 4


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device.

    Activations go as gradients come, so that the peak is less than the sum of all.

    Attributes:
        weights: The weights.
        optimizer: What the optimizer keeps: moments, and the sum of the gradients where batches are accumulated.
        images: The images, in float32.
        activations: What the backward pass finds of the forward pass, with copies of the weights in 16 bit.
        gradients: The gradients of all weights. They are all there before the first weight changes: the recipes clip
            them by their common length, and several devices add them up.
        temporaries: What is alive at the peak beside weights, optimizer, images and the larger of activations and
            gradients.
    """

    weights: int
    optimizer: int
    images: int
    activations: int
    gradients: int
    temporaries: int

    @property
    def peak(self) -> int:
        """Most bytes that are taken at one time."""
        lasting = self.weights + self.optimizer + self.images
        return lasting + max(self.activations, self.gradients) + self.temporaries


def training_memory(
    config: ViTConfig,
    images: int,
    dtype: str = "float32",
    optimizer: str = "adam",
    accumulate: int = 1,
    shards: int = 1,
    fused_attention: bool = False,
    compiler: str = "accelerator",
) -> Memory:
    """The memory of a training step on one device.

    Args:
        config: The model; its `remat` and its rates of dropout count.
        images: Images of one pass, on the device or on the group of devices that shares a copy of the model.
        dtype: `"float32"` or `"mixed_bfloat16"`.
        optimizer: `"adam"` (also AdamW) or `"momentum"` (SGD with momentum).
        accumulate: Passes per update; with more than one the sum of the gradients is kept.
        shards: Devices that one copy of the model is split over, as `model_parallel` does it.
        fused_attention: Whether attention is one operation that never writes its weights to memory, as
            FlashAttention on GPUs. Dropout of attention weights prevents it.
        compiler: `"accelerator"` or `"cpu"`: whose way of keeping activations is counted.

    Raises:
        ValueError: if a name is unknown.
    """
    _check("dtype", dtype, PRECISIONS)
    _check("optimizer", optimizer, SLOTS)
    _check("compiler", compiler, COMPILERS)
    size = _VARIABLE if compiler == "cpu" else PRECISIONS[dtype]
    split = count_split_weights(config)
    weights = count_weights(config) - split + split // shards
    block = _Block.of(config, shards, fused_attention, compiler)
    per_number = images * size
    copies = _copies(config, weights, block, shards, dtype, compiler)
    inside = (block.attention + block.mlp) * per_number
    begin = _begin(config, shards, compiler) * per_number
    first = block.tokens * images * PRECISIONS[dtype]  # what a block starts from, where the rest is computed again
    kept = begin + copies + config.depth * (first if config.remat else inside)
    mask_bytes = block.masks * images
    kept += mask_bytes * (1 if config.remat else config.depth)
    peak = _peak(config, block, begin + copies + mask_bytes, first if config.remat else inside, per_number, weights)
    lasting = max(kept, _VARIABLE * weights)
    return Memory(
        weights=_VARIABLE * weights,
        optimizer=_VARIABLE * weights * (SLOTS[optimizer] + (accumulate > 1)),
        images=_VARIABLE * images * config.channels * math.prod(config.image_size),
        activations=kept,
        gradients=_VARIABLE * weights,
        temporaries=max(peak - lasting, 0),
    )


@dataclasses.dataclass(frozen=True)
class _Block:
    """One block: numbers that are kept of an image, and numbers that exist for a moment; weights of each half."""

    tokens: int  # T D, of which a block starts
    attention: int
    mlp: int
    attention_workspace: int
    mlp_workspace: int
    masks: int  # bytes of dropout
    attention_weights: int
    mlp_weights: int

    @classmethod
    def of(cls, config: ViTConfig, shards: int, fused_attention: bool, compiler: str) -> "_Block":
        rows, columns = config.grid_size
        tokens = rows * columns + config.prefix_tokens
        whole, part = tokens * config.width, tokens * config.width // shards
        hidden = tokens * config.mlp_width // shards
        matrices = 1 if config.mlp.startswith("plain") else 2
        fused = fused_attention and not config.attention_dropout
        scores = (2 * tokens if fused else tokens**2) * config.heads // shards
        # The sum that a normalisation starts from; queries, keys, values and joined heads; the scores.
        attention = whole + 4 * part + scores
        # The sum again; what the MLP's first matrices gave.
        mlp = whole + matrices * hidden
        if config.layer_scale is not None:
            # What is scaled, for the gradient of the factors.
            attention, mlp = attention + whole, mlp + whole
        if compiler == "cpu":
            # A normalisation: its input without mean and deviation, and its result; its input itself no more.
            attention, mlp = attention + whole, mlp + whole
            attention += 2 * part if config.attention_norm else 0
            mlp += 2 * hidden if config.mlp.endswith("_norm") else 0
            # GELU's exponential and result, and the same of SiLU and the product. The softmax in two layouts, which
            # only dropout needs.
            mlp += 2 * matrices * hidden
            attention += 2 * scores if config.attention_dropout else 0
        dropped = 2 * whole + hidden if config.dropout else 0
        dropped += scores if config.attention_dropout else 0
        matrix_weights = config.width * config.mlp_width * (matrices + 1)
        return cls(
            tokens=whole,
            attention=attention,
            mlp=mlp,
            # The gradients of what the half computes inside, and of the tokens that come in and go out.
            attention_workspace=2 * whole + 3 * part + (0 if fused else 2 * scores),
            mlp_workspace=2 * whole + matrices * hidden,
            masks=dropped,
            attention_weights=4 * config.width**2 // shards,
            mlp_weights=matrix_weights // shards,
        )


def _begin(config: ViTConfig, shards: int, compiler: str) -> int:
    """Numbers that are kept of an image before the first block and after the last one."""
    rows, columns = config.grid_size
    tokens = rows * columns + config.prefix_tokens
    norm = 2 if compiler == "cpu" else 1
    # The images once more, in the layout and precision of the patch embedding's gradient.
    total = config.channels * math.prod(config.image_size)
    if config.stem_stages is not None:
        total += _stem(config, shards, compiler)
    total += tokens * config.width * norm * (config.pre_norm + (config.final_norm == "tokens"))
    if config.pooling == "map":
        total += 2 * tokens * config.width // shards  # keys and values
    return total


def _stem(config: ViTConfig, shards: int, compiler: str) -> int:
    """Numbers that the ResNet of a hybrid keeps of an image: the results of its convolutions, and its sums.

    On CPUs also what the second and third convolution take, in the layout that the gradients of their kernels want.
    """

    def halve(size: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-(-n // 2) for n in size)

    size = halve(config.image_size)
    total = math.prod(size) * config.stem_width
    # On CPUs the maximum is taken of rows, then of columns: what it takes, and what is between.
    total += size[0] * (size[1] + halve(size)[1]) * config.stem_width if compiler == "cpu" else 0
    size = halve(size)
    total += math.prod(size) * config.stem_width
    for stage, units in enumerate(config.stem_stages or ()):
        inner = config.stem_width * 2**stage
        for unit in range(units):
            before = math.prod(size)
            size = halve(size) if stage and not unit else size
            after = math.prod(size)
            results = before * inner + after * (inner + 4 * inner) + (after * 4 * inner if not unit else 0)
            total += results + after * 4 * inner + ((before + after) * inner if compiler == "cpu" else 0)
    return total // shards


def _copies(config: ViTConfig, weights: int, block: _Block, shards: int, dtype: str, compiler: str) -> int:
    """Bytes of the weights as they are computed with: in 16 bit, and on CPUs in float32 but rounded to 16 bit."""
    # The kernels of a ResNet are standardised first; on CPUs those less their mean and a transposed copy stay, too.
    kernels = sum(rows**2 * inputs * outputs for rows, inputs, outputs in stem_kernels(config)) // shards
    standardised = kernels * (3 * _VARIABLE if compiler == "cpu" else PRECISIONS[dtype])
    if dtype == "float32":
        return standardised
    blocks = config.depth * (block.attention_weights + block.mlp_weights)
    # Blocks that are computed again copy their weights again.
    copied = weights - blocks + blocks // config.depth if config.remat else weights
    return standardised + copied * (_VARIABLE if compiler == "cpu" else 2)


def _peak(config: ViTConfig, block: _Block, begin: int, each: int, per_number: int, weights: int) -> int:
    """Most bytes that are alive beside weights, optimizer and images: a walk backwards through the blocks.

    Every half of a block frees what it had kept and leaves the gradients of its weights. `begin` is kept throughout,
    `each` for every block until it is reached.
    """
    inside = (block.attention + block.mlp) * per_number
    live = begin + config.depth * each
    peak = live
    gradients = 0
    for _ in range(config.depth):
        live += inside - each  # computed again
        gradients += _VARIABLE * block.mlp_weights // 2
        peak = max(peak, live + gradients + block.mlp_workspace * per_number)
        live -= block.mlp * per_number
        gradients += _VARIABLE * (block.mlp_weights - block.mlp_weights // 2)
        peak = max(peak, live + gradients + block.attention_workspace * per_number)
        live -= block.attention * per_number
        gradients += _VARIABLE * block.attention_weights
    return max(peak, live + _VARIABLE * weights)


def _check(name: str, value: object, choices: Collection[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, but {printable(repr(value), 60)} was given.")
