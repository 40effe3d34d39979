"""Every way to keep a model: files of Keras, clones, parts of it, other backends, mixed precision, int8, LoRA."""

import functools
import importlib.util
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import save_model
from keras_vit.models import weights_by_path
from tests.compute import forward
from tests.models.test_dense_options import IMAGES, changed
from tests.models.test_threads import flat
from tests.processes import environment
from tests.small_models import model_of, small_bit_config, small_vit_config
from tests.tolerances import SAME_FUNCTION

# Keras 3.15 reads variables of any backend with `np.array(variable)`, by an `__array__` without NumPy 2's `copy`.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning"),
    # What model.quantize says of every layer that stays as it is.
    pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning"),
]

CONFIG = small_vit_config(image_size=16, patch_size=8, width=16, mlp_width=24, classes=5, representation_size=12)
RATES = {"dropout": 0.1, "attention_dropout": 0.1, "drop_path": 0.1}


def make(config=CONFIG, seed=0, **options):
    return model_of(config, seed, **options)


@pytest.fixture
def model():
    return make()


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_loading_draws_no_random_numbers(model, ending, tmp_path, monkeypatch):
    path = tmp_path / f"model{ending}"
    save_model(model, path)
    monkeypatch.setattr(keras.initializers.RandomNormal, "__call__", None)
    for name, weight in weights_by_path(keras_vit.load(path)).items():
        np.testing.assert_array_equal(weight, weights_by_path(model)[name])


@functools.cache
def images(size=(16, 16), batch=3):
    return np.random.default_rng(1).uniform(-1, 1, (batch, *size, 3)).astype("f4")


def saved_and_loaded(model, path):
    model.save(path)
    return keras.saving.load_model(path)


def assert_same_weights(got, wanted):
    got, wanted = weights_by_path(got), weights_by_path(wanted)
    assert list(got) == list(wanted)
    for path in got:
        a, b = keras.ops.convert_to_numpy(got[path]), keras.ops.convert_to_numpy(wanted[path])
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b, err_msg=path)


@pytest.mark.parametrize(("writes", "reads"), [(RATES, {}), ({}, RATES), ({"remat": True}, {})])
@pytest.mark.nightly_elsewhere
def test_weights_do_not_hang_on_rates(tmp_path, writes, reads):
    """A layer that drops has a random state; a file without one fits, and one too many does no harm."""
    model, other = make(CONFIG.replace(**writes)), make(CONFIG.replace(**reads), seed=1)
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    assert_same_weights(other, model)


FAMILIES = {"vit": CONFIG.replace(**RATES), "bit": small_bit_config(classes=5)}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.nightly_elsewhere
def test_clones_of_keras_answer_train_and_save(family, tmp_path):
    """Keras makes them layer by layer: plain functional models, with new weights and without the config."""
    model = make(FAMILIES[family])
    model.get_layer("head").enable_lora(2, lora_alpha=3)
    model.get_layer("head").lora_kernel_b.assign(np.ones((2, 5), "f4"))
    clone = keras.models.clone_model(model)
    assert type(clone) is type(keras.Model(model.input, model.output))
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(forward(clone, images()), forward(model, images()))
    clone.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    clone.fit(images(), np.arange(len(images())) % 5, verbose=0)
    assert (forward(clone, images()) != forward(model, images())).any()
    loaded = saved_and_loaded(clone, tmp_path / "clone.keras")
    np.testing.assert_array_equal(forward(loaded, images()), forward(clone, images()))


@pytest.mark.once
def test_parts_and_models_around(model, tmp_path):
    part = keras.Model(model.input, model.get_layer("block_1").output)
    loaded = saved_and_loaded(part, tmp_path / "part.keras")
    np.testing.assert_array_equal(forward(loaded, images()), forward(part, images()))
    outer = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.RandomFlip(), model, keras.layers.Dense(2)])
    inner = saved_and_loaded(outer, tmp_path / "outer.keras").layers[1]
    assert type(inner) is keras_vit.VisionTransformer and inner.config == CONFIG
    assert_same_weights(inner, model)


@pytest.mark.once
def test_training_goes_on_where_it_stopped(tmp_path):
    config = CONFIG.replace(depth=1)
    model = make(config)
    model.get_layer("embedding").trainable = False
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    labels = np.array([0, 1, 2])
    model.train_on_batch(images(), labels)
    loaded = saved_and_loaded(model, tmp_path / "model.keras")  # a warning about the optimizer would be an error
    assert int(loaded.optimizer.iterations) == 1
    got, wanted = (float(m.train_on_batch(images(), labels)) for m in (loaded, model))
    assert abs(got - wanted) < SAME_FUNCTION
    for path, weight in weights_by_path(loaded).items():
        a, b = keras.ops.convert_to_numpy(weight), keras.ops.convert_to_numpy(weights_by_path(model)[path])
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5, err_msg=path)


