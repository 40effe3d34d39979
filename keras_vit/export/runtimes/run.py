"""Runs an exported file in a process of its own, without Keras, and measures it.

    python run.py RUNTIME FILE IMAGES.npy [IMAGES.npy ...] [--batch N] [--answers FOLDER] [--latency]

RUNTIME is the name of a module beside this script: litert, onnx_runtime, openvino_runtime, saved_model, stablehlo or
torch_program. Each IMAGES.npy holds a batch as the file takes it, `(n, height, width, channels)` float32 or uint8.
Without `--batch` the file is run with a batch of 1, then one of 7, then such of 32; with it, with N images at a time.
What is measured is printed as JSON; with `--answers`, the answers to `x.npy` are written to `FOLDER/x.npy`.
"""

import argparse
import importlib
import json
import os
import statistics
import sys
import time

import numpy as np

SIZES = (1, 7, 32)  # of the batches, where any is taken; the last one repeats


def main(arguments=None) -> None:
    """The command line that the module's docstring shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runtime")
    parser.add_argument("file")
    parser.add_argument("images", nargs="+")
    parser.add_argument("--batch", type=int, help="the batch that the file is for; without, it takes any")
    parser.add_argument("--answers", help="folder for the answers")
    parser.add_argument("--latency", action="store_true", help="measure the median time of an answer as well")
    options = parser.parse_args(arguments)
    sizes = (options.batch,) if options.batch else SIZES

    runtime = importlib.import_module(options.runtime)
    batches = [np.load(name, allow_pickle=False) for name in options.images]
    first = padded(batches[0][: sizes[0]], sizes[0])
    for package in runtime.PACKAGES:  # beforehand, so that loading the file is all that is measured
        importlib.import_module(package)
    before = peak_memory()
    started = time.perf_counter()
    answers = runtime.load(options.file)
    answers(first)
    measured = {"load_seconds": time.perf_counter() - started}
    if options.latency:
        measured["latency_ms"] = 1000 * latency(answers, first)
    measured["peak_memory_bytes"] = None if before is None else peak_memory() - before
    for name, images in zip(options.images, batches, strict=True):
        result = in_batches(answers, images, sizes)
        if options.answers:
            np.save(os.path.join(options.answers, os.path.basename(name)), result)
    print(json.dumps(measured))


def in_batches(answers, images, sizes):
    """The answers to any number of images, computed in batches of the given sizes, the last of which repeats."""
    results, start, turn = [], 0, 0
    while start < len(images):
        size = sizes[min(turn, len(sizes) - 1)]
        part = images[start : start + size]
        results.append(np.array(answers(padded(part, size)))[: len(part)])
        start, turn = start + size, turn + 1
    return np.concatenate(results).astype("float32")


def padded(images, size):
    """As many images as a batch has: the given ones, then the last of them again."""
    missing = size - len(images)
    return np.concatenate([images, np.repeat(images[-1:], missing, axis=0)]) if missing else images


def latency(answers, images, seconds=1.0, least=5, most=50):
    """Median time of one answer in seconds."""
    times = []
    until = time.perf_counter() + seconds
    while len(times) < least or (len(times) < most and time.perf_counter() < until):
        started = time.perf_counter()
        answers(images)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def peak_memory():
    """The most memory that this process has had so far, in bytes; None where the system does not tell."""
    try:
        # Not `getrusage`, if it can be helped: on Linux a new process starts with the figure of the one that made it.
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
