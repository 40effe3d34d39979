"""Every format from every backend: does it work, how far is the file from the model, how fast is it beside the model?

    python benchmarks/exports.py --jobs 2 --output docs/exports.md
    python benchmarks/exports.py --backends torch --models glyphs --formats litert onnx --precisions float32 float16

One process per backend and model exports to each format; with `--jobs N`, N of them run at once, each on its own share
of the cores. Rows of the page that are not measured again stay. `keras_vit.export` runs every file in a fresh process
of its runtime, with a batch of 1 and of 7, and compares the answers; the figures are of its report. The model's own
latency (batch 1, median; compiled on TensorFlow and JAX, eager on PyTorch) is taken in the same run, just before the
exports, so that the ratio of the two means something; the absolute figures are those of one machine on one day.
"""

import argparse
import concurrent.futures
import json
import os
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from keras_vit.export import FORMATS

BACKENDS = ("tensorflow", "jax", "torch")
DETECTOR = "OWLv2 on ViT-Ti/16, two names"
MODELS = {"glyphs": None, "ViT-Ti/16": 224, "ViT-B/16": 224, "R26+ViT-S/32": 224, DETECTOR: 224}
HEAD = """# Exports

This page compares [exported files](export/README.md) with their models: accuracy, size and speed.

CONCLUSION

`glyphs` is the small model that is installed with the package; the other models have random weights. Every file was run
by its runtime in a new process. Measured by `python benchmarks/exports.py --jobs {jobs} --output docs/exports.md` on
{cores} CPU cores; each model and file used {share} of them. The versions are those of `constraints.txt`.

- `model`: R26+ViT-S/32 is a hybrid, a ResNet before a ViT. OWLv2 is a [detector](detection.md), here with two class
  names in the file. A detector has no top class, so its column is empty.
- `backend` is the backend of the Keras model.
- `error` is the largest absolute difference between the outputs of file and model.
- `same top class` is the share of images for which file and model predict the same class.
- `size` is the size of the file, divided by the size of the model's float32 weights.
- `time` is the time of the file for one image, divided by the time of the Keras model: below 1, the file is faster. The
  Keras model is compiled on TensorFlow and JAX, and eager on PyTorch.
- `load` is the time to load the file and to run it once.
"""


def make_model(name):
    import numpy as np

    import keras_vit

    if name == "glyphs":
        return keras_vit.from_checkpoint("glyphs")
    if name == DETECTOR:
        trunk = keras_vit.create_model("ViT-Ti/16", include_top=False, pooling="none", image_size=MODELS[name])
        names = ("cat", "remote control")
        model = keras_vit.Detector(
            keras_vit.models.DetectorConfig(
                backbone=trunk.config, classes=2, class_names=names, embedding=192, objectness=True
            )
        )
    else:
        model = keras_vit.create_model(name, classifier_activation=None, image_size=MODELS[name])
    rng = np.random.default_rng(0)
    for weight in model.weights:
        fan_in = int(np.prod(weight.shape[:-1])) if weight.path.endswith("kernel") else 1
        spread = fan_in**-0.5 if weight.path.endswith("kernel") else 0.1
        middle = 1.0 if weight.path.endswith(("gamma", "scale")) else 0.0
        weight.assign(middle + rng.normal(0, spread, weight.shape))
    return model


def latency(model):
    """Milliseconds of the compiled model for one image, as a median."""
    import keras
    import numpy as np

    images = np.random.default_rng(0).uniform(-1, 1, (1, *model.config.image_size, 3)).astype("float32")
    call = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()](model, images)
    call()
    times = []
    while len(times) < 5 or sum(times) < 1 and len(times) < 200:
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return 1000 * statistics.median(times)


def _tensorflow(model, images):
    import tensorflow as tf

    function, given = tf.function(lambda x: model(x, training=False)), tf.constant(images)
    return lambda: tf.nest.map_structure(lambda answer: answer.numpy(), function(given))


def _jax(model, images):
    import jax

    weights = [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]
    function = jax.jit(lambda t, n, x: model.stateless_call(t, n, x, training=False)[0])
    return lambda: jax.block_until_ready(function(*weights, images))


def _torch(model, images):
    import torch

    given = torch.from_numpy(images)

    def call():
        with torch.no_grad():
            return model(given, training=False)

    return call


def worker(name, formats, precisions):
    """Exports one model to each format and precision under this process's backend; a JSON line per file."""
    import numpy as np

    from keras_vit.export import PRECISIONS, export

    model = make_model(name)
    weights = 4 * model.count_params()
    own = latency(model)
    calibration = np.random.default_rng(1).integers(0, 256, (32, *model.config.image_size, 3)).astype("uint8")
    for format in formats:
        for precision in precisions:
            row = {"model": name, "format": format, "precision": precision, "keras_ms": own, "weights": weights}
            wants = PRECISIONS[format].get(precision)
            if wants is not None and wants.reason:
                if len(precisions) == 1:
                    print(json.dumps({**row, "why": wants.reason}), flush=True)
                continue
            begun = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                images = {"calibration": calibration} if wants.calibration else {}
                try:
                    report = export(
                        model, f"{folder}/model{FORMATS[format].suffix}", format, precision=precision, **images
                    )
                    row |= report.to_dict() | {"path": ""}
                except Exception as error:  # that it does not work, and why, is a result
                    row["why"] = f"{type(error).__name__}: {str(error)[:300]}"
            row["seconds"] = time.perf_counter() - begun
            print(json.dumps(row), flush=True)


