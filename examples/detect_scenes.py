"""Boxes on a CPU in two minutes: red discs, green squares and blue crosses, found by a small Vision Transformer.

    python examples/detect_scenes.py --output boxes-output [--quick]

Makes scenes, trains a Vision Transformer with random weights and the heads of OWL-ViT on them, and prints COCO's
average precision on scenes that it has not seen. `boxes-output/run/boxes.png` shows some of them with their boxes,
and below them what was found.
"""

import argparse
import json
from pathlib import Path

from scenes import BOX_CLASSES, make_boxes  # beside this script

import keras_vit
from keras_vit import data, training

SIZE = 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="boxes-output")
    parser.add_argument("--quick", action="store_true", help="a few steps: the numbers mean nothing")
    options = parser.parse_args()
    steps, train, test = (3, 32, 4) if options.quick else (3000, 4000, 100)

    scenes, tests = (
        data.open_boxes(make_boxes(count, SIZE, seed), class_names=BOX_CLASSES)
        for seed, count in enumerate((train, test))
    )
    vit = keras_vit.ViTConfig(
        image_size=SIZE,
        patch_size=8,
        width=96,
        depth=3,
        heads=3,
        mlp_width=192,
        pooling="none",
        classes=None,
        class_token=False,  # which each patch would be multiplied by: of random weights it hides where edges are
        position_embedding="sincos2d",
    )
    done = training.finetune_detection(
        keras_vit.VisionTransformer(vit, name="small"),
        scenes,
        "detection/owl_finetune",
        validation=tests,
        output=Path(options.output) / "run",
        every=-(-steps // 4),
        steps=steps,
        batch_size=32,
        learning_rate=2e-3,
        warmup_steps=0.05,
        drop_path=0.0,
        augmentation=data.BoxAugmentation(min_area=1.0),
    )
    print(f"AP {done.ap:.3f}, AP at an overlap of one half {done.ap50:.3f}")
    figures = json.dumps({"ap": done.ap, "ap50": done.ap50}, indent=2)
    (Path(options.output) / "boxes.json").write_text(figures + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
