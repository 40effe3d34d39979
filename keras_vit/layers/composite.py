"""What every layer of this package that contains other Keras layers shares."""

from typing import Any

import keras

from keras_vit._keras import layers_inside


class CompositeLayer(keras.layers.Layer):
    """A layer made of layers, which also reloads after `quantize()`.

    Keras rebuilds a saved layer from its config. The config of a composite layer has to tell which of its inner
    layers were quantized; a `DTypePolicyMap` from their paths to their policies does, provided that every composite
    layer inside is created with `dtype=self.dtype_policy` and every other with `own_policy`.
    """

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        policies = quantized_policies(self)
        if policies is not None:
            config["dtype"] = keras.dtype_policies.serialize(policies)
        return config


def quantized_policies(layer: keras.layers.Layer) -> keras.dtype_policies.DTypePolicyMap | None:
    """The dtype policies of the quantized layers inside `layer`, by path; None where there are none."""
    policies = {inner.path: inner.dtype_policy for inner in layers_inside(layer) if inner.quantization_mode is not None}
    if not policies:
        return None
    result = keras.dtype_policies.DTypePolicyMap(default_policy=unquantized_policy(layer))
    for path, policy in policies.items():
        result[path] = policy
    return result


def own_policy(policy: Any, path: str) -> Any:
    """The policy of the layer at `path`, also where `policy` is a map: Keras 3.15 saves no layer that has the map."""
    if not isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        return policy
    return policy[path] if path in policy else policy.default_policy


def at_least_float32(policy: keras.DTypePolicy, name: str) -> Any:
    """The policy of a layer outside any other that computes in float32 or better, also where it has been quantized."""
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap) and name in policy:
        return policy[name]
    return float32_or_better(policy.compute_dtype)


def float32_or_better(dtype: str) -> str:
    """float64 for float64, otherwise float32.

    `keras.backend.result_type` is no help: of float64 and float32 it makes float32.
    """
    return "float64" if dtype == "float64" else "float32"


def unquantized_policy(layer: keras.layers.Layer) -> str:
    """Name of the policy that `layer` had before any of its parts was quantized."""
    policy = layer.dtype_policy
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        return policy.default_policy.name
    return policy.name
