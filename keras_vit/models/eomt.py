"""EoMT: queries among the tokens of the last blocks of a Vision Transformer, which become masks and their classes."""

from typing import Any

import keras
from keras import ops, tree

from keras_vit.layers import MaskHead, QueryRotation, RegisterTokens, TokenMap, UpscaleBlock
from keras_vit.layers.base import Dense, at_least_float32, float32_or_better
from keras_vit.models.dense import DenseModel
from keras_vit.models.dense_config import EoMTConfig
from keras_vit.models.vision_transformer import VisionTransformer


def eomt(config: EoMTConfig, backbone: VisionTransformer, policy: Any) -> dict[str, Any]:
    """The logits of classes and masks, from the symbolic tensors of a backbone (EoMT's `models/eomt.py`)."""
    depth = config.backbone.depth
    first = depth - config.query_blocks
    tokens, *rotation = tree.flatten(backbone.get_layer(f"block_{first}").input)

    # Section 3.2: from here on, queries are tokens among the others. They have no position.
    tokens = RegisterTokens(config.queries, dtype=policy, name="queries")(tokens)
    rotation = [QueryRotation(config.queries, dtype=policy, name="query_rotation")(turned) for turned in rotation]
    for i in range(first, depth):
        tokens = backbone.get_layer(f"block_{i}")(tokens, *rotation)
    tokens = backbone.get_layer("encoder_norm")(tokens)

    queries = tokens[:, : config.queries]
    prefix = config.queries + config.backbone.prefix_tokens
    features = TokenMap(config.grid_size, prefix, dtype=policy, name="map")(tokens)
    for i in range(config.upscale_blocks):
        features = UpscaleBlock(config.activation, dtype=policy, name=f"upscale_{i}")(features)
    masks = MaskHead(config.activation, dtype=policy, name="mask_head")(queries)
    exact = float32_or_better(policy.compute_dtype)
    masks, features = ops.cast(masks, exact), ops.cast(features, exact)
    # Of float64, Keras's einsum says float32, and its matmul computes it on PyTorch.
    masks = ops.cast(ops.einsum("bqd,brcd->bqrc", masks, features), exact)
    # The last class is "no object".
    classes = Dense(config.classes + 1, dtype=at_least_float32(policy, "class_head"), name="class_head")(queries)
    return {"classes": classes, "masks": masks}


@keras.saving.register_keras_serializable(package="keras_vit")
class EoMT(DenseModel):
    """An EoMT (arXiv 2503.19108) as a functional Keras model: a function of one `EoMTConfig`.

    It takes images `(batch, *image_size, channels)` and gives a dictionary of logits: `"classes"` `(batch, queries,
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
