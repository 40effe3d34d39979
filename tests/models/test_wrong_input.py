"""Wrong images: an error that names what was given, before Keras takes anything apart, and a model that goes on."""

import concurrent.futures

import keras
import numpy as np
import pytest

from tests.small_models import small_bit, small_eomt, small_hybrid, small_vit


def made(**changes):
    model = small_vit(**changes)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model


@pytest.fixture(scope="module")
def model():
    return made()


def images(*shape, dtype="float32"):
    return np.random.default_rng(0).integers(0, 2, shape).astype(dtype) - (0.5 if dtype == "float32" else 0)


def labels(x):
    return np.zeros(len(x), "int64")


ENTRIES = {
    "predict": lambda model, x: model.predict(x, verbose=0),
    "fit": lambda model, x: model.fit(x, labels(x), verbose=0),
    "evaluate": lambda model, x: model.evaluate(x, labels(x), verbose=0),
    "train_on_batch": lambda model, x: model.train_on_batch(x, labels(x)),
    "test_on_batch": lambda model, x: model.test_on_batch(x, labels(x)),
    "predict_on_batch": lambda model, x: model.predict_on_batch(x),
}
WRONG = {
    (2, 12, 12, 3): "needs images of 8 x 8 pixels, but the shape .2, 12, 12, 3. was",
    (2, 8, 8, 4): "images with 3 channels on the last axis, but .*channels=4",
    (2, 3, 8, 8): "images with 3 channels on the last axis.*channels seem to come first: move them",
    (8, 8, 3): "needs images .batch, height, width, channels., but the shape .8, 8, 3. was",
    (0, 8, 8, 3): "at least one image, but the shape .0, 8, 8, 3. was",
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_wrong_shape_is_told_and_destroys_nothing(entry, model):
    good = images(2, 8, 8, 3)
    before = keras.ops.convert_to_numpy(model(good))
    for shape, message in WRONG.items():
        with pytest.raises(ValueError, match=message):
            ENTRIES[entry](model, images(*shape))
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(good)), before)
    if "predict" in entry:
        with pytest.raises(ValueError, match="needs images .*, but None was given"):
            ENTRIES[entry](model, None)
        with pytest.raises(ValueError, match=r"needs images .*, but the shape \(\) was given"):
            ENTRIES[entry](model, [])


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"pooling": "map", "class_token": False}])
def test_a_call_takes_an_empty_batch(options, backend):
    if backend == "tensorflow":
        pytest.skip("TensorFlow's convolution of an empty batch has the shape of its input")
    assert tuple(small_vit(**options)(np.zeros((0, 8, 8, 3), "float32")).shape) == (0, 3)


@pytest.mark.once
def test_other_kinds_take_an_empty_batch():
    for model in (small_hybrid(), small_bit(), small_eomt()):
        some, none = (model(np.zeros((n, *model.input_shape[1:]), "float32")) for n in (1, 0))
        for one, empty in zip(keras.tree.flatten(some), keras.tree.flatten(none), strict=True):
            assert tuple(empty.shape) == (0, *one.shape[1:])


class Batches(keras.utils.PyDataset):
    """Nobody knows the shapes before they come."""

    def __init__(self, *shapes):
        super().__init__()
        self.shapes = shapes

    def __len__(self):
        return len(self.shapes)

    def __getitem__(self, index):
        x = images(*self.shapes[index])
        return x, labels(x)


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize(("entry", "before"), [("predict", 0), ("fit", 1)])
def test_a_wrong_shape_among_batches_destroys_nothing(entry, before, backend):
    model, good = made(), images(2, 8, 8, 3)
    shapes = [*before * [(2, 8, 8, 3)], (2, 12, 12, 3)]
    kinds, words = (ValueError, RuntimeError), "needs images of 8 x 8 pixels"
    if backend == "tensorflow" and before:
        import tensorflow as tf

        kinds, words = tf.errors.InvalidArgumentError, "Incompatible shapes"  # found by a graph that runs
    with pytest.raises(kinds, match=words):
        getattr(model, entry)(Batches(*shapes), verbose=0, **({"shuffle": False} if entry == "fit" else {}))
    assert np.isfinite(keras.ops.convert_to_numpy(model(good))).all()
    assert np.isfinite(model.predict(good, verbose=0)).all()
    model.fit(good, labels(good), verbose=0)


