"""Random small models of every kind: configs drawn from the fields of their dataclasses, weights from their shapes."""

import dataclasses
import os

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

import keras_vit
from keras_vit.models import FAMILIES
from keras_vit.models.dense_config import WITHOUT_TOP
from keras_vit.preprocessing import FILTERS
from tests.compute import forward
from tests.small_models import model_of, values_of

# As many times the examples of the suite are tried where this variable says so; none of them depends on chance.
TIMES = int(os.environ.get("KERAS_VIT_EXAMPLES", "1"))


def examples(count):
    """Decorator of a property: how many examples are tried in a run of the suite."""
    # Configs are small as they are drawn: to look for smaller ones would take minutes where a property fails.
    fixed = {"derandomize": True, "database": None, "deadline": None, "phases": [Phase.explicit, Phase.generate]}
    return settings(max_examples=count * TIMES, suppress_health_check=list(HealthCheck), **fixed)


SMALL = {"image_size": 16, "patch_size": 8, "width": 16, "depth": 2, "heads": 2, "mlp_width": 12, "classes": 3}
HYBRID = {**SMALL, "patch_size": 2, "stem_stages": (1,), "stem_width": 32}
MIXER = {"class_token": False, "heads": 1, "position_embedding": "none", "pooling": "avg", "tokens_mlp_width": 6}
DEIT = {"distillation_token": True, "distillation_head": True}
NO_TOKEN = {"class_token": False, "pooling": "avg"}  # of families whose rows do not say so, as variants do
VITS = [
    *(keras_vit.ViTConfig(**{**SMALL, **NO_TOKEN, **row}) for row in FAMILIES.values() if "pooling" not in row),
    *(keras_vit.ViTConfig(**{**SMALL, **row}) for row in FAMILIES.values()),
    *(keras_vit.ViTConfig(**fields) for fields in (HYBRID, {**SMALL, **MIXER}, {**SMALL, **DEIT})),
]
BITS = [keras_vit.BiTConfig(image_size=16, stages=stages, width=32, classes=3) for stages in ((1,), (1, 1))]
TEXT = {"vocabulary": 11, "context": 5, "width": 16, "depth": 2, "heads": 2, "mlp_width": 12}
TEXTS = [
    keras_vit.TextConfig(**TEXT, **more)
    for more in ({}, {"causal": True, "gelu": "quick", "pooling": "end_id", "end_id": 3}, {"pooling": "map"})
]
BACKBONES = [config.replace(**WITHOUT_TOP, final_norm="tokens") for config in VITS if not config.tokens_mlp_width]
_MAPS = {"widths": (4, 4, 4, 4), "fusion_width": 4, "head_width": 4}


def _dense(backbone):
    four = backbone.replace(depth=4)
    return {
        "EoMT": keras_vit.models.EoMTConfig(backbone=backbone, classes=3, queries=4, query_blocks=1, upscale_blocks=1),
        "LinearSegmenter": keras_vit.models.LinearSegmenterConfig(backbone=backbone, classes=3, blocks=(0, 1)),
        "DPT": keras_vit.models.DPTConfig(backbone=four, blocks=(0, 1, 2, 3), **_MAPS),
        "MultiTaskDPT": keras_vit.models.MultiTaskDPTConfig(
            backbone=four.replace(class_token=True, pooling="none"),
            blocks=(0, 1, 2, 3),
            tasks=("normals",),
            widths=(4, 4, 4, 4),
            fusion_width=4,
        ),
        "LinearDepth": keras_vit.models.LinearDepthConfig(
            backbone=backbone.replace(class_token=True, pooling="none"), blocks=(1,), bins=5
        ),
    }


BASES = {"VisionTransformer": VITS, "BiT": BITS, "TextEncoder": TEXTS}
BASES |= {kind: [_dense(backbone)[kind] for backbone in BACKBONES] for kind in _dense(BACKBONES[0])}
OF_IMAGES = [kind for kind in BASES if kind != "TextEncoder"]
DENSE = [kind for kind in OF_IMAGES if kind not in ("VisionTransformer", "BiT")]

