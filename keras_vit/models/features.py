"""Intermediate results as the outputs of a model."""

from collections.abc import Sequence

import keras

from keras_vit.models.bit import BiT
from keras_vit.models.vision_transformer import VisionTransformer

# What users call a result: the layer that gives it. The names are those of big_vision's `out` dictionary.
FEATURES = {
    "stem": "embedding",  # (batch, rows, columns, D): the patches before position embeddings
    "embedded": "position_embedding",  # (batch, tokens, D): z_0 of equation 1
    "encoded": "encoder_norm",  # (batch, tokens, D): all tokens after the last layer normalisation
    "pooled": "pooling",  # (batch, D): y of equation 4
    "logits": "head",
    "predictions": "predictions",
}
BIT_FEATURES = {
    "stem": "pool_root",  # (batch, rows, columns, width): the map before the first unit
    "encoded": "relu_pre_head",  # (batch, rows, columns, channels): the last map (`pre_logits_2d` in big_vision)
    "pooled": "pooling",  # (batch, channels): its mean
    "logits": "head",
    "predictions": "predictions",
}


def feature_extractor(model: VisionTransformer | BiT, features: Sequence[str]) -> keras.Model:
    """A model with the same weights that returns intermediate results by name.

    Args:
        model: A `VisionTransformer`, or a `BiT`.
        features: Names from `FEATURES`, `"block_0"` to the last block `(batch, tokens, D)`, or `"pre_logits"`
            (what the head is applied to). For a `BiT`, names from `BIT_FEATURES`, `"stage_1"` to the last stage,
            single units such as `"block1_unit1"` (all `(batch, rows, columns, channels)`), or `"pre_logits"`.

    Returns:
        A functional model; its output is a dictionary from each name to its tensor.

    Raises:
        ValueError: if the model has no such result; the message lists those that it has.
    """
    layers = {layer.name: layer for layer in model.layers}
    table, blocks = (BIT_FEATURES, "block") if isinstance(model, BiT) else (FEATURES, "block_")
    known = {name: layer for name, layer in table.items() if layer in layers}
    known |= {name: name for name in layers if name.startswith(blocks)}
    if isinstance(model, BiT):
        known |= {f"stage_{stage}": f"block{stage}_unit{units}" for stage, units in enumerate(model.config.stages, 1)}
    known["pre_logits"] = next(name for name in ("pre_logits", "pooling", table["encoded"]) if name in layers)
    unknown = [name for name in features if name not in known]
    if unknown or isinstance(features, str) or not features:
        raise ValueError(f"features must be a list of names from {sorted(known)}, but {features!r} was given.")
    return keras.Model(model.input, {name: layers[known[name]].output for name in features})
