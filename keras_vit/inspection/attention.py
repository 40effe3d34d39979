"""The paper's figures as arrays: where a model looks (6, 7 right, 11, 14), and what its weights show (7, 10)."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from keras_vit._arguments import to_numpy, unit_vectors, whole_number
from keras_vit._keras import no_gradients
from keras_vit.inspection.running import BATCH_SIZE, ModelSource, Probe, in_batches
from keras_vit.layers import StdConv2D, sincos2d
from keras_vit.models import ViTConfig

POOLING = "pooling"  # the block that is none: attention pooling


def attention_maps(
    model: ModelSource, images: Any, block: int | str = -1, *, batch_size: int = BATCH_SIZE
) -> np.ndarray:
    """Returns the attention weights of a block: how much each token attends to each token.

    Args:
        model: A `VisionTransformer`, or a functional or sequential model with one inside; or what `keras_vit.load`
            takes.
        images: A batch as the model takes it, `(batch, height, width, channels)`.
        block: Number of a block, from 0, or from the end with -1 for the last one; `"pooling"` for attention pooling.
        batch_size: Images computed at a time.

    Returns:
        float32 `(batch, heads, queries, keys)`; each row sums to 1. Queries and keys are the tokens: those before the
        patches (`model.config.prefix_tokens`; first the class token), then the patches, row by row. Attention pooling
        has one query.

    Raises:
        TypeError: if the model has no attention, `block` is not a number, or the images are not numbers.
        ValueError: if there is no such block, images or `batch_size` do not fit, or the model is damaged, contains
            several or was optimized for inference.
        OSError: if the model's file is missing or cannot be read or fetched.

    Examples:
        >>> inspection.attention_maps(model, images, block=-1).shape  # 36 patches and the class token
        (4, 4, 37, 37)
    """
    weights: list[np.ndarray] = []
    read_attention(Probe(model, attention=True), images, [block], batch_size, lambda _, read: weights.append(read))
    return np.concatenate(weights)


def patch_attention(
    model: ModelSource, images: Any, block: int | str = -1, *, batch_size: int = BATCH_SIZE
) -> np.ndarray:
    """Returns how much the token that the head reads attends to each patch (Figures 6 and 14).

    That token is the class token if there is one (also with `pooling="token_avg"`), and the probe of attention pooling
    for `block="pooling"`; otherwise the mean over all patches is returned. Arguments and errors are as in
    `attention_maps`. The result is float32 `(batch, heads, rows, columns)`, shares of 1: the remaining attention goes
    to the tokens before the patches.

    Examples:
        >>> inspection.patch_attention(model, images).shape
        (4, 4, 6, 6)
    """
    (maps,) = patch_attention_of_blocks(model, images, [block], batch_size=batch_size).values()
    return maps


def patch_attention_of_blocks(
    model: ModelSource, images: Any, blocks: Iterable[int | str], *, batch_size: int = BATCH_SIZE
) -> dict[int | str, np.ndarray]:
    """Returns `patch_attention` of several blocks from one pass, by block number counted from 0.

    `blocks` are numbers, each as `block` there. Other arguments and errors are as in `attention_maps`. The maps are
    float32 `(batch, heads, rows, columns)`.

    Examples:
        >>> [*inspection.patch_attention_of_blocks(model, images, [0, -1])]
        [0, 5]
    """
    probe = Probe(model, attention=True)
    maps: dict[int | str, list[np.ndarray]] = {}

    def keep(block: int | str, weights: np.ndarray) -> None:
        row = weights[:, :, 0] if block == POOLING else output_row(probe, weights)
        maps.setdefault(block, []).append(of_keys(probe, row))

    read_attention(probe, images, blocks, batch_size, keep)
    return {block: np.concatenate(parts) for block, parts in maps.items()}


def attention_rollout(model: ModelSource, images: Any, *, batch_size: int = BATCH_SIZE) -> np.ndarray:
    """Returns how much each patch contributes to the output, through all blocks (appendix D.8, Figures 6 and 14).

    Attention rollout (Abnar and Zuidema, arXiv 2005.00928): the heads of a block are averaged, the identity is added
    for the residual connection, rows are divided by their sum, and the matrices of all blocks are multiplied. The
    result is the row of the token that the head reads. With a class token (also for `pooling="token_avg"`) it is the
    row of the class token; with average pooling, the mean over the rows of the patches; with attention pooling, the
    mean over all rows, weighted by its attention.

    Arguments and errors are as in `attention_maps`. The result is float32 `(batch, rows, columns)`; an image's sum is 1
    minus the share of the tokens before the patches.

    Examples:
        >>> inspection.attention_rollout(model, images).shape
        (4, 6, 6)
    """
    probe = Probe(model, attention=True)
    blocks = all_blocks(probe.config)
    maps: list[np.ndarray] = []
    rollout = np.zeros((0, 0, 0))

    def multiply(block: int | str, weights: np.ndarray) -> None:
        nonlocal rollout
        mean = weights.astype("float64").mean(1)
        if block == POOLING:  # (batch, 1, keys); where it does not read the tokens before the patches, fewer keys
            rollout = mean @ rollout[:, -mean.shape[2] :]
        else:
            step = mean + np.eye(mean.shape[-1])
            step /= step.sum(-1, keepdims=True)
            rollout = step @ rollout if block else step
        if block == blocks[-1]:
            maps.append(of_keys(probe, rollout[:, 0] if block == POOLING else output_row(probe, rollout)))

    read_attention(probe, images, blocks, batch_size, multiply)
    return np.concatenate(maps).astype("float32")


def mean_attention_distance(model: ModelSource, images: Any, *, batch_size: int = BATCH_SIZE) -> np.ndarray:
    """Returns the mean attention distance of each head, in pixels (Figure 7 right; Figure 11 for hybrids).

    The distance between the centres of the query's and the key's patch, weighted by attention, averaged over queries
    and images. Tokens without a place, such as the class token, do not count. The paper uses 128 images. Arguments and
    errors are as in `attention_maps`. The result is float64 `(blocks, heads)`, pixels of the image that the Vision
    Transformer gets.

    Examples:
        >>> inspection.mean_attention_distance(model, images).shape  # 6 blocks with 4 heads
        (6, 4)
    """
    probe = Probe(model, attention=True)
    config = probe.config
    step = config.image_size_of((1, 1))  # pixels from one patch to the next
    distances = np.zeros((config.depth, config.heads))
    count = 0

    def add(block: int | str, weights: np.ndarray) -> None:
        nonlocal count
        if block == 0:
            count += len(weights)
        distances[block] += len(weights) * attention_distance(weights, probe.grid, step)

    read_attention(probe, images, list(range(config.depth)), batch_size, add)
    return distances / count


def attention_distance(weights: np.ndarray, grid_size: tuple[int, int], patch_size: tuple[int, int]) -> np.ndarray:
    """Returns the mean distance of queries and keys in pixels, weighted by attention, of each head: float64 `(heads,)`.

    The last tokens of `weights` `(batch, heads, tokens, tokens)` are the patches, row by row, in `grid_size` (rows,
    columns); `patch_size` is (height, width) in pixels. ValueError if they do not fit.

    Examples:
        >>> inspection.attention_distance(np.full((1, 2, 4, 4), 0.25), grid_size=(2, 2), patch_size=(4, 4)).round(2)
        array([3.41, 3.41])
    """
    rows, columns = grid_size
    weights = np.asarray(weights)
    if weights.ndim != 4 or not weights.size or min(weights.shape[2:]) < rows * columns:
        raise ValueError(
            f"weights must be (batch, heads, tokens, tokens) with {rows} x {columns} patches among the tokens, but "
            f"the shape {weights.shape} was given."
        )
    weights = weights[:, :, -rows * columns :, -rows * columns :].astype("float64")
    weights /= weights.sum(-1, keepdims=True)
    y, x = np.divmod(np.arange(rows * columns), columns)
    between = np.hypot((y[:, None] - y) * patch_size[0], (x[:, None] - x) * patch_size[1])
    return np.einsum("bhqk,qk->h", weights, between) / (len(weights) * rows * columns)


def patch_filters(model: ModelSource, components: int = 28) -> np.ndarray:
    """Returns the principal components of the filters of the patch embedding (Figure 7, left).

    The D filters are vectors of patch height x width x channels values, from which their mean is subtracted. For
    hybrids and BiT, the standardised kernel of the ResNet's first convolution is used. The result is float32
    `(components, height, width, channels)`: unit vectors in descending order of explained variance, whose value of
    largest size is positive. `model` and errors are as in `class_scores`; ValueError also for more `components` than
    there are.

    Examples:
        >>> inspection.patch_filters(model, components=5).shape
        (5, 4, 4, 3)
    """
    inner = Probe(model).inner
    kernel = filter_kernel(inner).astype("float64")
    filters = kernel.reshape(-1, kernel.shape[-1]).T
    most = min(filters.shape)
    if whole_number("components", components, 1) > most:
        raise ValueError(
            f"components must be from 1 to {most}, because {inner.name} has {filters.shape[0]} filters of "
            f"{filters.shape[1]} values, but {components} was given."
        )
    _, _, axes = np.linalg.svd(filters - filters.mean(0), full_matrices=False)
    axes = axes[:components]
    axes *= np.sign(np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1))
    return axes.reshape(-1, *kernel.shape[:-1]).astype("float32")


def filter_kernel(model: Any) -> np.ndarray:
    """The kernel that sees pixels, `(height, width, channels, filters)`, of the patch embedding or the ResNet."""
    names = [layer.name for layer in model.layers]
    layer = model.get_layer("conv_root" if "conv_root" in names else "embedding")
    return to_numpy(layer.standardized_kernel() if isinstance(layer, StdConv2D) else layer.kernel)


def position_similarity(model: ModelSource) -> np.ndarray:
    """Returns the cosine similarity of the position embeddings of any two patches (Figure 7, centre; Figure 10).

    It is float32 `(rows, columns, rows, columns)`, 0 for embeddings of zeros. A dynamic model uses `config.image_size`.
    `model` and errors are as in `attention_maps`; ValueError also for a model without position embeddings.

    Examples:
        >>> inspection.position_similarity(model).shape
        (6, 6, 6, 6)
    """
    inner = Probe(model, attention=True).inner
    kind = inner.config.position_embedding
    rows, columns = inner.config.grid_size
    if kind == "sincos2d":
        table = sincos2d(rows, columns, inner.config.width)[0]
    elif kind.startswith("learned"):
        table = to_numpy(inner.get_layer("position_embedding").table)[0, -rows * columns :]
    else:
        raise ValueError(f"model must have position embeddings, but {inner.name} has position_embedding={kind!r}.")
    table = unit_vectors(table.astype("float64"))
    return (table @ table.T).reshape(rows, columns, rows, columns).astype("float32")


def all_blocks(config: ViTConfig) -> list[int | str]:
    """The numbers of all blocks, and at last `"pooling"` where there is attention pooling."""
    return [*range(config.depth), *([POOLING] if config.pooling == "map" else [])]


def output_row(probe: Probe, matrix: np.ndarray) -> np.ndarray:
    """The row `(..., keys)` of the token that the head reads, of `(..., queries, keys)`."""
    if probe.config.class_token and probe.config.pooling != "avg":
        return matrix[..., 0, :]
    return matrix[..., -probe.grid[0] * probe.grid[1] :, :].mean(-2)


def of_keys(probe: Probe, weights: np.ndarray) -> np.ndarray:
    """`(..., tokens)` as `(..., rows, columns)`, without the tokens before the patches."""
    return probe.map(weights[..., None])[..., 0]


def read_attention(
    probe: Probe,
    images: Any,
    blocks: Iterable[int | str],
    batch_size: int,
    read: Callable[[int | str, np.ndarray], None],
) -> None:
    """Calls `read(block, weights)` with the attention weights of each block, batch by batch, in the model's order.

    `blocks` are numbers and `"pooling"`; `read` gets numbers from 0, and one block at a time, because the weights of
    all may not fit into memory.
    """
    places = [_block_number(probe, block) for block in blocks]
    if probe.config.depth - 1 in places:
        probe.check_all_tokens()

    def read_block(layer: Any, *args: Any, **kwargs: Any) -> Any:
        weights, output = layer(*args, activations=["attention_weights"], **kwargs)
        read(int(layer.name.removeprefix("block_")), to_numpy(weights))
        return output

    def read_pooling(layer: Any, tokens: Any) -> Any:
        read(POOLING, to_numpy(layer.attention_weights(tokens)))
        return layer(tokens)

    calls = {POOLING: read_pooling} if POOLING in places else {}
    calls |= {f"block_{place}": read_block for place in places if place != POOLING}
    with no_gradients():
        for batch in in_batches(images, batch_size):
            probe.run(batch, calls)


def _block_number(probe: Probe, block: int | str) -> int | str:
    config, name = probe.config, probe.inner.name
    if block == POOLING:
        if config.pooling != "map":
            raise ValueError(f"block='pooling' needs attention pooling, but {name} has pooling={config.pooling!r}.")
        return POOLING
    if isinstance(block, bool) or not isinstance(block, (int, np.integer)):
        raise TypeError(f"block must be the number of a block, or 'pooling', but {block!r} was given.")
    if not -config.depth <= block < config.depth:
        raise ValueError(f"block must be from {-config.depth} to {config.depth - 1} in {name}, but {block} was given.")
    return int(block) % config.depth
