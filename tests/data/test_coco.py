"""What COCO's annotations may hold that is wrong, or easily read wrong."""

import json

import numpy as np
import pytest

from keras_vit import data
from tests.pictures import save

pytestmark = pytest.mark.once

SQUARE = [[2, 2, 10, 2, 10, 8, 2, 8]]
RUNS = {"counts": [0, 100, 380], "size": [20, 24]}
CATEGORIES = [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}]


def opened(tmp_path, *segmentations, names=("a.png",), listed=None, categories=CATEGORIES, crowd=0, **options):
    """The segments of pictures in files `names`, called `listed` in the annotation, each with these instances."""
    for name in names:
        save(tmp_path / name, np.full((20, 24, 3), 9, "uint8"))
    images = [{"id": i, "file_name": name} for i, name in enumerate(listed or names)]
    rows = [
        {"image_id": i, "category_id": categories[0]["id"], "segmentation": one, "iscrowd": crowd}
        for i in range(len(images))
        for one in segmentations or (SQUARE,)
    ]
    file = tmp_path / "train.json"
    file.write_text(json.dumps({"categories": categories, "images": images, "annotations": rows}))
    return data.open_segments(tmp_path, annotations=file, **options)


def test_a_file_as_windows_writes_it(tmp_path):
    opened(tmp_path)
    file = tmp_path / "train.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert data.open_segments(tmp_path, annotations=file).class_names == ("dog", "cat")


def compressed(counts):
    """Run lengths as pycocotools writes them."""
    mask = pytest.importorskip("pycocotools.mask")
    return mask.frPyObjects({"counts": counts, "size": [20, 24]}, 20, 24)["counts"].decode()


@pytest.mark.parametrize("counts", [[0, 100, 380], [5, 7, 468], [480], [0, 480], [100, 0, 20, 360]])
@pytest.mark.parametrize("is_text", [True, False])
def test_run_lengths_are_those_of_pycocotools(tmp_path, counts, is_text):
    mask = pytest.importorskip("pycocotools.mask")
    wanted = mask.decode(mask.frPyObjects({"counts": counts, "size": [20, 24]}, 20, 24)).astype(bool)
    runs = RUNS | {"counts": compressed(counts) if is_text else counts}
    np.testing.assert_array_equal(opened(tmp_path, runs).read(0)[1]["masks"][0], wanted)


@pytest.mark.parametrize(
    "runs",
    [
        RUNS | {"counts": [0, 10]},  # ends early
        RUNS | {"counts": [0, -10, 490]},
        RUNS | {"counts": "abc"},
        {"counts": [3_600_000_000], "size": [60000, 60000]},
        {"counts": [4 * 480], "size": [40, 48]},
        "compressed",  # and ends early
        [[1, 2]],
        [[1, 1, 5, 5, 9]],
        *([[value, 1, 5, 5, 9, 9]] for value in (np.nan, np.inf, 1e9)),  # which ended the process
    ],
)
def test_shapes_that_do_not_fit_the_picture(tmp_path, runs):
    runs = RUNS | {"counts": compressed([0, 10])} if runs == "compressed" else runs
    if isinstance(runs, list):  # polygons
        pytest.importorskip("pycocotools")
    with pytest.raises(ValueError, match=r"train.json, .*a.png: an instance must have polygons or .* 20 x 24"):
        opened(tmp_path, runs).read(0)


@pytest.mark.parametrize(
    ("names", "listed", "found"),
    [
        (["one/a.png", "two/a.png"], ["two/a.png", "one/a.png"], [1, 0]),
        (["val/a.png"], ["val\\a.png"], [0]),
        (["deep/val/a.png", "deep/train/a.png"], ["val/a.png"], [0]),
        (["a.png", "old/a.png"], ["a.png"], [0]),
        (["val/a.png"], ["a.png"], [0]),
        (["a.png"], ["./a.png"], [0]),
    ],
)
def test_pictures_are_found_by_their_folders_as_well(tmp_path, names, listed, found):
    assert opened(tmp_path, names=names, listed=listed).names == tuple(str(tmp_path / names[i]) for i in found)


@pytest.mark.parametrize(
    ("names", "listed", "words"),
    [
        (["two/a.png"], ["one/a.png"], r"no picture one/a.png, only .*two/a.png"),
        (["one/a.png", "two/a.png"], ["a.png"], "two pictures called a.png"),
        (["b.png"], ["a.png"], r"no picture a.png"),
    ],
)
def test_pictures_of_another_folder_are_not_taken(tmp_path, names, listed, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        opened(tmp_path, names=names, listed=listed)
    assert len(opened(tmp_path, names=["a.png"], listed=[f"{tmp_path.name}/a.png"]).names) == 1  # the folder itself


def test_names_of_classes(tmp_path):
    assert opened(tmp_path, class_names=["cat", "dog"]).class_names == ("cat", "dog")
    assert opened(tmp_path, class_names=["Katze", "Hund"]).class_names == ("Katze", "Hund")  # by the order of the ids
    for names, found in ((["cat", "dgo"], "'dgo'"), (["Cat", "dog"], "'Cat'")):
        with pytest.raises(ValueError, match=f"has no category {found}.* Did you mean"):
            opened(tmp_path, class_names=names)
    with pytest.raises(ValueError, match="two categories are called 'cat'"):
        opened(tmp_path, categories=[{"id": 7, "name": "cat"}, {"id": 3, "name": "cat"}])
    with pytest.raises(ValueError, match="a category has the name '', but it must be a text that is not empty"):
        opened(tmp_path, categories=[{"id": 7, "name": "cat"}, {"id": 3, "name": ""}])


def test_what_is_left_out_is_said(tmp_path):
    """Crowds, and instances with a box alone."""
    pytest.importorskip("pycocotools")
    with pytest.warns(UserWarning, match="1 of 2 annotations .* no polygons or run lengths, and are left out"):
        assert len(opened(tmp_path, [*SQUARE, []], [[]]).read(0)[1]["labels"]) == 1
    for nothing in ([], None, [[]]):
        with pytest.raises(ValueError, match="none of the 1 annotations has polygons or run lengths"):
            opened(tmp_path, nothing)
    with pytest.raises(ValueError, match="all 1 annotations are crowds"):
        opened(tmp_path, crowd=1)
    source = tmp_path / "train.json"
    opened(tmp_path, names=["a.png", "b.png"])
    about = json.loads(source.read_text())
    about["annotations"][1]["iscrowd"] = 1
    source.write_text(json.dumps(about))
    with pytest.warns(UserWarning, match="1 pictures in .* have only crowds, and are left out"):
        assert len(data.open_segments(tmp_path, annotations=source).names) == 1
