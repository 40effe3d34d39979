"""Gradients, and products of the Hessian with a vector, beside finite differences in float64."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import layers
from keras_vit.layers import ops
from tests.compute import derivatives

PLAIN = {"image_size": 8, "patch_size": 4, "width": 8, "depth": 1, "heads": 2, "mlp_width": 12, "classes": 3}
HYBRID = {"depth": 2, "image_size": 32, "patch_size": 1, "stem_stages": (1, 1), "stem_width": 32}
ROTARY = {"rotary_embedding": "eva02", "mlp": "swiglu_norm", "attention_norm": True, "attention_bias": "no_key"}
MODELS = {
    "hybrid": PLAIN | HYBRID | {"pre_norm": True},
    "rotary": PLAIN | ROTARY | {"position_embedding": "none", "layer_scale": 0.5},
    "MAP head": PLAIN | {"pooling": "map", "class_token": False, "gelu": "exact"},
}


@pytest.fixture(autouse=True)
def wide(backend):
    """JAX has to be told of float64, and PyTorch to leave out fused attention, which has no second derivative."""
    if backend == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        yield
        jax.config.update("jax_enable_x64", False)
    elif backend == "torch":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.MATH):
            yield
    else:
        yield


def model_and_images(name):
    config = keras_vit.ViTConfig(**MODELS[name])
    with layers.skip_initialization():
        model = keras_vit.VisionTransformer(config, dtype="float64")
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, 0.3, w.shape) for w in model.weights])
    return model, rng.normal(size=(2, *config.image_size, 3))


@pytest.mark.parametrize("paths", ["fast", pytest.param("plain", marks=pytest.mark.nightly_elsewhere)])
@pytest.mark.parametrize("name", [pytest.param("hybrid", marks=pytest.mark.nightly_elsewhere), "rotary", "MAP head"])
def test_hessian_times_vector(name, paths, monkeypatch, record_property, backend):
    if paths == "plain":  # as on other devices
        if backend == "jax":
            pytest.skip("these are JAX's own, and a minute of compiling")
        monkeypatch.setattr(ops, "FORMS", {})
    model, images = model_and_images(name)
    value, gradient, product = derivatives(model, images, lambda y: keras.ops.sum(keras.ops.square(y)))
    weights = [np.array(w) for w in model.get_weights()]
    trained = [any(w is t for t in model.trainable_weights) for w in model.weights]
    rng = np.random.default_rng(1)
    direction = [rng.normal(size=w.shape) * t for w, t in zip(weights, trained, strict=True)]
    vector = [d for d, t in zip(direction, trained, strict=True) if t]

    def moved(step):
        model.set_weights([w + step * d for w, d in zip(weights, direction, strict=True)])
        return float(value()), flat(gradient())

    # The error of central differences goes with h^4, some 1e-12; that of rounding is 1e-16 / h.
    h = 1e-6 if name == "hybrid" else 1e-4  # no ReLU may change sides
    near, far = ([a - b for a, b in zip(moved(s * h), moved(-s * h), strict=True)] for s in (1, 2))
    slope, expected = ((8 * a - b) / (12 * h) for a, b in zip(near, far, strict=True))
    model.set_weights(weights)
    assert abs(flat(gradient()) @ flat(vector) - slope) <= 1e-6 * abs(slope)
    error = float(np.linalg.norm(flat(product(vector)) - expected) / np.linalg.norm(expected))
    record_property("errors", {paths: error})
    assert error <= 1e-6


def flat(arrays):
    return np.concatenate([np.ravel(np.asarray(array, "float64")) for array in arrays])
