"""Files with the whole config of their model: bit for bit, class names beside it, and hostile files."""

import shutil

import numpy as np
import pytest

import keras_vit
from keras_vit import BiTConfig, TextConfig, ViTConfig
from keras_vit.checkpoints import save_model
from keras_vit.checkpoints.files import open_file, write_npz, write_safetensors
from keras_vit.models import (
    AnomalyConfig,
    DetectorConfig,
    DPTConfig,
    EoMTConfig,
    LinearDepthConfig,
    LinearSegmenterConfig,
    count_weights,
)
from tests.small_models import model_of, small_multi_task_config

pytestmark = pytest.mark.once

VIT = ViTConfig(image_size=16, patch_size=8, width=16, depth=4, heads=2, mlp_width=24, pooling="none")
ROPE = VIT.replace(position_embedding="none", rotary_embedding="dinov3", register_tokens=2, layer_scale=1.0)
CONFIGS = {
    "EoMT": EoMTConfig(backbone=ROPE, classes=3, class_names=tuple("abc"), queries=5, query_blocks=2, upscale_blocks=1),
    "LinearSegmenter": LinearSegmenterConfig(
        backbone=VIT.replace(dynamic=True), classes=3, blocks=(1, 3), crop_size=16, stride=(8, 16), dropout=0.1
    ),
    "DPT": DPTConfig(backbone=VIT, blocks=(0, 1, 2, 3), widths=(8,) * 4, fusion_width=8, head_width=4, design="dinov2"),
    "LinearDepth": LinearDepthConfig(backbone=VIT.replace(final_norm="none"), blocks=(3,), bins=7, max_depth=80.0),
    "AnomalyDetector": AnomalyConfig(backbone=VIT, bank_size=5, picture_size=16, good_scores=(0.1, 0.3), threshold=0.3),
    "MultiTaskDPT": small_multi_task_config(class_names=tuple("abc")),
    "Detector": DetectorConfig(backbone=VIT, classes=2, class_names=("a", "b"), embedding=8, objectness=True),
}
TEXT = TextConfig(vocabulary=10, context=4, width=8, depth=2, heads=2, mlp_width=12)

# What a file of some kilobytes may claim; built, each takes gigabytes or hours.
TABLES = {"backbone": VIT.replace(image_size=10**6, position_embedding="sincos2d").to_dict()}
STRANGE = {
    "EoMT": [{"upscale_blocks": 10**6}, {"queries": 10**8}, {"classes": 10**9}],
    "LinearSegmenter": [{"classes": 10**9}, TABLES],
    "DPT": [{"widths": [30_000] * 4}, {"widths": [8, 8, 8, 10**9]}, {"fusion_width": 10**5}, {"head_width": 10**8}],
    "LinearDepth": [{"bins": 10**9}],
    "MultiTaskDPT": [{"bins": 10**9}, {"classes": 10**9, "class_names": None}, {"widths": [30_000] * 4}],
    "Detector": [{"classes": 10**9, "class_names": None}, {"embedding": 10**9}],
    "AnomalyDetector": [{"bank_size": 10**9}],
    "TextEncoder": [{"vocabulary": 10**9}, {"depth": 10**9}, {"context": 10**9, "position_embedding": "sincos"}],
}
ENDINGS = (".npz", ".safetensors")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    models = {kind: model_of(config) for kind, config in {**CONFIGS, "TextEncoder": TEXT}.items()}
    for kind, model in models.items():
        for ending in ENDINGS if kind in CONFIGS else ENDINGS[1:]:
            keras_vit.to_checkpoint(model, folder / f"{kind}{ending}")
    return models, folder


def check_same(again, model):
    assert type(again) is type(model) and again.config == model.config
    for before, after in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(after, before)


@pytest.mark.each
@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", CONFIGS)
def test_comes_back_bit_for_bit(files, kind, ending):
    models, folder = files
    path = folder / f"{kind}{ending}"
    again = keras_vit.load(path)
    check_same(again, models[kind])
    with pytest.raises(FileExistsError):
        keras_vit.to_checkpoint(again, path)
    with pytest.raises(ValueError, match="leave stack=True out"):
        keras_vit.to_checkpoint(again, path.with_name(f"stacked{ending}"), stack=True)


def test_settings_that_no_other_file_has(tmp_path):
    config = ViTConfig(**{**VIT.to_dict(), "pooling": "token", "classes": 3, "dropout": 0.1, "unit_features": True})
    model = model_of(config.replace(include_preprocessing=True, remat=True, classifier_activation="softmax"))
    inference = model.optimize_for_inference(verbose=False)
    resnet = model_of(BiTConfig(image_size=(32, 64), stages=(1,), width=32, classes=2))
    for name, original in {"a": model, "b": inference, "c": resnet}.items():
        path = tmp_path / f"{name}.safetensors"
        keras_vit.to_checkpoint(original, path)
        check_same(keras_vit.load(path), original)
    again = keras_vit.load(tmp_path / "a.safetensors", image_size=32, classes=5)
    assert again.config == model.config.replace(image_size=32, classes=5)
    for option in ({"numerics": "official"}, {"like": "ViT-B/16"}, {"grid_size": (2, 2)}, {"max_depth": 3.0}):
        with pytest.raises(ValueError, match=f"{[*option][0]}="):
            keras_vit.load(tmp_path / "a.safetensors", **option)
    names = tuple(f"{i:08}" * 64 for i in range(2**14))
    with pytest.raises(ValueError, match="header of .* bytes, more than 8,388,608"):
        keras_vit.to_checkpoint(
            model_of(VIT.replace(classes=2**14, pooling="token", class_names=names)), tmp_path / "d.safetensors"
        )
    assert not [*tmp_path.glob("*d.safetensors")]


