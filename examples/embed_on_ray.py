"""Features of a large folder of images on a Ray cluster: `keras_vit.evaluation.embed` over slices of it, put together.

    pip install "keras-vit-zoo[jax,images,ray]"
    python examples/embed_on_ray.py photos/ --weights ViT-B/16 --output features.npz                 # this machine
    python examples/embed_on_ray.py photos/ --weights ViT-B/16 --output features.npz --address auto  # a cluster

All machines need the folder, the weights and the output at the same paths, as on a shared file system. Ray starts the
task of a worker that was killed again, and `embed` goes on where that one was. Whoever starts this script again after
it was stopped itself goes on, too: parts that are complete are not made again.
"""

import argparse
import os
import shutil
from pathlib import Path


def embed_share(weights: str, folder: str, part: str, index: int, shares: int, batch_size: int, features: str) -> int:
    """One task: writes a share of the folder to a file of its own. Returns the number of images in it."""
    import keras_vit

    done = keras_vit.evaluation.embed(
        weights, folder, part, features=features, batch_size=batch_size, shard=(index, shares), progress=False
    )
    return done.count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="images, in sub-folders too")
    parser.add_argument("--weights", default="ViT-B/16", help="a file or a name (default: %(default)s)")
    parser.add_argument("--output", default="features.npz", help="an .npz file (default: %(default)s)")
    parser.add_argument("--features", default="pre_logits", help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--shares", type=int, default=8, help="tasks, several per worker (default: %(default)s)")
    parser.add_argument("--address", help="of a cluster; without it Ray starts on this machine")
    parser.add_argument("--processes", type=int, help="on this machine: tasks at a time (default: one on each core)")
    parser.add_argument("--gpus", type=float, default=0, help="of each task, such as 1 or 0.5 (default: %(default)s)")
    options = parser.parse_args()

    import numpy as np
    import ray

    weights = os.path.abspath(options.weights) if os.path.exists(options.weights) else options.weights
    output = Path(options.output).absolute()
    folder = output.with_name(f"{output.name}.parts")
    folder.mkdir(exist_ok=True)
    parts = [folder / f"{index:05}-of-{options.shares:05}.npz" for index in range(options.shares)]

    ray.init(address=options.address, num_cpus=None if options.address else options.processes, log_to_driver=False)
    # A task whose process died is started again; one that raised an error is not: a file is bad, or the disk full.
    task = ray.remote(num_cpus=1, num_gpus=options.gpus, max_retries=5)(embed_share)
    common = (options.shares, options.batch_size, options.features)
    waiting = [
        task.remote(weights, os.path.abspath(options.folder), str(part), index, *common)
        for index, part in enumerate(parts)
    ]
    images = 0
    while waiting:
        (done,), waiting = ray.wait(waiting)
        images += ray.get(done)
        print(f"{options.shares - len(waiting)} of {options.shares} shares, {images:,} images", flush=True)
    ray.shutdown()
    files = [np.load(part) for part in parts]
    whole = {name: np.concatenate([file[name] for file in files]) for name in ("names", "features", "skipped")}
    np.savez(output, **whole)
    shutil.rmtree(folder)
    print(f"Wrote {output}: {images:,} images, features of shape {whole['features'].shape[1:]}")


if __name__ == "__main__":
    main()
