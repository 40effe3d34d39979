"""Layers that do not train."""

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.models import weights_by_path
from keras_vit.training import MomentumSGD, SoftmaxLoss, freeze, unfreeze

CONFIG = ViTConfig(image_size=8, patch_size=4, width=8, depth=2, heads=2, mlp_width=16, classes=3)


def training(model):
    ids = {id(weight) for weight in model.trainable_weights}
    return [name for name, weight in weights_by_path(model).items() if id(weight) in ids]


@pytest.mark.once
def test_by_layer_weight_and_wildcard():
    model = VisionTransformer(CONFIG)
    names = list(weights_by_path(model))
    with pytest.raises(ValueError, match="fits no layer and no weight.*'block_0"):
        freeze(model, ["embedding", "blok_0"])
    with pytest.raises(TypeError, match="patterns"):
        freeze(model, [3])
    assert training(model) == names  # nothing is half done
    frozen = freeze(model, ["embedding", "block_[0]", "*/attention", "class_token/token"])
    wanted = [n for n in names if n.startswith(("embedding/", "block_0/", "class_token/", "block_1/attention/"))]
    assert frozen == wanted and set(training(model)) == set(names) - set(wanted)
    assert unfreeze(model, "block_0/attention/query") == [n for n in wanted if "block_0/attention/query" not in n]
    assert unfreeze(model) == [] and training(model) == names
    assert freeze(model, (name for name in ["embedding"])) == ["embedding/kernel", "embedding/bias"]
    assert unfreeze(model) == []
    assert freeze(model, "norm1") == [f"block_{i}/norm1/{w}" for i in (0, 1) for w in ("gamma", "beta")]  # not norm10


def test_frozen_weights_stay_and_files_know(tmp_path):
    model = VisionTransformer(CONFIG)
    freeze(model, ["embedding", "block_0", "block_1/mlp/fc1", "block_1/attention/query/kernel"])
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(4, 8, 8, 3)).astype("float32"), np.eye(3, dtype="float32")[[0, 1, 2, 0]]
    model.compile(MomentumSGD(0.1), SoftmaxLoss())
    before = {n: keras.ops.convert_to_numpy(w) for n, w in weights_by_path(model).items()}
    for _ in range(2):
        model.train_on_batch(images, labels)
    moved = {n for n, w in weights_by_path(model).items() if np.any(keras.ops.convert_to_numpy(w) != before[n])}
    assert "head/kernel" in moved and moved <= set(training(model))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert training(again) == training(model)
    again.train_on_batch(images, labels)  # the optimizer's state fits the weights that train


@pytest.mark.once
def test_single_weights_and_layers_with_layers_inside():
    model = VisionTransformer(CONFIG.replace(pooling="map"))
    frozen = freeze(model, ["pooling/probe", "block_0/attention/query/kernel"])
    assert frozen == ["block_0/attention/query/kernel", "pooling/probe"]
    assert training(model.with_config(classes=5)) == training(model)
    freeze(model, "pooling/mlp")
    assert "pooling/attention/out/bias" in training(model) and "pooling/mlp/fc1/kernel" not in training(model)
    assert model.get_layer("pooling").trainable and not model.get_layer("pooling").mlp.trainable
    freeze(model, "pooling")
    assert not any(name.startswith("pooling") for name in training(model))
