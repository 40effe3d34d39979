"""Outputs and gradients of a Keras model or layer on any backend, as NumPy arrays."""

import keras
import numpy as np

from keras_vit.layers import skip_initialization


def filled(layer, *shapes, scale=0.4):
    """The layer, built for inputs of these shapes, with random weights; drawing first values would cost JAX seconds."""
    with skip_initialization():
        layer.build(*shapes)
    rng = np.random.default_rng(0)
    layer.set_weights([rng.normal(0, scale, w.shape) for w in layer.weights])
    return layer


def assert_close(got, wanted, tolerance=1e-5):
    """By default for float32 sums of up to 24 products of numbers around 1."""
    got = got if isinstance(got, np.ndarray) else keras.ops.convert_to_numpy(got)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance)


def deviations(got, wanted):
    """The largest difference, in standard deviations of what is wanted where these exceed 1 (docs/fidelity.md)."""
    return float(np.abs(got - wanted).max() / max(wanted.std(), 1.0))


def forward(model, x, **options):
    """What `model(x)` gives, in NumPy; compiled on JAX, where one operation after the other takes seconds."""
    if keras.backend.backend() == "jax":
        import jax

        if not model.built:
            model.build(x.shape)

        def call(trainable, non_trainable, x):
            return model.stateless_call(trainable, non_trainable, x, **options)[0]

        variables = model.trainable_variables, model.non_trainable_variables
        y = jax.jit(call)(*([v.value for v in variables_] for variables_ in variables), x)
    else:
        y = model(x, **options)
    return keras.tree.map_structure(keras.ops.convert_to_numpy, y)


def compiled(function):
    """A function from arrays to a tensor; on JAX one program, where one operation after the other takes seconds."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


def gradients(model, x, loss, training=None):
    """The loss and its gradient with respect to every trainable weight of `model`, keyed by the weight's path.

    `loss` maps the model's output to a scalar tensor. Non-trainable state (seeds) is advanced as in a real step.
    """
    step = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    value, grads = step(model, keras.ops.convert_to_tensor(x), loss, training)
    grads = [keras.ops.convert_to_numpy(grad) for grad in grads]
    paths = [weight.path for weight in model.trainable_weights]
    return float(value), dict(zip(paths, grads, strict=True))


def close(got, wanted, tolerance):
    """Asserts that gradients agree, each array within `tolerance` of the norm of its reference."""
    assert got.keys() == wanted.keys()
    errors = {path: relative_error(got[path], wanted[path]) for path in wanted}
    wrong = {path: error for path, error in errors.items() if not error <= tolerance}
    assert not wrong


def square(y):
    """A loss of any outputs."""
    return keras.ops.mean(keras.ops.square(keras.ops.cast(y, "float32")))


def relative_error(got, wanted):
    return float(np.linalg.norm(got - wanted) / max(np.linalg.norm(wanted), 1e-30))


def _tensorflow(model, x, loss, training):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        value = loss(model(x, training=training))
    return value, tape.gradient(value, [weight.value for weight in model.trainable_weights])


def _jax(model, x, loss, training):
    import jax

    def compute(trainable, non_trainable):
        y, state = model.stateless_call(trainable, non_trainable, x, training=training)
        return loss(y), state

    trainable = [weight.value for weight in model.trainable_variables]
    non_trainable = [weight.value for weight in model.non_trainable_variables]
    (value, state), grads = jax.jit(jax.value_and_grad(compute, has_aux=True))(trainable, non_trainable)
    for weight, new in zip(model.non_trainable_variables, state, strict=True):
        weight.assign(new)
    return value, grads


def _torch(model, x, loss, training):
    for weight in model.trainable_weights:
        weight.value.grad = None
    value = loss(model(x, training=training))
    value.backward()
    return value.detach(), [weight.value.grad for weight in model.trainable_weights]


def derivatives(model, x, loss):
    """Functions of a model as it is when they are called: a loss, its gradient, and its Hessian times a vector.

    The vector has an array for each trainable weight, and so have the gradient and the product.
    """
    backend = keras.backend.backend()
    x = keras.ops.convert_to_tensor(x)

    def values():
        return [weight.value for weight in model.trainable_variables]

    if backend == "jax":
        import jax

        other = [weight.value for weight in model.non_trainable_variables]

        def compute(trainable):
            return loss(model.stateless_call(trainable, other, x)[0])

        def times(trainable, vector):
            slope = jax.grad(lambda w: sum((g * v).sum() for g, v in zip(jax.grad(compute)(w), vector, strict=True)))
            return slope(trainable)

        value, first, second = jax.jit(compute), jax.jit(jax.grad(compute)), jax.jit(times)
        return lambda: value(values()), lambda: first(values()), lambda vector: second(values(), vector)

    if backend == "tensorflow":
        import tensorflow as tf

        def gradient():
            with tf.GradientTape() as tape:
                value = loss(model(x))
            return tape.gradient(value, values())

        def times(vector):
            with tf.GradientTape() as tape:
                total = sum(tf.reduce_sum(g * v) for g, v in zip(gradient(), vector, strict=True))
            return tape.gradient(total, values())

        return lambda: loss(model(x)), gradient, times

    import torch

    def gradient(create_graph=False):
        return torch.autograd.grad(loss(model(x)), values(), create_graph=create_graph)

    def times(vector):
        vector = [torch.from_numpy(v) for v in vector]
        total = sum((g * v).sum() for g, v in zip(gradient(create_graph=True), vector, strict=True))
        return torch.autograd.grad(total, values())

    return (
        lambda: loss(model(x)).detach().numpy(),
        lambda: [g.numpy() for g in gradient()],
        lambda vector: [g.numpy() for g in times(vector)],
    )
