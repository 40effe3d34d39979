"""What works for labels works for masks, segments, boxes and pictures without labels: they come from one stream."""

import json
import os
import shutil

import numpy as np
import pytest

from keras_vit import data
from tests.pictures import save

pytestmark = pytest.mark.once

COUNT = 6
AUGMENTATIONS = {
    "class": data.Augmentation("random", mixup=0.2, cutmix=1.0, randaugment=(2, 15), erasing=0.5),
    "mask": data.MaskAugmentation(),
    "segments": data.SegmentAugmentation((0.8, 1.5), jitter=True),
    "boxes": data.BoxAugmentation(),
    "none": data.ViewAugmentation(local_views=1),
}
DENSE = ("mask", "segments", "boxes")


@pytest.fixture(params=AUGMENTATIONS)
def target(request):
    return request.param


@pytest.fixture
def root(tmp_path):
    """Pictures with masks, in folders of classes and in a table."""
    rng, lines = np.random.default_rng(0), ["file,label,mask"]
    boxes, about = ["file,label,left,top,right,bottom"], {"images": [], "annotations": []}
    for i in range(COUNT):
        pixels, mask = rng.integers(2, 256, (18, 20 + i, 3), dtype="uint8"), np.zeros((18, 20 + i), "uint8")
        mask[2:12, 3:11] = 1
        name = f"{'ab'[i % 2]}/{i}.png"
        for kind, array in (("images", pixels), ("masks", mask)):
            save(tmp_path / kind / name, array)
        lines.append(f"images/{name},{'ab'[i % 2]},masks/{name}")
        boxes += [f"images/{name},{'ba'[i % 2]},3,2,11,12", f"images/{name},a,5,1,20,9"]
        about["images"].append({"id": i, "file_name": name, "height": 18, "width": 20 + i})
        for label, box in ((2 - i % 2, [3, 2, 8, 10]), (1, [5, 1, 15, 8])):
            about["annotations"].append({"id": 1, "image_id": i, "category_id": label, "bbox": box})
    about["categories"] = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    (tmp_path / "boxes.json").write_text(json.dumps(about))
    (tmp_path / "boxes.csv").write_text("\n".join(boxes))
    (tmp_path / "table.csv").write_text("\n".join(lines))
    return tmp_path


def source_of(root, target, form="folder"):
    """The pictures with what the target is read from: files in folders or in a table."""
    table = root / "table.csv"
    if target == "boxes" and form == "table":
        return data.open_boxes(root / "boxes.csv")
    if target == "boxes":
        return data.open_boxes(root / "images", annotations=root / "boxes.json")
    if target in DENSE:
        place = data.open_table(table, label="mask", target="mask") if form == "table" else root
        return (data.open_masks if target == "mask" else data.open_segments)(place, classes=2)
    return data.open_table(table) if form == "table" else root / "images"


def opened(source, target, training=True, **options):
    augmentation = AUGMENTATIONS[target] if training else None
    options = {"image_size": 16, "batch_size": 3, "seed": 3, "split": "train" if training else "test"} | options
    options |= {"target": "none"} if target == "none" else {}
    return data.open_data(source, augmentation=augmentation, **options)


def assert_same(one, other):
    """Batches of arrays, lists and dicts."""
    if isinstance(one, dict):
        one, other = [*one.items()], [*other.items()]
    if isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for part, same in zip(one, other, strict=True):
            assert_same(part, same)
    else:
        np.testing.assert_array_equal(one, other)


def test_a_batch_depends_on_the_seed_and_its_number_alone(root, target):
    """Parts for several processes are parts of it; test data comes once, in order."""
    source = source_of(root, target)
    with (
        opened(source, target) as one,
        opened(source, target, prefetch=0, workers=1) as again,
        opened(source, target, seed=4) as other,
    ):
        batches = [one.batch(step) for step in range(5)]
        assert_same([again.batch(step) for step in (4, 0, 3)], [batches[step] for step in (4, 0, 3)])
        assert np.any(other.batch(0)[0] != batches[0][0])
    for i in range(3):
        with opened(source, target, shard=(i, 3)) as part:
            assert_same(part.batch(4), [of[i : i + 1] for of in batches[4]])
    with opened(source, target, training=False, batch_size=4) as stream:
        assert [len(targets) for _, targets in stream] == [4, 2]


