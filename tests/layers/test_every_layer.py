"""What every public layer keeps to: configs that tell everything, shapes that are true, mixed precision."""

import functools
import inspect

import keras
import numpy as np
import pytest

from keras_vit import layers
from tests.compute import forward

# Arguments that are not defaults, and the shape of the input without its batch.
EXACT = {"gelu": "exact", "epsilon": 1e-4, "dropout": 0.2}
ROTARY = {"rotary_embedding": "eva02", "epsilon": 1e-4, "dropout": 0.2}
METRES = {"min_depth": 0.5, "max_depth": 3.0}
EXAMPLES = {
    "AddPositionEmbedding": (
        {"grid_size": (2, 3), "prefix_tokens": 2, "interpolation": "bicubic", "dropout": 0.2}
        | {"embed_prefix": False, "register_tokens": 1},
        (8, 12),
    ),
    "AddSinCosPositionEmbedding": ({"grid_size": (2, 3), "prefix_tokens": 0, "dropout": 0.2}, (6, 12)),
    "AddTextPositions": ({}, (5, 12)),
    "BatchNormalization": ({"momentum": 0.8, "epsilon": 1e-4}, (5, 12)),
    "BiTUnit": ({"filters": 32, "strides": 2, "folded": True}, (5, 6, 32)),
    "ClassToken": ({}, (5, 12)),
    "DepthBins": ({"bins": 5, "factor": 2, "least_share": 0.01} | METRES, (2, 3, 6)),
    "DepthHead": ({"hidden": 4, "patch_size": (2, 3), "output": "sigmoid", "sky": False} | METRES, (2, 3, 6)),
    "FeatureFusion": ({"skip": False, "bias": False}, (2, 3, 6)),
    "LayerScale": ({"initial": 0.1}, (5, 12)),
    "MAPHead": ({"heads": 3, "mlp_width": 20, "gelu": "exact", "epsilon": 1e-4, "skipped_tokens": 1}, (5, 12)),
    "MaskHead": ({"activation": "relu"}, (5, 12)),
    "MixerBlock": ({"tokens_mlp_width": 3, "mlp_width": 20, "drop_path": 0.2, "remat": True} | EXACT, (5, 12)),
    "MLP": ({"width": 20, "norm": True} | EXACT, (5, 12)),
    "MultiHeadAttention": ({"heads": 3, "bias": "no_key", "norm": True, "causal": True} | ROTARY, (5, 12)),
    "PaddedMaxPooling2D": ({"padding": "zeros"}, (5, 6, 12)),
    "PatchDropout": ({"rate": 0.2, "prefix_tokens": 2, "ordered": True}, (5, 12)),
    "PatchEmbedding": ({"width": 12, "patch_size": (2, 3), "bias": False}, (4, 9, 5)),
    "QueryRotation": ({"count": 3}, (5, 8)),
    "Reassemble": ({"width": 4, "factor": 0.5, "readout": 8, "gelu": "tanh"}, (3, 5, 12)),
    "RegisterTokens": ({"count": 3}, (5, 12)),
    "ResNetUnit": ({"filters": 32, "strides": 2, "folded": True, "epsilons": "timm"}, (5, 6, 32)),
    "RotaryEmbedding": ({"kind": "dinov3", "size": 8, "prefix_tokens": 2, "reference_grid": (5, 4)}, (2, 3, 12)),
    "SelfMask": ({}, (5, 12)),
    "StdConv2D": (
        {"filters": 6, "kernel_size": 3, "strides": 2, "padding": 1, "epsilon": 1e-4}
        | {"epsilon_inside": True, "folded": True},
        (5, 6, 3),
    ),
    "SwiGLU": ({"width": 20, "norm": True, "epsilon": 1e-4, "dropout": 0.2}, (5, 12)),
    "TextMask": ({"pad_id": 1}, (5,)),
    "TextPooling": ({"kind": "end_id", "end_id": 7, "pad_id": 0}, (5, 12)),
    "TokenDropout": ({"dropout": 0.2}, (5, 12)),
    "TokenMap": ({"grid_size": (1, 3), "prefix_tokens": 2}, (5, 12)),
    "TokenPooling": ({"mode": "avg", "prefix_tokens": 2, "token": 1}, (5, 12)),
    "TransformerBlock": (
        {"heads": 3, "mlp_width": 20, "attention_dropout": 0.3, "drop_path": 0.3, "remat": True, "mlp": "swiglu_norm"}
        | {"layer_scale": 0.1, "attention_bias": "no_key", "attention_norm": True, "output_tokens": 2, "causal": True}
        | EXACT
        | ROTARY,
        (5, 12),
    ),
    "UpscaleBlock": ({"activation": "silu"}, (2, 3, 12)),
}
DEPTH = ("DepthBins", "DepthHead")  # they give numbers of metres, with no axis of channels
every_layer = pytest.mark.parametrize("name", EXAMPLES)
# These return float32 whatever the policy is, for all images at once, or booleans.
OTHER_OUTPUTS = {"RotaryEmbedding", "QueryRotation", "SelfMask", "TextMask"}
every_layer_of_images = pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - OTHER_OUTPUTS))


