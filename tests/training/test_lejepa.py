"""Pre-training without labels by LeJEPA: what is learned, what the log shows, and that a run goes on bit by bit."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import BiT, VisionTransformer, ViTConfig, training
from keras_vit.data.random_operations import crop_box
from keras_vit.interpolation import blurred
from keras_vit.training.pretraining import effective_rank, encode, neighbour_accuracy
from tests.small_models import small_bit_config, small_hybrid_config, small_vit, small_vit_config
from tests.training.test_loop import assert_same_weights, cut_off
from tests.training.test_mask_classification import FLOAT32, gradients_of

pytestmark = pytest.mark.once

SMALL = {"steps": 4, "batch_size": 4, "image_size": 8, "every": 2, "verbose": False}
PICTURES = np.random.default_rng(0).integers(0, 256, (12, 12, 10, 3)).astype("uint8")
LABELS = np.arange(12) % 3
ZEROS = np.zeros((2, 4, 3), "float32")


def objective(weight=0.05, **changes):
    return training.LeJEPA(
        weight, slices=16, projector=(16, 8), views=training.ViewAugmentation(local_views=2, **changes)
    )


def pretrained(data=PICTURES, model=None, task=None, **options):
    keras.utils.set_random_seed(0)
    model = VisionTransformer(small_vit_config(classes=None)) if model is None else model
    return training.pretrain(model, data, objective=task or objective(), **SMALL | options)


def figures(done):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in done.log]


def test_crops_show_a_share_of_the_picture_and_blur_keeps_the_mean():
    rng = np.random.default_rng(0)
    for _ in range(200):
        top, left, height, width = crop_box(40, 60, (0.3, 0.5), rng)
        assert 0 <= top <= 40 - height and 0 <= left <= 60 - width
        assert 0.27 <= height * width / 2400 <= 0.53 and 0.7 <= width / height <= 1.4
    plain = np.full((9, 7, 3), 77, "float32")
    # float32 sums of weights that add up to 1
    np.testing.assert_allclose(blurred(plain, 0, 1.5, "edge"), plain, rtol=1e-6)
    point = np.zeros((9, 9, 3), "float32")
    point[4, 4] = 255
    soft = blurred(blurred(point, 0, 1.0, "edge"), 1, 1.0, "edge")
    assert soft.sum() == pytest.approx(3 * 255, rel=1e-5) and soft.max() < 50


@pytest.mark.parametrize(
    ("size", "patch", "given", "wanted"),
    [
        ((224, 224), (16, 16), None, (96, 96)),
        ((224, 224), (14, 14), None, (98, 98)),
        ((24, 48), (4, 8), None, (12, 24)),
        ((8, 8), (8, 8), None, (8, 8)),
        ((32, 32), (8, 8), (16, 24), (16, 24)),
    ],
)
def test_local_views_are_whole_patches(size, patch, given, wanted):
    assert training.ViewAugmentation(local_size=given).local_size_for(size, patch) == wanted


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"pooling": "avg", "class_token": False, "register_tokens": 2}, marks=pytest.mark.once),
        pytest.param(
            {"pooling": "map", "final_norm": "pooled", "position_embedding": "sincos2d"}, marks=pytest.mark.once
        ),
        pytest.param({"rotary_embedding": "dinov3", "position_embedding": "none"}, marks=pytest.mark.once),
    ],
)
def test_features_of_another_size_are_those_of_a_dynamic_model(changes):
    model = small_vit(**changes)
    images = np.random.default_rng(0).normal(size=(2, 12, 8, 3)).astype("float32")
    inputs = keras.Input((12, 8, 3))
    found = keras.Model(inputs, encode(model, inputs)).predict(images, verbose=0)
    dynamic = model.with_config(dynamic=True, classes=None)
    np.testing.assert_allclose(found, dynamic.predict(images, verbose=0), atol=2e-6)


def test_the_effective_rank_shows_a_collapse():
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(4, 500, 8)).astype("float32")
    assert float(effective_rank(normal)) == pytest.approx(8, rel=0.02)
    assert float(effective_rank(normal[..., :1] * np.ones(8, "float32"))) == pytest.approx(1, rel=1e-5)
    assert float(effective_rank(5 + 0.01 * normal)) == pytest.approx(1, rel=1e-3)
    assert float(effective_rank(np.zeros((4, 8), "float32"))) == 0


def test_neighbours_vote_without_the_picture_itself():
    features = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [1, 0.05]], "float32")
    assert neighbour_accuracy(features, np.array([0, 0, 1, 1, 0])) == 1.0
    assert neighbour_accuracy(features[:2], np.array([0, 1])) == 0.0  # its own label is not seen


@pytest.mark.nightly_elsewhere
def test_a_run_is_logged_and_the_projector_is_not_in_the_model():
    done = pretrained(validation=(PICTURES, LABELS))
    assert [row["step"] for row in done.log] == [2, 4]
    for row in done.log:
        assert {"loss", "sigreg", "invariance", "rank", "deviation", "val_accuracy"} <= row.keys()
        assert row["loss"] == pytest.approx(0.05 * row["sigreg"] + 0.95 * row["invariance"], rel=1e-4)
        assert 1 <= row["rank"] <= 8
    assert {layer.name for layer in done.model.layers} == {layer.name for layer in small_vit(classes=None).layers}
    features = done.model.predict(done.model.config.pipeline(PICTURES), verbose=0)
    assert done.log[-1]["val_accuracy"] == pytest.approx(neighbour_accuracy(features, LABELS), abs=1e-6)


def test_the_same_seed_is_the_same_run_and_labels_are_not_read():
    first = figures(pretrained())
    assert first == figures(pretrained((PICTURES, LABELS))) == figures(pretrained({"train": [*PICTURES]}))
    assert first != figures(pretrained(seed=1))
    assert 0 <= pretrained((PICTURES, LABELS), validation=0.25).accuracy <= 1  # a labelled share is for the probe


@pytest.mark.nightly
def test_a_run_that_was_stopped_goes_on_bit_by_bit(tmp_path):
    whole = pretrained(output=tmp_path / "whole")
    cut_off(pretrained, 3, output=tmp_path / "stopped")
    resumed = pretrained(output=tmp_path / "stopped")
    assert_same_weights(whole.model, resumed.model)
    assert figures(whole)[-1] == figures(resumed)[-1]
    with pytest.raises(ValueError, match="other settings: task was 'LeJEPA"):
        pretrained(output=tmp_path / "stopped", task=objective(weight=0.5))


def test_models_of_all_kinds_and_a_head_that_stays():
    model = small_vit()
    head = model.get_layer("head").get_weights()
    done = pretrained(model=model, learning_rate=0.01)
    np.testing.assert_equal(done.model.get_layer("head").get_weights(), head)
    assert np.any(done.model.get_layer("block_0").get_weights()[0] != model.get_layer("block_0").get_weights()[0])
    hybrid = VisionTransformer(small_hybrid_config(classes=None))
    assert "rank" in pretrained(model=hybrid, image_size=hybrid.config.image_size).log[-1]
    adapted = pretrained(lora_rank=2, learning_rate=0.01)
    assert "rank" in adapted.log[-1]


@pytest.mark.parametrize(
    ("run", "error", "words"),
    [
        (
            lambda: pretrained(model=BiT(small_bit_config()), drop_path=0.0),
            TypeError,
            "VisionTransformer for LeJEPA, but BiT",
        ),
        (lambda: pretrained(model=small_vit(dynamic=True)), ValueError, "views of one size"),
        (lambda: pretrained(model=small_vit(pooling="none", classes=None)), ValueError, "one vector for each view"),
        (lambda: pretrained(validation=0.5), TypeError, "data must be an image folder"),  # the share needs labels
        (lambda: pretrained(iter([])), ValueError, "the pipeline has no good image"),
        (lambda: pretrained(task=objective(local_size=6)), ValueError, r"local_size must be .* a multiple .*6, 6"),
        (lambda: pretrained(classes=3), ValueError, "classes=.*is about labels"),
        (lambda: pretrained(target="number"), ValueError, "target=.*is about labels"),
        (lambda: training.LeJEPALoss(weight=1.5), ValueError, "weight must be a number from 0 to 1, but 1.5"),
        (lambda: training.LeJEPALoss(knots=1), ValueError, "knots"),
        (lambda: training.LeJEPALoss()(ZEROS[0]), ValueError, r"embeddings must be \(views, .*but \(4, 3\)"),
        (lambda: training.LeJEPALoss(global_views=3)(ZEROS), ValueError, "3 global views or more"),
        (lambda: training.LeJEPA(projector=()), ValueError, "projector must be at least one integer"),
        (lambda: training.pretrain(small_vit(), PICTURES), TypeError, 'recipe must be given for objective="labels"'),
    ],
)
def test_what_is_refused(run, error, words):
    with pytest.raises(error, match=words):
        run()


STROKES = (  # characters of 5 x 5 cells
    "..#....#....#....#....#..",
    "..........#####..........",
    "#.....#.....#.....#.....#",
    "....#...#...#...#...#....",
    "#####.....#####.....#####",
    "#.#.##.#.##.#.##.#.##.#.#",
)


def characters(count, seed, size=20):
    """Pictures of characters anywhere, in colours of any kind, and which they are."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(len(STROKES), size=count)
    pictures = np.empty((count, size, size, 3))
    for picture, label in zip(pictures, labels, strict=True):
        cells = np.reshape([cell == "#" for cell in STROKES[label]], (5, 5))
        ink, (top, left) = np.zeros((size, size, 1)), rng.integers(0, size - 9, 2)
        ink[top : top + 10, left : left + 10, 0] = np.kron(cells, np.ones((2, 2)))
        colours = rng.uniform(0, 90, 3), rng.uniform(160, 255, 3)
        paper, pen = colours if rng.random() < 0.5 else colours[::-1]
        picture[...] = paper + (pen - paper) * ink + rng.normal(0, 15, (size, size, 1))
    return pictures.clip(0, 255).astype("uint8"), labels


