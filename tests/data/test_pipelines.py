"""Arrays, pipelines and tensorflow-datasets: the same stream, the same checks."""

import functools
import itertools
import sys

import keras
import numpy as np
import pytest

from keras_vit.data import Augmentation, open_data, open_masks
from tests.data import sources
from tests.data.sources import OPTIONS, SIZE, Iterable, batches, twelve_images

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def data():
    return twelve_images()


def test_labels_of_any_form(data):
    for labels in (data[1], data[1].astype(float), data[1][:, None], np.eye(3)[data[1]]):
        with open_data((data[0], labels), split="test", **OPTIONS) as stream:
            np.testing.assert_array_equal(np.concatenate([labels for _, labels in stream]), np.eye(3)[data[1]])


@pytest.mark.parametrize("target", ["multilabel", "number"])
def test_streams_of_other_targets(data, target):
    labels = np.eye(3)[data[1]] if target == "multilabel" else data[1] * 1.5
    rows = labels.reshape(12, -1).astype("float32")
    for source in ((data[0], labels), Iterable(batches((data[0], labels)))):
        for split in ("train", "test"):
            with open_data(source, split=split, shuffle=False, target=target, **OPTIONS) as stream:
                assert (stream.target, stream.classes) == (target, rows.shape[1])
                np.testing.assert_array_equal(np.concatenate([labels for _, labels in stream]), rows)


def test_what_is_added_to_pipelines(data):
    augmentation = Augmentation(mixup=0.5, randaugment=(1, 15), cutmix=1.0, erasing=0.5)
    with open_data(Iterable(batches(data)), classes=3, augmentation=augmentation, **OPTIONS) as stream:
        first = [stream.batch(step) for step in range(2)]
        for a, b in zip(stream.batch(1), first[1], strict=True):  # starts again
            np.testing.assert_array_equal(a, b)
    with open_data(Iterable(batches(data)), classes=3, augmentation=Augmentation(), **OPTIONS) as plain:
        assert not np.array_equal(plain.batch(1)[0], first[1][0])
    assert np.count_nonzero(first[0][1][1]) == 2


