"""Masks on a CPU in two minutes: shapes of any colour, found by the patches of the checkpoint that comes along.

    python examples/segment_scenes.py --output scenes-output [--quick]

Makes a folder of scenes, trains a linear head on frozen features, the same with adapters (LoRA), and prints the mean
intersection over union of both on scenes that neither has seen. `scenes-output/scenes.json` has the figures,
`scenes-output/masks.png` shows what the second one sees in a picture four times as wide as those it was trained on.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scenes import make_scenes, save_scenes  # beside this script

from keras_vit import data, segmentation, training

SIZE = 48
ADAPTERS = 8  # LoRA's rank


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="scenes-output")
    parser.add_argument("--quick", action="store_true", help="a few steps: the numbers mean nothing")
    options = parser.parse_args()
    steps, train, test = (3, 8, 2) if options.quick else (250, 300, 60)

    folder = save_scenes(Path(options.output) / "scenes", train, test, SIZE)
    recipe = training.recipe("segmentation/dinov2_linear").replace(
        steps=steps,
        batch_size=8,
        image_size=SIZE,
        learning_rate=0.01,
        # Shapes are what they are at any size and in any colour.
        augmentation=data.MaskAugmentation(scale=(1.0, 1.5), hue=0.5),
    )
    found = {}
    for name, rank in (("linear head", None), ("with adapters", ADAPTERS)):
        run = Path(options.output) / name.replace(" ", "-")
        done = training.finetune_segmentation(
            "glyphs", folder, recipe.replace(lora_rank=rank), every=-(-steps // 2), output=run
        )
        found[name] = done.mean_iou
        print(f"{name}: mean IoU {done.mean_iou:.3f}")
    (Path(options.output) / "scenes.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    scenes, _ = make_scenes(8, SIZE, seed=2)
    picture = np.concatenate([np.concatenate(list(row), axis=1) for row in (scenes[:4], scenes[4:])])
    result = segmentation.segment(done.model, picture)
    segmentation.plot(result, picture, Path(options.output) / "masks.png")


if __name__ == "__main__":
    main()
