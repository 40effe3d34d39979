"""Accuracy: every figure against one counted in another way, every kind of data, and every refusal."""

import json

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.evaluation.accuracy import evaluate
from keras_vit.evaluation.batches import batches

CONFIG = ViTConfig(image_size=8, patch_size=4, width=16, depth=1, heads=2, mlp_width=16, classes=7)
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (50, 8, 8, 3)).astype("float32")
LABELS = RNG.integers(0, 6, 50)  # no image of class 6


def same(scores):
    return scores


@pytest.fixture(scope="module")
def model():
    model = VisionTransformer(CONFIG)
    model.get_layer("head").kernel.assign(RNG.normal(size=(16, 7)).astype("float32"))
    return model


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
    assert evaluate(same, (probabilities, LABELS), progress=False).loss is None


def test_ties_go_to_the_first():
    result = evaluate(same, (np.zeros((3, 4)), np.array([0, 1, 3])), top=(1, 2, 3), progress=False)
    assert result.top == {1: 1 / 3, 2: 2 / 3, 3: 2 / 3}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the frameworks' own data pipelines
@pytest.mark.parametrize("kind", ["list", "generator", "one-hot", "column", "pydataset", "tf", "torch", "grain"])
def test_kinds_of_data(kind, model):
    cut = [(IMAGES[:32], LABELS[:32]), (IMAGES[32:], LABELS[32:])]
    if kind == "list":
        data = cut
    elif kind == "generator":
        data = (batch for batch in cut)
    elif kind == "one-hot":
        data = IMAGES, np.eye(7)[LABELS]
    elif kind == "column":
        data = IMAGES, LABELS[:, None].astype("uint8")
    elif kind == "pydataset":

        class Cut(keras.utils.PyDataset):
            def __len__(self):
                return 2

            def __getitem__(self, index):
                return cut[index]

        data = Cut()
    elif kind == "tf":
        data = pytest.importorskip("tensorflow").data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(32)
    elif kind == "torch":
        torch = pytest.importorskip("torch")
        tensors = torch.utils.data.TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(LABELS))
        data = torch.utils.data.DataLoader(tensors, batch_size=32)
    else:
        grain = pytest.importorskip("grain")
        data = grain.MapDataset.source(list(zip(IMAGES, LABELS, strict=True))).batch(32)
    wanted = evaluate(model, (IMAGES, LABELS), progress=False)
    result = evaluate(model, data)
    np.testing.assert_array_equal(result.confusion, wanted.confusion)


def test_pixels(model):
    pixels = np.round((IMAGES + 1) * 127.5)
    result = evaluate(model, (pixels.astype("uint8"), LABELS), preprocess=True, progress=False)
    wanted = evaluate(model, (pixels / 127.5 - 1, LABELS), progress=False)
    assert result.loss == pytest.approx(wanted.loss, rel=1e-5)
    with pytest.raises(ValueError, match="preprocess=True needs a model of keras_vit"):
        evaluate(same, (pixels, LABELS), preprocess=True, progress=False)


def test_names_and_the_worst_classes():
    names = ["ant", "bee", "cat"]
    scores = np.eye(3)[[0, 0, 2, 2, 2, 1]]
    result = evaluate(same, (scores, np.array([0, 1, 1, 1, 2, 1])), class_names=names, progress=False)
    rows = result.class_table(worst=2)
    assert [row["class"] for row in rows] == ["bee", "ant"]
    assert rows[0] == {"class": "bee", "images": 4, "accuracy %": 25.0, "taken for": "cat (2)"}
    with pytest.raises(ValueError, match="2 names, but the model has 3 outputs"):
        evaluate(same, (scores, LABELS[:6] % 3), class_names=names[:2], progress=False)


ROWS = np.zeros((4, 3))
BAD = {
    "label too large": ((ROWS, np.array([0, 1, 2, 3])), ValueError, "a label 3, but the model has 3 outputs"),
    "label below zero": ((ROWS, np.array([0, 1, 2, -1])), ValueError, "image 3 of batch 0 has the label -1"),
    "label not whole": ((ROWS, np.array([0, 1, 2, 0.5])), ValueError, "image 3 of batch 0 has the label 0.5"),
    "mixed up": ((ROWS, np.array([[0, 1.0, 0]] * 3 + [[0.5, 0.5, 0]])), ValueError, "Row 3 .* not one-hot"),
    "two ones": ((ROWS, np.array([[0, 1, 1]] * 4)), ValueError, "Row 0 .* not one-hot"),
    "lengths": ((ROWS, np.array([0])), ValueError, "must be of one length"),
    "lengths of a batch": ([(ROWS, np.array([0]))], ValueError, "Batch 0 of the data has 4 images, but 1 labels"),
    "not finite": ((ROWS * np.nan, np.array([0, 1, 2, 0])), ValueError, "image 0 of a batch is not finite"),
    "nothing": ([], ValueError, "no images"),
    "no pairs": ([ROWS], TypeError, r"must be \(images, labels\)"),
    "a path": ("folder", ValueError, "needs a model of keras_vit, .* and so do image files"),
    "three": ((ROWS, ROWS, ROWS), TypeError, "Arrays must be given as"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data(case):
    data, error, message = BAD[case]
    with pytest.raises(error, match=message):
        evaluate(same, data, progress=False)


def test_bad_arguments(model):
    data = IMAGES, LABELS
    for options, message in (
        ({"top": 0}, "top must be"),
        ({"top": ()}, "top must be"),
        ({"outputs": "tanh"}, "outputs must be one of"),
        ({"batch_size": 0}, "batch_size must be"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate(model, data, progress=False, **options)
    with pytest.raises(ValueError, match="no head"):
        evaluate(VisionTransformer(CONFIG.replace(classes=None)), data, progress=False)
    with pytest.raises(TypeError, match="model must be"):
        evaluate(3, data, progress=False)


def test_the_bar_is_on_standard_error(capsys):
    assert len(list(batches((IMAGES, LABELS), 20, title="looking"))) == 3
    assert capsys.readouterr().out == ""
