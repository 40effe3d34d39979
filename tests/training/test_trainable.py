"""Layers that do not train, and adapters: what trains, what is saved, what they are merged to."""

import copy
import pickle
import warnings

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.models import merge_lora, weights_by_path
from keras_vit.training import AdamW, MomentumSGD, SoftmaxLoss
from keras_vit.training.trainable import add_lora, freeze, load_adapters, save_adapters, unfreeze
from tests.small_models import small_vit_config, values_of

CONFIG = small_vit_config()
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(4, 8, 8, 3)).astype("float32")
LABELS = np.eye(3, dtype="float32")[[0, 1, 2, 0]]


def make(**changes):
    keras.utils.set_random_seed(3)
    model = VisionTransformer(CONFIG.replace(**changes))
    head = model.get_layer("head").kernel
    head.assign(np.random.default_rng(4).normal(size=head.shape))
    return model


def draw_adapters(model):
    for name, weight in weights_by_path(model).items():
        if name.endswith("lora_kernel_b"):
            weight.assign(np.random.default_rng(5).normal(size=weight.shape))


def trained_names(model):
    return {w.path for w in model.trainable_weights}


def training(model):
    return [name for name in weights_by_path(model) if name in trained_names(model)]


@pytest.mark.once
def test_by_layer_weight_and_wildcard():
    model = VisionTransformer(CONFIG)
    names = list(weights_by_path(model))
    with pytest.raises(ValueError, match="matches no such layer or weight.*'block_0"):
        freeze(model, ["embedding", "blok_0"])
    with pytest.raises(TypeError, match="patterns"):
        freeze(model, [3])
    assert training(model) == names  # nothing is half done
    frozen = freeze(model, ["embedding", "block_[0]", "*/attention", "class_token/token"])
    wanted = [n for n in names if n.startswith(("embedding/", "block_0/", "class_token/", "block_1/attention/"))]
    assert frozen == wanted and set(training(model)) == set(names) - set(wanted)
    assert unfreeze(model, "block_0/attention/query") == [n for n in wanted if "block_0/attention/query" not in n]
    assert unfreeze(model) == [] and training(model) == names
    assert freeze(model, (name for name in ["embedding"])) == ["embedding/kernel", "embedding/bias"]
    assert unfreeze(model) == []
    assert freeze(model, "norm1") == [f"block_{i}/norm1/{w}" for i in (0, 1) for w in ("gamma", "beta")]  # not norm10


def test_layers_of_an_inner_model_have_its_name_before_theirs():
    model = keras.Sequential([keras.Input((8, 8, 3)), make(), keras.layers.Dense(2)])
    name = model.layers[0].name
    frozen = freeze(model, "block_0")
    assert frozen and all(path.startswith(f"{name}/block_0/") for path in frozen)
    assert not any(weight.trainable for weight in model.layers[0].get_layer("block_0").weights)


@pytest.mark.nightly_elsewhere
def test_frozen_weights_stay_and_files_know(tmp_path):
    model = VisionTransformer(CONFIG)
    freeze(model, ["embedding", "block_0", "block_1/mlp/fc1", "block_1/attention/query/kernel"])
    model.compile(MomentumSGD(0.1), SoftmaxLoss())
    before = values_of(model)
    for _ in range(2):
        model.train_on_batch(IMAGES, LABELS)
    moved = {name for name, value in values_of(model).items() if np.any(value != before[name])}
    assert "head/kernel" in moved and moved <= set(training(model))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert training(again) == training(model)
    again.train_on_batch(IMAGES, LABELS)  # the optimizer's state fits the weights that train


# Adapters


@pytest.fixture(scope="module")
def trained():
    model = new_with_adapters()
    before = values_of(model)
    for _ in range(3):
        model.train_on_batch(IMAGES, LABELS)
    return model, before


def test_only_adapters_and_head_train(trained):
    model, before = trained
    layers = [f"block_{i}/attention/{name}" for i in (0, 1) for name in ("query", "value")]
    wanted = {f"{layer}/lora_kernel_{x}" for layer in layers for x in "ab"} | {"head/kernel", "head/bias"}
    moved = {name for name, value in values_of(model).items() if not np.array_equal(value, before[name])}
    assert moved == wanted
    assert trained_names(model) == wanted


@pytest.mark.once
def test_changes_nothing_at_first():
    model = make()
    before = model.predict_on_batch(IMAGES)
    trains = add_lora(model, 2, ["*/mlp/fc1", "query", "head"])
    assert "block_0/mlp/fc1/lora_kernel_a" in trains and "head/kernel" in trains
    assert "head/lora_kernel_a" not in trains  # the head trains as it is
    np.testing.assert_array_equal(model.predict_on_batch(IMAGES), before)


