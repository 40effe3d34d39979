"""Training detectors: what is prepared, learned, kept and resumed; evaluation during and after a run."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit import data, detection, training
from tests.detection.test_metrics import figures, pycocotools
from tests.pictures import save
from tests.small_models import randomized, small_backbone_config, small_eomt, small_vit, values_of
from tests.training.test_loop import cut_off

pytestmark = pytest.mark.once

NAMES = ("bright", "dark")
SIZE = 16
RECIPE = training.recipe("detection/owl_finetune").replace(
    steps=4, batch_size=4, image_size=SIZE, learning_rate=1e-3, warmup_steps=1
)


def scenes(count, seed=0, size=SIZE):
    """Grey pictures with a bright and a dark rectangle, or one of the two, and their targets."""
    rng, pictures, targets = np.random.default_rng(seed), [], []
    for _ in range(count):
        picture, boxes, labels = np.full((size, size, 3), 128, "uint8"), [], []
        for label in rng.permutation(2)[: rng.integers(1, 3)].tolist():
            width, height = rng.integers(5, 8, 2)
            left, top = (int(rng.integers(size // 2 * label, size // 2 * (label + 1) - 4)), int(rng.integers(size - 8)))
            right, bottom = min(left + width, size // 2 * (label + 1)), top + height
            picture[top:bottom, left:right] = (250, 10)[label]
            boxes.append([left, top, right, bottom])
            labels.append(label)
        pictures.append(picture)
        targets.append({"boxes": np.array(boxes, "float64"), "labels": labels})
    return data.open_boxes((pictures, targets), class_names=NAMES)


def backbone(**changes):
    return small_vit(pooling="none", classes=None, image_size=SIZE, patch_size=4, **changes)


def detector(**changes):
    config = {"backbone": small_backbone_config(image_size=SIZE, patch_size=4), "classes": 2, "embedding": 8}
    return randomized(keras_vit.Detector(keras_vit.models.DetectorConfig(**config | changes)))


def tune(model=None, boxes=None, recipe=RECIPE, **options):
    options = {"verbose": False, "seed": 1} | options
    model, boxes = backbone() if model is None else model, scenes(12) if boxes is None else boxes
    return training.finetune_detection(model, boxes, recipe, **options)


@pytest.mark.nightly
@pytest.mark.each
def test_a_run_that_was_killed_goes_on(tmp_path):
    """It ends with the weights of a run that was not killed, bit for bit, and has AP in its log."""
    options = {"validation": scenes(4, 1), "every": 2}
    whole = tune(output=tmp_path / "whole", **options)
    cut_off(tune, 3, output=tmp_path / "killed", **options)
    again = tune(output=tmp_path / "killed", **options)
    for path, value in values_of(whole.model).items():
        np.testing.assert_array_equal(values_of(again.model)[path], value, err_msg=path)
    assert [row["step"] for row in again.log] == [2, 4]
    assert whole.ap == whole.log[-1]["val_ap"] and 0 <= whole.ap <= whole.ap50 <= 1
    assert whole.to_dict()["ap50"] == whole.ap50 and (tmp_path / "whole/boxes.png").exists()
    loaded = keras_vit.load(tmp_path / "whole/model.keras")
    assert loaded.config == whole.model.config and loaded.config.class_names == NAMES
    measured = detection.evaluate(loaded, scenes(4, 1), progress=False)
    assert (measured.ap, measured.ap50) == (whole.ap, whole.ap50)


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("changes", [{"freeze": "backbone"}, {"lora_rank": 2}, {"freeze": "block_0"}])
def test_what_trains(changes):
    model = backbone()
    done = tune(model, recipe=RECIPE.replace(**changes))
    before, after = values_of(model), values_of(done.model)
    moved = {path for path in before if path in after and np.any(before[path] != after[path])}
    assert all(np.any(weight) for weight in done.model.get_layer("head").get_weights())
    assert any("lora" in path for path in after) == ("lora_rank" in changes)
    assert any(moved) == (changes.get("freeze") == "block_0")
    assert not any(path.startswith("block_0") for path in moved)


@pytest.mark.nightly_elsewhere
def test_detectors_go_on_with_their_classes_and_rules():
    model = detector(class_names=NAMES, pictures="owlvit", objectness=True)
    done = tune(model)
    config = done.model.config
    assert (config.pictures, config.objectness, config.class_names) == ("owlvit", False, NAMES)
    assert done.recipe.augmentation.pictures == "owlvit"
    frozen = tune(model, recipe=RECIPE.replace(learning_rate=0.0)).model
    before, after = values_of(model), values_of(frozen)
    assert all(np.array_equal(before[path], value) for path, value in after.items())
    other = scenes(12)
    other = data.open_boxes(([other.read(i)[0] for i in range(12)], [other.read(i)[1] for i in range(12)]), classes=3)
    more = tune(model, other, recipe=RECIPE.replace(learning_rate=0.0)).model
    after = values_of(more)
    assert after["head/queries/kernel"].shape[1] == 3
    assert all(np.array_equal(before[path], value) for path, value in after.items() if "queries" not in path)
    fewer = data.open_boxes(([np.zeros((9, 9, 3), "uint8")] * 4, [{"boxes": [[0, 0, 3, 3]], "labels": [0]}] * 4),
                            class_names=["dark"])  # fmt: skip
    assert tune(model, fewer).model.config.class_names == NAMES
    with pytest.raises(ValueError, match="pictures='scenic' .* the model's 'owlvit'"):
        tune(model, recipe=RECIPE.replace(augmentation=data.BoxAugmentation(pictures="scenic")))


@pytest.mark.nightly_elsewhere
def test_owls_begin_with_their_words(golden):
    both = keras_vit.load_image_text(golden("owl_v2_p14").folder)
    words = both.zero_shot_detector(NAMES, progress=False)
    options = {
        "recipe": RECIPE.replace(learning_rate=0.0, steps=1, warmup_steps=0).adapted(image_size=words.config.image_size)
    }
    for model in (both, golden("owl_v2_p14").folder):
        done = tune(model, **options)
        found = values_of(done.model)
        assert all(np.array_equal(found[path], value) for path, value in values_of(words).items() if path in found)


def test_ap_of_a_run_is_that_of_pycocotools():
    """Also with a crowd, by the areas that the data says."""
    model, boxes = detector(class_names=NAMES), scenes(10, 2)
    pictures, targets = zip(*(boxes.read(i) for i in range(10)), strict=True)
    for i, target in enumerate(targets):
        target |= {"crowd": np.arange(len(target["labels"])) == i % 4, "areas": target["areas"] + 2000.0 * (i % 2)}
    result = detection.evaluate(model, (list(pictures), list(targets)), most=60, progress=False)
    found = [detection.detect(model, one, threshold=0.0, per_class=True, most=60) for one in pictures]
    parts = [{"boxes": one.boxes, "scores": one.scores, "labels": one.labels} for one in found]
    wanted = pycocotools(list(zip(parts, targets, strict=True)), "boxes")
    np.testing.assert_array_equal(figures(result), wanted)


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match="each target must be a dict with 'labels'"):
        training.train(backbone(), (np.zeros((4, 8, 8, 3), "uint8"), [0, 1, 0, 1]), RECIPE)
    with pytest.raises(TypeError, match=r"must be a data.BoxAugmentation .* Use a recipe detection/"):
        tune(recipe="segmentation/dinov2_linear", steps=1)
    with pytest.raises(TypeError, match="must be a VisionTransformer or a Detector"):
        tune(small_eomt(), drop_path=0.0)
    with pytest.raises(ValueError, match="classes that the model does not have: 'bright', 'dark'"):
        detection.evaluate(detector(class_names=("a", "b")), scenes(2), progress=False)
    with pytest.raises(TypeError, match="must be a Detector or an EoMT"):
        detection.evaluate(backbone(), scenes(2))


def test_mask_ap_of_an_eomt_is_that_of_pycocotools(tmp_path):
    """With crowds and areas of COCO's annotation, as a run logs it, too."""
    mask = pytest.importorskip("pycocotools.mask")
    model, rng = small_eomt(class_names=("a", "b", "c")), np.random.default_rng(0)
    about = {"images": [], "annotations": [], "categories": [{"id": k + 1, "name": "abc"[k]} for k in range(3)]}
    for i in range(6):
        save(tmp_path / f"{i}.png", rng.integers(0, 256, (64, 64, 3), dtype="uint8"))
        about["images"].append({"id": i, "file_name": f"{i}.png", "height": 64, "width": 64})
        for j in range(3):
            ones = np.zeros((64, 64), "uint8")
            ones[20 * j : 20 * j + 20, rng.integers(0, 30) :] = 1
            runs = mask.encode(np.asfortranarray(ones))
            row = {"image_id": i, "category_id": int(rng.integers(1, 4)), "iscrowd": int(j == 2 and i % 2)}
            row |= {"segmentation": runs | {"counts": runs["counts"].decode()}, "area": float(ones.sum()) * 1.1}
            about["annotations"].append(row)
    (tmp_path / "instances.json").write_text(json.dumps(about))
    segments = data.open_segments(tmp_path, annotations=tmp_path / "instances.json")
    pictures = []
    for i in range(6):
        pixels, target = segments.read(i)
        found = detection.best_masks(model, pixels, 100)
        none = {"boxes": np.zeros((len(found["labels"]), 4))}
        pictures.append((found | none, target | {"boxes": np.zeros((len(target["labels"]), 4))}))
    wanted = pycocotools(pictures, "masks")
    result = detection.evaluate(model, segments, progress=False)
    np.testing.assert_array_equal(figures(result), wanted)
    with pytest.raises(ValueError, match="most must be a whole number of at least 1, but -5"):
        detection.evaluate(model, segments, most=-5, progress=False)
    recipe = training.recipe("segmentation/eomt_coco_instance_large").replace(steps=1, batch_size=2, points=8)
    options = {"verbose": False, "image_size": model.config.image_size, "learning_rate": 0.0, "warmup_steps": 0}
    options |= {"backbone_warmup_steps": 0, "layer_decay": None}
    done = training.finetune_segmentation(model, segments.part([0, 1]), recipe, validation=segments, **options)
    assert done.log[-1]["val_mask_ap"] == pytest.approx(max(result.ap, 0), abs=1e-6)