def run_on_characters(validation, **options):
    keras.utils.set_random_seed(0)
    sizes = {"image_size": 20, "patch_size": 4, "width": 32, "depth": 2, "heads": 4, "mlp_width": 64}
    model = VisionTransformer(ViTConfig(**sizes, classes=None, pooling="avg", class_token=False))
    features = model.predict(validation[0].astype("float32") / 127.5 - 1, verbose=0)
    views = training.ViewAugmentation(local_views=0, flip=False, global_area=(0.6, 1), hue=0.5, blur=0.0, solarize=0.0)
    task = training.LeJEPA(options.pop("weight"), slices=64, projector=(128, 128, 16), views=views)
    common = {"batch_size": 64, "image_size": 20, "learning_rate": 0.01, "drop_path": 0.0, "verbose": False}
    done = training.pretrain(model, characters(512, 1)[0], objective=task, validation=validation, **common | options)
    return neighbour_accuracy(features, validation[1]), done


@pytest.mark.nightly
def test_unlabelled_characters_are_told_apart_better_than_by_random_weights_or_pixels():
    pictures, labels = characters(200, 2)
    pixels = neighbour_accuracy(pictures.reshape(200, -1).astype("float32") - pictures.mean(), labels)
    random, done = run_on_characters((pictures, labels), weight=0.2, steps=80, every=40, batch_size=48)
    assert done.log[-1]["val_accuracy"] > max(random + 0.15, pixels + 0.07), (random, pixels, figures(done))
    assert done.log[-1]["rank"] > done.log[0]["rank"] > 3


