"""Image folders: what is found, what is refused by name, what is left out, and that no batch depends on the past."""

import io
import os
import shutil
from unittest import mock

import numpy as np
import pytest

from keras_vit.data import Augmentation, ViewAugmentation, has_test_split, image_files, open_data
from keras_vit.preprocessing import load_image
from tests.pictures import save

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.once

SIZE = (16, 12)
NAMES = ["ant", "bee", "cow"]
TRAIN = {"ant": 5, "bee": 4, "cow": 4}
TEST = {"ant": 2, "bee": 3, "cow": 2}
PLAIN = Augmentation(crop="resize", flip=False)


def picture(i, size=(30, 40)):
    noise = np.random.default_rng(i).integers(0, 80, (*size, 3))
    return Image.fromarray((noise + [100, i * 10 % 150, 20]).astype("uint8"))


def make(root, **splits):
    number = 0
    for split, classes in splits.items():
        for name, count in classes.items():
            for i in range(count):
                save(root / split / name / f"{i}.{'png' if i % 2 else 'jpg'}", picture(number, (30 + number, 40)))
                number += 1
    return root


@pytest.fixture
def root(tmp_path):
    return make(tmp_path, train=TRAIN, test=TEST)


def train(root, augmentation=None, **options):
    options = {"image_size": SIZE, "batch_size": 4, "seed": 1, "workers": 2} | options
    return open_data(root, augmentation=augmentation or Augmentation(), **options)


def in_order(root, **options):
    return open_data(root, split="test", **{"image_size": SIZE, "batch_size": 4} | options)


def names_of(bad):
    return sorted(os.path.basename(b.path) for b in bad)


def test_every_epoch_sees_every_image_once_in_another_order(root):
    with train(root, PLAIN) as stream, in_order(root / "train", batch_size=13) as all_:
        known, known_labels = all_.batch(0)
        images, labels = (np.concatenate(part)[:39] for part in zip(*map(stream.batch, range(10)), strict=True))
    numbers = [int(np.abs(known - image).max(axis=(1, 2, 3)).argmin()) for image in images]  # of three epochs of 13
    np.testing.assert_array_equal(labels, known_labels[numbers])
    epochs = [numbers[:13], numbers[13:26], numbers[26:]]
    assert all(sorted(epoch) == list(range(13)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("resize", ["squash", "big_vision", "timm"])
def test_test_images_come_in_order_and_once(root, resize):
    with in_order(root, resize=resize) as stream:
        assert (stream.examples, stream.steps_per_epoch) == (7, 2)
        batches = [stream.batch(step) for step in range(2)]
        with pytest.raises(IndexError, match="below 2, but 2"):
            stream.batch(2)
        again = stream.batch(0)
    np.testing.assert_array_equal(again[0], batches[0][0])
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    paths = sorted(path for path in (root / "test").rglob("*.*"))
    np.testing.assert_array_equal(images, [load_image(path, SIZE, resize=resize) for path in paths])
    np.testing.assert_array_equal(labels.argmax(axis=1), [0, 0, 1, 1, 1, 2, 2])


@pytest.mark.parametrize(
    ("splits", "train_images", "test_images"),
    [
        ({"Training": TRAIN, "Testing": TEST}, 13, 7),
        ({"TRAIN": TRAIN, "Val": TEST}, 13, 7),
        ({"training_set": TRAIN, "dev": TEST}, 13, 7),
        ({"train": TRAIN, "val": TRAIN, "test": TEST}, 13, 7),  # test images are taken before validation images
        ({"Test": TEST}, "has a folder Test, but no folder train", 7),
        ({"train": TRAIN}, 13, "no folder test or val"),
        ({"train": TRAIN, "Training": TRAIN}, "more than one train split", "more than one train split"),
        ({"train": {"ant": 3}}, "two classes or more.*only 'ant'", "no folder test or val"),
    ],
)
def test_splits_by_their_names(tmp_path, splits, train_images, test_images):
    make(tmp_path, **splits)
    for split, expected in (("train", train_images), ("test", test_images)):
        for on_bad_image in ("stop", "skip"):
            options = {"image_size": SIZE, "batch_size": 4, "split": split, "on_bad_image": on_bad_image}
            if isinstance(expected, str):
                with pytest.raises(ValueError, match=expected):
                    open_data(tmp_path, **options)
            else:
                with open_data(tmp_path, **options) as stream:
                    assert stream.class_names == NAMES and stream.examples == expected
    if isinstance(train_images, int) and isinstance(test_images, int):
        with open_data(tmp_path, image_size=SIZE, batch_size=4, split="validation") as stream:
            assert stream.examples in (7, 13) and (stream.examples == 7) == ("val" not in splits)
        assert has_test_split(tmp_path) and not has_test_split(tmp_path / next(iter(splits)))
    if "Training" in splits and "train" in splits:
        with pytest.raises(ValueError, match="more than one train split"):
            open_data(tmp_path, target="none", augmentation=ViewAugmentation(), image_size=SIZE, batch_size=4)
    if splits.get("train") == {"ant": 3}:
        with pytest.raises(ValueError, match="two classes or more.*only 'ant'"):
            train(tmp_path, class_names=["ant"])


def test_what_is_no_data(root):
    """Nested folders count; what systems leave behind does not, and other files are named."""
    save(root / "train" / "ant" / "deep" / "deeper" / "a.PNG", picture(50))
    (root / "train" / "ant" / "Thumbs.db").write_bytes(b"x")
    for place in (root, root / "train", root / "train" / "ant"):
        (place / "._0.jpg").write_bytes(b"x")
        (place / "__MACOSX").mkdir()
        (place / "__MACOSX" / "._0.jpg").write_bytes(b"x")
        (place / ".ipynb_checkpoints").mkdir()
    with train(root) as stream:
        assert stream.examples == 14 and stream.class_names == NAMES
    (root / "train" / "ant" / "notes.txt").write_text("x")
    with pytest.warns(UserWarning, match="Only images in class folders are used. 1 other file is left out.*notes.txt"):
        train(root).close()
    picture(0).save(root / "train" / "loose.png")
    with pytest.warns(UserWarning, match="2 other files are left out.*loose.png"):
        train(root).close()


def test_class_names_give_the_order(root):
    order = ["cow", "ant", "bee"]
    with train(root, class_names=order) as stream:
        assert stream.class_names == order
    source = {"Training": root / "train", "validation": root / "test"}
    assert has_test_split(source) and not has_test_split({"train": root})
    with in_order(source, batch_size=7, class_names=order) as stream:
        np.testing.assert_array_equal(stream.batch(0)[1].argmax(axis=1), [0, 0, 1, 1, 2, 2, 2])
    with pytest.raises(ValueError, match="no split 'test', only"):
        in_order({"train": root})
    for options, message in (
        ({"class_names": ["ant", "bee"]}, r"class_names does not have: 'cow'\."),
        ({"classes": 4}, "classes=4 was given, but the data has 3"),
        ({"target": "number"}, "target='number' was given, but the data has the target 'class'"),
    ):
        with pytest.raises(ValueError, match=message):
            train(root / "train", **options)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["test/ant/0.png", "ant/0.png", "bee/0.png"], "'test', which has the name of a split, beside .* 'ant'"),
        (["Training/a.png", "Testing/a.png"], "Training has the name of a split, but no class folders"),
        (["bus/a.png", "train/a.png"], "is a class, pass the names of all classes as class_names="),
        (["a.png"], "has none.*one folder of pictures for each class"),
    ],
)
def test_layouts_that_are_refused(tmp_path, files, message):
    with pytest.raises(FileNotFoundError, match="there is no folder .*nothing"):
        train(tmp_path / "nothing")
    for file in files:
        save(tmp_path / file, picture(0))
    with pytest.raises(ValueError, match=message):
        train(tmp_path)
    if "bus/a.png" in files:
        with train(tmp_path, class_names=["bus", "train"], batch_size=2) as stream:
            assert stream.examples == 2


