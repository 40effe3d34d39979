"""Masks of segments: what maps, COCO's files and folders of instances say, and how training changes them."""

import dataclasses
import json

import numpy as np
import pytest

from keras_vit import data, training
from tests.pictures import save

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:1 pictures in .* have only crowds:UserWarning")]


def as_set(target):
    return {(mask.tobytes(), int(label)) for mask, label in zip(target["masks"], target["labels"], strict=True)}


def test_panoptic_targets_are_the_authors(golden):
    case = golden("train_targets_panoptic")
    found = training.mask_targets(case.ref["ids"], segments=case.meta["segments"])
    assert as_set(found) == as_set({"masks": case.ref["target_masks"] > 0, "labels": case.ref["target_labels"]})


def test_semantic_targets():
    labels = np.array([[0, 1, 1], [255, 3, 0]])
    found = data.mask_targets(labels)
    assert found["labels"].tolist() == [0, 1, 3] and found["masks"].sum() == 5
    reduced = data.mask_targets(labels, reduce_zero_label=True)
    assert reduced["labels"].tolist() == [0, 2] and reduced["masks"].sum() == 3
    assert data.mask_targets(np.full((2, 2), 255))["masks"].shape == (0, 2, 2)
    with pytest.raises(TypeError, match="labels must be integers"):
        data.mask_targets(labels / 2)
    with pytest.raises(ValueError, match="reduce_zero_label=True are not used with segments="):
        data.mask_targets(labels, reduce_zero_label=True, segments=[])


@pytest.fixture
def picture():
    return np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype="uint8")


def test_augmented_masks(picture):
    """Mirrored, nearest at its size, padded below and to the right, cropped; what is empty or a crowd is dropped."""
    masks = np.zeros((3, 20, 30), bool)
    masks[0, :10, :15] = masks[1, 15:, 20:] = masks[2] = True
    target = {"masks": masks, "labels": np.array([4, 5, 6]), "crowd": np.array([0, 0, 1])}
    crop, found = data.augment_masks(picture, target, 24, size=(10, 15), flip=True)
    assert crop.shape == (24, 24, 3) and crop.dtype == np.uint8 and not crop[10:].any() and not crop[:, 15:].any()
    assert found["labels"].tolist() == [4, 5]
    np.testing.assert_array_equal(found["masks"][0][:10, :15], masks[0, ::2, ::-1][:, ::2])
    corner, found = data.augment_masks(picture, target, 10, size=(20, 30), top=10, left=20)
    np.testing.assert_array_equal(corner, picture[10:, 20:])
    assert found["labels"].tolist() == [5]
    for options, message in (({"top": -1}, "top must be"), ({"size": (0, 4)}, "size must be")):
        with pytest.raises(ValueError, match=message):
            data.augment_masks(picture, target, 10, **{"size": (20, 30)} | options)
    with pytest.raises(ValueError, match=r"their shape is \(3, 20, 30\)"):
        data.augment_masks(picture[1:], target, 10, size=(20, 30))
    with pytest.raises(TypeError, match="float64"):
        data.augment_masks(picture / 2, target, 10, size=(20, 30))


def test_changes_of_colours(picture):
    target = {"masks": np.ones((1, 20, 30), bool), "labels": [0]}
    values = picture.astype("float64")
    grey = values @ [0.2989, 0.587, 0.114]
    wanted = {
        ("brightness", 1.1): values * 1.1,
        ("contrast", 0.6): 0.6 * values + 0.4 * grey.mean(),
        ("saturation", 1.4): 1.4 * values - 0.4 * grey[..., None],
        ("hue", 0.0): values,
    }
    for change, pixels in wanted.items():
        crop, _ = data.augment_masks(picture, target, (20, 30), size=(20, 30), colour=[change])
        assert np.abs(crop - pixels.clip(0, 255)).max() <= 2
    with pytest.raises(ValueError, match="colour must be one of"):
        data.augment_masks(picture, target, (20, 30), size=(20, 30), colour=[("gamma", 1.0)])