def test_predict_sees_adapters_that_come_after_it():
    """On TensorFlow it is compiled when it is first called."""
    model = make()
    before = model.predict(IMAGES, verbose=0)
    add_lora(model, 2)
    draw_adapters(model)
    after = model.predict(IMAGES, verbose=0)
    np.testing.assert_allclose(after, model.predict_on_batch(IMAGES), rtol=0, atol=1e-5)  # float32 sums
    assert np.abs(after - before).max() > 1e-3


@pytest.mark.once
def test_also_on_a_frozen_model_and_beside_freezing():
    model = make()
    model.trainable = False
    trains = add_lora(model, 2)
    assert "block_0/attention/query/lora_kernel_a" in trains
    freeze(model, "block_0")
    assert trained_names(model) == {n for n in trains if not n.startswith("block_0")}
    unfreeze(model, "block_0/attention/query")
    assert "block_0/attention/query/kernel" not in trained_names(model)
    assert "block_0/attention/query/lora_kernel_b" in trained_names(model)


@pytest.mark.nightly_elsewhere
def test_adapters_alone_travel(trained, tmp_path):
    model, _ = trained
    path = save_adapters(model, tmp_path / "adapters.npz")
    with np.load(path) as file:
        assert len(file.files) == 8 + 2 + 1
    assert [p.name for p in tmp_path.iterdir()] == ["adapters.npz"]
    other = make()
    assert set(load_adapters(other, path)) == trained_names(model)
    np.testing.assert_array_equal(other.predict_on_batch(IMAGES), model.predict_on_batch(IMAGES))
    load_adapters(other, path)  # once more, over those that it has
    assert trained_names(other) == trained_names(model)


def test_merged_models_compute_the_same(trained, tmp_path):
    model, _ = trained
    logits = model.predict_on_batch(IMAGES)
    merged = merge_lora(model)
    assert values_of(merged).keys() == values_of(make()).keys()
    changed = "block_0/attention/query/kernel"
    assert not np.array_equal(values_of(merged)[changed], values_of(model)[changed])
    np.testing.assert_allclose(merged.predict_on_batch(IMAGES), logits, atol=2e-6)  # one more rounding
    assert len(merged.trainable_weights) == len(merged.weights)
    assert [layer for layer in model._flatten_layers() if getattr(layer, "lora_enabled", False)]  # left as it was
    model.save(tmp_path / "merged.keras")
    again = keras.saving.load_model(tmp_path / "merged.keras", compile=False)
    np.testing.assert_allclose(again.predict_on_batch(IMAGES), logits, atol=2e-6)


REFUSED = {
    "has adapters": lambda model, file, other: add_lora(model, 2),
    "'qery' matches no such layer": lambda model, file, other: add_lora(make(), 2, "qery"),
    "has no adapters": lambda model, file, other: save_adapters(make(), file),
    "has no adapters. Add them": lambda model, file, other: merge_lora(make()),
    "belongs to another model.*'head/": lambda model, file, other: load_adapters(make(classes=5), file),
    "of another rank": lambda model, file, other: load_adapters(new_with_adapters(3), file),
    "is not a file that save_adapters": lambda model, file, other: load_adapters(make(), other),
    "rank must be a whole number of at least 1, but 0": lambda model, file, other: add_lora(make(), 0),
    "alpha must be a number above 0, but 0": lambda model, file, other: add_lora(make(), 2, alpha=0),
    "no layer is left for an adapter": lambda model, file, other: add_lora(make(), 2, "head"),
    "adapters of other layers": lambda model, file, other: load_adapters(
        new_with_adapters(targets=("query", "value", "fc1")), file
    ),
}


