"""How long does `from_checkpoint` take, and how much memory, beside only reading the file with NumPy?

Writes a full-size ViT-B/16 checkpoint with random weights (ImageNet-21k head and pre-logits, about 394 MB), then
starts one fresh process per measurement, in turn, several rounds:

* `start`: imports the package and its backend, makes one tensor;
* `read`: reads every array of the file with NumPy;
* `load`: `start`, then `from_checkpoint`.

    python benchmarks/loading.py --rounds 3 --backends tensorflow jax torch

Times are wall seconds of the whole process; memory is its peak resident set. `load / (start + read)` says what loading
costs beyond what cannot be avoided; `memory above start / weights` how many copies of the weights existed at once.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

START = "import keras_vit, keras; keras.ops.zeros(1)"
JOBS = {
    "start": START,
    "read": "import numpy as np; f = np.load({path!r}); a = [f[k] for k in f.files]",
    "load": f"{START}; m = keras_vit.from_checkpoint({{path!r}}, include_top=True)",
}
# Linux: unlike getrusage, this does not count what the parent process held when it forked.
PEAK = "; print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"


def make_file(path):
    import numpy as np

    from keras_vit.checkpoints.files.npz import write_npz
    from keras_vit.checkpoints.layouts.vit_jax import LAYOUT
    from keras_vit.models import variant_config

    config = variant_config("ViT-B/16", classes=21843).replace(representation_size=768)
    sizes, random = LAYOUT.sizes(config), np.random.default_rng(0)
    rows = sorted(LAYOUT.rows(config), key=lambda row: row.name)
    shapes = {row.name: [sizes.get(n, n) for n in row.shape] for row in rows}
    write_npz(path, ((name, random.normal(size=shape).astype("float32")) for name, shape in shapes.items()))


def measure(job, path, backend):
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    code = JOBS[job].format(path=str(path)) + PEAK
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return time.perf_counter() - start, int(done.stdout.split()[-1]) * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backends", nargs="*", default=["tensorflow", "jax", "torch"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "ViT-B_16.npz"
        make_file(path)
        size = path.stat().st_size
        for backend in args.backends:
            seconds = {job: [] for job in JOBS}
            peak = {job: [] for job in JOBS}
            for _ in range(args.rounds):
                for job in JOBS:
                    wall, memory = measure(job, path, backend)
                    seconds[job].append(wall)
                    peak[job].append(memory)
            t = {job: statistics.median(values) for job, values in seconds.items()}
            m = {job: statistics.median(values) for job, values in peak.items()}
            row = {"backend": backend, "file_MB": round(size / 1e6)}
            row |= {f"{job}_s": round(t[job], 2) for job in JOBS} | {f"{job}_MB": round(m[job] / 1e6) for job in JOBS}
            row["load / (start + read)"] = round(t["load"] / (t["start"] + t["read"]), 2)
            row["memory above start / weights"] = round((m["load"] - m["start"]) / size, 2)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
