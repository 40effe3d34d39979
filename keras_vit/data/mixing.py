"""RandAugment and mixup with Keras's own layers, on any backend, as functions of a seed.

The layers do the arithmetic. What is random comes from numbers that are given anew for every image or batch, so that a
run that resumes sees the same pictures.
"""

from collections.abc import Callable

import keras
import numpy as np

from keras_vit.data.augmentation import MAX_MAGNITUDE

GREY = 128.0  # what AugReg's code fills uncovered pixels with


# The operations of keras.layers.RandAugment, by its attributes.
OPERATIONS = (
    "random_shear",
    "random_translation",
    "random_rotation",
    "random_brightness",
    "random_color_degeneration",
    "random_contrast",
    "random_sharpness",
    "random_posterization",
    "solarization",
    "auto_contrast",
    "equalization",
)


class ImageRandAugment:
    """`keras.layers.RandAugment` for one image at a time, each with its own operations and a seed of its own.

    A call of Keras's layer picks one sequence of operations for the whole batch, and computes all eleven operations to
    keep one. (On torch it also adds its brightness in place, to pictures that shall keep theirs.) Here every image
    has operations of its own, as AugReg has it, and only those are drawn and computed, with the layer's own parts.

    AugReg (big_vision, `pp/archive/autoaugment.py`, `distort_image_with_randaugment`) counts magnitudes `m` up to 30
    and scales each operation by `m / 10`. Rotation, shear, translation and posterisation have its strengths here, with
    uncovered pixels grey (128). The other operations know one strength from 0 to 1, which is `m / 30`. What differs
    from the original: it has 16 operations (also inversion, cutout, and an addition apart from solarisation; shear
    and translation of the two axes apart) of fixed magnitude, some with a random sign; Keras has 11 and draws
    magnitudes uniformly up to the strength. Keras's colour operation pales, where the original's saturates.

    Args:
        layers: How many operations follow each other.
        magnitude: 0 to 30.
        image_size: `(height, width)` in pixels; the original translates by pixels, Keras by shares of the size.
    """

    def __init__(self, layers: int, magnitude: int, image_size: tuple[int, int]):
        with keras.device("cpu"):  # Its random state lies where it is used.
            self.layer = keras.layers.RandAugment(
                value_range=(0, 255),
                num_ops=layers,
                factor=magnitude / MAX_MAGNITUDE,
                seed=0,
                data_format="channels_last",
                dtype="float32",
            )
            for name, operation in _augreg_strengths(magnitude, image_size).items():
                setattr(self.layer, name, operation)

    def __call__(self, image: np.ndarray, seed: np.random.SeedSequence) -> np.ndarray:
        """Change one image.

        Args:
            image: float32 `(height, width, 3)` in 0..255.
            seed: The same seed gives the same image.

        Returns:
            float32 of the same shape in 0..255.
        """
        with keras.device("cpu"):  # Many small operations: not worth an accelerator that is busy training.
            set_seed(self.layer.generator, seed)
            images = keras.ops.convert_to_tensor(image[None].copy(), dtype="float32")  # RandomBrightness: in place.
            for index in np.random.default_rng(seed).integers(len(OPERATIONS), size=self.layer.num_ops):
                operation = getattr(self.layer, OPERATIONS[index])
                drawn = operation.get_random_transformation(images, training=True, seed=self.layer.generator)
                images = operation.transform_images(images, drawn)
            # Keras interpolates and sharpens without looking at the range.
            return np.clip(keras.ops.convert_to_numpy(images)[0], 0.0, 255.0)


def set_seed(generator: keras.random.SeedGenerator, seed: np.random.SeedSequence) -> None:
    """Put a layer's random generator into the state that belongs to a seed, without building or compiling anew."""
    numbers = seed.generate_state(2) >> 1  # 31 bits: some backends keep the state in int32.
    generator.state.assign(numbers.astype(keras.backend.standardize_dtype(generator.state.dtype)))


