"""RandAugment: its 16 operations are the original's bit for bit, and are drawn as the original draws them."""

import numpy as np
import pytest

from keras_vit.data import randaugment, randaugment_operation
from keras_vit.data.random_operations import OPERATIONS, SIGNED_OPERATIONS

pytestmark = pytest.mark.once


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
@pytest.mark.parametrize("case", ["randaugment", "randaugment_sizes"])
def test_equals_the_original_bit_for_bit(case, name, golden):
    compared = 0
    for images, results, magnitude, further in references(golden(case), name):
        for image, result in zip(images, results, strict=True):
            np.testing.assert_array_equal(
                randaugment_operation(image, name, magnitude, **further), result, f"{image.shape} {magnitude} {further}"
            )
            compared += 1
    assert compared >= 2


@pytest.mark.parametrize("name", OPERATIONS)
def test_any_image_gives_a_new_one(name):
    for shape in [(1, 1), (1, 7), (7, 1), (2, 2), (3, 3), (3, 2), (12, 10)]:
        image = picture(*shape)
        image.flags.writeable = False
        for magnitude in (0, 0.5, 5, np.float32(15), 20, np.int64(30)):  # 5 and 20 change nothing in some operations.
            result = randaugment_operation(image, name, magnitude, **arguments(name, image))
            assert result.shape == image.shape and result.dtype == "uint8"
            assert result.flags.writeable and result.flags.c_contiguous and not np.shares_memory(result, image)
            if name == "Sharpness" and min(shape) < 3:
                np.testing.assert_array_equal(result, image)
        np.testing.assert_array_equal(image, picture(*shape))
    strided = picture(24, 20)[::2, ::-1]
    expected = randaugment_operation(strided.copy(), name, 12, **arguments(name, strided))
    np.testing.assert_array_equal(randaugment_operation(strided, name, 12, **arguments(name, strided)), expected)


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
