"""Where a Vision Transformer looks: attention maps, attention rollout, attention distance."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import to_numpy
from keras_vit.inspection.running import (
    BATCH_SIZE,
    Grid,
    ModelSource,
    check_all_tokens,
    find_transformer,
    in_batches,
    no_gradients,
    run,
)
from keras_vit.models import VisionTransformer, ViTConfig
from keras_vit.zoo import as_model

POOLING = "pooling"  # the block that is none: attention pooling

# What is called with the number of a block and its weights for a batch; POOLING for those of attention pooling.
Seen = Callable[[int | str, np.ndarray], None]


def attention_maps(
    model: ModelSource, images: Any, block: int | str = -1, *, batch_size: int = BATCH_SIZE
) -> np.ndarray:
    """How much each token of a block reads from each other one.

    Args:
        model: A `VisionTransformer`, or a functional or sequential model with one inside; or what
            `keras_vit.load` takes.
        images: A batch as the model takes it, `(batch, height, width, channels)`.
        block: Number of a block, from 0, or from the end with -1 for the last one; `"pooling"` for attention pooling.
        batch_size: Images computed at a time.

    Returns:
        float32 `(batch, heads, queries, keys)`; each row sums to 1. Queries and keys are the tokens: those before the
        patches (`model.config.prefix_tokens`; first the class token), then the patches, row by row. Attention pooling
        has one query.

    Raises:
        TypeError: if the model has no attention, or `block` is no number.
        ValueError: if there is no such block, or the images do not fit the model.

    Examples:
        >>> inspection.attention_maps(model, images, block=-1).shape  # 36 patches and the class token
        (4, 4, 37, 37)
    """
    model = as_model(model)
    weights: list[np.ndarray] = []
    read_attention(model, images, [block], batch_size, lambda _, seen: weights.append(seen))
    return np.concatenate(weights)


def patch_attention(
    model: ModelSource, images: Any, block: int | str = -1, *, batch_size: int = BATCH_SIZE
) -> np.ndarray:
    """How much the token that answers reads from each patch: attention laid over the image (Figures 6 and 14).

    That is the class token where there is one, and the probe of attention pooling for `block="pooling"`. Where the
    patches are averaged or no token is special, it is the mean of what all patches read.

    Args:
        model: As for `attention_maps`.
        images: Likewise.
        block: Likewise.
        batch_size: Likewise.

    Returns:
        float32 `(batch, heads, rows, columns)`, parts of 1: what is missing went to the tokens before the patches.

    Raises:
        TypeError, ValueError: as for `attention_maps`.

    Examples:
        >>> inspection.patch_attention(model, images).shape
        (4, 4, 6, 6)
    """
    model = as_model(model)
    return next(iter(patch_attention_of_blocks(model, images, [block], batch_size=batch_size).values()))


def patch_attention_of_blocks(
    model: ModelSource, images: Any, blocks: Iterable[int | str], *, batch_size: int = BATCH_SIZE
) -> dict[int | str, np.ndarray]:
    """`patch_attention` of several blocks in one pass.

    Args:
        model: As for `attention_maps`.
        images: Likewise.
        blocks: As `block` there.
        batch_size: Likewise.

    Returns:
        By block, counted from 0: float32 `(batch, heads, rows, columns)`.

    Raises:
        TypeError, ValueError: as for `attention_maps`.

    Examples:
        >>> maps = inspection.patch_attention_of_blocks(model, images, [0, -1])
        >>> {block: values.shape for block, values in maps.items()}
        {0: (4, 4, 6, 6), 5: (4, 4, 6, 6)}
    """
    model = as_model(model)
    config, grid = find_transformer(model).config, Grid()
    maps: dict[int | str, list[np.ndarray]] = {}

    def keep(place: int | str, weights: np.ndarray) -> None:
        row = answering_row(config, weights, grid) if place != POOLING else weights[:, :, 0]
        maps.setdefault(place, []).append(grid.of_keys(row))

    read_attention(model, images, blocks, batch_size, keep, grid)
    return {place: np.concatenate(parts) for place, parts in maps.items()}


def attention_rollout(model: ModelSource, images: Any, *, batch_size: int = BATCH_SIZE) -> np.ndarray:
    """Which patches the answer is made of, through all blocks (appendix D.8, Figures 6 and 14).

    Attention rollout (Abnar and Zuidema, arXiv 2005.00928): the heads of a block are averaged, the identity is added
    for the residual connection, rows are divided by their sum, and the matrices of all blocks are multiplied. Of the
    product, the row of the token that answers is shown: the class token's; the mean of the patches' where these are
    averaged; for attention pooling, the mean of the rows weighted by its own attention.

    Args:
        model: As for `attention_maps`.
        images: Likewise.
        batch_size: Likewise.

    Returns:
        float32 `(batch, rows, columns)`, parts of 1: what is missing is the share of the tokens before the patches.

    Raises:
        TypeError, ValueError: as for `attention_maps`.

    Examples:
        >>> inspection.attention_rollout(model, images).shape
        (4, 6, 6)
    """
    model = as_model(model)
    inner, grid = find_transformer(model), Grid()
    blocks = all_blocks(inner.config)
    maps: list[np.ndarray] = []
    rollout = np.zeros((0, 0, 0))

    def multiply(place: int | str, weights: np.ndarray) -> None:
        nonlocal rollout
        mean = weights.astype("float64").mean(1)
        if place == POOLING:  # (batch, 1, keys); where it does not read the tokens before the patches, fewer keys
            rollout = mean @ rollout[:, -mean.shape[2] :]
        else:
            step = mean + np.eye(mean.shape[-1])
            step /= step.sum(-1, keepdims=True)
            rollout = step @ rollout if place else step
        if place == blocks[-1]:
            row = rollout[:, 0] if place == POOLING else answering_row(inner.config, rollout, grid)
            maps.append(grid.of_keys(row))

    read_attention(model, images, blocks, batch_size, multiply, grid)
    return np.concatenate(maps).astype("float32")


def mean_attention_distance(model: ModelSource, images: Any, *, batch_size: int = BATCH_SIZE) -> np.ndarray:
    """How far each head looks, in pixels (Figure 7 right; Figure 11 for hybrids).

    The distance between the middles of the query's and the key's patch, averaged over keys by attention, then over
    queries and images. Tokens that have no place, such as the class token, do not count. The paper uses 128 images.

    Args:
        model: As for `attention_maps`.
        images: Likewise; many, for means that mean something.
        batch_size: Likewise.

    Returns:
        float64 `(blocks, heads)`, pixels of the image that the Vision Transformer gets.

    Raises:
        TypeError, ValueError: as for `attention_maps`.

    Examples:
        >>> inspection.mean_attention_distance(model, images).shape  # 6 blocks with 4 heads
        (6, 4)
    """
    model = as_model(model)
    inner, grid = find_transformer(model), Grid()
    config = inner.config
    step = config.image_size_of((1, 1))  # pixels from one patch to the next
    distances = np.zeros((config.depth, config.heads))
    count = 0

    def add(place: int | str, weights: np.ndarray) -> None:
        nonlocal count
        count += len(weights) if place == 0 else 0
        distances[place] += len(weights) * attention_distance(weights, grid.size, step)

    read_attention(model, images, list(range(config.depth)), batch_size, add, grid)
    return distances / count


def attention_distance(weights: np.ndarray, grid_size: tuple[int, int], patch_size: tuple[int, int]) -> np.ndarray:
    """The mean distance between queries and keys, weighted by attention.

    Args:
        weights: `(batch, heads, tokens, tokens)`; the last tokens are the patches, row by row.
        grid_size: Rows and columns of the patches.
        patch_size: Height and width of a patch in pixels.

    Returns:
        float64 `(heads,)`, pixels.

    Raises:
        ValueError: if there are fewer tokens than patches.

    Examples:
        >>> inspection.attention_distance(np.full((1, 2, 4, 4), 0.25), grid_size=(2, 2), patch_size=(4, 4)).round(2)
        array([3.41, 3.41])
    """
    rows, columns = grid_size
    weights = np.asarray(weights)
    if weights.ndim != 4 or min(weights.shape[2:]) < rows * columns:
        raise ValueError(
            f"weights must be (batch, heads, tokens, tokens) with {rows} x {columns} patches among the tokens, but the "
            f"shape {weights.shape} was given."
        )
    weights = weights[:, :, -rows * columns :, -rows * columns :].astype("float64")
    weights /= weights.sum(-1, keepdims=True)
    y, x = np.divmod(np.arange(rows * columns), columns)
    between = np.hypot((y[:, None] - y) * patch_size[0], (x[:, None] - x) * patch_size[1])
    return np.einsum("bhqk,qk->h", weights, between) / (len(weights) * rows * columns)


def all_blocks(config: ViTConfig) -> list[int | str]:
    """The numbers of all blocks, and `"pooling"` where there is attention pooling."""
    return [*range(config.depth), *([POOLING] if config.pooling == "map" else [])]


def answering_row(config: ViTConfig, matrix: np.ndarray, grid: Grid) -> np.ndarray:
    """The rows `(..., keys)` of the token that answers, of `(..., queries, keys)`."""
    if config.class_token and config.pooling != "avg":
        return matrix[..., 0, :]
    rows, columns = grid.size
    return matrix[..., -rows * columns :, :].mean(-2)


def read_attention(
    model: keras.Model,
    images: Any,
    blocks: Iterable[int | str],
    batch_size: int,
    seen: Seen,
    grid: Grid | None = None,
) -> None:
    """Hands on the attention weights of blocks, batch by batch, in the order in which the model computes them."""
    inner = find_transformer(model)
    places = [block_number(inner, block) for block in blocks]
    if inner.config.depth - 1 in places:
        check_all_tokens(inner)

    def read_block(layer: Any, *args: Any, **kwargs: Any) -> Any:
        weights, output = layer(*args, activations=["attention_weights"], **kwargs)
        seen(int(layer.name.removeprefix("block_")), to_numpy(weights))
        return output

    def read_pooling(layer: Any, tokens: Any) -> Any:
        seen(POOLING, to_numpy(layer.attention_weights(tokens)))
        return layer(tokens)

    calls = {(place if place == POOLING else f"block_{place}"): read_block for place in places}
    if POOLING in calls:
        calls[POOLING] = read_pooling
    with no_gradients():
        for batch in in_batches(images, batch_size):
            run(model, batch, calls | (grid.calls if grid is not None else {}))


def block_number(model: VisionTransformer, block: int | str) -> int | str:
    """A block counted from 0, or `"pooling"`.

    Raises:
        TypeError: if `block` is neither a number nor `"pooling"`.
        ValueError: if the model has no such block.
    """
    config = model.config
    if block == POOLING:
        if config.pooling != "map":
            raise ValueError(
                f"block='pooling' needs attention pooling, but {model.name} has pooling={config.pooling!r}."
            )
        return POOLING
    if isinstance(block, bool) or not isinstance(block, (int, np.integer)):
        raise TypeError(f"block must be the number of a block, or 'pooling', but {block!r} was given.")
    if not -config.depth <= block < config.depth:
        raise ValueError(f"block must be from {-config.depth} to {config.depth - 1} in {model.name}, but got {block}.")
    return int(block) % config.depth
