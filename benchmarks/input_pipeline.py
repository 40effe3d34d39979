"""Images a second from a folder of JPEGs: this package's streams beside Pillow's decoder and timm's loader.

    python benchmarks/input_pipeline.py --timm auto

600 generated JPEGs of 500 x 375, cropped and flipped to 224, with and without RandAugment(2, 15) and mixup, two workers
each; with `--width 4000`, 60 of 12 megapixels; a pass has ten batches. Every figure comes from a process of its own;
the rounds go through all of them in turn, so that what else the machine does meets each alike, and the table has the
medians. `--timm` takes the path of a Python that has timm, or `auto` to make an environment for it in `--work`. Where
simplejpeg is installed (the extra `fast`), this package's streams decode by it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

CLASSES, SIZE, BATCHES, WORKERS = 10, 224, 10, 2
BACKENDS = ("tensorflow", "jax", "torch")
AUGMENTATIONS = ("crop and flip", "RandAugment and mixup")
TIMM = ["torch==2.13.0", "numpy", "pillow", "pyyaml", "huggingface_hub", "safetensors"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timm", metavar="PYTHON|auto", help="without it, timm is left out")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--work", type=Path, help="folder for the images and timm's environment (default: a new one)")
    parser.add_argument(
        "--width", type=int, default=500, help="pixels; larger pictures are fewer (default: %(default)s)"
    )
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "AUGMENTATION"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        what, augmentation = options.measure
        print(json.dumps(MEASURES[what](options.work / "images", augmentation == AUGMENTATIONS[1])))
        return
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).resolve()
        write_images(work / "images", options.width)
        timm = make_environment(work / "timm") if options.timm == "auto" else options.timm
        jobs = [("decode", AUGMENTATIONS[0], sys.executable, None)]
        for augmentation in AUGMENTATIONS:
            for kind in ("threads", "processes"):
                jobs += [(kind, augmentation, sys.executable, backend) for backend in options.backends]
            jobs += [("timm", augmentation, timm, None)] if timm else []
        found = {job: [] for job in jobs}
        for number in range(options.rounds):
            for job in jobs:
                found[job].append(run(job, work))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    bare = statistics.median(found[jobs[0]])
    print("| what | augmentation | images/s | of decoding alone |\n|---|---|---|---|")
    for (what, augmentation, _, backend), rates in found.items():
        rate = statistics.median(rates)
        print(f"| {what}{f', {backend}' if backend else ''} | {augmentation} | {rate:.0f} | {rate / bare:.2f} |")


def run(job, work):
    what, augmentation, python, backend = job
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if backend:
        package = str(Path(__file__).resolve().parents[1])
        environment |= {"KERAS_BACKEND": backend}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    command = [python, __file__, "--work", str(work), "--measure", what, augmentation]
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def write_images(folder, width):
    """Soft shapes and grain, about as hard to decode as photographs."""
    from PIL import Image

    if folder.exists():
        return
    size, count, height = [], 600 if width <= 1000 else 60, width * 3 // 4
    for i in range(count):
        rng = np.random.default_rng(i)
        pixels = np.full((height, width, 3), 127.0, "float32")
        for cells, strength in ((4, 60), (16, 40), (64, 20), (height, 10)):
            noise = (rng.normal(0, strength, (max(2, cells * 3 // 4), cells, 3)) + 127).clip(0, 255).astype("uint8")
            pixels += (
                np.asarray(Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC), "float32") - 127
            )
        path = folder / f"class_{i % CLASSES}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(path, quality=92)
        size.append(path.stat().st_size)
    print(f"{count} JPEGs of {np.mean(size) / 1e3:.0f} kB on average", file=sys.stderr)


def make_environment(folder):
    """A Python with timm: torchvision without the torch that it would bring."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        for packages in (TIMM, ["--no-deps", "timm", "torchvision==0.28.0"]):
            subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
    return str(python)


def rate_of(epoch, folder):
    """Images a second of the second of two passes: the first starts workers and fills caches."""
    epoch()
    started = time.perf_counter()
    epoch()
    return count_of(folder) / (time.perf_counter() - started)


def count_of(folder):
    return len(list(folder.rglob("*.jpg")))


def decode(folder, augment):
    """Nothing but Pillow's decoder, which lets other threads run."""
    from PIL import Image

    paths = sorted(folder.rglob("*.jpg"))

    def read(path):
        with Image.open(path) as image:
            image.load()

    with ThreadPoolExecutor(WORKERS) as pool:
        return rate_of(lambda: list(pool.map(read, paths)), folder)


def ours(folder, augment, processes):
    from keras_vit.data import Augmentation, open_data

    augmentation = Augmentation(mixup=0.2, randaugment=(2, 15)) if augment else Augmentation()
    batch_size = count_of(folder) // BATCHES
    options = {"image_size": SIZE, "batch_size": batch_size, "workers": WORKERS, "processes": processes}
    with open_data(folder, augmentation=augmentation, **options) as stream:
        steps = iter(range(10**6))
        return rate_of(lambda: [stream.batch(next(steps)) for _ in range(BATCHES)], folder)


def timm(folder, augment):
    import torch

    # What torchvision registers for detection does not load beside this torch; declared, nobody misses it.
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from timm.data import ImageDataset, Mixup, create_loader

    torch.set_num_threads(1)
    loader = create_loader(
        ImageDataset(str(folder)),
        input_size=(3, SIZE, SIZE),
        batch_size=count_of(folder) // BATCHES,
        is_training=True,
        use_prefetcher=False,
        scale=(0.05, 1.0),
        color_jitter=None,
        auto_augment="rand-m15-n2" if augment else None,
        interpolation="bilinear",
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    mixup = Mixup(mixup_alpha=0.2, num_classes=CLASSES)

    def epoch():
        for images, labels in loader:
            if augment:
                mixup(images, labels)

    return rate_of(epoch, folder)


MEASURES = {
    "decode": decode,
    "threads": lambda folder, augment: ours(folder, augment, processes=False),
    "processes": lambda folder, augment: ours(folder, augment, processes=True),
    "timm": timm,
}

if __name__ == "__main__":
    main()
