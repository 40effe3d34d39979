"""The confusion matrix: what the picture shows, read off arrays and off the file."""

import numpy as np
import pytest

from keras_vit.evaluation.accuracy import coarse, confusion_shares, draw_confusion, evaluate, most_confused

pytestmark = pytest.mark.once


def counts(classes, rng=None):
    rng = rng or np.random.default_rng(0)
    confusion = rng.poisson(0.2, (classes, classes))
    np.fill_diagonal(confusion, 40)
    return confusion


def test_shares():
    shares = confusion_shares(np.array([[3, 1], [0, 0]]))
    np.testing.assert_array_equal(shares, [[0.75, 0.25], [0, 0]])
    for bad in (np.ones((2, 3)), np.array([[-1]]), np.ones(4)):
        with pytest.raises(ValueError, match="confusion must be counts"):
            confusion_shares(bad)


def test_most_confused():
    confusion = np.diag([9, 9, 9])
    confusion[2, 0], confusion[0, 1] = 5, 2
    assert most_confused(confusion) == [(2, 0, 5), (0, 1, 2)]
    assert most_confused(confusion, 1) == [(2, 0, 5)]
    assert confusion.trace() == 27  # left as it was


def test_one_confusion_among_a_million_stays_visible():
    shares = np.eye(1003)
    shares[700, 20] = 0.5
    small = coarse(shares)
    assert len(small) <= 250 and small.max() == 1
    step = -(-1003 // 250)
    assert small[700 // step, 20 // step] == 0.5
    assert coarse(np.eye(9)) is not None and len(coarse(np.eye(9))) == 9


@pytest.mark.parametrize("classes", [2, 10, 60, 1003])
def test_picture(classes, tmp_path):
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    confusion = counts(classes)
    confusion[1, 0] = 30
    names = [f"a rather long name $ {i}" for i in range(classes)]
    figure = draw_confusion(confusion, tmp_path / "confusion.png", names)
    assert [path.name for path in tmp_path.iterdir()] == ["confusion.png"]
    with image.open(tmp_path / "confusion.png") as file:
        pixels = np.asarray(file.convert("RGB")).astype(int)
    matrix = figure.axes[0]
    window = matrix.get_window_extent()

    def colour(row, column):
        x, y = matrix.transData.transform((column - 0.35, row - 0.35))
        return pixels[int(pixels.shape[0] - y), int(x)]

    assert pixels.shape[1] == 1430 and window.width > 500
    right = colour(classes - 1, classes - 1)
    assert right[2] > right[0] + 60  # blue
    wrong = colour(1, 0) if classes <= 60 else None
    if wrong is not None:
        assert wrong[0] > wrong[2] + 30  # red
    texts = [text.get_text() for text in figure.texts]
    assert any(text.startswith(f"30 of {confusion[1].sum()}") for text in texts)
    assert len(matrix.get_xticklabels()) == classes or classes > 30
    # Nothing hangs over the edge of the picture.
    ticks = (*matrix.get_xticklabels(), *matrix.get_yticklabels()) if classes <= 30 else ()
    for text in (*figure.texts, *ticks, matrix.xaxis.label):
        box = text.get_window_extent()
        if text.get_text():
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= 1430 and box.y1 <= pixels.shape[0], text.get_text()


def test_picture_of_a_result(tmp_path):
    pytest.importorskip("matplotlib")
    labels = np.arange(6) % 3
    result = evaluate(lambda x: x, (np.eye(3)[labels], labels), class_names=["ant", "bee", "cat"], progress=False)
    texts = [text.get_text() for text in draw_confusion(result).texts]
    assert "Nothing is mistaken" in texts and "6 of 6 images are right (100.00%), 3 classes" in texts
    with pytest.raises(ValueError, match="2 names for 3 classes"):
        draw_confusion(result, class_names=["ant", "bee"])
    with pytest.raises(ValueError, match="must end with one of .*png"):
        draw_confusion(result, tmp_path / "x.txt")
