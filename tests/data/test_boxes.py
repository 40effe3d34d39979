"""Pictures with boxes: where boxes lie after crops, mirroring and resizing; what the sources say and refuse."""

import json

import numpy as np
import pytest

from keras_vit import data
from keras_vit.data.augmentation import draws
from keras_vit.data.boxes import BoxTransform
from tests.pictures import save

pytestmark = pytest.mark.once

NAMES = ("dog", "cat")


def scene(height=60, width=90, box=(20, 15, 50, 40)):
    picture = np.full((height, width, 3), 20, "uint8")
    picture[box[1] : box[3], box[0] : box[2]] = 250
    return picture, {"boxes": np.array([box], "float64"), "labels": [1], "crowd": [False]}


def extent(image):
    rows, columns = np.nonzero(image[..., 0] > 140)
    return np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])


@pytest.mark.parametrize("rule", ["owlvit", "owlv2", "scenic"])
@pytest.mark.parametrize("size", [(60, 60), (45, 64)])
def test_boxes_move_with_the_pixels(rule, size):
    picture, target = scene()
    target = {name: np.asarray(values) for name, values in target.items()}
    transform, flipped, dropped = BoxTransform(size, data.BoxAugmentation(pictures=rule)), 0, 0
    for place in range(40):
        image, found = transform(picture, target, draws(0, 0, place))
        assert image.shape == (*size, 3) and image.dtype == "float32"
        if len(found["labels"]):
            np.testing.assert_allclose(found["boxes"][0], extent(image), atol=1.5)
            assert found["boxes"].dtype == "float32" and found["labels"].tolist() == [1]
        dropped += not len(found["labels"])
    assert 0 < dropped < 20
    plain = BoxTransform(size, data.BoxAugmentation(min_area=1.0, flip=True, pictures=rule))
    for place in range(8):
        image, found = plain(picture, target, draws(0, 0, place))
        np.testing.assert_allclose(found["boxes"][0], extent(image), atol=1.5)
        flipped += found["boxes"][0][0] > 0.4 * size[1]
    assert 0 < flipped < 8


def test_how_much_of_a_box_has_to_be_left():
    picture, target = scene()
    target = {name: np.asarray(values) for name, values in target.items()}
    counts = []
    for kept in (0.0, 0.6, 1.0):
        transform = BoxTransform((60, 60), data.BoxAugmentation(kept=kept))
        counts.append(sum(len(transform(picture, target, draws(0, 0, i))[1]["labels"]) for i in range(60)))
    assert counts[0] > counts[1] > counts[2] > 0
    target["crowd"] = np.array([True])  # is not trained on
    assert not len(transform(picture, target, draws(0, 0, 0))[1]["labels"])


def test_a_box_over_the_edge():
    """The share that is kept is of the box within the picture, and evaluation sees the same box."""
    picture = scene()[0]
    boxes = data.open_boxes(([picture] * 2, [{"boxes": [[-40, -20, 20, 40]], "labels": [0]}] * 2), classes=1)
    assert boxes.read(0)[1]["boxes"].tolist() == [[0, 0, 20, 40]] and boxes.read(0)[1]["areas"].tolist() == [800]
    plain = data.BoxAugmentation(min_area=1.0, flip=False)
    with data.open_data(boxes, image_size=90, batch_size=1, augmentation=plain, split="train") as stream:
        assert [target["boxes"].tolist() for target in stream.batch(0)[1]] == [[[0, 0, 20, 40]]]


def test_the_names_of_torchvision():
    picture, masks = scene()[0], np.ones((2, 60, 90), bool)
    target = {"labels": [0, 0], "iscrowd": [0, 1], "area": [5.0, 6.0], "image_id": 3}
    of = {data.open_boxes: {"boxes": [[0, 0, 9, 9], [0, 0, 4, 4]]}, data.open_segments: {"masks": masks}}
    for opened, parts in of.items():
        found = opened(([picture], [target | parts]), classes=1)
        assert found.read(0)[1]["crowd"].tolist() == [False, True] and found.read(0)[1]["areas"].tolist() == [5, 6]
        for wrong in ({"is_crowd": [0, 1]}, {"crowd": [0, 1]}, {"difficult": [0, 0]}):
            with pytest.raises(ValueError, match="The target of picture 0 must have only .* each once"):
                opened(([picture], [target | parts | wrong]), classes=1)
    flat = [{"image": picture, **target, **of[data.open_boxes]}]
    with data.open_data(data.open_boxes(flat, classes=1), split="test", image_size=90, batch_size=1) as stream:
        assert stream.batch(0)[1][0]["crowd"].tolist() == [False, True]
    _, left = data.augment_masks(picture, target | {"masks": masks}, 9, size=(9, 9))
    assert len(left["labels"]) == 1


