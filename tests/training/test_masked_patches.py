"""Masked patch prediction: what is corrupted, what is to be predicted, and that it is learned."""

import keras
import numpy as np
import pytest

from keras_vit import BiT, BiTConfig, VisionTransformer, ViTConfig
from keras_vit.training import Recipe, pretrain
from keras_vit.training.pretraining import (
    KEEP,
    MASK,
    NO_TARGET,
    CorruptPatches,
    MaskedPatchAccuracy,
    MaskedPatchLoss,
    masked_patch_model,
    mean_colours,
    plan_corruption,
)
from tests.compute import forward

CONFIG = ViTConfig(image_size=(8, 12), patch_size=4, width=16, depth=1, heads=2, mlp_width=24, classes=3)


@pytest.mark.once
def test_half_of_the_patches_are_corrupted_in_the_paper_s_shares():
    plan, corrupted = plan_corruption(200, 100, (0, 3))
    np.testing.assert_array_equal(plan_corruption(200, 100, (0, 3))[0], plan)
    assert np.any(plan_corruption(200, 100, (0, 4))[0] != plan)
    assert np.all(corrupted.sum(axis=1) == 50)
    assert np.all(plan[~corrupted] == KEEP)
    fates = plan[corrupted]
    # 10,000 draws: three standard deviations are 1.2 and 0.9 points
    assert np.mean(fates == MASK) == pytest.approx(0.8, abs=0.012)
    assert np.mean(fates >= 0) == pytest.approx(0.1, abs=0.009)
    others = np.nonzero(plan >= 0)
    assert np.all(plan[others] != others[1])
    assert len(np.unique(plan[others])) > 90


@pytest.mark.once
def test_colours_are_3_bits_each():
    pixels = np.zeros((1, 4, 8, 3), "float32")
    pixels[0, :, :4] = (255, 0, 128)
    pixels[0, :2, 4:] = (31, 32, 200)
    pixels[0, 2:, 4:] = (32, 32, 100)  # mean of the patch: 31.5, 32, 150
    np.testing.assert_array_equal(mean_colours(pixels, (1, 2)), [[7 * 64 + 0 * 8 + 4, 0 * 64 + 1 * 8 + 4]])


def test_patches_are_put_in_each_other_s_place():
    layer = CorruptPatches()
    tokens = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    plan = np.array([[KEEP, MASK, 0], [2, KEEP, MASK]], "int32")
    layer.build(tokens.shape, plan.shape)
    layer.mask_token.assign(np.arange(4))
    got = keras.ops.convert_to_numpy(layer(keras.ops.convert_to_tensor(tokens), keras.ops.convert_to_tensor(plan)))
    mask = np.arange(4)
    wanted = [[tokens[0, 0], mask, tokens[0, 0]], [tokens[1, 2], tokens[1, 1], mask]]
    np.testing.assert_array_equal(got, np.array(wanted, "float32"))


def test_loss_and_accuracy_are_of_the_corrupted_patches_alone():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 512)).astype("float32")
    targets = np.array([[5, NO_TARGET, 511], [NO_TARGET, NO_TARGET, 0]], "int32")
    logits[0, 0, 5] = 20
    logarithms = logits - np.log(np.exp(logits.astype("float64")).sum(-1, keepdims=True))
    wanted = -np.mean([logarithms[0, 0, 5], logarithms[0, 2, 511], logarithms[1, 2, 0]])
    assert float(MaskedPatchLoss()(targets, logits)) == pytest.approx(wanted, rel=1e-6)
    accuracy = MaskedPatchAccuracy("accuracy")
    accuracy.update_state(targets, logits)
    assert float(accuracy.result()) == pytest.approx(1 / 3)
    nothing = np.full((2, 3), NO_TARGET, "int32")
    assert float(MaskedPatchLoss()(nothing, logits)) == 0


@pytest.mark.nightly_elsewhere
def test_without_corruption_the_encoder_is_the_model_s():
    model = VisionTransformer(CONFIG)
    learner = masked_patch_model(model)
    encoded = keras.Model(learner.input, learner.get_layer("encoder_norm").output)
    wanted = keras.Model(model.input, model.get_layer("encoder_norm").output)
    images = np.random.default_rng(0).normal(size=(2, 8, 12, 3)).astype("float32")
    got = forward(encoded, {"images": images, "plan": np.full((2, 6), KEEP, "int32")})
    np.testing.assert_allclose(got, forward(wanted, images), atol=1e-6)  # two compilations of the same sums
    assert {id(w) for w in model.get_layer("block_0").weights} <= {id(w) for w in learner.weights}


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("final_norm", ["tokens", "pooled", "none"])
def test_a_model_that_was_optimized_for_inference_learns_patches(final_norm):
    """Its last block computes the class token alone, and here all of them."""
    source = VisionTransformer(CONFIG.replace(final_norm=final_norm, class_token_only=True))
    pixels = np.random.default_rng(0).integers(0, 255, (4, 8, 12, 3), "uint8")
    recipe = Recipe(steps=1, batch_size=2)
    done = pretrain(source, (pixels, [0, 1, 0, 1]), recipe, objective="masked_patches", verbose=False)
    assert np.isfinite(done.log[-1]["loss"]) and not done.model.config.class_token_only


@pytest.mark.nightly_elsewhere
def test_a_model_runs_with_other_layers_and_until_one():
    model, images = VisionTransformer(CONFIG), np.ones((2, 8, 12, 3), "float32")
    tokens = keras.ops.convert_to_numpy(model.run(images, until="encoder_norm"))
    changed = model.run(images, {"pooling": lambda layer, tokens: tokens[:, 1]}, until="pooling")
    assert tokens.shape == (2, 7, 16)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(changed), tokens[:, 1])
    np.testing.assert_allclose(forward(model, images), keras.ops.convert_to_numpy(model.run(images)), atol=1e-6)
    with pytest.raises(ValueError, match="has no layer 'poling'. Did you mean 'pooling'"):
        model.run(images, until="poling")
    with pytest.raises(ValueError, match="8 x 12"):
        model.run(images[:, :4])


RESNET = BiTConfig(stages=(1,), width=32, classes=2)
REFUSED = {
    "VisionTransformer": lambda: masked_patch_model(BiT(RESNET)),
    "at least 2 patches": lambda: masked_patch_model(VisionTransformer(CONFIG.replace(image_size=4))),
    "with_image_size": lambda: masked_patch_model(VisionTransformer(CONFIG.replace(dynamic=True))),
}


@pytest.mark.once
def test_what_has_no_patches_of_one_size_is_refused():
    for message, call in REFUSED.items():
        with pytest.raises((TypeError, ValueError), match=message):
            call()
