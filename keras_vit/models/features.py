"""Intermediate results as the outputs of a model."""

import re
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit._arguments import Tensor, check_choice
from keras_vit._keras import call_layers
from keras_vit.layers import BLOCK_ACTIVATIONS, TokenMap, TransformerBlock
from keras_vit.models.vision_transformer import BiT, VisionTransformer

# The layers between the patches and the first block, in their order. Every model has the first, and some of the others.
BEFORE_BLOCKS = ("tokens", "register_tokens", "distillation_token", "class_token")
BEFORE_BLOCKS += ("position_embedding", "token_dropout", "pre_norm")
# What users call a result, and the layers that may return it: of those of a model, the last one does. The names are
# those of big_vision's `out` dictionary.
FEATURES: dict[str, tuple[str, ...]] = {
    "stem": ("embedding",),  # (batch, rows, columns, D): the patches before position embeddings
    "root": ("pool_root",),  # (batch, rows, columns, width): of a hybrid, the map before the first unit
    "embedded": BEFORE_BLOCKS,  # (batch, tokens, D): what goes into the first block, z_0 of equation 1
    "before_norm": ("encoder_norm",),  # (batch, tokens, D): all tokens after the last block; CLIP's last_hidden_state
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
LOGITS_2D = "logits_2d"  # (batch, rows, columns, classes): what the head says of every patch by itself
POOLINGS = ("pooling", "pooling_dist")  # the layers that read tokens where a model has no more use for the others
_BLOCK = re.compile(r"block_(-?\d+)(?:/(.+))?")


def feature_names(model: VisionTransformer | BiT) -> tuple[str, ...]:
    """Returns the names of all results of `model` that `feature_extractor` can return, in the order of computing."""
    return tuple(_table(model))


def feature_extractor(model: VisionTransformer | BiT, features: Sequence[str], layout: str = "tokens") -> keras.Model:
    """Returns a model with the same weights whose output is a dict of intermediate results by name, in one pass.

    Args:
        model: A `VisionTransformer`, or a `BiT`; the result has its `config`, but does not save it.
        features: Names from `feature_names(model)`; ValueError lists them.

            - `"block_0"`, or from the end `"block_-1"`: the output of a block, `(batch, tokens, D)`. With `/attention`
              the output of attention, `/+attention` its sum with the input, `/mlp` the output of the MLP,
              `/attention_weights` `(batch, heads, tokens, tokens)`.
            - `"stem"`, `"embedded"`, `"encoded"`, `"pooled"` and `"pre_logits"`, the input of the head. transformers'
              `last_hidden_state` is `"encoded"`, for CLIP `"before_norm"`.
            - for a `BiT` and hybrids `"stage_1"`, ..., `"block1_unit1"`, ...: `(batch, rows, columns, channels)`.
        layout: `"tokens"`: `(batch, tokens, D)`. `"map"`: `(batch, rows, columns, D)`, without the tokens before the
            patches.

    Examples:
        >>> extractor = keras_vit.feature_extractor(model, ["block_-1", "pre_logits"], layout="map")
        >>> tuple(extractor(images)["block_-1"].shape)
        (4, 6, 6, 96)
    """
    table = _table(model)
    check_choice("layout", layout, ("tokens", "map"))
    names = {} if isinstance(features, str) else {name: _from_the_start(model, name) for name in features}
    if not names or not set(names.values()) <= table.keys():
        inner = tuple(f"/{name}" for name in BLOCK_ACTIVATIONS)
        listed = sorted(name for name in table if not name.endswith(inner))
        message = f"features must be a list of names from {listed}, but {features!r} was given."
        if "block_0" in table:
            message += f" A block also has {', '.join(f'block_0{name}' for name in inner)}."
        if model.config.class_token_only:
            message += f" {model.name} was optimized for inference, so its last block does not compute all tokens."
            message += " Use model.with_config(class_token_only=False)."
        raise ValueError(message)
    tensors = _tensors(model, {name: table[name] for name in names.values()})
    if layout == "map":
        for name, tensor in tensors.items():
            if len(tensor.shape) == 3 and not name.endswith("/attention_weights"):
                tensors[name] = _as_map(model, tensor)
    extractor = keras.Model(model.input, {name: tensors[original] for name, original in names.items()})
    extractor.config = model.config
    return extractor


def _table(model: VisionTransformer | BiT) -> dict[str, tuple[str, str | None]]:
    """All results of a model by name: the layer that returns each, and for those inside a block the name there."""
    # In the order of the layers; for `logits_2d` that name stands in place of one inside a block.
    if not isinstance(model, (VisionTransformer, BiT)):
        raise TypeError(
            f"model must be a VisionTransformer or a BiT, but {type(model).__name__} was given. If it contains one, "
            "pass outer.get_layer(name)."
        )
    config, layers = model.config, [layer.name for layer in model.layers]
    names = BIT_FEATURES if isinstance(model, BiT) else FEATURES
    # Which layer returns what: of those that a name may stand for, the last that the model has
    given: dict[str, str] = {}
    for name, candidates in names.items():
        there = [layer for layer in candidates if layer in layers]
        if there:
            given[name] = there[-1]
    if not isinstance(model, BiT):
        given["before_norm"] = f"block_{config.depth - 1}"
        if config.final_norm != "tokens":
            given["encoded"] = f"block_{config.depth - 1}"
        if config.final_norm == "pooled" and "pooled" in given:
            given["pooled"] = "encoder_norm"
    stages = config.stages if isinstance(model, BiT) else config.stem_stages or ()
    given |= {f"stage_{stage}": f"block{stage}_unit{units}" for stage, units in enumerate(stages, 1)}
    last = model.get_layer("head").input if config.classes else model.output
    given["pre_logits"] = next(layer.name for layer in model.layers if layer.output is last)
    table: dict[str, tuple[str, str | None]] = {}
    for layer in layers:
        if _BLOCK.fullmatch(layer) and config.tokens_mlp_width is None:
            table |= {f"{layer}/{name}": (layer, name) for name in BLOCK_ACTIVATIONS}
        if layer.startswith("block"):
            table[layer] = (layer, None)
        table |= {name: (layer, None) for name, source in given.items() if source == layer}
        if layer == given.get("logits") and config.pooling != "token_avg":
            table[LOGITS_2D] = (layer, LOGITS_2D)
    if config.class_token_only:
        last = f"block_{config.depth - 1}"
        names = {last, "before_norm", "encoded", LOGITS_2D, *(f"{last}/{name}" for name in BLOCK_ACTIVATIONS)}
        table = {name: source for name, source in table.items() if name not in names}
    return table


def _from_the_start(model: VisionTransformer | BiT, name: str) -> str:
    match = _BLOCK.fullmatch(name) if isinstance(name, str) else None
    depth = getattr(model.config, "depth", 0)
    if match is None or not -depth <= int(match[1]) < 0:
        return name
    return f"block_{int(match[1]) + depth}" + (f"/{match[2]}" if match[2] else "")


def _tensors(model: Any, wanted: dict[str, tuple[str, str | None]]) -> dict[str, Tensor]:
    """Returns the symbolic tensor of each result in `wanted`, which are rows of `_table`."""
    # Up to the first block with results inside it they are tensors of the model; from there layers are called again.
    inside: dict[str, list[str]] = {}
    for layer, activation in wanted.values():
        if activation in BLOCK_ACTIVATIONS:
            inside.setdefault(layer, []).append(activation)
    outputs: dict[str, Tensor] = {}
    activations: dict[tuple[str, str], Tensor] = {}

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the output of a layer and keeps it in `outputs`, what is wanted inside a block in `activations`."""
        if layer.name in inside:
            *values, output = BlockActivations(layer, inside[layer.name], dtype=layer.dtype_policy)([*args])
            activations.update({(layer.name, name): v for name, v in zip(inside[layer.name], values, strict=True)})
        else:
            output = layer.output if _is_first_call(layer, args) else layer(*args, **kwargs)
        outputs[layer.name] = output
        return output

    call_layers(model, model.input, call)
    if any(activation == LOGITS_2D for _, activation in wanted.values()):
        layer = next(layer for layer, activation in wanted.values() if activation == LOGITS_2D)
        activations[layer, LOGITS_2D] = _logits_2d(model, outputs, layer)
    return {
        name: outputs[layer] if activation is None else activations[layer, activation]
        for name, (layer, activation) in wanted.items()
    }


def _logits_2d(model: Any, outputs: dict[str, Tensor], logits_layer: str) -> Tensor:
    """Returns what follows the pooling, applied to every place: `(batch, rows, columns, classes)`, no activation."""
    if model.config.pooling == "none":
        logits = outputs[logits_layer]
        return logits if isinstance(model, BiT) else _as_map(model, logits, outputs["embedding"])
    pooled = False

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns a map of all places in place of the pooled vector; what comes after it is applied to the map."""
        nonlocal pooled
        if layer.name in POOLINGS:
            pooled = True
            return args[0] if isinstance(model, BiT) else _as_map(model, args[0], outputs["embedding"])
        if layer.name == "predictions":
            return args[0]
        return layer(*args, **kwargs) if pooled else outputs[layer.name]

    return call_layers(model, model.input, call)


def _is_first_call(layer: Any, args: tuple[Any, ...]) -> bool:
    """Whether `args` are the symbolic tensors that a layer was called on when the model was made."""
    tensors = [x for x in keras.tree.flatten(args) if isinstance(x, keras.KerasTensor)]
    first = keras.tree.flatten(layer.input)
    return len(tensors) == len(first) and all(x is y for x, y in zip(tensors, first, strict=True))


def _as_map(model: VisionTransformer, tokens: Tensor, patches: Tensor | None = None) -> Tensor:
    """Returns tokens `(batch, tokens, D)` as a map `(batch, rows, columns, D)`, without those before the patches."""
    config = model.config
    patches = model.get_layer("embedding").output if patches is None else patches
    layer = TokenMap(config.grid_size, config.prefix_tokens, dtype=tokens.dtype)
    return layer(tokens, patches) if config.dynamic else layer(tokens)


@keras.saving.register_keras_serializable(package="keras_vit")
class BlockActivations(keras.layers.Layer):
    """A block that also returns what it computes inside: from a list of its inputs to the activations and its output.

    A separate layer, because Keras 3.15 cannot make a model of a layer's second call if that has more outputs than
    the first. `activations` are names of `BLOCK_ACTIVATIONS`.
    """

    def __init__(self, block: TransformerBlock, activations: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**{"name": f"{block.name}_activations", **kwargs})
        self.block = block
        self.activations = [*activations]

    def build(self, inputs_shape: Any) -> None:
        if not self.block.built:
            self.block.build(*inputs_shape)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.block(*inputs, activations=self.activations, training=training)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        return self.block.compute_output_spec(*inputs, activations=self.activations)

    def get_config(self) -> dict[str, Any]:
        block = keras.saving.serialize_keras_object(self.block)
        return {**super().get_config(), "block": block, "activations": self.activations}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BlockActivations":
        return cls(**{**config, "block": keras.saving.deserialize_keras_object(config["block"])})
