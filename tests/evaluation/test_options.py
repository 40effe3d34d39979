"""Every option of `evaluate` with every kind of data: it changes the result, or it is refused."""

import functools
import inspect
import json

import numpy as np
import pytest

from keras_vit import data, evaluation
from tests.pictures import save
from tests.small_models import small_vit

pytestmark = pytest.mark.once

NAMES = ("a", "b", "c")
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 8, 8, 3)).astype("uint8")
LABELS = np.array([0, 1, 2, 0, 1, 2])
TARGETS = {"class": LABELS, "multilabel": np.eye(3)[LABELS], "number": LABELS / 2.0}
# A value of each option that changes what there is to see; None where nothing does in a single process.
VALUES = {
    **{"top": (2,), "outputs": "sigmoid", "preprocess": False, "batch_size": None, "class_names": ["c", "b", "a"]},
    **{"target": "multilabel", "threshold": 0.9, "views": "flip", "mistakes": 2, "on_bad_image": "skip"},
    **{"distribution": None, "progress": None},
}
# Where that changes nothing by right, another value or None for none: names decide, whatever their order; good
# pictures are all read; what is said is so already.
OTHERS = {("folder", "class_names"): ["a", "b"], ("table", "class_names"): None, ("several", "target"): "number"}
OTHERS[("several", "outputs")] = "logits"
OTHERS[("prepared", "preprocess")] = None
for kind in ("arrays", "one-hot", "several", "numbers", "folder", "table", "batches"):
    OTHERS[(kind, "on_bad_image")] = None
DATA = ("arrays", "one-hot", "several", "numbers", "folder", "table", "stream", "batches", "prepared")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder with a class in each folder."""
    folder = tmp_path_factory.mktemp("photos")
    for number, (pixels, label) in enumerate(zip(PIXELS, LABELS, strict=True)):
        save(folder / NAMES[label] / f"{number}.png", pixels)
    return folder


@functools.cache
def model_for(target):
    if target == "number":
        return small_vit(classes=1)
    activation = "sigmoid" if target == "multilabel" else "softmax"
    return small_vit(class_names=NAMES, classifier_activation=activation)


def source(kind, photos):
    """The target and what `evaluate` takes, with its own options."""
    files = sorted(map(str, photos.rglob("*.png")))
    if kind in ("several", "numbers"):
        target = {"several": "multilabel", "numbers": "number"}[kind]
        return target, (PIXELS, TARGETS[target]), {"target": target, "preprocess": True}
    if kind in ("arrays", "one-hot"):
        return "class", (PIXELS, LABELS if kind == "arrays" else np.eye(3)[LABELS]), {"preprocess": True}
    if kind == "prepared":  # as the model takes them
        return "class", (PIXELS / np.float32(127.5) - 1, LABELS), {}
    if kind == "batches":
        return "class", [(PIXELS[:3], LABELS[:3]), (PIXELS[3:], LABELS[3:])], {"preprocess": True}
    if kind == "table":
        return "class", data.open_table({"file": files, "label": [file.split("/")[-2] for file in files]}), {}
    if kind == "stream":
        return "class", data.open_data(photos, image_size=8, batch_size=4, split="test"), {}
    return "class", photos, {}


def outcome(kind, photos, **changes):
    target, given, options = source(kind, photos)
    result = evaluation.evaluate(model_for(target), given, progress=False, **options | changes)
    facts = {name: value for name, value in result.to_dict().items() if name not in ("seconds", "images_per_second")}
    return json.dumps(facts, default=str) + str(getattr(result, "mistakes", ""))


def test_every_option_has_a_value():
    assert set(VALUES) == {*inspect.signature(evaluation.evaluate).parameters} - {"model", "data"}


plain = functools.cache(outcome)
PAIRS = [(kind, option) for kind in DATA for option in VALUES if OTHERS.get((kind, option), VALUES[option]) is not None]


@pytest.mark.parametrize(("kind", "option"), PAIRS)
def test_evaluate(kind, option, photos):
    value = OTHERS.get((kind, option), VALUES[option])
    try:
        found = outcome(kind, photos, **{option: value})
    except (ValueError, TypeError) as error:
        assert option in str(error), f"{kind}, {option}: the error does not name it: {error}"
        return
    assert found != plain(kind, photos), f"{kind}: {option}={value!r} is dropped in silence"
