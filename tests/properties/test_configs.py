"""Properties of random small configs and models, of every kind, under every option of Keras."""

import dataclasses
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_vit
from keras_vit import training
from keras_vit.checkpoints import LAYOUTS, read_keras, save_model
from keras_vit.models import count_weights
from tests.properties.random_models import (
    BASES,
    BITS,
    OF_IMAGES,
    SMALL,
    VALUES,
    answers,
    assert_same_model,
    configs,
    examples,
    made,
    values,
)
from tests.tolerances import SAME_FUNCTION

pytestmark = pytest.mark.once


@st.composite
def options(draw):
    dtype = draw(st.sampled_from(["float32", "float32", "float64", "mixed_bfloat16", "mixed_float16"]))
    frozen = draw(st.sampled_from([None, "embedding", "block*", "*/bias", "*"]))
    adapted = draw(st.booleans())
    exact = dtype in ("float32", "mixed_bfloat16")  # Keras quantizes no float16, and warns of float64
    quantized = draw(st.sampled_from([None, "int8"])) if exact else None
    return {"dtype": dtype, "frozen": frozen, "adapted": adapted, "quantized": quantized}


def changed(config, dtype, frozen, adapted, quantized):
    """A model under these options, except for those of which it says that it does not take them."""
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
@examples(12)
def test_with_config_without_changes_is_the_identity(config, chosen):
    model = changed(config, **chosen)
    assert_same_model(model.with_config(), model)


def test_every_field_has_values():
    for bases in BASES.values():
        for field in dataclasses.fields(bases[0]):
            assert field.name == "backbone" or isinstance(values(field), st.SearchStrategy)
    fields = {field.name for bases in BASES.values() for field in dataclasses.fields(bases[0])}
    assert not VALUES.keys() - fields


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
@given(configs(), options(), st.sampled_from([".keras", ".weights.h5"]))
@examples(10)
def test_files_of_keras_hold_the_whole_model(config, chosen, ending):
    model = changed(config, **chosen)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"model{ending}")
        if isinstance(model, keras_vit.TextEncoder):
            model.save(path.with_suffix(".keras"))
            assert_same_model(keras.saving.load_model(path.with_suffix(".keras")), model)
        else:
            save_model(model, path)
            assert_same_model(read_keras(path), model)


@given(configs())
@examples(6)
def test_a_safetensors_file_holds_any_config(config):
    """Also one that no layout of others has a place for, as 44 of 150 random ones."""
    model = made(config)
    assert model.count_params() == count_weights(config)
    with tempfile.TemporaryDirectory() as folder:
        keras_vit.to_checkpoint(model, Path(folder, "own.safetensors"))
        assert_same_model(keras_vit.load(Path(folder, "own.safetensors"), name=model.name), model)


PICTURES_SAID = pytest.mark.filterwarnings("ignore:The layout .* cannot store:UserWarning")


PE = {"patch_bias": False, "pre_norm": True, "gelu": "exact", "layer_norm_epsilon": 1e-5, "rotary_embedding": "pe"}
PE |= {"rotary_grid": None, "width": 64, "heads": 1, "classes": None, "pooling": "none", "final_norm": "none"}
# Found by the property in test_layouts.py: what a layout took, and what came back computed something else.
LOST = [
    ("timm", {"register_tokens": 3, "attention_bias": "no_key", "gelu": "tanh"}, "gelu='exact' instead of"),
    ("timm", {"rotary_embedding": "eva02", "gelu": "exact", "attention_bias": "no_key"}, None),
    ("timm", {"rotary_embedding": "eva02", "gelu": "exact"}, "attention_bias must be 'no_key' or 'none'"),
    ("huggingface", {"pre_norm": True, "patch_bias": False, "patch_size": (4, 8)}, "patch_size"),
    ("huggingface", {"layer_scale": 1.0, "mlp_width": 32, "representation_size": 7}, "representation_size"),
    ("timm", {"distillation_token": True, "distillation_head": True, "gelu": "tanh"}, None),
    ("timm", {"distillation_token": True, "distillation_head": True, "layer_norm_epsilon": 1e-5}, "layer_norm_epsilon"),
    ("timm", {"mlp": "swiglu", "layer_norm_epsilon": 1e-5}, "layer_norm_epsilon"),
    ("timm", {"mlp": "swiglu", "pooling": "map"}, "pooling='map'"),
    (
        "timm",
        {"class_token": False, "pooling": "avg", "position_embedding": "none", "rotary_embedding": "dinov3"}
        | {"layer_norm_epsilon": 1e-5, "register_tokens": 4, "gelu": "exact", "attention_bias": "no_key"},
        None,
    ),
    ("vit_jax", {"pixel_mean": (0.1, 0.2, 0.3), "crop_ratio": 0.5, "interpolation": "bicubic"}, None),
    ("big_vision", {"pixel_std": (0.2, 0.4, 0.6), "trim": (1, 0)}, None),
    ("bit_tf", {"pool_padding": "zeros"}, None),
    ("bit_tf", {"pooling": "none", "classes": None, "class_names": None}, None),
    ("vit_jax", {"pooling": "none", "classes": None, "class_names": None}, None),
    (
        "tips_scenic",
        {"pixel_mean": (0.1, 0.2, 0.3), "register_tokens": 1, "position_embedding": "learned_patches"}
        | {"interpolation": "bilinear_antialias", "classes": None, "class_names": None, "pooling": "none"},
        None,
    ),
    ("pe", PE | {"pixel_mean": (0.1, 0.2, 0.3), "interpolation": "bicubic", "crop_ratio": 0.5}, None),
    ("pe", PE | {"final_norm": "tokens"}, "would not contain|read as"),
    ("bit_tf", {"pooling": "none"}, "pooling='avg' instead of"),
    ("vit_jax", {"pooling": "none"}, "pooling='token' instead of"),
    ("huggingface", {"pooling": "none"}, "pooling='token' instead of"),
]


@PICTURES_SAID
@pytest.mark.parametrize(("layout", "fields", "refused"), LOST)
def test_what_layouts_lost(layout, fields, refused, tmp_path):
    config = BITS[0].replace(**fields) if layout == "bit_tf" else keras_vit.ViTConfig(**{**SMALL, **fields})
    path = tmp_path / ("model.npz" if LAYOUTS[layout].sidecars is None else "model.safetensors")
    if refused:
        with pytest.raises(ValueError, match=refused):
            keras_vit.to_checkpoint(made(config), path, layout)
        return
    keras_vit.to_checkpoint(made(config), path, layout)
    again = keras_vit.load(path, image_size=config.image_size)
    kept = {name: getattr(again.config, name) for name in fields if name != "position_embedding"}
    assert kept == {name: getattr(config, name) for name in kept}
    assert answers(again)["answer"] == pytest.approx(answers(made(config))["answer"], abs=SAME_FUNCTION)
