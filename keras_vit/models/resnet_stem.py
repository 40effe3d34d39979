"""The ResNet of the hybrids (section 3.1 of the paper; the official `models_resnet.py` and `models_vit.py`)."""

from typing import Any

from keras import layers

from keras_vit.layers import ResNetUnit, StdConv2D, group_norm
from keras_vit.models.config import ViTConfig


def resnet_stem(config: ViTConfig, images: Any, policy: Any) -> Any:
    """Applies the ResNet of a hybrid.

    Args:
        config: Its `stem_stages`, `stem_width` and `stem_folded` are used.
        images: Keras tensor `(batch, height, width, channels)`.
        policy: Dtype policy of the layers.

    Returns:
        Keras tensor `(batch, *config.feature_map_size, channels)`.
    """
    folded = config.stem_folded
    x = StdConv2D(config.stem_width, 7, 2, folded=folded, dtype=policy, name="conv_root")(images)
    x = group_norm("gn_root", policy)(x)
    x = layers.Activation("relu", dtype=policy, name="relu_root")(x)
    x = layers.MaxPooling2D(3, 2, padding="same", data_format="channels_last", dtype=policy, name="pool_root")(x)
    for stage, units in enumerate(config.stem_stages, start=1):
        for unit in range(1, units + 1):
            x = ResNetUnit(
                config.stem_width * 2 ** (stage - 1),
                strides=2 if unit == 1 and stage > 1 else 1,
                folded=folded,
                dtype=policy,
                name=f"block{stage}_unit{unit}",
            )(x)
    return x
