"""Every option of `load` with every kind of source: it changes the model, or it is refused. None is left out."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import BiTConfig, DPTConfig, EoMTConfig, LinearSegmenterConfig, ViTConfig
from keras_vit.checkpoints import save_model

pytestmark = pytest.mark.once

VIT = ViTConfig(image_size=16, patch_size=8, width=64, depth=2, heads=1, mlp_width=32, classes=3, representation_size=5)
BARE = VIT.replace(representation_size=None)
BACKBONE = BARE.replace(depth=4, classes=None, pooling="none")
HEAD = {"widths": (8, 8, 8, 8), "fusion_width": 8, "head_width": 4}
MODELS = {
    "vit": VIT,
    "hybrid": VIT.replace(stem_stages=(1,), stem_width=32, patch_size=2),
    "mixer": BARE.replace(tokens_mlp_width=5, position_embedding="none", class_token=False, pooling="avg"),
    "bit": BiTConfig(image_size=16, stages=(1,), width=32, classes=3),
    "timm": BARE,
    "huggingface": BARE.replace(layer_norm_epsilon=1e-12, gelu="exact"),
    "segmenter": LinearSegmenterConfig(backbone=BACKBONE, classes=3, blocks=(3,), crop_size=16, stride=8),
    "queries": EoMTConfig(backbone=BACKBONE, classes=3, queries=2, query_blocks=1, upscale_blocks=1),
    "depth": DPTConfig(backbone=BACKBONE, blocks=(0, 1, 2, 3), max_depth=1.0, metric=False, **HEAD),
}
IN_KERAS = ("vit", "bit", "segmenter")  # .keras files as well
# A value of each option that no model here has.
VALUES = {
    **{"image_size": 32, "grid_size": (1, 4), "like": "vit_base_patch16_clip_quickgelu_224.openai"},
    **{"head": "HEAD", "max_depth": 7.0, "numerics": "official", "classes": 4, "class_names": ["a", "b", "c"]},
    **{"include_top": False, "pre_logits": False, "pooling": "token_avg", "classifier_activation": "sigmoid"},
    **{"include_preprocessing": True, "channels": 1, "interpolation": "bilinear", "dropout": 0.1, "remat": True},
    **{"attention_dropout": 0.1, "patch_drop": 0.1, "drop_path": 0.1, "input_tensor": "INPUT", "name": "another"},
    "dtype": "float64",
}
# Where that is so already, another value or None for none.
OTHERS = {(kind, "numerics"): None for kind in ("vit", "hybrid", "mixer", "bit")}
OTHERS |= {(kind, "pre_logits"): True for kind in ("mixer", "bit", "bit.keras", "timm", "huggingface")}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A file or folder of every kind."""
    folder, found = tmp_path_factory.mktemp("sources"), {}
    for kind, config in MODELS.items():
        model = getattr(keras_vit, config.model)(config) if hasattr(config, "backbone") else _model(config)
        layout = kind if kind in ("timm", "huggingface") else None
        found[kind] = folder / (kind if layout else f"{kind}.npz")
        save_model(model, found[kind], layout)
        if kind in IN_KERAS:
            found[f"{kind}.keras"] = folder / f"{kind}.keras"
            save_model(model, found[f"{kind}.keras"])
    return found


def _model(config):
    model = (keras_vit.BiT if isinstance(config, BiTConfig) else keras_vit.VisionTransformer)(config)
    head = model.get_layer("head")
    head.kernel.assign(np.random.default_rng(0).normal(size=head.kernel.shape))
    return model


def described(model):
    """What a model computes, as text."""
    facts = {"config": model.config.to_dict(), "name": model.name, "dtype": model.dtype_policy.name}
    return json.dumps({**facts, "input": str(model.inputs[0].name), "shape": str(model.output_shape)})


KINDS = [*MODELS, *(f"{kind}.keras" for kind in IN_KERAS)]


def test_every_option_has_a_value():
    assert set(VALUES) == {*keras_vit.LoadOptions.__annotations__} - {"heads", "architecture"}  # deprecated


@pytest.fixture(scope="module")
def plain(sources):
    """What `load` makes of each without an option."""
    return {kind: keras_vit.load(source) for kind, source in sources.items()}


@pytest.mark.parametrize(
    ("kind", "option"), [(k, o) for k in KINDS for o in VALUES if OTHERS.get((k, o), "") is not None]
)
def test_it_changes_the_model_or_is_refused(sources, plain, kind, option):
    value = OTHERS.get((kind, option), VALUES[option])
    if option == "head":
        value = sources["segmenter"]
    if option == "input_tensor":
        value = keras.Input((*plain[kind].config.image_size, 3), name="mine")
    try:
        model = keras_vit.load(sources[kind], **{option: value})
    except (ValueError, TypeError) as error:
        assert option in str(error), f"{kind}, {option}: the error does not name it: {error}"
        return
    if option == "input_tensor":
        assert model.inputs[0] is value
    else:
        assert described(model) != described(plain[kind]), f"{kind}: {option}={value!r} is dropped in silence"


@pytest.mark.parametrize("kind", ["vit", "vit.keras", "timm"])
def test_poolings_that_the_weights_do_not_fit(sources, kind):
    for pooling, options in (("map", {}), ("map", {"include_top": False}), ("map", {"classes": 5}), ("token_avg", {})):
        with pytest.raises(ValueError, match=f"pooling='{pooling}'"):
            keras_vit.load(sources[kind], pooling=pooling, **options)
    assert keras_vit.load(sources[kind], pooling="token_avg", classes=5).output_shape == (None, 5)