def test_what_is_drawn():
    augmentation, rng = data.SegmentAugmentation((0.5, 2.0), jitter=True), np.random.default_rng(0)
    drawn = [augmentation.draw((40, 80), (32, 32), rng) for _ in range(400)]
    sizes = np.array([d["size"][1] for d in drawn])
    assert sizes.min() >= 16 and sizes.max() <= 64 and 30 < sizes.mean() < 50
    for name in ("top", "left"):
        assert all(0 <= d[name] <= max(d["size"][name == "left"] - 32, 0) for d in drawn)
    counts = [sum(name in dict(d["colour"]) for d in drawn) for name in ("brightness", "contrast", "saturation", "hue")]
    assert all(150 < count < 250 for count in (*counts, sum(d["flip"] for d in drawn)))
    last = [d["colour"][-1][0] == "contrast" for d in drawn if {"contrast", "hue"} <= {*dict(d["colour"])}]
    assert {*last} == {True, False}


def scenes(count=5):
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (20, 24 + i, 3), dtype="uint8") for i in range(count)]
    targets = []
    for picture in pictures:
        masks = np.zeros((2, *picture.shape[:2]), bool)
        masks[0, :8, :8] = masks[1, 12:, 9:] = True
        targets.append({"masks": masks, "labels": np.array([0, 1])})
    return pictures, targets


def stream_of(source, size=16, batch_size=3, augmentation=None, **options):
    split = "test" if augmentation is None else "train"
    return data.open_data(
        source, image_size=size, batch_size=batch_size, augmentation=augmentation, split=split, **options
    )


def instance_folder(folder):
    """Two pictures with a cat and a dog each."""
    pictures, targets = scenes(2)
    for i, (picture, target) in enumerate(zip(pictures, targets, strict=True)):
        save(folder / f"images/photo{i}.png", picture)
        for name, mask in zip(("cat_1", "dog_1"), target["masks"], strict=True):
            save(folder / f"instances/photo{i}/{name}.png", np.uint8(255 * mask))
    return pictures, targets


def test_folders_of_instances(tmp_path):
    pictures, targets = instance_folder(tmp_path)
    source = data.open_segments(tmp_path)
    assert source.class_names == ("cat", "dog") and source.task == "instance"
    picture, found = source.read(1)
    np.testing.assert_array_equal(picture, pictures[1])
    assert as_set(found) == as_set(targets[1])
    with pytest.raises(ValueError, match="begin with 'cow', but it has 'photo0/cat_1.png', 'photo0/dog_1.png'"):
        data.open_segments(tmp_path, class_names=["cow"])


def test_folders_of_instances_with_splits(tmp_path):
    """The classes are those of the training pictures, or of a list beside the folders."""
    for split in ("train", "val"):
        instance_folder(tmp_path / split)
    (tmp_path / "val/images/photo1.png").unlink()
    with pytest.warns(UserWarning, match="1 folders of .*instances are left out, without picture: 'photo1'"):
        source = data.open_segments(tmp_path)
    assert (len(source.names), len(source.tests.names), source.tests.class_names) == (2, 1, ("cat", "dog"))
    save(tmp_path / "val/images/photo1.png", np.ones((20, 25, 3), "uint8"))
    save(tmp_path / "val/instances/photo0/cow_1.png", np.ones((20, 24), "uint8"))
    with pytest.raises(ValueError, match="val/instances must .* but it has 'photo0/cow_1.png'"):
        data.open_segments(tmp_path, split="train")
    (tmp_path / "classes.txt").write_text("cow\ndog\ncat\n")
    assert data.open_segments(tmp_path, split="test").class_names == ("cow", "dog", "cat")


def test_ade20ks_panoptic_layout(tmp_path):
    """Stuff is where the semantic mask says so, things are where the file of instances does; two of a class differ."""
    semantic, things = np.zeros((8, 8), "uint8"), np.zeros((8, 8, 3), "uint8")
    semantic[:4], semantic[4:, :4], semantic[4:, 4:] = 1, 8, 9  # wall, bed, window
    things[4:, :2], things[4:, 2:3], things[5:, 4:] = (1, 1, 0), (1, 2, 0), (2, 3, 0)  # column 3: a bed of no instance
    for split in ("training", "validation"):
        save(tmp_path / f"images/{split}/a.jpg", np.zeros((8, 8, 3), "uint8"))
        save(tmp_path / f"annotations/{split}/a.png", semantic)
        save(tmp_path / f"annotations_instance/{split}/a.png", things)
    source = data.open_segments(tmp_path)
    assert source.task == source.tests.task == "panoptic" and source.classes == 150 and len(source.stuff) == 50
    masks = [semantic == 1, *(things[..., 1] == k for k in (1, 2, 3))]
    assert as_set(source.read(0)[1]) == as_set({"masks": np.stack(masks), "labels": [0, 7, 7, 8]})
    with pytest.raises(ValueError, match="ignore=0 is for the data 'masks', .*, but the data is .ADE20K's folder"):
        data.open_segments(tmp_path, ignore=0)
    things[0, 0] = (101, 9, 0)
    save(tmp_path / "annotations_instance/training/a.png", things)
    with pytest.raises(ValueError, match="class numbers 1 to 100, but has .*101"):
        source.read(0)
    (tmp_path / "annotations_instance/validation/a.png").unlink()
    with pytest.raises(FileNotFoundError, match="1 pictures have no file of instances"):
        data.open_segments(tmp_path)