def mixup(
    images: np.ndarray, labels: np.ndarray, p: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Mix every image, and its label, with the one before it in the batch (arXiv 1710.09412, as AugReg uses it).

    One weight `a` for the whole batch, drawn from Beta(p, p) and made the larger of `a` and `1 - a`: big_vision's
    `utils.get_mixup`. `keras.layers.MixUp` by itself draws a weight for every image, of any size, and pairs at random;
    it does the mixing here, with the original's weight and pairs. (vit_jax's own `mixup_alpha`, which no published
    recipe sets, pairs with the reversed batch.)

    Args:
        images: float32 `(batch, height, width, 3)`.
        labels: float32 `(batch, classes)`: one-hot, or the like. Integer labels cannot be mixed.
        p: Of Beta(p, p), above 0.
        generator: Where the weight comes from.

    Returns:
        Images and labels of the same shapes, float32.
    """
    weight = generator.beta(p, p)
    drawn = {
        "mix_weight": np.array([max(weight, 1 - weight)], dtype="float32"),
        "permutation_order": np.roll(np.arange(len(images)), 1),
    }
    with keras.device("cpu"):
        layer = keras.layers.MixUp(alpha=p, data_format="channels_last", dtype="float32")
        drawn = {name: keras.ops.convert_to_tensor(value) for name, value in drawn.items()}
        mixed = (
            layer.transform_images(keras.ops.convert_to_tensor(images), drawn),
            layer.transform_labels(keras.ops.convert_to_tensor(labels), drawn),
        )
        return keras.ops.convert_to_numpy(mixed[0]), keras.ops.convert_to_numpy(mixed[1])


def keras_cv_randaugment(layers: int, magnitude: int) -> Callable[[np.ndarray], np.ndarray]:
    """`keras_cv.layers.RandAugment` with the same settings, for whole batches, as a TensorFlow graph on any backend.

    Several times faster than Keras's. Every image has operations of its own. Its ten operations are not quite Keras's:
    it has no rotation, sharpening or posterisation. It keeps random states in many places, some without a seed: a
    batch does not repeat bit for bit.

    Args:
        layers: How many operations follow each other.
        magnitude: 0 to 30, as AugReg counts; KerasCV's is `magnitude / 30`.

    Returns:
        A function from float32 images `(batch, height, width, 3)` in 0..255 to the same.

    Raises:
        ImportError: if KerasCV is not installed.
    """
    try:
        import keras_cv
        import tensorflow as tf
    except ImportError as error:
        raise ImportError('KerasCV is not installed: pip install "keras-vit[keras-cv]".') from error
    layer = keras_cv.layers.RandAugment(
        value_range=(0, 255),
        augmentations_per_image=layers,
        magnitude=magnitude / MAX_MAGNITUDE,
        magnitude_stddev=0.0,  # AugReg's magnitude is one number,
        rate=1.0,  # and every operation is applied.
    )
    graph = tf.function(lambda images: tf.clip_by_value(layer(images), 0.0, 255.0))

    def randaugment(images: np.ndarray) -> np.ndarray:
        with tf.device("cpu"):
            return graph(tf.constant(images, "float32")).numpy()

    return randaugment


def _augreg_strengths(magnitude: int, image_size: tuple[int, int]) -> dict[str, keras.layers.Layer]:
    """The operations whose strength Keras's RandAugment would set otherwise, by the layer's names for them."""
    level = magnitude / 10  # The original divides by _MAX_LEVEL = 10, whatever the magnitude.
    shared = {"data_format": "channels_last", "dtype": "float32"}
    fill = {"fill_mode": "constant", "fill_value": GREY, **shared}
    height, width = (min(1.0, 100 * level / side) for side in image_size)
    bits = min(8, max(1, int(4 * level)))
    return {
        "random_shear": keras.layers.RandomShear(min(1.0, 0.3 * level), min(1.0, 0.3 * level), **fill),
        "random_translation": keras.layers.RandomTranslation(height, width, **fill),
        "random_rotation": keras.layers.RandomRotation(30 * level / 360, **fill),
        # A pair of equal numbers, or Keras draws from 1 up. Beyond 8 bits nothing is cut off. At magnitude 0 the
        # original keeps no bit: black pictures.
        "random_posterization": keras.layers.RandomPosterization((bits, bits), value_range=(0, 255), **shared),
    }
