"""EoMT beside the original's numbers: logits, pictures to segments, files of its authors and of transformers."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints.files import open_file, write_npz
from keras_vit.checkpoints.layouts import eomt as layout
from keras_vit.checkpoints.layouts import huggingface
from keras_vit.segmentation import segment, segmenting
from tests.compute import deviations

pytestmark = pytest.mark.once

CASES = ("dense_eomt_hf_panoptic", "dense_eomt_hf_semantic")
LOGITS = 1e-5  # of their range: float32 through a few blocks
SCORE = 2e-6  # probabilities of logits in float32; the original rounds to six digits
TINY = {"image_size": 24, "patch_size": 8, "width": 64, "depth": 3, "heads": 1, "mlp_width": 64, "pooling": "none"}
DINOV2 = keras_vit.ViTConfig(
    **TINY, position_embedding="learned_patches", register_tokens=4, layer_scale=1.0, gelu="exact"
)
DINOV3 = DINOV2.replace(
    position_embedding="none", rotary_embedding="dinov3", attention_bias="no_key", layer_norm_epsilon=1e-5
)
HEAD = {"classes": 3, "queries": 5, "query_blocks": 2, "upscale_blocks": 2}


@pytest.fixture(scope="module")
def loaded(golden):
    return {name: keras_vit.load(golden(name).folder) for name in CASES}


def shaken(config):
    """A model none of whose weights is zero or one."""
    model, rng = keras_vit.EoMT(config), np.random.default_rng(0)
    for weight in model.weights:
        if weight.trainable:
            weight.assign(weight + 0.1 * rng.normal(size=weight.shape).astype("float32"))
    return model


@pytest.mark.each
@pytest.mark.parametrize("name", [CASES[0], pytest.param(CASES[1], marks=pytest.mark.nightly_elsewhere)])
def test_the_logits_of_the_original(loaded, golden, name, tmp_path, record_property):
    ref, model = golden(name).ref, loaded[name]
    answers = model.predict(ref["pixel_values"], verbose=0)
    parts = {"masks": ref["mask_logits"], "classes": ref["class_logits"]}
    record_property("errors", {f"{name}: {part}": deviations(answers[part], parts[part]) for part in parts})
    for part, wanted in parts.items():
        assert np.abs(answers[part] - wanted).max() <= LOGITS * np.ptp(wanted)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.config == model.config
    np.testing.assert_array_equal(again.predict(ref["pixel_values"], verbose=0)["masks"], answers["masks"])
    tokens = [m.backbone.predict(ref["pixel_values"], verbose=0) for m in (model, model.with_config())]
    np.testing.assert_array_equal(*tokens)


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("picture", ["picture", "picture_x"])
def test_a_class_for_every_pixel(loaded, golden, picture):
    """From crops that overlap; of pictures that Pillow has resized, others at near-ties only."""
    ref, end = golden(CASES[1]).ref, picture.removeprefix("picture")
    result = segment(loaded[CASES[1]], ref[picture], batch_size=2)
    np.testing.assert_array_equal(result.map, ref[f"semantic{end}"])
    other = ref[f"semantic{end}_pil"] != result.map
    assert other.mean() < 1e-3 and ref[f"semantic_gap{end}"][other].max(initial=0) < 5e-3
    assert sum(part.area for part in result.segments) == result.map.size and result.task == "semantic"


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("name, task", [("panoptic", "panoptic"), ("panoptic_stuff", "panoptic"), ("instance",) * 2])
def test_segments_of_queries(loaded, golden, name, task):
    case = golden(CASES[0])
    stuff = case.meta["stuff_classes"] if name.endswith("stuff") else ()
    result = segment(loaded[CASES[0]], case.ref["picture"], task=task, stuff_classes=stuff)
    np.testing.assert_array_equal(result.map, case.ref[name])
    wanted = case.meta["segments"][name]
    assert [(part.id, part.label_id) for part in result.segments] == [(w["id"], w["label_id"]) for w in wanted]
    for part, known in zip(result.segments, wanted, strict=True):
        assert abs(part.score - known["score"]) < SCORE
    assert json.loads(json.dumps(result.to_dict()))["task"] == task


@pytest.mark.parametrize("name", CASES)
def test_written_back_bit_for_bit(loaded, golden, name, tmp_path):
    keras_vit.to_checkpoint(loaded[name], tmp_path)
    old, new = open_file(golden(name).folder / "model.safetensors"), open_file(tmp_path / "model.safetensors")
    assert set(old) == set(new)
    for array in old:
        np.testing.assert_array_equal(old[array].read(), new[array].read())
    assert keras_vit.load(tmp_path).config == loaded[name].config
    with pytest.raises(FileExistsError):
        keras_vit.to_checkpoint(loaded[name], tmp_path)


def authors_file(model, path, masking=0.0, **changes):
    """The file of the authors for a model: rows as they are read."""
    rotary = model.config.backbone.rotary_embedding is not None
    start = "network.encoder.backbone.patch_embed."
    family = layout.FAMILIES[f"{start}patch_embeddings.weight" if rotary else f"{start}proj.weight"]
    gated = model.config.backbone.mlp == "swiglu"
    if rotary:
        family = dataclasses.replace(family, mlp=huggingface.MLPS["gate" if gated else "up"])
    from keras_vit.checkpoints.accounting import extract

    arrays = dict(extract(model, layout._layout(family, layout._OF_AUTHORS)))
    arrays["network.attn_mask_probs"] = np.full(model.config.query_blocks, masking, "float32")
    arrays |= {"network.encoder.pixel_mean": np.ones((1, 3, 1, 1), "f4"), "criterion.empty_weight": np.ones(4, "f4")}
    arrays = {name: values for name, values in (arrays | changes).items() if values is not None}
    write_npz(path, sorted(arrays.items()), {})
    return path


@pytest.mark.parametrize(
    "backbone",
    [DINOV2, DINOV2.replace(register_tokens=0), DINOV2.replace(mlp="swiglu"), DINOV3, DINOV3.replace(mlp="swiglu")],
)
def test_files_of_the_authors(backbone, tmp_path):
    model = shaken(keras_vit.models.EoMTConfig(backbone=backbone, **HEAD))
    path = authors_file(model, tmp_path / "eomt.npz")
    size = {"image_size": 24} if backbone.rotary_embedding else {}
    again = keras_vit.load(path, **size)
    images = np.random.default_rng(1).normal(size=(2, 24, 24, 3)).astype("float32")
    wanted, answers = model.predict(images, verbose=0), again.predict(images, verbose=0)
    np.testing.assert_array_equal(answers["masks"], wanted["masks"])
    np.testing.assert_array_equal(answers["classes"], wanted["classes"])
    assert again.config.pictures == "eomt_authors" and again.config.backbone.pixel_mean == (0.485, 0.456, 0.406)
    if size:
        with pytest.raises(ValueError, match="pass image_size"):
            keras_vit.load(path)


@pytest.fixture(scope="module")
def new():
    return shaken(keras_vit.models.EoMTConfig(backbone=DINOV2, **HEAD))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"masking": 1.0}, "must be 0 everywhere"),
        ({"masking": -1.0}, "delta weights"),
        ({"network.encoder.backbone.norm.weight": np.full(64, 1e-3, "f4")}, "delta weights"),
        ({"network.attn_mask_probs": None}, "lacks the array 'network.attn_mask_probs'"),
        ({"network.encoder.backbone.patch_embed.proj.weight": None}, "without a DINOv2 or DINOv3 backbone"),
        ({"network.q.weight": np.zeros((5, 32), "f4")}, r"network.q.weight has the shape \(5, 32\)"),
        ({"network.mask_head.0.bias": None}, "mask_head.0.bias"),
        ({"network.extra.weight": np.ones(3, "f4")}, "network.extra.weight"),
        ({"network.encoder.backbone.pos_embed": None}, "pos_embed"),
        ({"network.encoder.backbone.cls_token": None}, "missing: network.encoder.backbone.cls_token"),
        ({"network.attn_mask_probs": np.zeros((2, 1), "f4")}, "must have 1 axes"),
        ({"network.upscale.99999999.norm.weight": np.ones(3, "f4")}, "at most 1,000 blocks"),
    ],
)
def test_files_that_are_not_computed(new, tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        keras_vit.load(authors_file(new, tmp_path / "eomt.npz", **changes))


def test_models_for_masks_that_are_not_read(tmp_path):
    for title, start in (("Mask2Former", "sem_seg_head"), ("SAM", "mask_decoder"), ("SegFormer", "segformer")):
        write_npz(tmp_path / f"{title}.npz", [(f"{start}.encoder.weight", np.ones(3, "f4"))], {})
        with pytest.raises(ValueError, match=f"holds {title}, which is not supported"):
            keras_vit.load(tmp_path / f"{title}.npz")


@pytest.mark.parametrize(
    "which, key, value, words",
    [
        ("config", "hidden_act", "silu", "gelu must be .* 'silu' was given"),
        ("config", "model_type", "sam", "model_type"),
        ("config", "num_blocks", 3, "for these arrays"),
        ("config", "image_size", 64, "for these arrays"),
        ("preprocessor_config", "resample", 3, "resample=3 .* not supported"),
        ("preprocessor_config", "do_resize", False, "do_resize=False .* not supported"),
        ("preprocessor_config", "rescale_factor", 1.0, "rescale_factor=1.0 .* not supported"),
        ("preprocessor_config", "size", {"shortest_edge": 64}, "size=.* not supported"),
        ("preprocessor_config", "do_pad", False, "do_pad=False .* not supported"),
        ("preprocessor_config", "rescale_offset", True, "rescale_offset=True .* not supported"),
        ("config", None, None, "config.json"),
    ],
)
def test_json_files_that_say_something_else(golden, tmp_path, which, key, value, words):
    folder = shutil.copytree(golden(CASES[0]).folder, tmp_path / "model")
    file = folder / f"{which}.json"
    if key is None:
        file.unlink()
    else:
        file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(ValueError, match=words):
        keras_vit.load(folder)


def test_options_and_arguments_that_make_no_sense(loaded, golden):
    model, picture = loaded[CASES[0]], golden(CASES[0]).ref["picture"]
    for options, words in (
        ({"task": "depth"}, "task must be"),
        ({"threshold": 2}, "threshold must be"),
        ({"stuff_classes": [99]}, "stuff_classes must be"),
        ({"stuff_classes": [1], "task": "instance"}, "is for the task 'panoptic'"),
        ({"threshold": 0.5, "task": "semantic"}, "threshold=0.5 is for the task .* but the task is 'semantic'"),
        ({"model": model.backbone}, "model must be an EoMT or a LinearSegmenter"),
        ({"picture": np.zeros((1, 51, 3), "uint8")}, "at most 50 times the shorter one"),
        *(({"picture": np.zeros(shape, "uint8")}, "picture") for shape in ((0, 4, 3), (4, 4), (2, 4, 4, 3))),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            segment(**{"model": model, "picture": picture} | options)
    with pytest.raises(ValueError, match="cannot change"):
        model.with_config(queries=3)
    for config in ({"query_blocks": 9}, {"class_names": ["a"]}):  # others: tests/test_options.py
        with pytest.raises(ValueError, match=next(iter(config))):
            model.config.replace(**config)
    with pytest.raises(ValueError, match="pooling=.none."):
        keras_vit.models.EoMTConfig(backbone=DINOV2.replace(classes=2, pooling="avg"), **HEAD)


@pytest.mark.parametrize(
    "least, whose, found", [(0.8, "authors", 2), (0.8, "transformers", 2), (0.75, "transformers", 1)]
)
def test_a_segment_keeps_a_share_of_its_mask(loaded, least, whose, found):
    """Of four or five pixels one goes to another query: transformers wants more than the least share, in float32."""
    pixels = 5 if least == 0.8 else 4
    logits = np.full((1, 9, 2), -9, "float32")
    logits[0, :pixels, 0], logits[0, pixels - 1 :, 1] = 1, 9
    config = loaded[CASES[0]].config.replace(pictures=f"eomt_{whose}")
    shares = np.eye(2, 6, dtype="float32")
    result = segmenting._panoptic(
        lambda kept: segmenting.rows_of(logits[..., kept]), shares, (1, 9), config, (), 0.8, least
    )
    assert len(result.segments) == found


def test_a_picture_a_little_longer_than_the_model(loaded):
    """transformers leaves it as it is, and its patches drop the last pixels."""
    model = loaded[CASES[0]]
    side = model.config.image_size[0]
    picture = np.random.default_rng(0).integers(0, 256, (side // 4, side + 1, 3)).astype("uint8")
    crops, _, inner = segmenting.prepared(model.config, picture, False)
    assert crops.shape == (1, side, side, 3) and inner == (side // 4, side)
    np.testing.assert_array_equal(crops[0, : side // 4], model.config.pipeline.normalized(picture[:, :side]))
    assert segment(model, picture).map.shape == picture.shape[:2]
    for whose in ("authors", "transformers"):
        assert segmenting._fitting((1, 50), 24, f"eomt_{whose}") == (1, 24)


def test_one_pixel_and_no_segment(loaded):
    result = segment(loaded[CASES[0]], np.zeros((1, 1, 3), "uint8"), threshold=1.0)
    assert result.map.tolist() == [[-1]] and result.segments == ()
    assert segment(loaded[CASES[1]], np.zeros((1, 7, 3), "uint8"), scales=[1.0]).map.shape == (1, 7)
