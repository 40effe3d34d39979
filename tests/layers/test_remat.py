"""Rematerialisation: the block runs twice, and both runs drop the same units. Otherwise gradients are wrong."""

import keras
import numpy as np
import pytest

from keras_vit import layers
from tests.compute import filled, gradients, relative_error, square

RATES = {"dropout": 0.3, "attention_dropout": 0.3, "drop_path": 0.3}
jax_only = pytest.mark.skipif(keras.backend.backend() != "jax", reason="what only JAX has")


def block(remat):
    return filled(layers.TransformerBlock(2, 6, remat=remat, **RATES), (None, 3, 4), scale=1)


def copy_seeds(source, target):
    """Random states are variables, but no weights."""
    states = [[v for v in layer.variables if "seed" in v.path] for layer in (source, target)]
    assert len(states[0]) == len(states[1]) == 3  # the block's, the attention's, the MLP's
    for a, b in zip(*states, strict=True):
        b.assign(a)


def by_place(layer, grads):
    return {path.removeprefix(f"{layer.path}/"): grad for path, grad in grads.items()}


def test_same_masks_and_same_gradients():
    plain, again = block(remat=False), block(remat=True)
    copy_seeds(plain, again)
    x = np.random.default_rng(1).normal(size=(6, 3, 4)).astype("f4")
    for _ in range(2):  # the second step drops other units, the same in both
        loss, grads = gradients(plain, x, square, training=True)
        loss_again, grads_again = gradients(again, x, square, training=True)
        grads, grads_again = by_place(plain, grads), by_place(again, grads_again)
        assert abs(loss - loss_again) <= 1e-6 * loss
        assert grads.keys() == grads_again.keys() and len(grads) == 16
        # The same sums, at most in another order; the key's bias has no gradient but rounding errors.
        errors = {p: relative_error(grads_again[p], grads[p]) for p in grads if p != "attention/key/bias"}
        assert max(errors.values()) < 1e-5

    # What a second mask would look like.
    _, other = gradients(again, x, square, training=True)
    assert relative_error(by_place(again, other)["mlp/fc1/kernel"], grads["mlp/fc1/kernel"]) > 0.1


@jax_only
def test_less_memory():
    """Measured on the whole program: what XLA for CPUs makes of `jax.checkpoint` takes as much as without it."""
    import jax

    x = np.zeros((4, 64, 8), "f4")

    def planned(remat):
        with layers.skip_initialization():
            model = keras.Sequential([keras.Input(x.shape[1:])])
            for _ in range(4):
                model.add(layers.TransformerBlock(2, 64, attention_dropout=0.1, remat=remat))
        state = [[v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables)]

        def loss(trainable, other):
            return square(model.stateless_call(trainable, other, x, training=True)[0])

        return jax.jit(jax.grad(loss)).lower(*state).compile().memory_analysis().temp_size_in_bytes

    # Of four blocks, three are not kept except for their inputs.
    assert planned(True) < 0.6 * planned(False)


@jax_only
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_with_its_image(value):
    """The gradient that the second run waits for may be anything; it is that of the last image's first value, too."""
    import jax

    made = block(remat=True)
    other = [v.value for v in made.non_trainable_variables]
    weights = [v.value for v in made.trainable_variables]
    x = np.random.default_rng(1).normal(size=(3, 3, 4)).astype("f4")

    def grads(scale):
        def loss(x):
            return (made.stateless_call(weights, other, x, training=True)[0] * scale[:, None, None]).sum()

        return np.asarray(jax.jit(jax.grad(loss))(x))

    bad, good = grads(np.array([value, 1, 1], "f4")), grads(np.ones(3, "f4"))
    assert not np.isfinite(bad[0]).all()
    np.testing.assert_array_equal(bad[1:], good[1:])


@jax_only
def test_derivatives_of_gradients():
    """Forwards and backwards again, which Hessian-vector products are made of."""
    import jax

    x, v = (np.random.default_rng(i).normal(size=(2, 3, 4)).astype("f4") for i in range(2))
    results = []
    for remat in (False, True):
        made = filled(layers.TransformerBlock(2, 6, remat=remat), (None, 3, 4), scale=1)
        weights = [w.value for w in made.weights]

        def grad(x, made=made, weights=weights):
            return jax.grad(lambda x: square(made.stateless_call(weights, [], x, training=True)[0]))(x)

        forwards = jax.jit(lambda x, grad=grad: jax.jvp(grad, (x,), (v,))[1])(x)
        backwards = jax.jit(jax.grad(lambda x, grad=grad: (grad(x) * v).sum()))(x)
        results.append((forwards, backwards))
    # The same sums in another order.
    for got, wanted in zip(results[1], results[0], strict=True):
        assert relative_error(np.asarray(got), np.asarray(wanted)) < 1e-5
