"""How long a server takes for one image and for eight: Keras's `predict` beside exported files, on this processor.

    python benchmarks/serving.py --output docs/serving.md
    python benchmarks/serving.py --models ViT-Ti/16 --rounds 1

Every contestant answers in a fresh process, and all take turns in each round; figures are the medians of the rounds.
`predict` is Keras's, `optimized` is `predict_on_batch` of `optimize_for_inference`. Files are written by PyTorch's
backend, except for those of TensorFlow, from random weights: int8 files calibrated with noise are as quick as any
others. `--requests` measures four threads that ask for one image each, with and without batches.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from speed_page import write_between

MODELS = ("ViT-Ti/16", "ViT-S/16", "ViT-B/16")
BACKENDS = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}
FILES = {  # contestant -> (format, precision, suffix)
    "`.pt2`": ("torch", "float32", ".pt2"),
    "ONNX": ("onnx", "float32", ".onnx"),
    "ONNX, dynamic int8": ("onnx", "dynamic_int8", ".onnx"),
    "OpenVINO": ("openvino", "float32", ".xml"),
    "OpenVINO, dynamic int8": ("openvino", "dynamic_int8", ".xml"),
    "LiteRT": ("litert", "float32", ".tflite"),
    "LiteRT, int8": ("litert", "int8", ".tflite"),
}
CONTESTANTS = [f"{way}, {name}" for name in BACKENDS.values() for way in ("`predict`", "optimized")] + [*FILES]
REQUESTS, PER_THREAD = 4, 8  # threads, and images that each asks for, one after the other


def worker(model, contestant, path):
    """The milliseconds of a call for one image and for eight, after a first call of each."""
    import numpy as np

    if contestant in FILES:
        from keras_vit.export import FORMATS

        call = FORMATS[FILES[contestant][0]].load(Path(path))
    else:
        call = keras_call(model, contestant)
    return [median_ms(call, np.zeros((batch, 224, 224, 3), "float32")) for batch in (1, 8)]


def keras_call(model, contestant):
    import keras_vit

    model = keras_vit.create_model(model, pretrained=False)
    if contestant.startswith("optimized"):
        return model.optimize_for_inference(verbose=False).predict_on_batch
    return lambda images: model.predict(images, verbose=0)


def median_ms(call, images):
    call(images)
    times = []
    while len(times) < 5 or (sum(times) < 2 and len(times) < 50):
        begun = time.perf_counter()
        call(images)
        times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times)


def export_all(model, folder):
    """Writes each file of FILES; what they hold does not matter for their speed."""
    import numpy as np

    import keras_vit
    from keras_vit.export import export

    model = keras_vit.create_model(model, pretrained=False)
    images = {"calibration": np.random.default_rng(0).integers(0, 256, (16, 224, 224, 3)).astype("uint8")}
    for number, (format, precision, suffix) in enumerate(FILES.values()):
        options = images if precision == "int8" else {}
        export(model, f"{folder}/{number}{suffix}", format, precision=precision, measure=False, **options)


def requests(model, threads, batched):
    """Images a second that four threads get, each asking for one at a time; `batched` answers them in one call."""
    import queue
    from concurrent.futures import Future, ThreadPoolExecutor

    import numpy as np

    import keras_vit

    if threads:
        import torch

        torch.set_num_threads(threads)
    model = keras_vit.create_model(model, pretrained=False)
    image, waiting = np.zeros((1, 224, 224, 3), "float32"), queue.Queue()

    def answer():
        while True:
            asked = [waiting.get()]
            while len(asked) < REQUESTS:
                try:
                    asked.append(waiting.get(timeout=0.005))
                except queue.Empty:
                    break
            if None in asked:
                return
            scores = model.predict_on_batch(np.repeat(image, REQUESTS, axis=0))
            for future, row in zip(asked, scores, strict=False):
                future.set_result(row)

    def ask(_):
        for _ in range(PER_THREAD):
            if batched:
                future = Future()
                waiting.put(future)
                future.result()
            else:
                model.predict_on_batch(image)

    model.predict_on_batch(np.repeat(image, REQUESTS if batched else 1, axis=0))
    with ThreadPoolExecutor(REQUESTS + 1) as pool:
        server = pool.submit(answer) if batched else None
        begun = time.perf_counter()
        list(pool.map(ask, range(REQUESTS)))
        seconds = time.perf_counter() - begun
        if server:
            waiting.put(None)
    return REQUESTS * PER_THREAD / seconds


def fresh(backend, *arguments):
    """What a function of this file returns in a fresh process."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, __file__, "--worker", json.dumps(arguments)]
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def measure(models, rounds):
    rows = {}
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            fresh("torch", "export_all", model, folder)
            for _ in range(rounds):
                for contestant in CONTESTANTS:
                    backend = next((key for key, name in BACKENDS.items() if contestant.endswith(name)), "torch")
                    files = [*FILES]
                    path = f"{folder}/{files.index(contestant)}{FILES[contestant][2]}" if contestant in FILES else ""
                    times = fresh(backend, "worker", model, contestant, path)
                    rows.setdefault((contestant, model), []).append(times)
                    print(model, contestant, [round(value, 1) for value in times], file=sys.stderr, flush=True)
    return rows


def table(models, rows):
    """Milliseconds for one image and images a second of a batch of eight; the quickest of each model in bold."""
    head = "| | " + " | ".join(f"{model}: ms for one | images a second" for model in models) + " |"
    lines = [head, "|---" * (2 * len(models) + 1) + "|"]
    medians = {key: [statistics.median(values) for values in zip(*times, strict=True)] for key, times in rows.items()}
    for contestant in CONTESTANTS:
        cells = []
        for model in models:
            for place in (0, 1):
                ms = medians[contestant, model][place]
                text = f"{8e3 / ms:.1f}" if place else f"{ms:.1f}"
                best = ms == min(medians[other, model][place] for other in CONTESTANTS)
                cells.append(f"**{text}**" if best else text)
        lines.append(f"| {contestant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=Path, help="a Markdown file with two marks, between which the table goes")
    parser.add_argument("--requests", action="store_true", help="measure four threads that ask for one image each")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, *arguments = json.loads(options.worker)
        print(json.dumps(globals()[name](*arguments)))
        return
    if options.requests:
        for model in options.models:
            for batched in (False, True):
                for threads in (0, 1):
                    found = [fresh("torch", "requests", model, threads, batched) for _ in range(options.rounds)]
                    print(
                        model, f"{batched=} {threads=}", f"{statistics.median(found):.1f} images a second", flush=True
                    )
        return
    text = table(options.models, measure(options.models, options.rounds))
    print(text)
    if options.output:
        write_between(options.output, f"\n{text}\n\n")


if __name__ == "__main__":
    main()
