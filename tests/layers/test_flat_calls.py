"""A flat call has the answers of Keras's, whatever was changed after the last one, and few calls of Python."""

import copy
import cProfile
import functools
import pstats
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import torch

import keras_vit
from keras_vit import _keras, training
from keras_vit.layers import base
from keras_vit.layers.fast import FORMS, flat
from keras_vit.layers.fast import torch as fast_torch
from tests.small_models import images_for, small_vit

pytestmark = pytest.mark.once


def block_of(model):
    return model.get_layer("block_0")


def answer(model, x):
    with torch.no_grad():
        return model(x, training=False).numpy()


def answer_of_keras(model, x, monkeypatch):
    """What the model answers where no layer is flat."""
    with monkeypatch.context() as patch:
        patch.setattr(flat, "_FLAT", {})
        flat.note_change()
        y = answer(model, x)
    flat.note_change()
    return y


def doubled(layer):
    call = layer.call
    layer.call = lambda *args, **options: 2 * call(*args, **options)


def replaced(model):
    block = block_of(model)
    block._tracker.unlock()
    block.norm1 = keras.layers.Rescaling(0.5)
    block._tracker.lock()


def with_adapters(model):
    training.add_lora(model, rank=2)
    for weight in model.trainable_weights:
        if "lora_kernel_b" in weight.path:
            weight.assign(keras.ops.ones(weight.shape))


def patched_class(model):
    layers = base.LayerNormalization
    kept = layers.call
    layers.call = lambda self, inputs, training=None: 3 * kept(self, inputs)
    return lambda: setattr(layers, "call", kept)


def without_call(model):
    doubled(block_of(model).attention)
    answer(model, torch.from_numpy(images_for(model.config)))
    del block_of(model).attention.call
    block_of(model).attention.heads = 4


class Halved(base.LayerNormalization):
    def call(self, inputs, training=None):
        return 0.5 * base.LayerNormalization.call(self, inputs)


CHANGES = {
    "another attribute": lambda model: setattr(block_of(model).norm1, "epsilon", 1.0),
    "the method of a layer": lambda model: doubled(block_of(model).attention),
    "the method of the model": lambda model: doubled(model),
    "a method back again": without_call,
    "the method of a class": patched_class,
    "a layer in the place of another": replaced,
    "PyTorch's way to replace": lambda model: block_of(model).add_module("norm1", keras.layers.Rescaling(0.5)),
    "an activation": lambda model: setattr(block_of(model).mlp.fc1, "activation", keras.activations.relu),
    "the data of a parameter": lambda model: next(block_of(model).mlp.fc1.parameters()).data.zero_(),
    "adapters": with_adapters,
    "a policy": lambda model: setattr(block_of(model).mlp.fc1, "dtype_policy", keras.DTypePolicy("bfloat16")),
    "quantization": lambda model: block_of(model).mlp.fc1.quantize("int8"),
    "weights": lambda model: model.set_weights([1.5 * weight for weight in model.get_weights()]),
    "the dtype of parameters": lambda model: block_of(model).mlp.to(torch.float64),
    "a state dict whose tensors are taken": lambda model: model.load_state_dict(model.state_dict(), assign=True),
    "another class": lambda model: setattr(block_of(model).norm1, "__class__", Halved),
}
# What changes nothing that is computed.
QUIET = {"the dtype of parameters", "a state dict whose tensors are taken"}


@pytest.mark.parametrize("change", CHANGES)
def test_the_next_call_after_a_change_is_another(change, monkeypatch):
    model = small_vit()
    x = torch.from_numpy(images_for(model.config))
    before = answer(model, x)
    np.testing.assert_array_equal(answer(model, x), before)
    undo = CHANGES[change](model)
    now = answer(model, x)
    if change not in QUIET:
        assert (now != before).any()
    np.testing.assert_allclose(now, answer_of_keras(model, x, monkeypatch), rtol=0, atol=1e-5)
    if change == "the method of a class":
        undo()
        np.testing.assert_array_equal(answer(model, x), before)


def test_changes_before_the_first_flat_call_are_seen(monkeypatch):
    """A list of layers may be there whose inner ones nobody has read yet."""
    block = block_of(small_vit())
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 5, 8)).astype("float32"))
    block(x.double(), training=False)  # Keras casts: nothing inside is read
    block.mlp.fc1.dtype_policy = keras.DTypePolicy("bfloat16")
    found = block(x, training=False).detach()
    monkeypatch.setattr(flat, "_FLAT", {})
    flat.note_change()
    torch.testing.assert_close(found, block(x, training=False).detach(), rtol=0, atol=0)


