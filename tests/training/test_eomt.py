"""Training an EoMT: rates, decay and clipping of its authors, beside an AdamW in NumPy; masks; whole runs."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit import data, segmentation, training
from keras_vit.training.distribution import Sharing
from keras_vit.training.segmentation import MeasuredSegments, mask_windows
from tests.segmentation.test_eomt import DINOV2, DINOV3, HEAD, shaken
from tests.small_models import values_of
from tests.training.test_loop import assert_same_weights, cut_off

pytestmark = pytest.mark.once

RECIPE = training.recipe("segmentation/eomt_ade20k_base").replace(
    steps=12, warmup_steps=3, backbone_warmup_steps=2, learning_rate=1e-2
)


def model_of(backbone=DINOV2):
    return shaken(keras_vit.models.EoMTConfig(backbone=backbone, **HEAD))


def named(model, values):
    by_path = {weight.path: name for name, weight in keras_vit.models.weights_by_path(model).items()}
    return {by_path[path]: value for path, value in values.items()}


def rates_of(optimizer, model, step):
    """The learning rate of each weight of a model in an update, by path."""
    head, backbone = float(optimizer._schedule(step)), float(optimizer.backbone_rate(step))
    weights = zip(model.trainable_variables, optimizer._multipliers, optimizer._is_backbone, strict=True)
    return {weight.path: (backbone if is_backbone else head) * factor for weight, factor, is_backbone in weights}


def test_the_two_warmups():
    """The head warms up, then the backbone, whose final norm is of it; both fall by the power 0.9."""
    model = model_of()
    optimizer = training.build_optimizer(RECIPE, model)
    r, a, b, total = 1e-2, 3, 2, 12
    of_head = ("queries/tokens", "class_head/kernel", "mask_head/fc1/bias", "upscale_0/norm/gamma")
    shares = {"encoder_norm/gamma": 1, "block_2/scale1/gamma": 1, "block_1/attention/query/bias": 0.8}
    shares |= dict.fromkeys(("block_0/norm1/gamma", "embedding/kernel", "class_token/token"), 0.8**2)
    for k in range(total):
        head = k / a if k < a else (1 - (k - a) / (total - a)) ** 0.9
        backbone = 0 if k < a else (k - a) / b if k < a + b else (1 - (k - a - b) / (total - a - b)) ** 0.9
        rates = named(model, rates_of(optimizer, model, k))
        wanted = dict.fromkeys(of_head, head) | {name: share * backbone for name, share in shares.items()}
        for name, rate in wanted.items():
            assert rates[name] == pytest.approx(r * rate, rel=1e-5, abs=1e-12), (name, k)
    assert {*optimizer._decays} == {0.05}
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    again.build(model.trainable_variables)
    assert not {id(v) for v in optimizer.variables} & {id(weight) for weight in model.weights}
    assert rates_of(again, model, 7) == rates_of(optimizer, model, 7) and again._decays == optimizer._decays


def test_blocks_with_queries_have_the_whole_rate_with_dinov3():
    model = model_of(DINOV3)
    recipe = training.recipe("segmentation/eomt_dinov3_coco_panoptic_base")
    recipe = recipe.replace(steps=10, warmup_steps=0, backbone_warmup_steps=0)
    rates = named(model, rates_of(training.build_optimizer(recipe, model), model, 0))
    shares = {name: rates[f"{name}/norm1/gamma"] / 2e-4 for name in ("block_0", "block_1", "block_2")}
    assert shares == pytest.approx({"block_0": 0.64, "block_1": 1.0, "block_2": 1.0})


def reference(weights, gradients, rates, clip=0.01, decay=0.05, moving=True):
    """Weights after updates by AdamW with clipping as in PyTorch, in float64."""
    weights = {name: w.astype("float64") for name, w in weights.items()}
    first, second = ({name: np.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    for k, grads in enumerate(gradients):
        norm = np.sqrt(sum((g.astype("float64") ** 2).sum() for g in grads.values()))
        for name, w in weights.items():
            g = grads[name] * min(1.0, clip / (norm + 1e-6))
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g**2
            m, v = first[name] / (1 - 0.9 ** (k + 1)), second[name] / (1 - 0.999 ** (k + 1))
            w *= 1 - rates[k][name] * decay
            w -= rates[k][name] * m / (np.sqrt(v) + 1e-8)
    return weights


@pytest.mark.nightly_elsewhere
def test_updates_are_those_of_pytorch():
    """Also while the backbone's rate is 0: its gradients are in the norm and move the moments."""
    model, rng = model_of(), np.random.default_rng(1)
    optimizer = training.build_optimizer(RECIPE, model)
    weights = model.trainable_variables
    names = [weight.path for weight in weights]
    before = {weight.path: ops.convert_to_numpy(weight) for weight in weights}
    gradients = [{n: rng.normal(size=w.shape).astype("float32") for n, w in before.items()} for _ in range(5)]
    wanted = reference(before, gradients, [rates_of(optimizer, model, k) for k in range(5)])
    for grads in gradients:
        optimizer.apply([ops.convert_to_tensor(grads[name]) for name in names], weights)
    norm = np.sqrt(sum((g**2).sum() for g in gradients[-1].values()))
    assert float(ops.convert_to_numpy(optimizer.gradient_norm)) == pytest.approx(norm, rel=1e-5)
    for weight in weights:
        way = np.abs(wanted[weight.path] - before[weight.path]).max()
        assert np.abs(ops.convert_to_numpy(weight) - wanted[weight.path]).max() <= 1e-4 * way


