"""Properties of random small configs and models, of every kind, under every option of Keras."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_vit import training
from tests.properties.random_models import BASES, OF_IMAGES, VALUES, assert_same_model, configs, examples, made, values

pytestmark = pytest.mark.once


def as_numpy(value, kind):
    """A value with NumPy's integers for Python's, however deep."""
    if isinstance(value, dict):
        return {name: as_numpy(inner, kind) for name, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(as_numpy(inner, kind) for inner in value)
    return kind(value) if isinstance(value, int) and not isinstance(value, bool) else value


@given(configs(), st.sampled_from([np.int64, np.int32, np.uint16]))
@examples(100)
def test_integers_of_numpy_are_integers(config, kind):
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if "backbone" in fields:
        backbone = {field.name: getattr(config.backbone, field.name) for field in dataclasses.fields(config.backbone)}
        fields["backbone"] = type(config.backbone)(**as_numpy(backbone, kind))
    other = type(config)(**as_numpy(fields, kind))
    assert other == config
    assert json.dumps(other.to_dict()) == json.dumps(config.to_dict())


@st.composite
def options(draw):
    """What a user may have done to a model: its dtype, and functions that change it in place."""
    dtype = draw(st.sampled_from(["float32", "float32", "float64", "mixed_bfloat16", "mixed_float16"]))
    frozen = draw(st.sampled_from([None, "embedding", "block*", "*/bias", "*"]))
    adapted = draw(st.booleans())
    exact = dtype in ("float32", "mixed_bfloat16")  # Keras quantizes no float16, and warns of float64
    quantized = draw(st.sampled_from([None, "int8"])) if exact else None
    return {"dtype": dtype, "frozen": frozen, "adapted": adapted, "quantized": quantized}


def changed(config, dtype, frozen, adapted, quantized):
    """A model under these options, but for those of which it says that it does not take them."""
    model = made(config, dtype)
    if quantized:
        model.quantize(quantized)
    for change in (
        lambda: adapted and training.add_lora(model, rank=2, alpha=3),
        lambda: frozen and training.freeze(model, frozen),
    ):
        try:
            change()
        except ValueError:
            pass
    rng = np.random.default_rng(2)
    for weight in model.weights:
        if "lora_kernel_b" in weight.path:
            weight.assign(rng.normal(0, 0.1, weight.shape))
    return model


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
@given(configs(tuple(OF_IMAGES)), options())
@examples(40)
def test_with_config_without_changes_is_the_identity(config, chosen):
    model = changed(config, **chosen)
    assert_same_model(model.with_config(), model)


def test_every_field_has_values():
    for bases in BASES.values():
        for field in dataclasses.fields(bases[0]):
            assert field.name == "backbone" or isinstance(values(field), st.SearchStrategy)
    fields = {field.name for bases in BASES.values() for field in dataclasses.fields(bases[0])}
    assert not VALUES.keys() - fields