@pytest.mark.parametrize("place", ["block_0", "head", "the model"])
@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_sees_the_calls_after_it(place, kind):
    model, seen = small_vit(), []
    x = torch.from_numpy(images_for(model.config))
    answer(model, x)
    layer = model if place == "the model" else model.get_layer(place)
    getattr(layer, kind)(lambda module, *values: seen.append(module))
    answer(model, x)
    assert seen == [layer]


def test_a_regularizer_of_activities_counts_and_goes():
    model = small_vit()
    x = torch.from_numpy(images_for(model.config))
    answer(model, x)
    block_of(model).mlp.activity_regularizer = keras.regularizers.L2(0.1)
    answer(model, x)
    assert len(model.losses) == 1
    block_of(model).mlp.activity_regularizer = None
    answer(model, x)
    assert model.losses == []


def test_adapters_are_multiplied_in_each_call(monkeypatch):
    """Their product is not a weight: what a flat layer read of it once would stay when both factors change."""
    model = small_vit()
    with_adapters(model)
    x = torch.from_numpy(images_for(model.config))
    before = answer(model, x)
    for weight in model.trainable_weights:
        weight.assign(2 * weight.value)
    after = answer(model, x)
    assert not np.allclose(after, before)
    np.testing.assert_array_equal(after, answer_of_keras(model, x, monkeypatch))


def test_a_copy_has_its_own_weights():
    block = block_of(small_vit())
    x = torch.ones((1, 5, 8))
    before = block(x, training=False).detach()
    other = copy.deepcopy(block)
    other.set_weights([0 * weight for weight in other.get_weights()])
    torch.testing.assert_close(block(x, training=False).detach(), before)
    assert torch.equal(other(x, training=False).detach(), x)


def test_threads_see_their_own_devices_and_changes():
    """While one thread changes a layer again and again, others get the answer before or after a change."""
    model = small_vit()
    x = torch.from_numpy(images_for(model.config))
    norm = block_of(model).norm1
    wanted = []
    for epsilon in (1e-6, 1.0):
        norm.epsilon = epsilon
        wanted.append(answer(model, x))

    def change():
        for i in range(60):
            norm.epsilon = (1e-6, 1.0)[i % 2]

    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(lambda: [answer(model, x) for _ in range(20)]) for _ in range(2)]
        pool.submit(change).result()
    found = [y for one in answers for y in one.result()]
    assert all(any(np.array_equal(y, one) for one in wanted) for y in found)
    np.testing.assert_array_equal(answer(model, x), wanted[1])


def regularize(model):
    block_of(model).mlp.fc1.kernel.regularizer = keras.regularizers.L2(0.1)
    block_of(model).mlp.activity_regularizer = keras.regularizers.L2(0.1)


PLAIN = functools.partial(training.MomentumSGD, 0.1)
UPDATES = {  # the optimizer, the policy, and what happens to the model
    "clipped": (lambda: training.MomentumSGD(0.1, global_clipnorm=0.01), None, None),
    "decay, rates": (lambda: training.MomentumSGD(0.1, weight_decay=0.1, rate_multipliers={"head/*": 2.0}), None, None),
    "moving average": (lambda: training.MomentumSGD(0.1, use_ema=True, ema_overwrite_frequency=2), None, None),
    "accumulation": (lambda: training.MomentumSGD(0.1, gradient_accumulation_steps=2), None, None),
    "float16": (PLAIN, "mixed_float16", None),
    "AdamW": (lambda: training.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.1), None, None),
    "a frozen weight": (PLAIN, None, lambda model: setattr(model.get_layer("head").kernel, "trainable", False)),
    "adapters": (PLAIN, None, with_adapters),
    "regularizers": (PLAIN, None, regularize),
}


@pytest.mark.parametrize("case", UPDATES)
def test_an_update_is_that_of_keras(case, monkeypatch):
    """To the bit: `fit` with its logs, the weights after it, and the state of the optimizer."""
    make, policy, change = UPDATES[case]

    def trained():
        keras.utils.set_random_seed(0)  # of adapters
        model = small_vit(dtype=policy)
        if change:
            change(model)
        x = images_for(model.config)
        y = np.eye(3, dtype="float32")[np.arange(len(x)) % 3]
        model.compile(make(), training.SoftmaxLoss(), metrics=["accuracy"])
        first = model.train_on_batch(x, y, sample_weight=np.linspace(0.5, 1, len(x)), return_dict=True)
        history = model.fit(x, y, epochs=3, verbose=0, shuffle=False, validation_data=(x, y)).history
        state = [keras.ops.convert_to_numpy(keras.ops.cast(one, "float32")) for one in model.optimizer.variables]
        return [*model.get_weights(), *state], [first, history]

    found, logs = trained()
    monkeypatch.delattr(_keras.TrackingModel, "train_step")
    monkeypatch.delattr(_keras.TrackingModel, "losses")
    monkeypatch.delattr(_keras.TrackingModel, "_flatten_layers")
    monkeypatch.delattr(_keras.DecayingOptimizer, "_overwrite_variables_directly_with_gradients")
    wanted, its_logs = trained()
    assert logs == its_logs
    assert all(map(np.array_equal, found, wanted)) and len(found) == len(wanted)


