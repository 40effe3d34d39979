"""BiT, the ResNet that the paper compares with (section 4.1; big_vision's `models/bit_paper.py`)."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers

from keras_vit.layers import BiTUnit, PaddedMaxPooling2D, bit_conv, group_norm
from keras_vit.layers.base import Dense, at_least_float32
from keras_vit.layers.ops import float32_or_better
from keras_vit.layers.resnet import GROUP_NORM_EPSILON
from keras_vit.models.config import BiTConfig
from keras_vit.models.image_model import ImageModel, normalization


def bit(config: BiTConfig, images: Any, dtype: Any = None) -> Any:
    """Returns the symbolic output of a BiT for symbolic images `(batch, height, width, channels)`.

    It is `(batch, classes)`, without a head `(batch, features)`; with pooling `"none"` it has rows and columns in
    between. `dtype` is a policy for all layers, but that the head computes in at least float32. Raises ValueError for
    an activation or a dtype that Keras does not know.
    """
    policy = keras.dtype_policies.get(dtype)
    output_dtype = float32_or_better(policy.compute_dtype)
    x = images
    if config.include_preprocessing:
        x = normalization(config.pipeline, policy)(x)

    # The root: no normalisation and no activation, which the first unit brings
    x = bit_conv("conv_root", config.width, 7, 2, padding=3, folded=config.folded, dtype=policy)(x)
    x = PaddedMaxPooling2D(config.pool_padding, dtype=policy, name="pool_root")(x)

    for stage, units in enumerate(config.stages, start=1):
        for unit in range(1, units + 1):
            x = BiTUnit(
                config.width * 2 ** (stage - 1),
                strides=2 if unit == 1 and stage > 1 else 1,
                folded=config.folded,
                dtype=policy,
                name=f"block{stage}_unit{unit}",
            )(x)

    x = group_norm("norm_pre_head", policy, GROUP_NORM_EPSILON)(x)
    x = layers.Activation("relu", dtype=policy, name="relu_pre_head")(x)
    if config.pooling == "avg":
        x = layers.GlobalAveragePooling2D("channels_last", dtype=policy, name="pooling")(x)

    if config.classes:
        x = Dense(config.classes, kernel_initializer="zeros", dtype=at_least_float32(policy, "head"), name="head")(x)
        if config.classifier_activation is not None:
            x = layers.Activation(config.classifier_activation, dtype=output_dtype, name="predictions")(x)
    return x


@keras.saving.register_keras_serializable(package="keras_vit")
class BiT(ImageModel):
    """A BiT as a functional Keras model: a function of one `BiTConfig`.

    A ResNet with pre-activation, group normalisation and standardised convolutions, for images
    `(batch, *image_size, channels)`. Arguments are those of `VisionTransformer`. Raises TypeError for another config;
    ValueError for an `input_tensor` that does not fit it, and at call time for images that do not.

    Examples:
        >>> bit = keras_vit.BiT(keras_vit.BiTConfig(image_size=32, stages=(1, 1), width=32, classes=2))
        >>> bit.predict(np.zeros((1, 32, 32, 3)), verbose=0).shape
        (1, 2)
    """

    config_type = BiTConfig
    factory = "BiT_R50x1"
    default_name = "bit"
    outputs_of = staticmethod(bit)

    @property
    def config(self) -> BiTConfig:
        """The config of this model."""
        return self._config

    def with_classes(self, classes: int | None, *, class_names: Sequence[str] | None = None) -> "BiT":
        """Returns a new model with the same weights and a new, zero-initialised head; with None without a head.

        Raises TypeError or ValueError as `VisionTransformer.with_classes`.
        """
        return self.with_config(classes=classes, class_names=class_names, fresh=("head",) if classes else ())

    def folded(self) -> "BiT":
        """Returns a new model with the same outputs and kernels standardised for good; ValueError if quantized."""
        return self.with_config(folded=True)