@pytest.mark.once  # seen before any backend is
@pytest.mark.parametrize("entry", [*ENTRIES, "call"])
def test_values_that_cannot_be_meant_are_warned_of_once(entry):
    run = ENTRIES.get(entry, lambda model, x: model(x))
    for inside, dtype in ((False, "uint8"), (True, "float32")):
        words = "normalises pixels of 0..255 itself.*values in" if inside else "integers.*0..255.*model.preprocess"
        model, x = made(include_preprocessing=inside), images(2, 8, 8, 3, dtype=dtype)
        with pytest.warns(UserWarning, match=words) as warned:
            run(model, x)
        assert warned[0].filename == __file__  # the line of the caller
        run(model, x)


@pytest.mark.parametrize("entry", ["predict", pytest.param("train_on_batch", marks=pytest.mark.nightly_elsewhere)])
def test_numbers_of_another_byte_order_are_converted(entry):
    """The same answers, losses and weights."""
    model, other, x = made(), made(), images(2, 8, 8, 3)
    other.set_weights(model.get_weights())
    expected, got = ENTRIES[entry](model, x), ENTRIES[entry](other, x.astype(">f4"))
    np.testing.assert_array_equal(got, expected)
    for weight, wanted in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, wanted)


def test_threads_take_turns():
    """A server calls one model from several threads; Keras's loops on JAX know one call at a time."""
    model, given = made(), images(4, 8, 8, 3)
    expected = model.predict(given, verbose=0)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(model.predict, given, verbose=0) for _ in range(8)]
    for call in calls:
        np.testing.assert_allclose(call.result(), expected, rtol=1e-6)


def zeros(*size):
    return np.zeros((2, *size, 3), "f4")


GOOD = ((8, 8), (8, 12), (12, 8))  # after two sizes, TensorFlow compiles one graph for all
CALLS = {(8, 9): lambda model, x: model(x), (10, 9): lambda model, x: model.predict(x, verbose=0)}


def test_no_whole_patches():
    for size, call in CALLS.items():
        model = small_vit(dynamic=True)
        for good in GOOD:
            assert call(model, zeros(*good)).shape == (2, 3)
        with pytest.raises(Exception, match=r"multiple of the patch size .*4"):
            call(model, zeros(*size))


@pytest.mark.nightly_elsewhere
def test_no_whole_patches_when_trained():
    model = made(dynamic=True)
    for size in GOOD:
        model.train_on_batch(zeros(*size), np.array([0, 1]))
    before = model.get_weights()
    with pytest.raises(Exception, match="multiple of the patch size"):
        model.train_on_batch(zeros(10, 9), np.array([0, 1]))
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.nightly
def test_no_whole_patches_when_compiled(backend):
    if backend != "tensorflow":
        pytest.skip("TensorFlow's XLA drops assertions")
    import tensorflow as tf

    shape = tf.TensorSpec((None, None, None, 3))
    compiled = tf.function(small_vit(dynamic=True), input_signature=[shape], jit_compile=True)
    assert compiled(tf.zeros((2, 8, 12, 3))).shape == (2, 3)
    with pytest.raises(tf.errors.InvalidArgumentError):
        compiled(tf.zeros((2, 10, 9, 3)))


@pytest.mark.nightly_elsewhere
def test_hybrids_round_up():
    """The ResNet of a hybrid takes any size; its last map must be whole patches."""
    hybrid = small_hybrid(image_size=32, dynamic=True)
    for good in ((32, 32), (29, 32)):
        assert hybrid.predict(zeros(*good), verbose=0).shape == (2, 3)
    with pytest.raises(Exception, match="multiple of the patch size"):
        hybrid.predict(zeros(36, 32), verbose=0)
