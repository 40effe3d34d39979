"""Runs that train an EoMT: on a new or a trained one, resumed, with adapters, frozen, measured."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, training

SIZE = 16
VIT = keras_vit.ViTConfig(image_size=SIZE, patch_size=4, width=16, depth=2, heads=2, mlp_width=16, classes=None)
RECIPE = training.recipe("segmentation/eomt_coco_panoptic_base").replace(
    steps=4,
    batch_size=2,
    warmup_steps=1,
    backbone_warmup_steps=1,
    queries=4,
    points=64,
    learning_rate=1e-3,
    image_size=SIZE,
)


def scenes(count=6):
    """Squares of two colours, which are their classes, on black."""
    rng = np.random.default_rng(0)
    pictures, targets = np.zeros((count, 24, 24, 3), "uint8"), []
    for picture in pictures:
        masks = np.zeros((2, 24, 24), bool)
        for i, mask in enumerate(masks):
            top, left = rng.integers(0, 12), rng.integers(0, 6) + 12 * i
            mask[top : top + 8, left : left + 6] = True
            picture[mask] = (255, 0, 0) if i else (0, 255, 0)
        targets.append({"masks": masks, "labels": np.array([0, 1])})
    return list(pictures), targets


def small():
    keras.utils.set_random_seed(3)
    return keras_vit.VisionTransformer(VIT)


def weights_of(model):
    return {name: keras.ops.convert_to_numpy(w) for name, w in keras_vit.models.weights_by_path(model).items()}


def run(model=None, recipe=RECIPE, **options):
    options = {"verbose": False, "seed": 1, "every": 2} | options
    return training.finetune_segmentation(model or small(), scenes(), recipe, **options)


def test_a_new_eomt_on_a_backbone(tmp_path):
    """With queries and blocks of its recipe and depth, measured by the panoptic quality."""
    done = run(validation=scenes(2), output=tmp_path / "run")
    config = done.model.config
    assert isinstance(done.model, keras_vit.EoMT)
    assert (config.classes, config.queries, config.query_blocks, config.upscale_blocks) == (2, 4, 2, 1)
    assert 0 <= done.panoptic_quality <= 1 and done.mean_iou is None
    assert {"val_segmentation_quality", "val_recognition_quality"} <= done.log[-1].keys()
    assert [row["step"] for row in done.log] == [2, 4] and all(np.isfinite(row["loss"]) for row in done.log)
    assert (tmp_path / "run/masks.png").read_bytes().startswith(b"\x89PNG")
    before = weights_of(small())
    assert np.abs(weights_of(done.model)["block_1/mlp/fc1/kernel"] - before["block_1/mlp/fc1/kernel"]).max() > 0


@pytest.mark.once
def test_the_best_is_kept_and_a_seed_repeats_a_run():
    runs = [run(validation=scenes(2), keep=keep) for keep in ("best", "last")]
    assert sum(row["kept"] for row in runs[0].log) == 1
    assert [row["loss"] for row in runs[0].log] == [row["loss"] for row in runs[1].log]


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="half a minute; finetune's test runs there")
def test_a_run_that_was_killed_goes_on(tmp_path):
    class Kill(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    whole = run(output=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(output=tmp_path / "killed", callbacks=[Kill()])
    killed = run(output=tmp_path / "killed")
    for name, weight in weights_of(whole.model).items():
        np.testing.assert_array_equal(weight, weights_of(killed.model)[name])
    assert isinstance(keras_vit.load(tmp_path / "whole" / "model.keras"), keras_vit.EoMT)


@pytest.mark.once
def test_classes_in_another_order_are_refused():
    """The class head would begin anew, and nobody would notice."""
    sorted_, other = (data.open_segments(scenes(), class_names=names) for names in (["a", "b"], ["b", "a"]))
    first = training.finetune_segmentation(small(), sorted_, RECIPE, steps=1, verbose=False).model
    with pytest.raises(ValueError, match="model has the classes 'a', 'b', and the data the same in another order"):
        training.finetune_segmentation(first, other, RECIPE, verbose=False)


@pytest.mark.once
def test_an_eomt_goes_on_with_other_classes():
    """All of it but the class head."""
    first = run().model
    pictures, targets = scenes()
    targets[0]["labels"] = np.array([0, 2])
    recipe = RECIPE.replace(learning_rate=0.0)
    done = training.finetune_segmentation(first, (pictures, targets), recipe, verbose=False)
    assert done.model.config.classes == 3 and done.model.config.queries == 4
    old, new = weights_of(first), weights_of(done.model)
    for name in old.keys() - {"class_head/kernel", "class_head/bias"}:
        np.testing.assert_array_equal(old[name], new[name])


@pytest.mark.once
@pytest.mark.parametrize(
    "changes, trained",
    [({"freeze": ("backbone",)}, ()), ({"lora_rank": 2}, ("lora",))],
    ids=["frozen", "adapters"],
)
def test_a_backbone_that_stays(changes, trained):
    """The decay of the recipe's rates, which nobody has asked for, has then nothing to do, or adapters have it."""
    done = run(recipe=RECIPE.replace(**changes))
    before, after = weights_of(small()), weights_of(done.model)
    for name, weight in before.items():
        if name in after:
            np.testing.assert_array_equal(weight, after[name])
    names = [name for name in keras_vit.models.weights_by_path(done.model) if name.startswith("block_")]
    assert any("lora" in name for name in names) == ("lora" in trained)


