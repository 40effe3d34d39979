"""Crops, flips, RandAugment and mixup: drawn as the original draws them, and the same for the same seed."""

import numpy as np
import pytest
import scipy.stats

from keras_vit.data import Augmentation, randaugment
from keras_vit.data.augmentation import (
    RANDAUGMENT,
    ImageTransform,
    crop_and_flip,
    draws,
    resize_for_evaluation,
)
from keras_vit.data.random_operations import cutmix, erased, inception_box, mixed, mixup
from keras_vit.preprocessing import load_image, resize_images

pytestmark = pytest.mark.once


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize(("height", "width"), [(300, 400), (400, 200), (28, 28), (1, 1), (3, 500)])
def test_inception_boxes_lie_in_the_image(height, width, rng):
    assert inception_box(50, 300, rng, min_area=0.3) == (0, 0, 50, 300)  # no box of aspect 1.33 is that large
    for _ in range(200):
        top, left, rows, columns = inception_box(height, width, rng, min_area=0.2)
        assert 0 <= top and top + rows <= height and 0 <= left and left + columns <= width
        if (rows, columns) != (height, width):
            assert 0.2 * height * width <= rows * columns
            # Widths are rounded: half a pixel more or less.
            assert 0.75 * rows - 0.5 - 1e-9 <= columns <= 1.33 * rows + 0.5 + 1e-9


def test_crops_are_boxes_resized_as_the_original_does(rng):
    pixels = rng.integers(0, 256, (40, 60, 3), dtype="uint8")
    plain = Augmentation(flip=False)
    out = crop_and_flip(pixels, (16, 24), plain, np.random.default_rng(5))
    top, left, rows, columns = inception_box(40, 60, np.random.default_rng(5), 0.05)
    assert out.shape == (16, 24, 3) and out.dtype == np.float32
    box = pixels[top : top + rows, left : left + columns]
    # The same two products, which are summed among zeros in one and in another order in the other.
    np.testing.assert_allclose(out, resize_images(box, (16, 24)), rtol=0, atol=1e-4)
    for size in [(1, 1), (80, 7), (40, 60), (41, 200)]:
        whole = Augmentation(crop="resize", flip=False)
        for values in (pixels, pixels.astype("float64"), pixels[:1, :1]):
            out = crop_and_flip(values, size, whole, rng)
            assert out.dtype == np.float32
            np.testing.assert_allclose(out, resize_images(values, size), rtol=0, atol=1e-4)


def test_half_of_the_images_are_mirrored(rng):
    pixels = rng.integers(0, 256, (8, 8, 3), dtype="uint8")
    flipped = 0
    for i in range(400):
        out = crop_and_flip(pixels, (8, 8), Augmentation(crop="resize"), np.random.default_rng(i))
        mirrored = np.array_equal(out, pixels[:, ::-1])
        assert mirrored or np.array_equal(out, pixels)
        flipped += mirrored
    assert 150 < flipped < 250  # 200 +- 10 is one standard deviation.


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_random_crop_is_a_part_of_the_image_at_seven_sixths(dtype, rng):
    image = pytest.importorskip("PIL.Image")
    pixels = rng.integers(0, 256, (50, 90, 3), dtype="uint8")
    enlarged = load_image(image.fromarray(pixels), (28, 50), resize="big_vision", crop_fraction=1.0)
    places = set()
    for i in range(30):
        generator = np.random.default_rng(i)
        out = crop_and_flip(pixels.astype(dtype), (24, 24), Augmentation("random", flip=False), generator)
        found = [(y, x) for y in range(5) for x in range(27) if np.array_equal(enlarged[y : y + 24, x : x + 24], out)]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 15


@pytest.mark.parametrize("resize", ["squash", "big_vision", "timm"])
def test_evaluation_of_arrays_is_that_of_files(resize, rng):
    image = pytest.importorskip("PIL.Image")
    pixels = rng.integers(0, 256, (40, 60, 3), dtype="uint8")
    expected = load_image(image.fromarray(pixels), (24, 16), resize=resize)
    for dtype in ("uint8", "float32"):
        np.testing.assert_array_equal(resize_for_evaluation(pixels.astype(dtype), (24, 16), resize), expected)


def test_a_transform_is_a_function_of_seed_epoch_and_index(rng):
    pixels = rng.integers(0, 256, (40, 60, 3), dtype="uint8")
    transform = ImageTransform((16, 12), Augmentation(randaugment=(2, 1)))
    first = {(e, i): transform(pixels, 7, draws(3, e, i)) for e in range(3) for i in range(3)}
    for place, (image, target) in reversed(first.items()):
        np.testing.assert_array_equal(transform(pixels, 7, draws(3, *place))[0], image)
        assert image.shape == (16, 12, 3) and image.dtype == np.uint8 and target == 7
    assert len({image.tobytes() for image, _ in first.values()}) == len(first)
    # RandAugment follows crop and flip, on whole numbers.
    plain = np.floor(ImageTransform((16, 12), Augmentation())(pixels, 7, draws(3, 1, 2))[0]).astype("uint8")
    expected = randaugment(plain, 2, 1, np.random.default_rng([3, RANDAUGMENT, 1, 2]))
    np.testing.assert_array_equal(first[1, 2][0], expected)


