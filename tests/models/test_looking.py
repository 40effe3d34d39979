"""Floats of 0..255 where normalised images belong are told once, at the caller's line, however they come."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.text import ImageText
from tests import small_models as small

WORDS = "values up to 2.*pixels of 0..255.*model.preprocess.images.*include_preprocessing=True"
KINDS = {
    "vit": small.small_vit,
    "dynamic": lambda **changes: small.small_vit(dynamic=True, **changes),
    "bit": small.small_bit,
    "eomt": small.small_eomt,
    "segmenter": small.small_linear_segmenter,
    "depth": small.small_depth_model,
}


def pixels(model, count=2):
    shape = (count, *model.config.image_size, model.config.channels)
    return np.random.default_rng(0).integers(0, 256, shape).astype("float32")


def told(call, words=WORDS):
    with pytest.warns(UserWarning, match=words) as warned:
        call()
    ours = [warning.filename for warning in warned if "pixels of 0..255" in str(warning.message)]
    assert ours == [__file__]  # once, at the line of the caller


def compiled(**changes):
    model = small.small_vit(**changes)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_tells_of_pixels_once(kind):
    for call in (lambda model, x: model.predict(x, verbose=0), lambda model, x: model.predict_on_batch(x)):
        model = KINDS[kind]()
        told(lambda: call(model, pixels(model)))  # noqa: B023
        call(model, pixels(model))


def test_tensors_of_the_processor_are_looked_at():
    model = small.small_vit()
    model(keras.ops.convert_to_tensor(small.images_for(model.config)))
    told(lambda: model(keras.ops.convert_to_tensor(pixels(model))))
    inner, twin = small.small_vit(include_preprocessing=True), small.small_vit(include_preprocessing=True)
    scaled = keras.ops.convert_to_tensor(pixels(inner) / 255)
    told(lambda: inner(scaled), "normalises pixels of 0..255 itself, but was given values in .0, 1.")
    twin(keras.ops.convert_to_tensor(pixels(twin)))


class Dataset(keras.utils.PyDataset):
    def __init__(self, batches, **options):
        super().__init__(**options)
        self.batches, self.epochs = batches, 0

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]

    def on_epoch_end(self):
        self.epochs += 1


def tf_data(batches):
    import tensorflow as tf

    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(2)


def loader(batches):
    import torch

    x, y = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*batches, strict=True))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=2)


SOURCES = {
    "tensorflow": (tf_data,),
    "torch": (loader,),
    "numpy": (lambda batches: (batch for batch in batches), Dataset, lambda batches: Dataset(batches, workers=2)),
}


@pytest.mark.nightly_elsewhere
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # of Keras, for what has no length
@pytest.mark.parametrize("library", SOURCES)
def test_data_in_batches_tell_by_the_first_one(library, backend):
    if library not in ("numpy", backend):
        pytest.skip(f"about {library}")
    model = compiled()
    x, y = pixels(model, 6), np.zeros(6, "int64")
    batches = [(x[i : i + 2], y[i : i + 2]) for i in (0, 2, 4)]
    for source in SOURCES[library]:
        for method, options in (("fit", {"shuffle": False}), ("evaluate", {}), ("predict", {})):
            model = compiled()
            told(lambda: getattr(model, method)(source(batches), verbose=0, **options))  # noqa: B023
            getattr(model, method)(source(batches), verbose=0, **options)
        prepared = [(images / 128 - 1, labels) for images, labels in batches]
        # What is looked at on its way arrives as it is, and as often
        expected = compiled().predict(np.concatenate([images for images, _ in prepared]), verbose=0)
        np.testing.assert_allclose(compiled().predict(source(prepared), verbose=0), expected, rtol=1e-5, atol=1e-6)
        given = source(prepared)
        assert len(compiled().fit(given, shuffle=False, verbose=0).history["loss"]) == 1
        assert getattr(given, "epochs", 1)  # its own `on_epoch_end` was called


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    "kind",
    [
        # On JAX, most of its eight seconds are the import of TensorFlow.
        pytest.param("vit", marks=[pytest.mark.nightly] * (keras.backend.backend() == "jax")),
        *(pytest.param(kind, marks=pytest.mark.nightly_elsewhere) for kind in ("dynamic", "eomt")),
    ],
)
def test_images_of_unknown_rank(kind, backend):
    """As of `numpy_function`, `decode_image` and `from_generator(output_types=)`."""
    tf = pytest.importorskip("tensorflow")
    model = KINDS[kind]()
    x, outputs = small.images_for(model.config), model.predict(small.images_for(model.config), verbose=0)
    model.compile("sgd", "mse", jit_compile=False) if kind != "eomt" else None
    data = tf.data.Dataset.from_generator(lambda: iter([x]), output_types="float32")
    assert data.element_spec.shape.rank is None
    keras.tree.map_structure(np.testing.assert_array_equal, model.predict(data, verbose=0), outputs)
    if kind != "eomt":
        y = tf.zeros(outputs.shape)
        model.fit(data.map(lambda images: (images, y)), shuffle=False, verbose=0)
        assert np.isfinite(model.evaluate(data.map(lambda images: (images, y)), verbose=0))
    if kind == "vit":
        narrow = data.map(lambda images: tf.numpy_function(lambda x: x[:, :4], [images], "float32"))
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):  # TensorFlow has a message of its own
            model.predict(narrow, verbose=0)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.once
def test_pairs_of_images_and_texts():
    towers = small.small_vit(classes=None, projection=4), small.small_text_encoder(projection=4)
    x, ids = pixels(towers[0]), np.array([[1, 2, 0, 0, 0], [3, 2, 0, 0, 0]])
    calls = {
        "fit": lambda both: both.fit((x, ids), verbose=0),
        "batches": lambda both: both.fit((((x, ids),) for _ in range(2)), shuffle=False, verbose=0),
        "embed_images": lambda both: both.embed_images(x),
        "predict": lambda both: both.image_encoder.predict(x, verbose=0),
    }
    for call in calls.values():
        both = ImageText(small.small_vit(classes=None, projection=4), towers[1])
        both.compile("sgd", keras_vit.training.ContrastiveLoss())
        told(lambda: call(both))  # noqa: B023
        call(both)


@pytest.mark.once
def test_what_may_be_meant_is_silent():
    """Own statistics with large values below zero, pipelines whose images are pixels, black pictures before others."""
    model = small.small_vit()
    model.predict(small.images_for(model.config) * 15, verbose=0)
    as_they_are = small.small_vit(pixel_mean=0.0, pixel_std=1 / 255)
    as_they_are.predict(pixels(as_they_are), verbose=0)
    pixels_inside = small.small_vit(include_preprocessing=True)
    pixels_inside.predict(pixels(pixels_inside), verbose=0)
    x = np.concatenate([np.zeros((2, 8, 8, 3), "float32"), pixels(model)])
    told(lambda: model.predict(x, verbose=0))


@pytest.mark.once
def test_transformed_tensors_are_left_alone():
    import torch

    model = small.small_vit()
    x = torch.from_numpy(pixels(model))
    torch.func.vmap(lambda image: (model.check_values(image[None]), image)[1])(x)
    told(lambda: model(x))
