"""Accuracy: every figure against one counted in another way, every kind of data, and every refusal."""

import dataclasses
import json

import keras
import numpy as np
import pytest

from keras_vit.data import open_data
from keras_vit.evaluation import draw_confusion, evaluate, write_report
from tests.pictures import save
from tests.small_models import small_vit

pytestmark = pytest.mark.once

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (50, 8, 8, 3)).astype("float32")
LABELS = RNG.integers(0, 6, 50)  # no image of class 6


def same(scores):
    return scores


@pytest.fixture(scope="module")
def model():
    return small_vit(classes=7)


@pytest.mark.each
def test_figures(model):
    result = evaluate(model, (IMAGES, LABELS), top=(1, 2, 5, 9), batch_size=16, progress=False)
    logits = model.predict(IMAGES, verbose=0)
    order = np.argsort(-logits, 1)
    for k in (1, 2, 5):
        assert result.top[k] == np.mean([label in row[:k] for label, row in zip(LABELS, order, strict=True)])
    assert 9 not in result.top and result.accuracy == result.top[1]
    guesses = order[:, 0]
    for label in range(6):
        assert result.per_class[label] == pytest.approx(np.mean(guesses[LABELS == label] == label))
        for guess in range(7):
            assert result.confusion[label, guess] == np.sum((LABELS == label) & (guesses == guess))
    assert np.isnan(result.per_class[6]) and result.confusion.sum() == result.examples == 50
    wanted = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(LABELS, logits)
    assert result.loss == pytest.approx(float(wanted), rel=1e-5)  # theirs is float32
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["per_class"][6] is None and plain["top"]["1"] == result.accuracy
    assert "top-5 %" in str(result)


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("outputs", ["softmax", "sigmoid"])
def test_loss_of_probabilities(outputs):
    logits = RNG.normal(size=(50, 7)).astype("float32")
    probabilities = keras.ops.convert_to_numpy(getattr(keras.ops, outputs)(logits))
    result = evaluate(same, (probabilities, LABELS), outputs=outputs, progress=False)
    if outputs == "softmax":
        wanted = evaluate(same, (logits, LABELS), outputs="logits", progress=False).loss
    else:
        wanted = 7 * float(keras.losses.BinaryCrossentropy()(np.eye(7)[LABELS], probabilities))
    assert result.loss == pytest.approx(wanted, rel=1e-4)  # float32, and Keras clips at 1e-7


def test_ties_go_to_the_first():
    result = evaluate(same, (np.zeros((3, 4)), np.array([0, 1, 3])), top=(1, 2, 3), progress=False)
    assert result.top == {1: 1 / 3, 2: 2 / 3, 3: 2 / 3}


def test_names_and_the_worst_classes():
    names = ["ant", "bee", "cat"]
    scores = np.eye(3)[[0, 0, 2, 2, 2, 1]]
    result = evaluate(same, (scores, np.array([0, 1, 1, 1, 2, 1])), class_names=names, progress=False)
    rows = result.class_table(worst=2)
    assert [row["class"] for row in rows] == ["bee", "ant"]
    assert rows[0] == {"class": "bee", "images": 4, "accuracy %": 25.0, "taken for": "cat (2)"}
    pytest.importorskip("matplotlib")
    given = {"class_names": np.array(names), "target": "class"}
    result = evaluate(same, (np.eye(3), np.arange(3)), **given, progress=False)
    texts = [text.get_text() for text in draw_confusion(result).texts]
    assert "Nothing is mistaken" in texts and "3 of 3 images are right (100.00%), 3 classes" in texts


@pytest.mark.nightly_elsewhere
def test_views_are_averaged(model):
    corners = IMAGES[:, :, ::-1].copy()
    flipped = evaluate(model, (IMAGES, LABELS), views="flip", batch_size=16, mistakes=3, progress=False)
    logits = (model.predict(IMAGES, verbose=0) + model.predict(corners, verbose=0)) / 2
    assert flipped.loss == pytest.approx(
        evaluate(same, (logits, LABELS), outputs="logits", progress=False).loss, rel=1e-5
    )
    # From 7 pixels to 8, bilinear: pixel i reads at (i + 1/2) 7/8 - 1/2.
    places = np.clip((np.arange(8) + 0.5) * 7 / 8 - 0.5, 0, 6)
    stretch = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(7)))
    crops = []
    for top, left in ((0, 0), (0, 1), (1, 0), (1, 1), (0, 0)):  # of the middle, half a pixel is rounded down
        part = IMAGES[:, top : top + 7, left : left + 7]
        grown = np.einsum("yi,xj,nijc->nyxc", stretch, stretch, part).astype("float32")
        crops += [model.predict(images, verbose=0) for images in (grown, grown[:, :, ::-1].copy())]
    found = evaluate(model, (IMAGES, LABELS), views="crops", progress=False)
    wanted = evaluate(same, (np.mean(crops, 0), LABELS), outputs="logits", progress=False)
    assert found.loss == pytest.approx(wanted.loss, rel=1e-5)


