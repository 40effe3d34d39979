"""docs/known_limits.md: each limit is still there. A test that fails here says that one is gone: take it off the page.

These are limits of Keras and the frameworks, and nobody's wish: a failure after an update of theirs is good news.
"""

import keras
import numpy as np
import pytest

import keras_vit
from tests.export.tiny import CONFIG, new_model


def images(count=2):
    return np.random.default_rng(0).normal(size=(count, 8, 12, 3)).astype("float32")


@pytest.fixture
def torch(backend):
    if backend != "torch":
        pytest.skip("a limit of PyTorch")
    return pytest.importorskip("torch")


def test_gone_if_it_fails_functional_call_ignores_its_parameters(torch):
    model, x = new_model(), torch.from_numpy(images())
    zeros = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    answers = model(x).detach()
    np.testing.assert_array_equal(torch.func.functional_call(model, zeros, (x,)).detach(), answers)
    # The way out:
    changed, _ = model.stateless_call([weight.value * 0 for weight in model.trainable_variables], [], x)
    assert answers.abs().max() > 0.1 and changed.abs().max() == 0


def second_order(torch, model, x):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), x)[0]


def forward_mode(torch, model, x):
    return torch.func.jvp(lambda images: model(images).sum(), (x,), (torch.ones_like(x),))[1]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own forward mode
@pytest.mark.parametrize("derivative", [second_order, forward_mode])
def test_gone_if_it_fails_fused_attention_has_first_derivatives_only(torch, derivative):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    model, x = new_model(), torch.from_numpy(images())
    with pytest.raises((RuntimeError, NotImplementedError), match="scaled_dot_product"):
        derivative(torch, model, x)
    with sdpa_kernel(SDPBackend.MATH):  # the way out
        assert derivative(torch, model, x).isfinite().all()


def test_gone_if_it_fails_remat_has_no_forward_mode_on_jax_s_cpus(backend):
    """With `jax.checkpoint` it would have, and XLA for CPUs would save no memory."""
    if backend != "jax":
        pytest.skip("a limit of JAX")
    import jax

    def slope(remat):
        model = new_model(CONFIG.replace(remat=remat))
        weights, others = ([v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables))
        answers = lambda x: model.stateless_call(weights, others, x, training=True)[0].sum()  # noqa: E731
        return jax.jvp(answers, (images(),), (images(),))[1]

    with pytest.raises(TypeError, match="custom_vjp"):
        slope(remat=True)
    assert np.isfinite(slope(remat=False))  # the way out


def trained(dtype):
    """How many weights have changed after a few updates."""
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer(CONFIG, dtype=dtype)
    model.compile(keras.optimizers.AdamW(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = [keras.ops.convert_to_numpy(keras.ops.cast(w, "float32")) for w in model.trainable_weights]
    model.fit(images(10), np.arange(10) % 5, epochs=5, batch_size=10, verbose=0)
    after = [keras.ops.convert_to_numpy(keras.ops.cast(w, "float32")) for w in model.trainable_weights]
    return sum(int((old != new).sum()) for old, new in zip(before, after, strict=True))


def test_gone_if_it_fails_adam_does_not_train_weights_of_bfloat16(torch):
    assert trained("bfloat16") == 0
    assert trained("mixed_bfloat16") > 1000  # the way out


def test_gone_if_it_fails_an_error_takes_the_weights_of_models_around_one_on_jax(backend):
    if backend != "jax":
        pytest.skip("Keras takes the values out of variables on JAX only")
    model = keras_vit.VisionTransformer(CONFIG)
    extractor = keras_vit.feature_extractor(model, ["encoded"])
    with pytest.raises(ValueError, match="shape"):
        extractor.predict_on_batch(images()[:, 1:])  # the way out
    assert np.isfinite(model.predict(images(), verbose=0)).all()
    with pytest.raises(ValueError):
        extractor.predict(images()[:, 1:], verbose=0)
    with pytest.raises(TypeError, match="NoneType"):
        model(images())


def test_gone_if_it_fails_load_state_dict_assigns_what_no_layer_reads(torch):
    model = new_model()
    before = model.weights[0].numpy().copy()
    zeros = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    assert str(model.load_state_dict(zeros, assign=True)) == "<All keys matched successfully>"
    np.testing.assert_array_equal(model.weights[0].numpy(), before)
    # The way out:
    model = new_model()
    model.load_state_dict(zeros)
    assert before.any() and not model.weights[0].numpy().any()


@pytest.mark.once
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_gone_if_it_fails_the_old_format_needs_custom_objects(tmp_path):
    model, path = new_model(), tmp_path / "model.h5"
    model.save(path)
    with pytest.raises((TypeError, ValueError), match="VisionTransformer"):
        keras.saving.load_model(path)
    again = keras.saving.load_model(path, custom_objects={"VisionTransformer": keras_vit.VisionTransformer})
    np.testing.assert_array_equal(again.predict(images(), verbose=0), model.predict(images(), verbose=0))


@pytest.mark.once
def test_gone_if_it_fails_metrics_of_an_earlier_compile_stay():
    x, y = np.random.default_rng(0).normal(size=(32, 8)).astype("float32"), np.arange(32) % 3
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, verbose=0)
    model.compile("sgd", "categorical_crossentropy")
    with pytest.raises(Exception, match="size|shape|incompatible"):
        model.fit(x, np.eye(3)[y], verbose=0)
    # The way out:
    model.compile("sgd", "categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, np.eye(3)[y], verbose=0)
