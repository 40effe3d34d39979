"""A training step of EoMT-B beside its authors' code, on PyTorch: forward, loss of all predictions, backward, update.

Both run in one process, in turn, from the same weights. Seconds are the processor's, so that their ratio holds where
the machine has other work:

    git clone https://github.com/tue-mps/eomt ../eomt && git -C ../eomt checkout 7bd19dd
    PYTHONPATH=../eomt KERAS_BACKEND=torch python benchmarks/eomt_step.py --size 640 --batch 1 --rounds 4

With `--only ours` or `--only authors` the peak of the process's memory is that of one of them.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
import types
from pathlib import Path

import numpy as np
import torch

import keras_vit
from keras_vit import training

CLASSES, QUERIES, BLOCKS, POINTS, MASKS = 133, 200, 3, 12544, 12


def authors_network(size):
    sys.modules.setdefault("wandb", types.ModuleType("wandb"))
    from models.eomt import EoMT
    from models.vit import ViT

    encoder = ViT((size, size), backbone_name="vit_base_patch14_reg4_dinov2", ckpt_path="none")
    return EoMT(encoder, CLASSES, QUERIES, BLOCKS)


def authors_step(network, images, targets):
    """Their loss, AdamW and clipping, as Lightning calls them."""
    from training.mask_classification_loss import MaskClassificationLoss

    loss = MaskClassificationLoss(POINTS, 3.0, 0.75, 5.0, 5.0, 2.0, CLASSES, 0.1)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=0.05)
    pixels = torch.from_numpy(images.transpose(0, 3, 1, 2)) / 255
    targets = [{name: torch.from_numpy(values) for name, values in target.items()} for target in targets]

    def step():
        optimizer.zero_grad()
        losses = {}
        for i, (masks, classes) in enumerate(zip(*network(pixels), strict=True)):
            terms = loss(masks, targets, classes)
            losses |= {f"{name}_{i}": value for name, value in terms.items()}
        total = loss.loss_total(losses, lambda *args, **kwargs: None)
        total.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.01)
        optimizer.step()
        return total.item()

    return step


def own_step(network, size, images, targets):
    with tempfile.TemporaryDirectory() as folder:
        weights = {f"network.{name}": value for name, value in network.state_dict().items()}
        torch.save(weights | {"network.attn_mask_probs": torch.zeros(BLOCKS)}, Path(folder, "network.bin"))
        model = keras_vit.load(Path(folder, "network.bin"), image_size=size)
    recipe = training.recipe("segmentation/eomt_coco_panoptic_base")
    optimizer, loss = training.build_optimizer(recipe, model), training.MaskClassificationLoss(CLASSES, POINTS)
    pixels = model.config.pipeline.normalized(images)
    return lambda: training.segmentation_step(model, optimizer, loss, pixels, targets)["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("size", 640), ("batch", 1), ("rounds", 4), ("threads", torch.get_num_threads())):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=("ours", "authors"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (options.batch, options.size, options.size, 3)).astype("float32")
    blocks = rng.random((options.batch, MASKS, 16, 16)) < 0.2
    masks = blocks.repeat(options.size // 16, 2).repeat(options.size // 16, 3)
    targets = [{"masks": m, "labels": np.arange(MASKS) * 7} for m in masks]
    network = authors_network(options.size)
    steps = {}
    if options.only != "authors":
        steps["ours"] = own_step(network, options.size, images, targets)
    if options.only != "ours":
        steps["authors"] = authors_step(network, images, targets)
    else:
        del network
    seconds = {name: [] for name in steps}
    losses = {name: step() for name, step in steps.items()}  # the first makes buffers
    for _ in range(options.rounds):
        for name, step in steps.items():
            start = time.process_time()
            step()
            seconds[name].append(round(time.process_time() - start, 3))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    result = {"losses": losses, "seconds": seconds, "peak GiB": round(peak, 2)}
    if len(steps) == 2:
        ratios = [theirs / ours for ours, theirs in zip(*seconds.values(), strict=True)]
        result["authors' seconds / ours"] = round(statistics.median(ratios), 3)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