def test_mixup_is_big_visions(rng):
    images = rng.uniform(0, 255, (5, 4, 4, 3)).astype("float32")
    labels = np.eye(5, dtype="float32")
    for p in (0.2, 0.8):
        mixed, shares = mixup(images.copy(), labels, p, np.random.default_rng(7))
        a = np.random.default_rng(7).beta(p, p)
        a = max(a, 1 - a)
        # float32 products and sums of values up to 255.
        np.testing.assert_allclose(mixed, a * images + (1 - a) * np.roll(images, 1, axis=0), rtol=0, atol=1e-4)
        np.testing.assert_allclose(shares, a * labels + (1 - a) * np.roll(labels, 1, axis=0), rtol=0, atol=1e-6)
        np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=0, atol=1e-6)
        assert mixed.dtype == shares.dtype == np.float32


def same_distribution(ours, theirs):
    """Kolmogorov and Smirnov's test of each column; of equal ones, one in ten thousand fails."""
    for a, b in zip(np.transpose(ours), np.transpose(theirs), strict=True):
        assert scipy.stats.ks_2samp(a, b).pvalue > 1e-4


def timm_cutmix_box(height, width, alpha, random):
    """`rand_bbox` of timm's `data/mixup.py`, read again: rows and columns, first and end."""
    lam = random.beta(alpha, alpha)
    sizes = np.array([height, width])
    cut = np.floor(sizes * np.sqrt(1 - lam)).astype(int)
    centre = np.array([random.randint(0, size) for size in sizes])
    return [*np.clip([centre - cut // 2, centre + (cut + 1) // 2], 0, sizes).T.ravel()]


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_cutmix_takes_boxes_as_timm_does_and_labels_follow(alpha):
    boxes, labels, random = [], np.eye(3, dtype="float32"), np.random.RandomState(1)
    for seed in range(1000):
        images = np.broadcast_to(np.arange(3, dtype="float32")[:, None, None, None], (3, 12, 20, 1)).copy()
        images, shares = cutmix(images, labels, alpha, np.random.default_rng(seed))
        changed = images[1, ..., 0] == 0
        rows, columns = (np.flatnonzero(changed.any(axis)) for axis in (1, 0))
        assert changed.sum() == len(rows) * len(columns) and set(np.unique(images[0])) <= {0, 2}
        # float32 shares
        expected = (1 - changed.mean()) * labels + changed.mean() * np.roll(labels, 1, axis=0)
        np.testing.assert_allclose(shares, expected, rtol=0, atol=1e-6)
        assert shares.dtype == images.dtype == np.float32
        if changed.any():
            boxes.append([rows[0], rows[-1] + 1, columns[0], columns[-1] + 1])
    theirs = [timm_cutmix_box(12, 20, alpha, random) for _ in range(2000)]
    same_distribution(boxes, [box for box in theirs if box[0] < box[1] and box[2] < box[3]])


def test_a_coin_decides_between_mixup_and_cutmix():
    images, labels = np.eye(4, dtype="float32").reshape(4, 2, 2, 1), np.eye(4, dtype="float32")
    both, first = Augmentation(mixup=0.8, cutmix=1.0), [0, 0]
    for seed in range(400):
        generator = np.random.default_rng([7, seed])
        is_cutmix = generator.random() < 0.5
        first[is_cutmix] += 1
        function, p = (cutmix, 1.0) if is_cutmix else (mixup, 0.8)
        wanted = function(images.copy(), labels, p, generator)
        for a, b in zip(mixed(images.copy(), labels, both, [7, seed]), wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    assert min(first) > 150  # five standard deviations from 200
    for one, function in ((Augmentation(mixup=0.8), mixup), (Augmentation(cutmix=0.8), cutmix)):
        wanted = function(images.copy(), labels, 0.8, np.random.default_rng([7, 1]))
        np.testing.assert_array_equal(mixed(images.copy(), labels, one, [7, 1])[1], wanted[1])


def timm_erased_box(height, width, random):
    """`_erase` of timm's `data/random_erasing.py`, read again: rows and columns, first and end."""
    for _ in range(10):
        area, aspect = random.uniform(0.02, 1 / 3) * height * width, random.uniform(np.log(0.3), -np.log(0.3))
        h, w = np.rint(np.sqrt(area * np.exp([aspect, -aspect]))).astype(int)
        if h < height and w < width:
            top, left = random.randint(0, height - h + 1), random.randint(0, width - w + 1)
            return [top, top + h, left, left + w]
    return None


@pytest.mark.parametrize("fill", ["pixel", "const"])
def test_boxes_are_erased_as_timm_erases_them(fill):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    augmentation = Augmentation(erasing=0.25, erasing_fill=fill, erasing_mean=mean, erasing_std=list(std))
    boxes, values, random = [], [], np.random.RandomState(1)
    for seed in range(3000):
        image = np.full((24, 16, 3), 7, "uint8")
        out = erased(image, augmentation, np.random.default_rng(seed))
        assert (image == 7).all()
        changed = (out != 7).any(-1)
        if changed.any():
            rows, columns = (np.flatnonzero(changed.any(axis)) for axis in (1, 0))
            assert changed.sum() == len(rows) * len(columns) and out.dtype == np.float32
            boxes.append([rows[0], rows[-1] + 1, columns[0], columns[-1] + 1])
            # What a model sees: its own mean and deviation.
            values.append((out[changed] / 255 - mean) / np.asarray(std))
    assert abs(len(boxes) / 3000 - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 3000)
    same_distribution(boxes, [box for _ in range(2000) if (box := timm_erased_box(24, 16, random))])
    values = np.concatenate(values)
    if fill == "const":
        np.testing.assert_allclose(values, 0, atol=1e-6)
    else:
        assert scipy.stats.kstest(values[::50].ravel(), "norm").pvalue > 1e-4
    np.testing.assert_array_equal(out, erased(image, augmentation, np.random.default_rng(seed)))
