"""Pictures of segments: what is painted, and what is refused. Looked at once; here is what a test can hold."""

import dataclasses

import numpy as np
import pytest

from keras_vit import segmentation
from keras_vit._pictures import safe_colours
from keras_vit.segmentation.segmenting import Segment, Segmentation

pytestmark = pytest.mark.once
pytest.importorskip("matplotlib")


def result(ids, names="abcdefgh"):
    ids = np.asarray(ids, "int32")
    parts = [Segment(i, i, names[i], 0.5, int((ids == i).sum())) for i in np.unique(ids).tolist() if i >= 0]
    return Segmentation(ids, tuple(parts), "panoptic")


def test_a_figure_has_each_segment_in_its_colour_and_by_name(tmp_path):
    ids = np.repeat(np.repeat([[0, 1], [1, -1]], 40, 0), 60, 1)
    picture = np.full((80, 120, 3), 100, "uint8")
    figure = segmentation.plot(result(ids), picture, tmp_path / "masks.png", opacity=1)
    assert (tmp_path / "masks.png").read_bytes()[:4] == b"\x89PNG"
    (image,) = figure.axes[0].images
    painted = np.asarray(image.get_array())
    colours = [colour for _, colour in zip(range(21), safe_colours(), strict=False)]
    assert len(set(colours)) == 21
    first, second = map(np.array, colours[:2])
    assert (painted[20, 90] == first).all() and (painted[20, 20] == second).all()  # the largest first
    assert (painted[60, 90] == 100).all() and (painted[39, 20] < second).any()  # of none; an edge
    assert {text.get_text() for text in figure.axes[0].texts} == {"a", "b"}
    legend = [text.get_text() for text in figure.texts]
    assert any("50.0 %" in line and "b" in line for line in legend)
    figure = segmentation.plot(result(ids), picture, colours="voc2012", opacity=1)
    assert (np.asarray(figure.axes[0].images[0].get_array())[20, 90] == (128, 0, 0)).all()


@pytest.mark.parametrize(
    "ids", [[[-1]], [[0]], np.arange(8).reshape(1, 8), np.zeros((1, 900)), np.full((900, 700), -1)], ids=np.shape
)
def test_pictures_of_any_shape_are_drawn(ids):
    ids = np.asarray(ids)
    segmentation.plot(result(ids), np.zeros((*ids.shape, 3), "uint8"))


@pytest.mark.parametrize("gone", [1, 5])
def test_segments_whose_pixels_are_gone(gone):
    cropped = dataclasses.replace(result([[0, gone]]), map=np.array([[0, -1]], "int32"))
    figure = segmentation.plot(cropped, np.full((1, 2, 3), 100, "uint8"), opacity=1)
    assert (np.asarray(figure.axes[0].images[0].get_array())[0, 1] == 100).all()


def test_names_that_matplotlib_would_read_as_formulas_are_text():
    figure = segmentation.plot(result([[0]], ["$x_1$\n"]), np.zeros((1, 1, 3), "uint8"))
    figure.canvas.draw()


IDS, PICTURE = [[0, 1]], np.zeros((1, 2, 3), "uint8")
WRONG = {
    "no result": (np.zeros((1, 2)), PICTURE, {}, TypeError, "result must be a Segmentation"),
    "another size": (result(IDS), np.zeros((2, 2, 3), "uint8"), {}, ValueError, "it has 2 x 2"),
    "another ending": (result(IDS), PICTURE, {"path": "masks.bmp"}, ValueError, "path must end"),
    "few colours": (result(IDS), PICTURE, {"colours": [(0, 0, 0)]}, ValueError, "class 1"),
    "no set": (result(IDS), PICTURE, {"colours": "pascal"}, ValueError, "colours must be one of"),
    "no number": (result(IDS), PICTURE, {"opacity": "half"}, TypeError, "opacity"),
    "opacity": (result(IDS), PICTURE, {"opacity": 1.5}, ValueError, "opacity"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_drawn_is_refused(case):
    one, picture, options, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        segmentation.plot(one, picture, **options)


@pytest.mark.parametrize("name, classes", [("ade20k", 150), ("coco", 133), ("cityscapes", 19), ("voc2012", 21)])
def test_label_sets_are_whole(name, classes):
    found = segmentation.label_set(name)
    assert len(set(found.names)) == len(found.colours) == classes
    assert set(found.stuff) < set(range(classes)) and all(name == name.strip() for name in found.names)
    with pytest.raises(ValueError, match="name must be one of"):
        segmentation.label_set(name.upper())
