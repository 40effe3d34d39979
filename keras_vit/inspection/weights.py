"""What weights alone say: the filters that see pixels, and which places a model takes for neighbours."""

import numpy as np

from keras_vit._arguments import to_numpy
from keras_vit.inspection.running import ModelSource, find_model, find_transformer
from keras_vit.layers import StdConv2D, sincos2d
from keras_vit.zoo import as_model


def patch_filters(model: ModelSource, components: int = 28) -> np.ndarray:
    """The principal components of the filters that see pixels (Figure 7, left).

    The filters of the patch embedding, D of them, are points in a space of patch height x width x channels dimensions;
    these are the directions in which they spread most, from the mean of all filters. Hybrids and BiT see pixels through
    the ResNet's first convolution instead, whose standardised kernel is used.

    Args:
        model: A `VisionTransformer`, a `BiT`, or a functional or sequential model with one inside; or what
            `keras_vit.load` takes.
        components: How many.

    Returns:
        float32 `(components, height, width, channels)` in pixels, of length 1 each, in the order of the variance that
        they explain. Their signs are arbitrary; here the value of largest size is positive.

    Raises:
        TypeError: if `components` is no integer, or the model none of this package.
        ValueError: if there are not as many components.

    Examples:
        >>> inspection.patch_filters(model, components=5).shape
        (5, 4, 4, 3)
    """
    model = as_model(model)
    inner = find_model(model)
    names = [layer.name for layer in inner.layers]
    layer = inner.get_layer("conv_root" if "conv_root" in names else "embedding")
    kernel = to_numpy(layer.standardized_kernel() if isinstance(layer, StdConv2D) else layer.kernel)
    filters = kernel.astype("float64").reshape(-1, kernel.shape[-1]).T
    if isinstance(components, bool) or not isinstance(components, (int, np.integer)):
        raise TypeError(f"components must be an integer, but {components!r} was given.")
    most = min(filters.shape)
    if not 1 <= components <= most:
        raise ValueError(
            f"components must be from 1 to {most}, because {inner.name} has {filters.shape[0]} filters of "
            f"{filters.shape[1]} values, but {components} was given."
        )
    _, _, axes = np.linalg.svd(filters - filters.mean(0), full_matrices=False)
    axes = axes[:components]
    axes *= np.sign(np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1))
    return axes.reshape(-1, *kernel.shape[:-1]).astype("float32")


def position_similarity(model: ModelSource) -> np.ndarray:
    """How alike the position embeddings of any two patches are (Figure 7, centre; Figure 10).

    Args:
        model: A `VisionTransformer`, or a functional or sequential model with one inside; or what
            `keras_vit.load` takes.

    Returns:
        float32 `(rows, columns, rows, columns)`: the cosine between the position embedding of a patch (the first two
        axes) and that of every patch; 0 where an embedding is zero. For a model that takes any size, those of
        `config.image_size`.

    Raises:
        TypeError: if the model is no Vision Transformer.
        ValueError: if it has no position embeddings.

    Examples:
        >>> inspection.position_similarity(model).shape
        (6, 6, 6, 6)
    """
    model = as_model(model)
    inner = find_transformer(model)
    kind = inner.config.position_embedding
    rows, columns = inner.config.grid_size
    if kind == "sincos2d":
        table = sincos2d(rows, columns, inner.config.width)[0]
    elif kind.startswith("learned"):
        table = to_numpy(inner.get_layer("position_embedding").table)[0, -rows * columns :]
    else:
        raise ValueError(f"{inner.name} has no position embeddings: its config says position_embedding={kind!r}.")
    table = table.astype("float64")
    lengths = np.linalg.norm(table, axis=-1, keepdims=True)
    table = table / np.where(lengths > 0, lengths, 1)
    return (table @ table.T).reshape(rows, columns, rows, columns).astype("float32")