def measure(options):
    """Yields the rows of each model on each backend, in their order; each job has a share of the cores for itself."""
    shares, cores = queue.Queue(), sorted(os.sched_getaffinity(0))
    for i in range(options.jobs):
        shares.put(cores[i :: options.jobs])

    def run(model, backend):
        share = shares.get()
        os.sched_setaffinity(0, share)  # of this thread, and so of the process that it starts
        environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, __file__, "--worker", "--models", model, "--formats", *options.formats]
        command += ["--precisions", *options.precisions]
        result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        shares.put(share)
        if result.returncode:
            raise SystemExit(f"{model} on {backend} ended with {result.returncode}")
        rows = [{"backend": backend, **json.loads(line)} for line in result.stdout.splitlines() if line[:1] == "{"]
        for row in rows:
            print(f"{_line(row)} {row['seconds']:.0f} s in all", file=sys.stderr, flush=True)
        return rows

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        pairs = [(model, backend) for model in options.models for backend in options.backends]
        yield from pool.map(run, *zip(*pairs, strict=True))


def _line(row):
    name = f"| {row['model']} | {row['backend']} | {row['format']} | {row['precision']} |"
    if "why" in row:
        return f"{name} does not work: {row['why']} | | | | |"
    agreement = "" if row["top1_agreement"] is None else f"{100 * row['top1_agreement']:.0f} %"
    return (
        f"{name} {row['max_abs_error']:.1e} | {agreement} | {row['bytes'] / row['weights']:.3f} | "
        f"{row['latency_ms'] / row['keras_ms']:.2g} | {row['load_seconds']:.2f} s |"
    )


def table(rows, page=""):
    """A Markdown table of the rows, with those of the page for what was not measured again."""

    def key(line):
        return tuple(cell.strip() for cell in line.split("|")[1:5])

    old = [line for line in page.partition("\n## ")[0].splitlines() if line.startswith("| ") and key(line)[0] in MODELS]
    lines = {key(line): line for line in old} | {key(line): line for line in map(_line, rows)}
    order = sorted(lines, key=lambda k: (list(MODELS).index(k[0]), BACKENDS.index(k[1]), list(FORMATS).index(k[2])))
    head = "| model | backend | format | precision | error | same top class | size | time | load |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|---|", *(lines[k] for k in order)]) + "\n"


def conclusion(table):
    """Returns what the rows of a table of float32 files say."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    rows = [row for row in rows if len(row) == 9 and row[3] == "float32"]
    same = min((float(row[5].removesuffix("%")) for row in rows if row[5]), default=100.0)
    times = {name: statistics.median(float(row[7]) for row in rows if row[2] == name) for _, _, name, *_ in rows}
    fastest = ", ".join(f"{name} {times[name]:.2g}" for name in sorted(times, key=times.get))
    return (
        f"In float32, all {len(rows)} files return the outputs of the model: the largest error is "
        f"{max(float(row[4]) for row in rows):.1e}, and\nthe top class is the same for {same:g} % of the images. "
        f"Medians of the time, relative to the Keras model:\n{fastest}.\nSmaller precisions are "
        "[below](#int8-for-litert)."
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--precisions", nargs="+", default=["float32"])
    parser.add_argument("--output", help="a Markdown file; what is in it up to its first section is replaced")
    parser.add_argument("--json", help="a file for the raw figures")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time, each on its share of the cores")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.models[0], options.formats, options.precisions)
        return
    old = Path(options.output).read_text("utf-8") if options.output and os.path.exists(options.output) else ""
    count = os.cpu_count()
    is_whole = {*MODELS, *BACKENDS, *FORMATS} == {*options.models, *options.backends, *options.formats}
    head = HEAD.format(cores=count, jobs=options.jobs, share=count // options.jobs) + "\n"
    head = head if is_whole or not old else old.partition("| model |")[0]
    _, heading, notes = old.partition("\n## ")  # sections that were written by hand stay
    rows = []
    for measured in measure(options):  # what is measured is written at once: a later model may fail
        rows += measured
        found = table(rows, old)
        beginning = re.sub(r"CONCLUSION|^In float32, .*?\.(?=\n\n)", conclusion(found), head, flags=re.M | re.S)
        text = beginning + found
        if options.json:
            Path(options.json).write_text(json.dumps(rows, indent=1), "utf-8")
        if options.output:
            Path(options.output).write_text(text + heading + notes, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
