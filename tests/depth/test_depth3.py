"""Depth Anything 3 and the heads of TIPS 2: the originals' numbers, files that are written and refused, pictures."""

import json
import re
import zipfile

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import depth, segmentation
from keras_vit.checkpoints.files import write_npz, write_safetensors
from keras_vit.checkpoints.layouts.pytorch import HEADS
from keras_vit.models import DPTConfig, LinearDepthConfig
from tests.checkpoints.test_tips import arrays_of
from tests.compute import deviations, forward
from tests.small_models import small_backbone_config

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:.*unknown for 4 blocks:UserWarning")]

# In parts of the range; the originals' own rounding is 6e-6 of it.
SAME = 2e-5
TASKS = ("depth", "normals", "segmentation")
DA3 = "depth3_da3_mono"


def off(found, wanted):
    return float(np.abs(found - wanted).max() / np.ptp(wanted))


@pytest.fixture(scope="module")
def mono(golden):
    return keras_vit.load(golden(DA3).folder)


@pytest.fixture(scope="module")
def heads(golden):
    return {task: keras_vit.load(golden(f"depth3_tips_hf_{task}").folder) for task in TASKS}


@pytest.mark.each
def test_the_numbers_of_depth_anything_3(mono, golden, record_property):
    ref, config = golden(DA3).ref, mono.config
    found = mono.predict(ref["pixel_values"], verbose=0)
    assert off(found["depth"], ref["depth"]) < SAME and off(found["sky"], ref["sky"]) < SAME
    assert (config.backbone.layer_norm_epsilon, config.backbone.final_norm_epsilon) == (1e-6, 1e-5)
    result = depth.estimate(mono, ref["picture"])
    assert (result.metric, result.inverse, result.unit) == (False, False, "depth without a unit")
    # At the border of the sky one pixel more or less is filled.
    assert np.quantile(np.abs(result.depth - ref["depth_map"]), 0.98) / np.ptp(ref["depth_map"]) < 1e-4
    assert abs(result.sky.mean() - golden(DA3).meta["filled"]) < 0.01
    record_property("errors", {f"{DA3}: depth": deviations(found["depth"], ref["depth"])})


def test_pictures_are_resized_twice_as_by_opencv(mono, golden):
    ref, vit = golden(DA3).ref, mono.config.backbone
    images = depth._bounded(ref["picture"], vit, (504, 504))
    assert images.shape[1:3] == tuple(ref["processed"])
    np.testing.assert_allclose(
        images[0, :28, :28], ref["values_part"], rtol=0, atol=1e-6
    )  # float32 of values up to 2.6
    sizes = {(131, 90): (504, 350), (504, 371): (504, 378), (1008, 756): (504, 378), (504, 7): (504, 14)}
    for size, wanted in sizes.items():
        assert depth._bounded(np.zeros((*size, 3), "uint8"), vit, (504, 504)).shape[1:3] == wanted
    with pytest.raises(ValueError, match="3 x 500 pixels, whose shorter side becomes less than half a patch"):
        depth.estimate(mono, np.zeros((3, 500, 3), "uint8"))


def test_metres_need_a_focal_length(mono, golden, tmp_path):
    picture = golden(DA3).ref["picture"]
    write_safetensors(
        tmp_path / "model.safetensors", sorted(arrays_of(golden(DA3).folder / "model.safetensors").items())
    )
    with pytest.warns(UserWarning, match=r"depth without a unit is assumed \(da3mono-large\)"):
        assert not keras_vit.load(tmp_path).config.metric
    (tmp_path / "config.json").write_text('{"model_name": "da3metric-large"}')
    model = keras_vit.load(tmp_path)
    plain, metres = depth.estimate(model, picture), depth.estimate(model, picture, focal=(300.0, 150.0))
    assert (plain.metric, metres.metric, metres.unit, metres.inverse) == (False, True, "m", False)
    # The prepared picture has 504 / 120 of the pixels on each side.
    np.testing.assert_allclose(metres.depth, plain.depth * (225 * 504 / 120 / 300), rtol=1e-6)
    np.testing.assert_array_equal(depth.estimate(model, picture, focal=225).depth, metres.depth)
    for focal in (0, -1.0, float("nan"), (300.0, 0.0)):
        with pytest.raises(ValueError, match="focal must be a number of pixels above 0"):
            depth.estimate(model, picture, focal=focal)
    with pytest.raises(ValueError, match="focal=300 is for a metric Depth Anything 3"):
        depth.estimate(mono, picture, focal=300)
    with pytest.raises(ValueError, match="has no largest depth: leave max_depth=20 out"):
        keras_vit.load(tmp_path, max_depth=20)
    keras_vit.to_checkpoint(model, tmp_path / "again")
    assert keras_vit.load(tmp_path / "again").config == model.config


