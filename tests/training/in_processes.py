"""What each of several processes runs: `python -m tests.training.in_processes labels|others|split FOLDER`.

Batches and test images are as many as no number of processes divides. The tests do the same in one process.
"""

import json
import os
import signal
import sys
import time
import traceback

import keras
import numpy as np
from PIL import Image

from examples.scenes import make_scenes
from keras_vit import VisionTransformer, data, evaluation, training
from tests.training.distributed import BATCH, CONFIGS, IMAGES, LABELS, STEPS, compiled, curve, shares

RNG = np.random.default_rng(0)
PIXELS, CLASSES = RNG.uniform(0, 255, (16, 16, 16, 3)).astype("float32"), np.arange(16) % 8
TEST = (PIXELS[:13], CLASSES[:13])
RECIPE = training.Recipe(
    steps=4,
    batch_size=5,
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
    keras.utils.set_random_seed(3)
    VisionTransformer(CONFIGS["vit"].replace(classes=8, dropout=0.0)).save(os.path.join(folder, "start.keras"))
    os.mkdir(os.path.join(folder, "pictures"))
    for number, pixels in enumerate(PIXELS[:7].astype("uint8")):
        Image.fromarray(pixels).save(os.path.join(folder, "pictures", f"{number}.png"))


def opened(folder):
    return keras.saving.load_model(os.path.join(folder, "start.keras"))


def tune(folder, output, **options):
    options = {"every": 1, "verbose": False, "validation": TEST} | options
    source, output = (os.path.join(folder, name) for name in ("start.keras", output))
    done = training.finetune(source, (PIXELS, CLASSES), RECIPE, output=output, **options)
    return {
        "log": [[row[name] for name in ("loss", "accuracy", "val_loss", "val_accuracy")] for row in done.log],
        "weights": [float(np.abs(keras.ops.convert_to_numpy(w)).sum()) for w in done.model.trainable_weights],
    }


def tune_dense(folder, images, recipe, **options):
    keras.utils.set_random_seed(3)  # of the new weights
    options = {"batch_size": 4, "image_size": 16, "learning_rate": 1e-3, "every": 1, "verbose": False} | options
    source = os.path.join(folder, "start.keras")
    done = training.train(source, images, recipe, steps=3, warmup_steps=0, **options)
    # The gradients of biases of keys are 0, except for rounding, which Adam enlarges to whole steps.
    kept = [weight for weight in done.model.weights if not weight.path.endswith("key/bias")]
    weights = [float(np.abs(keras.ops.convert_to_numpy(w)).sum()) for w in kept]
    losses = [row["loss"] for row in done.log]
    return {"losses": losses, "mean_iou": done.mean_iou, "ap": done.ap, "weights": weights}


def tune_masks(folder, output=None):
    """The same of a linear head for masks, whose batch normalisation sees the whole batch."""
    options = {"learning_rate": 0.01, "validation": make_scenes(3, 16, 1), "output": output}
    return tune_dense(folder, make_scenes(9, 16), "segmentation/dinov2_linear", **options)


def tune_segments(folder):
    """The same of an EoMT, of which the processes have other numbers of segments; batches have to be divisible."""
    masks = np.random.default_rng(1).random((8, 6, 16, 16)) < 0.3
    targets = [{"masks": m[: 1 + i % 6], "labels": np.arange(1 + i % 6) % 3} for i, m in enumerate(masks)]
    pictures, options = list(PIXELS[:8].astype("uint8")), {"backbone_warmup_steps": 0, "queries": 5, "points": 32}
    return tune_dense(folder, (pictures, targets), "segmentation/eomt_coco_panoptic_base", **options)


def tune_boxes(folder):
    """The same of a detector, of which the processes have other numbers of boxes; AP is that of all pictures."""
    boxes = np.random.default_rng(1).integers(0, 8, (11, 6, 4)) + [0, 0, 8, 8]
    targets = [{"boxes": b[: i % 6], "labels": np.arange(i % 6) % 3} for i, b in enumerate(boxes)]
    pictures = list(PIXELS[:11].astype("uint8"))
    tests = data.open_boxes((pictures[8:], targets[8:]), classes=3)
    options = {"drop_path": 0.0, "validation": tests}
    return tune_dense(folder, (pictures[:8], targets[:8]), "detection/owl_finetune", **options)


def embed(folder, output):
    pictures, output = os.path.join(folder, "pictures"), os.path.join(folder, output)
    return evaluation.embed(opened(folder), pictures, output, batch_size=2, progress=False).count


def count(folder):
    options = {"preprocess": True, "progress": False}
    counted = evaluation.evaluate(opened(folder), TEST, batch_size=4, **options)
    probed = evaluation.few_shot(opened(folder), (PIXELS, CLASSES), TEST, shots=[1], seeds=2, batch_size=3, **options)
    return counted.loss, {"confusion": counted.confusion.tolist(), "few_shot": probed.accuracy.tolist()}


def sharded(folder):
    """How far a model is off that was saved by all processes, changed, and read again."""
    with training.data_parallel().scope():
        model = opened(folder)
        before = [keras.ops.convert_to_numpy(weight) for weight in model.weights]
        training.save_sharded(model, os.path.join(folder, "sharded"))
        for weight in model.trainable_weights:
            weight.assign(np.ones(weight.shape, "float32"))
        training.load_sharded(model, os.path.join(folder, "sharded"))
        after = [keras.ops.convert_to_numpy(weight) for weight in model.weights]
    return max(float(np.abs(a - b).max()) for a, b in zip(after, before, strict=True) if a.dtype == "float32")


def split(part):
    """JAX: a model that is split over the two devices of each process, which gives its part of each batch."""
    with training.model_parallel(CONFIGS["vit"], 2, auto_shard_dataset=False).scope():
        model = compiled(CONFIGS["vit"])
        return {"loss": curve(model, part), "devices": len(keras.distribution.list_devices()), **shares(model)}


# torch 2.13 may hang when the last who holds a gloo group is freed: its thread waits for Python's lock, and the freeing
# waits for the thread. So nothing is freed, and the process ends without tidying up.
KEPT = []


def wrapped(part):
    """torch: DistributedDataParallel around the model in a loop of one's own, and gradients averaged within `fit`."""
    import torch

    def mean(value):
        torch.distributed.all_reduce(value)
        return value.div_(2)

    def average(parameter):
        mean(parameter.grad)

    config = CONFIGS["vit"].replace(dropout=0.0)
    model, losses = compiled(config), []
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    KEPT.append(ddp)
    optimizer, weights = model.optimizer, model.trainable_variables
    optimizer.build(weights)
    for _ in range(STEPS):
        logits = ddp(torch.from_numpy(IMAGES[part]), training=True)
        loss = model.loss(torch.from_numpy(LABELS[part]), logits)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            optimizer.apply([weight.value.grad for weight in weights], weights)
        losses.append(float(mean(loss.detach())))
    model = compiled(config)
    for weight in model.trainable_variables:
        weight.value.register_post_accumulate_grad_hook(average)
    return {"loop": losses, "fit": [float(mean(torch.tensor(loss))) for loss in curve(model, part)]}


def labels(folder, index, part):
    """What is counted and trained with labels; process 1 is killed in a second run."""
    answer = {"count": count(folder), "tuned": tune(folder, "whole")}
    write(folder, index, answer | {"tensorflow": "tensorflow" in sys.modules})
    try:
        tune(folder, "killed", callbacks=[Kill()])
    except ConnectionError:
        traceback.print_exc()
        os._exit(1)


def others(folder, index, part):
    """Features, masks and, by backend, what else is done by several processes."""
    embed(folder, "features.npz")
    answer = {"masks": tune_masks(folder, os.path.join(folder, "masks"))}
    if keras.backend.backend() == "jax":
        answer["sharded"] = sharded(folder)
    else:
        answer |= {"wrapped": wrapped(part), "segments": tune_segments(folder), "boxes": tune_boxes(folder)}
    write(folder, index, answer)


def write(folder, index, answer):
    with open(os.path.join(folder, f"{index}.json"), "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    job, processes = sys.argv[1], training.connect()
    part = slice(processes.index * BATCH // 2, (processes.index + 1) * BATCH // 2)
    if job == "split":
        print("\n" + json.dumps(split(part)))
    else:
        {"labels": labels, "others": others}[job](sys.argv[2], processes.index, part)
