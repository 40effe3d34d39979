"""Several processes on this machine: the losses of one, an end when one is killed, every image counted once.

    KERAS_BACKEND=torch python benchmarks/processes.py curves 1      (and 2, 4; --dropout 0.1 --batch 32)
    KERAS_BACKEND=torch python benchmarks/processes.py kill 7        (7: decides who is killed, and at which update)
    KERAS_BACKEND=torch python benchmarks/processes.py count 4       (and 1)
    KERAS_BACKEND=torch python benchmarks/processes.py time 2        (and 1; on Linux, with nothing else running)

prints a line of JSON each. The shipped checkpoint is fine-tuned on handwritten digits (scikit-learn), as in the demo,
for 40 updates with mixup; `time` trains a Ti/16 on noise, with a core for each
process. docs/distribution.md has the table.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

from keras_vit import VisionTransformer, evaluation, training
from keras_vit._files import weights_folder
from keras_vit.cli.launch import launch
from keras_vit.demo.digits import load_digits
from keras_vit.models import variant_config

STEPS, EVERY, COUNTED = 40, 4, 1003
WARM_UP, TIMED = 5, 20


def recipe(dropout=0.0, batch_size=30):
    augmentation = training.Augmentation(crop="random", flip=False, mixup=0.2)
    changes = {"batch_size": batch_size, "learning_rate": 0.01, "image_size": 24, "warmup_steps": 4, "dropout": dropout}
    return training.recipe("finetune/cifar10").replace(steps=STEPS, augmentation=augmentation, **changes)


def digits():
    train, test = load_digits()
    return (train.pixels, train.labels), (test.pixels[:100], test.labels[:100])


def digest(arrays):
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:16]


class Clock(keras.callbacks.Callback):
    """When each update ended."""

    def __init__(self):
        super().__init__()
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())


class Kill(keras.callbacks.Callback):
    """Kills a process before an update."""

    def __init__(self, index, step):
        super().__init__()
        self.index, self.step, self.seen = index, step, 0

    def on_train_batch_begin(self, batch, logs=None):
        self.seen += 1
        if self.seen == self.step and training.connect().index == self.index:
            Path(os.environ["KILLED"]).write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)


def tune(output=None, dropout=0.0, callbacks=(), every=EVERY, batch_size=30):
    train, test = digits()
    options = {"validation": test, "output": output, "every": every, "callbacks": callbacks, "verbose": False}
    done = training.finetune(weights_folder() / "glyphs.npz", train, recipe(dropout, batch_size), **options)
    return done.log, [keras.ops.convert_to_numpy(weight) for weight in done.model.trainable_weights]


def curves(dropout, batch_size):
    processes = training.connect()
    hashes = []
    options = {
        "image_size": 24,
        "batch_size": batch_size,
        "augmentation": recipe().augmentation,
        "shard": processes.shard,
    }
    with training.open_data(digits()[0], **options) as stream:
        for step in range(STEPS):
            hashes.append(digest(np.concatenate(processes.gather(array)) for array in stream.batch(step)))
    started = time.perf_counter()
    log, weights = tune(dropout=dropout, every=1, batch_size=batch_size)
    seconds = time.perf_counter() - started
    names = ("loss", "val_loss", "val_accuracy")
    return {"batches": hashes, "seconds": seconds, **{name: [row[name] for row in log] for name in names}}


def count():
    train, test = load_digits()
    data = [np.concatenate([a, b])[:COUNTED] for a, b in ((train.pixels, test.pixels), (train.labels, test.labels))]
    from keras_vit import from_checkpoint

    training.connect()
    model = from_checkpoint(weights_folder() / "glyphs.npz", classes=10)
    model.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(model.config.width, 10)))
    options = {"preprocess": True, "progress": False}
    result = evaluation.evaluate(model, tuple(data), **options)
    probe = evaluation.few_shot(model, tuple(data), tuple(data), shots=[5], **options)
    counts = digest([result.confusion, result.images_per_class])
    return {"images": result.examples, "counts": counts, "loss": result.loss, "few_shot": probe.accuracy.tolist()}


def timed(folder):
    """The median time of an update, once all is compiled."""
    processes, clock = training.connect(), Clock()
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (256, 160, 160, 3), dtype="uint8"), np.arange(256) % 10
    still = training.Augmentation(crop="resize", flip=False)
    plain = recipe().replace(steps=WARM_UP + TIMED, batch_size=16, image_size=160, augmentation=still)
    options = {"every": WARM_UP + TIMED, "callbacks": [clock], "verbose": False}
    training.finetune(os.path.join(folder, "start.keras"), data, plain, **options)
    return {"processes": processes.count, "seconds": float(np.median(np.diff(clock.ends)[WARM_UP:]))}


def time_of(number):
    """`timed` in processes of which each has one core to itself."""
    with tempfile.TemporaryDirectory() as folder:
        VisionTransformer(variant_config("ViT-Ti/16").replace(image_size=160, classes=10)).save(f"{folder}/start.keras")
        on_a_core = ["sh", "-c", 'exec taskset -c "$RANK" "$@"', "sh"]
        return in_processes(number, "time", folder, before=on_a_core, OMP_NUM_THREADS="1")


def in_processes(number, *arguments, before=(), **environment):
    """The answer of process 0, the seconds that it took, and the reason of a failure."""
    with tempfile.TemporaryDirectory() as folder:
        answer = os.path.join(folder, "answer.json")
        os.environ.update({"ANSWER": answer, **environment})
        codes, reason = launch([*before, sys.executable, __file__, "job", *map(str, arguments)], number)
        ended = time.time()
        return json.loads(Path(answer).read_text()) if os.path.exists(answer) else None, ended, codes, reason


def kill(seed):
    """A run of two processes, one of which is killed; it is resumed in two, and in one, and compared to a whole one."""
    rng = np.random.default_rng(seed)
    index, step = int(rng.integers(2)), int(rng.integers(2, STEPS))
    with tempfile.TemporaryDirectory() as folder:
        marker = os.path.join(folder, "killed")
        whole = in_processes(2, "tune", os.path.join(folder, "whole"))[0]
        _, ended, codes, reason = in_processes(2, "tune", os.path.join(folder, "two"), index, step, KILLED=marker)
        shutil.copytree(os.path.join(folder, "two"), os.path.join(folder, "one"))
        two = in_processes(2, "tune", os.path.join(folder, "two"))[0]
        one = in_processes(1, "tune", os.path.join(folder, "one"))[0]
        seconds = ended - float(Path(marker).read_text())
    worst = max(float(np.abs(np.subtract(a, b)).max()) for a, b in zip(one["weights"], whole["weights"], strict=True))
    return {
        "killed": index,
        "before_update": step,
        "exit_codes": codes,
        "seconds_to_the_end": round(seconds, 1),
        "message": reason.splitlines()[0],
        "two_bit_by_bit": two["digest"] == whole["digest"],
        "one_largest_difference": worst,
    }


def job(name, *arguments):
    if name == "tune":
        output, *victim = arguments
        log, weights = tune(output, dropout=0.1, callbacks=[Kill(*map(int, victim))] if victim else [])
        answer = {"digest": digest(weights), "weights": [weight.tolist() for weight in weights]}
    else:
        jobs = {
            "curves": lambda: curves(float(arguments[0]), int(arguments[1])),
            "count": count,
            "time": lambda: timed(arguments[0]),
        }
        answer = jobs[name]()
    if training.connect().first:
        Path(os.environ["ANSWER"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    if sys.argv[1] == "job":
        job(*sys.argv[2:])
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("what", choices=("curves", "kill", "count", "time"))
        parser.add_argument("number", type=int, help="processes, or the seed of who is killed")
        parser.add_argument("--dropout", type=float, default=0.0)
        parser.add_argument("--batch", type=int, default=30)
        options = parser.parse_args()
        if options.what == "kill":
            print(json.dumps(kill(options.number)))
        else:
            if options.what == "time":
                found, _, codes, reason = time_of(options.number)
            else:
                found, _, codes, reason = in_processes(options.number, options.what, options.dropout, options.batch)
            print(json.dumps(found) if found else reason)
            sys.exit(any(codes))
