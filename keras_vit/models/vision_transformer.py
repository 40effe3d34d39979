"""The models of the paper: the Vision Transformer, in the order of the equations, and BiT, the ResNet beside it."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_vit import layers
from keras_vit.layers.base import Dense, LayerNormalization, initializer, policy_at
from keras_vit.layers.choices import STEM_EPSILONS
from keras_vit.layers.ops import float32_or_better
from keras_vit.layers.resnet import GROUP_NORM_EPSILON, MaxPooling2D
from keras_vit.layers.tokens import Activation, Reshape
from keras_vit.models.config import BiTConfig, ViTConfig
from keras_vit.models.image_model import ImageModel, normalization


def vision_transformer(config: ViTConfig, images: Any, dtype: Any = None) -> Any:
    """Returns the symbolic output of a Vision Transformer for symbolic images `(batch, height, width, channels)`."""
    # It is `(batch, classes)` with a head and pooling; without a head, what comes before it; with pooling `"none"` it
    # has a token axis in between. `dtype` is a policy for all layers, but that the head computes in at least float32.
    policy = keras.dtype_policies.get(dtype)
    x = images
    if config.include_preprocessing and not config.preprocessing_folded:
        x = normalization(config.pipeline, policy)(x)

    # Hybrids (section 3.1): the patches are cut from the feature map of a ResNet
    if config.stem_stages is not None:
        x = _resnet_stem(config, x, policy)

    # Equation 1: z_0 = [x_class; x_p^1 E; ...; x_p^N E] + E_pos
    bias = config.patch_bias or config.preprocessing_folded
    patches = layers.PatchEmbedding(config.width, config.patch_size, bias, dtype=policy, name="embedding")(x)
    x = _tokens(config, patches, policy)

    # Equations 2 and 3, L times
    rotation = []  # by how much the blocks turn queries and keys, where positions are rotary
    if config.rotary_embedding is not None:
        sizes = (config.head_size, config.prefix_tokens, config.rotary_grid)
        rotary = layers.RotaryEmbedding(config.rotary_embedding, *sizes, dtype=policy, name="rotary_embedding")
        rotation.append(rotary(patches))
    if config.patch_drop:
        drop = layers.PatchDropout(config.patch_drop, config.prefix_tokens, dtype=policy, name="patch_dropout")
        x, *rotation = drop(x, *rotation) if rotation else [drop(x)]
    if config.pre_norm:
        x = _layer_norm(config, "pre_norm", policy)(x)
    for i in range(config.depth):
        x = _block(config, i, policy)(x, *rotation)

    # Equation 4: y = LN(z_L^0)
    if config.final_norm == "tokens":
        x = _layer_norm(config, "encoder_norm", policy)(x)
    y = _pooled(config, x, policy)
    if config.final_norm == "pooled":
        y = _layer_norm(config, "encoder_norm", policy)(y)

    return _head(config, y, x, policy)


def _resnet_stem(config: ViTConfig, images: Any, policy: Any) -> Any:
    """Returns the feature map of a hybrid's ResNet (section 3.1; the official `models_resnet.py`, `models_vit.py`)."""
    norm_epsilon, epsilon, inside = STEM_EPSILONS[config.stem_epsilons]
    common = {"folded": config.stem_folded, "dtype": policy}
    root = layers.StdConv2D(config.stem_width, 7, 2, "same", epsilon, inside, **common, name="conv_root")
    x = root(images)
    x = layers.group_norm("gn_root", policy, norm_epsilon)(x)
    x = Activation("relu", dtype=policy, name="relu_root")(x)
    x = MaxPooling2D(3, 2, padding="same", data_format="channels_last", dtype=policy, name="pool_root")(x)
    make_unit = functools.partial(layers.ResNetUnit, epsilons=config.stem_epsilons, **common)
    return _stages(x, config.stem_stages or (), config.stem_width, make_unit)


