"""Intermediate results as the outputs of a model."""

from collections.abc import Sequence

import keras

from keras_vit.models.bit import BiT
from keras_vit.models.vision_transformer import BEFORE_BLOCKS, VisionTransformer

# What users call a result, and the layers that may give it; of those that a model has, the last one does. The names are
# those of big_vision's `out` dictionary.
FEATURES: dict[str, tuple[str, ...]] = {
    "stem": ("embedding",),  # (batch, rows, columns, D): the patches before position embeddings
    "embedded": BEFORE_BLOCKS,  # (batch, tokens, D): what goes into the first block, z_0 of equation 1
    "encoded": ("encoder_norm",),  # (batch, tokens, D): all tokens, normalised unless that happens after pooling
    "pooled": ("pooling",),  # (batch, D): y of equation 4
    "projection": ("projection",),
    "logits": ("head", "logits"),
    "predictions": ("predictions",),
}
BIT_FEATURES: dict[str, tuple[str, ...]] = {
    "stem": ("pool_root",),  # (batch, rows, columns, width): the map before the first unit
    "encoded": ("relu_pre_head",),  # (batch, rows, columns, channels): the last map (`pre_logits_2d` in big_vision)
    "pooled": ("pooling",),  # (batch, channels): its mean
    "logits": ("head",),
    "predictions": ("predictions",),
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
    outputs = {layer.name: layer.output for layer in model.layers}
    is_bit = isinstance(model, BiT)
    known = {}
    for name, givers in (BIT_FEATURES if is_bit else FEATURES).items():
        present = [layer for layer in givers if layer in outputs]
        if present:
            known[name] = outputs[present[-1]]
    known |= {name: output for name, output in outputs.items() if name.startswith("block" if is_bit else "block_")}
    if is_bit:
        for stage, units in enumerate(model.config.stages, 1):
            known[f"stage_{stage}"] = outputs[f"block{stage}_unit{units}"]
    elif model.config.final_norm != "tokens":
        known["encoded"] = outputs[f"block_{model.config.depth - 1}"]
        if model.config.final_norm == "pooled" and "pooled" in known:
            known["pooled"] = outputs["encoder_norm"]
    known["pre_logits"] = model.get_layer("head").input if model.config.classes else model.output
    unknown = [name for name in features if name not in known]
    if unknown or isinstance(features, str) or not features:
        raise ValueError(f"features must be a list of names from {sorted(known)}, but {features!r} was given.")
    return keras.Model(model.input, {name: known[name] for name in features})
