"""OWL-ViT and OWLv2 beside the numbers of transformers: texts, logits, boxes, pixels, files written back."""

import json
import shutil

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import detection, text
from keras_vit.checkpoints.files import open_file
from keras_vit.checkpoints.msgpack_file import read_msgpack
from keras_vit.layers.dense_prediction import DetectionHead, box_bias
from keras_vit.preprocessing.images import detector_pixels
from tests.compute import filled
from tests.small_models import small_backbone_config, values_of
from tests.training.test_mask_classification import gradients_of

pytestmark = pytest.mark.once

CASES = {"owl_v1_p16": "owlvit", "owl_v2_p14": "owlv2"}
LOGITS = 1e-5  # float32 through two blocks; the references differ from float64 by 2e-6
BOXES = 2e-6  # shares of the picture
PIXELS = 2e-6  # of deviations: float32 sums of a blur in another order


@pytest.fixture(scope="module")
def loaded(golden):
    return {name: keras_vit.load_image_text(golden(name).folder) for name in CASES}


@pytest.mark.each
@pytest.mark.parametrize("name", [pytest.param("owl_v1_p16", marks=pytest.mark.nightly_elsewhere), "owl_v2_p14"])
def test_the_numbers_of_the_original(loaded, golden, name, tmp_path):
    both, case = loaded[name], golden(name)
    for i, names in enumerate(case.meta["texts"]):
        np.testing.assert_array_equal(both.tokenizer(names), case.ref["input_ids"][3 * i :][: len(names)])
        model = both.zero_shot_detector(names, progress=False)
        answers = model.predict(case.ref["images"][i : i + 1], verbose=0)
        np.testing.assert_allclose(answers["logits"][0], case.ref["logits"][i, :, : len(names)], atol=LOGITS, rtol=0)
        np.testing.assert_allclose(answers["boxes"][0], case.ref["boxes"][i], atol=BOXES, rtol=0)
        if "objectness" in case.ref:
            np.testing.assert_allclose(answers["objectness"][0], case.ref["objectness"][i], atol=LOGITS, rtol=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.config == model.config and again.config.class_names == tuple(names)
    again = again.predict(case.ref["images"][i : i + 1], verbose=0)
    np.testing.assert_array_equal(again["logits"], answers["logits"])


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("name", CASES)
def test_boxes_of_pictures(loaded, golden, name):
    """The references take the three names for both pictures; boxes are float32 products of up to 110 pixels."""
    case, model = golden(name), loaded[name].zero_shot_detector(golden(name).meta["names"], progress=False)
    for i in range(2):
        picture = case.ref[f"picture_{i}"]
        np.testing.assert_allclose(model.preprocess(picture)[0], case.ref[f"pixels_{i}"], atol=PIXELS, rtol=0)
        found = detection.detect(model, picture, threshold=case.meta["threshold"])
        np.testing.assert_array_equal(found.labels, case.ref[f"detect_{i}_labels"])
        np.testing.assert_allclose(found.scores, case.ref[f"detect_{i}_scores"], atol=2e-6, rtol=0)
        np.testing.assert_allclose(found.boxes, case.ref[f"detect_{i}_boxes"], atol=2e-4, rtol=0)
        assert found.names == tuple(case.meta["names"][k] for k in found.labels)
        assert (found.objectness is None) is (CASES[name] == "owlvit")


@pytest.mark.parametrize("name", CASES)
def test_written_back_bit_for_bit(loaded, golden, name, tmp_path):
    both, folder = loaded[name], golden(name).folder
    text.save_image_text(both, tmp_path / "folder")
    old, new = open_file(folder), open_file(tmp_path / "folder")
    assert old.keys() == new.keys() and all(np.array_equal(old[key].read(), new[key].read()) for key in old)
    again = keras_vit.load_image_text(tmp_path / "folder")
    assert again.detector.config == both.detector.config and again.text_encoder.config == both.text_encoder.config
    # By way of Scenic's file, in which one array has no place, and whose numbers are Scenic's.
    text.save_image_text(both, tmp_path / "scenic", "scenic")
    scenic = keras_vit.load_image_text(tmp_path / "scenic", tokenizer=folder)
    numbers = {"activation": "tanh", "head_epsilon": 1e-6, "pictures": "scenic"}
    assert scenic.detector.config == both.detector.config.replace(**numbers) and scenic.lowers
    text.save_image_text(scenic, tmp_path / "back")
    back = open_file(tmp_path / "back")
    assert "params/backbone/clip/logit_scale" in read_msgpack(tmp_path / "scenic")
    assert old.keys() - back.keys() == {f"{CASES[name]}.visual_projection.weight"}
    assert all(np.array_equal(old[key].read(), back[key].read()) for key in back)
    with pytest.raises(FileExistsError):
        text.save_image_text(both, tmp_path / "scenic", "scenic")
    with pytest.raises(ValueError, match="layout must be"):
        text.save_image_text(both, tmp_path / "other", "clip")


def test_scenics_numbers_of_transformers_files(golden):
    """GELU and epsilon of the heads move a box by up to 0.03 where features are small; grey is not black."""
    case = golden("owl_v2_p14")
    ours, official = (keras_vit.load_image_text(case.folder, numerics=n) for n in (None, "official"))
    models = [both.zero_shot_detector(["dog"], progress=False) for both in (ours, official)]
    boxes = [model.predict(case.ref["images"], verbose=0)["boxes"] for model in models]
    assert 1e-6 < np.abs(boxes[0] - boxes[1]).max() < 0.05
    square = np.zeros((56, 56, 3), "uint8")
    np.testing.assert_array_equal(*(model.preprocess(square) for model in models))
    assert np.abs(models[0].preprocess(square[:40]) - models[1].preprocess(square[:40])).max() > 1
    assert not ours.lowers and official.lowers


def test_templates_are_averaged_and_not_normed_again(loaded, golden):
    both = loaded["owl_v1_p16"]
    vectors = both.embed_texts(["a cat", "one cat"])
    model = both.zero_shot_detector("cat", ["a {}", "one {}"], progress=False)
    kernel = keras.ops.convert_to_numpy(model.get_layer("head").queries.kernel)
    np.testing.assert_allclose(kernel[:, 0], vectors.mean(0), atol=1e-7)
    assert np.linalg.norm(kernel) < 0.9999 and model.config.class_names == ("cat",)


@pytest.mark.parametrize("name", CASES)
def test_a_detector_of_an_example(loaded, golden, name):
    both, picture = loaded[name], golden(name).ref["picture_0"]
    model = both.one_shot_detector(picture, box=(5, 5, 60, 50))
    found = detection.detect(model, picture, threshold=0.0)
    shares = detection.overlaps(found.boxes, np.array([[5.0, 5, 60, 50]]))[:, 0]
    assert shares[model.patch] >= 0.8 * shares.max() and len(found.scores) == 16
    # Suppressed from the best down, and a suppressed box suppresses nothing.
    few = detection.detect(model, picture, threshold=0.0, nms=0.3)
    inner = detection.overlaps(few.boxes, few.boxes) - np.eye(len(few.boxes))
    assert len(few.boxes) < 16 and inner.max() <= 0.3 and few.scores.max() == found.scores.max()
    whole = both.one_shot_detector(picture)
    answers = whole.predict(whole.preprocess(picture), verbose=0)
    if "objectness" in answers:
        assert whole.patch == answers["objectness"][0].argmax()
    for box in ((5, 5, 5, 50), (0, 0, 999, 9), (1, 2, 3), "box"):
        with pytest.raises((ValueError, TypeError), match="box must be"):
            both.one_shot_detector(picture, box=box)


def test_options_of_detect(loaded, golden):
    model = loaded["owl_v2_p14"].zero_shot_detector(["cat", "dog"], progress=False)
    picture = golden("owl_v2_p14").ref["picture_1"]
    pairs = detection.detect(model, picture, threshold=0.0, per_class=True)
    assert len(pairs.scores) == 32 and pairs.labels.tolist() == [0, 1] * 16
    best = detection.detect(model, picture, threshold=0.0, most=3)
    assert sorted(best.scores) == sorted(detection.detect(model, picture, threshold=0.0).scores)[-3:]
    assert detection.detect(model, picture, threshold=1.0).to_dict()["boxes"] == []
    for wrong in ({"threshold": 1.5}, {"nms": -1}, {"most": 0}, {"per_class": 1}, {"threshold": None}):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            detection.detect(model, picture, **wrong)
    with pytest.raises(TypeError, match="model must be a Detector"):
        detection.detect("glyphs", picture)


def test_boxes_as_files(loaded, golden, tmp_path):
    model = loaded["owl_v1_p16"].zero_shot_detector(["cat", "a, b"], progress=False)
    picture = golden("owl_v1_p16").ref["picture_0"]
    found = detection.detect(model, picture, threshold=0.5)
    found.save(tmp_path / "a.csv")
    found.save(tmp_path / "a.json")
    rows = (tmp_path / "a.csv").read_text().splitlines()
    assert len(rows) == 1 + len(found.scores) and rows[0] == "left,top,right,bottom,score,label,name"
    (first, *_) = found.to_coco(7, [11, 12])
    left, top, right, bottom = found.boxes[0].tolist()
    assert first["bbox"] == [left, top, right - left, bottom - top] and first["image_id"] == 7
    assert first["category_id"] == (11, 12)[found.labels[0]]
    assert json.loads(json.dumps(found.to_coco(np.int64(7), np.array([11, 12])))) == found.to_coco(7, [11, 12])
    with pytest.raises(ValueError, match="category_ids"):
        found.to_coco(7, [])
    with pytest.raises(ValueError, match=r"\.json or \.csv"):
        found.save(tmp_path / "a.txt")
    detection.plot(found, picture, tmp_path / "boxes.png")
    assert (tmp_path / "boxes.png").stat().st_size > 1000


def test_names_and_loaders_that_make_no_sense(loaded, golden):
    both = loaded["owl_v1_p16"]
    for names, error in (([], ValueError), (["a", "a"], ValueError), ([" "], ValueError), ([1], TypeError)):
        with pytest.raises(error, match="class_names (must|cannot)"):
            both.zero_shot_detector(names)
    with pytest.raises(ValueError, match="load_image_text"):
        keras_vit.load(golden("owl_v1_p16").folder)
    with pytest.warns(UserWarning, match="longer than the 16 tokens"):
        ids = both.tokenizer("cat " * 20)
    assert ids[0, 0] == 1712 and ids[0, -1] == 1713  # the end stays


@pytest.mark.parametrize(
    ("key", "value"), [("size", [56, 64]), ("resample", 3), ("do_pad", False), ("rescale", False), ("sharpen", 2.0)]
)
def test_pictures_that_are_prepared_in_another_way(golden, tmp_path, key, value):
    folder = shutil.copytree(golden("owl_v2_p14").folder, tmp_path / "model")
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "size": [56, 56], key: value}))
    with pytest.raises(ValueError, match=f"{key}=.* not supported"):
        keras_vit.load_image_text(folder)


