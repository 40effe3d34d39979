"""EoMT: queries among the tokens of the last blocks of a Vision Transformer, which become masks and their classes."""

import numbers
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from keras_vit.layers import MaskHead, QueryRotation, RegisterTokens, RotaryEmbedding, TokenMap, UpscaleBlock, resize
from keras_vit.layers.base import BaseLayer, Dense, at_least_float32, float32_or_better
from keras_vit.models.dense import DenseModel
from keras_vit.models.dense_config import EoMTConfig
from keras_vit.models.vision_transformer import VisionTransformer


def eomt(config: EoMTConfig, backbone: VisionTransformer, policy: Any) -> dict[str, Any]:
    """The logits of classes and masks, from the symbolic tensors of a backbone (EoMT's `models/eomt.py`)."""
    depth = config.backbone.depth
    first = depth - config.query_blocks
    # The input of a block is the tokens, or a list of the tokens and the rotation of rotary embeddings.
    tokens, *rotation = tree.flatten(backbone.get_layer(f"block_{first}").input)

    # Section 3.2: from here on, queries are tokens among the others. They have no position.
    tokens = RegisterTokens(config.queries, dtype=policy, name="queries")(tokens)
    rotation = [QueryRotation(config.queries, dtype=policy, name="query_rotation")(turned) for turned in rotation]
    for i in range(first, depth):
        tokens = backbone.get_layer(f"block_{i}")(tokens, *rotation)
    prefix = config.queries + config.backbone.prefix_tokens
    parts = [
        backbone.get_layer("encoder_norm"),
        TokenMap(config.grid_size, prefix, dtype=policy, name="map"),
        MaskHead(config.activation, dtype=policy, name="mask_head"),
        # The last class is "no object".
        Dense(config.classes + 1, dtype=at_least_float32(policy, "class_head"), name="class_head"),
    ]
    parts += [UpscaleBlock(config.activation, dtype=policy, name=f"upscale_{i}") for i in range(config.upscale_blocks)]
    return read_queries(tokens, {part.name: part for part in parts}, config)


def read_queries(
    tokens: Any, parts: Mapping[str, keras.layers.Layer], config: EoMTConfig, training: bool | None = None
) -> dict[str, Any]:
    """The logits of masks and classes that tokens, of which the first are queries, stand for.

    `parts` are the layers by name: `encoder_norm`, `map`, `upscale_0` and others, `mask_head`, `class_head`.
    """
    options = {} if training is None else {"training": training}  # a graph keeps what its layers are called with
    tokens = parts["encoder_norm"](tokens, **options)
    queries, features = tokens[:, : config.queries], parts["map"](tokens)
    for i in range(config.upscale_blocks):
        features = parts[f"upscale_{i}"](features, **options)
    masks = parts["mask_head"](queries, **options)
    exact = float32_or_better(masks.dtype)
    masks, features = ops.cast(masks, exact), ops.cast(features, exact)
    # Of float64, Keras's einsum says float32, and its matmul computes it on PyTorch.
    masks = ops.cast(ops.einsum("bqd,brcd->bqrc", masks, features), exact)
    return {"classes": parts["class_head"](queries, **options), "masks": masks}