def test_pictures_that_cannot_be_read_are_skipped(root, target):
    for number, damaged in (("1", b"no picture"), ("3", (root / "images/b/3.png").read_bytes()[:-40])):
        (root / f"images/b/{number}.png").write_bytes(damaged)
    has_masks = target in ("mask", "segments")
    if has_masks:
        (root / "masks/a/2.png").write_bytes(b"no mask")
    with pytest.raises(ValueError, match=r'1.png: .*on_bad_image="skip"'):
        opened(source_of(root, target), target)
    with pytest.warns(UserWarning, match="left out"):
        with opened(source_of(root, target), target, on_bad_image="skip", batch_size=12) as stream:
            pictures, targets = stream.batch(0)
    assert len(pictures) == len(targets) == 12
    assert [bad.path[-5] for bad in stream.bad] == ["1", "3", *["2"] * has_masks]
    options = {"on_bad_image": "skip", "image_size": (18, 20), "check": "none"}
    with pytest.warns(UserWarning, match="left out"):
        with opened(source_of(root, target), target, training=False, **options) as stream:
            assert sum(len(targets) for _, targets in stream) == 4 - has_masks


def test_tables(root, target):
    """The batches of the folder, in the order of the rows."""
    options = {"training": False, "batch_size": COUNT}
    with opened(source_of(root, target), target, **options) as folder:
        with opened(source_of(root, target, "table"), target, **options) as table:
            assert table.examples == COUNT and table.name(1).endswith("1.png" if target == "boxes" else "row 3)")
            found, wanted = table.batch(0), folder.batch(0)
    if target == "boxes":  # both in the order of their rows
        return assert_same(found, wanted)
    assert_same([[part[i] for i in (0, 2, 4, 1, 3, 5)] for part in found], [list(part) for part in wanted])