def _stages(x: Any, stages: Sequence[int], width: int, make_unit: Callable[..., keras.layers.Layer]) -> Any:
    """Returns a map after `stages` of so many units each; every stage but the first halves it and doubles `width`."""
    for stage, units in enumerate(stages, start=1):
        for unit in range(1, units + 1):
            strides = 2 if unit == 1 and stage > 1 else 1
            x = make_unit(width * 2 ** (stage - 1), strides=strides, name=f"block{stage}_unit{unit}")(x)
    return x


def _tokens(config: ViTConfig, patches: Any, policy: Any) -> Any:
    """Returns the tokens with positions: class, distillation and register tokens, then the patches row by row."""
    x = Reshape((-1, config.width), dtype=policy, name="tokens")(patches)
    if config.register_tokens:
        x = layers.RegisterTokens(config.register_tokens, dtype=policy, name="register_tokens")(x)
    if config.distillation_token:
        x = layers.ClassToken(dtype=policy, name="distillation_token")(x)
    if config.class_token:
        x = layers.ClassToken(dtype=policy, name="class_token")(x)
    if config.position_embedding != "none":
        x = _position_embedding(config, policy)(x, patches if config.dynamic else None)
    elif config.dropout:
        x = layers.TokenDropout(config.dropout, dtype=policy, name="token_dropout")(x)
    return x


def _position_embedding(config: ViTConfig, policy: Any) -> keras.layers.Layer:
    """Returns the layer that adds E_pos, computed or learned, and drops out behind it."""
    common: dict[str, Any] = {"prefix_tokens": config.prefix_tokens, "dropout": config.dropout}
    common |= {"dtype": policy, "name": "position_embedding"}
    if config.position_embedding == "sincos2d":
        return layers.AddSinCosPositionEmbedding(config.grid_size, **common)
    without_registers = config.position_embedding == "learned_without_registers"
    return layers.AddPositionEmbedding(
        config.grid_size,
        interpolation=config.interpolation,
        embed_prefix=config.position_embedding != "learned_patches",
        register_tokens=config.register_tokens if without_registers else 0,
        **common,
    )


def _block(config: ViTConfig, i: int, policy: Any) -> keras.layers.Layer:
    """Returns the layer of block `i`: attention, or in an MLP-Mixer a perceptron across tokens, then an MLP."""
    # Its rate of stochastic depth rises linearly with `i`; the last block may compute fewer tokens.
    common: dict[str, Any] = {
        "dropout": config.dropout,
        "drop_path": config.drop_path * i / max(config.depth - 1, 1),
        "remat": config.remat,
        "gelu": config.gelu,
        "epsilon": config.layer_norm_epsilon,
        "dtype": policy,
        "name": f"block_{i}",
    }
    if config.tokens_mlp_width is not None:
        return layers.MixerBlock(config.tokens_mlp_width, config.mlp_width, **common)
    return layers.TransformerBlock(
        config.heads,
        config.mlp_width,
        attention_dropout=config.attention_dropout,
        mlp=config.mlp,
        layer_scale=config.layer_scale,
        attention_bias=config.attention_bias,
        attention_norm=config.attention_norm,
        rotary_embedding=config.rotary_embedding,
        output_tokens=config.computed_tokens if i == config.depth - 1 else None,
        **common,
    )


def _layer_norm(config: ViTConfig, name: str, policy: Any) -> keras.layers.Layer:
    own = config.final_norm_epsilon if name == "encoder_norm" else None
    return LayerNormalization(epsilon=own or config.layer_norm_epsilon, dtype=policy, name=name)


def _pooled(config: ViTConfig, tokens: Any, policy: Any) -> Any:
    """Returns `(batch, D)`, of `"token_avg"` `(batch, 2 D)`, or without pooling all tokens."""
    if config.pooling == "none":
        return tokens
    if config.pooling == "map":
        return layers.MAPHead(
            config.pooling_heads or config.heads,
            config.pooling_mlp_width or config.mlp_width,
            config.gelu,
            config.layer_norm_epsilon,
            skipped_tokens=0 if config.map_prefix else config.prefix_tokens,
            dtype=policy,
            name="pooling",
        )(tokens)
    return layers.TokenPooling(config.pooling, config.prefix_tokens, dtype=policy, name="pooling")(tokens)


