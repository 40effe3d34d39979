"""What inspection refuses: a table of calls, words and errors."""

import functools

import keras
import numpy as np
import pytest

from keras_vit import inspection
from tests.inspection.models import images_for, make
from tests.small_models import small_bit, small_vit

pytestmark = pytest.mark.once
pytest.importorskip("matplotlib")

plain = functools.cache(make)
bit = functools.cache(small_bit)
PIXELS = np.random.default_rng(0).integers(0, 256, (2, 16, 24, 3)).astype("uint8")
MAPS = np.ones((2, 2, 3))


class Wrapped(keras.Model):
    """A subclassed model around one: nobody but its `call` knows what it does."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, images):
        return self.inner(images) * 2


def wrapped():
    model = Wrapped(plain())
    model(images_for(plain()))
    return model


def two():
    pixels = keras.Input((8, 12, 3))
    return keras.Model(pixels, [plain()(pixels), make(name="other")(pixels)])


def maps(**changes):
    return inspection.attention_maps(**{"model": plain(), "images": images_for(plain())} | changes)


def rollout(model):
    return inspection.attention_rollout(model, images_for(plain()))


def saliency(classes=None, **fields):
    return inspection.saliency(make(**fields), images_for(plain()), classes)


def nearest(*arguments, **options):
    return inspection.nearest_patches(plain(), images_for(plain(), 3), *arguments, **options)


def drawn_nearest(places, patch=(0, 0, 0), cosines=None):
    cosines = np.ones(len(places)) if cosines is None else cosines
    return inspection.plot("nearest", places, PIXELS, cosines=cosines, patch=patch, grid_size=(2, 3))


def shown(images):
    return inspection.shown_pixels(plain(), images)


def page(**changes):
    return inspection.write_page(**{"model": plain(), "path": "page.html"} | changes)


CONTAINS = "model must be a VisionTransformer.*pass the VisionTransformer or BiT inside"
# A call, words of the error, and its type where that is not ValueError.
REFUSED = [
    (lambda: maps(block=2), "block must be from -2 to 1 in .*, but 2 was given"),
    (lambda: maps(block="block_0"), "block must be the number of a block", TypeError),
    (lambda: maps(block="pooling"), "needs attention pooling, but .* pooling='token'"),
    (lambda: maps(images=np.zeros((8, 12, 3))), r"needs a batch axis: images\[None\]"),
    (lambda: maps(images=np.zeros((1, 8, 4, 3))), "needs images of 8 x 12 pixels"),
    (lambda: maps(model=keras.Sequential([plain()])), "or a built functional", TypeError),
    (lambda: rollout(wrapped()), CONTAINS, TypeError),
    (lambda: rollout(two()), "several models of keras_vit inside: vision_transformer"),
    (lambda: rollout(bit()), "BiT bit has no attention", TypeError),
    (lambda: inspection.position_similarity(small_vit(position_embedding="none")), "must have position embeddings"),
    (lambda: inspection.attention_distance(np.ones((1, 1, 7, 7)), (2, 4), (4, 10)), r"2 x 4 patches .* \(1, 1, 7, 7\)"),
    (lambda: inspection.patch_filters(plain()), "components must be from 1 to 16, because .* 16 filters of 48 values"),
    (lambda: saliency([0, 3]), "classes must be from 0 to 2"),
    (lambda: saliency([0, 1, 2]), "classes must be an integer, or one for each of the 2 images"),
    (lambda: inspection.saliency(make(classes=None), images_for(plain())), "has no head"),
    (lambda: saliency(pooling="none"), r"must return scores \(batch, classes\)"),
    (lambda: inspection.class_evidence(make(pooling="none"), images_for(plain())), "head does not fit a single"),
    (lambda: nearest((3, 0, 0)), r"patch must be \(image, row, column\) of 3 images with 2 x 3 patches"),
    (lambda: nearest((0, 0, 0), 18), "count must be from 1 to 17"),
    (lambda: nearest((0, 0, 0), layer="encoded"), "layer must be the name of a layer .*'block_0'.* but 'encoded'"),
    (lambda: nearest((0, 0, 0), layer="head"), "must return a map or tokens, but 'head'"),
    (lambda: inspection.plot("distance", np.ones((3, 2)), path="x"), "must end with .png, .svg or .pdf"),
    (lambda: inspection.plot("heads", np.full((2, 2, 3), "a"), PIXELS[0]), "values must be numbers", TypeError),
    (lambda: inspection.plot("rollout", MAPS, PIXELS[:1]), "an image for each of 2 maps, but 1 were"),
    (lambda: inspection.plot("rollout", MAPS, PIXELS / 127.5 - 1), r"Pass shown_pixels\(model, images\)"),
    (lambda: inspection.plot("features", MAPS, PIXELS), r"values must be numbers \(batch, rows, columns, 3\)"),
    (lambda: drawn_nearest(np.zeros((2, 3), int), cosines=[1]), r"cosines must be numbers \(2\), but int64 \(1,\)"),
    (lambda: drawn_nearest(np.array([[0, 0, 0], [2, 0, 0]])), "of 2 images with 2 x 3 patches, but one lies outside"),
    (lambda: inspection.overlay(PIXELS[0], MAPS), r"weights must be numbers \(rows, columns\)"),
    (lambda: inspection.overlay(np.full((4, 4, 1), 256, "uint16"), MAPS[0]), "image must hold values in 0..255"),
    (lambda: inspection.overlay(np.ones((4, 4, 1), bool), MAPS[0]), "image must hold integers or floats", TypeError),
    (lambda: inspection.plot("filters", np.ones((2, 1, 1, 64))), "filters must have 1 or 3 channels"),
    (lambda: inspection.plot("evidence", MAPS, PIXELS, class_names=["cat"]), "class_names must have a name"),
    (lambda: inspection.plot("heads", MAPS), "takes values, images, but values, nothing else were", TypeError),
    (lambda: inspection.plot("roll", MAPS, PIXELS), "kind must be one of .*rollout"),
    (lambda: page(path="page.pdf"), "path must end with .html"),
    (lambda: page(images=[PIXELS[0]]), "images must be a dict from names to pixels, but list", TypeError),
    (lambda: page(images={"two": PIXELS}), "one image for each of 1 names, but there are 2"),
    (lambda: shown(np.zeros((1, 8, 8, 1), "float32")), "images must have the shape"),
    (lambda: page(images={"grey": np.zeros((4, 4, 1), "uint8")}), r"images must have shape .*\(4, 4, 1\)"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[1])
def test_what_makes_no_sense_is_refused(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, words, *error = case
    with pytest.raises(*error or [ValueError], match=words):
        call()
    assert list(tmp_path.iterdir()) == []