@pytest.fixture(scope="module")
def case(golden):
    return golden("train_lejepa_default")


@pytest.mark.each
def test_loss_terms_and_gradients_are_the_original_s(case):
    ref = case.ref
    loss = training.LeJEPALoss(**case.meta["options"], global_views=case.meta["global_views"])
    # Slices need not have length 1.
    slices = ref["slices"] * np.linspace(0.5, 2, ref["slices"].shape[1], dtype="float32")
    terms = {name: float(value) for name, value in loss.terms(ref["embeddings"], slices).items()}
    assert terms == pytest.approx({name: float(ref[name]) for name in ("sigreg", "invariance")}, rel=FLOAT32)
    value, (gradient,) = gradients_of(lambda z: loss(z, slices), ref["embeddings"])
    assert value == pytest.approx(float(ref["total"]), rel=FLOAT32)
    assert np.max(np.abs(gradient - ref["grad"])) <= FLOAT32 * np.ptp(ref["grad"])


def test_slices_are_drawn_by_the_seed():
    embeddings = np.random.default_rng(0).normal(size=(2, 8, 4)).astype("float32")
    first, second, other = (training.LeJEPALoss(slices=4, seed=seed) for seed in (1, 1, 2))
    drawn = float(first(embeddings))
    assert drawn == float(second(embeddings)) != float(other(embeddings))
    assert drawn != float(first(embeddings)), "drawn again in each call"
    seed = ops.convert_to_tensor(np.array([3, 4], "uint32" if keras.backend.backend() == "jax" else "int32"))
    assert float(first.terms(embeddings, seed=seed)["sigreg"]) == float(other.terms(embeddings, seed=seed)["sigreg"])