def test_classes_without_images(root):
    (root / "train" / "dog").mkdir()
    with pytest.raises(ValueError, match="dog: it is a class folder without pictures.*skip"):
        train(root)
    with pytest.warns(UserWarning, match="left out.*dog"), train(root, on_bad_image="skip") as stream:
        assert stream.class_names == NAMES and names_of(stream.bad) == ["dog"]
    (root / "train" / "dog").rmdir()
    shutil.rmtree(root / "test" / "cow")
    (root / "test" / "cow").mkdir()
    with pytest.raises(ValueError, match="no pictures of the class 'cow'"):
        in_order(root)
    with pytest.warns(UserWarning, match="'cow'"), in_order(root, on_bad_image="skip") as stream:
        assert stream.examples == 5 and stream.class_names == NAMES
    (root / "test" / "cow").rename(root / "test" / "dog")
    picture(0).save(root / "test" / "dog" / "0.png")
    for on_bad_image in ("stop", "skip"):
        with pytest.raises(ValueError, match=r"the training data does not have: 'dog'\."):
            in_order(root, on_bad_image=on_bad_image)


def cut(path):
    """A file that lacks its end, of which the first bytes tell nothing."""
    stream = io.BytesIO()
    picture(99, (200, 200)).save(stream, path.suffix[1:].replace("jpg", "jpeg"))
    path.write_bytes(stream.getvalue()[: int(len(stream.getvalue()) * 0.6)])