@keras.saving.register_keras_serializable(package="keras_vit")
class EoMT(DenseModel):
    """An EoMT (arXiv 2503.19108) as a functional Keras model: a function of one `EoMTConfig`.

    It takes images `(batch, *image_size, channels)` and returns a dictionary of logits: `"classes"` `(batch, queries,
    classes + 1)`, the last of which is "no object", and `"masks"` `(batch, queries, rows, columns)`. Pictures of any
    size become segments with `keras_vit.segmentation.segment`. Logits are float32 or better. Arguments and errors are
    those of `VisionTransformer`.

    Examples:
        >>> {name: tuple(logits.shape) for name, logits in keras_vit.EoMT(eomt_config)(small_images).items()}
        {'classes': (4, 5, 4), 'masks': (4, 5, 4, 4)}
    """

    config_type = EoMTConfig
    default_name = "eomt"
    factory = "load"
    outputs_of = staticmethod(eomt)

    def predictions(
        self,
        images: Any,
        mask_probability: Any = 1.0,
        draws: Any = None,
        rope_scale: Any = None,
        training: bool | None = True,
    ) -> list[dict[str, Any]]:
        """The logits of classes and masks before each block with queries and after the last one, for training.

        In each of these blocks, a query sees of the patches only those that lie in its mask of the logits before it
        (masked attention); of an empty mask none. Everything else sees everything.

        Args:
            images: `(batch, *image_size, channels)`.
            mask_probability: How likely this is for a query, a number, or one for each block `(query_blocks,)`, also
                for each image `(batch, query_blocks)`. Other queries see all patches.
            draws: Uniform numbers `(query_blocks, batch, queries)`: a query sees all patches where its number is above
                the probability. Needed unless all probabilities are 0 or 1.
            rope_scale: What rotary coordinates are multiplied by, a scalar; None for 1.
            training: As in a call of the model.

        Returns:
            `query_blocks + 1` dictionaries as a call returns them, `"classes"` and `"masks"`, in the order of the
            blocks. With `mask_probability=0` the last is that of a call.

        Raises:
            ValueError: if `draws` is needed and None, or the images do not fit the model.

        Examples:
            >>> len(keras_vit.EoMT(eomt_config).predictions(small_images)) == eomt_config.query_blocks + 1
            True
        """
        config = self.config
        first = config.backbone.depth - config.query_blocks
        query_blocks = {f"block_{first + i}": i for i in range(config.query_blocks)}
        probabilities = _probabilities(mask_probability, config.query_blocks, draws)
        parts = {layer.name: layer for layer in self.layers}
        found: list[dict[str, Any]] = []

        def call(layer: Any, *args: Any, **options: Any) -> Any:
            """What a layer returns; before a block with queries, the logits of its input are kept."""
            if isinstance(layer, RotaryEmbedding) and rope_scale is not None:
                return layer(*args, scale=rope_scale)
            if isinstance(layer, BaseLayer):
                options["training"] = training
            if layer.name not in query_blocks:
                return layer(*args, **options)
            number = query_blocks[layer.name]
            found.append(read_queries(args[0], parts, config, training))
            if probabilities[number] is None:
                return layer(*args, **options)
            seen = _seen(found[-1]["masks"], config.grid_size)
            if draws is not None:
                free = ops.convert_to_tensor(draws[number]) > probabilities[number]
                seen = seen | (free | (probabilities[number] <= 0))[..., None]
            return layer(*args, **options, allowed=_allowed(seen, config.backbone.prefix_tokens))

        last = self.call_layers(ops.convert_to_tensor(images), call)
        return [*found, last]


def _probabilities(values: Any, blocks: int, draws: Any) -> list[Any]:
    """The probability of each block, None where it is 0, as numbers or `(batch, 1)`; ValueError without draws."""
    if isinstance(values, (numbers.Real, list, tuple, np.ndarray)) and np.ndim(values) < 2:
        given = np.broadcast_to(np.asarray(values, "float32"), (blocks,)).tolist()
        if draws is None and any(0 < p < 1 for p in given):
            raise ValueError(
                f"mask_probability={values!r} needs draws, uniform numbers (query_blocks, batch, queries)."
            )
        return [p if p > 0 else None for p in given]
    values = ops.convert_to_tensor(values)
    return [values[..., i, None] for i in range(blocks)]


def _seen(masks: Any, grid_size: tuple[int, int]) -> Any:
    """Which patches lie in the mask of each query: booleans `(batch, queries, patches)`."""
    maps = ops.transpose(ops.stop_gradient(masks), (0, 2, 3, 1))
    maps = resize(maps, grid_size, "half_pixel")
    return ops.transpose(ops.reshape(maps, (-1, grid_size[0] * grid_size[1], masks.shape[1])), (0, 2, 1)) > 0


def _allowed(seen: Any, prefix: int) -> Any:
    """Which tokens each token sees, of queries, prefix tokens and patches in this order."""
    batch, (queries, patches) = ops.shape(seen)[0], seen.shape[1:]
    of_queries = ops.concatenate([ops.ones((batch, queries, queries + prefix), "bool"), seen], axis=2)
    of_others = ops.ones((batch, prefix + patches, queries + prefix + patches), "bool")
    return ops.concatenate([of_queries, of_others], axis=1)
