"""Linear heads for masks: the loss, what trains, how good it is, and runs that go on."""

import keras
import numpy as np
import pytest

import keras_vit
from examples.scenes import SCENE_CLASSES, make_scenes
from keras_vit import LinearSegmenter, VisionTransformer, data, segmentation, training
from keras_vit._keras import set_random_seed
from keras_vit.layers.base import weights_by_path
from tests.pictures import save
from tests.small_models import small_vit_config
from tests.training.test_loop import assert_same_weights, cut_off

pytestmark = pytest.mark.once

CONFIG = small_vit_config(width=24, mlp_width=48, heads=3, image_size=24, classes=5, final_norm="tokens")
AUGMENTATION = data.MaskAugmentation(scale=(1.0, 1.5), brightness=8, contrast=0.1, saturation=0.1, hue=0.02)
RECIPE = training.recipe("segmentation/dinov2_linear").replace(
    steps=6, batch_size=8, image_size=24, learning_rate=0.01, augmentation=AUGMENTATION
)
SCENES, TEST = make_scenes(24, 24), make_scenes(4, 24, seed=1)
NAMES = SCENE_CLASSES
ABOVE = ("head", "head_dist", "projection", "pre_logits")


def new_model(**changes):
    set_random_seed(0)
    return VisionTransformer(CONFIG.replace(**changes))


def tune(model=None, recipe=RECIPE, **options):
    options = {"validation": TEST, "class_names": NAMES, "every": 3, "verbose": False} | options
    return training.finetune_segmentation(new_model() if model is None else model, SCENES, recipe, **options)


@pytest.fixture(scope="module")
def segmenter():
    return tune(recipe=RECIPE.replace(steps=1), validation=None).model


def matrix(old, new):
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    low = np.floor(at).astype(int)
    rows = np.zeros((new, old))
    np.add.at(rows, (np.arange(new), low), 1 - (at - low))
    np.add.at(rows, (np.arange(new), np.minimum(low + 1, old - 1)), at - low)
    return rows


def cross_entropy(logits, labels, ignore=255):
    """An independent reading in float64: half-pixel resize, softmax, sum over what counts by all pixels."""
    height, width = labels.shape[1:]

    rows, columns = matrix(logits.shape[1], height), matrix(logits.shape[2], width)
    z = np.einsum("ri,sj,bijk->brsk", rows, columns, logits.astype("float64"))
    log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
    picked = np.take_along_axis(log_p, np.where(labels == ignore, 0, labels)[..., None], -1)[..., 0]
    return -np.where(labels == ignore, 0, picked).sum() / labels.size


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("ignore", [255, 1, -1])
def test_ignored_pixels_count_in_the_mean(ignore):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(2, 3, 4, 5)).astype("float32"), rng.integers(0, 5, (2, 10, 13))
    labels[0, :4] = ignore
    loss = training.MaskLoss(ignore)
    # Sums of 260 float32 terms of about 2.
    np.testing.assert_allclose(float(loss(labels, logits)), cross_entropy(logits, labels, ignore), rtol=2e-6)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert float(again(labels, logits)) == float(loss(labels, logits))
    assert float(loss(np.full_like(labels, ignore), logits)) == 0


def test_the_rates_of_the_originals():
    """mmcv's: the decay over all steps, times the warm-up."""
    steps, rate = 40_000, 1e-3
    linear = training.build_schedule(training.recipe("segmentation/dinov2_linear"))
    cosine = training.build_schedule(training.recipe("segmentation/dinov3_linear"))
    for step in (0, 1, 750, 1499, 1500, 20_000, 39_999):
        warm = min(step / 1500, 1)
        expected = [rate * (1 - step / steps) * warm, rate * (1 + np.cos(np.pi * step / steps)) / 2 * warm]
        # Rounding of float32 of numbers of about the first rate.
        np.testing.assert_allclose([float(linear(step)), float(cosine(step))], expected, rtol=1e-5, atol=1e-9)


@pytest.mark.nightly_elsewhere
def test_a_head_on_frozen_features():
    """The mean IoU is that of the model that comes out, measured by hand; frozen weights are those of before."""
    model = new_model()
    before = {w.path: keras.ops.convert_to_numpy(w) for w in model.weights}
    done = tune(model)
    assert isinstance(done.model, LinearSegmenter) and done.class_names == list(NAMES)
    assert [row["step"] for row in done.log] == [3, 6] and done.mean_iou == done.log[-1]["val_mean_iou"]
    trained = {weight.path for weight in done.model.trainable_weights}
    assert all(path.startswith("head") for path in trained) and len(trained) == 4
    for weight in done.model.backbone.weights:
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), before[weight.path])
    images = done.model.config.pipeline.normalized(TEST[0])
    logits = keras.ops.convert_to_numpy(done.model(images))
    maps = np.einsum("ri,sj,bijk->brsk", matrix(6, 24), matrix(6, 24), logits.astype("float64")).argmax(-1)
    intersection, union = np.zeros(4), np.zeros(4)
    for found, mask in zip(maps, TEST[1], strict=True):
        for k in range(4):
            intersection[k] += ((found == k) & (mask == k)).sum()
            union[k] += ((found == k) | (mask == k)).sum()
    assert done.mean_iou == pytest.approx(np.mean(intersection[union > 0] / union[union > 0]), abs=1e-12)
    assert segmentation.evaluate(done.model, TEST, progress=False).mean_iou == pytest.approx(done.mean_iou)


