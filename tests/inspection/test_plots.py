"""Pictures of arrays: what is drawn, where it is written, and what is refused."""

import numpy as np
import pytest

from keras_vit import inspection
from keras_vit.inspection import plots
from tests.inspection.models import make

pytestmark = pytest.mark.once

pytest.importorskip("matplotlib")
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (2, 16, 24, 3)).astype("uint8")
MAPS = RNG.uniform(0.1, 1, (2, 2, 3))

NAMED = {"class_names": ["a", "b"]}
# What each kind gets beside the values; its headline; how many axes with pictures or curves; and its old function.
PLOTS = {
    "heads": ((MAPS, PIXELS[0]), {}, "Where each head looks", 4, "plot_attention_heads"),
    "rollout": ((MAPS, PIXELS), {}, "What the answer is made of", 4, "plot_attention_rollout"),
    "relevance": ((MAPS, PIXELS), {}, "What speaks for the class", 4, None),
    "features": ((RNG.uniform(0, 1, (2, 2, 3, 3)), PIXELS), {}, "Which patches are alike", 4, "plot_feature_map"),
    "distance": ((RNG.uniform(1, 9, (3, 2)),), {}, "How far each head looks", 1, "plot_mean_attention_distance"),
    "filters": ((RNG.normal(size=(9, 4, 5, 3)),), {}, "What patches are filtered for", 9, "plot_patch_filters"),
    "positions": ((RNG.uniform(-1, 1, (2, 3, 2, 3)),), {}, "What it knows of places", 7, "plot_position_similarity"),
    "saliency": ((RNG.uniform(0, 1, (2, 16, 24)), PIXELS), {}, "Which pixels the class hangs on", 4, "plot_saliency"),
    "evidence": ((MAPS - 0.5, PIXELS), NAMED, "What each patch says for the class", 4, "plot_class_evidence"),
    "nearest": (
        (np.array([[0, 0, 0], [1, 1, 2]]), PIXELS),
        {"cosines": np.array([0.9, 0.8]), "patch": (0, 1, 1), "grid_size": (2, 3)},
        "Patches that it takes for alike",
        3,
        "plot_nearest_patches",
    ),
}


def test_every_plot_is_tested():
    assert PLOTS.keys() == {*plots._PLOTS, *plots.MAPS, "features"}
    assert {row[-1] for row in PLOTS.values()} == {*plots._OLD, None}


@pytest.mark.parametrize("kind", PLOTS)
def test_figures_and_files(kind, tmp_path):
    arguments, options, headline, axes, old = PLOTS[kind]
    figure = inspection.plot(kind, *arguments, path=tmp_path / "picture.png", **options)
    written = (tmp_path / "picture.png").read_bytes()
    assert written.startswith(b"\x89PNG")
    assert figure.texts[0].get_text() == headline
    assert len(figure.axes) == axes
    assert all(one.images or one.lines or one.collections for one in figure.axes)
    # Without a file, with another headline; formulas in it are no formulas.
    figure = inspection.plot(kind, *arguments, title="costs $5 and $6", **options)
    assert figure.texts[0].get_text() == r"costs \$5 and \$6"
    figure.canvas.draw()
    if old:
        with pytest.warns(DeprecationWarning, match=rf"{old} is deprecated. Use inspection.plot\('{kind}'"):
            function = getattr(inspection, old)
        if kind == "nearest":
            arguments = (arguments[0], options["cosines"], options["patch"], arguments[1], options["grid_size"])
        function(*arguments, tmp_path / "picture.png", **(options if kind == "evidence" else {}))
        assert (tmp_path / "picture.png").read_bytes() == written
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]


def test_the_same_picture_is_the_same_file(tmp_path):
    for suffix in ("svg", "pdf"):
        for name in "ab":
            inspection.plot("distance", np.ones((3, 2)), path=tmp_path / f"{name}.{suffix}")
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_a_map_lies_where_its_patches_are():
    weights = np.zeros((2, 3))
    weights[1, 2] = 1
    grey = np.full((20, 30, 3), 128, "uint8")
    laid = inspection.overlay(grey, weights)
    assert laid.shape == (20, 30, 3) and laid.min() >= 0 and laid.max() <= 1
    bright = laid.sum(-1)
    assert np.unravel_index(bright.argmax(), bright.shape)[0] >= 15
    assert bright[10:, 20:].mean() > 1.5 * bright[:10, :20].mean()
    np.testing.assert_allclose(inspection.overlay(grey / 255, weights), laid, rtol=0, atol=1e-6)
    assert np.isfinite(inspection.overlay(grey, np.zeros((2, 3)))).all()


@pytest.mark.parametrize("shape", [(2, 3), (16, 16)])
def test_one_patch_that_outshines_all_does_not_darken_the_others(shape):
    weights = RNG.uniform(0.002, 0.008, shape)
    weights[1, 1] = 0.08
    for kind in (*plots.MAPS.values(), plots.HEADS):
        assert 0.002 < kind.ends(weights)[1] < 0.008
        assert kind.ends(1.0 * (weights > 0.07))[1] == 0.01  # one patch alone: rounding errors elsewhere stay dark
    grey = np.full((8 * shape[0], 8 * shape[1], 3), 128, "uint8")
    assert inspection.overlay(grey, weights).sum(-1).mean() > 1.4  # at most 1.1 where the largest is the end


@pytest.mark.parametrize("fields", [{}, {"include_preprocessing": True}, {"channels": 1}])
def test_pixels_of_what_a_model_gets(fields):
    model = make("plain", **fields)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 12, model.config.channels)).astype("uint8")
    got = inspection.shown_pixels(model, model.preprocess(pixels))
    assert got.dtype == "uint8"
    np.testing.assert_array_equal(got, np.broadcast_to(pixels, (2, 8, 12, 3)))
