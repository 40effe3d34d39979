"""Whatever reads labelled images takes the same data, and it is the same in whatever form it comes."""

import functools

import numpy as np
import pytest

from keras_vit import VisionTransformer, evaluation, training
from keras_vit.data import open_data, open_table
from keras_vit.evaluation.accuracy import open_batches
from keras_vit.export.served_model import Signature, calibration_images
from tests.data.sources import KINDS, NAMES, plain_colours
from tests.pictures import save
from tests.small_models import model_of, small_vit_config

pytestmark = pytest.mark.once

pytest.importorskip("PIL.Image")

CONFIG = small_vit_config(class_names=tuple(NAMES))
# One batch of all images, without anything random: their order does not matter to the step.
RECIPE = training.recipe("finetune/cifar10").replace(
    steps=1, batch_size=12, warmup_steps=0, image_size=8, learning_rate=0.1,
    augmentation=training.Augmentation(crop="resize", flip=False),
)  # fmt: skip
DATA = plain_colours(12)[0], (np.arange(12) % 3)[::-1].copy()  # the last image is blue, and so on


# Most kinds are NumPy arrays before any backend sees them; Keras and the frameworks have kinds of their own.
ON_EACH = ("arrays", "PyDataset")


@pytest.fixture(
    params=[
        pytest.param(kind, marks=[] if framework or kind in ON_EACH else pytest.mark.once)
        for kind, (_, framework) in KINDS.items()
    ]
)
def source(request, backend, tmp_path, monkeypatch):
    make, framework = KINDS[request.param]
    if framework not in (None, backend):
        pytest.skip(f"about {framework}")
    return make(DATA, tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def model():
    return model_of(CONFIG)


@functools.cache
def trained_on_arrays(count):
    """The loss and the weights of a model after one step with the first images, which other kinds hold as well."""
    data = tuple(x[:count] for x in DATA)
    done = training.finetune(model_of(CONFIG), data, RECIPE.replace(batch_size=count), verbose=False)
    return done.log[-1]["loss"], done.model.get_weights()


@functools.cache
def confusion_of(model):
    scores = model.predict(model.preprocess(DATA[0]), verbose=0)
    confusion = np.zeros((3, 3), "int64")
    np.add.at(confusion, (DATA[1], scores.argmax(1)), 1)
    return confusion


@pytest.mark.each
def test_evaluate(source, model):
    result = evaluation.evaluate(model, source, preprocess=True, batch_size=5, progress=False)
    np.testing.assert_array_equal(result.confusion, confusion_of(model))
    assert result.class_names == tuple(NAMES)


# A pipeline keeps batches of its own size: here 4 of the 12 images.
@pytest.mark.once
@pytest.mark.parametrize("source", ["arrays", "folder", "list", "tfds"], indirect=True)
@pytest.mark.filterwarnings("ignore:The pipeline yields batches of 4, not of batch_size=12:UserWarning")
def test_finetune(source, request):
    pipeline = request.node.callspec.params["source"] == "list"
    loss, weights = trained_on_arrays(4 if pipeline else len(DATA[0]))
    done = training.finetune(model_of(CONFIG), source, RECIPE, classes=3, verbose=False)
    assert done.log[-1]["loss"] == pytest.approx(loss, rel=1e-5)
    for weight, same in zip(done.model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(weight, same, rtol=0, atol=1e-5)  # sums in another order


def test_calibration(source, model):
    images = calibration_images(source, model.config, Signature.of(model, None, uint8=True))
    assert images.dtype == "uint8" and images.shape[1:] == (8, 8, 3)
    assert {bytes(image) for image in images} == {bytes(image) for image in DATA[0]}


def test_an_opened_stream(model):
    for split in ("train", "test"):
        with open_data(DATA, image_size=8, batch_size=5, split=split, shuffle=False) as stream:
            result = evaluation.evaluate(model, stream, progress=False)
        np.testing.assert_array_equal(result.confusion, confusion_of(model))
    with open_data(DATA, image_size=8, batch_size=5) as stream:
        with pytest.raises(TypeError, match="Training data has no end"):
            evaluation.evaluate(model, stream, progress=False)


@pytest.fixture
def root(tmp_path, monkeypatch):
    return KINDS["folder"][0](DATA, tmp_path, monkeypatch) / "test"


@pytest.mark.parametrize("names", [("red", "green", "blue"), ("grey", "blue", "red", "black", "green")])
def test_names_decide_which_output_a_folder_is(root, names):
    """The model takes everything for its first class, and knows the names in another order, and other names."""
    model = VisionTransformer(CONFIG.replace(classes=len(names), class_names=names))
    model.get_layer("head").kernel.assign(np.zeros((8, len(names))))
    model.get_layer("head").bias.assign(np.eye(len(names))[names.index("red")])
    result = evaluation.evaluate(model, root, progress=False)
    assert result.class_names == names and result.accuracy == 4 / 12
    assert result.correct_per_class[names.index("red")] == 4
    assert [result.images_per_class[names.index(name)] for name in NAMES] == [4, 4, 4]


@pytest.mark.parametrize("form", ["splits", "classes", "table"])
def test_numbers_as_names_are_matched_by_name(tmp_path, form):
    """Their order in a folder is ambiguous, which does not matter where the model has it."""
    names = tuple(map(str, range(12)))
    for i, pixels in enumerate(DATA[0]):
        save(tmp_path / ("train" if form == "splits" else "") / str(i) / "0.png", pixels)
        save(tmp_path / ("test" if form == "splits" else "") / str(i) / "0.png", pixels)
    model = VisionTransformer(CONFIG.replace(classes=12, class_names=names))
    model.get_layer("head").kernel.assign(np.zeros((8, 12)))
    model.get_layer("head").bias.assign(np.eye(12)[2])
    rows = {"file": [tmp_path / name / "0.png" for name in names], "label": names}
    result = evaluation.evaluate(model, open_table(rows) if form == "table" else tmp_path, progress=False)
    assert result.class_names == names and result.correct_per_class.tolist() == np.eye(12)[2].tolist()
    if form != "table":
        with pytest.raises(ValueError, match="ambiguous order"):
            evaluation.evaluate(VisionTransformer(CONFIG.replace(classes=12, class_names=None)), tmp_path)


def test_names_that_do_not_match(root, model, tmp_path):
    for path in (root / "green").iterdir():
        path.unlink()
    (root / "green").rmdir()
    result = evaluation.evaluate(model, root, progress=False)  # some of the classes
    assert result.examples == 8 and result.images_per_class.tolist() == [4, 0, 4]
    (root / "red").rename(root / "dog")
    with pytest.raises(ValueError, match="the model does not have: 'dog'. The model's 3 classes are 'blue'"):
        evaluation.evaluate(model, root, progress=False)
    with pytest.raises(ValueError, match="test has classes that the model does not have: 'dog'"):
        evaluation.few_shot(model, {"train": tmp_path / "train"}, root, shots=[1], progress=False)
    with pytest.raises(ValueError, match="has no test/ folder or rows"):
        evaluation.few_shot(model, root, root, shots=[1], progress=False)
    with pytest.raises(ValueError, match="images reach 2.., so they are not normalised.*preprocess=True"):
        evaluation.evaluate(model, DATA, progress=False)


def test_names_that_are_given_known_or_neither(root, model):
    data = DATA[0], 2 - DATA[1]
    result = evaluation.evaluate(model, data, class_names=NAMES[::-1], preprocess=True, progress=False)
    np.testing.assert_array_equal(result.confusion, confusion_of(model))
    nameless = VisionTransformer(CONFIG.replace(class_names=None))
    assert evaluation.evaluate(nameless, root, progress=False).class_names == tuple(NAMES)
    for name, wnid in zip(NAMES, ("n01440764", "n02099601", "n15075141"), strict=True):  # as WordNet and ImageNet do
        (root / name).rename(root / wnid)
    nameless = VisionTransformer(CONFIG.replace(classes=1000, class_names=None))
    result = evaluation.evaluate(nameless, root, progress=False)
    assert np.flatnonzero(result.images_per_class).tolist() == [0, 207, 999]
    assert result.class_names[207] == "golden retriever"


def test_data_is_brought_to_size_as_the_family_does_it(tmp_path):
    """In evaluation, calibration, processes that read files, and where `finetune` evaluates."""
    pipeline = {"resize": "shortest", "crop_ratio": 0.8, "filter": "bicubic", "pixel_mean": (0.1, 0.5, 0.6)}
    model = VisionTransformer(CONFIG.replace(classes=2, class_names=None, pixel_std=(0.5, 0.2, 0.3), **pipeline))
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (*size, 3), dtype="uint8") for size in [(20, 31), (44, 23), (16, 16), (64, 20)] * 2]
    labels = np.arange(8) // 4
    wanted = np.concatenate([model.preprocess(image) for image in images])
    with open_batches(model, (images, labels), "test", classes=2, title=None) as (batches, *_):
        np.testing.assert_array_equal(np.concatenate([inputs for inputs, _ in batches]), wanted)
    pixels = calibration_images(images, model.config, Signature.of(model, None, False))
    expected = np.concatenate([model.config.pipeline.resized(image) for image in images])
    np.testing.assert_array_equal(pixels, np.rint(expected).astype("uint8"), strict=True)
    for number, image in enumerate(images):
        save(tmp_path / "test" / f"class{labels[number]}" / f"{number:02}.png", image)
    options = {"image_size": 8, "batch_size": 8, "split": "test", "resize": model.config.pipeline}
    with open_data(tmp_path, processes=True, workers=1, **options) as stream:  # the pipeline travels as JSON
        np.testing.assert_array_equal(stream.batch(0)[0], expected)
    recipe = training.Recipe(steps=1, batch_size=4, learning_rate=0.1, image_size=8)
    done = training.finetune(model, {"train": (images, labels), "test": (images, labels)}, recipe, verbose=False)
    loss = evaluation.evaluate(done.model, (wanted, labels), progress=False).loss
    assert done.log[-1]["val_loss"] == pytest.approx(loss, rel=1e-5)