def test_other_sizes(loaded, golden, tmp_path):
    """Positions of transformers' files are resized; of Scenic's the upper left part stays."""
    both, folder = loaded["owl_v2_p14"], golden("owl_v2_p14").folder
    model = keras_vit.load_image_text(folder, image_size=84).zero_shot_detector(["cat"], progress=False)
    assert model.predict(np.zeros((1, 84, 84, 3), "float32"), verbose=0)["boxes"].shape == (1, 36, 4)
    text.save_image_text(both, tmp_path / "file", "scenic")
    small = keras_vit.load_image_text(tmp_path / "file", tokenizer=folder, image_size=28)
    old, new = (values_of(one.detector)["position_embedding/table"].reshape(-1, 36) for one in (both, small))
    np.testing.assert_array_equal(new, old[[0, 1, 2, 5, 6]])  # the class token, and two rows of four
    with pytest.raises(ValueError, match="image_size must be at most"):
        keras_vit.load_image_text(tmp_path / "file", tokenizer=folder, image_size=84)
    wide = keras_vit.load_image_text(folder, image_size=(56, 84))
    for layout in ("huggingface", "scenic"):
        with pytest.raises(ValueError, match=r"image_size must be \(56, 56\), but the model has image_size=\(56, 84\)"):
            text.save_image_text(wide, tmp_path / "wide", layout)


