"""Linear heads for segmentation: DINOv2's numbers, the files that hold them, and what becomes of the model."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import LinearSegmenter, interpolation, segmentation
from keras_vit.checkpoints.files import open_file, write_safetensors
from keras_vit.cli import main
from keras_vit.layers import BatchNormalization
from keras_vit.models import LinearSegmenterConfig
from keras_vit.preprocessing.images import centre_margins
from keras_vit.segmentation import segmenting
from tests.compute import deviations
from tests.conftest import GOLDEN
from tests.pictures import save
from tests.small_models import small_backbone_config, small_linear_segmenter_config

pytestmark = pytest.mark.once

FOLDER = GOLDEN / "dense_seg_dinov2_linear"
BACKBONE, HEAD = (FOLDER / f"dinov2_vits14_{name}.pth" for name in ("pretrain", "ade20k_linear_head"))
LOGITS = 2e-5  # of their range: three blocks in float32; the reference's own noise is 6e-7


@pytest.fixture(scope="module")
def model():
    return keras_vit.load(FOLDER)


@pytest.fixture(scope="module")
def arrays():
    """The arrays of both files."""
    return {name: array.read() for path in (BACKBONE, HEAD) for name, array in open_file(path).items()}


@pytest.mark.each
@pytest.mark.parametrize(
    "values, logits",
    [
        ("pixel_values", "logits"),
        pytest.param("pixel_values_padded", "logits_padded", marks=pytest.mark.nightly_elsewhere),
    ],
)
def test_logits_are_those_of_dinov2(model, golden, values, logits, record_property):
    ref = golden(FOLDER.name).ref
    margins = centre_margins(ref[values].shape[1:3], model.config.patch_size)
    found = model.predict(np.pad(ref[values], [(0, 0), *margins, (0, 0)]), verbose=0)
    record_property("errors", {f"{FOLDER.name}: {logits.replace('_', ', ')}": deviations(found, ref[logits])})
    assert np.abs(found - ref[logits]).max() <= LOGITS * np.ptp(ref[logits])


def test_the_config_is_read_off_the_files(model):
    config = model.config
    assert (config.blocks, config.classes, config.short_side, config.stride) == ((2,), 6, 512, (341, 341))
    assert config.backbone.interpolation == "bicubic_offset" and config.dynamic and config.class_names is None
    assert repr(model).startswith("<LinearSegmenter")


@pytest.mark.nightly_elsewhere
def test_a_file_of_keras_holds_the_whole_model(model, tmp_path):
    path, images = tmp_path / "model.keras", np.ones((1, 28, 42, 3), "float32")
    model.save(path)
    again = keras_vit.load(path)
    assert again.config == model.config and type(again) is LinearSegmenter
    np.testing.assert_array_equal(again.predict(images, verbose=0), model.predict(images, verbose=0))
    copy = model.with_config()
    assert copy.config == model.config
    np.testing.assert_array_equal(copy.predict(images, verbose=0), model.predict(images, verbose=0))
    named = model.with_config(class_names=list("abcdef"), short_side=64, crop_size=28, stride=14, image_size=28)
    assert named.config.class_names == tuple("abcdef") and named.output_shape == (None, 2, 2, 6)


@pytest.mark.nightly_elsewhere
def test_a_picture_becomes_the_map_of_dinov2(model, golden):
    """From the picture's bytes. A pixel may differ where two classes are as good as equal."""
    ref = golden(FOLDER.name).ref
    result = segmentation.segment(model, ref["picture"])
    differ = result.map != ref["semantic"]
    assert differ.mean() <= 1e-3 and (ref["semantic_gap"][differ] <= 1e-3).all()
    assert sum(part.area for part in result.segments) == result.map.size and result.task == "semantic"
    assert {part.id for part in result.segments} == set(np.unique(result.map).tolist())


DINOV3 = {"decode_head.conv_seg": "segmentation_model.1.conv", "decode_head.bn": "segmentation_model.1.batchnorm_layer"}