@pytest.mark.parametrize("sky", [0, 10, 11, 89, 90, 100])
def test_the_sky_is_as_far_as_the_farthest_things(mono, sky, monkeypatch):
    score = np.r_[np.full(sky, 0.3), np.full(100 - sky, 0.29)].reshape(1, 10, 10).astype("float32")
    far = np.random.default_rng(0).uniform(1, 9, (1, 10, 10)).astype("float32")
    monkeypatch.setattr(depth, "_prepared", lambda *a: (np.zeros((10, 10, 3)), np.zeros((1, 10, 10, 3)), "bilinear"))
    monkeypatch.setattr(mono, "predict_on_batch", lambda images: {"depth": far, "sky": score})
    result, is_sky = depth.estimate(mono, np.zeros((10, 10, 3), "uint8")), score[0] >= 0.3
    filled = 11 <= sky <= 89
    wanted = np.where(is_sky, np.quantile(far[0][~is_sky], 0.99), far[0]) if filled else far[0]
    np.testing.assert_allclose(result.depth, wanted, rtol=1e-6)
    np.testing.assert_array_equal(result.sky, is_sky)


def test_errors_are_fitted_by_scale_alone():
    truth = np.linspace(1, 5, 12).reshape(3, 4)
    relative = depth.Depth(3 * truth, metric=False, inverse=False)
    assert depth.depth_errors(relative, truth).rmse < 1e-6
    assert depth.depth_errors(depth.Depth(3 * truth + 2, metric=False, inverse=False), truth).rmse > 0.1
    assert depth.depth_errors(depth.Depth(0 * truth, metric=False, inverse=False), truth).delta1 == 0
    with pytest.raises(ValueError, match="inverse=True is for depth without a unit"):
        depth.Depth(truth, metric=True, inverse=True)


@pytest.mark.each
@pytest.mark.parametrize("task", TASKS)
def test_the_numbers_of_tips_heads(task, heads, golden, record_property):
    model, ref = heads[task], golden(f"depth3_tips_hf_{task}").ref
    found = model.predict(ref["pixel_values"], verbose=0)
    assert off(found, ref[task]) < SAME
    record_property("errors", {f"depth3_tips_hf_{task}: {task}": deviations(found, ref[task])})
    if task == "depth":
        result = depth.estimate(model, ref["picture"])
        assert result.metric and off(result.depth, ref["depth_map"]) < SAME
    elif task == "normals":
        assert off(depth.normals(model, ref["picture"]).normals, ref["normals_map"]) < SAME
    else:
        found = segmentation.segment(model, ref["picture"])
        sure = ref["seg_gap"] > SAME * golden(f"depth3_tips_hf_{task}").meta["seg_range"]
        np.testing.assert_array_equal(found.map[sure], ref["seg_map"][sure])


def scenic(arrays, task):
    """A head of transformers in the authors' names and axes, without the tower."""
    found = {}
    for name, value in arrays.items():
        if not name.startswith(f"{task}_head."):
            continue
        name = name.removeprefix(f"{task}_head.").replace(".weight", ".kernel")
        for old, new in (
            (f"{task}_head", {"depth": "pixel_depth_classif"}.get(task, f"pixel_{task}")),
            ("reassemble.out_projections", "dpt/reassemble_blocks/out_projection"),
            ("reassemble.", "dpt/reassemble_blocks/"),
            ("convs.", "dpt/convs."),
            ("fusion_blocks.0.main_unit", "dpt/fusion_blocks_0/PreActResidualConvUnit_0"),
            ("fusion_blocks.", "dpt/fusion_blocks_"),
            ("residual_unit", "PreActResidualConvUnit_0"),
            ("main_unit", "PreActResidualConvUnit_1"),
            ("out_conv", "Conv_0"),
            ("project.", "dpt/project."),
        ):
            name = name.replace(old, new) if old != "project." or name.startswith(old) else name
        name = re.sub(r"\.(\d)\.", r"_\1/", name).replace(".", "/")
        if value.ndim == 4 and re.search("resize_layers_[01]", name):
            value = value[:, :, ::-1, ::-1].transpose(2, 3, 0, 1)
        elif value.ndim == 4:
            value = value.transpose(2, 3, 1, 0)
        found[f"decoder/{name}"] = value if value.ndim == 4 else value.T
    return found


