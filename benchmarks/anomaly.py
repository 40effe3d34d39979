"""Anomaly detection: false alarms by simulation, and time and memory of `fit`.

    python benchmarks/anomaly.py simulate [--sets 1000]
    python benchmarks/anomaly.py fit MODEL [--pictures 300] [--image-size 448] [--coreset 0.1]

`simulate` draws exchangeable pictures as 30 random patches around a few centres of their own, and counts how often a
new one is above the threshold of `keras_vit.anomaly`, with the bank as `fit` makes it.
"""

import argparse
import resource
import time
import warnings

import numpy as np

import keras_vit
from keras_vit import anomaly

PATCHES, WIDTH, NEW = 30, 8, 20


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def pictures(count: int, generator: np.random.Generator) -> np.ndarray:
    centres = generator.normal(size=(count, 1, WIDTH)) + generator.normal(size=(1, 5, WIDTH)).repeat(6, 1)
    return unit(centres + 0.4 * generator.normal(size=(count, PATCHES, WIDTH))).astype("float32")


def scores(some: np.ndarray, bank: np.ndarray) -> np.ndarray:
    return (1 - (some @ bank.T).max(-1)).max(-1)  # of 30 patches the largest 1 % is one


def simulate(sets: int) -> None:
    generator = np.random.default_rng(0)
    for count, share in ((9, 0.1), (19, 0.05), (19, 0.1), (40, 0.1)):
        for coreset in (None, 0.1):
            alarms = 0
            for _ in range(sets):
                every = pictures(count + NEW, generator)
                good, new = every[:count], every[count:]
                rows = None if coreset is None else int(PATCHES * coreset)
                kept = [one if rows is None else one[anomaly.greedy_coreset(one, rows)] for one in good]
                left = [scores(one, np.concatenate(kept[:i] + kept[i + 1 :])) for i, one in enumerate(good)]
                threshold, _ = anomaly.conformal_threshold(left, share)
                alarms += (scores(new, np.concatenate(kept)) > threshold).sum()
            print(f"n {count}, wanted {share}, coreset {coreset}: {alarms / (sets * NEW):.4f}", flush=True)


def fit(model: str, count: int, size: int, coreset: float | None) -> None:
    generator = np.random.default_rng(0)
    ground = generator.integers(0, 256, (1, size // 8, size // 8, 3)).repeat(8, 1).repeat(8, 2)

    def stream():
        for _ in range(count):  # one at a time, as files are read
            yield (ground[0] * 0.8 + generator.integers(0, 50, ground.shape[1:])).astype("uint8")

    loaded = keras_vit.load(model)
    started = time.process_time()
    made = anomaly.fit(loaded, stream(), image_size=size, coreset=coreset, verbose=False)
    seconds, peak = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{count} pictures of {size} px, coreset {coreset}, bank {made.bank.shape}: {seconds:.0f} s of all cores")
    print(f"peak memory {peak:.2f} GB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("simulate", "fit"))
    parser.add_argument("model", nargs="?", default="glyphs")
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--pictures", type=int, default=300)
    parser.add_argument("--image-size", type=int, default=448)
    parser.add_argument("--coreset", type=float)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.what == "simulate":
        simulate(asked.sets)
    else:
        fit(asked.model, asked.pictures, asked.image_size, asked.coreset)


if __name__ == "__main__":
    main()
