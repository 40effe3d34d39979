"""What the tests of several processes run in each of them: `python -m tests.training.in_processes FOLDER`.

Batches and test images are as many as no number of processes divides. The tests do the same in one process.
"""

import json
import os
import signal
import sys
import time

import keras
import numpy as np
from PIL import Image

from keras_vit import VisionTransformer, evaluation, training
from tests.training.distributed import VIT

STEPS, BATCH, TEST = 4, 5, 13
RNG = np.random.default_rng(0)
PIXELS = RNG.uniform(0, 255, (16, 16, 16, 3)).astype("float32")
LABELS = np.arange(16) % 8
RECIPE = training.Recipe(
    steps=STEPS,
    batch_size=BATCH,
    image_size=16,
    learning_rate=0.1,
    clip_norm=1.0,
    augmentation=training.Augmentation(crop="resize", mixup=0.2),
)


class Kill(keras.callbacks.Callback):
    """Kills process 1 in the midst of the third update."""

    def on_train_batch_begin(self, batch, logs=None):
        self.batches = getattr(self, "batches", 0) + 1
        if self.batches == 3 and training.connect().index == 1:
            time.sleep(0.2)  # the others are waiting for it
            os.kill(os.getpid(), signal.SIGKILL)


def start(folder):
    """What all of them start from: a model, and pictures."""
    keras.utils.set_random_seed(3)
    VisionTransformer(VIT.replace(classes=8)).save(os.path.join(folder, "start.keras"))
    os.mkdir(os.path.join(folder, "pictures"))
    for number, pixels in enumerate(PIXELS[:7].astype("uint8")):
        Image.fromarray(pixels).save(os.path.join(folder, "pictures", f"{number}.png"))


def tune(folder, output, **options):
    """Loss and accuracy after each update, and a sum over each weight."""
    options = {"every": 1, "verbose": False, "validation": (PIXELS[:TEST], LABELS[:TEST])} | options
    source, output = (os.path.join(folder, name) for name in ("start.keras", output))
    done = training.finetune(source, (PIXELS, LABELS), RECIPE, output=output, **options)
    return {
        "log": [[row[name] for name in ("loss", "accuracy", "val_loss", "val_accuracy")] for row in done.log],
        "weights": [float(np.abs(keras.ops.convert_to_numpy(w)).sum()) for w in done.model.trainable_weights],
    }


def embed(folder, output):
    """Features of seven pictures in one file."""
    model = keras.saving.load_model(os.path.join(folder, "start.keras"))
    pictures, output = os.path.join(folder, "pictures"), os.path.join(folder, output)
    return evaluation.embed(model, pictures, output, batch_size=2, progress=False).count


def count(folder):
    """What is counted in the images."""
    model, test = keras.saving.load_model(os.path.join(folder, "start.keras")), (PIXELS[:TEST], LABELS[:TEST])
    options = {"preprocess": True, "progress": False}
    counted = evaluation.evaluate(model, test, batch_size=4, **options)
    probed = evaluation.few_shot(model, (PIXELS, LABELS), test, shots=[1], seeds=2, batch_size=3, **options)
    return counted.loss, {"confusion": counted.confusion.tolist(), "few_shot": probed.accuracy.tolist()}


def sharded(folder):
    """How far a model is off that was saved by all processes, changed, and read again."""
    model = keras.saving.load_model(os.path.join(folder, "start.keras"))
    before = [keras.ops.convert_to_numpy(weight) for weight in model.weights]
    training.save_sharded(model, os.path.join(folder, "sharded"))
    for weight in model.trainable_weights:
        weight.assign(np.ones(weight.shape, "float32"))
    training.load_sharded(model, os.path.join(folder, "sharded"))
    after = [keras.ops.convert_to_numpy(weight) for weight in model.weights]
    return max(float(np.abs(a - b).max()) for a, b in zip(after, before, strict=True) if a.dtype == "float32")


if __name__ == "__main__":
    folder = sys.argv[1]
    index = training.connect().index
    answer = {
        "count": count(folder),
        "embedded": embed(folder, "features.npz"),
        "tuned": tune(folder, "whole"),
    }
    if keras.backend.backend() == "jax":
        with keras.distribution.DataParallel(devices=keras.distribution.list_devices()).scope():
            answer["sharded"] = sharded(folder)
    answer["tensorflow"] = "tensorflow" in sys.modules
    with open(os.path.join(folder, f"{index}.json"), "w") as file:
        json.dump(answer, file)
    tune(folder, "killed", callbacks=[Kill()])
