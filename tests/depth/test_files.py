"""Depth models from the files of their publishers, against what the originals answer."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit import depth
from keras_vit.checkpoints import open_checkpoint
from keras_vit.checkpoints.layouts.pytorch import HEADS_OF_SIGLIP
from tests.checkpoints.test_tips import arrays_of
from tests.compute import deviations

pytestmark = pytest.mark.once

# The largest differences measured are 5e-6 of values around 1 and 7; the originals' own rounding is as large.
DEPTH = 2e-5
HUB, LINEAR = "dense_depth_da2_hf", "dense_depth_dinov2_linear"
HEAD = "decode_head.conv_depth."


@pytest.fixture(scope="module")
def models(golden):
    return {HUB: keras_vit.load(golden(HUB).folder), LINEAR: keras_vit.load(golden(LINEAR).folder, max_depth=10)}


@pytest.mark.each
@pytest.mark.parametrize(("name", "ends"), [(HUB, ("", "_x")), (LINEAR, ("",))])
def test_the_originals_numbers(name, ends, models, golden, record_property):
    model, ref = models[name], golden(name).ref
    answer = model.predict(ref["pixel_values"], verbose=0)
    errors = {f"{name}: depth": deviations(answer, ref["depth"])}
    np.testing.assert_allclose(answer, ref["depth"], rtol=0, atol=DEPTH)
    for end in ends:
        result = depth.estimate(model, ref[f"picture{end}"])
        np.testing.assert_allclose(result.depth, ref[f"depth_map{end}"], rtol=0, atol=DEPTH)
        assert result.metric == (name == LINEAR)
        errors[f"{name}: depth of `picture{end}`"] = deviations(result.depth, ref[f"depth_map{end}"])
    record_property("errors", errors)
    if name == LINEAR:  # the same head, taken for one of KITTI's
        far = depth.estimate(model.with_config(max_depth=80.0), ref["picture"]).depth
        np.testing.assert_allclose(far, ref["depth_map_other"], rtol=0, atol=8 * DEPTH)
        assert not np.allclose(far, depth.estimate(model, ref["picture"]).depth, atol=1)


@pytest.fixture(scope="module")
def written(golden, tmp_path_factory):
    """A function that writes the arrays of a case, changed, under a name, with JSON files beside it."""

    def write(arrays, name, **beside):
        folder = tmp_path_factory.mktemp("changed")
        np.savez(folder / name, **arrays)
        for file, content in beside.items():
            (folder / f"{file}.json").write_text(json.dumps(content))
        return folder / name

    return write


def in_the_authors_names(arrays):
    """The arrays of transformers' Depth Anything as the authors' code calls them."""
    found = {}
    for name, value in arrays.items():
        for old, new in (
            ("backbone.embeddings.patch_embeddings.projection", "pretrained.patch_embed.proj"),
            ("backbone.embeddings.position_embeddings", "pretrained.pos_embed"),
            ("backbone.embeddings.", "pretrained."),
            ("backbone.encoder.layer.", "pretrained.blocks."),
            ("backbone.layernorm", "pretrained.norm"),
            ("attention.output.dense", "attn.proj"),
            ("layer_scale1.lambda1", "ls1.gamma"),
            ("layer_scale2.lambda1", "ls2.gamma"),
            *((f"neck.reassemble_stage.layers.{i}.projection", f"depth_head.projects.{i}") for i in range(4)),
            *((f"neck.reassemble_stage.layers.{i}.resize", f"depth_head.resize_layers.{i}") for i in range(4)),
            *((f"neck.convs.{i}.", f"depth_head.scratch.layer{i + 1}_rn.") for i in range(4)),
            *((f"neck.fusion_stage.layers.{i}.", f"depth_head.scratch.refinenet{4 - i}.") for i in range(4)),
            ("residual_layer", "resConfUnit"),
            ("convolution", "conv"),
            (".projection.", ".out_conv."),
            ("head.conv1", "depth_head.scratch.output_conv1"),
            ("head.conv2", "depth_head.scratch.output_conv2.0"),
            ("head.conv3", "depth_head.scratch.output_conv2.2"),
        ):
            name = name.replace(old, new)
        found[name] = value
    for i in range(4):
        for end in ("weight", "bias"):
            parts = [
                found.pop(f"pretrained.blocks.{i}.attention.attention.{p}.{end}") for p in ("query", "key", "value")
            ]
            found[f"pretrained.blocks.{i}.attn.qkv.{end}"] = np.concatenate(parts)
    return found


def test_the_authors_names(golden, models, written, monkeypatch):
    monkeypatch.setitem(HEADS_OF_SIGLIP, 48, 3)
    arrays = in_the_authors_names(arrays_of(golden(HUB).folder / "model.safetensors"))
    with pytest.warns(UserWarning, match="unknown for 4 blocks"):
        model = keras_vit.load(written(arrays, "depth_anything_v2_vits.npz"))
    config, ref = model.config, golden(HUB).ref
    assert (config.metric, config.max_depth, config.pictures) == (False, 1, "depth_anything")
    assert config.interpolation == "bicubic_offset"
    wanted = models[HUB].predict(ref["pixel_values"], verbose=0)  # the size at which nothing is resized
    np.testing.assert_allclose(model.predict(ref["pixel_values"], verbose=0), wanted, rtol=0, atol=DEPTH)


def test_the_name_only_suggests_how_far_depth_reaches(golden, written, monkeypatch):
    """What the user says counts, whatever the file is called; what a config.json says is not asked."""
    monkeypatch.setitem(HEADS_OF_SIGLIP, 48, 3)
    arrays = in_the_authors_names(arrays_of(golden(HUB).folder / "model.safetensors"))
    for name, suggested in (("any.npz", None), ("depth_anything_v2_metric_vkitti_vits.npz", 80)):
        path = written(arrays, name)
        said = " ".join(open_checkpoint(path).oddities)
        assert open_checkpoint(path).config.metric == (suggested is not None)
        assert (f"max_depth={suggested} metres is assumed from the file name" in said) == (suggested is not None)
        for given, expected in ((35, (True, 35.0)), ("relative", (False, 1.0))):
            contents = open_checkpoint(path, max_depth=given)
            assert (contents.config.metric, contents.config.max_depth) == expected
            assert "metre" not in " ".join(contents.oddities)
        for wrong in (0, -1, True, "far", float("nan"), float("inf")):
            with pytest.raises(ValueError, match="max_depth must be a number of metres above 0 or 'relative'"):
                keras_vit.load(path, max_depth=wrong)
    with pytest.raises(ValueError, match="max_depth must be a number of metres above 0, but 'relative'"):
        keras_vit.load(golden(LINEAR).folder, max_depth="relative")
    with pytest.raises(ValueError, match=r"max_depth is in config.json: leave max_depth=.* out"):
        keras_vit.load(golden(HUB).folder, max_depth=80)
    with pytest.raises(ValueError, match="is not a depth model: leave max_depth=80 out"):
        keras_vit.load("glyphs", max_depth=80)
    with pytest.warns(UserWarning, match="max_depth=10 metres is assumed from the file name .*nyu"):
        assert keras_vit.load(golden(LINEAR).folder).config.max_depth == 10


@pytest.fixture(scope="module")
def dinov2_dpt(golden):
    """A DPT head of DINOv2's with random values, and the backbone's arrays: depth must differ from place to place."""
    rng = np.random.default_rng(0)
    width, fused, hidden, widths = 64, 16, 8, (8, 12, 16, 24)
    head = {}

    def convolution(name, *shape, bias=True):
        head[f"decode_head.{name}.weight"] = rng.normal(0, 1.4 / np.sqrt(np.prod(shape[1:])), shape).astype("f4")
        if bias:
            head[f"decode_head.{name}.bias"] = rng.normal(0, 0.1, shape[1 if "resize_layers.0" in name else 0]).astype(
                "f4"
            )

    for i, channels in enumerate(widths):
        convolution(f"reassemble_blocks.readout_projects.{i}.0", width, 2 * width)
        convolution(f"reassemble_blocks.projects.{i}.conv", channels, width, 1, 1)
        convolution(f"convs.{i}.conv", fused, channels, 3, 3, bias=False)
        for unit in (1, 2) if i else (2,):
            for conv in (1, 2):
                convolution(f"fusion_blocks.{i}.res_conv_unit{unit}.conv{conv}.conv", fused, fused, 3, 3, bias=False)
        convolution(f"fusion_blocks.{i}.project.conv", fused, fused, 1, 1)
    for i, size in ((0, 4), (1, 2), (3, 3)):
        convolution(f"reassemble_blocks.resize_layers.{i}", widths[i], widths[i], size, size)
    convolution("project.conv", fused, fused, 3, 3)
    for i, shape in ((0, (8, fused, 3, 3)), (2, (hidden, 8, 3, 3)), (4, (1, hidden, 1, 1))):
        convolution(f"conv_depth.head.{i}", *shape)
    backbone = arrays_of(golden(LINEAR).folder / "dinov2_vits14_pretrain.pth")
    copied = {n.replace("blocks.2.", "blocks.3."): v for n, v in backbone.items() if n.startswith("blocks.2.")}
    return backbone | copied, head


def dpt_in_torch(head, features, tokens):
    """DINOv2's DPT head in plain operations of PyTorch, from maps `(1, D, rows, columns)` and class tokens `(1, D)`."""
    import torch
    import torch.nn.functional as F

    w = {name.removeprefix("decode_head."): torch.tensor(value) for name, value in head.items()}

    def conv(name, x, **options):
        return F.conv2d(
            x, w[f"{name}.weight"], w.get(f"{name}.bias"), padding=w[f"{name}.weight"].shape[-1] // 2, **options
        )

    def unit(name, x):
        return x + conv(f"{name}.conv2.conv", F.relu(conv(f"{name}.conv1.conv", F.relu(x))))

    maps = []
    for i, (x, token) in enumerate(zip(features, tokens, strict=True)):
        both = torch.cat([x, token[:, :, None, None].expand_as(x)], 1).movedim(1, -1)
        name = f"reassemble_blocks.readout_projects.{i}.0"
        x = F.gelu(F.linear(both, w[f"{name}.weight"], w[f"{name}.bias"])).movedim(-1, 1)
        x, name = conv(f"reassemble_blocks.projects.{i}.conv", x), f"reassemble_blocks.resize_layers.{i}"
        if i < 2:
            x = F.conv_transpose2d(x, w[f"{name}.weight"], w[f"{name}.bias"], stride=(4, 2)[i])
        maps.append(conv(f"convs.{i}.conv", conv(name, x, stride=2) if i == 3 else x))
    x = maps[3]
    for i in range(4):
        if i:
            skip = F.interpolate(maps[3 - i], x.shape[2:], mode="bilinear")
            x = x + unit(f"fusion_blocks.{i}.res_conv_unit1", skip)
        x = unit(f"fusion_blocks.{i}.res_conv_unit2", x)
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
        x = conv(f"fusion_blocks.{i}.project.conv", x)
    x = conv("conv_depth.head.0", F.relu(conv("project.conv", x)))
    x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
    x = conv("conv_depth.head.4", F.relu(conv("conv_depth.head.2", x)))
    return torch.clamp(F.relu(x) + 0.001, 0.001, 10.0)[:, 0].numpy()