def test_recipes_that_are_not_for_a_model_or_too_short():
    with pytest.raises(ValueError, match="backbone_warmup_steps=2 is for an EoMT"):
        training.build_optimizer(RECIPE, keras_vit.VisionTransformer(DINOV2))
    with pytest.raises(ValueError, match="depends on the model"):
        training.build_optimizer(RECIPE)
    short = training.recipe("segmentation/eomt_coco_panoptic_large").replace(steps=100)
    assert (short.warmup_steps, short.backbone_warmup_steps) == (10, 10)
    assert training.Recipe.from_dict(short.to_dict()) == short
    own = short.replace(warmup_steps=60, backbone_warmup_steps=20)
    assert own.replace(steps=100) == own  # as a run says it once more
    rate = training.build_optimizer(training.recipe("segmentation/eomt_ade20k_base"), model_of(), steps=100)._schedule
    assert float(rate(9)) < float(rate(10)) == pytest.approx(1e-4)  # a tenth
    rate = training.build_optimizer(RECIPE.replace(warmup_steps=0.5, end=1e-3, power=1.0), model_of())._schedule
    assert float(rate(5)) < float(rate(6)) == pytest.approx(1e-2)  # a share
    assert float(rate(12)) == pytest.approx(1e-3)


def test_when_masks_are_annealed():
    """Windows of a sixth of the run; the power of the learning rate; the update counted from 0."""
    assert mask_windows(88692, 4) == ([14782, 29564, 44346, 59128], [29564, 44346, 59128, 73910])
    assert mask_windows(88692, 3, first=3000)[0] == [0, 36955, 59128]
    starts, ends = [100, 200], [200, 300]
    assert training.mask_probabilities(99, starts, ends).tolist() == [1, 1]
    assert training.mask_probabilities(150, starts, ends) == pytest.approx([0.5**0.9, 1])
    assert training.mask_probabilities(300, starts, ends).tolist() == [0, 0]
    with pytest.raises(ValueError, match="ends must be later than"):
        training.mask_probabilities(0, [5], [5])


# Whole runs: on a new or a trained model, resumed, with adapters, frozen, measured

