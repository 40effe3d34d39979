"""How long does `from_checkpoint` take, and how much memory, beside only reading the file?

Writes a full-size checkpoint with random weights (ViT-B/16 with ImageNet-21k head: about 410 MB; an `.npz` has
pre-logits, a `.safetensors` file timm's names), then starts one fresh process per measurement, in turn, several rounds:

* `start`: imports the package and its backend, makes one tensor;
* `read`: reads every array of an `.npz` with NumPy, or all bytes of a `.safetensors` file;
* `load`: `start`, then `from_checkpoint`.

    python benchmarks/loading.py --rounds 3 --backends tensorflow jax torch
    python benchmarks/loading.py --formats safetensors --variant ViT-L/16

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
    "read bytes": "import numpy as np; a = np.fromfile({path!r}, 'u1')",
    "load": f"{START}; m = keras_vit.from_checkpoint({{path!r}}, include_top=True)",
}
# Linux: unlike getrusage, this does not count what the parent process held when it forked.
PEAK = "; print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"


def make_file(path, variant):
    import numpy as np

    from keras_vit.checkpoints import LAYOUTS
    from keras_vit.checkpoints.files import write_npz, write_safetensors
    from keras_vit.models import variant_config

    config = variant_config(variant, classes=21843)
    if path.suffix == ".npz":
        layout, write, config = "vit_jax", write_npz, config.replace(representation_size=config.width)
    else:
        layout, write = "timm", write_safetensors
    random = np.random.default_rng(0)
    shapes = {row.name: row.shape for row in sorted(LAYOUTS[layout].rows(config), key=lambda row: row.name)}
    write(path, ((name, random.standard_normal(shape, "float32")) for name, shape in shapes.items()))


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
    parser.add_argument("--formats", nargs="*", default=["npz"], choices=["npz", "safetensors"])
    parser.add_argument("--variant", default="ViT-B/16")
    args = parser.parse_args()
    for suffix in args.formats:
        measure_format(suffix, args)


def measure_format(suffix, args):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / f"model.{suffix}"
        make_file(path, args.variant)
        size = path.stat().st_size
        jobs = {"start": "start", "read": "read" if suffix == "npz" else "read bytes", "load": "load"}
        for backend in args.backends:
            seconds = {job: [] for job in jobs}
            peak = {job: [] for job in jobs}
            for _ in range(args.rounds):
                for job in jobs:
                    wall, memory = measure(jobs[job], path, backend)
                    seconds[job].append(wall)
                    peak[job].append(memory)
            t = {job: statistics.median(values) for job, values in seconds.items()}
            m = {job: statistics.median(values) for job, values in peak.items()}
            row = {"format": suffix, "variant": args.variant, "backend": backend, "file_MB": round(size / 1e6)}
            row |= {f"{job}_s": round(t[job], 2) for job in jobs} | {f"{job}_MB": round(m[job] / 1e6) for job in jobs}
            row["load / (start + read)"] = round(t["load"] / (t["start"] + t["read"]), 2)
            row["memory above start / weights"] = round((m["load"] - m["start"]) / size, 2)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
