"""Image folders: what is found, what is refused by name, what is left out, and that no batch depends on the past."""

import io
import os
import warnings

import keras
import numpy as np
import pytest

from keras_vit.data import Augmentation, as_dataset, has_test_split, open_data
from keras_vit.data import examples as folder_module
from keras_vit.preprocessing import load_image

Image = pytest.importorskip("PIL.Image")

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Tensor.T is deprecated on 0-D tensors:UserWarning"),
]

SIZE = (16, 12)
TRAIN = {"ant": 5, "bee": 4, "cow": 4}
TEST = {"ant": 2, "bee": 3, "cow": 2}


def picture(i, size=(30, 40)):
    noise = np.random.default_rng(i).integers(0, 80, (*size, 3))
    return Image.fromarray((noise + [100, i * 10 % 150, 20]).astype("uint8"))


def make(root, **splits):
    number = 0
    for split, classes in splits.items():
        for name, count in classes.items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                picture(number, (30 + number, 40)).save(folder / f"{i}.{'png' if i % 2 else 'jpg'}")
                number += 1
    return root


@pytest.fixture
def root(tmp_path):
    return make(tmp_path, train=TRAIN, test=TEST)


def train(root, augmentation=None, **options):
    options = {"image_size": SIZE, "batch_size": 4, "seed": 1, "workers": 2} | options
    return open_data(root, augmentation=augmentation or Augmentation(), **options)


# Batches


def test_what_a_stream_says_of_itself(root):
    with train(root) as stream:
        assert stream.class_names == ["ant", "bee", "cow"] and stream.classes == 3
        assert (stream.examples, stream.batch_size, stream.steps_per_epoch) == (13, 4, 3)
        assert stream.bad == [] and stream.converted == []
        images, labels = stream.batch(0)
    assert images.shape == (4, *SIZE, 3) and images.dtype == np.float32
    assert 0 <= images.min() and 1 < images.max() <= 255
    assert labels.shape == (4, 3) and labels.dtype == np.float32
    np.testing.assert_array_equal(labels.sum(axis=1), 1)


@pytest.mark.parametrize(
    "augmentation", [Augmentation(), Augmentation(mixup=0.2, randaugment=(1, 15)), Augmentation("random")]
)
def test_a_batch_depends_on_seed_and_step_alone(root, augmentation):
    with train(root, augmentation) as stream:
        first = [stream.batch(step) for step in range(4)]  # Into the second epoch.
        back = stream.batch(2)
    with train(root, augmentation, workers=1, prefetch=0) as other:
        resumed = {step: other.batch(step) for step in (3, 1)}
    for step, batch in [(2, back), *resumed.items()]:
        for a, b in zip(first[step], batch, strict=True):
            np.testing.assert_array_equal(a, b)
    with train(root, augmentation, seed=2, prefetch=0) as different:
        assert not np.array_equal(different.batch(0)[0], first[0][0])


