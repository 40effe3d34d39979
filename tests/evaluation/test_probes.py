"""The linear probe: against an independent float64 solution, and against what must and must not be learnable."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data import open_data
from keras_vit.evaluation.probes import L2_SWEEP, LeastSquaresProbe, extract_features, few_shot, knn_accuracy
from keras_vit.preprocessing import imagenet1k_classes
from tests.small_models import small_vit
from tests.tolerances import SAME_FUNCTION

pytestmark = pytest.mark.once


def planted(rng, examples=200, features=24, classes=5, distance=4.0):
    """Features that carry their labels along random directions, of very different sizes."""
    labels = rng.integers(0, classes, examples)
    labels[: 3 * classes] = np.repeat(np.arange(classes), 3)
    x = rng.normal(size=(examples, features)) + distance * np.eye(classes, features)[labels]
    return (x * np.logspace(-2, 2, features) + 7).astype("float32"), labels


@pytest.mark.parametrize("examples", [7, 25, 200])  # fewer than the 25 columns of X, as many, more
@pytest.mark.parametrize("l2", [L2_SWEEP[0], 1024.0, L2_SWEEP[-1]])
def test_equals_an_independent_solution(examples, l2):
    rng = np.random.default_rng(examples)
    (x, y), (x_test, _) = planted(rng, max(examples, 15)), planted(rng)
    x, y = x[:examples], y[:examples]
    probe = LeastSquaresProbe.fit(x, y, 5)

    # Least squares on X stacked on sqrt(l2) I, by SVD: no normal equations and no decomposition in common.
    mean, std = x.astype("float64").mean(0), x.astype("float64").std(0) + 1e-5
    design = np.hstack([(x - mean) / std, np.full((examples, 1), 100.0)])
    stacked = np.vstack([design, np.sqrt(l2) * np.eye(25)])
    targets = np.vstack([2.0 * np.eye(5)[y] - 1, np.zeros((25, 5))])
    weights = np.linalg.lstsq(stacked, targets, rcond=None)[0]
    scores = np.hstack([(x_test - mean) / std, np.full((len(x_test), 1), 100.0)]) @ weights

    np.testing.assert_allclose(probe.weights(l2), weights, rtol=0, atol=1e-6 * np.abs(weights).max())
    np.testing.assert_allclose(probe.scores(x_test, [l2])[0], scores, rtol=0, atol=1e-6 * np.abs(scores).max())


def test_the_draw_is_big_visions():
    """For a seed the very examples of big_vision: per class a permutation of default_rng(seed), and its beginning."""
    x, y = planted(np.random.default_rng(0))
    result = few_shot(None, (x, y), (x, y), shots=[2, 3], seeds=[5], progress=False)
    rng = np.random.default_rng(5)
    order = [rng.permutation(np.where(y == label)[0]) for label in range(5)]
    for i, shots in enumerate((2, 3)):
        drawn = np.concatenate([indices[:shots] for indices in order])
        scores = LeastSquaresProbe.fit(x[drawn], y[drawn], 5).scores(x, [1024.0])[0]
        assert result.accuracy[i, 0, 0] == np.mean(scores.argmax(1) == y)
    assert few_shot(None, (x, y), (x, y), shots=1, seeds=np.int64(2), progress=False).seeds == (0, 1)


def test_votes_are_for_the_classes_of_the_data_in_its_order():
    """Also where these are the 1,000 of ImageNet in another order than that of its models."""
    names = [wnid for wnid, _ in imagenet1k_classes()][::-1]
    pairs = np.random.default_rng(0).normal(size=(1000, 8)), np.arange(1000)
    options = {"image_size": None, "batch_size": 500, "split": "test", "class_names": names}
    result = knn_accuracy(None, open_data(pairs, **options), open_data(pairs, **options), k=1, progress=False)
    assert result.accuracy == 1 and result.class_names == tuple(names)


def test_images_that_are_all_of_the_first_class():
    """One column of one-hot rows is not a class number."""
    model = small_vit(class_names=("a", "b", "c"))
    pixels = np.random.default_rng(0).integers(0, 256, (4, *model.input_shape[1:]), "uint8")
    first = np.zeros(4, int)
    np.testing.assert_array_equal(extract_features(model, (pixels, first), preprocess=True)[1], first)
    options = {"k": 1, "preprocess": True, "progress": False}
    assert knn_accuracy(model, (pixels, [0, 1, 1, 1]), (pixels[:1], [0]), **options).accuracy == 1


def test_strength_is_chosen_on_held_out_images():
    rng = np.random.default_rng(2)
    train, test = planted(rng), planted(rng)
    several = few_shot(None, train, test, shots=[1, 5], l2=L2_SWEEP, progress=False)
    assert several.accuracy.shape == (2, 30, 3)
    # Wrong test labels change the accuracy, and not the choice.
    flattered = few_shot(None, train, (test[0], (test[1] + 1) % 5), shots=[1, 5], l2=L2_SWEEP, progress=False)
    assert flattered.best_l2 == several.best_l2 and flattered.mean[1, 10] < several.mean[1, 10]
    one = few_shot(None, train, test, shots=[1, 5], l2=L2_SWEEP[7], progress=False)
    np.testing.assert_array_equal(one.accuracy[:, 0], several.accuracy[:, 7])
    assert one.best_l2 == {1: L2_SWEEP[7], 5: L2_SWEEP[7]} and one.held_out is None


@pytest.mark.nightly_elsewhere
def test_features_of_a_model():
    images = np.random.default_rng(0).uniform(-1, 1, (10, 8, 8, 3)).astype("float32")
    labels = np.arange(10) % 3
    model = small_vit(representation_size=8)
    features, found = extract_features(model, (images, labels), batch_size=4)  # the last batch is short
    wanted = keras_vit.feature_extractor(model, ["pre_logits"])(images)["pre_logits"]
    # In batches of another size, and compiled as a whole: sums in another order.
    np.testing.assert_allclose(features, keras.ops.convert_to_numpy(wanted), rtol=0, atol=SAME_FUNCTION)
    np.testing.assert_array_equal(found, labels)
    pixels = ((images + 1) * 127.5).repeat(2, 1).repeat(2, 2)
    loader = [(pixels[:6], np.eye(3)[labels[:6]]), (pixels[6:], np.eye(3)[labels[6:]])]
    batched, found = extract_features(model, loader, preprocess=True)
    # Pixels there and back in float32, after resizing twice as large images to the model's size.
    np.testing.assert_allclose(batched, features, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(found, labels)


@pytest.mark.nightly
def test_digits_from_the_shipped_checkpoint():
    pytest.importorskip("sklearn")
    from keras_vit.data import load_digits

    train, test = load_digits()
    model = keras_vit.from_checkpoint("glyphs")
    data = [(digits.pixels[:700], digits.labels[:700]) for digits in (train, test)]
    result = few_shot(model, *data, preprocess=True, batch_size=500, seeds=5, progress=False)
    # Measured on each backend with 10 seeds: 72.1, 86.5, 90.5 and 93.5 %, with spreads of 7.0, 2.1, 1.2 and 0.7 %.
    assert (result.mean[:, 0] > (0.62, 0.82, 0.88, 0.92)).all()
    assert (np.diff(result.mean[:, 0]) > 0).all()
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["mean"] == result.mean.tolist() and plain["features"] == model.config.width
