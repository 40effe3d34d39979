"""Files that are written and read back: what came back as another model, and what libraries have no word for."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit import ViTConfig
from keras_vit.checkpoints import open_checkpoint, to_checkpoint
from tests.small_models import model_of

pytestmark = pytest.mark.once

SMALL = {"image_size": 32, "patch_size": 8, "width": 64, "depth": 1, "heads": 1, "mlp_width": 96, "gelu": "exact"}
SMALL |= {"filter": "bicubic", "interpolation": "bicubic"}
CLIP = SMALL | {"pre_norm": True, "patch_bias": False, "layer_norm_epsilon": 1e-5}
OF_ONE = SMALL | {"classes": 3}


PICTURES = [("timm", "pretrained_cfg", "interpolation", {}), ("clip", "preprocess_cfg", "interpolation", CLIP)]
PICTURES += [("huggingface", None, "resample", {"interpolation": "bicubic_hf"})]
JSONS = {"timm": "config.json", "clip": "open_clip_config.json", "huggingface": "preprocessor_config.json"}


@pytest.mark.parametrize(("layout", "part", "key", "fields"), PICTURES)
def test_the_filter_of_the_official_checkpoints(layout, part, key, fields, tmp_path):
    """Others have Pillow's filters alone: that is said, and the note in the file keeps ours until its JSON changes."""
    model = model_of(ViTConfig(**{**SMALL, **fields, "filter": "bilinear"}))
    with pytest.warns(UserWarning, match=f"layout '{layout}' cannot store filter='bilinear'"):
        to_checkpoint(model, tmp_path / "model", layout)
    again = keras_vit.load(tmp_path / "model")
    picture = np.random.default_rng(0).integers(0, 256, (70, 90, 3), "uint8")
    assert again.config == model.config
    np.testing.assert_array_equal(again.preprocess(picture), model.preprocess(picture))
    file = tmp_path / "model" / JSONS[layout]
    said = json.loads(file.read_text())
    (said[part] if part else said)[key] = "bicubic" if part else 3
    file.write_text(json.dumps(said))
    assert open_checkpoint(tmp_path / "model").config.filter == "bicubic"


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", None])
@pytest.mark.parametrize("layout", ["timm", "huggingface", "vit_jax"])
def test_the_activation_of_a_head_is_kept(layout, activation, tmp_path):
    fields = OF_ONE | {"classifier_activation": activation, "crop_rounding": "even"}
    fields |= {"gelu": "tanh"} if layout == "vit_jax" else {}
    path = tmp_path / ("model.npz" if layout == "vit_jax" else "model")
    to_checkpoint(model_of(ViTConfig(**fields)), path, layout)
    assert open_checkpoint(path).config.classifier_activation == activation
    assert keras_vit.load(path, classifier_activation="linear").config.classifier_activation is None
    assert keras_vit.load(path, include_top=False).config.classifier_activation is None
    if layout == "huggingface":
        said = json.loads((path / "config.json").read_text())
        assert said.get("problem_type") == ("multi_label_classification" if activation == "sigmoid" else None)


@pytest.mark.parametrize("problem", ["multi_label_classification", "single_label_classification", "regression", []])
def test_a_problem_type_of_transformers(problem, tmp_path):
    to_checkpoint(model_of(ViTConfig(**{**OF_ONE, "interpolation": "bicubic_hf"})), tmp_path, "huggingface")
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(said | {"problem_type": problem}))
    wanted = "sigmoid" if problem == "multi_label_classification" else None
    assert open_checkpoint(tmp_path).config.classifier_activation == wanted