@pytest.mark.once
def test_the_global_dtype_policy_is_remembered(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = make()
    keras.config.set_dtype_policy("float32")
    for copy in (saved_and_loaded(model, tmp_path / "model.keras"), model.with_image_size(32), model.with_classes(3)):
        block = copy.get_layer("block_0")
        for part in (copy, block, block.attention.query):
            assert part.dtype_policy.name == "mixed_bfloat16"
        assert copy.get_layer("head").dtype_policy.name == "float32"


@pytest.mark.once
def test_quantized_weights_are_not_copied_into_another_model(tmp_path):
    """An int8 kernel is not a kernel without its scale; a name and names of classes may change."""
    quantized = make(CONFIG.replace(depth=1))
    quantized.quantize("int8")
    for change in (
        lambda: quantized.with_image_size(32),
        lambda: quantized.with_classes(3),
        lambda: quantized.with_config(dtype="bfloat16"),
        lambda: quantized.with_config(fresh="head"),
        lambda: keras_vit.to_checkpoint(quantized, tmp_path / "model.npz"),
    ):
        with pytest.raises(ValueError, match="quantized"):
            change()
    assert list(tmp_path.iterdir()) == []
    named = quantized.with_config(name="named", class_names=tuple("abcde"))
    assert named.name == "named" and named.config.class_names == tuple("abcde")
    assert_same_weights(named, quantized)
    np.testing.assert_array_equal(forward(named, images()), forward(quantized, images()))


CHILD = """
import sys
import keras, numpy as np
import keras_vit
from tests.models.test_threads import flat
folder, *names = sys.argv[1:]
results = {}
for name in names:
    images = np.load(f"{folder}/{name}.npy")
    model = keras.saving.load_model(f"{folder}/{name}.keras", compile=False)
    results[name] = flat(model.predict(images, verbose=0))
assert model.config.representation_size == 12
model.set_weights([w * 0 for w in model.get_weights()])
model.load_weights(f"{folder}/plain.weights.h5")
results["h5"] = flat(model.predict(images, verbose=0))
np.savez(f"{folder}/{keras.backend.backend()}.npz", **results)
"""


# Who reads the files that a backend writes: each is read by another and reads another's. Starting a framework takes
# longer than all that is done with it.
READER = {"tensorflow": "torch", "torch": "jax", "jax": "tensorflow"}


@pytest.mark.nightly_elsewhere
def test_another_backend_loads_what_this_one_saved(backend, tmp_path):
    other = READER[backend]
    if importlib.util.find_spec(other) is None:
        pytest.skip(f"needs {other}")
    quantized, trained = make(), make(CONFIG.replace(depth=1, **RATES))
    quantized.quantize("int8")
    trained.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    trained.train_on_batch(images(), np.array([0, 1, 2]))
    models = {"trained": trained, "quantized": quantized, "adapted": changed("EoMT", "lora")}
    models |= {"depth": changed("LinearDepth", "int8"), "plain": make()}  # the last one's class reads the .weights.h5
    wanted = {}
    for name, model in models.items():
        x = IMAGES if name in ("adapted", "depth") else images()
        np.save(tmp_path / f"{name}.npy", x)
        model.save(tmp_path / f"{name}.keras")
        wanted[name] = flat(forward(model, x))
    models["plain"].save_weights(tmp_path / "plain.weights.h5")
    wanted["h5"] = wanted["plain"]
    command = [sys.executable, "-c", CHILD, str(tmp_path), *models]
    done = subprocess.run(command, env=environment(KERAS_BACKEND=other), capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / f"{other}.npz") as file:
        got = dict(file)
    assert got.keys() == wanted.keys()
    # int8 activations are rounded: where backends differ in the last bit, one may round up and one down, which moves
    # that activation by a 127th of the largest.
    bounds = {"quantized": 2e-2 * np.abs(wanted["quantized"]).max(), "depth": 2e-2 * np.ptp(wanted["depth"])}
    for name in wanted:
        tolerance = bounds.get(name, SAME_FUNCTION)
        np.testing.assert_allclose(got[name], wanted[name], rtol=0, atol=tolerance, err_msg=name)