def written(path, arrays):
    write_safetensors(path, sorted(arrays.items()))
    return path


def test_heads_of_other_names_are_the_same_model(model, arrays, tmp_path):
    head = {name: values for name, values in arrays.items() if name.startswith("decode_head")}
    both = {name if name in head else f"backbone.{name}": values for name, values in arrays.items()}  # mmsegmentation
    for old, new in DINOV3.items():
        head = {name.replace(old, new): values for name, values in head.items()}
    dinov3 = keras_vit.load(BACKBONE, head=written(tmp_path / "head.safetensors", head))
    with pytest.raises(ValueError, match="numerics='official' does not apply to a backbone with head="):
        keras_vit.load(BACKBONE, head=tmp_path / "head.safetensors", numerics="official")
    assert dinov3.config.pictures == "dinov3" and dinov3.config.dropout == 0.1
    whole = keras_vit.load(written(tmp_path / "both.safetensors", both))
    assert whole.config == model.config
    images = np.random.default_rng(0).normal(size=(1, 28, 42, 3)).astype("float32")
    for found in (dinov3, whole):
        np.testing.assert_allclose(found.predict(images, verbose=0), model.predict(images, verbose=0), atol=1e-6)


def test_a_head_on_four_blocks_reads_each_with_the_final_norm():
    """Against features that are taken and normalised one by one."""
    backbone = small_backbone_config(image_size=28, patch_size=14, width=16, depth=5, mlp_width=32, dynamic=True)
    config = LinearSegmenterConfig(backbone=backbone, classes=3, blocks=(1, 2, 3, 4))
    model = LinearSegmenter(config)
    rng = np.random.default_rng(0)
    for layer in ("encoder_norm", "head_norm", "head"):
        weights = [rng.uniform(0.5, 1.5, w.shape) for w in model.get_layer(layer).get_weights()]
        model.get_layer(layer).set_weights(weights)
    images = rng.normal(size=(2, 28, 42, 3)).astype("float32")
    names = [f"block_{i}" for i in config.blocks]
    tokens = keras_vit.feature_extractor(model.backbone, names).predict(images, verbose=0)
    gamma, beta = model.get_layer("encoder_norm").get_weights()
    features = []
    for name in names:
        x = tokens[name][:, 1:].astype("float64")
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + backbone.layer_norm_epsilon)
        features.append(x * gamma + beta)
    gamma, beta, mean, variance = model.get_layer("head_norm").get_weights()
    kernel, bias = model.get_layer("head").get_weights()
    x = (np.concatenate(features, -1) - mean) / np.sqrt(variance + 1e-5) * gamma + beta
    expected = (x @ kernel + bias).reshape(2, 2, 3, 3)
    found = model.predict(images, verbose=0)
    assert np.abs(found - expected).max() <= LOGITS * np.ptp(expected)


@pytest.mark.each
def test_batch_normalisation_trains_as_in_pytorch():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(1, 3, (2, 3, 2, 4)).astype("float32")
    theirs, ours = torch.nn.BatchNorm2d(4), BatchNormalization()
    for _ in range(2):
        expected = theirs(torch.tensor(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).detach().numpy()
        found = keras.ops.convert_to_numpy(ours(x, training=True))
    np.testing.assert_allclose(found, expected, atol=5e-6)
    pairs = ((ours.moving_mean, theirs.running_mean), (ours.moving_variance, theirs.running_var))
    for mine, running in pairs:
        np.testing.assert_allclose(keras.ops.convert_to_numpy(mine), running.numpy(), rtol=1e-6)
    ours.trainable = False
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(ours(x, training=mode)) for mode in (True, False)))