def test_what_else_reads_them(files):
    models, folder = files
    info = keras_vit.inspect_checkpoint(folder / "DPT.npz")
    assert (info.layout, info.config) == ("keras_vit", CONFIGS["DPT"])
    assert info.parameters == models["DPT"].count_params()
    assert keras_vit.class_names(folder / "EoMT.npz") == ["a", "b", "c"]
    save_model(models["DPT"], folder / "DPT.weights.h5")
    with pytest.raises(ValueError, match="holds a DPT, but ViT-mu/16 was asked for"):
        keras_vit.create_model("ViT-mu/16", image_size=16, weights=folder / "DPT.weights.h5")
    larger = keras_vit.load(folder / "LinearDepth.npz", image_size=32)
    assert larger.config.grid_size == (4, 4)


def changed(path, target, arrays=None, **note):
    file = open_file(path)
    kept = {name: array.read() for name, array in file.items()} | (arrays or {})
    kept = {name: array for name, array in kept.items() if array is not None}
    write = write_npz if target.suffix == ".npz" else write_safetensors
    write(target, sorted(kept.items()), {**file.note, **note}, overwrite=True)
    return target


CONFIG = CONFIGS["LinearSegmenter"].to_dict()
HOSTILE = [
    ({"model": "Model"}, {}, "The file has a model config that cannot be read"),
    ({"model": ["EoMT"]}, {}, "The file has a model config that cannot be read"),
    ({"model": None}, {}, "The file has a model config that cannot be read"),
    ({"model": "Mask2Former"}, {}, "it is of a 'Mask2Former', but known are VisionTransformer, BiT,"),
    ({"model": "VisionTransformer", "config": VIT.to_dict()}, {}, "not part of the model: head/bias"),
    ({"config": None}, {}, "The file has a model config that cannot be read"),
    ({"config": CONFIG | {"strange": 1}}, {}, "strange"),
    ({"config": CONFIG | {"backbone": CONFIG["backbone"] | {"depth": 10**9}, "blocks": [10**9 - 1]}}, {}, "of weights"),
    ({"config": CONFIG | {"backbone": CONFIG["backbone"] | {"width": 10**6}}}, {}, "bytes of weights"),
    ({"config": CONFIG | {"classes": 4}}, {}, "wrong shape.*head/bias"),
    ({}, {"head/bias": None}, "missing.*head/bias"),
    ({}, {"head/more": np.zeros(3, "f4")}, "not part of the model.*head/more"),
    ({}, {"head/bias": np.full(3, np.nan, "f4")}, "NaN"),
]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("note", "arrays", "message"), HOSTILE)
def test_hostile_files_are_refused(files, tmp_path, ending, note, arrays, message):
    path = changed(files[1] / f"LinearSegmenter{ending}", tmp_path / f"changed{ending}", arrays, **note)
    with pytest.raises(ValueError, match=message):
        keras_vit.load(path)


def test_a_file_without_a_readable_config_is_refused(files, tmp_path):
    data = (files[1] / "DPT.safetensors").read_bytes()
    for old, new in (
        (b'"keras_vit":', b'"keras_vot":'),
        (b'\\"model\\"', b'\\"model  '),
        (b'"keras_vit":"{', b'"keras_vit":"['),
    ):
        assert old in data
        (tmp_path / "damaged.safetensors").write_bytes(data.replace(old, new, 1))
        with pytest.raises(ValueError, match="checkpoint in one of the layouts .* but it has the arrays"):
            keras_vit.load(tmp_path / "damaged.safetensors")


@pytest.mark.parametrize("kind", STRANGE)
def test_the_size_of_the_whole_model_is_known_before_it_is_built(files, kind):
    models, folder = files
    config, ending = models[kind].config, ".npz" if kind in CONFIGS else ".safetensors"
    assert count_weights(config) == models[kind].count_params()
    deeper = {
        "DPT": {"design": "depth_anything", "metric": False},
        "EoMT": {"upscale_blocks": 2},
        "Detector": {"objectness": False},
        "AnomalyDetector": {"bank_size": 7},
        "TextEncoder": {"position_embedding": "sincos"},
        "MultiTaskDPT": {"tasks": ("normals", "depth"), "classes": None, "class_names": None},
    }
    other = config.replace(**deeper.get(kind, {"blocks": (0, 3)}))
    assert count_weights(other) == getattr(keras_vit.models, kind)(other).count_params()
    for strange in STRANGE[kind]:
        fields = {**config.to_dict(), "class_names": None, **strange}
        fields = {name: value for name, value in fields.items() if name in config.to_dict()}
        path = changed(folder / f"{kind}{ending}", folder / f"strange{ending}", config=fields)
        with pytest.raises(ValueError, match=r"bytes of weights|more than (1,000 blocks|262,144 (patches|tokens))"):
            keras_vit.load(path)


def test_names_beside_a_head(golden, tmp_path, monkeypatch):
    folder = golden("dense_seg_dinov2_linear").folder
    head = tmp_path / "ade20k_linear_head.pth"
    head.write_bytes((folder / "dinov2_vits14_ade20k_linear_head.pth").read_bytes())
    (tmp_path / "classes.txt").write_text("".join(f"class {i}\n" for i in range(6)), encoding="utf-8")
    model = keras_vit.load(folder / "dinov2_vits14_pretrain.pth", head=head)
    assert model.config.class_names == tuple(f"class {i}" for i in range(6))
    both = tmp_path / "both"
    shutil.copytree(folder, both)
    (tmp_path / "classes.txt").rename(both / "classes.txt")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert keras_vit.load("~/both").config.class_names == model.config.class_names
    for folder in (both, "~/both"):
        assert tuple(keras_vit.class_names(folder)) == model.config.class_names
