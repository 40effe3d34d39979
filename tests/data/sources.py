"""The same labelled images in every form that the package takes."""

import io
import types
from pathlib import Path

import keras
import numpy as np

from tests.pictures import save

NAMES = ["blue", "green", "red"]
SIZE = (8, 8)
OPTIONS = {"image_size": SIZE, "batch_size": 4}


def twelve_images():
    """Images `(12, 8, 8, 3)` of noise, uint8, and their labels: three classes in turn."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (12, *SIZE, 3), dtype="uint8"), np.arange(12) % 3


def plain_colours(count, seed=0):
    """Images `(count, 8, 8, 3)` of one colour each, uint8, and labels: they stay the same at any size."""
    labels = np.arange(count) % 3
    pixels = np.random.default_rng(seed).integers(0, 100, (count, 1, 1, 3))
    pixels[np.arange(count), :, :, labels] += 120
    return np.repeat(np.repeat(pixels, 8, 1), 8, 2).astype("uint8"), labels


def batches(data, size=4):
    images, labels = data
    return [(images[i : i + size], labels[i : i + size]) for i in range(0, len(images), size)]


class Iterable:
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class Sequence(keras.utils.PyDataset):
    """The batches as Keras has them."""

    def __init__(self, data):
        super().__init__()
        self.batches = batches(data)

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


class FakeTfds(types.ModuleType):
    """What `open_tfds` uses of tensorflow-datasets, over examples in memory."""

    def __init__(self, examples, file_format, features=("image", "label"), splits=("train", "validation"), names=None):
        super().__init__("tensorflow_datasets")
        label = types.SimpleNamespace(num_classes=3, names=names or ["ant", "bee", "cow"])
        info = types.SimpleNamespace(
            features=dict.fromkeys(features, label),
            splits={split: types.SimpleNamespace(num_bytes=100) for split in splits},
            file_format=types.SimpleNamespace(value=file_format),
        )
        source = {"as_data_source": lambda **options: examples, "data_dir": Path(__file__).parent}
        self.built = types.SimpleNamespace(info=info, download_and_prepare=lambda: None, **source)
        self.__spec__ = self.decode = types.SimpleNamespace(SkipDecoding=lambda: None)

    def builder(self, name):
        return self.built


def encoded(data):
    """Examples as tensorflow-datasets stores them: PNG files."""
    from PIL import Image

    examples = []
    for pixels, label in zip(*data, strict=True):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "png")
        examples.append({"image": stream.getvalue(), "label": np.int64(label)})
    return examples


def folder(data, tmp_path, monkeypatch):
    for split in ("train", "test"):
        for number, (pixels, label) in enumerate(zip(*data, strict=True)):
            save(tmp_path / split / NAMES[label] / f"{number:03}.png", pixels)
    return tmp_path


def ragged(data, tmp_path, monkeypatch):
    return [image[: 4 + i % 3] for i, image in enumerate(data[0])], data[1]


def tf_data(data, tmp_path, monkeypatch):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(data).batch(4)


def torch_loader(data, tmp_path, monkeypatch):
    import torch

    tensors = [torch.from_numpy(x) for x in data]
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*tensors), batch_size=4)


def tfds(data, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tensorflow_datasets", FakeTfds(encoded(data), "array_record", names=NAMES))
    return "tfds:colours"


# From a name to a function that makes the data, and the framework that it needs.
KINDS = {
    "folder": (folder, None),
    "arrays": (lambda data, *_: data, None),
    "one-hot": (lambda data, *_: (data[0], np.eye(3)[data[1]]), None),
    "ragged": (ragged, None),
    "list": (lambda data, *_: batches(data), None),
    "tf.data": (tf_data, "tensorflow"),
    "torch": (torch_loader, "torch"),
    "PyDataset": (lambda data, *_: Sequence(data), None),
    "tfds": (tfds, None),
    "dict": (lambda data, *_: {"train": data, "test": data}, None),
}