@pytest.fixture
def of_authors(golden, tmp_path, monkeypatch):
    """A function that writes tower and head of a case as the authors do, and returns both paths."""
    monkeypatch.setitem(HEADS, 16, 2)

    def write(task, **more):
        arrays = arrays_of(golden(f"depth3_tips_hf_{task}").folder / "model.safetensors")
        tower = {name.removeprefix("vision_encoder."): value for name, value in arrays.items() if "vision_" in name}
        tower = {name.replace("c_fc", "fc1").replace("c_proj", "fc2"): value for name, value in tower.items()}
        np.savez(tmp_path / "tips_v2_oss_x14_vision.npz", **tower)
        np.savez(tmp_path / "head.npz", **scenic(arrays, task), **more)
        return tmp_path / "tips_v2_oss_x14_vision.npz", (tmp_path / "head.npz").rename(tmp_path / f"x_{task}_dpt.zip")

    return write


@pytest.mark.parametrize("task", TASKS)
def test_the_authors_zip(task, of_authors, heads, golden):
    """As transformers' file, kernels turned; of depth, the authors have no ReLU after the projection."""
    tower, head = of_authors(task)
    model = keras_vit.load(tower, head=head)
    config, ref = model.config, golden(f"depth3_tips_hf_{task}").ref
    assert (config.tasks, config.depth_relu, config.pictures) == ((task,), task != "depth", "tips")
    other = heads[task].with_config(depth_relu=False) if task == "depth" else heads[task]
    wanted = other.predict(ref["pixel_values"], verbose=0)
    np.testing.assert_allclose(
        model.predict(ref["pixel_values"], verbose=0), wanted, rtol=0, atol=1e-5 * np.ptp(wanted)
    )
    assert task != "depth" or off(wanted, ref["depth"]) > 0.01


