"""Models that compute no more than their answers need give the same answers."""

import weakref

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from keras_vit._processes import tensorflow_has_only_cpus
from keras_vit.models import changes, count_macs, count_weights, feature_names
from tests.compute import close, forward, gradients, square
from tests.models.test_families import FAMILIES, make
from tests.tolerances import GRADIENTS, SAME_FUNCTION

VIT = keras_vit.ViTConfig(image_size=16, patch_size=8, width=8, depth=2, heads=2, mlp_width=12, classes=3)
PIXELS = VIT.replace(include_preprocessing=True, pixel_mean=(0.5, 0.4, 0.3), pixel_std=(0.2, 0.3, 0.25))
# What is optimized: together these have every layer and every end of a model that has a class token.
CONFIGS = {
    "pixels": PIXELS,
    "any size": PIXELS.replace(dynamic=True, representation_size=6, patch_bias=False),
    "hybrid": VIT.replace(image_size=32, patch_size=2, stem_stages=(1,), stem_width=32, include_preprocessing=True),
    "two heads": FAMILIES["deit"],
    "rotary": FAMILIES["dinov3"].replace(final_norm="pooled", rotary_embedding="eva02", mlp="swiglu_norm"),
    "clip": FAMILIES["clip"].replace(attention_norm=True, depth=1),
}


def batch(config, size=None):
    images = np.random.default_rng(1).uniform(-1, 1, (2, *(size or config.image_size), config.channels))
    return (127.5 * (images + 1) if config.include_preprocessing else images).astype("float32")


def optimized(model):
    return model.optimize_for_inference(verbose=False)


# On each backend those with their own ways: pixels in the kernel, sizes in the graph, a folded ResNet.
@pytest.mark.parametrize("name", [*CONFIGS][:3] + [pytest.param(n, marks=pytest.mark.once) for n in [*CONFIGS][3:]])
def test_same_answers(name, tmp_path):
    model = make(CONFIGS[name])
    config, images = model.config, batch(model.config)
    quick = optimized(model)
    folds = {"stem_folded": name == "hybrid", "preprocessing_folded": config.include_preprocessing and name != "hybrid"}
    assert quick.config == config.replace(class_token_only=True, **folds)
    expected = forward(model, images)
    scale = max(1, np.abs(expected).max())  # sums over pixels that are not centred round a little more
    np.testing.assert_allclose(forward(quick, images), expected, rtol=0, atol=SAME_FUNCTION * scale)
    # The tokens that are left, one or two, and the work that is saved.
    last = quick.get_layer(f"block_{config.depth - 1}")
    assert last.output.shape[1] == (2 if name == "two heads" else 1)
    assert count_macs(quick.config) < count_macs(config)
    assert quick.count_params() == count_weights(quick.config)
    quick.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(images, verbose=0), forward(quick, images), rtol=0, atol=1e-6 * scale)
    assert optimized(quick).config == quick.config


def test_other_sizes():
    model = make(CONFIGS["any size"])
    images = batch(model.config, (24, 32))
    np.testing.assert_allclose(forward(optimized(model), images), forward(model, images), rtol=0, atol=SAME_FUNCTION)


@pytest.mark.once
def test_models_that_read_all_tokens_stay_as_they_are(capsys):
    for name in ("siglip", "mae", "dinov2_giant"):
        model = make(FAMILIES[name])
        assert model.optimize_for_inference().config == model.config
        assert f"no class_token_only: pooling='{model.config.pooling}' reads all tokens" in capsys.readouterr().out
        with pytest.raises(ValueError, match=f"needs pooling='token', but '{model.config.pooling}'"):
            model.with_config(class_token_only=True)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Keras leaves XLA out on TensorFlow's CPUs only")
def test_tensorflow_predicts_with_xla(monkeypatch, capsys):
    model, images = make(PIXELS), batch(PIXELS)
    quick = model.optimize_for_inference()
    assert quick.jit_compile is tensorflow_has_only_cpus() is True and not model.jit_compile
    assert "  jit_compile: predict is compiled with XLA" in capsys.readouterr().out
    wanted = model.predict(images, verbose=0)
    np.testing.assert_allclose(quick.predict(images, verbose=0), wanted, rtol=0, atol=SAME_FUNCTION)
    assert not optimized(make(CONFIGS["any size"])).jit_compile
    monkeypatch.setattr(changes, "may_use_xla", lambda model: False)  # with a GPU, Keras chooses
    optimized(model)
    assert "jit_compile" not in capsys.readouterr().out


@pytest.mark.once
def test_bit():
    model = keras_vit.BiT(keras_vit.BiTConfig(image_size=16, stages=(1,), width=32, classes=3))
    assert optimized(model).config == model.config.replace(folded=True)
    assert [step.obstacle for step in changes.inference_steps(optimized(model)) if step.is_field] == ["done before"]