@pytest.mark.parametrize("kind", [training.MomentumSGD, training.AdamW])
def test_an_update_without_state_leaves_the_weights(kind):
    weights = [keras.Variable(np.ones(3, "float32")), keras.Variable(np.ones((2, 2), "float32"))]
    grads = [torch.full(one.shape, 0.5) for one in weights]
    optimizer = kind(0.1)
    optimizer.build(weights)
    given = [torch.ones(one.shape) for one in weights]
    states = [torch.clone(one.value.detach()) for one in optimizer.variables]
    with torch.no_grad():
        updated, _ = optimizer.stateless_apply(states, grads, given)
    assert all((one.value == 1).all() for one in weights)
    with torch.no_grad():
        optimizer.apply(grads, weights)
    for one, wanted in zip(updated, weights, strict=True):
        torch.testing.assert_close(one, wanted.value.detach())


def test_a_loss_that_is_added_counts():
    model = small_vit()
    model.compile(training.MomentumSGD(0.1), training.SoftmaxLoss())
    x, y = images_for(model.config), np.eye(3, dtype="float32")[[0, 1]]
    model.train_on_batch(x, y)
    block_of(model).mlp.add_loss(torch.tensor(2.0))
    assert [float(one) for one in model.losses] == [2.0]


def calls_of(function):
    for _ in range(2):
        function()
    with cProfile.Profile() as profile:
        function()
    return pstats.Stats(profile).total_calls


@pytest.mark.parametrize("bias", ["all", "no_key"])
def test_projections_of_many_tokens_are_one_product(bias, monkeypatch):
    layer = keras_vit.layers.MultiHeadAttention(heads=2, bias=bias)
    x = torch.randn(40, 3, 8)
    layer.build(x.shape)
    for weight in layer.trainable_weights:
        weight.assign(keras.random.normal(weight.shape, seed=len(weight.path)))
    made, dense = [], fast_torch.dense
    monkeypatch.setattr(fast_torch, "dense", lambda x, *weights: made.append(weights[0].shape[1]) or dense(x, *weights))
    found = []
    for form in (fast_torch.dense_of_all, lambda *_: NotImplemented):
        monkeypatch.setitem(FORMS, ("dense_of_all", "torch, cpu"), form)
        layer.zero_grad()
        y = layer(x, training=True)
        y.square().sum().backward()
        found.append([y.detach(), *(weight.value.grad for weight in layer.trainable_weights)])
    assert made == ([24] if bias == "all" else [])
    largest = max(float(one.abs().max()) for one in found[1])
    for one, other in zip(*found, strict=True):  # sums in another order
        # Rounding is measured by the largest gradient, because that of the bias of keys is 0 except for rounding.
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize("onednn", [False, True])
def test_calls_of_a_forward_pass_and_of_an_update(onednn, monkeypatch):
    """Of twelve blocks; what Keras does around each call was 22,000 of them, and 138,000 in an update."""
    monkeypatch.setattr(fast_torch, "takes_onednn", lambda: onednn)
    monkeypatch.setattr(fast_torch, "FEWEST", 0)
    model = keras_vit.create_model("ViT-Ti/16", image_size=32, classes=10)
    x = torch.zeros((1, 32, 32, 3))
    assert calls_of(lambda: answer(model, x)) <= 4000
    model.compile(training.MomentumSGD(0.1, global_clipnorm=1.0), training.SoftmaxLoss())
    labels = np.eye(10, dtype="float32")[[3]]
    assert calls_of(lambda: model.train_on_batch(x.numpy(), labels)) <= 12_000


def test_an_optimized_and_a_quantized_model_answer_as_keras(monkeypatch):
    quantized = small_vit()
    block_of(quantized).attention.out.quantize("int8")
    for model in (small_vit().optimize_for_inference(verbose=False), quantized):
        x = torch.from_numpy(images_for(model.config))
        np.testing.assert_allclose(answer(model, x), answer_of_keras(model, x, monkeypatch), rtol=0, atol=1e-5)
