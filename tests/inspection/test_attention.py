"""Attention as arrays: against NumPy, and on every kind of model."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from tests.compute import forward
from tests.inspection.models import KINDS, around, images_for, make
from tests.layers import in_numpy
from tests.tolerances import SAME_FUNCTION

pytestmark = pytest.mark.long


def blocks_in_numpy(model, images):
    """The attention weights of every block, computed from the embedded tokens in float64; and the encoded tokens."""
    config = model.config
    x = forward(keras_vit.feature_extractor(model, ["embedded"]), images)["embedded"].astype("f8")
    weights = []
    for i in range(config.depth):
        w = in_numpy.weights_of(model.get_layer(f"block_{i}"))
        y = in_numpy.layer_norm(x, w, "norm1", config.layer_norm_epsilon)
        weights.append(in_numpy.attention_weights(y, y, in_numpy.inner(w, "attention"), config.heads))
        x = in_numpy.block(x, w, config.heads, config.gelu, config.layer_norm_epsilon)
    w = {f"norm/{k}": v for k, v in in_numpy.weights_of(model.get_layer("encoder_norm")).items()}
    return weights, in_numpy.layer_norm(x, w, "norm", config.layer_norm_epsilon)


def rollout_in_numpy(weights):
    result = np.eye(weights[0].shape[-1])
    for w in weights:
        step = 0.5 * w.mean(1) + 0.5 * np.eye(w.shape[-1])
        result = step @ result
    return result


def close(got, wanted, atol=SAME_FUNCTION):
    np.testing.assert_allclose(got, wanted, rtol=0, atol=atol)


# On each backend one that has all operations.
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "map" else pytest.mark.once) for kind in KINDS]
)
def test_attention_on_every_kind_of_model(kind):
    model = make(kind)
    images = images_for(model, 4)  # in two batches of one size, for JAX to compile each operation once
    wanted, encoded = blocks_in_numpy(model, images)
    rows, columns = model.config.grid_size
    prefix = model.config.prefix_tokens
    for block in (0, 1):
        maps = inspection.attention_maps(model, images, block, batch_size=2)
        assert maps.dtype == "float32" and maps.shape == wanted[block].shape
        close(maps, wanted[block])
        close(maps.sum(-1), 1, 1e-5)
    close(inspection.attention_maps(model, images, batch_size=2), wanted[-1])

    product = rollout_in_numpy(wanted)
    averaged = model.config.pooling == "avg"
    if kind == "map":
        w = in_numpy.weights_of(model.get_layer("pooling"))
        probes = np.repeat(w["probe"], 4, 0)
        probe = in_numpy.attention_weights(encoded, probes, in_numpy.inner(w, "attention"), model.config.heads)
        close(inspection.attention_maps(model, images, "pooling", batch_size=2), probe)
        pooled = inspection.patch_attention(model, images, "pooling", batch_size=2)
        close(pooled, probe.reshape(4, 2, rows, columns))
        row = (probe.mean(1) @ product)[:, 0]
    else:
        row = product[:, prefix:].mean(1) if averaged else product[:, 0]
    if kind == "dynamic":
        other = np.random.default_rng(1).uniform(-1, 1, (1, 16, 8, 3)).astype("f4")
        assert inspection.attention_maps(model, other).shape == (1, 2, 9, 9)
        assert inspection.attention_rollout(model, other).shape == (1, 4, 2)
    rollout = inspection.attention_rollout(model, images, batch_size=2)
    close(rollout, row[:, prefix:].reshape(4, rows, columns))
    assert (rollout > 0).all() and (rollout.sum((1, 2)) < 1.00001).all()

    together = inspection.patch_attention_of_blocks(model, images, [-1, 0], batch_size=2)
    assert together.keys() == {0, 1}
    for block in (0, 1):
        w = wanted[block]
        row = w[:, :, 0] if model.config.class_token and not averaged else w[:, :, prefix:].mean(2)
        row = row[..., prefix:].reshape(4, 2, rows, columns)
        close(inspection.patch_attention(model, images, block, batch_size=2), row)
        close(together[block], row)


@pytest.mark.once
def test_distances_of_patterns_that_are_computed_by_hand():
    """2 x 3 patches of 4 x 10 pixels, after one token that has no place."""
    itself, spread, right = (np.zeros((1, 1, 7, 7)) for _ in range(3))
    itself[..., range(7), range(7)] = 1
    spread[:] = 1 / 7
    for query in range(6):
        right[..., 1 + query, 1 + query + (1 if query % 3 < 2 else 0)] = 1
    weights = np.concatenate([itself, spread, right], 1)
    points = [(y * 4, x * 10) for y in range(2) for x in range(3)]
    between = [[np.hypot(a - c, b - d) for c, d in points] for a, b in points]
    wanted = [0, np.mean(between), 10 * 2 / 3]
    close(inspection.attention_distance(weights, (2, 3), (4, 10)), wanted, 1e-12)
    # What a query gives to the class token counts for nothing.
    right[..., 1:, 0] = 3.0
    close(inspection.attention_distance(right, (2, 3), (4, 10)), [10 * 2 / 3], 1e-12)


@pytest.mark.parametrize("kind", ["plain", pytest.param("hybrid", marks=pytest.mark.once)])
def test_the_mean_distance_is_over_images_and_in_pixels(kind):
    model = make(kind)
    images = images_for(model, 3 if kind == "plain" else 2)  # two batches, one of them short
    weights, _ = blocks_in_numpy(model, images)
    rows, columns = model.config.grid_size
    step = model.config.image_size[0] / rows
    assert step == (8 if kind == "hybrid" else 4)
    places = np.stack(np.meshgrid(range(rows), range(columns), indexing="ij"), -1).reshape(-1, 2) * step
    between = np.linalg.norm(places[:, None] - places[None], axis=-1)
    patches = [w[:, :, model.config.prefix_tokens :, model.config.prefix_tokens :] for w in weights]
    wanted = [((w / w.sum(-1, keepdims=True) * between).sum(-1)).mean((0, 2)) for w in patches]
    got = inspection.mean_attention_distance(model, images, batch_size=2)
    assert got.shape == (2, 2)
    close(got, wanted, 1e-4)  # pixels


def test_inside_a_larger_model():
    model = make("plain")
    outer = around(model)
    images = images_for(model)
    close(inspection.attention_maps(outer, images), inspection.attention_maps(model, 0.5 * images))
    close(inspection.attention_rollout(outer, images), inspection.attention_rollout(model, 0.5 * images))
    plain = keras.Sequential([model])
    plain.build((None, 8, 12, 3))
    close(inspection.attention_maps(plain, images, 0), inspection.attention_maps(model, images, 0))


@pytest.mark.once
def test_of_families():
    """Registers, rotary embeddings, layer scale: the weights are those that the block's own attention is made of."""
    fields = {"register_tokens": 2, "rotary_embedding": "dinov3", "position_embedding": "none", "layer_scale": 0.5}
    model = make("plain", **fields, final_norm="pooled", pooling="avg")
    images = images_for(model)
    maps = inspection.attention_maps(model, images, 1)
    assert maps.shape == (2, 2, 9, 9)
    close(maps.sum(-1), 1, 1e-5)
    features = forward(keras_vit.feature_extractor(model, ["block_0", "block_1/attention"]), images)
    w = in_numpy.weights_of(model.get_layer("block_1"))
    attention = in_numpy.inner(w, "attention")
    y = in_numpy.layer_norm(features["block_0"].astype("f8"), w, "norm1", 1e-6)
    values = in_numpy.dense(y, attention, "value").reshape(2, 9, 2, 8)
    mixed = in_numpy.dense(np.einsum("bhqk,bkhd->bqhd", maps, values).reshape(2, 9, 16), attention, "out")
    close(mixed * w["scale1/gamma"], features["block_1/attention"])
    unrotated = in_numpy.attention_weights(y, y, attention, 2)
    assert np.abs(unrotated - maps).max() > 0.01
    distilled = make("plain", distillation_token=True, distillation_head=True)
    reading = make("map", class_token=True, map_prefix=False)
    assert inspection.attention_maps(reading, images, "pooling").shape == (2, 2, 1, 6)
    for one, name in (
        *((model, "attention_rollout"), (model, "gradient_attention"), (model, "class_evidence")),
        *((distilled, "class_evidence"), (reading, "attention_rollout"), (reading, "gradient_attention")),
    ):
        assert getattr(inspection, name)(one, images).shape == (2, 2, 3), name