BAD_FILES = {
    "empty.jpg": lambda path: path.write_bytes(b""),
    "text.jpg": lambda path: path.write_text("This is a web page and no picture."),
    "32 bits.jpg": lambda path: Image.fromarray(np.zeros((4, 4), "float32")).save(path, "tiff"),
    "pipe.jpg": os.mkfifo,
    "self.jpg": lambda path: path.symlink_to(path),
    "nothing.jpg": lambda path: path.symlink_to("gone.jpg"),
} | {f"cut.{ending}": cut for ending in ("jpg", "png", "gif", "webp", "bmp", "tiff")}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_found_at_the_start(root, name):
    bad = root / "train" / "bee" / name
    BAD_FILES[name](bad)
    for check in ("headers", "decode"):
        with pytest.raises(ValueError, match=rf'{name}: .*on_bad_image="skip"') as error:
            train(root, check=check)
        if name.startswith("cut"):
            assert str(error.value).count(name) == 1 and ".." not in str(error.value)
        with pytest.warns(UserWarning, match=rf"A bad image is left out\. .*{name}"):
            stream = train(root, on_bad_image="skip", check=check)
        with stream:
            assert stream.examples == 13 and [b.path for b in stream.bad] == [str(bad)]
            stream.batch(0)  # warns no more
    if name.startswith("cut"):
        with train(root, check="none", batch_size=14) as stream:
            with pytest.raises(ValueError, match=rf'{name}.*on_bad_image="skip"'):
                stream.batch(0)


def test_the_next_image_takes_the_place_of_one_that_is_cut_short(root):
    cut(root / "train" / "bee" / "cut.jpg")
    options = {"on_bad_image": "skip", "batch_size": 14, "check": "none"}
    with pytest.warns(UserWarning, match=r"A bad image is left out\. .*cut\.jpg"):
        with train(root, PLAIN, **options) as stream:
            assert stream.examples == 14
            images, labels = stream.batch(0)
            stream.batch(1)
            assert names_of(stream.bad) == ["cut.jpg"]
    assert len({image.tobytes() for image in images}) == 13
    np.testing.assert_array_equal(labels.sum(axis=0), [5, 4, 5])  # bee/cut.jpg is followed by cow/0.jpg.
    (root / "train" / "bee" / "cut.jpg").rename(root / "test" / "bee" / "cut.jpg")
    with in_order(root, batch_size=8, on_bad_image="skip", check="none") as stream:
        with pytest.warns(UserWarning, match="cut.jpg"):
            images, labels = stream.batch(0)
    assert len(images) == len(labels) == 7


@pytest.mark.parametrize("names", [range(12), (1, 2, 10), (9, 10), ("00", "1")])
def test_folders_that_are_numbers(tmp_path, names):
    """Labels of arrays are numbers, but folders are sorted as text elsewhere: only a list says which order is meant."""
    names = [str(name) for name in names]
    make(tmp_path, train=dict.fromkeys(names, 1))
    text = sorted(names)
    if text == names:
        assert train(tmp_path).class_names == names
        return
    with pytest.raises(ValueError, match=r"are numbers .*Pass class_names=\['.*or class_names=\['"):
        train(tmp_path)
    for order in (names, text):
        with train(tmp_path, class_names=order) as stream:
            assert stream.class_names == order


def test_class_folders_that_differ_in_capitals_only(root):
    save(root / "train" / "Bee" / "0.png", picture(5))
    with pytest.warns(UserWarning, match="'Bee', 'bee' of .* differ in spelling only"):
        with train(root) as stream:
            assert stream.classes == 4


def test_images_that_are_not_rgb_are_converted_and_recorded(root):
    for mode in ("L", "P", "RGBA", "1"):
        picture(1).convert(mode).save(root / "train" / "ant" / f"mode {mode}.png")
    with train(root) as stream:
        assert stream.examples == 17 and stream.bad == []
        reasons = {os.path.basename(c.path): c.reason for c in stream.converted}
    reason = "it has the mode {}; load_image converts it to RGB"
    assert reasons == {f"mode {mode}.png": reason.format(mode) for mode in ("L", "P", "RGBA", "1")}


def test_images_of_the_folder_one_is_in(root, monkeypatch):
    monkeypatch.chdir(root / "train" / "ant")
    wanted = sorted(os.listdir())
    for folder in (".", "../ant", ""):
        assert [path.name for path in image_files(folder)] == wanted
    assert len(image_files("..")) > len(wanted)


@pytest.mark.parametrize("name", [b"two\nlines", b"a\xffb", b" ant"])
def test_names_that_no_class_can_have(root, name):
    folder = os.path.join(os.fsencode(root / "train"), name)
    os.mkdir(folder)
    picture(0).save(os.path.join(os.fsdecode(folder), "a.png"))
    with pytest.raises(ValueError, match="cannot be the name of a class: it") as caught:
        train(root)
    assert str(caught.value).isprintable()
    (root / "test" / "ant" / "again").symlink_to(root / "test", target_is_directory=True)
    with pytest.raises(ValueError, match="ant/again links back to a folder above it"):
        in_order(root / "test")


def test_memory_that_runs_out_is_no_bad_picture(tmp_path, monkeypatch):
    """Whether bad pictures are left out or not."""
    make(tmp_path, train={"cat": 2, "dog": 2})
    for on_bad_image in ("stop", "skip"):
        with open_data(tmp_path, image_size=SIZE, batch_size=2, shuffle=False, on_bad_image=on_bad_image) as stream:
            monkeypatch.setattr(type(stream._data), "read", mock.Mock(side_effect=MemoryError))
            with pytest.raises(MemoryError):
                stream.batch(0)
            monkeypatch.undo()