@pytest.mark.parametrize("key", ["images", "categories"])
def test_two_of_one_id(tmp_path, key):
    about = coco(tmp_path)
    for changed, words in (({"id": about[key][0]["id"]}, "two .* have the same id"), ({"id": 99}, "two .* are called")):
        rows = [*about[key], about[key][0] | changed]
        (tmp_path / "_annotations.coco.json").write_text(json.dumps(about | {key: rows}))
        for opened in (data.open_boxes, data.open_segments):
            with pytest.raises(ValueError, match=words):
                opened(tmp_path, annotations=tmp_path / "_annotations.coco.json")


def test_classes_and_files_have_one_rule(tmp_path):
    """Numbers are sorted as numbers, other spellings of a class are told, and of a file are the same file."""
    names = [str(number) for number in (10, 2, 1, 0, 11)]
    table = {name: [1.0] * 5 for name in ("left", "top")} | {name: [9.0] * 5 for name in ("right", "bottom")}
    table |= {"file": [save(tmp_path / "a.png", scene()[0])] * 5, "label": names}
    for name in names:
        save(tmp_path / "images" / "a.png", scene()[0])
        save(tmp_path / "instances" / "a" / f"{name}_.png", np.full((60, 90), 255, "uint8"))
    for opened in (data.open_boxes(table), data.open_segments(tmp_path)):
        assert opened.class_names == tuple(sorted(names, key=int))
    spelled = [str(tmp_path / "a.png"), str(tmp_path / "x" / ".." / "a.png")]
    assert len(data.open_boxes(table | {"file": [*spelled, *spelled, spelled[0]]}).names) == 1
    with pytest.warns(UserWarning, match="'Cat', 'cat' of the table differ in spelling only"):
        data.open_boxes(table | {"label": ["Cat", "cat", "dog", "dog", "dog"]})