def changed(data, images=lambda x: x, labels=lambda y: y):
    return [(images(x), labels(y)) if i == 1 else (x, y) for i, (x, y) in enumerate(batches(data))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": lambda x: x / 255}, "batch 1 must hold .* reach from .* scaled already"),
        ({"images": lambda x: np.moveaxis(x, -1, 1)}, "channels seem to come first"),
        ({"images": lambda x: x[:, :5]}, "images of batch 1 are 5 x 8, but the model takes 8 x 8"),
        ({"images": lambda x: x[:0]}, "batch 1.* have no pixels"),
        ({"images": lambda x: x * np.float32(np.nan)}, "image 0 of batch 1 holds NaN"),
        ({"labels": lambda y: y + 7}, "image 0 of batch 1 has the label 8, .*0 to 2"),
        ({"labels": lambda y: y[:2]}, "batch 1 needs a label for each image, but has 4 images, 2 labels"),
    ],
)
def test_bad_batches(data, change, message):
    bad = Iterable(changed(data, **change))
    with open_data(bad, classes=3, **OPTIONS) as stream:
        stream.batch(0)
        with pytest.raises(ValueError, match=message):
            stream.batch(1)
    with open_data(bad, classes=3, on_bad_image="skip", prefetch=0, **OPTIONS) as stream:
        stream.batch(0)
        with pytest.warns(UserWarning, match="A bad image is left out. batch 1"):
            images, _ = stream.batch(1)
        np.testing.assert_array_equal(images, batches(data)[2][0])
        for step in range(2, 6):
            stream.batch(step)
        assert [b.path for b in stream.bad] == ["batch 1"]


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("form", ["examples", "batches of one", "ragged", "masks", "array"])
def test_one_dark_picture_is_no_error(data, dtype, form):
    """Of all zeros and ones; but pictures that are all so are scaled already, unless they are bytes."""
    masks, opened = np.zeros((12, *SIZE), "uint8"), []
    for images in (np.where(np.arange(12)[:, None, None, None] == 4, data[0] % 2, data[0] // 2 + 9), data[0] % 2):
        images = images.astype(dtype)
        pairs = list(zip(images, data[1], strict=True))
        source = {
            "examples": pairs,
            "batches of one": [(image[None], label[None]) for image, label in pairs],
            "ragged": ([*images[:-1], images[-1, :5]], data[1]),
            "masks": open_masks((images, masks), classes=2),
            "array": (images, data[1]),
        }[form]
        options = {} if form in ("masks", "ragged", "array") else {"classes": 3}
        opened.append(functools.partial(open_data, source, split="test", **options, **OPTIONS))
    assert len([*opened[0]()]) in (3, 12)
    if dtype == "uint8":
        list(opened[1]())
    else:
        with pytest.raises(ValueError, match="scaled already"):
            list(opened[1]())


def test_iterators_only_go_forward(data):
    with open_data(iter(batches(data)), classes=3, **OPTIONS) as stream:
        np.testing.assert_array_equal(stream.batch(1)[0], batches(data)[1][0])
        with pytest.raises(ValueError, match="can be read only once"):
            stream.batch(0)


class Endless(sources.Sequence):
    num_batches = None

    def __getitem__(self, index):
        return self.batches[index % 3]


class Repeated(Iterable):
    """As a data set of grain says that it has no end."""

    def __iter__(self):
        return itertools.cycle(self.items)

    def __len__(self):
        return sys.maxsize


def tf_data(pairs):
    tensors = [np.concatenate(part) for part in zip(*pairs, strict=True)]
    return pytest.importorskip("tensorflow").data.Dataset.from_tensor_slices(tuple(tensors)).batch(4).repeat()


ENDLESS = {"Keras": None, "cycle": itertools.cycle, "repeat": lambda x: itertools.repeat(x[0]), "grain": Repeated}


@pytest.mark.parametrize("form", [*ENDLESS, "tf.data"])
def test_pipelines_without_end_are_for_training(data, form):
    source = {**ENDLESS, "Keras": lambda _: Endless(data), "tf.data": tf_data}[form](batches(data))
    with open_data(source, classes=3, **OPTIONS) as stream:
        np.testing.assert_array_equal([*map(len, stream.batch(4))], 4)
        assert stream.steps_per_epoch is None
    for size in (SIZE, None):
        with pytest.raises(ValueError, match="The pipeline never ends"):
            open_data(source, split="test", classes=3, **OPTIONS | {"image_size": size})


def test_pipelines_that_repeat_have_an_end(data):
    with open_data(itertools.repeat(batches(data)[0], 3), split="test", classes=3, **OPTIONS) as stream:
        assert len(list(stream)) == 3


def test_an_index_error_of_a_pipeline_is_not_its_end(data):
    class Broken(sources.Sequence):
        def __getitem__(self, index):
            return self.batches[5 * index]

    with open_data(Broken(data), classes=3, split="test", **OPTIONS) as stream:
        with pytest.raises(IndexError, match="list index out of range"):
            list(stream)


def linear():
    keras.utils.set_random_seed(0)
    layers = [keras.Input((*SIZE, 3)), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    return model


@pytest.mark.each
def test_keras_takes_streams(data):
    """Each epoch of `fit` goes on with the batches after the last one, also where a run is resumed."""
    by_hand, fitted, resumed = (linear() for _ in range(3))
    with open_data(data, augmentation=Augmentation(mixup=0.5), **OPTIONS) as stream:
        for step in range(9):
            by_hand.train_on_batch(*stream.batch(step))
        fitted.fit(stream, epochs=3, shuffle=False, verbose=0)
        assert stream.start == 9 == 3 * stream.num_batches
        stream.start = 0
        resumed.fit(stream, epochs=1, shuffle=False, verbose=0)
        rest = stream.map(lambda step, *batch: batch)
        resumed.fit(rest, initial_epoch=1, epochs=3, shuffle=False, verbose=0)
        with pytest.raises(ValueError, match="workers= or processes= to open_data"):
            stream.workers = 2
        with pytest.raises(ValueError, match="True workers"):
            stream.use_multiprocessing = True
    outputs = by_hand.predict(data[0].astype("float32"), verbose=0)
    for model in (fitted, resumed):
        with open_data(data, split="test", **OPTIONS | {"batch_size": 5}) as tests:
            # Another order of the same sums, in float32.
            np.testing.assert_allclose(model.predict(tests, verbose=0), outputs, rtol=1e-4, atol=1e-5)
            loss = np.mean((outputs - np.eye(3)[data[1]]) ** 2)
            np.testing.assert_allclose(model.evaluate(tests, verbose=0), loss, rtol=1e-4)


# tensorflow-datasets


@pytest.fixture
def tfds(data, monkeypatch):
    pytest.importorskip("PIL.Image")

    def install(secret=False, **options):
        examples = [example | ({"label": -1} if secret else {}) for example in sources.encoded(data)]
        fake = sources.FakeTfds(examples, **{"file_format": "array_record"} | options)
        monkeypatch.setitem(sys.modules, "tensorflow_datasets", fake)

    install()
    return install


def test_tfds(data, tfds):
    with open_data("tfds:animals", split="test", **OPTIONS) as stream:
        assert stream.class_names == ["ant", "bee", "cow"] and stream.examples == 12
        np.testing.assert_array_equal(stream.batch(1)[0], data[0][4:8])
    with open_data("tfds:animals", augmentation=Augmentation(), **OPTIONS) as stream:
        assert stream.batch(9)[1].shape == (4, 3)


def test_class_names_give_the_order_of_tfds(data, tfds):
    with open_data("tfds:animals", split="test", class_names=["cow", "ant", "elk", "bee"], **OPTIONS) as stream:
        assert stream.class_names == ["cow", "ant", "elk", "bee"]
        assert stream.batch(0)[1].argmax(axis=1).tolist() == [1, 3, 0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": ("text",)}, r"must have 'image' and 'label'.* has \['text'\]"),
        ({"splits": ("train",)}, "no split test or validation"),
        ({"channels": 1}, "channels must be 3 for tfds:animals, but 1"),
        ({"file_format": "tfrecord"}, 'file_format="array_record".*download_and_prepare.*tfds.load'),
        ({"secret": True}, r"tfds:animals/validation\[0\] has the label -1"),
    ],
)
def test_tfds_refusals(tfds, options, message):
    channels = options.pop("channels", 3)
    tfds(**options)
    with pytest.raises(ValueError, match=message):
        open_data("tfds:animals", split="test", channels=channels, **OPTIONS)


def test_most_classes_without_an_image(data):
    labels = np.where(np.arange(12) == 7, 1000, data[1])
    with pytest.warns(UserWarning, match=r"997 of 1001 classes have no picture.*1000, of images\[7\]"):
        open_data((data[0], labels), **OPTIONS).close()
    open_data((data[0], labels), classes=1001, **OPTIONS).close()  # somebody knows
    open_data((data[0], labels), split="test", **OPTIONS).close()  # a few images of many classes


# What a model takes, of any shape


@pytest.mark.parametrize("kind", ["arrays", "list", "generator", "examples"])
def test_inputs_of_any_shape_are_as_they_are(kind):
    features, labels = np.random.default_rng(0).normal(size=(7, 5)), np.arange(7) % 3
    pairs = [(features[i : i + 3], labels[i : i + 3]) for i in range(0, 7, 3)]
    forms = {"arrays": (features, labels), "list": pairs, "generator": (pair for pair in pairs)}
    source = forms[kind] if kind in forms else list(zip(features, labels, strict=True))
    with open_data(source, image_size=None, batch_size=3, split="test") as stream:
        read = list(stream)
        assert [len(x) for x, _ in read] == [3, 3, 1] and read[0][0].dtype == features.dtype
        assert stream.steps_per_epoch == (None if kind == "generator" else 3)
    for number, part in enumerate((features, labels)):
        np.testing.assert_array_equal(np.concatenate([batch[number] for batch in read]), part)
    with open_data((features, np.eye(3)[labels]), image_size=None, batch_size=7, split="test", shard=(1, 2)) as stream:
        np.testing.assert_array_equal(stream.batch(0)[1], np.eye(3)[labels[3:]])
