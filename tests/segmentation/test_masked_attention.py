"""What queries see while an EoMT trains: the patches in their mask, by chance all of them, and never less."""

import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.models.dense import read_queries
from tests.segmentation.test_eomt import DINOV2, DINOV3, HEAD, shaken

pytestmark = pytest.mark.nightly_elsewhere
EXACT = 2e-6  # of the logits' range: the same in float32, in another order


@pytest.fixture(scope="module", params=[DINOV2, DINOV3], ids=["dinov2", "dinov3"])
def model(request):
    return shaken(keras_vit.models.EoMTConfig(backbone=request.param, **HEAD))


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).normal(size=(2, 24, 24, 3)).astype("float32")


def arrays(prediction):
    return {name: ops.convert_to_numpy(logits) for name, logits in prediction.items()}


def assert_same(prediction, other):
    prediction, other = arrays(prediction), arrays(other)
    for name, logits in prediction.items():
        assert np.abs(logits - other[name]).max() <= EXACT * np.ptp(other[name])


def test_the_predictions(model, images):
    """One before each block with queries, which have met no picture before the first of them, and the last."""
    found = model.predictions(images, mask_probability=1.0)
    assert len(found) == HEAD["query_blocks"] + 1
    classes = arrays(found[0])["classes"]
    np.testing.assert_allclose(classes[0], classes[1], rtol=0, atol=1e-5)
    masks = arrays(found[0])["masks"]
    assert np.abs(masks[0] - masks[1]).max() > 0.1
    assert_same(model.predictions(images, 0.0)[-1], model(images))
    assert_same(model.predictions(images, [0.0, 0.0])[-1], model(images))
    assert np.abs(arrays(found[-1])["masks"] - arrays(model(images))["masks"]).max() > 0.1


def reference(model, images, number):
    """The tokens after the last block with masked attention in it alone, by the definition, in float64."""
    config = model.config
    tokens, rotation = {}, []

    def keep(layer, *args, **options):
        tokens["in"], rotation[:] = args[0], args[1:]
        return layer(*args, **options)

    block = model.get_layer(f"block_{config.backbone.depth - 1}")
    model.run(images, {block.name: keep}, until=block.name)
    prediction = model.predictions(images, [0.0] * (number + 1))[number]
    masks = arrays(prediction)["masks"]
    rows, columns = config.grid_size
    step = masks.shape[2] // rows
    # Half-pixel and linear, at a whole factor: the mean of the four places in the middle of each patch.
    middle = [step // 2 - 1, step // 2]
    patches = masks.reshape(*masks.shape[:2], rows, step, columns, step)[:, :, :, middle][..., middle].mean((3, 5))
    seen = patches.reshape(*masks.shape[:2], -1) > 0
    queries, prefix = config.queries, config.backbone.prefix_tokens
    count = queries + prefix + rows * columns
    allowed = np.ones((len(images), count, count), bool)
    allowed[:, :queries, queries + prefix :] = seen
    return arrays({"x": block(tokens["in"], *rotation, allowed=ops.convert_to_tensor(allowed))})["x"], seen


def test_queries_see_the_patches_of_their_mask(model, images):
    """Only in the last block; an empty mask sees no patch at all, and prefix tokens see everything."""
    last = HEAD["query_blocks"] - 1
    probability = [0.0] * last + [1.0]
    found = arrays(model.predictions(images, probability)[-1])
    tokens, seen = reference(model, images, last)
    assert 0 < seen.mean() < 1
    parts = {layer.name: layer for layer in model.layers}
    assert_same(read_queries(ops.convert_to_tensor(tokens), parts, model.config), found)


def test_queries_with_empty_masks_see_no_patch(model, images):
    """Mask2Former would show them all."""
    copy, last = model.with_config(), HEAD["query_blocks"] - 1
    for weight in copy.get_layer("mask_head").fc3.weights:
        weight.assign(np.zeros(weight.shape))
    found = arrays(copy.predictions(images, [0.0] * last + [1.0])[-1])["classes"]
    tokens, seen = reference(copy, images, last)
    assert not seen.any()
    parts = {layer.name: layer for layer in copy.layers}
    wanted = arrays(read_queries(ops.convert_to_tensor(tokens), parts, copy.config))["classes"]
    assert np.abs(found - wanted).max() <= EXACT * np.ptp(wanted)
    assert np.abs(found - arrays(copy.predictions(images, 0.0)[-1])["classes"]).max() > 0.01 * np.ptp(wanted)


def test_chance_frees_whole_queries(model, images):
    """A query whose number is above the probability sees all patches in that block; 0 frees all and 1 none."""
    blocks, queries = HEAD["query_blocks"], HEAD["queries"]
    draws = np.full((blocks, 2, queries), 0.5, "float32")
    assert_same(model.predictions(images, 0.4, draws)[-1], model.predictions(images, 0.0)[-1])
    assert_same(model.predictions(images, 0.6, draws)[-1], model.predictions(images, 1.0)[-1])
    draws[:, 1] = 0.7
    mixed = arrays(model.predictions(images, 0.6, draws)[-1])
    for i, other in enumerate((1.0, 0.0)):
        wanted = arrays(model.predictions(images[i : i + 1], other)[-1])
        assert np.abs(mixed["masks"][i] - wanted["masks"][0]).max() < 1e-5 * np.ptp(wanted["masks"])
    of_images = np.array([[1.0] * blocks, [0.0] * blocks], "float32")
    of_images = model.predictions(images, ops.convert_to_tensor(of_images), draws)
    assert_same(of_images[-1], mixed)
    with pytest.raises(ValueError, match="mask_probability=0.5 needs draws"):
        model.predictions(images, 0.5)
    with pytest.raises(ValueError, match="for each image needs draws"):
        model.predictions(images, np.zeros((len(images), HEAD["query_blocks"])))
    for wrong in (1.5, [0.5], np.zeros((len(images), blocks + 1))):
        with pytest.raises(ValueError, match="mask_probability must"):
            model.predictions(images, wrong, draws)


def test_rotary_coordinates_are_rescaled(model, images):
    """DINOv3 while it trains; without rotary embeddings nothing changes."""
    plain, scaled = (arrays(model.predictions(images, 0.0, rope_scale=s)[-1])["masks"] for s in (1.0, 1.5))
    change = np.abs(plain - scaled).max() / np.ptp(plain)
    assert change > 0.02 if model.config.backbone.rotary_embedding else change == 0
    assert np.abs(plain - arrays(model(images))["masks"]).max() <= EXACT * np.ptp(plain)