_RATE, _SIDE = [0.0, 0.1], [8, 16, 24]
_PAIRS = st.one_of(st.sampled_from(_SIDE), st.tuples(st.sampled_from(_SIDE), st.sampled_from(_SIDE)))
# Values of the fields that are neither flags nor choices. What fits no other field is refused by the config.
VALUES = {
    **dict.fromkeys(("image_size", "patch_size", "crop_size", "stride", "picture_size", "rotary_grid"), _PAIRS),
    **{"width": [16, 24, 32], "depth": [1, 2, 3], "heads": [1, 2, 4], "mlp_width": [5, 12], "channels": [1, 3, 4]},
    **{"stem_stages": [None, (), (1,), (1, 1)], "stem_width": [32, 64], "register_tokens": [0, 1, 3]},
    **{"tokens_mlp_width": [None, 5], "layer_scale": [None, 0.0, 0.5], "layer_norm_epsilon": [1e-6, 1e-5, 0.1]},
    **{"final_norm_epsilon": [None, 1e-6, 0.1], "tasks": [("depth",), ("normals",), ("depth", "normals")]},
    **dict.fromkeys(("dropout", "attention_dropout", "patch_drop", "drop_path"), _RATE),
    **{"projection": [None, 6], "representation_size": [None, 7], "classes": [None, 2, 3]},
    **{"class_names": [None, ("a", "b"), ("a b", "b", "ü")], "classifier_activation": [None, "softmax", "sigmoid"]},
    **dict.fromkeys(("pixel_mean", "pixel_std"), [0.5, (0.3,), (0.2, 0.4, 0.6), (0.2, 0.4, 0.6, 0.9)]),
    **{"resize": ["squash", "shortest"], "crop_ratio": [0.5, 1.0], "filter": [*FILTERS], "trim": [(0, 0), (1, 0)]},
    "crop_rounding": ["even", "floor"],
    **{"stages": [(1,), (2,), (1, 1)], "pool_padding": ["-inf", "zeros"]},
    **{"vocabulary": [3, 11], "context": [2, 5], "end_id": [None, 0, 3]},
    **{"queries": [1, 4], "query_blocks": [1, 2], "upscale_blocks": [0, 1, 2], "task": [None, "panoptic", "instance"]},
    **{"activation": ["exact", "silu", "relu"], "short_side": [8, 30], "blocks": [(1,), (0, 1), (0, 1, 2, 3)]},
    "pictures": ["eomt_transformers", "dinov2", "dinov3", "depth_anything", "depth_anything_transformers"],
    **{
        "min_depth": [0.0, 0.1],
        "max_depth": [1.0, 80.0],
        "bins": [2, 5],
        "design": ["depth_anything", "depth_anything_3", "dinov2"],
    },
    **{"pooling_heads": [None, 1, 2], "pooling_mlp_width": [None, 5], "pad_id": [None, 0]},
    **{"widths": [(4, 4, 4, 4), (2, 3, 4, 5)], "fusion_width": [4, 6], "head_width": [3, 4]},
}


def values(field):
    """Values of a field of a config. A new field that is neither a flag nor a choice has to get some in `VALUES`."""
    if isinstance(field.default, bool) or field.name == "metric":
        return st.booleans()
    if field.name in VALUES:
        found = VALUES[field.name]
        return st.sampled_from(found) if isinstance(found, list) else found
    return st.sampled_from(field.type.__metadata__[0].values)


@st.composite
def configs(draw, kinds=tuple(BASES)):
    """A config near one of the families', with as many fields changed as it admits."""
    kind = draw(st.sampled_from(kinds))
    config = draw(st.sampled_from(BASES[kind]))
    backbone = draw(_changed(config.backbone, WITHOUT_TOP)) if kind in DENSE else None
    if backbone is not None:
        config = _replaced(config, backbone=backbone)
    return draw(_changed(config))


@st.composite
def _changed(draw, config, without=()):
    fields = [f for f in dataclasses.fields(config) if f.name not in (*without, "backbone")]
    for field in draw(st.lists(st.sampled_from(fields), unique=True, max_size=12)):
        config = _replaced(config, **{field.name: draw(values(field))})
    return config


def _replaced(config, **changes):
    """The config with these changes, or as it is where it refuses them."""
    try:
        return config.replace(**changes)
    except (TypeError, ValueError):
        return config


def made(config, dtype=None):
    """A model of a config, whose weights depend on nothing but their names and shapes; its answers vary."""
    return model_of(config, dtype=dtype, name="mine")


def inputs_of(config):
    rng = np.random.default_rng(0)
    if config.model == "TextEncoder":
        return rng.integers(0, config.vocabulary, (2, config.context)).astype("int32")
    shape = (2, *config.image_size, config.channels)
    if config.include_preprocessing:
        return rng.uniform(0, 255, shape).astype("float32")
    return rng.normal(size=shape).astype("float32")


def answers(model):
    """What a model gives for `inputs_of` its config, by name."""
    found = forward(model, inputs_of(model.config))
    return found if isinstance(found, dict) else {"answer": found}


def state(model):
    """All that has to be equal in two models that are the same: what they are, and which of their weights train."""
    weights = keras_vit.models.weights_by_path(model)
    trained = {id(weight) for weight in model.trainable_weights}
    layers = keras_vit.models.layers_by_path(model)
    return {
        "type": type(model),
        "config": model.config,
        "says": model.get_config(),
        "computes": {name: (x.compute_dtype, x.variable_dtype, x.quantization_mode) for name, x in layers.items()},
        "trained": [name for name, weight in weights.items() if id(weight) in trained],
        "weights": {name: (str(weight.dtype), tuple(weight.shape)) for name, weight in weights.items()},
    }


def assert_same_model(found, wanted):
    """Asserts that two models are the same to the last bit of their weights and answers."""
    states = state(found), state(wanted)
    other = {name: (value, states[1][name]) for name, value in states[0].items() if value != states[1][name]}
    assert not other, other
    others = values_of(wanted)
    for name, value in values_of(found).items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)
    for name, values_ in answers(wanted).items():
        np.testing.assert_array_equal(answers(found)[name], values_, err_msg=name)