def _head(config: ViTConfig, y: Any, tokens: Any, policy: Any) -> Any:
    """Returns what was pooled, `y`, projected and classified; the distillation head reads its own of the `tokens`."""
    glorot = {"kernel_initializer": initializer("glorot_uniform")}
    if config.projection:
        dtype = float32_or_better(policy, "projection")
        use_bias = config.projection_bias
        y = Dense(config.projection, use_bias=use_bias, **glorot, dtype=dtype, name="projection")(y)
    # Section 3.1: at pre-training a head with one hidden layer, at fine-tuning a single, zero-initialised one
    if config.representation_size:
        dtype = policy_at(policy, "pre_logits")
        y = Dense(config.representation_size, activation="tanh", **glorot, dtype=dtype, name="pre_logits")(y)
    if not config.classes:
        return y
    dtype = float32_or_better(policy.compute_dtype)
    if config.unit_features:
        y = keras.layers.UnitNormalization(dtype=dtype, name="unit_features")(y)
    logits = _classifier(config, "head", policy)(y)
    if config.distillation_head:
        y = layers.TokenPooling("token", token=1, dtype=policy, name="pooling_dist")(tokens)
        logits = keras.layers.Average(dtype=dtype, name="logits")([logits, _classifier(config, "head_dist", policy)(y)])
    return _activated(config, logits, policy)


def _classifier(config: ViTConfig | BiTConfig, name: str, policy: Any) -> keras.layers.Layer:
    return Dense(config.classes, kernel_initializer="zeros", dtype=float32_or_better(policy, name), name=name)


def _activated(config: ViTConfig | BiTConfig, logits: Any, policy: Any) -> Any:
    """Returns logits with the activation of the config, in float32 or better; as they are where it has none."""
    if config.classifier_activation is None:
        return logits
    dtype = float32_or_better(policy.compute_dtype)
    return Activation(config.classifier_activation, dtype=dtype, name="predictions")(logits)


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(ImageModel):
    """A Vision Transformer as a functional Keras model, made from a `ViTConfig`.

    It trains, saves, clones and exports like any functional model. Any of its layers can be the output of a sub-model.

    Args:
        config: The configuration of the model.
        input_tensor: Keras tensor to build on; None for a new input `(batch, *image_size, channels)`, or with
            `config.dynamic` `(batch, None, None, channels)`.
        name: Name of the model; None for the variant's.
        dtype: Dtype policy of all layers; None for Keras's global one.
        trainable: Whether training changes the weights.

    Raises:
        TypeError, ValueError: if `config` is of another class, `input_tensor` does not fit it, the dtype or the
            activation is unknown, or Keras is set to channels first; at call time, if the images do not fit the config.

    Examples:
        >>> small = keras_vit.VisionTransformer(config)
        >>> small.predict(small_images, verbose=0).shape
        (4, 2)
    """

    config: ViTConfig
    config_type = ViTConfig
    factory = "ViT_B16"
    default_name = "vision_transformer"
    outputs_of = staticmethod(vision_transformer)

    def with_patch_size(
        self, patch_size: int | tuple[int, int], image_size: int | tuple[int, int] | None = None
    ) -> "VisionTransformer":
        """Returns a new model for patches of another size, with the same weights, resized.

        The patch embedding is resized by FlexiViT's pseudo-inverse method (see `layers.resize_patch_kernel`), position
        embeddings by `config.interpolation`. Load a FlexiViT with `interpolation="bilinear_antialias"`, and derive
        every size directly from that model, because each resizing loses information. Sizes are in pixels; `patch_size`
        of hybrids is in cells of the ResNet's map. Raises TypeError or ValueError as `with_config`; for sizes that are
        not whole patches, with the nearest sizes.
        """
        config = self.config
        image_size = config.image_size if image_size is None else image_size
        return self.with_config(patch_size=patch_size, image_size=image_size, dynamic=config.dynamic)

    def with_classes(
        self, classes: int | None, keep_pre_logits: bool = False, *, class_names: Sequence[str] | None = None
    ) -> "VisionTransformer":
        """Returns a new model with the same weights and a new, zero-initialised head for `classes` classes.

        None gives a model without a head. `keep_pre_logits` keeps the tanh layer before the head, which the original
        drops for fine-tuning. Raises TypeError or ValueError if the model has neither head nor pooling, its weights are
        quantized, or `class_names` do not fit.
        """
        heads = ("head", "head_dist") if self.config.distillation_head else ("head",)
        return self.with_config(
            classes=classes,
            class_names=class_names,
            representation_size=self.config.representation_size if keep_pre_logits else None,
            fresh=heads if classes else (),
        )

    def folded(self) -> "VisionTransformer":
        """A new model for inference, with ResNet kernels standardised permanently and the same outputs."""
        return self.with_config(stem_folded=self.config.stem_stages is not None)


