"""The loss of LeJEPA beside lightly's numbers, and mistakes that others make with it."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import training
from tests.training.test_mask_classification import FLOAT32, gradients_of


@pytest.fixture(scope="module")
def case(golden):
    return golden("train_lejepa_default")


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


@pytest.mark.once
def test_mistakes_are_far_away(case):
    embeddings, slices = case.ref["embeddings"], case.ref["slices"]
    options = {name: value for name, value in case.meta["options"].items() if name != "weight"}
    right = training.LeJEPALoss(**options).terms(embeddings, slices)

    def far(wrong, name):
        return abs(float(wrong) / float(right[name]) - 1)

    all_views = training.LeJEPALoss(**options, global_views=len(embeddings)).terms(embeddings, slices)
    assert far(all_views["invariance"], "invariance") > 0.2  # the centre of all views
    assert far(right["sigreg"] / embeddings.shape[1], "sigreg") > 0.9  # not times the number of pictures
    pooled = training.LeJEPALoss(**options, global_views=1).terms(embeddings.reshape(1, -1, 24), slices)
    assert far(pooled["sigreg"], "sigreg") > 0.05  # views pooled
    halves = [
        float(training.LeJEPALoss(**options).terms(part, slices)["sigreg"]) for part in np.split(embeddings, 2, 1)
    ]
    assert halves == pytest.approx(case.meta["alone"], rel=FLOAT32)  # a process by itself, with half of the batch


@pytest.mark.once
def test_a_collapse_has_a_large_statistic_and_normal_embeddings_about_1():
    rng = np.random.default_rng(0)
    loss = training.LeJEPALoss(slices=256, seed=0)
    for pictures in (64, 512):
        normal = loss.terms(rng.normal(size=(8, pictures, 64)).astype("float32"))
        assert float(normal["sigreg"]) == pytest.approx(1.05, rel=0.1)
        collapsed = loss.terms(np.full((2, pictures, 16), 0.3, "float32"))
        assert float(collapsed["invariance"]) == pytest.approx(0, abs=1e-12)
        assert float(collapsed["sigreg"]) > pictures / 4


@pytest.mark.once
def test_slices_are_drawn_by_the_seed():
    embeddings = np.random.default_rng(0).normal(size=(2, 8, 4)).astype("float32")
    first, second, other = (training.LeJEPALoss(slices=4, seed=seed) for seed in (1, 1, 2))
    drawn = float(first(embeddings))
    assert drawn == float(second(embeddings)) != float(other(embeddings))
    assert drawn != float(first(embeddings)), "drawn anew in each call"
    seed = ops.convert_to_tensor(np.array([3, 4], "uint32" if keras.backend.backend() == "jax" else "int32"))
    assert float(first.terms(embeddings, seed=seed)["sigreg"]) == float(other.terms(embeddings, seed=seed)["sigreg"])


@pytest.mark.once
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda z: training.LeJEPALoss(weight=1.5), "weight must be a number in 0..1, but 1.5"),
        (lambda z: training.LeJEPALoss(t_max=0), "t_max must be a number above 0, but 0"),
        (lambda z: training.LeJEPALoss(knots=1), "knots"),
        (lambda z: training.LeJEPALoss()(z[0]), r"embeddings must be \(views, pictures, width\).*but \(4, 3\)"),
        (lambda z: training.LeJEPALoss(global_views=3)(z), "3 global views or more"),
        (lambda z: training.LeJEPALoss()(z, np.ones((4, 8))), r"slices must be \(3, number of slices\), but \(4, 8\)"),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make(np.zeros((2, 4, 3), "float32"))