def test_contents_are_those_of_every_file(root, target):
    """Also of one in the middle that has the name and the size of another; and of masks in files."""
    changed = ["images/b/3.png"] + (["masks/b/3.png"] if target in ("mask", "segments") else [])
    for form in ("folder", "table"):

        def contents(form=form):
            with opened(source_of(root, target, form), target) as stream:
                return stream.contents()

        found = contents()
        assert found is not None and found == contents()
        for name in changed:
            status = (root / name).stat()
            os.utime(root / name, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
            assert contents() != found
            os.utime(root / name, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert contents() == found


def test_a_share_is_held_out(root, target):
    source = source_of(root, target)
    with opened(source, target, training=False, shuffle=False, image_size=18, split="test", holdout=0.4) as held:
        tests = [held.name(i) for i in range(held.examples)]
    with opened(source, target, holdout=0.4) as stream:
        rest = [stream.name(i) for i in range(stream.examples)]
    assert len(tests) == 2 and len({*tests, *rest}) == COUNT and stream.batch_size == 3


def test_worker_processes_make_the_batches_of_threads(root, target):
    batches = []
    for processes in (True, False):
        with opened(source_of(root, target), target, processes=processes, workers=2) as stream:
            batches.append([stream.batch(step) for step in (0, 1)])
    assert_same(*batches)


@pytest.mark.parametrize("form", ["batches", "examples", "dicts"])
def test_pipelines(target, form):
    rng = np.random.default_rng(0)
    pictures, masks = rng.integers(2, 256, (4, 16, 16, 3), dtype="uint8"), np.zeros((4, 16, 16), "uint8")
    masks[:, 4:] = 1
    segments = [{"masks": np.stack([mask == 0, mask == 1]), "labels": np.array([0, 1])} for mask in masks]
    kept = {"crowd": np.array([False]), "areas": np.array([60.0])}
    boxes = [{"boxes": np.array([[1.0, 2.0, 7.0, 12.0]]), "labels": np.array([1], "int32"), **kept} for _ in masks]
    targets = {"class": np.arange(4) % 2, "mask": masks, "segments": segments, "boxes": boxes, "none": None}[target]
    key = {"class": "label", "mask": "mask", "segments": "target", "boxes": "target"}.get(target)
    if form == "batches":
        items = [pictures[:2], pictures[2:]]
        items = items if target == "none" else [(items[0], targets[:2]), (items[1], targets[2:])]
    else:
        items = list(pictures) if target == "none" else list(zip(pictures, targets, strict=True))
    if form == "dicts":
        items = [{"image": item} if target == "none" else {"image": item[0], key: item[1]} for item in items]

    class Pipeline:
        def __iter__(self):
            return iter(items)

    options, source = {"classes": 2} if target == "class" else {}, Pipeline()
    if target in DENSE:
        open_them = {"mask": data.open_masks, "segments": data.open_segments, "boxes": data.open_boxes}[target]
        source = open_them(source, classes=2)
    with opened(source, target, batch_size=2, prefetch=0, **options) as stream:
        batches = [stream.batch(step) for step in (0, 1, 3)]
        assert_same(stream.batch(1), batches[1])
        assert all(len(part) == 2 for batch in batches for part in batch)
        if target in DENSE:  # their crops are their own
            np.testing.assert_array_equal(batches[1][0], pictures[2:])
            assert_same(batches[1][1], targets[2:])
        elif target == "none":
            views = stream.transform.unpack(batches[0][0])
            assert [part.shape for part in views] == [(2, n, 16, 16, 3) for n in (2, 1)]
    with opened(source, target, training=False, batch_size=2, **options) as stream:
        assert stream.contents() is None
        assert_same([picture for batch, _ in stream for picture in batch], list(pictures))


def test_pipelines_of_masks_become_segments():
    pictures, masks = np.full((2, 16, 16, 3), 9, "uint8"), np.repeat([0, 1, 255, 255], 64).reshape(1, 16, 16)
    source = data.open_segments([(pictures, np.repeat(masks, 2, 0))], class_names=["a", "b"])
    assert source.task == "semantic"
    with opened(source, "segments", batch_size=2) as stream:
        found = stream.batch(0)[1]
    assert [target["labels"].tolist() for target in found] == [[0, 1]] * 2 and found[0]["masks"].sum() == 128
    with pytest.raises(ValueError, match="Pass classes= or class_names="):
        data.open_segments([(pictures[0], {"masks": masks == 0, "labels": [0]})])
    wrong = data.open_segments([(pictures[0], {"masks": masks == 0, "labels": [5]})], classes=2)
    with pytest.raises(ValueError, match=r"labels 0 to 1, but example 0 has \[5\]"):
        opened(wrong, "segments", batch_size=1)


def test_arrays_that_are_scaled_already_are_refused(target):
    """Those of segments and boxes were rounded to 0 and 1, and trained on with a warning."""
    pictures = np.random.default_rng(0).integers(2, 256, (4, 16, 16, 3)).astype("float32")
    masks, one = np.arange(4)[:, None, None] % 2 * np.ones((4, 16, 16), "uint8"), {"labels": [0]}
    targets = {
        "class": np.arange(4) % 2,
        "none": None,
        "mask": masks,
        "segments": [one | {"masks": np.ones((1, 16, 16), bool)}] * 4,
        "boxes": [one | {"boxes": [[1, 2, 7, 12]]}] * 4,
    }[target]
    opener = {"mask": data.open_masks, "segments": data.open_segments, "boxes": data.open_boxes}.get(target)

    def batch(pictures):
        source = pictures if target == "none" else (list(pictures), targets)
        with opened(opener(source, classes=2) if opener else source, target) as stream:
            return stream.batch(0)

    batch(pictures)
    with pytest.raises(ValueError, match="seem to be scaled already"):
        batch(pictures / 255)
    if target in ("segments", "boxes"):
        pictures[1, 2, 3] = np.nan
        source = opener((list(pictures), targets), classes=2)
        with pytest.warns(UserWarning, match="A bad image is left out"):
            with opened(source, target, training=False, on_bad_image="skip") as stream:
                assert sum(len(batch) for batch, _ in stream) == 3


SPLITS = {"train": 3, "val": 2, "test": 1}


def with_splits(root, target, splits=SPLITS):
    """What has a folder, or rows of a table, for some splits, each with a number of pictures."""
    rows, mask = ["file,label,left,top,right,bottom,split"], np.ones((18, 20), "uint8")
    for split, count in splits.items():
        about = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}]}
        for i in range(count):
            name = f"{split}/images/{i}.png"
            save(root / name, np.full((18, 20, 3), 9, "uint8"))
            save(root / f"{split}/masks/{i}.png", mask)
            save(root / f"{split}/instances/{i}/a_1.png", mask)
            rows.append(f"{name},a,3,2,11,12,{split}")
            about["images"].append({"id": i, "file_name": f"images/{i}.png", "height": 18, "width": 20})
            about["annotations"].append({"id": i, "image_id": i, "category_id": 1, "bbox": [3, 2, 8, 10]})
        (root / split / "boxes.json").write_text(json.dumps(about))
        if target == "segments of masks":
            shutil.rmtree(root / split / "instances")
    (root / "boxes.csv").write_text("\n".join(rows))
    return {
        "masks": lambda: data.open_masks(root, classes=2),
        "segments of masks": lambda: data.open_segments(root, classes=2),
        "instances": lambda: data.open_segments(root),
        "boxes": lambda: data.open_boxes(root),
        "table": lambda: data.open_boxes(root / "boxes.csv"),
    }[target]()


@pytest.mark.parametrize("target", ["masks", "segments of masks", "instances", "boxes", "table"])
def test_a_split_is_the_one_that_is_named(tmp_path, target):
    source = with_splits(tmp_path / "three", target)
    for one in (source, source.in_order(["b", *(source.class_names or ("a",))])):
        for split, name in (("train", "train"), ("validation", "val"), ("test", "test")):
            with data.open_data(one, split=split, image_size=16, batch_size=1, shuffle=False) as stream:
                assert stream.steps_per_epoch == SPLITS[name], split
    one = with_splits(tmp_path / "one", target, {"train": 3})
    for split in ("validation", "test"):
        with pytest.raises(ValueError, match=f"no split '{split}', only .'train'"):
            data.open_data(one, split=split, image_size=16, batch_size=1)
