"""What evaluation refuses: a table of calls, errors and words."""

import functools
import os

import numpy as np
import pytest

from keras_vit import data, evaluation
from tests.small_models import small_vit

pytestmark = pytest.mark.once
Image = pytest.importorskip("PIL.Image")

ROWS, LABELS, EYE = np.zeros((4, 3)), np.arange(4) % 3, np.eye(3)
X, Y = np.ones((8, 3)), np.arange(8) % 2
MANY, SEVERAL = np.zeros((6, 5)), np.eye(5)[[0, 1, 2, 3, 4, 0]]
model = functools.cache(small_vit)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("photos")
    os.makedirs("empty")
    Image.new("RGB", (8, 8)).save("photos/z.png")


def same(scores):
    return scores


def evaluate(**changes):
    return evaluation.evaluate(**{"model": same, "data": (ROWS, LABELS), "progress": False} | changes)


def few_shot(**changes):
    return evaluation.few_shot(None, **{"train": (X, Y), "test": (X, Y), "shots": 1, "progress": False} | changes)


def embed(**changes):
    options = {"model": model(), "images": "photos", "output": "x.npz", "progress": False} | changes
    return evaluation.embed(**options)


def fit(x, y):
    return evaluation.LeastSquaresProbe.fit(x, y, 2)


def stream():
    return data.open_data((ROWS, LABELS), image_size=None, batch_size=2, split="test")


def similar(origin, **options):
    with open("photos/x.npz", "wb") as file:
        np.savez(file, settings="{}", origin=origin.decode(), names=["z.png"], features=np.ones((1, 3)))
    return evaluation.find_similar("photos/z.png", "photos/x.npz", **options)


# A call, words of the error, and its type where that is not ValueError.
REFUSED = [
    (lambda: evaluate(data=(ROWS, np.arange(4))), "from 0 to 2 for a model with 3 outputs, but one is 3"),
    (lambda: evaluate(data=(ROWS, [0, 1, 2, -1])), "image 3 of batch 0 has the label -1"),
    (lambda: evaluate(data=(ROWS, [[0, 1.0, 0]] * 3 + [[0.5, 0.5, 0]])), "Row 3 .* not one-hot"),
    (lambda: evaluate(data=[(ROWS, [0])]), "batch 0 needs a label for each image, but has 4 images, 1 labels"),
    (lambda: evaluate(data=(ROWS * np.nan, LABELS)), "image 0 of a batch is not finite"),
    (lambda: evaluate(data=[ROWS]), r"must yield \(images, labels\)"),
    (lambda: evaluate(preprocess=True), "preprocess=True and image files need a model of keras_vit"),
    (lambda: evaluate(model=model(), data="x", preprocess=False), "preprocess=False needs preprocessed images"),
    (lambda: evaluate(class_names=["a", "b"], data=(ROWS, LABELS % 2)), "2 classes, but the model has 3 outputs"),
    (lambda: evaluate(class_names=["a", "b"]), "has the label 2, but .* from 0 to 1, for 2 classes"),
    (lambda: evaluate(top=0), "top must be"),
    (lambda: evaluate(outputs="tanh"), "outputs must be one of"),
    (lambda: evaluate(model=small_vit(classes=None)), "no head"),
    (lambda: evaluate(model=3), "model must be", TypeError),
    (lambda: evaluate(threshold=5), "threshold must be a number between 0 and 1"),
    (lambda: evaluate(views="flip"), "views='flip' needs images"),
    (lambda: evaluate(data=(MANY, SEVERAL[:, :4]), target="multilabel", outputs="logits"), "5 columns.* have 4"),
    (lambda: few_shot(shots=50), "50 shots need 50 training images of each class"),
    (lambda: few_shot(l2=0.0), "l2 must be a number above 0"),
    (lambda: few_shot(shots=4, l2=[1.0, 2.0]), "leave no training images to choose"),
    (lambda: few_shot(train=(X, Y * 0)), "only one class"),
    (lambda: few_shot(test=(X[:, :2], Y)), "equally long features, but have 3 and 2"),
    (lambda: fit(X * np.nan, Y), "features must be finite"),
    (lambda: fit(X, Y).scores(X[:, :1], [1.0]), r"features must be \(examples, 3\), but \(8, 1\)"),
    (lambda: [*evaluation.batches(stream(), target="number")], "the data has the target 'class'"),
    (
        lambda: evaluation.extract_features(small_vit(classes=None, pooling="none"), (np.zeros((1, 8, 8, 3)), [0])),
        "one vector for each image.*pooling",
    ),
    (lambda: evaluation.search(EYE, EYE, 4), "k must be at most the number of features, 3"),
    (lambda: evaluation.search(EYE, np.ones((2, 4)), 1), r"queries must be numbers \(rows, 3\)"),
    (lambda: evaluation.search(np.zeros((2, 3)), EYE, 1), "Row 0 of features has no direction"),
    (lambda: evaluation.knn_accuracy(None, (X, Y), (X, Y), k="2", progress=False), "k must be a whole", TypeError),
    (lambda: evaluation.knn(EYE, LABELS[:2], EYE, 1), "labels must be 3 integers"),
    (lambda: evaluation.knn(EYE, LABELS[:3], EYE, 1, classes=1), "classes must be"),
    (lambda: evaluation.near_duplicates(EYE, 95), "threshold must be"),
    (lambda: evaluation.confusion_shares(np.ones((2, 3))), "confusion must be counts"),
    (lambda: evaluation.most_confused(np.ones((2, 2)), -1), "count must be a whole number"),
    (lambda: evaluation.draw_confusion(np.eye(3), class_names=["ant", "bee"]), "3 classes, but has 2 names"),
    (lambda: evaluation.write_report(evaluate(), "page.txt"), "path must end with .html"),
    (lambda: evaluation.find_similar(None, "x.npz"), "Exactly one of image and query"),
    (lambda: similar(b'{"images": null}', model=same), "model must be .* but function was given", TypeError),
    (lambda: similar(b"[3]"), "damaged, or was not written by evaluation.embed"),
    (lambda: embed(overwrite="no"), "overwrite must be True or False", TypeError),
    (lambda: embed(output="x.csv"), "end with .npz"),
    (lambda: embed(output="no/x.npz"), "no folder .*no: check the path", FileNotFoundError),
    (lambda: embed(features="block_2"), "features must be a list of names"),
    (lambda: embed(images="empty"), "images must not be empty, but .*empty has no images"),
    (lambda: embed(images=["photos/z.png"] * 2), "z.png is given twice"),
]
REFUSED.append((lambda: evaluation.f1_scores(MANY + 0.5, SEVERAL), "chosen must be 0 or 1"))
for function in (evaluation.average_precision, evaluation.f1_scores, evaluation.best_thresholds):
    REFUSED += [
        (functools.partial(function, MANY, SEVERAL[:5]), "must both be"),
        (functools.partial(function, MANY, SEVERAL + 1), "labels must be 0 or 1"),
        (functools.partial(function, MANY * np.nan, SEVERAL), "must be finite"),
    ]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[1])
def test_what_makes_no_sense_is_refused(case, tmp_path):
    call, words, *error = case
    with pytest.raises(*error or [ValueError], match=words):
        call()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "photos"]