# BiT, the ResNet that the paper compares with (section 4.1; big_vision's `models/bit_paper.py`)


def bit(config: BiTConfig, images: Any, dtype: Any = None) -> Any:
    """Returns the symbolic output of a BiT for symbolic images `(batch, height, width, channels)`."""
    # It is `(batch, classes)`, without a head `(batch, features)`; with pooling `"none"` it has rows and columns in
    # between. `dtype` is a policy for all layers, but that the head computes in at least float32.
    policy = keras.dtype_policies.get(dtype)
    x = images
    if config.include_preprocessing:
        x = normalization(config.pipeline, policy)(x)

    # The root: no normalisation and no activation, which the first unit brings
    x = layers.bit_conv("conv_root", config.width, 7, 2, padding=3, folded=config.folded, dtype=policy)(x)
    x = layers.PaddedMaxPooling2D(config.pool_padding, dtype=policy, name="pool_root")(x)
    x = _stages(x, config.stages, config.width, functools.partial(layers.BiTUnit, folded=config.folded, dtype=policy))
    x = layers.group_norm("norm_pre_head", policy, GROUP_NORM_EPSILON)(x)
    x = Activation("relu", dtype=policy, name="relu_pre_head")(x)
    if config.pooling == "avg":
        x = keras.layers.GlobalAveragePooling2D("channels_last", dtype=policy, name="pooling")(x)

    return _activated(config, _classifier(config, "head", policy)(x), policy) if config.classes else x


@keras.saving.register_keras_serializable(package="keras_vit")
class BiT(ImageModel):
    """A BiT (Big Transfer) as a functional Keras model, made from a `BiTConfig`.

    A ResNet with pre-activation, group normalisation and standardised convolutions, for images
    `(batch, *image_size, channels)`. Other arguments and errors are as in `VisionTransformer`.

    Examples:
        >>> bit = keras_vit.BiT(keras_vit.BiTConfig(image_size=32, stages=(1, 1), width=32, classes=2))
        >>> bit.predict(np.zeros((1, 32, 32, 3)), verbose=0).shape
        (1, 2)
    """

    config: BiTConfig
    config_type = BiTConfig
    factory = "BiT_R50x1"
    default_name = "bit"
    outputs_of = staticmethod(bit)

    def with_classes(self, classes: int | None, *, class_names: Sequence[str] | None = None) -> "BiT":
        """A new model with a new, zero-initialised head, as `VisionTransformer.with_classes`; None: no head."""
        return self.with_config(classes=classes, class_names=class_names, fresh=("head",) if classes else ())

    def folded(self) -> "BiT":
        """A new model for inference with kernels standardised permanently; ValueError if it is quantized."""
        return self.with_config(folded=True)