@pytest.mark.once
def test_what_makes_no_sense_is_refused(trained, tmp_path):
    file = save_adapters(trained[0], tmp_path / "adapters.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    for message, call in REFUSED.items():
        with pytest.raises(ValueError, match=message):
            call(trained[0], file, tmp_path / "other.npz")
    for about in (b"{}", b"[]", b""):
        np.savez(file, keras_vit_lora=np.frombuffer(about, "uint8")) if about else file.write_bytes(about)
        with pytest.raises(ValueError, match="is not a file that save_adapters"):
            load_adapters(make(), file)


def new_with_adapters(rank=2, **options):
    model = make()
    add_lora(model, rank, alpha=4.0, **options)
    model.compile(AdamW(0.01, weight_decay=0.1), SoftmaxLoss())
    model.optimizer.build(model.trainable_variables)  # files of weights hold its variables, too
    return model


def by_file(model, path):
    model.save(path / "model.keras")
    return keras.saving.load_model(path / "model.keras")


def by_weights(model, path):
    model.save_weights(path / "model.weights.h5")
    other = new_with_adapters()
    other.load_weights(path / "model.weights.h5")
    return other


WAYS = {
    "save": by_file,
    "save_weights": by_weights,
    "pickle": lambda model, path: pickle.loads(pickle.dumps(model)),
    "deepcopy": lambda model, path: copy.deepcopy(model),
}


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("way", ["save", *(pytest.param(way, marks=pytest.mark.once) for way in [*WAYS][1:])])
def test_files_keep_adapters_and_what_is_frozen(trained, way, tmp_path):
    model, _ = trained
    again = WAYS[way](model, tmp_path)
    assert again is not model and trained_names(again) == trained_names(model)
    np.testing.assert_equal(values_of(again), values_of(model))
    np.testing.assert_array_equal(again.predict_on_batch(IMAGES), model.predict_on_batch(IMAGES))
    before = values_of(again)
    again.train_on_batch(IMAGES, LABELS)
    moved = {name for name, value in values_of(again).items() if not np.array_equal(value, before[name])}
    assert moved == trained_names(model)
    if way == "save":  # with the optimizer: as if it had not stopped
        whole = new_with_adapters()
        for _ in range(4):
            whole.train_on_batch(IMAGES, LABELS)
        np.testing.assert_equal(values_of(again), values_of(whole))


@pytest.mark.once
def test_weights_of_a_model_without_adapters_and_with(trained, tmp_path):
    """They are merged where there are none, and refused where there are others."""
    model, path = trained[0], tmp_path / "model.weights.h5"
    model.save_weights(path)
    plain = make()
    plain.load_weights(path)
    np.testing.assert_allclose(plain.predict_on_batch(IMAGES), model.predict_on_batch(IMAGES), atol=2e-6)
    for source in (make(), new_with_adapters(3)):
        source.save_weights(path)
        with pytest.raises(ValueError, match="load_adapters"):
            new_with_adapters().load_weights(path)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
@pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning")  # Keras's, beside the error
@pytest.mark.once
def test_quantized_kernels_keep_their_adapters(tmp_path):
    model = make(representation_size=4)
    model.quantize("int8")
    add_lora(model, 2, ("query", "pre_logits", "head"), train=())
    draw_adapters(model)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict_on_batch(IMAGES), model.predict_on_batch(IMAGES))
    assert trained_names(again) == trained_names(model)
    model.save_weights(tmp_path / "model.weights.h5")
    plain = make(representation_size=4)
    plain.quantize("int8")
    with pytest.raises(ValueError, match="load_adapters"):
        plain.load_weights(tmp_path / "model.weights.h5")


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="modules are PyTorch's")
@pytest.mark.parametrize("way", ["add_lora", "load_adapters", "with_config", "keras file"])
def test_torch_knows_the_adapters(way, tmp_path):
    """A loop of PyTorch that trains `model.parameters()` trains them."""
    config = small_vit_config(depth=1)
    model = VisionTransformer(config)
    add_lora(model, 2)
    if way == "load_adapters":
        path = save_adapters(model, tmp_path / "adapters.npz")
        model = VisionTransformer(config)
        load_adapters(model, path)
    elif way == "with_config":
        model = model.with_config(dropout=0.1)
    elif way == "keras file":
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
    adapters = {weight.path for weight in model.weights if "lora" in weight.path}
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert len(adapters) == 4 and trained == {id(weight.value) for weight in model.trainable_weights}
    assert sum("lora" in name for name, _ in model.named_parameters()) == 4
    assert sum("lora" in name for name in model.state_dict()) == 4


@pytest.mark.nightly_elsewhere
def test_float8_and_adapters_are_refused_in_either_order():
    """Keras computes no adapters in float8; the model stays as it was."""
    model, images = make(), IMAGES
    add_lora(model, 2)
    before = keras.ops.convert_to_numpy(model(images))
    for refused in (lambda: model.quantize("float8"), lambda: model.quantize(mode="float8")):
        with pytest.raises(ValueError, match=r"vit has adapters .*merge_lora\(model\)|LoRA's adapters"):
            refused()
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(images)), before)
    quantized = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's, for layers without weights
        quantized.quantize("float8")
        before = keras.ops.convert_to_numpy(quantized(images))
        with pytest.raises(ValueError, match="float8, in which Keras computes no adapters"):
            add_lora(quantized, 2)
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(quantized(images)), before)
        assert not [name for name in weights_by_path(quantized) if "lora" in name]
        for mode in ("int8", "int4"):
            adapted = make()
            adapted.quantize(mode)
            add_lora(adapted, 2)
            assert np.isfinite(keras.ops.convert_to_numpy(adapted(images))).all()
