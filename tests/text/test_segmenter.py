"""Segmentation by words: maps of the formulas of TIPS's notebook, whole and by windows, and what is refused."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import segmentation
from keras_vit.models import count_weights
from keras_vit.preprocessing import resize_images
from tests.checkpoints.test_tips import CASE
from tests.layers import in_numpy
from tests.small_models import values_of

NAMES = ["cat", "Dog", "great white shark"]
OPTIONS = {"image_size": 56, "stride": 28}
CLASSES = len(NAMES)


@pytest.fixture(scope="module")
def both(golden):
    return keras_vit.load_image_text(golden(CASE).folder)


@pytest.fixture(scope="module")
def vectors(both, golden):
    """Class vectors by the notebook: texts as they are written, a mean of unit vectors, of length 1."""
    words = keras_vit.load_image_text(golden(CASE).folder, numerics="official").tokenizer
    rows = []
    for name in NAMES:
        texts = [template.format(name) for template in keras_vit.text.published_templates()["tcl"]]
        ids = [words.encode(text) for text in texts]  # not lower-cased
        padded = np.array([row + [0] * (64 - len(row)) for row in ids], "int32")
        found = both.text_encoder.predict(padded, verbose=0)
        mean = (found / np.linalg.norm(found, axis=-1, keepdims=True)).mean(0)
        rows.append(mean / np.linalg.norm(mean))
    return np.stack(rows)


def values_by_hand(both, image):
    """The patches `(rows, columns, D)` of an image of whole patches, whose last block mixes no tokens."""
    model = both.image_encoder.with_config(pooling="none", image_size=image.shape[:2])
    found = keras_vit.feature_extractor(model, ["block_0"]).predict(image[None], verbose=0)["block_0"][0]
    weights = {path: np.float64(values) for path, values in values_of(model).items()}
    x, w = np.float64(found), in_numpy.inner(weights, "block_1")
    attention = in_numpy.inner(w, "attention")
    value = in_numpy.dense(in_numpy.layer_norm(x, w, "norm1", 1e-6), attention, "value")
    x = x + w["scale1/gamma"] * in_numpy.dense(value, attention, "out")
    y = in_numpy.mlp(in_numpy.layer_norm(x, w, "norm2", 1e-6), in_numpy.inner(w, "mlp"), "exact")
    x = in_numpy.layer_norm(x + w["scale2/gamma"] * y, weights, "encoder_norm", 1e-6)[2:]
    return x.reshape(image.shape[0] // 14, image.shape[1] // 14, -1)


def cosines(both, vectors, image):
    size = tuple(-(-side // 14) * 14 for side in image.shape[:2])
    image = image if size == image.shape[:2] else resize_images(image, size, "bicubic_hf")
    patches = values_by_hand(both, image)
    return patches / np.linalg.norm(patches, axis=-1, keepdims=True) @ vectors.T


def map_by_hand(both, vectors, picture, mode):
    from PIL import Image

    height, width = picture.shape[:2]
    size = (56, int(56 * width / height)) if height <= width else (int(56 * height / width), 56)
    image = np.asarray(Image.fromarray(picture).resize(size[::-1], Image.Resampling.BICUBIC), "float32") / 255
    if mode == "whole":
        return resize_images(cosines(both, vectors, image), (height, width), "bilinear")
    total, count = np.zeros((*size, CLASSES)), np.zeros((*size, 1))
    for top in range(0, max(size[0] - 56 + 27, 0) // 28 * 28 + 1, 28):
        for left in range(0, max(size[1] - 56 + 27, 0) // 28 * 28 + 1, 28):
            y, x = min(top, size[0] - 56), min(left, size[1] - 56)
            found = resize_images(cosines(both, vectors, image[y : y + 56, x : x + 56]), (56, 56), "bilinear")
            shares = np.exp(found) / np.exp(found).sum(-1, keepdims=True)
            total[y : y + 56, x : x + 56] += shares
            count[y : y + 56, x : x + 56] += 1
    return resize_images(total / count, (height, width), "bilinear")


@pytest.mark.parametrize("mode", ["slide", "whole"])
@pytest.mark.nightly_elsewhere
def test_the_maps_of_the_notebook(golden, both, vectors, mode):
    model = both.zero_shot_segmenter(NAMES, mode=mode, **OPTIONS)
    assert model.config.class_names == tuple(NAMES)
    head = model.get_layer("head").kernel
    assert np.abs(keras.ops.convert_to_numpy(head) - vectors.T).max() < 1e-6
    # Words of towers with random weights are all alike: other vectors make maps with borders.
    patches = values_by_hand(both, golden(CASE).ref["pixels_0_pil"]).reshape(16, -1)
    mean = patches.mean(0) / np.linalg.norm(patches.mean(0))
    vectors = (patches - patches @ mean[:, None] * mean)[[0, 5, 10]]
    vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    head.assign(vectors.T)
    borders = 0
    for picture in (golden(CASE).ref["picture_0"], golden(CASE).ref["picture_1"]):
        found = segmentation.segment(model, picture).map
        expected = map_by_hand(both, vectors, picture, mode)
        assert found.shape == picture.shape[:2]
        wrong = found != expected.argmax(-1)
        best = np.sort(expected, axis=-1)
        assert (best[..., -1] - best[..., -2])[wrong].max(initial=0) < 1e-5  # ties alone
        assert wrong.mean() < 0.01
        borders += len(np.unique(found)) - 1
    assert borders


@pytest.mark.once
def test_what_a_segmenter_can_do(golden, both, tmp_path):
    model = both.zero_shot_segmenter(NAMES, "{}", mode="slide", **OPTIONS)
    assert model.count_params() == count_weights(model.config)
    picture = golden(CASE).ref["picture_0"]
    found = segmentation.segment(model, picture)
    for name in ("segmenter.keras", "segmenter.npz"):
        if name.endswith("npz"):
            keras_vit.to_checkpoint(model, tmp_path / name)
        else:
            model.save(tmp_path / name)
        again = keras_vit.load(tmp_path / name)
        np.testing.assert_array_equal(segmentation.segment(again, picture).map, found.map)
    masks = (picture[None], found.map[None].astype("uint8"))
    assert segmentation.evaluate(model, masks, progress=False).mean_iou == 1
    flipped = segmentation.segment(model, picture, flip=True, scales=(1.0, 1.5))
    assert flipped.map.shape == found.map.shape


@pytest.mark.once
def test_other_families_are_refused(golden, both):
    clip = keras_vit.load_image_text(golden("txt_hf_clip").folder)
    with pytest.raises(ValueError, match="zero_shot_segmenter needs a TIPS"):
        clip.zero_shot_segmenter(NAMES)
    for options, message in (
        ({"mode": "crops"}, "mode must be one of"),
        ({"image_size": 0}, "image_size"),
        ({"image_size": 56, "stride": 60}, "stride must be at most crop_size"),
        ({"templates": "a photo"}, "one {} for the class name"),
    ):
        with pytest.raises(ValueError, match=message):
            both.zero_shot_segmenter(NAMES, **options)
    with pytest.raises(ValueError, match="at least 2 names"):
        both.zero_shot_segmenter(["cat"])
