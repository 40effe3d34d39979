"""RandAugment: its 16 operations are the original's bit for bit, and are drawn as the original draws them."""

import importlib
from collections import Counter

import numpy as np
import pytest

from keras_vit.data import randaugment, randaugment_operation
from keras_vit.data.randaugment import OPERATIONS, SIGNED_OPERATIONS

pytestmark = pytest.mark.once

CASES = ("randaugment", "randaugment_sizes")


def picture(height=12, width=10):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype="uint8")


def arguments(name, image):
    """What an operation needs beside the magnitude."""
    return {"center": (image.shape[0] // 2, image.shape[1] // 2)} if name == "Cutout" else {}


def references(case, name):
    """(images, results, magnitude, further arguments) for every reference of an operation."""
    for key, results in case.ref.items():
        images, _, what = key.partition("/")
        operation, _, rest = what.partition("|")
        if operation == name:
            magnitude, _, last = rest.partition("|")
            further = {"negate": last == "-"}
            if name == "Cutout":
                further = {"center": tuple(int(n) for n in last.split(","))}
            yield case.ref[f"{images}/images"], results, float(magnitude), further


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_original_bit_for_bit(case, name, golden):
    compared = 0
    for images, results, magnitude, further in references(golden(case), name):
        for image, result in zip(images, results, strict=True):
            np.testing.assert_array_equal(
                randaugment_operation(image, name, magnitude, **further), result, f"{image.shape} {magnitude} {further}"
            )
            compared += 1
    assert compared >= 2


def test_the_references_are_of_all_operations(golden):
    assert set(golden("randaugment").meta["ops"]) == set(OPERATIONS)
    assert set(golden("randaugment").meta["signed"]) == set(SIGNED_OPERATIONS)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (2, 2), (3, 3), (3, 2)])
def test_takes_images_of_any_size(name, shape):
    image = picture(*shape)
    for magnitude in (0, 0.5, np.float32(15), np.int64(30)):
        result = randaugment_operation(image, name, magnitude, **arguments(name, image))
        assert result.shape == image.shape
        assert result.dtype == "uint8"
        if name == "Sharpness" and min(shape) < 3:
            np.testing.assert_array_equal(result, image)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_result_is_a_new_array_and_the_image_stays(name):
    image = picture()
    image.flags.writeable = False
    for magnitude in (0, 5, 20):  # 5 and 20 change nothing in some operations.
        result = randaugment_operation(image, name, magnitude, **arguments(name, image))
        assert result.flags.writeable
        assert result.flags.c_contiguous
        assert not np.shares_memory(result, image)
    np.testing.assert_array_equal(image, picture())


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_memory_layout_does_not_matter(name):
    image = picture(24, 20)
    strided = image[::2, ::-1]
    expected = randaugment_operation(strided.copy(), name, 12, **arguments(name, strided))
    np.testing.assert_array_equal(randaugment_operation(strided, name, 12, **arguments(name, strided)), expected)


def test_large_images_are_computed_block_by_block():
    """Blocks of rows are a matter of speed: where they end must not show."""
    image = picture(250, 130)
    for name in ("Color", "Sharpness"):
        whole = randaugment_operation(image, name, 20)
        for start in range(0, 240, 40):
            part = randaugment_operation(image[start : start + 12], name, 20)
            np.testing.assert_array_equal(whole[start + 1 : start + 11], part[1:-1])


def test_a_rotation_turns_anticlockwise_and_negated_clockwise():
    image = np.zeros((21, 21, 3), "uint8")
    image[10, 18] = 255  # right of the centre
    turned = randaugment_operation(image, "Rotate", 30)  # by 90 degrees
    back = randaugment_operation(image, "Rotate", 30, negate=True)
    assert [tuple(np.argwhere(i[..., 0] == 255)[0]) for i in (turned, back)] == [(2, 10), (18, 10)]


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (picture().astype("float32"), TypeError, "dtype is float32"),
        (picture().astype("int64"), TypeError, "dtype is int64"),
        (picture().tolist(), TypeError, "list was given"),
        (None, TypeError, "NoneType was given"),
        (picture()[..., 0], ValueError, r"shape is \(12, 10\)"),
        (picture()[..., :1], ValueError, r"shape is \(12, 10, 1\)"),
        (np.zeros((12, 10, 4), "uint8"), ValueError, r"shape is \(12, 10, 4\)"),
        (picture()[None], ValueError, r"shape is \(1, 12, 10, 3\)"),
        (np.zeros((0, 10, 3), "uint8"), ValueError, "its shape is"),
        (np.zeros((10, 0, 3), "uint8"), ValueError, "its shape is"),
    ],
)
def test_what_is_no_image_is_refused(image, error, message):
    with pytest.raises(error, match=message):
        randaugment_operation(image, "Invert", 10)
    with pytest.raises(error, match=message):
        randaugment(image, 2, 10, np.random.default_rng(0))


@pytest.mark.parametrize("name", ["invert", "Flip", "", None, 3, ["Invert"]])
def test_an_unknown_operation_is_refused_with_all_names(name):
    with pytest.raises(ValueError, match="name must be one of") as error:
        randaugment_operation(picture(), name, 10)
    assert all(known in str(error.value) for known in OPERATIONS)