def test_heads_that_are_refused(of_authors, golden, tmp_path):
    tower, head = of_authors("normals")
    with zipfile.ZipFile(head, "a") as archive:
        archive.writestr("README.txt", "what is not an array is passed over")
    keras_vit.load(tower, head=head)
    for more, message in (
        ({"decoder/pixel_segmentation/kernel": np.zeros((8, 5), "f4")}, "must have one head, but it has 2"),
        (
            {"decoder/dpt/convs_4/kernel": np.zeros((3, 3, 8, 8), "f4")},
            "not part of the model: decoder/dpt/convs_4/kernel",
        ),
    ):
        tower, other = of_authors("normals", **more)
        with pytest.raises(ValueError, match=message):
            keras_vit.load(tower, head=other)
    with pytest.raises(ValueError, match=r"is a head alone: use load\(tower, head="):
        keras_vit.load(other)
    tower, head = of_authors("normals")
    with zipfile.ZipFile(head, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("decoder/dpt/project/bias.npy", zipfile.ZipFile(head).read("decoder/dpt/project/bias.npy"))
    with pytest.raises(ValueError, match="two files of the name"):
        keras_vit.load(tower, head=head)
    with pytest.raises(ValueError, match=r"has the tower as well: use load\(file\) without head="):
        keras_vit.load(tower, head=golden("depth3_tips_hf_depth").folder)


CONFIG = {"depth_decoder_activation": "gelu", "readout_activation": "relu", "out_indices": [1, 2, 3]}


def test_one_file_with_three_heads(golden, heads, tmp_path):
    """A dict of three maps, each that of a file with one head; written back bit for bit; settings that are refused."""
    arrays = arrays_of(golden("depth3_tips_hf_depth").folder / "model.safetensors")
    for task in TASKS[1:]:
        more = arrays_of(golden(f"depth3_tips_hf_{task}").folder / "model.safetensors")
        arrays |= {name: value for name, value in more.items() if name.startswith(task)}
    source = golden("depth3_tips_hf_segmentation").folder
    write_safetensors(tmp_path / "model.safetensors", sorted(arrays.items()))
    config = json.loads((source / "config.json").read_text())
    config |= {"id2label": {str(i): name for i, name in enumerate("abcde")}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text((source / "preprocessor_config.json").read_text())
    model = keras_vit.load(tmp_path)
    assert (model.config.tasks, model.config.class_names) == (TASKS, tuple("abcde"))
    picture, images = np.zeros((40, 30, 3), "uint8"), np.zeros((1, 56, 56, 3), "float32")
    assert {name: value.shape for name, value in forward(model, images).items()} == {
        "depth": (1, 32, 32), "normals": (1, 32, 32, 3), "segmentation": (1, 32, 32, 5),
    }  # fmt: skip
    np.testing.assert_array_equal(forward(model, images)["depth"], forward(heads["depth"], images))
    assert depth.estimate(model, picture).depth.shape == depth.normals(model, picture).normals.shape[:2] == (40, 30)
    keras_vit.to_checkpoint(model, tmp_path / "again")
    again = keras_vit.load(tmp_path / "again")
    assert again.config == model.config and {*arrays_of(tmp_path / "again/model.safetensors")} == {*arrays}
    for before, after in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(after, before)
    for key, value in CONFIG.items():
        changed = config | {key: value, "backbone_config": config["backbone_config"] | {key: value}}
        (tmp_path / "config.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=key):
            keras_vit.load(tmp_path)
    with pytest.raises(ValueError, match="predicts 'normals', but not depth"):
        depth.estimate(heads["normals"], picture)
    with pytest.raises(ValueError, match="predicts 'depth', but no classes"):
        segmentation.segment(heads["depth"], picture)
    for changes, message in (
        ({"tasks": ()}, "tasks must be one or several"),
        ({"tasks": ("depth", "depth")}, "each once"),
        ({"classes": None}, "classes must be given for the task 'segmentation' alone"),
    ):
        with pytest.raises(ValueError, match=message):
            model.config.replace(**changes)


@pytest.mark.parametrize("kind", ["sky", *TASKS])
def test_saved_written_and_mirrored(kind, mono, heads, tmp_path):
    model = mono if kind == "sky" else heads[kind]
    images = np.random.default_rng(0).uniform(-1, 1, (2, 28, 42, 3)).astype("float32")
    keras_vit.to_checkpoint(model, tmp_path / "folder")
    keras_vit.to_checkpoint(model, tmp_path / "own.npz")
    model.save(tmp_path / "model.keras")
    for again in map(keras_vit.load, (tmp_path / "folder", tmp_path / "own.npz", tmp_path / "model.keras")):
        assert again.config == model.config
        keras.tree.map_structure(np.testing.assert_array_equal, forward(again, images), forward(model, images))


def test_what_load_leaves_out_is_named(golden, tmp_path):
    """Arrays beside a trunk, and a class in config.json that has more than it."""
    arrays = arrays_of(golden(DA3).folder / "model.safetensors")
    start = "model.backbone.pretrained."
    trunk = {name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)}
    for head, config, message in (
        (
            {f"decoder.{i}.weight": np.zeros((2, 2), "f4") for i in range(9)},
            {},
            r"9 arrays .* not read: decoder.0.* and 1 m",
        ),
        (
            {"decoder.transformer.encoder.weight": np.zeros((2, 2), "f4")},
            {},
            "1 arrays .* read: decoder.transformer.encoder",
        ),
        ({}, {"architectures": ["Dinov2ForWonders"]}, "config.json is that of the class Dinov2ForWonders"),
    ):
        write_safetensors(tmp_path / "model.safetensors", sorted((trunk | head).items()), overwrite=True)
        (tmp_path / "config.json").write_text(json.dumps(config | {"architecture": "vit_base_patch14_dinov2"}))
        with pytest.warns(UserWarning, match=f"holds more than the VisionTransformer that is loaded: .*{message}"):
            keras_vit.load(tmp_path)
    for name in ("model.head.scratch.output_conv1_aux.0.weight", "model.cam_dec.x", f"{start}camera_token"):
        write_npz(tmp_path / "views.npz", (arrays | {name: np.zeros(2, "f4")}).items(), overwrite=True)
        with pytest.raises(ValueError, match="holds a Depth Anything 3 for several views, which is not supported"):
            keras_vit.load(tmp_path / "views.npz")


def test_normals_are_drawn(heads, tmp_path):
    pytest.importorskip("matplotlib")
    picture = np.zeros((30, 45, 3), "uint8")
    result = depth.normals(heads["normals"], picture)
    np.testing.assert_allclose(np.linalg.norm(result.normals, axis=-1), 1, rtol=1e-5)
    assert len(depth.plot(result, picture, tmp_path / "normals.png").axes) == 2


@pytest.mark.parametrize("head", [DPTConfig, LinearDepthConfig])
def test_a_tower_of_tips_learns_depth(head):
    """One's own depth maps, by Keras's `fit`, as with a DINOv2."""
    tower = small_backbone_config(depth=4, register_tokens=1, layer_scale=1.0, interpolation="bilinear_antialias")
    sizes = {"widths": (4,) * 4, "fusion_width": 4, "design": "dinov2"} if head is DPTConfig else {"bins": 4}
    model = getattr(keras_vit, head.model)(head(backbone=tower, blocks=(0, 1, 2, 3), **sizes))
    images = np.random.default_rng(0).normal(size=(8, 8, 8, 3)).astype("float32")
    metres = np.full((8, *model.output.shape[1:]), 3.0, "float32")
    model.compile(keras.optimizers.Adam(0.02), "mse")
    losses = model.fit(images, metres, batch_size=8, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