SIZE = 16
VIT = keras_vit.ViTConfig(image_size=SIZE, patch_size=4, width=16, depth=2, heads=2, mlp_width=16, classes=None)
RUN = training.recipe("segmentation/eomt_coco_panoptic_base").replace(
    **{"steps": 4, "batch_size": 2, "warmup_steps": 1, "backbone_warmup_steps": 1},
    **{"queries": 4, "points": 64, "learning_rate": 1e-3, "image_size": SIZE},
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


def run(model=None, recipe=RUN, **options):
    options = {"verbose": False, "seed": 1, "every": 2} | options
    return training.finetune_segmentation(model or small(), scenes(), recipe, **options)


@pytest.fixture(scope="module")
def whole():
    return run()


@pytest.mark.nightly_elsewhere
def test_a_new_eomt_on_a_backbone(tmp_path):
    """With queries and blocks of its recipe and depth, measured by the panoptic quality."""
    done = run(validation=scenes(2), output=tmp_path / "run", stuff_classes=[1])
    config = done.model.config
    assert isinstance(done.model, keras_vit.EoMT)
    assert (config.classes, config.queries, config.query_blocks, config.upscale_blocks) == (2, 4, 2, 1)
    assert config.task == "panoptic"
    assert 0 <= done.panoptic_quality <= 1 and done.mean_iou is None
    assert {"val_segmentation_quality", "val_recognition_quality"} <= done.log[-1].keys()
    assert [row["step"] for row in done.log] == [2, 4] and all(np.isfinite(row["loss"]) for row in done.log)
    assert (tmp_path / "run/masks.png").read_bytes().startswith(b"\x89PNG")
    before = values_of(small())
    assert np.abs(values_of(done.model)["block_1/mlp/fc1/kernel"] - before["block_1/mlp/fc1/kernel"]).max() > 0


def test_the_best_is_kept_and_a_seed_repeats_a_run(whole):
    log = run(validation=scenes(2), keep="best").log
    assert sum(row["kept"] for row in log) == 1
    assert [row["loss"] for row in log] == [row["loss"] for row in whole.log]


# test_finetuning.py kills a run on each backend
def test_a_run_that_was_killed_goes_on(whole, tmp_path):
    cut_off(run, 3, output=tmp_path / "run")
    assert_same_weights(run(output=tmp_path / "run").model, whole.model)
    assert isinstance(keras_vit.load(tmp_path / "run" / "model.keras"), keras_vit.EoMT)


def test_an_eomt_goes_on_with_other_classes(whole):
    """All of it but the class head, which stays where they only get names. In another order they are refused."""
    first = whole.model
    named = data.open_segments(scenes(), class_names=["a", "b"])
    recipe = RUN.replace(learning_rate=0.0, steps=1, warmup_steps=0, backbone_warmup_steps=0)
    done = training.finetune_segmentation(first, named, recipe, verbose=False)
    assert done.model.config == first.config.replace(class_names=("a", "b"))
    other = data.open_segments(scenes(), class_names=["b", "a"])
    with pytest.raises(ValueError, match="classes of the data are those of the model, 'a', 'b', in another order"):
        training.finetune_segmentation(done.model, other, recipe, verbose=False)
    for name, weight in values_of(first).items():
        np.testing.assert_array_equal(values_of(done.model)[name], weight)
    pictures, targets = scenes()
    targets[0]["labels"] = np.array([0, 2])
    done = training.finetune_segmentation(first, (pictures, targets), recipe, verbose=False)
    assert done.model.config.classes == 3 and done.model.config.queries == 4
    old, new = values_of(first), values_of(done.model)
    for name in old.keys() - {"class_head/kernel", "class_head/bias"}:
        np.testing.assert_array_equal(old[name], new[name])


@pytest.mark.parametrize(
    "changes, trained", [({"freeze": ("backbone",)}, ()), ({"lora_rank": 2}, ("lora",))], ids=["frozen", "adapters"]
)
def test_a_backbone_that_stays(changes, trained):
    """The decay of the recipe's rates, which nobody has asked for, has then nothing to do, or adapters have it."""
    done = run(recipe=RUN.replace(**changes))
    before, after = values_of(small()), values_of(done.model)
    for name, weight in before.items():
        if name in after:
            np.testing.assert_array_equal(weight, after[name])
    names = [name for name in keras_vit.models.weights_by_path(done.model) if name.startswith("block_")]
    assert any("lora" in name for name in names) == ("lora" in trained)


def test_batches_are_accumulated():
    """Two epochs are three updates, and the warm-ups, which take more than half of them, are the user's: they stay."""
    done = run(recipe=RUN.replace(accumulate=2, batch_size=4, epochs=2))
    assert done.log[-1]["step"] == 3
    assert (done.recipe.warmup_steps, done.recipe.backbone_warmup_steps) == (1, 1)


def trained(task=None):
    config = {"classes": 2, "queries": 4, "query_blocks": 1, "upscale_blocks": 1, "task": task}
    return keras_vit.EoMT(keras_vit.models.EoMTConfig(backbone=VIT.replace(pooling="none"), **config))


def test_semantic_masks_are_measured_by_the_mean_iou():
    pictures, targets = scenes()
    masks = np.stack([target["masks"][0] + 2 * target["masks"][1] for target in targets]).astype("uint8")
    options = {"verbose": False, "validation": 0.4, "reduce_zero_label": True}
    done = training.finetune_segmentation(trained("instance"), (np.stack(pictures), masks), RUN, **options)
    assert 0 <= done.mean_iou <= 1 and done.model.config.task == "semantic" and done.model.config.classes == 2
    with pytest.raises(ValueError, match="stuff_classes=.* semantic masks have none"):
        training.finetune_segmentation(small(), (np.stack(pictures), masks), RUN, stuff_classes=[1], **options)


def test_masks_of_0_and_255_are_refused():
    pictures, targets = scenes()
    masks, options = np.stack([target["masks"][0] for target in targets]), {"verbose": False, "steps": 1}
    with pytest.raises(ValueError, match="have 255, the ignored label"):
        training.finetune_segmentation(small(), (pictures, np.uint8(255 * masks)), RUN, **options)
    options |= {"reduce_zero_label": True, "class_names": ["square"]}  # one class, in masks of 0 and 1
    training.finetune_segmentation(small(), (pictures, np.uint8(masks)), RUN, **options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"layers": 4}, "layers=4 is for the head 'linear'"),
        ({"image_size": (16, 24)}, r"image_size must be a square for an EoMT, but \(16, 24\)"),
        ({"image_size": 18}, "height 18 is not a multiple of 4"),
        ({"model": trained, "queries": 5}, "queries=5 is for a new EoMT, but this one has 4"),
        (
            {"model": lambda: keras_vit.VisionTransformer(VIT.replace(channels=4))},
            "3 channels. Leave it out, because channels=4",
        ),
        ({"stuff_classes": [2]}, "stuff must be classes from 0 to 1"),
        ({"augmentation": data.MaskAugmentation(), "stuff_classes": [1]}, "is for the head 'EoMT'"),
    ],
)
def test_options_that_do_not_apply(options, message):
    with pytest.raises(ValueError, match=message):
        run(**options | {"model": options.get("model", small)()})