def options(name):
    if name == "TextPooling":
        return {"ids": np.array([[3, 7, 1, 7, 0], [7, 1, 1, 1, 1]], "int32")}
    if name == "DepthHead":
        return {"patches": np.zeros((2, 2, 2, 5), "f4")}
    if "rotary_embedding" not in EXAMPLES[name][0]:
        return {}
    angles = np.random.default_rng(2).uniform(-3, 3, (5, 4)).astype("f4")
    return {"rotation": np.stack([np.sin(angles), np.cos(angles)])}


def make(layer, **options):
    arguments, shape = EXAMPLES[layer]
    return getattr(layers, layer)(**arguments, **options), (2, *shape)


@functools.cache
def reference(name):
    """A layer whose weights are neither zero nor one, an input, and what comes of it."""
    layer, shape = make(name)
    with layers.skip_initialization():  # the random values would cost JAX seconds, and all are set below
        layer.build(shape)
    rng = np.random.default_rng(0)
    layer.set_weights([rng.normal(0.1, 0.3, w.shape) if w.dtype == "float32" else w for w in layer.get_weights()])
    if name == "BatchNormalization":  # there is no negative variance
        layer.moving_variance.assign(np.linspace(0.5, 1.5, shape[-1]))
    x = rng.normal(size=shape).astype("f4")
    return layer, x, forward(layer, x, **options(name))


def test_every_public_layer_has_an_example():
    public = {n for n in layers.__all__ if inspect.isclass(c := getattr(layers, n)) and issubclass(c, keras.Layer)}
    assert public == EXAMPLES.keys()
    for name, (arguments, _) in EXAMPLES.items():
        parameters = inspect.signature(getattr(layers, name)).parameters
        assert arguments.keys() == parameters.keys() - {"args", "kwargs"}, name
        for argument, value in arguments.items():
            is_tested = (name, argument) == ("DepthHead", "sky")  # with a dict of two maps, in tests/depth
            assert is_tested or value != parameters[argument].default, f"{name}({argument}=...) is the default"


@every_layer
@pytest.mark.once
def test_config_round_trip(name):
    layer, shape = make(name, name="mine", trainable=False, dtype="mixed_bfloat16")
    config = layer.get_config()
    arguments = EXAMPLES[name][0]
    assert {key: config[key] for key in arguments} == arguments
    again = type(layer).from_config(config)
    assert again.get_config() == config
    assert (again.name, again.trainable, again.dtype_policy.name) == ("mine", False, "mixed_bfloat16")

    # As Keras writes it into files: by its registered name, in JSON.
    serialized = keras.saving.serialize_keras_object(layer)
    assert serialized["registered_name"] == f"keras_vit>{name}"
    again = keras.saving.deserialize_keras_object(serialized)
    assert again.get_config() == layer.get_config()

    # The copy has the same weights in the same order.
    with layers.skip_initialization():
        again.build(shape)
        layer.build(shape)
    assert [(w.path, w.shape) for w in again.weights] == [(w.path, w.shape) for w in layer.weights]


@every_layer_of_images
def test_shapes(name):
    layer, x, y = reference(name)
    symbolic = layer(keras.Input(x.shape[1:]), **options(name))
    assert y.dtype == np.float32 and np.isfinite(y).all() and y.std() > 1e-2
    assert tuple(symbolic.shape) == (None, *y.shape[1:]) and symbolic.dtype == "float32"
    assert tuple(layer.compute_output_shape(x.shape)) == y.shape
    # Nothing is known of the batch and the number of tokens or pixels.
    if name not in ("AddPositionEmbedding", "AddSinCosPositionEmbedding"):
        unknown = tuple(layer.compute_output_shape((None, *(None for _ in x.shape[1:-1]), x.shape[-1])))
        assert all(n in (None, known) for n, known in zip(unknown, y.shape, strict=True))
        assert unknown[0] is None and unknown[-1] == (None if name in DEPTH else y.shape[-1])


@every_layer_of_images
def test_mixed_precision(name):
    layer, x, wanted = reference(name)
    mixed, shape = make(name, dtype="mixed_bfloat16")
    with layers.skip_initialization():
        mixed.build(shape)
    mixed.set_weights(layer.get_weights())
    assert {str(w.dtype) for w in mixed.weights if "seed" not in w.path} <= {"float32"}
    assert mixed(keras.Input(shape[1:]), **options(name)).dtype == ("float32" if name in DEPTH else "bfloat16")
    # bfloat16 has 8 bits: 0.4 % of every factor, and a bit more where sums cancel.
    y = np.asarray(forward(mixed, x, **options(name)), "f4")
    np.testing.assert_allclose(y, wanted, rtol=0, atol=2e-2 * np.abs(wanted).max())


@pytest.mark.parametrize("name", [n for n in EXAMPLES if "dropout" in EXAMPLES[n][0]])
def test_dropout_is_for_training_only(name):
    layer, x, y = reference(name)
    np.testing.assert_array_equal(forward(layer, x, training=False, **options(name)), y)
    assert np.abs(forward(layer, x, training=True, **options(name)) - y).max() > 1e-2 * np.abs(y).max()


@pytest.mark.once
def test_first_values_of_a_doubling_convolution_are_as_large_as_pytorchs():
    import torch

    layer = layers.UpscaleBlock()
    layer.build((1, 2, 2, 64))
    wanted = torch.nn.ConvTranspose2d(64, 64, 2, 2).weight.std().item()
    # The deviation of 16,384 normal values has a standard error of 0.6 %.
    found = np.std(keras.ops.convert_to_numpy(layer.conv1.kernel))
    assert found == pytest.approx(wanted, rel=0.03)