CATEGORIES = [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog", "isthing": 0}]


def coco_panoptic(folder):
    """Two pictures: a cat, a dog and a crowd; nothing but a crowd."""
    ids = np.zeros((20, 24), "int64")
    ids[:8, :8], ids[12:, 9:], ids[:8, 16:] = 300, 70000, 9
    rows = []
    for i in range(2):
        save(folder / f"{i}.jpg", np.full((20, 24, 3), 50 * i, "uint8"))
        png = np.stack([ids % 256, ids // 256 % 256, ids // 65536], axis=-1).astype("uint8")
        save(folder / f"panoptic_train/{i}.png", png)
        parts = [{"id": 300, "category_id": 7}, {"id": 70000, "category_id": 3}][: 2 * (1 - i)]
        parts.append({"id": 9, "category_id": 7, "iscrowd": 1})
        rows.append({"file_name": f"{i}.png", "segments_info": parts})
    file = folder / "panoptic_train.json"
    file.write_text(json.dumps({"categories": CATEGORIES, "annotations": rows}))
    return file, ids


def test_cocos_panoptic_annotations(tmp_path):
    """Crowds are known, and dropped in training, as pictures of nothing else are; classes count by categories' ids."""
    file, ids = coco_panoptic(tmp_path)
    source = data.open_segments(tmp_path, annotations=file)
    contents = [source.examples.contents]
    (tmp_path / "panoptic_train/0.png").write_bytes((tmp_path / "panoptic_train/0.png").read_bytes())
    contents.append(data.open_segments(tmp_path, annotations=file).examples.contents)
    assert contents[0] != contents[1]  # the ids were written again
    assert source.class_names == ("dog", "cat") and len(source.names) == 1 and source.task == "panoptic"
    found = source.read(0)[1]
    wanted = {"masks": np.stack([ids == 9, ids == 300, ids == 70000]), "labels": [1, 1, 0]}
    assert as_set(found) == as_set(wanted) and found["crowd"].tolist() == [True, False, False]
    with stream_of(source, 24, 1, data.SegmentAugmentation((1.0, 1.0)), seed=1) as stream:
        assert sorted(stream.batch(0)[1][0]["labels"].tolist()) == [0, 1]
    renamed = data.open_segments(tmp_path, annotations=file, class_names=["cat", "dog"])
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    assert data.open_segments(tmp_path, annotations=file).class_names == renamed.class_names
    assert renamed.read(0)[1]["labels"].tolist() == [0, 0, 1]
    file.write_text(json.dumps({"categories": CATEGORIES}))
    with pytest.raises(ValueError, match="annotation format: the key 'annotations' is missing"):
        data.open_segments(tmp_path, annotations=file)


def test_pictures_that_are_named_in_the_annotation(tmp_path):
    """PNGs as well, which are not taken for those of ids."""
    file, _ = coco_panoptic(tmp_path)
    about = json.loads(file.read_text())
    save(tmp_path / "pictures/val/0.png", np.full((20, 24, 3), 77, "uint8"))
    about["images"] = [{"id": i, "file_name": f"val/{i}.png"} for i in range(2)]
    about["annotations"] = [row | {"image_id": i} for i, row in enumerate(about["annotations"])]
    file.write_text(json.dumps(about))
    source = data.open_segments(tmp_path, annotations=file)
    assert source.read(0)[0].mean() == 77 and source.stuff == (0,)


def _json(change):
    def write(folder):
        file = folder / "panoptic_train.json"
        file.write_text(json.dumps(change(json.loads(file.read_text()))))

    return write


def _resized(folder):
    save(folder / "panoptic_train/0.png", np.zeros((20, 20, 3), "uint8"))


HOSTILE = {
    "no PNG": (lambda f: (f / "panoptic_train/0.png").unlink(), "names 1 PNG files that are not in .*: '0.png'"),
    "no picture": (lambda f: (f / "0.jpg").unlink(), "has no picture 0.jpg"),
    "another shape": (_resized, "0.png must have the aspect ratio .* 20 x 24 pixels, but it has 20 x 20"),
    "other ids": (lambda f: save(f / "panoptic_train/0.png", np.ones((20, 24, 3), "uint8")), "none of the segment ids"),
    "no folder of PNGs": (lambda f: (f / "panoptic_train").rename(f / "elsewhere"), "needs its PNG files in"),
    "twice": (_json(lambda a: a | {"annotations": 2 * a["annotations"]}), "0.png has two annotations"),
    "one id": (_json(lambda a: a | {"categories": 2 * a["categories"]}), "two categories have the same id"),
    "unlisted": (_json(lambda a: a | {"categories": a["categories"][:1]}), "category_id 3, which the file does not"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_annotations_that_are_damaged(case, tmp_path):
    file, _ = coco_panoptic(tmp_path)
    damage, message = HOSTILE[case]
    damage(tmp_path)
    about = json.loads(file.read_text())
    file.write_text(json.dumps(about | {"images": []}))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        data.open_segments(tmp_path, annotations=file).read(0)


FOLDERS = {
    "no images": (lambda f: (f / "images").rename(f / "photos"), "no folder .*images with the pictures"),
    "one name": (lambda f: save(f / "images/photo0.jpg", np.ones((20, 24, 3), "uint8")), "differ in their suffix"),
    "no class": (lambda f: save(f / "instances/photo0/1.png", np.ones((20, 24), "uint8")), "it has 'photo0/1.png'"),
    "colours": (lambda f: save(f / "instances/photo0/cat_1.png", np.ones((20, 24, 3), "uint8")), "has colours"),
    "another shape": (lambda f: save(f / "instances/photo0/cat_1.png", np.ones((9, 24), "uint8")), "has 9 x 24"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folders_that_are_damaged(case, tmp_path):
    instance_folder(tmp_path)
    damage, message = FOLDERS[case]
    damage(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        data.open_segments(tmp_path).read(0)


def test_cocos_instances(tmp_path):
    pytest.importorskip("pycocotools")
    save(tmp_path / "a.jpg", np.zeros((20, 24, 3), "uint8"))
    box = [[2, 2, 10, 2, 10, 8, 2, 8]]
    runs = {"counts": [0, 100, 380], "size": [20, 24]}
    rows = [
        {"image_id": 1, "category_id": 7, "segmentation": box, "iscrowd": 0},
        {"image_id": 1, "category_id": 3, "segmentation": runs, "iscrowd": 0, "area": None},
        {"image_id": 1, "category_id": 3, "segmentation": runs, "iscrowd": 1},
    ]
    about = {"categories": CATEGORIES, "images": [{"id": 1, "file_name": "a.jpg"}], "annotations": rows}
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(about))
    _, found = data.open_segments(tmp_path, annotations=file).read(0)
    assert found["labels"].tolist() == [0, 1, 0] and found["crowd"].tolist() == [True, False, False]
    assert found["masks"].sum((1, 2)).tolist() == found["areas"].tolist() == [100, 48, 100]
    assert found["masks"][2][:, :5].all()
    about["images"][0] |= {"height": 40, "width": 48}
    file.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"\(40, 48\) for .*a.jpg, but the picture has \(20, 24\)"):
        data.open_segments(tmp_path, annotations=file).read(0)


def test_pictures_without_an_instance_are_there_to_evaluate_on(tmp_path):
    """They are not trained on. One that is not in the folder is not missed, nor is one with crowds alone."""
    pytest.importorskip("pycocotools")
    runs = {"counts": [0, 100, 380], "size": [20, 24]}
    rows = [{"image_id": 2, "category_id": 7, "segmentation": runs, "iscrowd": crowd} for crowd in (0, 1)]
    rows.append(rows[1] | {"image_id": 3})
    images = [{"id": i, "file_name": f"{i}.png"} for i in range(5)]
    about = {"categories": CATEGORIES, "images": images, "annotations": rows}
    (tmp_path / "instances.json").write_text(json.dumps(about))
    for i in range(4):
        save(tmp_path / f"{i}.png", np.full((20, 24, 3), 50 + i, "uint8"))
    found = data.open_segments(tmp_path, annotations=tmp_path / "instances.json")
    pictures = [np.full((20, 24, 3), 50 + i, "uint8") for i in range(3)]
    nothing = {"masks": np.zeros((0, 20, 24), bool), "labels": []}
    one = {"masks": np.ones((1, 20, 24), bool), "labels": [0]}
    arrays = data.open_segments((pictures, [nothing, one, nothing]), classes=1)
    for source, counts in ((found, [2, 0, 0, 1]), (arrays, [0, 1, 0])):
        assert len(source.names) == 1
        with stream_of(source, batch_size=1, augmentation=data.SegmentAugmentation()) as stream:
            assert stream.examples == 1
        with data.open_data(source, image_size=16, batch_size=1, split="validation") as stream:
            assert [len(targets[0]["labels"]) for _, targets in stream] == counts
        assert len(source.part([0]).names) == 1 and source.part([0]).whole is None


def test_targets_that_make_no_sense():
    pictures, targets = scenes(1)
    with pytest.raises(ValueError, match="labels 0 to 0, but picture 0"):
        data.open_segments((pictures, targets), classes=1)
    with pytest.raises(ValueError, match=r"but picture 0 has \[0.5, 1.0\]"):
        data.open_segments((pictures, [targets[0] | {"labels": [0.5, 1]}]))
    for name, value in {"classes": 0, "split": "val"}.items():
        with pytest.raises(ValueError, match=f"{name} must be"):
            data.open_segments((pictures, targets), **{name: value})
    with pytest.raises(ValueError, match="Each picture needs a target"):
        data.open_segments((pictures * 2, targets))
    with pytest.raises(TypeError, match="each target must be a dict .*, but that of picture 1 is None"):
        data.open_segments((pictures * 2, [*targets, None]))
    with pytest.raises(ValueError, match=r"masks of picture 0 must have the shape \(2, 20, 24\)"):
        data.open_segments((pictures, [{"masks": np.ones((1, 4, 4)), "labels": [0, 1]}]))
    source = data.open_segments((pictures, [{"masks": np.zeros((0, 20, 24)), "labels": []}]), classes=1)
    with pytest.raises(ValueError, match="data must hold images"):
        stream_of(source, augmentation=data.SegmentAugmentation())


def test_classes_in_the_order_of_a_model():
    """Labels, stuff, pictures without instances and test pictures are numbered as the model numbers its classes."""
    pictures, targets = scenes(2)
    targets[1] = {"masks": np.zeros((0, *pictures[1].shape[:2])), "labels": []}
    tests = dataclasses.replace(data.open_segments((pictures, targets), class_names=["sky", "cat"]), stuff=(0,))
    source = dataclasses.replace(tests, splits={"train": lambda: tests, "val": lambda: tests})
    found = source.in_order(["cat", "dog", "sky"])
    expected = [[2, 0][label] for label in targets[0]["labels"]]
    assert found.classes == 3 and found.stuff == (2,) and found.tests.class_names == ("cat", "dog", "sky")
    for one in (found, found.tests, dataclasses.replace(found, examples=found.whole)):
        assert one.read(0)[1]["labels"].tolist() == expected
    assert len(found.whole) == 2 and source.in_order(None) is source.in_order(["sky", "cat"]) is source


def test_an_option_is_used_or_refused(tmp_path):
    instance_folder(tmp_path / "instances")
    coco = {"annotations": coco_panoptic(tmp_path)[0]}
    given = {"ignore": 7, "reduce_zero_label": True, "split": "test", "classes": 5, "class_names": ["a", "b", "c"]}
    for source, options, of_names in (
        (data.open_segments(scenes(1)), {}, "class_names"),
        (scenes(1), {}, "class_names"),
        (tmp_path / "instances", {}, "whose names begin with 'a', 'b'"),
        (tmp_path, coco, "2 categories"),
    ):
        for option, value in given.items():
            try:
                found = data.open_segments(source, **options, **{option: value})
            except ValueError as error:
                assert (of_names if option == "class_names" else option) in str(error)
            else:
                assert found.classes in (3, 5), f"{option} is dropped in silence"
    with pytest.raises(ValueError, match="annotations=.* is for the data .COCO's annotations"):
        data.open_segments(data.open_segments(scenes(1)), **coco)
