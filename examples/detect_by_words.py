"""Boxes from words that were never trained: coloured shapes, named by two words each, found by a small OWL-ViT.

    python examples/detect_by_words.py --output words-output [--quick]

Makes scenes of discs, squares and crosses in four colours, and a detector of words as OWL-ViT is one, small and with
random weights. Both towers train on ten of the twelve names. Then the detector looks for the other two, "red square"
and "blue disc": it has seen other squares and other red things. `words-output/found.png` shows what it finds in eight
scenes; it is the second picture of docs/detection.md.
"""

import argparse
import itertools
import json
from pathlib import Path

import numpy as np

import keras_vit
from keras_vit import data, detection, training

SIZE = 48
SHAPES = {
    "disc": lambda down, across: np.hypot(down, across) <= 1,
    "square": lambda down, across: np.maximum(down, across) <= 1,
    "cross": lambda down, across: (np.maximum(down, across) <= 1) & (np.minimum(down, across) <= 0.35),
}
COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 220), "yellow": (230, 210, 40)}
NAMES = [f"{colour} {shape}" for colour, shape in itertools.product(COLOURS, SHAPES)]
NEW = ["red square", "blue disc"]
TRAINED = [name for name in NAMES if name not in NEW]
LETTERS = [*COLOURS, *SHAPES]  # the tokenizer's: a token for each word


def make(count: int, names: list[str], seed: int) -> tuple[list[np.ndarray], list[dict[str, np.ndarray]]]:
    """Returns scenes of two different things each, as `open_boxes` takes them; labels are places in `names`."""
    rng, pictures, targets = np.random.default_rng(seed), [], []
    for _ in range(count):
        picture, boxes = rng.normal(128, 12, (SIZE, SIZE, 3)), []
        labels = rng.permutation(len(names))[:2]
        for half, label in enumerate(labels.tolist()):  # one on the left, one on the right: they do not overlap
            colour, shape = names[label].split()
            radius = rng.uniform(6, 11)
            row, column = rng.uniform(radius, SIZE - radius), rng.uniform(radius, SIZE / 2 - radius) + half * SIZE / 2
            down, across = (
                np.abs(place + 0.5 - middle) / radius
                for place, middle in zip(np.mgrid[:SIZE, :SIZE], (row, column), strict=True)
            )
            inside = SHAPES[shape](down, across)
            picture[inside] = COLOURS[colour] + rng.normal(0, 12, (int(inside.sum()), 3))
            boxes.append([column - radius, row - radius, column + radius, row + radius])
        pictures.append(picture.clip(0, 255).astype("uint8"))
        targets.append({"boxes": np.array(boxes), "labels": labels})
    return pictures, targets


def small_owl() -> keras_vit.text.OpenVocabularyDetector:
    """Returns an OWL with random weights: two towers and the heads."""
    vit = keras_vit.ViTConfig(
        image_size=SIZE,
        patch_size=8,
        width=96,
        depth=3,
        heads=3,
        mlp_width=192,
        pooling="none",
        classes=None,
        class_token=False,
        position_embedding="sincos2d",
    )
    detector = keras_vit.Detector(keras_vit.models.DetectorConfig(backbone=vit, classes=1, embedding=32))
    sizes = {"width": 32, "depth": 1, "heads": 2, "mlp_width": 64, "projection": 32}
    texts = keras_vit.TextConfig(vocabulary=len(LETTERS) + 1, context=3, **sizes)
    end = len(LETTERS)
    tokenizer = keras_vit.text.Tokenizer(lambda text: [*map(LETTERS.index, text.split())], context=3, end=end, pad=end)
    return keras_vit.text.OpenVocabularyDetector(detector, keras_vit.TextEncoder(texts), tokenizer)


def side_by_side(model: keras_vit.Detector, pictures: list[np.ndarray]) -> tuple[detection.Detection, np.ndarray]:
    """Returns what is found in scenes, and the scenes, four in a row, as those of one picture."""
    found = [detection.detect(model, one, threshold=0.3) for one in pictures]
    places = [np.tile([SIZE * (i % 4), SIZE * (i // 4)], 2) for i in range(len(pictures))]
    boxes = np.concatenate([one.boxes + place for one, place in zip(found, places, strict=True)])
    scores, labels = (np.concatenate([getattr(one, part) for one in found]) for part in ("scores", "labels"))
    names = tuple(name for one in found for name in one.names)
    rows = [np.concatenate(pictures[i : i + 4], axis=1) for i in range(0, len(pictures), 4)]
    return detection.Detection(boxes.astype("float32"), scores, labels, names), np.concatenate(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="words-output")
    parser.add_argument("--quick", action="store_true", help="a few steps: the numbers mean nothing")
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    steps, train, test = (3, 32, 4) if options.quick else (options.steps, 4000, 100)
    done = training.finetune_detection(
        small_owl(),
        data.open_boxes(make(train, TRAINED, 0), class_names=TRAINED),
        "detection/owl_finetune",
        validation=data.open_boxes(make(test, TRAINED, 1), class_names=TRAINED),
        every=steps,
        text_rate=1.0,  # 0.04 is for a tower that was trained before
        steps=steps,
        batch_size=32,
        learning_rate=2e-3,
        warmup_steps=0.05,
        drop_path=0.0,
        augmentation=data.BoxAugmentation(min_area=1.0),
    )
    model = done.owl.zero_shot_detector(NAMES, progress=False)
    pictures, targets = make(test, NEW, 2)
    targets = [one | {"labels": np.array([NAMES.index(NEW[k]) for k in one["labels"]])} for one in targets]
    result = detection.evaluate(model, data.open_boxes((pictures, targets), class_names=NAMES), progress=False)
    print(f"AP {done.ap:.3f} of the ten names that were trained; AP {result.ap:.3f} of the other two, beside the ten")
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    figures = json.dumps({"trained": done.ap, "new": result.ap}, indent=2)
    (folder / "words.json").write_text(figures + "\n", encoding="utf-8")
    detection.plot(*side_by_side(model, pictures[:8]), folder / "found.png")


if __name__ == "__main__":
    main()