MATRIX = "decode_head.conv_seg.weight"
BAD_FILES = {
    "without a backbone": (lambda head: head, None, "load(backbone, head=...)"),
    "of another width": (lambda head: head | {MATRIX: head[MATRIX][:, :-1]}, BACKBONE, "reads 63"),
    "an array too many": (lambda head: head | {"decode_head.x": np.ones(2)}, BACKBONE, "not part of the model"),
    "one too few": (lambda head: {n: v for n, v in head.items() if "bn.bias" not in n}, BACKBONE, "missing"),
    "no head": (lambda head: {"x.weight": np.ones((2, 2))}, BACKBONE, "must be a linear or DPT head"),
    "NaN": (lambda head: {n: v * np.nan for n, v in head.items()}, BACKBONE, "NaN"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_what_is_no_head_of_this_backbone_is_refused(case, arrays, tmp_path):
    change, backbone, message = BAD_FILES[case]
    head = change({name: values for name, values in arrays.items() if name.startswith("decode_head")})
    head = {name: values.astype("float32") for name, values in head.items() if values.ndim}
    path = written(tmp_path / "head.safetensors", head)
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        keras_vit.load(path) if backbone is None else keras_vit.load(backbone, head=path)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"blocks": ()}, "blocks must increase"),
        ({"blocks": (0,)}, "blocks must increase"),
        ({"blocks": (3, 2)}, "blocks must increase"),
        ({"stride": 600}, "stride must be at most crop_size"),
        ({"class_names": ("a",)}, "class_names must name each of the 6 classes"),
    ],
)
def test_configs_that_make_no_sense_are_refused(model, changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(model.config, **changes)
    mixer = small_backbone_config(heads=1, tokens_mlp_width=5, class_token=False, position_embedding="none")
    with pytest.raises(ValueError, match="zero_shot=True needs a backbone with attention"):
        small_linear_segmenter_config(backbone=mixer, zero_shot=True)


def by_hand(model, picture, scales, flip):
    """The evaluation of DINOv2, and DINOv3's, in whole arrays: OpenCV's or Pillow's resizing aside."""
    config, total = model.config, 0
    for scale in scales:
        short = int(config.short_side * scale)
        factor = short / min(picture.shape[:2])
        size = [int(side * factor + 0.5) for side in picture.shape[:2]]
        if config.pictures == "dinov2":
            image = interpolation.opencv_resized(picture, size)
        else:
            image = np.asarray(Image.fromarray(picture).resize(size[::-1], Image.Resampling.BILINEAR))
        image = (image.astype("float32") / 255 - config.pipeline.mean) / config.pipeline.std
        for mirrored in (False, True)[: 1 + flip]:
            view = image[:, ::-1] if mirrored else image
            sums, counts = np.zeros((*size, config.classes)), np.zeros((*size, 1))
            for window in segmenting.sliding(size, config.crop_size, config.stride):
                margins = centre_margins(window[2:], config.patch_size)
                crop = np.pad(window.of(view), [*margins, (0, 0)])[None].astype("float32")
                logits = model.predict_on_batch(crop)
                window.of(sums)[...] += keras_vit.preprocessing.resize_images(logits[0], window[2:])
                window.of(counts)[...] += 1
            logits = keras_vit.preprocessing.resize_images(sums / counts, picture.shape[:2])
            shares = np.exp(logits - logits.max(-1, keepdims=True))
            shares /= shares.sum(-1, keepdims=True)
            total = total + (shares[:, ::-1] if mirrored else shares)
    return total


@pytest.mark.parametrize("pictures", ["dinov2", "dinov3"])
@pytest.mark.parametrize("scales, flip", [((1.0,), False), ((1.0, 1.32), True)])
def test_scales_and_mirror_images_are_averaged(pictures, scales, flip, model):
    small = model.with_config(pictures=pictures, short_side=45, crop_size=(42, 45), stride=(20, 31))
    picture = np.random.default_rng(2).integers(0, 256, (70, 33, 3)).astype("uint8")
    expected = by_hand(small, picture, scales, flip)
    found = segmentation.segment(small, picture, scales=list(scales), flip=flip, batch_size=3).map
    best = np.sort(expected, -1)
    differ = found != expected.argmax(-1)
    assert not differ[best[..., -1] - best[..., -2] > 1e-4].any() and differ.mean() <= 1e-3


def test_shares_are_averaged_as_they_are(model, monkeypatch):
    """Those of TIPS's crops: another softmax would bring them closer together."""
    shares = iter([(1.0, 0.0), (0.25, 0.75), (0.26, 0.74)])
    found = lambda *_: (segmenting.rows_of(np.full((8, 8, 2), next(shares), "float32")), (8, 8))  # noqa: E731
    monkeypatch.setattr(segmenting, "_logits", found)
    tips = model.with_config(pictures="tips_slide", short_side=8)
    assert not segmentation.segment(tips, np.zeros((8, 8, 3), "uint8"), scales=(1, 2, 3)).map.any()


BAD_OPTIONS = [
    ({"task": "panoptic"}, "task must be one of"),
    ({"stuff_classes": [1]}, "stuff_classes"),
    ({"threshold": 0.5}, "threshold=0.5 is for the task .*, but the task is 'semantic'"),
    *(({"scales": scales}, "scales must be") for scales in ((), (1.0, 0.0), (float("nan"),), "12")),
    ({"batch_size": 0}, "batch_size"),
    ({"flip": "no"}, "flip must be True or False"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_options_that_make_no_sense_are_refused(options, message, model):
    with pytest.raises((ValueError, TypeError), match=message):
        segmentation.segment(model, np.zeros((8, 8, 3), "uint8"), **options)


def test_maps_are_saved_with_an_id_a_pixel(tmp_path):
    for largest, kind in ((254, "P"), (255, "I;16")):
        ids = np.array([[0, largest], [-1, 3]], "int32")
        segmentation.Segmentation(ids, (), "panoptic").save(tmp_path / "map.png")
        with Image.open(tmp_path / "map.png") as picture:
            found = np.asarray(picture).astype("int64")
        assert picture.mode == kind and found[1, 0] == (255 if kind == "P" else 65535)
        np.testing.assert_array_equal(found[ids >= 0], ids[ids >= 0])
    for name in ("map.npy", "large.NPY"):  # to which NumPy adds an ending
        segmentation.Segmentation(ids, (), "panoptic").save(tmp_path / name)
        np.testing.assert_array_equal(np.load(tmp_path / name), ids)
    with pytest.raises(ValueError, match="path must end with"):
        segmentation.Segmentation(ids, (), "panoptic").save(tmp_path / "map.jpg")
    with pytest.raises(ValueError, match="ids up to 65534, but the map has 65535"):
        segmentation.Segmentation(np.array([[65535]], "int32"), (), "panoptic").save(tmp_path / "map.png")


def test_the_command(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    picture = np.random.default_rng(0).integers(0, 256, (30, 41, 3)).astype("uint8")
    for number in "12":
        save(tmp_path / f"photos/{number}.png", picture)
    small = model.with_config(short_side=28, crop_size=28, stride=14, class_names=list("abcdef"))
    small.save("model.keras")
    given = ["--weights", "model.keras"]
    assert main(["segment", "photos/1.png", "-o", "masks.png", *given, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    expected = segmentation.segment(small, picture)
    assert row["task"] == "semantic" and row["segments"] == expected.to_dict()["segments"]
    with Image.open("masks.png") as found:
        np.testing.assert_array_equal(np.asarray(found), expected.map)
    options = ["--format", "npy", "--scales", "1", "2", "--flip"]
    assert main(["segment", "photos", "-o", "maps", *given, *options]) == 0
    assert np.load("maps/2.npy").shape == (30, 41) and "photos/2.png" in capsys.readouterr().out
    assert main(["segment", "photos/1.png", "-o", "x.png", "--weights", str(BACKBONE), "--head", str(HEAD)]) == 0
