"""Random small models compute the same on every backend, and by fast and plain paths."""

import json
import os
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_vit.layers import ops
from keras_vit.layers.fast import flat
from keras_vit.models import BiTConfig, ViTConfig
from tests.compute import deviations, gradients, relative_error
from tests.properties.random_models import BASES, answers, configs, examples, inputs_of, made
from tests.tolerances import GRADIENTS, SAME_FUNCTION

# Written by `python -m tests.properties.write_answers 2 tests/properties/answers.npz`; another file has more.
ANSWERS = Path(os.environ.get("KERAS_VIT_ANSWERS", Path(__file__).with_name("answers.npz")))


def config_of(kind, fields):
    backbone = {"backbone": ViTConfig(**fields["backbone"])} if "backbone" in fields else {}
    return type(BASES[kind][0])(**{**fields, **backbone})


@pytest.mark.parametrize("kind", BASES)
def test_backends_agree(kind):
    with np.load(ANSWERS, allow_pickle=False) as file:
        stored = dict(file)
    cases = json.loads(str(stored["cases"]))[kind]
    wrong = []
    for number, fields in enumerate(cases):
        found = answers(made(config_of(kind, fields)))
        for name, value in found.items():
            wanted = stored[f"{kind}/{number}/{name}"]
            # Group normalisation over a map of two pixels, say, makes much of rounding, which differs by as much again.
            bound = SAME_FUNCTION + 4 * stored[f"{kind}/{number}/{name}/rounding"]
            off = deviations(value, wanted)
            wrong += [(name, off, bound, fields)] if not off <= bound else []
    assert cases and not wrong


def plain(patch):
    """Computes without faster forms and without flat layers."""
    patch.setattr(ops, "FORMS", {})
    patch.setattr(flat, "_FLAT", {})
    flat.note_change()


def check_paths(config, with_gradients):
    model = made(config)
    x = inputs_of(config)

    def loss(y):
        return sum(keras.ops.mean(value**2) for value in keras.tree.flatten(y))

    def computed():
        grads = gradients(model, x, loss)[1] if with_gradients else {}
        return answers(model), grads

    found, grads = computed()
    with pytest.MonkeyPatch.context() as patch:
        plain(patch)
        wanted, plain_grads = computed()
        exact = ()
        if with_gradients:
            exact_model = type(model)(config, dtype="float64")
            exact_model.set_weights(model.get_weights())
            exact = gradients(exact_model, x, loss)[1].values()
    for name, value in wanted.items():
        assert deviations(found[name], value) <= SAME_FUNCTION, name
    # A key's bias has none, except for rounding: softmax does not see it.
    sizes = {name: np.linalg.norm(value) for name, value in plain_grads.items()}
    errors = {
        name: (relative_error(grads[name], value), GRADIENTS + 4 * relative_error(value, float64))
        for (name, value), float64 in zip(plain_grads.items(), exact, strict=True)
        if sizes[name] > 1e-6 * max(sizes.values())
    }
    # As in `test_backends_agree`: where groups of few values magnify rounding, it differs by as much again.
    assert {name: error for name, error in errors.items() if not error[0] <= error[1]} == {}


@given(st.data())
@examples(12 if keras.backend.backend() == "torch" else 3)
def test_fast_and_plain_paths_agree(data):
    check_paths(data.draw(configs()), with_gradients=keras.backend.backend() == "torch")


@pytest.mark.once
def test_groups_of_few_values_have_the_gradients_of_the_plain_path():
    """PyTorch's group normalisation was 8e-3 off: a variance of rounding alone is divided by."""
    sizes = {"image_size": (8, 8), "stages": (1, 1), "width": 32, "channels": 3, "dynamic": True, "pooling": "none"}
    check_paths(BiTConfig(**sizes, classes=3, include_preprocessing=True), with_gradients=True)


@pytest.mark.once
@given(configs(("VisionTransformer", "BiT")))
@examples(15)
def test_optimized_models_agree(config):
    model = made(config)
    found, wanted = answers(model.optimize_for_inference(verbose=False)), answers(model)
    assert deviations(found["answer"], wanted["answer"]) <= 1e-4  # as its docstring says
