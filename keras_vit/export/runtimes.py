"""Loads an exported file in its own runtime, without Keras and this package, runs it and measures it.

    python runtimes.py FORMAT FILE IMAGES.npy [IMAGES.npy ...] [--batch N] [--answers FOLDER] [--latency]

Each IMAGES.npy holds a batch as the file takes it, `(n, height, width, channels)` float32 or uint8. Without `--batch`
the file is run with a batch of 1, then one of 7, then such of 32; with it, with N images at a time. What is measured is
printed as JSON; with `--answers`, the answers to `x.npy` are written to `FOLDER/x.npz`, by their names.

The functions of `RUNTIMES` can be copied into a program that ships the file: each takes a path and gives a function
from a batch of images to the answers by name, and needs NumPy and the runtime.
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


def litert(path):
    """LiteRT (TensorFlow Lite): `pip install ai-edge-litert`."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    (input_,) = interpreter.get_input_details()
    outputs = interpreter.get_signature_runner().get_output_details()
    state = {"shape": None}

    def run(images):
        if state["shape"] != images.shape:
            # A file for any batch is stored for a batch of 1 and is resized to the one that comes.
            interpreter.resize_tensor_input(input_["index"], images.shape, strict=True)
            interpreter.allocate_tensors()
            state["shape"] = images.shape
        interpreter.set_tensor(input_["index"], images)
        interpreter.invoke()
        return {name: interpreter.get_tensor(output["index"]) for name, output in outputs.items()}

    return run


def onnx(path):
    """ONNX Runtime: `pip install onnxruntime`."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda images: dict(zip(names, session.run(names, {"images": images}), strict=True))


def openvino(path):
    """OpenVINO: `pip install openvino`. The `.bin` file lies beside the `.xml` file."""
    # OpenVINO reports to its makers, from a forked process, where this package can be imported; it does without.
    sys.modules.setdefault("openvino_telemetry", None)  # ty: ignore[no-matching-overload]
    import openvino

    # Without the hint, processors that have bfloat16 units compute in bfloat16: faster, with errors of 5e-2.
    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(images):
        answers = compiled(images)
        return {output.get_any_name(): np.asarray(answers[output]) for output in compiled.outputs}

    return run


def saved_model(path):
    """TensorFlow's SavedModel: `pip install tensorflow`."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))

    def run(images):
        # `loaded` is named here, so that it lives as long as this function: a signature does not keep its variables.
        answers = loaded.signatures["serving_default"](images=tf.constant(images))
        return {name: answer.numpy() for name, answer in answers.items()}

    return run


def stablehlo(path):
    """JAX's exported functions in StableHLO: `pip install jax flatbuffers`."""
    import jax
    from jax import export

    with open(path, "rb") as file:
        call = jax.jit(export.deserialize(bytearray(file.read())).call)
    return lambda images: {name: np.asarray(answer) for name, answer in call(images).items()}


def torch(path):
    """PyTorch's exported programs: `pip install torch`. A single answer is a plain tensor there."""
    import torch

    module = torch.export.load(str(path)).module()

    def run(images):
        with torch.inference_mode():
            answers = module(torch.from_numpy(images))
        answers = answers if isinstance(answers, dict) else {"output": answers}
        return {name: answer.float().numpy() for name, answer in answers.items()}

    return run


# What each needs, to be imported before loading the file is timed.
PACKAGES = {
    "litert": ("ai_edge_litert.interpreter",),
    "onnx": ("onnxruntime",),
    "openvino": ("openvino",),
    "saved_model": ("tensorflow",),
    "stablehlo": ("jax", "jax.export"),
    "torch": ("torch", "torch.export"),
}
RUNTIMES = {run.__name__: run for run in (litert, onnx, openvino, saved_model, stablehlo, torch)}


def main(arguments=None) -> None:
    """The command line that the module's docstring shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("format", choices=RUNTIMES)
    parser.add_argument("file")
    parser.add_argument("images", nargs="+")
    parser.add_argument("--batch", type=int, help="the batch that the file is for; without, it takes any")
    parser.add_argument("--answers", help="folder for the answers")
    parser.add_argument("--latency", action="store_true", help="measure the median time of an answer as well")
    options = parser.parse_args(arguments)
    sizes = (options.batch,) if options.batch else SIZES

    batches = [np.load(name, allow_pickle=False) for name in options.images]
    first = padded(batches[0][: sizes[0]], sizes[0])
    if "openvino" in PACKAGES[options.format]:
        sys.modules.setdefault("openvino_telemetry", None)  # ty: ignore[no-matching-overload]
    for package in PACKAGES[options.format]:
        importlib.import_module(package)
    before = peak_memory()
    started = time.perf_counter()
    run = RUNTIMES[options.format](options.file)
    run(first)
    measured = {"load_seconds": time.perf_counter() - started}
    if options.latency:
        measured["latency_ms"] = 1000 * latency(run, first)
    measured["peak_memory_bytes"] = None if before is None else peak_memory() - before
    for name, images in zip(options.images, batches, strict=True):
        answers = in_batches(run, images, sizes)
        if options.answers:
            stem = os.path.splitext(os.path.basename(name))[0]
            np.savez(os.path.join(options.answers, f"{stem}.npz"), **answers)
    print(json.dumps(measured))


def in_batches(run, images, sizes):
    """The answers to any number of images, computed in batches of the given sizes, the last of which repeats."""
    parts, start, turn = [], 0, 0
    while start < len(images):
        size = sizes[min(turn, len(sizes) - 1)]
        part = images[start : start + size]
        answers = run(padded(part, size))
        parts.append({name: np.array(answer)[: len(part)] for name, answer in answers.items()})
        start, turn = start + size, turn + 1
    return {name: np.concatenate([part[name] for part in parts]).astype("float32") for name in parts[0]}


def padded(images, size):
    """As many images as a batch has: the given ones, then the last of them again."""
    missing = size - len(images)
    return np.concatenate([images, np.repeat(images[-1:], missing, axis=0)]) if missing else images


def latency(run, images, seconds=1.0, least=5, most=50):
    """Median time of one answer in seconds."""
    times = []
    until = time.perf_counter() + seconds
    while len(times) < least or (len(times) < most and time.perf_counter() < until):
        started = time.perf_counter()
        run(images)
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