@pytest.mark.parametrize(
    ("options", "changes", "inside"),
    [
        ({"frozen": False}, {}, "block_0/mlp/fc1/kernel"),
        ({}, {"lora_rank": 2}, "block_0/attention/query/lora_kernel_a"),
    ],
)
def test_what_trains_by_the_options_that_are_there(options, changes, inside):
    done = tune(recipe=RECIPE.replace(steps=2, **changes), validation=None, every=2, **options)
    trained = {weight.path for weight in done.model.trainable_weights}
    assert inside in trained and {"head/kernel", "head/bias", "head_norm/gamma", "head_norm/beta"} <= trained
    assert ("block_0/mlp/fc1/kernel" in trained) == ("frozen" in options)


@pytest.mark.parametrize(
    "top",
    [
        dict(projection=7, projection_bias=True, unit_features=True),
        dict(representation_size=7, classifier_activation="softmax", class_names=tuple("abcde")),
        dict(distillation_token=True, distillation_head=True, class_token_only=True),
    ],
)
def test_what_stands_above_the_tokens_is_left_out(top):
    source = new_model(**top)
    backbone = tune(source, RECIPE.replace(steps=1), every=1, validation=None).model.backbone
    weights, trained = weights_by_path(source), weights_by_path(backbone)
    assert {name.partition("/")[0] for name in weights.keys() - trained.keys()} <= set(ABOVE)
    for name, weight in trained.items():
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), keras.ops.convert_to_numpy(weights[name]))
    assert backbone.output_shape == (None, 37 + ("distillation_token" in top), 24)


def test_four_layers_padding_and_going_on(tmp_path):
    """Crops of 22 pixels on patches of 4: 24 with a margin on each side. A model that has the head goes on with it."""
    done = tune(new_model(depth=4), RECIPE.replace(steps=2), layers=4, image_size=22, every=2, output=tmp_path / "run")
    assert (tmp_path / "run/masks.png").exists()
    config = done.model.config
    assert config.blocks == (0, 1, 2, 3)
    assert (config.image_size, config.crop_size, config.stride) == ((24, 24), (22, 22), (11, 11))
    again = tune(str(tmp_path / "run" / "model.keras"), RECIPE.replace(steps=1), every=1, image_size=22)
    assert again.model.config == config and not again.model.backbone.trainable_weights


@pytest.mark.nightly_elsewhere
def test_a_run_that_was_killed_goes_on(tmp_path):
    options = {"recipe": RECIPE.replace(dropout=0.1), "validation": None}
    whole = tune(output=tmp_path / "whole", **options)
    cut_off(tune, 4, output=tmp_path / "run", **options)
    done = tune(output=tmp_path / "run", **options)
    assert_same_weights(done.model, whole.model)
    assert [row["loss"] for row in done.log] == [row["loss"] for row in whole.log]
    saved = keras.saving.load_model(tmp_path / "run" / "model.keras")
    assert_same_weights(saved, whole.model)
    over = tune(output=tmp_path / "run", **options | {"validation": TEST})  # not trained again, but measured
    assert over.mean_iou is not None and over.log[-1]["loss"] == done.log[-1]["loss"]


@pytest.mark.nightly
def test_adapters_are_better_than_a_linear_head():
    """The package's glyphs as features, on shapes of any colour."""
    plain = data.MaskAugmentation((1, 1), 1, True, 0, 0, 0, 0)
    recipe = RECIPE.replace(steps=100, batch_size=12, augmentation=plain)
    scenes, test = make_scenes(120, 24), make_scenes(24, 24, seed=1)
    options = {"validation": test, "class_names": NAMES, "every": 100, "verbose": False}
    recipes = (recipe, recipe.replace(lora_rank=8))
    linear, adapted = (training.finetune_segmentation("glyphs", scenes, one, **options) for one in recipes)
    # All background is 0.19 on these.
    assert 0.22 < linear.mean_iou < adapted.mean_iou - 0.03


SMALL = (SCENES[0][:4], SCENES[1][:4])
REFUSED = [
    (dict(model=None), TypeError, "model must"),
    (dict(model="no such model"), ValueError, "no such model"),
    (dict(data=SMALL, classes=2), ValueError, "has the label"),
    (dict(recipe="finetune/cifar10"), TypeError, "must be a data.MaskAugmentation"),
    (dict(layers=2), ValueError, "layers"),
    (dict(layers=4), ValueError, "layers=4 shall be read, but the model has 2 blocks"),
    (dict(pictures="mine"), ValueError, "pictures"),
    (dict(validation={"train": SMALL}), ValueError, "validation"),
    (dict(recipe=RECIPE.replace(keep="best")), ValueError, "validation="),
]