def test_the_pipeline_of_a_detector_resizes_as_its_pictures_say():
    picture = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype="uint8")
    for rule in ("owlvit", "owlv2", "scenic"):
        vit = small_backbone_config(image_size=16, patch_size=8, include_preprocessing=True)
        config = keras_vit.models.DetectorConfig(backbone=vit, classes=2, embedding=4, pictures=rule)
        both = keras_vit.Detector(config).preprocess([picture, picture[:10]])
        for given, pixels in zip(both, (picture, picture[:10]), strict=True):
            np.testing.assert_array_equal(given, detector_pixels(pixels, (16, 16), rule))
            np.testing.assert_array_equal(config.pipeline.resized(pixels), given[None])
    with pytest.raises(ValueError, match="images must have shape"):
        keras_vit.Detector(config).preprocess([])


@pytest.mark.nightly_elsewhere
def test_new_heads_on_a_backbone_without_class_token():
    """They begin with boxes of one patch at its lower right corner, and probabilities of 0.01."""
    vit = small_backbone_config(image_size=16, patch_size=8, class_token=False)
    config = keras_vit.models.DetectorConfig(backbone=vit, classes=2, embedding=4)
    model = keras_vit.Detector(config)
    answers = model.predict(np.ones((1, 16, 16, 3), "float32"), verbose=0)
    places = 1 / (1 + np.exp(-box_bias(2, 2)))
    np.testing.assert_allclose(answers["boxes"][0], places, atol=1e-6)
    np.testing.assert_allclose(places[:, :2], [[0.5, 0.5], [1, 0.5], [0.5, 1], [1, 1]], atol=2e-4)
    with pytest.raises(ValueError, match="dynamic"):
        config.replace(backbone=vit.replace(dynamic=True))