def measured(monkeypatch, found, target, task, classes):
    monkeypatch.setattr("keras_vit.training.segmentation.segment", lambda *args, **options: found)

    class Images(list):
        pass

    images = Images([([np.zeros((1, 3, 3), "uint8")], [target])])
    images.task, model = task, SimpleNamespace(config=SimpleNamespace(classes=classes))
    return MeasuredSegments(model, images, Sharing(), ()).evaluate(model)


@pytest.mark.parametrize("kind, recognition", [("instance", 2 / 3), ("panoptic", 1.0)])
def test_an_invented_instance_lowers_the_recognition(monkeypatch, kind, recognition):
    parts = tuple(segmentation.Segment(i, 0, "dot", 0.9, 1) for i in range(2))
    found = segmentation.Segmentation(np.array([[0, 1, -1]], "int32"), parts, "panoptic")
    target = {"masks": np.array([[[True, False, False]]]), "labels": np.array([0])}
    pairs = {"masks": found.map == np.arange(2)[:, None, None], "scores": [0.9, 0.8], "labels": [0, 0]}
    monkeypatch.setattr("keras_vit.training.segmentation.found_in", lambda *args: pairs)
    figures = measured(monkeypatch, found, target, kind, 1)
    assert figures["recognition_quality"] == pytest.approx(recognition)
    assert figures.get("mask_ap", 1.0) == pytest.approx(1.0)  # what is invented comes last
