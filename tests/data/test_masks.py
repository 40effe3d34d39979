"""Pictures with masks: where they come from, and what happens to both alike in training."""

import colorsys

import numpy as np
import pytest

from keras_vit.data import MaskAugmentation, open_data, open_masks
from keras_vit.data.augmentation import MaskTransform, draws
from keras_vit.data.masks import read_mask
from keras_vit.data.random_operations import recoloured
from tests.pictures import save

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.once

SIZES = ((20, 30), (30, 20), (24, 24), (16, 40))


def pictures(seed=0):
    """Pictures whose red says the class of each pixel, 40 times, and their masks of three classes."""
    generator = np.random.default_rng(seed)
    masks = [np.kron(generator.integers(0, 3, (h // 4, w // 4)), np.ones((4, 4))).astype("uint8") for h, w in SIZES]
    masks[0][:4] = 255
    images = [np.stack([40 * (mask % 255), mask // 2, mask // 3], -1) + 7 for mask in masks]
    return [image.astype("uint8") for image in images], masks


def write(folder, images, masks, of=lambda kind, i: f"{kind}/{i}.png"):
    for kind, arrays in (("images", images), ("masks", masks)):
        for i, array in enumerate(arrays):
            save(folder / of(kind, i), array)
    return folder


def stream(source, split="train", options=None, **settings):
    masks = open_masks(source, **({"classes": 3} if options is None else options))
    return open_data(masks, split=split, **{"image_size": 16, "batch_size": 2, **settings})


LAYOUTS = {
    "plain": lambda kind, i: f"{kind}/{i}.png",
    "splits above": lambda kind, i: f"{('train', 'val')[i % 2]}/{kind}/{i}.png",
    "splits below": lambda kind, i: f"{kind}/{('training', 'validation')[i % 2]}/deep/{i}.png",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_folders(tmp_path, layout):
    images, masks = pictures()
    write(tmp_path, images, masks, LAYOUTS[layout])
    places = [1, 3] if layout != "plain" else range(4)
    assert open_masks(tmp_path).has_test_split == (layout != "plain")
    with stream(tmp_path, "test", {}) as one, stream((images, masks), "test") as other:
        assert one.classes == 3
        read = [pair for batch in one for pair in zip(*batch, strict=True)]
        given = [pair for batch in other for pair in zip(*batch, strict=True)]
        for (image, mask), i in zip(read, places, strict=True):
            np.testing.assert_array_equal(image, images[i])
            np.testing.assert_array_equal(mask, masks[i])
            np.testing.assert_array_equal(given[i][1], masks[i])


def test_names_of_classes_and_labels_that_do_not_count(tmp_path):
    images, masks = pictures()
    write(tmp_path, images, masks)
    (tmp_path / "classes.txt").write_text("floor\nwall\n")
    masks = open_masks(tmp_path, reduce_zero_label=True)
    assert (masks.classes, masks.class_names) == (2, ("floor", "wall"))
    with open_data(masks, split="test", image_size=16, batch_size=4) as opened:
        labels = opened.batch(0)[1]
    expected = [np.array([255, 0, 1, *[255] * 253], "int32")[mask] for mask in pictures()[1]]
    assert all(np.array_equal(one, other) for one, other in zip(labels, expected, strict=True))


@pytest.mark.parametrize("scale", [(1, 1), (0.5, 2), (2, 2)])
def test_a_picture_and_its_mask_stay_together(scale):
    """Where all four neighbours are of one class, the red of a pixel says the class of the mask there."""
    augmentation = MaskAugmentation(scale, 1, True, 0, 0, 0, 0, 200.0)
    with stream(pictures(), augmentation=augmentation, image_size=(24, 20), batch_size=8, seed=1) as opened:
        images, masks = opened.batch(0)
    assert images.shape == (8, 24, 20, 3) and masks.shape == (8, 24, 20) and masks.dtype == "int32"
    padded = images[..., 0] == 200
    assert (masks[padded] == 255).all() and padded.any() == (scale[0] <= 1)
    red = (images[..., 0] - 7) / 40
    whole = (np.abs(red - red.round()) < 1e-3) & (masks != 255)
    # A nearest label lies half a pixel beside its bilinear colour at most: only borders differ.
    agree = red.round()[whole] == masks[whole]
    assert whole.mean() > 0.3 and agree.mean() > 0.97


def test_a_crop_of_nearly_one_class_is_drawn_again():
    mask = np.zeros((40, 40), "uint8")
    mask[:, 30:] = 1
    image = np.repeat(mask[..., None], 3, -1) + np.uint8(2)
    shares = {}
    for most in (1.0, 0.75):
        transform = MaskTransform((10, 10), MaskAugmentation((4, 4), most, False, 0, 0, 0, 0), 0, 3, 255)
        shares[most] = [transform(image, mask, draws(0, 0, i))[1].mean() for i in range(60)]
    crops = {most: np.mean([0.25 < share < 0.75 for share in found]) for most, found in shares.items()}
    assert crops[0.75] > 2 * crops[1.0]


def test_colours_turn_as_in_hsv():
    image = np.random.default_rng(0).uniform(0, 255, (50, 3))
    found = recoloured(image, 1.3, 0.21)
    for colour, other in zip(image / 255, found / 255, strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*colour)
        expected = colorsys.hsv_to_rgb((hue + 0.21) % 1, min(1.3 * saturation, 1), value)
        np.testing.assert_allclose(other, expected, atol=1e-12)  # float64 on both sides
    grey = np.full((1, 3), 77.0)
    np.testing.assert_array_equal(recoloured(grey, 1.5, 0.4), grey)


def test_pictures_of_a_pipeline_keep_their_sizes_and_bad_masks_can_be_left_out():
    images, masks = pictures()
    masks[1] = masks[1][:-1]
    pairs = list(zip(images, masks, strict=True))
    with pytest.raises(ValueError, match="mask of example 1 must have the size"):
        stream(pairs, "test")
    with pytest.warns(UserWarning, match="example 1"), stream(pairs, "test", on_bad_image="skip") as opened:
        sizes = [[mask.shape for mask in labels] for _, labels in opened]
    assert sizes == [[(20, 28), (24, 24)], [(16, 40)]] and len(opened.bad) == 1


FAULTS = {
    "another size": (lambda masks: masks.__setitem__(1, masks[1][:-1]), "mask of .*1.png must have the size"),
    "colours": (lambda masks: masks.__setitem__(2, np.zeros((24, 24, 3), "uint8")), "2.png has colours"),
    "out of range": (lambda masks: masks[1].__setitem__((0, 0), 9), r"mask of .*1.png has the label 9.*ignore="),
    "missing": (lambda masks: masks.pop(), "1 pictures .* have no mask .*: '3'"),
}


def test_a_mask_of_fractions(tmp_path):
    with pytest.raises(ValueError, match="a.tiff has fractions .mode F.*one whole number"):
        read_mask(save(tmp_path / "a.tiff", np.zeros((24, 24), "float32")))


def test_a_source_without_masks_is_refused_when_it_is_opened(tmp_path):
    write(tmp_path, pictures()[0], [])
    with pytest.raises(FileNotFoundError, match="no folder .*masks with the masks"):
        open_masks(tmp_path, classes=3)
    with pytest.raises(TypeError, match="data must be a folder of images/ and masks/"):
        open_masks({"test": 3}, classes=3)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_mask_is_said(tmp_path, fault):
    (images, masks), (change, message) = pictures(), FAULTS[fault]
    change(masks)
    with pytest.raises(ValueError, match=message), stream(write(tmp_path, images, masks), "test") as opened:
        list(opened)


def test_masks_that_are_jpegs_are_refused(tmp_path):
    """Their numbers are not those that were saved: classes that nobody drew."""
    write(tmp_path, *pictures())
    mask = tmp_path / "masks/1.png"
    Image.open(mask).convert("L").save(mask.with_suffix(".jpg"))
    mask.unlink()
    with pytest.raises(ValueError, match=r"1.jpg is a JPEG, whose compression changes class numbers.*as a PNG"):
        open_masks(tmp_path)


def test_a_class_that_never_occurs_is_named():
    images, masks = pictures()
    half = [np.where(mask > 0, 255, 0).astype("uint8") for mask in masks]
    with pytest.raises(ValueError, match=r"has the class 1 \('wall'\).*have 255, the ignored label"):
        open_masks((images, half), class_names=["floor", "wall"]).check_classes_occur()
    with pytest.raises(ValueError, match="have only the class 0.*have 255, the ignored label"):
        open_masks((images, half)).check_classes_occur()
    with pytest.raises(ValueError, match="No training mask has the class 3, so the model could not learn it"):
        open_masks((images, masks), classes=4).check_classes_occur()
    open_masks((images, masks)).check_classes_occur()


def test_classes_are_looked_for_in_masks_that_can_be_read(tmp_path):
    """With `on_bad_image="skip"` a mask that cannot be read is left out here as well, as in the batches."""
    plain = [np.full((4, 4), i, "uint8") for i in range(3)]
    write(tmp_path, plain, plain)
    (tmp_path / "masks" / "2.png").write_bytes(b"no mask")
    masks = open_masks(tmp_path, classes=3)
    with pytest.raises(ValueError, match="cannot be read as a mask"):
        masks.check_classes_occur()
    with pytest.raises(ValueError, match="No training mask has the class 2"):
        masks.check_classes_occur("skip")
    open_masks(tmp_path, classes=2).check_classes_occur("skip")


def test_names_of_open_data_give_the_order_of_masks():
    """Of arrays and of pipelines; without names the stream has those of the masks."""
    images, masks = np.full((2, 16, 16, 3), 9, "uint8"), np.repeat(np.arange(2), 256).reshape(2, 16, 16)
    for source in ((images, masks), [(images, masks)]):
        opened = open_masks(source, class_names=["a", "b"])
        for names, wanted in ((None, [0, 1]), (["b", "a"], [1, 0]), (["b", "x", "a"], [2, 0])):
            with open_data(opened, split="test", image_size=16, batch_size=2, class_names=names) as stream:
                assert stream.class_names == (names or ["a", "b"])
                assert [mask[0, 0] for mask in stream.batch(0)[1]] == wanted


def test_pictures_with_masks_have_other_channels(tmp_path):
    """Of folders and of arrays, in training as in evaluation; grey ones with masks are made of three channels."""
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 4)).astype("uint8")
    masks = np.repeat([0, 1], 256).reshape(2, 16, 16).astype("uint8")
    write(tmp_path, images, masks)
    for source in ((images, masks), tmp_path):
        for split in ("train", "test"):
            with stream(source, split, {"classes": 2}, channels=4) as opened:
                found = [np.asarray(image).astype("uint8").tobytes() for image in opened.batch(0)[0]]
            assert sorted(found) == sorted(image.tobytes() for image in images)
    with stream((images[..., 0], masks), "test", {"classes": 2}) as opened:
        np.testing.assert_array_equal(opened.batch(0)[0], np.repeat(images[..., :1], 3, axis=-1))
