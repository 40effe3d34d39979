"""LoRA's adapters and frozen weights: what files say of them, and the same model without adapters."""

from collections.abc import Collection, Mapping
from typing import Any

import keras

from keras_vit._keras import layers_inside, own_trainable_weights
from keras_vit.layers import skip_initialization
from keras_vit.layers.base import has_adapters, layers_by_path, weights_by_path


def adapted_layers(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """The layers of a model that have adapters, by their names."""
    return {name: layer for name, layer in layers_by_path(model).items() if has_adapters(layer)}


def training_config(model: keras.Model) -> dict[str, Any]:
    """What the config of a model says of adapters and of frozen weights in layers that train, as plain data."""
    training = [layer for layer in layers_inside(model, include_self=False) if layer.trainable]
    frozen = {id(weight) for layer in training for weight in own_trainable_weights(layer) if not weight.trainable}
    config = {
        "adapters": {
            name: {"rank": layer.lora_rank, "alpha": layer.lora_alpha} for name, layer in adapted_layers(model).items()
        },
        "frozen_weights": [name for name, weight in weights_by_path(model).items() if id(weight) in frozen],
    }
    return {key: value for key, value in config.items() if value}


def restore_training(model: keras.Model, adapters: Mapping[str, Any], frozen_weights: Collection[str]) -> None:
    """Gives a new model the adapters of a `training_config`, and lets the same weights train."""
    layers = layers_by_path(model) if adapters else {}
    for name, options in adapters.items():
        if not has_adapters(layers[name]):
            layers[name].enable_lora(options["rank"])
        layers[name].lora_alpha = options["alpha"]
    weights = weights_by_path(model) if frozen_weights else {}
    for name in frozen_weights:
        weights[name].trainable = False


def merge_lora(model: Any) -> Any:
    """A new model without adapters that computes the same: they are added to the kernels, and all weights train.

    Args:
        model: A model of this package with adapters; it is left as it is.

    Returns:
        The model, with every weight as it was before `add_lora`.

    Raises:
        ValueError: if the model has no adapters, or its kernels are quantized.

    Examples:
        >>> adapted = keras_vit.VisionTransformer(config)
        >>> names = training.add_lora(adapted, rank=2)
        >>> merged = training.merge_lora(adapted)
        >>> np.allclose(merged.predict(small_images, verbose=0), adapted.predict(small_images, verbose=0), atol=1e-6)
        True
    """
    adapted = require_adapters(model)
    if any(layer.quantization_mode for layer in adapted.values()):
        raise ValueError(f"The kernels of {model.name} are quantized, so adapters cannot be added to them.")
    config = {name: value for name, value in model.get_config().items() if name not in ("adapters", "frozen_weights")}
    with skip_initialization():
        merged = type(model).from_config({**config, "frozen": (), "trainable": True})
    values = weights_by_path(model)
    for name, weight in weights_by_path(merged).items():
        owner, _, attribute = name.rpartition("/")
        value = keras.ops.convert_to_numpy(values[name])
        if owner in adapted and attribute == "kernel":
            layer = adapted[owner]
            a, b = (keras.ops.convert_to_numpy(x) for x in (layer.lora_kernel_a, layer.lora_kernel_b))
            value = value + layer.lora_alpha / layer.lora_rank * (a @ b)
        weight.assign(value)
    return merged


def require_adapters(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """`adapted_layers` of a model that has some; ValueError if it has none."""
    adapted = adapted_layers(model)
    if not adapted:
        raise ValueError(f"{model.name} has no adapters. add_lora(model, rank) gives it some.")
    return adapted
