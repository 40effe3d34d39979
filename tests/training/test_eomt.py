"""Updates of an EoMT: rates, decay and clipping of its authors, beside an AdamW in NumPy; when masks are seen."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit import training
from keras_vit.training.eomt import mask_windows
from tests.segmentation.test_eomt import DINOV2, DINOV3, HEAD, shaken

RECIPE = training.recipe("segmentation/eomt_ade20k_base").replace(
    steps=12, warmup_steps=3, backbone_warmup_steps=2, learning_rate=1e-2
)


def model_of(backbone=DINOV2):
    return shaken(keras_vit.EoMTConfig(backbone=backbone, **HEAD))


def named(model, values):
    """Values by path, by the names that the model's layers have."""
    by_path = {weight.path: name for name, weight in keras_vit.models.weights_by_path(model).items()}
    return {by_path[path]: value for path, value in values.items()}


def test_the_two_warmups():
    """The head warms up, then the backbone, whose final norm is of it; both fall by the power 0.9."""
    model = model_of()
    optimizer = training.build_optimizer(RECIPE, model)
    r, a, b, total = 1e-2, 3, 2, 12
    for k in range(total):
        head = k / a if k < a else (1 - (k - a) / (total - a)) ** 0.9
        backbone = 0 if k < a else (k - a) / b if k < a + b else (1 - (k - a - b) / (total - a - b)) ** 0.9
        rates = named(model, optimizer.rates(k))
        wanted = {
            "queries/tokens": head,
            "class_head/kernel": head,
            "mask_head/fc1/bias": head,
            "upscale_0/norm/gamma": head,
            "encoder_norm/gamma": backbone,
            "block_2/scale1/gamma": backbone,
            "block_1/attention/query/bias": 0.8 * backbone,
            "block_0/norm1/gamma": 0.8**2 * backbone,
            "embedding/kernel": 0.8**2 * backbone,
            "class_token/token": 0.8**2 * backbone,
        }
        for name, rate in wanted.items():
            assert rates[name] == pytest.approx(r * rate, rel=1e-5, abs=1e-12), (name, k)
    assert {*optimizer.decays().values()} == {0.05}
    assert optimizer.rates(0).keys() == {weight.path for weight in model.trainable_weights}


def test_blocks_with_queries_have_the_whole_rate_with_dinov3():
    model = model_of(DINOV3)
    recipe = training.recipe("segmentation/eomt_dinov3_coco_panoptic_base").replace(
        steps=10, warmup_steps=0, backbone_warmup_steps=0
    )
    rates = named(model, training.build_optimizer(recipe, model).rates(0))
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


def test_updates_are_those_of_pytorch():
    """Also while the backbone's rate is 0: its gradients are in the norm and move the moments."""
    model, rng = model_of(), np.random.default_rng(1)
    optimizer = training.build_optimizer(RECIPE, model)
    weights = model.trainable_variables
    names = [weight.path for weight in weights]
    before = {weight.path: ops.convert_to_numpy(weight) for weight in weights}
    gradients = [{n: rng.normal(size=w.shape).astype("float32") for n, w in before.items()} for _ in range(7)]
    wanted = reference(before, gradients, [optimizer.rates(k) for k in range(7)])
    for grads in gradients:
        optimizer.apply([ops.convert_to_tensor(grads[name]) for name in names], weights)
    norm = np.sqrt(sum((g**2).sum() for g in gradients[-1].values()))
    assert float(ops.convert_to_numpy(optimizer.gradient_norm)) == pytest.approx(norm, rel=1e-5)
    for weight in weights:
        way = np.abs(wanted[weight.path] - before[weight.path]).max()
        assert np.abs(ops.convert_to_numpy(weight) - wanted[weight.path]).max() <= 1e-4 * way


def test_the_optimizer_is_saved_with_its_schedules():
    model = model_of()
    optimizer = training.build_optimizer(RECIPE, model)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    again.build(model.trainable_variables)
    assert not {id(v) for v in optimizer.variables} & {id(weight) for weight in model.weights}
    assert again.rates(7) == optimizer.rates(7) and again.decays() == optimizer.decays()