@pytest.mark.parametrize(("given", "error", "message"), REFUSED)
def test_bad_input_is_refused(given, error, message):
    options = {"model": new_model(), "data": SMALL, "recipe": RECIPE, "classes": 4, "verbose": False} | given
    with pytest.raises(error, match=message):
        training.finetune_segmentation(**options)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (dict(model=None), TypeError, "model"),
        (dict(model=new_model()), TypeError, "model must"),
        (dict(data=None), TypeError, "data must"),
        (dict(data=(SMALL[0], SMALL[1] + 9)), ValueError, "has the label"),
        (dict(data=data.open_masks(SMALL, class_names=[*"abcd"])), ValueError, "does not have: 'a', 'b'"),
        (dict(on_bad_image="go on"), ValueError, "on_bad_image"),
    ],
)
def test_bad_input_of_evaluate_is_refused(given, error, message, segmenter):
    with pytest.raises(error, match=message):
        segmentation.evaluate(**{"model": segmenter, "data": SMALL, "progress": False} | given)


def test_images_of_classes_and_masks_are_not_mixed_up(segmenter, tmp_path):
    with pytest.raises(TypeError, match="MaskAugmentation"):
        training.finetune(new_model(), data.open_masks(SCENES), "finetune/cifar10", verbose=False)
    images = (SCENES[0], np.arange(24) % 2)
    with pytest.raises(TypeError, match="Augmentation"):
        training.finetune(new_model(), images, RECIPE, verbose=False)
    file, recipe = tmp_path / "segmenter.npz", training.Recipe(steps=1, batch_size=2, image_size=24)
    keras_vit.to_checkpoint(segmenter, file)
    for train, source in ((training.finetune, segmenter), (training.pretrain, segmenter), (training.pretrain, file)):
        with pytest.raises(TypeError, match="model must be .* but LinearSegmenter was given"):
            train(source, images, recipe, verbose=False)


def write_scenes(folder, names):
    """The scenes in a folder whose classes.txt has the names in another order, and the numbers with them."""
    numbers = np.array([*(names.index(name) for name in NAMES), *[255] * (256 - len(NAMES))], "uint8")
    for i, (image, mask) in enumerate(zip(*TEST, strict=True)):
        for kind, pixels in (("images", image.astype("uint8")), ("masks", numbers[mask])):
            save(folder / kind / f"{i}.png", pixels)
    (folder / "classes.txt").write_text("\n".join(names))
    return folder


def test_classes_of_a_folder_are_matched_by_name(segmenter, tmp_path):
    folder = write_scenes(tmp_path / "scenes", list(NAMES)[::-1])
    expected = segmentation.evaluate(segmenter, data.open_masks(TEST, class_names=NAMES), progress=False)
    found = segmentation.evaluate(segmenter, folder, progress=False)
    np.testing.assert_array_equal(found.labelled, expected.labelled)
    assert found.mean_iou == expected.mean_iou
    done = training.finetune_segmentation(segmenter, folder, RECIPE.replace(steps=1), verbose=False)
    assert done.class_names == list(NAMES)
    (folder / "classes.txt").write_text("\n".join([*list(NAMES)[:-1], "another"]))
    with pytest.raises(ValueError, match="does not have: 'another'"):
        segmentation.evaluate(segmenter, folder, progress=False)
    with pytest.raises(ValueError, match="does not have: 'another'"):
        training.finetune_segmentation(segmenter, folder, RECIPE.replace(steps=1), verbose=False)


@pytest.mark.parametrize("option", ["layers", "pictures", "frozen"])
def test_options_of_new_heads_are_refused_where_there_is_one(segmenter, option):
    values = {"layers": 4, "pictures": "dinov3", "frozen": False}
    with pytest.raises(ValueError, match=f"{option}=.* is for the model .VisionTransformer"):
        tune(segmenter, **{option: values[option]})


def test_masks_to_evaluate_on_are_read_as_those_to_train_on():
    pictures, masks = SMALL
    opened = data.open_masks((pictures, [mask + 1 for mask in masks]), reduce_zero_label=True, class_names=NAMES)
    shifted = (TEST[0], [mask + 1 for mask in TEST[1]])
    done = training.finetune_segmentation(new_model(), opened, RECIPE, steps=1, validation=shifted, verbose=False)
    told = segmentation.evaluate(done.model, TEST, progress=False)
    assert done.log[-1]["val_mean_iou"] == pytest.approx(told.mean_iou)


@pytest.mark.parametrize("size", [16, 40, (16, 32)])
def test_crops_of_another_size_leave_a_model_that_evaluates(segmenter, size):
    for model in (segmenter, new_model()):
        done = tune(model, steps=1, image_size=size, every=1)
        assert np.isfinite(done.log[-1]["val_mean_iou"])
        segmentation.segment(done.model, np.zeros((20, 60, 3), "uint8"))