@pytest.mark.once
def test_a_published_recipe_without_layer_decay_runs():
    recipe = training.recipe("segmentation/eomt_dinov3_ade20k_large")
    assert recipe.layer_decay == 1.0
    run(recipe=recipe.replace(steps=2, batch_size=2, image_size=SIZE, queries=4, points=64))


@pytest.mark.once
def test_masks_are_compared_at_as_many_points_as_the_recipe_says():
    assert run(every=4, points=32).log[0]["loss"] != run(every=4).log[0]["loss"]


@pytest.mark.once
def test_batches_are_accumulated():
    done = run(recipe=RECIPE.replace(accumulate=2, batch_size=4))
    assert done.log[-1]["step"] == 4


@pytest.mark.once
def test_semantic_masks_are_measured_by_the_mean_iou():
    pictures, targets = scenes()
    masks = np.stack([target["masks"][0] + 2 * target["masks"][1] for target in targets]).astype("uint8")
    done = training.finetune_segmentation(
        small(), (np.stack(pictures), masks), RECIPE, verbose=False, validation=0.4, reduce_zero_label=True
    )
    assert 0 <= done.mean_iou <= 1 and done.model.config.task == "semantic" and done.model.config.classes == 2


@pytest.mark.once
@pytest.mark.parametrize(
    "options, message",
    [
        ({"layers": 4}, "layers, pictures and frozen are for a linear head"),
        ({"on_bad_image": "skip"}, "on_bad_image"),
        ({"drop_path": 0.1}, "drop_path=0.1 is not used in segmentation"),
        ({"image_size": (16, 24)}, r"image_size must be a square for an EoMT, but is \(16, 24\)"),
        ({"image_size": 18}, "height 18 is not a multiple of 4"),
        ({"model": "trained", "queries": 5}, "queries=5 is for a new EoMT, but this one has 4"),
        ({"augmentation": data.MaskAugmentation(), "stuff_classes": [1]}, "stuff_classes is for an EoMT"),
    ],
)
def test_options_that_do_not_apply(options, message):
    if "model" in options:
        config = keras_vit.EoMTConfig(
            backbone=VIT.replace(pooling="none"), classes=2, queries=4, query_blocks=1, upscale_blocks=1
        )
        options = options | {"model": keras_vit.EoMT(config)}
    with pytest.raises(ValueError, match=message):
        run(**options)
