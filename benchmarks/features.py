"""What it costs to read all blocks' activations beside the plain forward pass, in one process.

    KERAS_BACKEND=torch python benchmarks/features.py            # ViT-B/16 at 224 pixels, batch 4

Reads `block_i`, `block_i/attention`, `block_i/+attention` and `block_i/mlp` of every block, attention weights apart.
The two models take turns, and the medians of their times are compared.
"""

import argparse
import json
import statistics
import time

import keras
import numpy as np

import keras_vit


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ViT-B/16")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    model = keras_vit.create_model(options.model)
    names = [
        f"block_{i}{inner}" for i in range(model.config.depth) for inner in ("", "/attention", "/+attention", "/mlp")
    ]
    extractor = keras_vit.feature_extractor(model, [*names, "predictions"])
    images = np.random.default_rng(0).uniform(-1, 1, (options.batch, *model.config.image_size, 3)).astype("float32")
    times: dict[str, list[float]] = {"plain": [], "features": []}
    for turn in range(options.rounds + 2):  # two for warming up
        for name, one in (("plain", model), ("features", extractor)):
            start = time.perf_counter()
            one.predict_on_batch(images)
            if turn >= 2:
                times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    result = {"backend": keras.backend.backend(), "model": options.model, "batch": options.batch, **medians}
    print(json.dumps({**result, "ratio": medians["features"] / medians["plain"]}))


if __name__ == "__main__":
    main()
