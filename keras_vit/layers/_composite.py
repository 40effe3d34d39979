"""What every layer of this package that contains other Keras layers shares."""

from typing import Any

import keras


class CompositeLayer(keras.layers.Layer):
    """A layer made of layers, which also reloads after `quantize()`.

    Keras rebuilds a saved layer from its config. The config of a composite layer has to tell which of its inner
    layers were quantized; a `DTypePolicyMap` from their paths to their policies does, provided that every inner
    layer is created with `dtype=self.dtype_policy`.
    """

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        policies = quantized_policies(self)
        if policies is not None:
            config["dtype"] = keras.dtype_policies.serialize(policies)
        return config


def quantized_policies(layer: keras.layers.Layer) -> keras.dtype_policies.DTypePolicyMap | None:
    """The dtype policies of the quantized layers inside `layer`, by path; None where there are none."""
    policies = {
        inner.path: inner.dtype_policy for inner in layer._flatten_layers() if inner.quantization_mode is not None
    }
    if not policies:
        return None
    result = keras.dtype_policies.DTypePolicyMap(default_policy=unquantized_policy(layer))
    for path, policy in policies.items():
        result[path] = policy
    return result


def unquantized_policy(layer: keras.layers.Layer) -> str:
    """Name of the policy that `layer` had before any of its parts was quantized."""
    policy = layer.dtype_policy
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        return policy.default_policy.name
    return policy.name
