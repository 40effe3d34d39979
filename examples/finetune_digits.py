"""The small checkpoint learns to read handwritten digits, twice, and a model of the same size does so from scratch.

    python examples/finetune_digits.py

Prints the test accuracy of all three and how long each took; the two runs with one seed must end alike.
"""

import argparse
import time

from keras_vit import VisionTransformer, from_checkpoint, training  # before Keras: it chooses the installed backend
from keras_vit.data import Digits, load_digits
import keras
import numpy as np

RECIPE = training.recipe("finetune/cifar10").replace(
    batch_size=32,
    learning_rate=0.03,
    image_size=32,
    augmentation=training.Augmentation(crop="resize", flip=False),  # mirrored digits are not digits
)


def run(name, model, train, test, steps):
    started = time.perf_counter()
    data = {"train": (train.pixels, train.labels), "test": (test.pixels, test.labels)}
    done = training.finetune(model, data, RECIPE, steps=steps, every=max(1, steps // 4))
    print(f"{name:24} {done.accuracy:.1%} of {len(test.labels)} digits, {time.perf_counter() - started:.0f} s")
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="updates of the weights (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few steps, only to see that it runs")
    options = parser.parse_args()
    train, test = load_digits()
    steps = 2 if options.quick else options.steps
    if options.quick:
        train, test = (Digits(part.pixels[:n], part.labels[:n]) for part, n in ((train, 64), (test, 20)))
    first = run("from the checkpoint", "glyphs", train, test, steps)
    again = run("the same again", "glyphs", train, test, steps)
    keras.utils.set_random_seed(0)
    config = from_checkpoint("glyphs", image_size=32, classes=10).config
    run("from scratch", VisionTransformer(config), train, test, steps)
    pairs = zip(first.model.weights, again.model.weights, strict=True)
    difference = max(float(np.max(np.abs(keras.ops.convert_to_numpy(a - b)))) for a, b in pairs)
    print(f"largest difference between the weights of the first two: {difference:g}")


if __name__ == "__main__":
    main()