@pytest.mark.parametrize(
    ("magnitude", "error"),
    [(-1, ValueError), (30.5, ValueError), (float("nan"), ValueError), (float("inf"), ValueError)]
    + [("10", TypeError), (None, TypeError), (True, TypeError), ((10,), TypeError), (1j, TypeError)],
)
def test_a_magnitude_without_meaning_is_refused(magnitude, error):
    for name in ("Rotate", "Invert"):
        with pytest.raises(error, match="magnitude must"):
            randaugment_operation(picture(), name, magnitude)
    with pytest.raises(error, match="magnitude must"):
        randaugment(picture(), 1, magnitude, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("name", "further", "error", "message"),
    [
        ("Invert", {"negate": True}, ValueError, "Invert has no sign"),
        ("Cutout", {"center": (0, 0), "negate": True}, ValueError, "Cutout has no sign"),
        ("Rotate", {"negate": 1}, TypeError, "negate must be True or False"),
        ("Rotate", {"center": (0, 0)}, ValueError, "only Cutout"),
        ("Cutout", {}, ValueError, r"needs center=\(row, column\)"),
        ("Cutout", {"center": (12, 0)}, ValueError, "lies outside"),
        ("Cutout", {"center": (0, -1)}, ValueError, "lies outside"),
        ("Cutout", {"center": (0.5, 0)}, TypeError, "two integers"),
        ("Cutout", {"center": (True, 0)}, TypeError, "two integers"),
        ("Cutout", {"center": (1, 2, 3)}, TypeError, "two integers"),
        ("Cutout", {"center": 3}, TypeError, "two integers"),
    ],
)
def test_a_sign_or_centre_that_cannot_be_honoured_is_refused(name, further, error, message):
    with pytest.raises(error, match=message):
        randaugment_operation(picture(), name, 10, **further)


@pytest.mark.parametrize(
    ("layers", "generator", "error", "message"),
    [
        (0, np.random.default_rng(0), ValueError, "1 or more"),
        (-2, np.random.default_rng(0), ValueError, "1 or more"),
        (1.0, np.random.default_rng(0), TypeError, "layers must be an integer"),
        (True, np.random.default_rng(0), TypeError, "layers must be an integer"),
        (2, 0, TypeError, "numpy.random.Generator"),
        (2, np.random.RandomState(0), TypeError, "numpy.random.Generator"),
        (2, None, TypeError, "numpy.random.Generator"),
    ],
)
def test_wrong_layers_and_generators_are_refused(layers, generator, error, message):
    with pytest.raises(error, match=message):
        randaugment(picture(), layers, 10, generator)


def test_the_same_generator_gives_the_same_image():
    image = picture(32, 32)
    first = [randaugment(image, 2, 15, np.random.default_rng(seed)) for seed in range(8)]
    again = [randaugment(image, 2, 15, np.random.default_rng(seed)) for seed in range(8)]
    np.testing.assert_array_equal(first, again)
    assert len({i.tobytes() for i in first}) > 4
    np.testing.assert_array_equal(image, picture(32, 32))


def test_draws_operation_sign_and_centre_in_the_documented_order():
    image = picture(20, 30)
    generator = np.random.default_rng(3)
    replayed = image
    drawn = np.random.default_rng(3)
    for _ in range(40):
        name = OPERATIONS[drawn.integers(16)]
        negate = bool(drawn.integers(2)) if name in SIGNED_OPERATIONS else False
        center = (int(drawn.integers(20)), int(drawn.integers(30))) if name == "Cutout" else None
        replayed = randaugment_operation(replayed, name, 2, negate, center)
    np.testing.assert_array_equal(randaugment(image, 40, 2, generator), replayed)
    assert generator.bit_generator.state == drawn.bit_generator.state


def test_operations_signs_and_centres_have_the_original_frequencies(monkeypatch):
    calls = []

    def record(image, *call):
        calls.append(call)
        return image

    monkeypatch.setattr(importlib.import_module("keras_vit.data.randaugment"), "randaugment_operation", record)
    count = 16_000
    randaugment(picture(4, 3), count, 15, np.random.default_rng(0))
    assert len(calls) == count
    assert {call[1] for call in calls} == {15}
    # Bounds of five standard deviations of a binomial distribution: a right draw misses one once in a million times.
    names = Counter(call[0] for call in calls)
    assert set(names) == set(OPERATIONS)
    for number in names.values():
        assert abs(number - count / 16) < 5 * np.sqrt(count * 1 / 16 * 15 / 16)
    for name in OPERATIONS:
        negated = sum(call[2] for call in calls if call[0] == name)
        if name in SIGNED_OPERATIONS:
            assert abs(negated - names[name] / 2) < 5 * np.sqrt(names[name] / 4)
        else:
            assert negated == 0
    centers = Counter(call[3] for call in calls if call[0] == "Cutout")
    assert len(centers) == 12
    for number in centers.values():
        assert abs(number - names["Cutout"] / 12) < 5 * np.sqrt(names["Cutout"] * 1 / 12 * 11 / 12)
    assert {call[3] for call in calls if call[0] != "Cutout"} == {None}
