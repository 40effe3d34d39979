"""Data is brought to size as the family of the model does it, by everything that reads data for a model."""

import numpy as np
import pytest

import keras_vit
from keras_vit.data import open_data
from keras_vit.evaluation.batches import open_batches
from keras_vit.export.images import calibration_images
from keras_vit.export.served_model import Signature

pytestmark = pytest.mark.once

SIZES = [(20, 31), (44, 23), (16, 16), (64, 20)] * 3


@pytest.fixture(scope="module")
def model():
    config = keras_vit.ViTConfig(
        image_size=16,
        patch_size=8,
        width=8,
        depth=1,
        heads=1,
        mlp_width=8,
        classes=2,
        resize="shortest",
        crop_ratio=0.8,
        filter="bicubic",
        pixel_mean=(0.1, 0.5, 0.6),
        pixel_std=(0.5, 0.2, 0.3),
    )
    return keras_vit.VisionTransformer(config)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*size, 3), dtype="uint8") for size in SIZES]


@pytest.fixture(scope="module")
def wanted(model, images):
    return np.concatenate([model.preprocess(image) for image in images])


def test_evaluation(model, images, wanted):
    with open_batches(model, (images, np.zeros(len(images), int)), "test", classes=2, title=None) as (batches, _):
        np.testing.assert_array_equal(np.concatenate([inputs for inputs, _ in batches]), wanted)


def test_validation_images_of_a_run(monkeypatch, model, images, wanted):
    """What `finetune` evaluates on."""
    from keras_vit.training import run

    inputs = []
    train = run.train

    def spy(*arguments, validation, **options):
        inputs.extend(validation[number][0] for number in range(len(validation)))
        return train(*arguments, validation=validation, **options)

    monkeypatch.setattr(run, "train", spy)
    labels = np.arange(len(images)) % 2
    recipe = keras_vit.training.Recipe(steps=1, batch_size=4, learning_rate=0.1, image_size=16)
    data = {"train": (images, labels), "test": (images, labels)}
    keras_vit.training.finetune(model.with_config(), data, recipe, verbose=False)
    np.testing.assert_array_equal(np.concatenate(inputs), wanted)


def test_calibration(model, images):
    pixels = calibration_images(images, model.config, Signature.of(model, None, False))
    assert pixels.dtype == "uint8"
    expected = np.concatenate([model.config.pipeline.resized(image) for image in images])
    np.testing.assert_array_equal(pixels, np.rint(expected))


def test_in_processes_of_their_own(tmp_path, model, images):
    """Where the pipeline travels as JSON."""
    from PIL import Image

    for number, image in enumerate(images):
        folder = tmp_path / "test" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number:02}.png")
    options = {"image_size": 16, "batch_size": 4, "split": "test", "resize": model.config.pipeline}
    with open_data(tmp_path, processes=True, workers=1, **options) as stream:
        pixels = np.concatenate([stream.batch(number)[0] for number in range(3)])
    order = [*range(0, 12, 2), *range(1, 12, 2)]
    expected = np.concatenate([model.config.pipeline.resized(images[number]) for number in order])
    np.testing.assert_array_equal(pixels, expected)
