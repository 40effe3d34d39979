"""The Vision Transformer, in the order of the paper's equations."""

import json
from typing import Any

import keras
import numpy as np
from keras import layers

from keras_vit.layers import (
    AddPositionEmbedding,
    ClassToken,
    MAPHead,
    PatchEmbedding,
    TokenPooling,
    TransformerBlock,
    resize_table,
    skip_initialization,
)
from keras_vit.layers._composite import quantized_policies
from keras_vit.layers.initialization import initializer
from keras_vit.models.config import ViTConfig
from keras_vit.models.resnet_stem import resnet_stem, standardized_kernels
from keras_vit.models.variants import variant_of
from keras_vit.preprocessing import preprocess_input, resize_images


def vision_transformer(config: ViTConfig, images: Any, dtype: Any = None) -> Any:
    """Applies a Vision Transformer to a symbolic batch of images.

    Args:
        config: What to build.
        images: Keras tensor `(batch, height, width, channels)`; values in [-1, 1], or 0..255 with
            `config.include_preprocessing`.
        dtype: A dtype policy for all layers; None for Keras's global one. The head computes in at least float32.

    Returns:
        Keras tensor: `(batch, classes)` with a head and pooling; without a head, `(batch, D)`; with pooling
        `"none"` a token axis in between.
    """
    policy = keras.dtype_policies.get(dtype)
    output_dtype = keras.backend.result_type(policy.compute_dtype, "float32")
    x = images
    if config.include_preprocessing:
        x = layers.Rescaling(1 / 127.5, -1.0, dtype=output_dtype, name="preprocessing")(x)

    # Hybrids (section 3.1): the patches are cut from the feature map of a ResNet
    if config.stem_stages is not None:
        x = resnet_stem(config, x, policy)

    # Equation 1: z_0 = [x_class; x_p^1 E; ...; x_p^N E] + E_pos
    patches = PatchEmbedding(config.width, config.patch_size, dtype=policy, name="embedding")(x)
    x = layers.Reshape((-1, config.width), dtype=policy, name="tokens")(patches)
    if config.class_token:
        x = ClassToken(dtype=policy, name="class_token")(x)
    x = AddPositionEmbedding(
        config.grid_size,
        config.prefix_tokens,
        config.interpolation,
        config.dropout,
        dtype=policy,
        name="position_embedding",
    )(x, patches if config.dynamic else None)

    # Equations 2 and 3, L times
    for i in range(config.depth):
        x = TransformerBlock(
            config.heads,
            config.mlp_width,
            config.dropout,
            config.attention_dropout,
            drop_path=config.drop_path * i / max(config.depth - 1, 1),
            remat=config.remat,
            gelu=config.gelu,
            epsilon=config.layer_norm_epsilon,
            dtype=policy,
            name=f"block_{i}",
        )(x)

    # Equation 4: y = LN(z_L^0)
    x = layers.LayerNormalization(epsilon=config.layer_norm_epsilon, dtype=policy, name="encoder_norm")(x)
    if config.pooling == "map":
        x = MAPHead(
            config.heads,
            config.mlp_width,
            config.gelu,
            config.layer_norm_epsilon,
            dtype=policy,
            name="pooling",
        )(x)
    elif config.pooling != "none":
        x = TokenPooling(config.pooling, config.prefix_tokens, dtype=policy, name="pooling")(x)

    # The head (section 3.1): at pre-training with one hidden layer, at fine-tuning a single, zero-initialised one
    if config.representation_size:
        kernel = initializer("glorot_uniform")
        x = layers.Dense(
            config.representation_size, activation="tanh", kernel_initializer=kernel, dtype=policy, name="pre_logits"
        )(x)
    if config.classes:
        x = layers.Dense(config.classes, kernel_initializer="zeros", dtype=output_dtype, name="head")(x)
        if config.classifier_activation is not None:
            x = layers.Activation(config.classifier_activation, dtype=output_dtype, name="predictions")(x)
    return x


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(keras.Model):
    """A Vision Transformer as a functional Keras model: a function of one `ViTConfig`.

    It trains, saves, clones and exports like any functional model, and any of its layers can be the output of a
    sub-model.

    Args:
        config: What to build.
        input_tensor: Keras tensor to build on; None for a new input `(batch, *image_size, channels)`, or with
            `config.dynamic` `(batch, None, None, channels)`.
        name: Name of the model; None for the variant's.
        dtype: Dtype policy of all layers; None for Keras's global one.

    Raises:
        ValueError: if `input_tensor` does not fit the config; at call time, if the images do not.
    """

    def __init__(
        self,
        config: ViTConfig,
        *,
        input_tensor: Any = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        if not isinstance(config, ViTConfig):
            raise TypeError(
                f"config must be a ViTConfig, but {type(config).__name__} was given. "
                "For a variant of the paper use a factory such as keras_vit.ViT_B16()."
            )
        if keras.config.image_data_format() == "channels_first":
            raise ValueError(
                "keras_vit takes images as (height, width, channels), but Keras is set to 'channels_first'. "
                "Call keras.config.set_image_data_format('channels_last') first."
            )
        size = (None, None) if config.dynamic else config.image_size
        shape = (*size, config.channels)
        images = keras.Input(shape, name="images", dtype="float32") if input_tensor is None else input_tensor
        if tuple(images.shape[1:]) != shape and input_tensor is not None:
            raise ValueError(f"input_tensor must have the shape (batch, {_spell(shape)}), but has {images.shape}.")
        outputs = vision_transformer(config, images, dtype)
        name = name or (variant_of(config) or "vision_transformer").lower().translate(str.maketrans("-/+", "___"))
        super().__init__(images, outputs, name=name)
        self._config = config
        self._policy = dtype
        self.trainable = trainable
        self.input_spec = None  # call() below says more than Keras does when images do not fit

    @property
    def config(self) -> ViTConfig:
        """What this model was built from."""
        return self._config

    def call(self, images: Any, training: bool | None = None, mask: Any = None) -> Any:
        config = self.config
        given = tuple(getattr(images, "shape", ()))
        if len(given) != 4:
            raise ValueError(
                f"{self.name} takes a batch of images (batch, height, width, channels), but the shape {given} was "
                "given. A single image needs a batch axis: images[None]."
            )
        if given[3] is not None and given[3] != config.channels:
            raise ValueError(
                f"{self.name} takes images with {config.channels} channels on the last axis, but the shape {given} "
                "was given. Grey images can be repeated along it; an alpha channel has to go."
            )
        size = tuple(known or wanted for known, wanted in zip(given[1:3], config.image_size, strict=True))
        if not config.dynamic and size != config.image_size:
            raise ValueError(
                f"{self.name} was built for images of {_spell(config.image_size)} pixels, but the shape {given} was "
                f"given. Resize them with model.preprocess(images), make a model for that size with "
                f"model.with_image_size({size}), or build it with image_size='dynamic'."
            )
        return super().call(images, training=training, mask=mask)

    def preprocess(self, images: Any) -> np.ndarray:
        """Resizes images as the original evaluation does and scales them as this model expects.

        Args:
            images: `(height, width, 3)` or `(batch, height, width, 3)`, uint8 or values of 0..255.

        Returns:
            float32 array `(batch, height, width, 3)` for `model.predict`.
        """
        images = np.asarray(images)
        images = images[None] if images.ndim == 3 else images
        images = resize_images(images, self.config.image_size)
        return images if self.config.include_preprocessing else preprocess_input(images)

    def with_image_size(self, image_size: int | tuple[int, int] | str) -> "VisionTransformer":
        """A new model for another image size with the same weights and resized position embeddings.

        Args:
            image_size: An integer, (height, width), or `"dynamic"` for any size at run time.
        """
        if image_size == "dynamic":
            return self._rebuild(self.config.replace(dynamic=True))
        return self._rebuild(self.config.replace(image_size=image_size, dynamic=False))

    def with_classes(self, classes: int | None, keep_pre_logits: bool = False) -> "VisionTransformer":
        """A new model with the same weights and a new, zero-initialised head.

        Args:
            classes: Outputs of the new head; None for no head.
            keep_pre_logits: Whether the tanh layer stays. The original drops it when it fine-tunes.
        """
        representation_size = self.config.representation_size if keep_pre_logits else None
        return self._rebuild(
            self.config.replace(classes=classes, representation_size=representation_size), fresh=("head/",)
        )

    def folded(self) -> "VisionTransformer":
        """A new model for inference whose ResNet kernels have been standardised for good.

        Standardising them at every call takes time that no backend saves by itself. The numbers stay the same. A
        plain Vision Transformer has no such kernels and comes back as a copy.
        """
        if self.config.stem_stages is None or self.config.stem_folded:
            return self._rebuild(self.config)
        model = self._rebuild(self.config.replace(stem_folded=True))
        for path, kernel in standardized_kernels(self).items():
            weights_by_path(model)[path].assign(kernel)
        return model

    def _rebuild(self, config: ViTConfig, fresh: tuple[str, ...] = ()) -> "VisionTransformer":
        with skip_initialization():
            model = VisionTransformer(config, dtype=self._policy)
        values = weights_by_path(self)
        for path, variable in weights_by_path(model).items():
            if path.startswith(fresh):
                continue
            # A copy: on JAX, training donates the buffers of one model, and they must not be the other's.
            value = keras.ops.copy(values[path])
            if path == "position_embedding/table" and config.grid_size != self.config.grid_size:
                value = resize_table(
                    keras.ops.convert_to_numpy(value), self.config.grid_size, config.grid_size, config.interpolation
                )
            variable.assign(value)
        return model

    def get_config(self) -> dict[str, Any]:
        policy = quantized_policies(self) or (self._policy and keras.dtype_policies.get(self._policy))
        return {
            "config": self.config.to_dict(),
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(policy) if policy else None,
            "trainable": self.trainable,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "VisionTransformer":
        config = dict(config)
        return cls(ViTConfig(**config.pop("config")), **config)

    def __repr__(self) -> str:
        return f"<VisionTransformer {self.name}: {json.dumps(self.config.to_dict())}>"


def weights_by_path(model: keras.Model) -> dict[str, Any]:
    """The weights of a model by a name that does not depend on where the model was built.

    For example `"block_0/attention/query/kernel"`: the layer's name, then the path inside the layer.
    """
    return {
        f"{layer.name}{weight.path.removeprefix(layer.path)}": weight
        for layer in model.layers
        for weight in layer.weights
    }


def _spell(shape: tuple[int | None, ...]) -> str:
    return " x ".join("any" if n is None else str(n) for n in shape)