def test_nothing_is_lost(tmp_path):
    """Its last block is changed back, written to files of others, and even trained."""
    model = make(VIT)
    quick, images = optimized(model), batch(VIT)
    keras_vit.to_checkpoint(quick, tmp_path / "model.npz")
    for again in (keras_vit.from_checkpoint(tmp_path / "model.npz"), quick.with_config(class_token_only=False)):
        assert not again.config.class_token_only
        np.testing.assert_array_equal(forward(again, images), forward(model, images))

    (_, slow), (_, fast) = (gradients(m, images, square, training=True) for m in (model, quick))
    # The key's bias has no gradient but rounding errors.
    slow, fast = ({p: g for p, g in grads.items() if not p.endswith("key/bias")} for grads in (slow, fast))
    close(fast, slow, GRADIENTS)


@pytest.mark.once
def test_what_is_folded_cannot_change(tmp_path):
    quick = optimized(make(PIXELS))
    for name, value in (("include_preprocessing", False), ("preprocessing_folded", False), ("patch_size", 4)):
        with pytest.raises(ValueError, match="preprocessing_folded=True (needs|changes weights permanently)"):
            quick.with_config(**{name: value})
    with pytest.raises(ValueError, match="the output of optimize_for_inference"):
        keras_vit.to_checkpoint(quick, tmp_path / "model.npz")
    assert not list(tmp_path.iterdir())
    assert quick.with_config(image_size=24, classes=None).config.preprocessing_folded  # what else may change
    with pytest.raises(ValueError, match="patch_size cannot change .* preprocessing_folded=True changes"):
        make(PIXELS).with_config(patch_size=4, preprocessing_folded=True)


@pytest.mark.nightly_elsewhere
def test_who_needs_all_tokens_is_told():
    model = make(VIT)
    quick, images = optimized(model), batch(VIT)
    gone = {n for n in feature_names(model) if n.startswith("block_1")} | {"before_norm", "encoded", "logits_2d"}
    assert {*feature_names(model)} - {*feature_names(quick)} == gone
    with pytest.raises(ValueError, match=r"optimized for inference.*with_config\(class_token_only=False\)"):
        keras_vit.feature_extractor(quick, ["encoded"])
    assert inspection.attention_maps(quick, images, 0).shape == (2, 2, 5, 5)
    for name in ("attention_maps", "mean_attention_distance", "gradient_attention", "class_evidence"):
        with pytest.raises(ValueError, match="optimized for inference, so its last block"):
            getattr(inspection, name)(quick, images)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
def test_quantized_models_are_optimized_before():
    model = make(VIT)
    model.quantize("int8")
    with pytest.raises(ValueError, match="Change the model before quantizing"):
        optimized(model)
    quick = optimized(make(VIT))
    quick.quantize("int8")
    assert np.isfinite(forward(quick, batch(VIT))).all()


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="graphs of the others free them by themselves")
def test_activations_go_with_their_last_reader():
    """On PyTorch, memory does not grow with the depth: of all outputs, the last one and the next are there at most."""
    import torch

    model = make(VIT.replace(depth=6))
    outputs, alive = [], []

    def remembering(call):
        def remember(*args, **kwargs):
            y = call(*args, **kwargs)
            outputs.append(weakref.ref(y))
            alive.append(sum(output() is not None for output in outputs))
            return y

        return remember

    for i in range(6):
        block = model.get_layer(f"block_{i}")
        block.call = remembering(block.call)
    with torch.no_grad():
        model(torch.from_numpy(batch(VIT)))
    assert len(alive) == 6 and max(alive) == 2, alive


@pytest.mark.parametrize("dtype", ["float32", "uint8", "float64"])
def test_predict_is_that_of_keras(backend, dtype, monkeypatch):
    """Whole and partial batches, each option; TensorFlow traces no functions of the data again in each call."""
    model = keras_vit.VisionTransformer(PIXELS)
    images = batch(PIXELS)[[0, 1, 1, 0, 1]].astype(dtype)
    for options in ({}, {"batch_size": 0}, {"batch_size": 2}, {"batch_size": 5}, {"batch_size": 2, "steps": 2}):
        wanted = keras.Model.predict(model, images, verbose=0, **options)
        np.testing.assert_array_equal(model.predict(images, verbose=0, **options), wanted)
    if backend == "tensorflow" and dtype != "float64":
        from tensorflow.python.framework import func_graph

        monkeypatch.setattr(func_graph, "FuncGraph", None)  # which every traced function needs
        assert model.predict(images, verbose=0, batch_size=5).shape == (5, 3)