def coco(folder, count=3, name="_annotations.coco.json"):
    about = {"images": [], "annotations": [], "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}]}
    for i in range(count):
        save(folder / f"{i}.png", scene()[0])
        about["images"].append({"id": i, "file_name": f"{i}.png", "height": 60, "width": 90})
        if i:  # the first picture has no box
            row = {"image_id": i, "category_id": 7, "bbox": [20, 15, 30, 25], "iscrowd": i == 2, "area": 600.5}
            about["annotations"].append(row)
    (folder / name).write_text(json.dumps(about))
    return about


def test_folders_with_their_annotations(tmp_path):
    coco(tmp_path / "train"), coco(tmp_path / "valid", 2)
    boxes = data.open_boxes(tmp_path)
    assert boxes.class_names == NAMES and boxes.has_test_split and len(boxes.names) == 3
    first, second, third = (boxes.read(i)[1] for i in range(3))
    assert first["boxes"].shape == (0, 4) and not first["labels"].size
    assert second["boxes"].tolist() == [[20, 15, 50, 40]] and second["labels"].tolist() == [1]
    assert second["areas"].tolist() == [600.5] and third["crowd"].tolist() == [True]
    named = boxes.in_order(("cat", "bird", "dog"))
    assert named.classes == 3 and named.read(1)[1]["labels"].tolist() == [0]
    assert named.tests.read(1)[1]["labels"].tolist() == [0]
    with data.open_data(boxes, split="test", image_size=32, batch_size=2) as stream:
        assert [len(targets["labels"]) for targets in stream.batch(0)[1]] == [0, 1] and stream.target == "boxes"
    one = data.open_boxes(tmp_path / "train", annotations=tmp_path / "valid" / "_annotations.coco.json")
    assert len(one.names) == 2 and not one.has_test_split
    assert data.open_boxes(tmp_path, class_names=("cat", "dog")).read(1)[1]["labels"].tolist() == [0]
    save(tmp_path / "test" / "0.png", scene()[0])
    with pytest.warns(UserWarning, match="'test' of .* has no .json file with the boxes, and is left out"):
        data.open_boxes(tmp_path)


def test_tables_have_a_row_for_each_box(tmp_path):
    for name in "ab":
        save(tmp_path / f"{name}.png", scene()[0])
    rows = ["image,class,xmin,ymin,xmax,ymax,split", "a.png,cat,20,15,50,40,train", "a.png,dog,1,2,3.5,4,train"]
    (tmp_path / "boxes.csv").write_text("\n".join([*rows, "b.png,,0,0,0,0,val"]))
    boxes = data.open_boxes(tmp_path / "boxes.csv", file="image", label="class", class_names=NAMES)
    assert boxes.read(0)[1]["boxes"].tolist() == [[20, 15, 50, 40], [1, 2, 3.5, 4]]
    assert boxes.read(0)[1]["labels"].tolist() == [1, 0] and len(boxes.tests.names) == 1
    assert not len(boxes.tests.read(0)[1]["labels"])
    with pytest.raises(ValueError, match="no column 'file', only 'image'"):
        data.open_boxes(tmp_path / "boxes.csv")
    with pytest.raises(ValueError, match=r"has the classes 'dog', but class_names has only 'cat'"):
        data.open_boxes(tmp_path / "boxes.csv", file="image", label="class", class_names=["cat"])
    both = dict(zip(("left", "top", "right", "bottom"), ([1], [2], [3], [4]), strict=True))
    both |= {"file": [tmp_path / "a.png"], "label": [["cat", "dog"]]}  # two labels of one box
    assert data.open_boxes(both, class_names=NAMES).read(0)[1]["labels"].tolist() == [1, 0]
    (tmp_path / "two.csv").write_text("\n".join([*rows[:2], "a.png,dog,1,2,3.5,4,val"]))
    with pytest.raises(ValueError, match="rows of .* in two splits"):
        data.open_boxes(tmp_path / "two.csv", file="image", label="class")


WRONG = {
    "shares": ([[0.1, 0.1, 0.5, 0.9]], [0], "of picture 0 must be in pixels, but they are fractions"),
    "another order": ([[50, 40, 20, 15]], [0], r"0 must be left, top, right and bottom .* 90 wide and 60 high, but"),
    "outside": ([[120, 10, 130, 20]], [0], r"one is \[120.0, 10.0, 130.0, 20.0\]"),
    "not finite": ([[0, 0, np.nan, 3]], [0], "one is"),
    "one box, two labels": ([[0, 0, 3, 3]], [0, 1], r"must have the shape \(2, 4\).* but have \(1, 4\)"),
    "no such class": ([[0, 0, 3, 3]], [4], r"labels 0 to 1, but picture 0 has \[4\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_boxes_are_named(name):
    boxes, labels, words = WRONG[name]
    with pytest.raises(ValueError, match=words):
        data.open_boxes(([scene()[0]], [{"boxes": boxes, "labels": labels}]), classes=2)


def test_sources_that_are_refused(tmp_path):
    about = coco(tmp_path / "one")
    with pytest.raises(FileNotFoundError, match="there is no folder .* with pictures"):
        data.open_boxes(tmp_path / "none")
    coco(tmp_path / "one", name="other.json")
    with pytest.raises(ValueError, match="must have one .json file with the boxes.*Pass annotations="):
        data.open_boxes(tmp_path / "one")
    with pytest.raises(ValueError, match="categories, but there are 3 class names"):
        data.open_boxes(tmp_path / "one", annotations=tmp_path / "one/other.json", class_names=["a", "b", "c"])
    for source, options, error, words in (
        (([], []), {"annotations": "x.json"}, ValueError, "annotations=.* is for the data 'a folder', but the data is"),
        (tmp_path / "one", {"label": "class"}, ValueError, "label='class' is for the data 'a table', but"),
        (3, {}, TypeError, "data must be a folder, a table"),
        (iter([]), {}, ValueError, "Pass classes= or class_names="),
        (
            ([scene()[0]] * 2, [scene()[1], 3]),
            {"classes": 4},
            TypeError,
            "each target must be a dict .*, but .* 1 is 3",
        ),
    ):
        with pytest.raises(error, match=words):
            data.open_boxes(source, **options)
    boxes = data.open_boxes(tmp_path / "one", annotations=tmp_path / "one/other.json")
    plain = data.open_boxes(([scene()[0]], [scene()[1] | {"labels": [0]}]))
    assert data.open_boxes(plain, class_names=["a"]).class_names == ("a",)
    with pytest.raises(ValueError, match="classes that the model does not have: 'dog', 'cat'"):
        boxes.in_order(["bird"])
    del about["annotations"][0]["bbox"]
    (tmp_path / "one/other.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="does not have COCO's annotation format: the key 'bbox' is missing"):
        data.open_boxes(tmp_path / "one", annotations=tmp_path / "one/other.json")