def test_every_epoch_sees_every_image_once_in_another_order(root):
    plain = Augmentation(crop="resize", flip=False)
    with train(root, plain) as stream, open_data(root / "train", split="test", image_size=SIZE, batch_size=13) as all_:
        known = all_.batch(0)[0]
        images = np.concatenate([stream.batch(step)[0] for step in range(10)])[:39]  # Three epochs of 13.
    numbers = [int(np.abs(known - image).max(axis=(1, 2, 3)).argmin()) for image in images]
    epochs = [numbers[:13], numbers[13:26], numbers[26:]]
    assert all(sorted(epoch) == list(range(13)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_batches_larger_than_the_data(root):
    with train(root, batch_size=30) as stream:
        images, labels = stream.batch(0)
        assert len(images) == 30 and stream.steps_per_epoch == 1
        assert len({image.tobytes() for image in images}) == 30  # The same image again is cropped anew.


def test_labels_belong_to_their_images(root):
    with train(root, Augmentation(crop="resize", flip=False)) as stream:
        images, labels = stream.batch(0)
    for image, label in zip(images, labels.argmax(axis=1), strict=True):
        folder = root / "train" / ["ant", "bee", "cow"][label]
        assert any(np.allclose(load_image(path, SIZE), image, rtol=0, atol=1e-4) for path in folder.iterdir())


@pytest.mark.parametrize("resize", ["squash", "big_vision", "timm"])
def test_test_images_come_in_order_and_once(root, resize):
    with open_data(root, split="test", image_size=SIZE, batch_size=4, resize=resize) as stream:
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


def test_a_model_fits_and_evaluates(root):
    model = keras.Sequential([keras.Input((*SIZE, 3)), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
    with train(root) as stream, open_data(root, split="test", image_size=SIZE, batch_size=4) as test:
        data = as_dataset(stream, range(5, 9))
        assert len(data) == 4
        np.testing.assert_array_equal(data[1][0], stream.batch(6)[0])
        model.fit(data, verbose=0, shuffle=False)
        assert np.isfinite(model.evaluate(as_dataset(test, range(test.steps_per_epoch)), verbose=0))


def test_what_describes_the_data_changes_with_it(root):
    def told(**options):
        with train(root, **options) as stream:
            return stream.describe()

    before = told()
    assert before["source"] == "folder" and before["examples"] == 13
    assert told() == before
    assert told(batch_size=5) != before
    (root / "train" / "ant" / "0.jpg").rename(root / "train" / "bee" / "new.jpg")
    assert told() != before


# Layouts


def test_other_layouts(root, tmp_path):
    (root / "test").rename(root / "validation")
    with open_data(root, split="test", image_size=SIZE, batch_size=4) as stream:
        assert stream.examples == 7
    with open_data(root / "train", image_size=SIZE, batch_size=4) as stream:
        assert stream.examples == 13
    nested = root / "train" / "ant" / "deep" / "deeper"
    nested.mkdir(parents=True)
    picture(50).save(nested / "a.PNG")
    (root / "train" / "ant" / ".DS_Store").write_bytes(b"x")
    (root / "train" / "ant" / "Thumbs.db").write_bytes(b"x")
    with open_data(root, image_size=SIZE, batch_size=4) as stream:
        assert stream.examples == 14
    (root / "train" / "ant" / "notes.txt").write_text("x")
    with pytest.warns(
        UserWarning, match="1 file is no picture of a class, by name or by place, and left out: .*notes.txt"
    ):
        open_data(root, image_size=SIZE, batch_size=4).close()


def test_class_names_say_the_order(root):
    with train(root, class_names=["cow", "ant", "bee"]) as stream:
        assert stream.class_names == ["cow", "ant", "bee"]
    with open_data(root, split="test", image_size=SIZE, batch_size=7, class_names=["cow", "ant", "bee"]) as stream:
        np.testing.assert_array_equal(stream.batch(0)[1].argmax(axis=1), [0, 0, 1, 1, 2, 2, 2])
    with pytest.raises(ValueError, match=r"class_names does not have: 'cow'\."):
        train(root / "train", class_names=["ant", "bee"])


def test_splits_in_a_dict(root):
    with open_data({"train": root / "train", "test": root / "test"}, split="test", image_size=4, batch_size=4) as s:
        assert s.examples == 7
    with pytest.raises(ValueError, match="no 'test', only"):
        open_data({"train": root}, split="test", image_size=4, batch_size=4)


# What is wrong with a layout


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        train(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileNotFoundError, match="It is a file"):
        train(tmp_path / "file")


def test_missing_split(tmp_path):
    make(tmp_path, train=TRAIN)
    with pytest.raises(ValueError, match="no test or val"):
        open_data(tmp_path, split="test", image_size=SIZE, batch_size=4)


def test_an_image_that_is_cut_off_is_named_once(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / "train" / name).mkdir(parents=True)
        picture(0).save(tmp_path / "train" / name / "whole.jpg")
    cut = tmp_path / "train" / "ant" / "cut.jpg"
    cut.write_bytes((tmp_path / "train" / "ant" / "whole.jpg").read_bytes()[:-300])
    with pytest.raises(ValueError, match="truncated") as error:
        train(tmp_path)
    assert str(error.value).count("cut.jpg") == 1
    assert ".." not in str(error.value)


@pytest.mark.parametrize("on_bad_image", ["stop", "skip"])
def test_one_class_is_none(tmp_path, on_bad_image):
    make(tmp_path, train={"ant": 3})
    with pytest.raises(ValueError, match="two classes or more.*only 'ant'"):
        train(tmp_path, on_bad_image=on_bad_image)


def test_pictures_without_classes(tmp_path):
    picture(0).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="has none.*one folder of pictures for each class"):
        train(tmp_path)


def test_an_empty_class_folder(root):
    (root / "train" / "dog").mkdir()
    with pytest.raises(ValueError, match="dog: a class folder without pictures.*skip"):
        train(root)
    with pytest.warns(UserWarning, match="left out.*dog"), train(root, on_bad_image="skip") as stream:
        assert stream.class_names == ["ant", "bee", "cow"]
        assert [os.path.basename(b.path) for b in stream.bad] == ["dog"]


def test_splits_with_different_classes(root):
    (root / "test" / "cow").rename(root / "test" / "dog")
    for on_bad_image in ("stop", "skip"):
        with pytest.raises(ValueError, match=r"the training data does not have: 'dog'\."):
            open_data(root, split="test", image_size=SIZE, batch_size=4, on_bad_image=on_bad_image)


def test_a_class_without_test_pictures(root):
    for path in (root / "test" / "cow").iterdir():
        path.unlink()
    options = {"split": "test", "image_size": SIZE, "batch_size": 4}
    with pytest.raises(ValueError, match="no pictures of the class 'cow'"):
        open_data(root, **options)
    with pytest.warns(UserWarning, match="'cow'"), open_data(root, on_bad_image="skip", **options) as stream:
        assert stream.examples == 5 and stream.class_names == ["ant", "bee", "cow"]


# What is wrong with a file


def empty(path):
    path.write_bytes(b"")


def text(path):
    path.write_text("This is a web page and no picture.")


def no_pixels_known(path):
    Image.fromarray(np.zeros((4, 4), "float32")).save(path, "tiff")


SEEN_IN_THE_HEADER = {"empty": empty, "text": text, "32 bits": no_pixels_known}


@pytest.mark.parametrize("kind", SEEN_IN_THE_HEADER)
def test_bad_headers_are_found_before_the_first_step(root, kind):
    path = root / "train" / "bee" / "bad.jpg"
    SEEN_IN_THE_HEADER[kind](path)
    with pytest.raises(ValueError, match=r'bad\.jpg: .*on_bad_image="skip"'):
        train(root)
    with pytest.warns(UserWarning, match=r"A bad image is left out\. .*bad\.jpg"):
        stream = train(root, on_bad_image="skip")
    with stream:
        assert stream.examples == 13 and [b.path for b in stream.bad] == [str(path)]
        stream.batch(0)  # Says nothing again.


def test_many_bad_files_are_counted(root):
    for i in range(3):
        empty(root / "train" / "ant" / f"bad{i}.png")
    with pytest.raises(ValueError, match="There are 3 such files, in 'ant'"):
        train(root)
    with pytest.warns(UserWarning, match="3 bad images are left out"):
        train(root, on_bad_image="skip").close()


def test_a_class_of_bad_files(root):
    for path in (root / "train" / "bee").iterdir():
        empty(path)
    with pytest.raises(ValueError, match="'bee': none of the 4 pictures"):
        train(root, on_bad_image="skip")


def cut(path):
    """A file that lacks its end, of which the first bytes tell nothing."""
    stream = io.BytesIO()
    picture(99, (200, 200)).save(stream, path.suffix[1:].replace("jpg", "jpeg"))
    path.write_bytes(stream.getvalue()[: int(len(stream.getvalue()) * 0.6)])


@pytest.mark.parametrize("ending", ["jpg", "png", "gif", "webp", "bmp", "tiff"])
def test_a_file_that_is_cut_short_is_found_at_the_start(root, ending):
    bad = root / "train" / "bee" / f"cut.{ending}"
    cut(bad)
    for check in ("headers", "decode"):
        with pytest.raises(ValueError, match=rf'cut\.{ending}.*on_bad_image="skip"'):
            train(root, check=check)
        with pytest.warns(UserWarning, match=rf"A bad image is left out\. .*cut\.{ending}"):
            with train(root, on_bad_image="skip", check=check) as stream:
                assert stream.examples == 13 and [b.path for b in stream.bad] == [str(bad)]
    with train(root, check="none") as stream, pytest.raises(ValueError, match=rf'cut\.{ending}.*on_bad_image="skip"'):
        for step in range(4):
            stream.batch(step)


def test_whole_files_are_not_decoded_to_be_checked(root, monkeypatch):
    for i, ending in enumerate(("gif", "webp")):
        picture(i).save(root / "train" / "bee" / f"whole.{ending}")
    monkeypatch.setattr(folder_module, "load_image", None)
    train(root).close()


def test_the_next_image_takes_the_place_of_one_that_is_cut_short(root):
    cut(root / "train" / "bee" / "cut.jpg")
    plain = Augmentation(crop="resize", flip=False)
    options = {"on_bad_image": "skip", "batch_size": 14, "check": "none"}
    with pytest.warns(UserWarning, match=r"A bad image is left out\. .*cut\.jpg"):
        with train(root, plain, **options) as stream:
            assert stream.examples == 14
            images, labels = stream.batch(0)
            assert [os.path.basename(b.path) for b in stream.bad] == ["cut.jpg"]
            stream.batch(1)
            assert len(stream.bad) == 1
    assert len({image.tobytes() for image in images}) == 13
    np.testing.assert_array_equal(labels.sum(axis=0), [5, 4, 5])  # bee/cut.jpg is followed by cow/0.jpg.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with train(root, plain, **options) as again:
            np.testing.assert_array_equal(again.batch(0)[0], images)


def test_test_images_that_are_cut_short_are_left_out(root):
    cut(root / "test" / "bee" / "cut.jpg")
    options = {"split": "test", "image_size": SIZE, "batch_size": 8, "on_bad_image": "skip", "check": "none"}
    with open_data(root, **options) as stream:
        with pytest.warns(UserWarning, match="cut.jpg"):
            images, labels = stream.batch(0)
    assert len(images) == len(labels) == 7


def test_class_folders_that_differ_in_capitals_only(root):
    (root / "train" / "Bee").mkdir()
    picture(5).save(root / "train" / "Bee" / "0.png")
    with pytest.warns(UserWarning, match="'Bee', 'bee' in .* differ in capitals only"):
        with train(root) as stream:
            assert stream.classes == 4


def test_a_file_that_vanishes(root):
    with train(root, batch_size=13) as stream:
        (root / "train" / "cow" / "0.jpg").unlink()
        with pytest.raises(ValueError, match="0.jpg"):
            stream.batch(0)


def test_pictures_that_are_not_rgb_are_converted_and_recorded(root):
    folder = root / "train" / "ant"
    odd = {
        "grey.png": picture(1).convert("L"),
        "palette.png": picture(2).convert("P"),
        "rgba.png": picture(3).convert("RGBA"),
        "cmyk.jpg": picture(4).convert("CMYK"),
        "deep.png": Image.fromarray(np.full((9, 8), 0x4DFF, "uint16")),
        "black_and_white.png": picture(5).convert("1"),
    }
    for name, image in odd.items():
        image.save(folder / name)
    with train(root) as stream:
        assert stream.examples == 13 + len(odd) and stream.bad == []
        assert sorted(os.path.basename(c.path) for c in stream.converted) == sorted(odd)
        reasons = {os.path.basename(c.path): c.reason for c in stream.converted}
        assert "grey" in reasons["grey.png"] and "transparency is dropped" in reasons["rgba.png"]
        assert "upper 8" in reasons["deep.png"] and "CMYK" in reasons["cmyk.jpg"]
    with open_data(root / "train", split="test", image_size=SIZE, batch_size=30) as stream:
        paths = sorted(path for path in (root / "train").rglob("*.*"))
        images, _ = stream.batch(0)
    deep = [path.name for path in paths].index("deep.png")
    np.testing.assert_array_equal(images[deep], 0x4D)


def test_pictures_are_turned_upright(root):
    image = picture(1, (10, 40))
    exif = Image.Exif()
    exif[0x0112] = 6  # Rotate by a quarter turn.
    for path in (root / "test").rglob("*.*"):
        path.unlink()
        image.save(path.with_suffix(".png"), exif=exif)
    with open_data(root, split="test", image_size=(40, 10), batch_size=1) as stream:
        np.testing.assert_array_equal(stream.batch(0)[0][0], np.rot90(np.asarray(image), -1))


def test_without_pillow(root, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(ImportError, match=r"keras-vit\[images\]"):
        train(root)


def test_many_files_show_progress(root, monkeypatch, capsys):
    monkeypatch.setattr(folder_module, "PROGRESS_FROM", 5)
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    train(root).close()
    assert "Looking at pictures" in capsys.readouterr().err


# Arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": 2.0}, "batch_size must be"),
        ({"seed": -1}, "seed must be"),
        ({"image_size": 0}, "image_size must be"),
        ({"image_size": -3}, "image_size must be"),
        ({"split": "val"}, "split must be one of"),
        ({"split": "test"}, "not augmented"),
        ({"on_bad_image": "ignore"}, "on_bad_image must be one of"),
        ({"check": True}, "check must be one of"),
        ({"resize": "crop"}, "resize must be one of"),
        ({"prefetch": -1}, "prefetch must be"),
        ({"class_names": ["a"], "classes": 2}, "1 class_names, but classes=2"),
        ({"classes": 4}, "classes=4, but the data has 3"),
    ],
)
def test_refusals(root, options, message):
    with pytest.raises(ValueError, match=message):
        train(root, **options)


@pytest.mark.parametrize("size", [(3, 4, 5), "8", None, True, (8, True)])
def test_what_is_no_size_is_refused_as_everywhere(root, size):
    with pytest.raises(TypeError, match="image_size must be an integer or a pair"):
        train(root, image_size=size)


# Splits


def test_splits_by_other_names(tmp_path):
    for train_name, test_name in (("Training", "Testing"), ("TRAIN", "Val"), ("training_set", "dev")):
        root = make(tmp_path / train_name, **{train_name: TRAIN, test_name: TEST})
        with open_data(root, image_size=SIZE, batch_size=4) as stream:
            assert stream.class_names == ["ant", "bee", "cow"] and stream.examples == 13
        with open_data(root, split="test", image_size=SIZE, batch_size=4) as stream:
            assert stream.class_names == ["ant", "bee", "cow"] and stream.examples == 7
        assert has_test_split(root) and not has_test_split(root / train_name)


def test_test_images_are_taken_before_validation_images(tmp_path):
    root = make(tmp_path, train=TRAIN, val=TRAIN, test=TEST)
    with open_data(root, split="test", image_size=SIZE, batch_size=4) as stream:
        assert stream.examples == 7


def test_test_images_alone_can_be_tested_on(tmp_path):
    root = make(tmp_path, Test=TEST)
    with open_data(root, split="test", image_size=SIZE, batch_size=4) as stream:
        assert stream.class_names == ["ant", "bee", "cow"] and stream.examples == 7
    with pytest.raises(ValueError, match="no train folder in .*, which has Test"):
        open_data(root, image_size=SIZE, batch_size=4)


@pytest.mark.parametrize("split", ["train", "test"])
def test_classes_beside_a_test_folder_are_refused(tmp_path, split):
    make(tmp_path, test=TEST)
    for name in TRAIN:
        (tmp_path / "test" / name).rename(tmp_path / name)
    picture(0).save(tmp_path / "test" / "a.png")  # as competitions have them, without labels
    with pytest.raises(
        ValueError, match="the folder 'test', which is called like a split, beside other folders: 'ant'"
    ):
        open_data(tmp_path, split=split, image_size=SIZE, batch_size=4)


def test_splits_without_classes_are_refused(tmp_path):
    for name in ("Training", "Testing"):
        (tmp_path / name).mkdir()
        picture(0).save(tmp_path / name / "a.png")
    with pytest.raises(ValueError, match="Training is called like a split, but has no folders of classes"):
        open_data(tmp_path, image_size=SIZE, batch_size=4)


def test_a_class_that_is_called_like_a_split(tmp_path):
    for name in ("bus", "train"):
        (tmp_path / name).mkdir()
        picture(0).save(tmp_path / name / "a.png")
    with pytest.raises(ValueError, match="If 'train' is a class itself, say so"):
        open_data(tmp_path, image_size=SIZE, batch_size=4)
    with open_data(tmp_path, class_names=["bus", "train"], image_size=SIZE, batch_size=2) as stream:
        assert stream.examples == 2


def test_two_training_folders_are_refused(tmp_path):
    make(tmp_path, train=TRAIN, Training=TRAIN)
    with pytest.raises(ValueError, match="more than one train split"):
        open_data(tmp_path, image_size=SIZE, batch_size=4)


def test_splits_of_a_dict_by_other_names(root):
    source = {"Training": root / "train", "validation": root / "test"}
    assert has_test_split(source) and not has_test_split({"train": root})
    with open_data(source, split="test", image_size=4, batch_size=4) as stream:
        assert stream.examples == 7


# Strange names


def test_links_that_lead_back(root):
    (root / "train" / "ant" / "again").symlink_to(root / "train", target_is_directory=True)
    with pytest.raises(ValueError, match="ant/again is a link to a folder that it lies in") as caught:
        train(root)
    assert "\n" not in str(caught.value)


def test_links_to_themselves_and_to_nothing(root):
    folder = root / "train" / "ant"
    (folder / "self.jpg").symlink_to(folder / "self.jpg")
    (folder / "nothing.jpg").symlink_to(folder / "gone.jpg")
    with pytest.raises(ValueError, match="There are 2 such files, in 'ant'"):
        train(root)
    with pytest.warns(UserWarning, match="2 bad images"), train(root, on_bad_image="skip") as stream:
        assert stream.examples == 13


def test_what_systems_leave_behind_is_no_data(root):
    for place in (root, root / "train", root / "train" / "ant"):
        (place / "._0.jpg").write_bytes(b"x")
        (place / "__MACOSX").mkdir()
        (place / "__MACOSX" / "._0.jpg").write_bytes(b"x")
        (place / ".ipynb_checkpoints").mkdir()
    with train(root) as stream:
        assert stream.examples == 13 and stream.class_names == ["ant", "bee", "cow"]


def test_pictures_beside_the_classes_are_said_to_be_left_out(root):
    picture(0).save(root / "train" / "loose.png")
    with pytest.warns(UserWarning, match="1 file is no picture of a class.*loose.png"):
        train(root).close()


@pytest.mark.parametrize("name", [b"two\nlines", b"a\xffb", b" ant"])
def test_names_that_no_class_can_have(root, name):
    folder = os.path.join(os.fsencode(root / "train"), name)
    os.mkdir(folder)
    picture(0).save(os.path.join(os.fsdecode(folder), "a.png"))
    with pytest.raises(ValueError, match="cannot be the name of a class: it") as caught:
        train(root)
    assert str(caught.value).isprintable()


def test_files_with_names_that_are_not_utf_8(root):
    path = os.fsdecode(os.path.join(os.fsencode(root / "train" / "ant"), b"a\xffb.png"))
    picture(0).save(path)
    with train(root) as stream:
        assert stream.examples == 14
    with open(path, "wb"):
        pass
    with pytest.raises(ValueError, match="an empty file") as caught:
        train(root)
    assert str(caught.value).isprintable()


def test_a_pipe_is_no_picture(root):
    os.mkfifo(root / "train" / "ant" / "pipe.jpg")
    with pytest.raises(ValueError, match="pipe.jpg: neither a file nor a folder"):
        train(root)