@pytest.mark.nightly_elsewhere
def test_dinov2s_dpt(dinov2_dpt, written):
    """Grids of odd sizes are where a shallower map has another size than the deeper one."""
    torch = pytest.importorskip("torch")
    backbone, head = dinov2_dpt
    files = written(backbone, "dinov2_vits14_pretrain.npz"), written(head, "dinov2_vits14_nyu_dpt_head.npz")
    with pytest.warns(UserWarning, match="4 blocks"):
        model = keras_vit.load(files[0], head=files[1])
    extractor = keras_vit.feature_extractor(model.backbone, [f"block_{i}" for i in range(4)])
    for grid in ((5, 5), (4, 3)):
        images = np.random.default_rng(1).normal(size=(1, 14 * grid[0], 14 * grid[1], 3)).astype("f4")
        tokens = [torch.tensor(np.array(x)) for x in extractor.predict(images, verbose=0).values()]
        maps = [x[:, 1:].reshape(1, *grid, -1).movedim(-1, 1) for x in tokens]
        wanted = dpt_in_torch(head, maps, [x[:, 0] for x in tokens])
        depths = model.predict(images, verbose=0)
        assert depths.shape == (1, *(32 * -(-n // 2) for n in grid)) and wanted.std() > 0.01
        np.testing.assert_allclose(depths, wanted, rtol=0, atol=DEPTH * max(1, wanted.max()))


@pytest.mark.nightly_elsewhere
def test_four_layers_and_both_in_one_file(dinov2_dpt, written):
    """The linear head on four layers, in a file that also has the backbone, as mmsegmentation saves both."""
    backbone, _ = dinov2_dpt
    rng = np.random.default_rng(2)
    weight, bias = rng.normal(0, 0.05, (256, 512, 1, 1)).astype("f4"), rng.normal(size=256).astype("f4")
    arrays = {f"backbone.{name}": value for name, value in backbone.items()}
    arrays |= {f"{HEAD}weight": weight, f"{HEAD}bias": bias}
    with pytest.warns(UserWarning, match="4 blocks"):
        model = keras_vit.load(written(arrays, "nyu_linear4.npz"), max_depth=80)
    assert model.config.blocks == (0, 1, 2, 3) and model.config.max_depth == 80
    images = rng.normal(size=(1, 28, 42, 3)).astype("f4")
    tokens = keras_vit.feature_extractor(model.backbone, [f"block_{i}" for i in range(4)]).predict(images, verbose=0)
    features = [np.concatenate([x[:, 1:], np.repeat(x[:, :1], 6, 1)], -1) for x in tokens.values()]
    # In the original's order: resized first, by a factor of 4, then the linear function.
    from keras_vit.preprocessing import resize_images

    places = resize_images(np.concatenate(features, -1).reshape(2, 3, 512), (8, 12), "bilinear")
    shares = np.maximum(places @ weight[:, :, 0, 0].T + bias, 0) + 0.1
    wanted = (shares * np.linspace(0.001, 80, 256)).sum(-1) / shares.sum(-1)
    np.testing.assert_allclose(model.predict(images, verbose=0)[0], wanted, rtol=0, atol=8 * DEPTH)


@pytest.mark.nightly_elsewhere
def test_saved_and_copied_models_answer_the_same(models, golden, tmp_path):
    ref = golden(HUB).ref
    for name, model in models.items():
        images = golden(name).ref["pixel_values"]
        model.save(tmp_path / "model.keras")
        again = keras_vit.load(tmp_path / "model.keras")
        assert again.config == model.config
        np.testing.assert_allclose(
            again.predict(images, verbose=0), model.predict(images, verbose=0), rtol=0, atol=1e-6
        )
    mixed = keras_vit.load(golden(HUB).folder, dtype="mixed_bfloat16").predict(ref["pixel_values"], verbose=0)
    assert mixed.dtype == np.float32 and np.abs(mixed - ref["depth"]).max() < 0.1


def test_written_for_transformers(models, golden, tmp_path):
    """Every array comes back bit for bit, except for those that compute nothing, which are zeros."""
    keras_vit.to_checkpoint(models[HUB], tmp_path / "back")
    before = arrays_of(golden(HUB).folder / "model.safetensors")
    after = arrays_of(tmp_path / "back" / "model.safetensors")
    dead = [name for name in after if "layers.0.residual_layer1" in name]
    assert before.keys() - after.keys() == {"backbone.embeddings.mask_token"} and not after.keys() - before.keys()
    assert len(dead) == 4 and not any(after[name].any() for name in dead)
    for name in after.keys() - {*dead}:
        np.testing.assert_array_equal(after[name], before[name])
    again = keras_vit.load(tmp_path / "back")
    assert again.config == models[HUB].config
    with pytest.raises(ValueError, match="No layout of others takes a LinearDepth.*safetensors"):
        keras_vit.to_checkpoint(models[LINEAR], tmp_path / "linear")
    metric = keras_vit.DPT(models[HUB].config.replace(metric=True, max_depth=20.0))
    keras_vit.to_checkpoint(metric, tmp_path / "metric")
    assert open_checkpoint(tmp_path / "metric").config == metric.config
    vit, fields = metric.config.backbone, {"pictures": "depth_anything", "picture_size": (28, 42)}
    other = keras_vit.DPT(metric.config.replace(backbone=vit.replace(interpolation="bicubic_offset"), **fields))
    with pytest.warns(UserWarning, match="cannot store pictures='depth_anything' but uses 'depth_anything_trans"):
        keras_vit.to_checkpoint(other, tmp_path / "other")
    assert open_checkpoint(tmp_path / "other").config == other.config
    for changes in ({"final_norm": "none"}, {"mlp_width": 100}, {"pre_norm": True}, {"rotary_embedding": "eva02"}):
        with pytest.raises(ValueError, match="cannot store this model"):
            keras_vit.to_checkpoint(
                keras_vit.DPT(metric.config.replace(backbone=vit.replace(**changes))), tmp_path / "no"
            )


def test_what_is_no_depth_model_that_is_known(golden, written, dinov2_dpt):
    hub, folder = arrays_of(golden(HUB).folder / "model.safetensors"), golden(HUB).folder
    config, pictures = (json.loads((folder / f"{n}.json").read_text()) for n in ("config", "preprocessor_config"))
    backbone, head = dinov2_dpt
    linear = {f"{HEAD}weight": np.zeros((256, 128, 1, 1), "f4"), f"{HEAD}bias": np.zeros(256, "f4")}
    changed = {"config": config, "preprocessor_config": pictures}

    def without(pattern):
        return {name: value for name, value in hub.items() if pattern not in name}

    def edited(**fields):
        return {**changed, "config": {**config, **fields}}

    def prepared(**fields):
        return {**changed, "preprocessor_config": {**pictures, **fields}}

    own = {"out_indices": [1, 2, 4]}
    cases = [
        (hub, "m.npz", edited(model_type="dpt"), None, "model_type .* but is dpt"),
        (hub, "m.npz", {}, None, "config.json"),
        (hub, "m.npz", edited(depth_estimation_type="both"), None, "depth_estimation_type .* but is both"),
        (hub, "m.npz", edited(max_depth=-3), None, "max_depth .* but is -3"),
        (hub, "m.npz", edited(reassemble_factors=[8, 4, 2, 1]), None, "reassemble_factors"),
        (hub, "m.npz", edited(backbone_config=config["backbone_config"] | own), None, r"out_indices .* \[1, 2, 4\]"),
        (hub, "m.npz", prepared(keep_aspect_ratio=False), None, "keep_aspect_ratio=False"),
        (hub, "m.npz", prepared(do_center_crop=True), None, "do_center_crop=True"),
        (hub, "m.npz", prepared(size=28, default_to_square=False), None, "size=28"),
        (hub, "m.npz", prepared(sharpen=2), None, "sharpen=2"),
        (without("backbone."), "m.npz", changed, None, "no supported backbone"),
        (without("head.conv2"), "m.npz", changed, None, "head.conv2"),
        ({**hub, "neck.more.weight": np.zeros(3, "f4")}, "m.npz", changed, None, "neck.more.weight"),
        (in_the_authors_names(hub), "nyu_head.npz", {}, backbone, "pass it without head="),
        (linear, "nyu_linear_head.npz", {}, None, "no supported backbone"),
        (linear, "linear_head.npz", {}, backbone, "Pass max_depth=10 for a head trained on NYU"),
        (head, "nyu_dpt_head.npz", {}, arrays_of(folder / "model.safetensors"), "head|depth"),
    ]
    for arrays, name, beside, below, message in cases:
        path = written(arrays, name, **beside)
        source, given = (path, None) if below is None else (written(below, "dinov2_vits14_pretrain.npz"), path)
        with pytest.raises(ValueError, match=message):
            keras_vit.load(source, head=given)


def test_what_is_said_of_the_backbone_is_used_or_refused(golden, written):
    folder = golden(HUB).folder
    with pytest.raises(ValueError, match="like must be a DINOv2 for this file, but 'vit_base_patch16_clip_224'"):
        keras_vit.load(folder, like="vit_base_patch16_clip_224")
    rows, columns = keras_vit.inspect_checkpoint(folder).config.backbone.grid_size
    with pytest.raises(ValueError, match="grid_size must have .* patches, like the position .*, but 1 x 2"):
        keras_vit.inspect_checkpoint(folder, grid_size=(1, 2))
    backbone = json.loads((folder / "config.json").read_text())["backbone_config"]
    for key in ("out_indices", "out_features"):
        config = {"model_type": "depth_anything", "backbone_config": {**backbone, "out_indices": None, key: 4}}
        with pytest.raises(ValueError, match="must be four numbers of blocks"):
            keras_vit.inspect_checkpoint(written(arrays_of(folder / "model.safetensors"), "x.npz", config=config))
    files = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("config", "preprocessor_config")}
    files["preprocessor_config"] |= {"image_mean": [0.1, 0.2, 0.3], "size": 28}
    config = open_checkpoint(written(arrays_of(folder / "model.safetensors"), "x.npz", **files)).config
    assert (config.picture_size, config.backbone.pixel_mean) == ((28, 28), (0.1, 0.2, 0.3))
    long = (1, rows * columns)
    assert keras_vit.inspect_checkpoint(folder, grid_size=long).config.backbone.grid_size == long


def test_weights_that_are_not_free_for_commerce():
    from keras_vit.checkpoints.hub import DownloadError, fetch_from_hub

    names = ("Base-hf", "Large", "Metric-Indoor-Large-hf")
    for repository in (f"depth-anything/Depth-Anything-V2-{name}" for name in names):
        with pytest.warns(UserWarning, match="CC-BY-NC-4.0, which forbids"), pytest.raises(DownloadError):
            fetch_from_hub(f"hf://{repository}", offline=True)
    for free in ("depth-anything/Depth-Anything-V2-Small-hf", "me/depth-anything"):  # warnings are errors here
        with pytest.raises(DownloadError):
            fetch_from_hub(f"hf://{free}", offline=True)
    rows = keras_vit.list_weights(family="Depth Anything V2")
    assert len(rows) == 9
    assert {row["license"] for row in rows if "Small" in row["name"]} == {"Apache-2.0"}
    assert {row["license"] for row in rows if "Small" not in row["name"]} == {"CC-BY-NC-4.0"}