@pytest.mark.nightly_elsewhere
def test_the_worst_mistakes_have_their_pictures(model):
    result = evaluate(model, (IMAGES, LABELS), batch_size=16, mistakes=5, progress=False)
    logits = model.predict(IMAGES, verbose=0)
    margins = logits.max(1) - logits[range(50), LABELS]
    assert [mistake.number for mistake in result.mistakes] == np.argsort(-margins)[:5].tolist()
    for mistake in result.mistakes:
        assert (mistake.label, mistake.guess) == (LABELS[mistake.number], logits[mistake.number].argmax())
        assert mistake.margin == pytest.approx(margins[mistake.number], abs=1e-5)
        pixels = np.round((IMAGES[mistake.number] + 1) * 127.5)
        np.testing.assert_array_equal(mistake.image, pixels.astype("uint8"))


def test_the_page_names_the_file_of_a_mistake(tmp_path):
    pytest.importorskip("matplotlib")
    for number, label in enumerate("aabb"):
        save(tmp_path / "test" / label / f"{number}.png", np.full((64, 64, 3), 60 * number, "uint8"))
    damaged = tmp_path / "test/a/1.png"  # found when it is read: its header is whole
    damaged.write_bytes(damaged.read_bytes()[:-30])
    model = small_vit(classes=2)
    model.get_layer("head").bias.assign([0.0, 9.0])
    options = {"on_bad_image": "skip", "mistakes": 4, "progress": False}
    stream = open_data(tmp_path, image_size=8, batch_size=2, split="test", check="none", on_bad_image="skip")
    with pytest.warns(UserWarning, match="A bad image is left out"):
        [mistake] = evaluate(model, stream, mistakes=4, progress=False).mistakes
    assert mistake.name == str(tmp_path / "test/a/0.png")
    model.get_layer("head").bias.assign([9.0, 0.0])
    with pytest.warns(UserWarning, match="A bad image is left out"):
        result = evaluate(model, tmp_path, **options)
    names = {mistake.number: mistake.name for mistake in result.mistakes}
    assert names == {1: str(tmp_path / "test/b/2.png"), 2: str(tmp_path / "test/b/3.png")}
    assert f"b taken for a: {names[1]}<" in write_report(result, tmp_path / "page.html").read_text()
    far = dataclasses.replace(result.mistakes[0], name=f"/{'x' * 300}/2.png")
    page = write_report(dataclasses.replace(result, mistakes=(far,)), tmp_path / "page.html").read_text()
    assert f"b taken for a: …{'x' * 93}/2.png<" in page
    # Rows of arrays are called by their place; batches without names by how many came before.
    pixels = np.zeros((3, 8, 8, 3), "uint8")
    [mistake] = evaluate(model, (pixels, [0, 1, 0]), preprocess=True, mistakes=4, progress=False).mistakes
    assert (mistake.number, mistake.name) == (1, "images[1]")
    result = evaluate(model, [(pixels / 255, [0, 1, 0])], mistakes=4, progress=False)
    assert result.mistakes[0].name is None
    assert "1 taken for 0: image 1<" in write_report(result, tmp_path / "page.html").read_text()


def test_the_page_of_a_result(model, tmp_path):
    pytest.importorskip("matplotlib")
    names = [f"<b>{i}" for i in range(7)]
    options = {"class_names": names, "mistakes": 20, "progress": False}
    result = evaluate(model, (IMAGES, LABELS), **options)
    page = write_report(result, tmp_path / "page.html", "A & B").read_text()
    assert "A &amp; B" in page and " taken for &lt;b&gt;" in page and "<b>" not in page and "://" not in page
    assert page.count("<img") == 1 + len(result.mistakes) and page.count("<tr>") == 2 + 1 + 6
    above, below = draw_confusion(result, title="of $5").subfigs
    assert above.texts[0].get_text() == r"of \$5" and len(below.axes) == 12
    several = evaluate(same, (np.eye(3), np.eye(3)), target="multilabel", outputs="logits", progress=False)
    assert "mAP" in write_report(several, tmp_path / "several.html").read_text()