@pytest.mark.each
def test_objectness_has_no_gradient_into_the_features():
    tokens = np.random.default_rng(0).normal(size=(1, 3, 8)).astype("float32")
    head = filled(DetectionHead(classes=1, embedding=4, grid_size=(1, 2), objectness=True), tokens.shape)

    def run(x):
        return keras.ops.sum(head(keras.ops.convert_to_tensor(x))["objectness"]) + keras.ops.sum(x)

    _, (gradient,) = gradients_of(run, tokens)
    np.testing.assert_array_equal(gradient, np.ones_like(tokens))
    queries = keras.KerasTensor((4, 5))
    assert head(keras.KerasTensor((1, 3, 8)), queries=queries)["logits"].shape == (1, 2, 5)


@pytest.mark.parametrize(
    "data, message",
    [
        (b"\x81\xa1a\xc1", "begins with the byte 0xc1"),
        (b"\x81" * 40, "must be a string|inside each other|too early"),
        (b"\x81\xa1a" * 40, "inside each other"),
        (b"\x81\xa1a" + b"\xc7\xff\x01" * 2000, "inside each other"),
        (b"\x81\xa1a\xc6\xff\xff\xff\xff", "ends too early"),
        (b"\x82\xa1a\x01\xa1a\x01", "that is there once"),
        (b"\x81\xa1a\x01\x01", "more bytes follow"),
        (b"\x81\xa1a\xc7\x05\x01\x93\x91\x02\xa4bool", "is not valid|too early"),
    ],
)
def test_hostile_files_of_msgpack(tmp_path, data, message):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_msgpack(tmp_path / "file")