def test_recipes_that_are_not_for_a_model_or_too_short():
    with pytest.raises(ValueError, match="backbone_warmup_steps=2 is for an EoMT"):
        training.build_optimizer(RECIPE, keras_vit.VisionTransformer(DINOV2))
    with pytest.raises(ValueError, match="depends on the model"):
        training.build_optimizer(RECIPE)
    with pytest.raises(ValueError, match="backbone_warmup_steps=2 is for the optimizer 'adam', 'adamw'"):
        training.build_optimizer(RECIPE.replace(optimizer="sgd"), model_of())
    short = training.recipe("segmentation/eomt_coco_panoptic_large").replace(steps=100)
    assert (short.warmup_steps, short.backbone_warmup_steps) == (10, 10)
    assert training.Recipe.from_dict(short.to_dict()) == short
    own = short.replace(warmup_steps=60, backbone_warmup_steps=20)
    assert own.replace(steps=100) == own  # as a run says it once more
    rates = training.build_optimizer(training.recipe("segmentation/eomt_ade20k_base"), model_of(), steps=100).rates
    assert max(rates(9).values()) < max(rates(10).values()) == pytest.approx(1e-4)  # a tenth
    rates = training.build_optimizer(RECIPE.replace(warmup_steps=0.5, end=1e-3, power=1.0), model_of()).rates
    assert max(rates(5).values()) < max(rates(6).values()) == pytest.approx(1e-2)  # a share
    assert max(rates(12).values()) == pytest.approx(1e-3)


def test_when_masks_are_annealed():
    """Windows of a sixth of the run; the power of the learning rate; the update counted from 0."""
    assert mask_windows(88692, 4) == ([14782, 29564, 44346, 59128], [29564, 44346, 59128, 73910])
    assert mask_windows(88692, 3, first=3000)[0] == [0, 36955, 59128]
    starts, ends = [100, 200], [200, 300]
    assert training.mask_probabilities(99, starts, ends).tolist() == [1, 1]
    assert training.mask_probabilities(150, starts, ends) == pytest.approx([0.5**0.9, 1])
    assert training.mask_probabilities(300, starts, ends).tolist() == [0, 0]
    with pytest.raises(ValueError, match="ends must be as many as starts"):
        training.mask_probabilities(0, [5], [5])


@pytest.mark.parametrize("backbone", [DINOV2, DINOV3], ids=["dinov2", "dinov3"])
def test_steps_lower_the_loss(backbone):
    model, rng = keras_vit.EoMT(keras_vit.EoMTConfig(backbone=backbone, **HEAD)), np.random.default_rng(0)
    images = rng.normal(size=(2, 24, 24, 3)).astype("float32")
    masks = np.zeros((2, 24, 24), bool)
    masks[0, :12] = masks[1, :, 12:] = True
    targets = [{"masks": masks, "labels": [0, 2]}, {"masks": masks[:0], "labels": []}]
    loss = training.MaskClassificationLoss(3, points=64)
    points = {"match": (3, 2, 64, 2), "candidates": (3, 2, 192, 2), "random": (3, 2, 16, 2)}
    points = {name: rng.random(shape).astype("float32") for name, shape in points.items()}
    recipe = RECIPE.replace(warmup_steps=0, backbone_warmup_steps=0, learning_rate=2e-3)
    optimizer = training.build_optimizer(recipe, model)
    draws = rng.random((HEAD["query_blocks"], 2, HEAD["queries"])).astype("float32")
    losses = []
    for _ in range(8):
        step = training.segmentation_step(model, optimizer, loss, images, targets, points, [1.0, 0.5], draws)
        losses.append(step["loss"])
    assert losses[-1] < 0.9 * losses[0] and step["gradient_norm"] > 0
    with pytest.raises(TypeError, match="model must be an EoMT"):
        training.predictions(keras_vit.VisionTransformer(backbone), images)
