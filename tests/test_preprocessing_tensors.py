"""Images and predictions of each backend: tensors, pipelines, streams, and what a model makes of files."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data.random_operations import inception_box
from keras_vit.preprocessing import preprocess_input
from tests.data.sources import twelve_images
from tests.test_preprocessing import scaled

Image = pytest.importorskip("PIL.Image")

# Keras hands torch tensors to NumPy through an `__array__` without the `copy` argument of NumPy 2.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Tensor.T is deprecated on 0-D tensors:UserWarning"),
]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "bfloat16", "float16"])
def test_preprocess_tensors_of_the_backend(dtype, rng):
    pixels = rng.integers(0, 256, (2, 5, 4, 3))
    tensor = keras.ops.convert_to_tensor(pixels.astype("float32"), dtype=dtype)
    out = preprocess_input(tensor)
    assert type(out) is type(tensor) and keras.backend.standardize_dtype(out.dtype) == "float32"
    # A compiler may multiply by 1 / 127.5 instead: one unit in the last place of values up to 1. bfloat16 and
    # float16 hold every whole number up to 256.
    np.testing.assert_allclose(keras.ops.convert_to_numpy(out), scaled(pixels), rtol=0, atol=2e-7)


def test_means_of_channels_leave_a_tensor_a_tensor(rng):
    """PyTorch would leave the product with an array to NumPy: no gradients, and nothing on a GPU."""
    pixels, mean, std = rng.uniform(0, 255, (2, 5, 4, 3)).astype("float32"), (0.5, 0.4, 0.3), (0.2, 0.3, 0.2)
    tensor = keras.ops.convert_to_tensor(pixels)
    if hasattr(tensor, "requires_grad_"):
        tensor.requires_grad_()
    out = preprocess_input(tensor, mean=mean, std=std)
    assert type(out) is type(tensor)
    # A compiler may multiply by a reciprocal instead: a unit in the last place of float32, 1.2e-7, of both.
    wanted = preprocess_input(pixels, mean=mean, std=std)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(out), wanted, rtol=3e-7, atol=3e-7)


def test_preprocess_symbolic_tensors(rng):
    inputs = keras.Input((None, None, 3), dtype="uint8")
    outputs = preprocess_input(inputs)
    assert isinstance(outputs, keras.KerasTensor) and outputs.dtype == "float32"
    pixels = rng.integers(0, 256, (2, 5, 4, 3), dtype="uint8")
    out = keras.Model(inputs, outputs).predict(pixels, verbose=0)
    np.testing.assert_allclose(out, scaled(pixels), rtol=0, atol=2e-7)


def test_preprocess_in_tf_data(backend, rng):
    if backend != "tensorflow":
        pytest.skip("about TensorFlow")
    import tensorflow as tf

    pixels = rng.integers(0, 256, (2, 5, 4, 3), dtype="uint8")
    data = tf.data.Dataset.from_tensor_slices(pixels).batch(2)
    np.testing.assert_allclose(next(iter(data.map(preprocess_input))), scaled(pixels), rtol=0, atol=2e-7)

    unknown_rank = data.map(lambda x: tf.py_function(lambda y: y, [x], "uint8")).map(preprocess_input)
    np.testing.assert_allclose(next(iter(unknown_rank)), scaled(pixels), rtol=0, atol=2e-7)

    with pytest.raises(ValueError, match="images must have shape"):
        data.map(lambda x: preprocess_input(x[..., :2]))


@pytest.mark.parametrize("shape", [(3, 5, 4), (5, 3)])
def test_tensors_of_other_shapes_and_dtypes(shape):
    with pytest.raises(ValueError, match="images must have shape"):
        preprocess_input(keras.ops.full(shape, 100.0))
    with pytest.raises(TypeError, match="integers or floats"):
        preprocess_input(keras.ops.zeros((5, 4, 3), dtype="bool"))


CONFIG = keras_vit.ViTConfig(image_size=(24, 16), patch_size=8, width=8, depth=1, heads=2, mlp_width=12, classes=2)


@pytest.fixture(scope="module")
def model():
    return keras_vit.VisionTransformer(CONFIG.replace(resize="shortest", crop_ratio=0.9, filter="bicubic"))


@pytest.fixture
def photo(tmp_path, rng):
    pixels = rng.integers(0, 256, (30, 50, 3), dtype="uint8")
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png", pixels


@pytest.mark.nightly_elsewhere
def test_a_model_takes_files(model, photo, rng):
    path, pixels = photo
    other = rng.integers(0, 256, (41, 33, 3), dtype="uint8")
    expected = model.preprocess(pixels)
    assert expected.shape == (1, 24, 16, 3) and expected.dtype == np.float32
    with open(path, "rb") as stream:
        for source in (path, str(path), stream, Image.open(path), [path], (path,)):
            np.testing.assert_array_equal(model.preprocess(source), expected)
    both = np.concatenate([expected, model.preprocess(other)])
    tensors = [keras.ops.convert_to_tensor(image) for image in (pixels, other)]
    for pair in ([path, other], [str(path), Image.fromarray(other)], tensors):
        np.testing.assert_array_equal(model.preprocess(pair), both)
    np.testing.assert_array_equal(model.preprocess(pixels[None].astype(">u2")), expected)
    assert model.predict(model.preprocess([path, other]), verbose=0).shape == (2, 2)


@pytest.mark.nightly_elsewhere
def test_what_a_model_does_not_take(model, photo, tmp_path):
    path, pixels = photo
    with pytest.raises(FileNotFoundError, match=r"nowhere\.png"):
        model.preprocess([path, tmp_path / "nowhere.png"])
    with pytest.raises(ValueError, match="has the shape .*, but 2 channels were expected"):
        keras_vit.VisionTransformer(CONFIG.replace(channels=2)).preprocess(path)
    with pytest.warns(UserWarning, match=r"Multiply values in \[0, 1\] by 255") as caught:
        model.preprocess([pixels / 255, pixels[:20] / 255])
    assert {warning.filename for warning in caught} == {__file__}
    with pytest.raises(TypeError, match="symbolic tensor was given.*include_preprocessing=True"):
        model.preprocess(keras.Input((30, 50, 3)))


@pytest.mark.nightly_elsewhere
def test_a_model_in_tf_data(model, rng):
    """On any backend: TensorFlow has only to be there."""
    tf = pytest.importorskip("tensorflow")
    pixels = rng.integers(0, 256, (4, 30, 50, 3), dtype="uint8")
    expected = model.preprocess(pixels)
    single = tf.data.Dataset.from_tensor_slices(pixels).map(model.preprocess)
    assert single.element_spec.shape == (24, 16, 3)
    batches = tf.data.Dataset.from_tensor_slices(pixels).batch(2).map(model.preprocess)
    assert tuple(batches.element_spec.shape) == (None, 24, 16, 3)
    unknown = tf.data.Dataset.from_generator(lambda: iter(pixels), output_types="uint8").map(model.preprocess)
    for data in (single.batch(2), batches, unknown.batch(2)):
        np.testing.assert_array_equal(np.concatenate(list(data.as_numpy_iterator())), expected)


@pytest.fixture(scope="module")
def data():
    return twelve_images()


def test_inception_box_is_distributed_as_tensorflows(rng, backend):
    if backend != "tensorflow":
        pytest.skip("compares with TensorFlow's operation")
    import tensorflow as tf

    n, shape = 2000, (300, 400)

    @tf.function
    def draw(i):
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            (*shape, 3), tf.zeros([1, 0, 4]), (i, 7), 0.0, (0.75, 1.33), (0.05, 1.0), 100, True
        )
        return tf.concat([begin[:2], size[:2]], 0)

    theirs = np.sort(tf.map_fn(draw, tf.range(n)).numpy(), axis=0)
    ours = np.sort([inception_box(*shape, rng) for _ in range(n)], axis=0)
    # Quantiles of the place and the size differ by what 2,000 draws leave open. Measured: 7 of 400 pixels. A
    # distribution that is uniform in the area (torchvision's) is 60 pixels off in the median of the height.
    difference = np.abs(theirs - ours)[n // 10 :: n // 10]
    assert difference.max() < 20
