"""The package's main job without network, in some four minutes on two cores; `make demo` runs it.

    python examples/demo.py [--output demo-output]

The checkpoint that comes along is fine-tuned on real scans of handwritten digits, beside the same model from random
weights. Writes `digits.keras`, `digits.npz`, `digits.tflite` (where its packages are), `demo.png` and `demo.json`, and
fails if a file answers otherwise than the model. Needs `pip install "keras-vit-zoo[demo]"`.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import keras_vit  # before Keras: it chooses the installed backend
from keras_vit import data, inspection, training
from keras_vit.export import FORMATS

import keras
import matplotlib
import numpy as np

EPOCHS = 5
# The paper's: SGD with momentum 0.9, warm-up, cosine decay, gradients clipped at a norm of 1; a rate of its sweep.
RECIPE = training.recipe("finetune/cifar10").replace(
    batch_size=32,
    learning_rate=0.03,
    image_size=32,  # the checkpoint saw 24 x 24 pixels: a grid of 6 x 6 patches becomes one of 8 x 8
    augmentation=training.Augmentation(crop="resize", flip=False),  # a cut or mirrored digit is another one, or none
)
COLUMNS, ROWS = 12, 4  # of test digits in the picture


def write_files(model, images, logits, output):
    """Writes the model in three formats; returns of each file its bytes and largest difference from the logits."""
    model.save(output / "digits.keras")
    keras_vit.to_checkpoint(model, output / "digits.npz", overwrite=True)
    names = ("digits.keras", "digits.npz")
    outputs = {name: keras_vit.load(output / name).predict(images, batch_size=100, verbose=0) for name in names}
    if FORMATS["litert"].missing():
        print('digits.tflite needs pip install "keras-vit-zoo[export]"')
    else:
        keras_vit.export(model, output / "digits.tflite", batch_size="any", overwrite=True)
        (outputs["digits.tflite"],) = FORMATS["litert"].run(output / "digits.tflite", images).values()
    files = {}
    for name, found in outputs.items():
        error = float(np.max(np.abs(found - logits)))
        if not error <= 1e-4:
            sys.exit(f"{output / name} does not return the outputs of the model: they differ by {error:.1e}.")
        files[name] = {"bytes": (output / name).stat().st_size, "max_abs_error": error}
        print(f"{name}: {files[name]['bytes'] / 1e6:.1f} MB, outputs within {error:.1e}")
    return files


def draw(model, test, logits, words, path):
    """Test digits with the predicted classes, misread ones first, and below where the class token looks."""
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    read = logits.argmax(-1)
    shown = np.argsort(read == test.labels, kind="stable")[: COLUMNS * ROWS]
    names = [str(read[i]) if read[i] == test.labels[i] else f"{read[i]}, not {test.labels[i]}" for i in shown]
    tiles = list(zip(names, 255 - test.pixels[shown], strict=True))
    images = model.preprocess(test.pixels[shown[-COLUMNS:]])
    for name, block in (("first block", 0), ("last block", -1)):
        for image, attention in zip(images, inspection.patch_attention(model, images, block).mean(1), strict=True):
            tiles.append((name, inspection.overlay((image[..., :1] + 1) / 2, attention)))
    figure, axes = plt.subplots(ROWS + 2, COLUMNS, figsize=(1.25 * COLUMNS, 1.5 * (ROWS + 2)))
    for place, (name, pixels) in zip(axes.flat, tiles, strict=True):
        place.imshow(pixels)
        place.set_title(name, fontsize=9)
        place.axis("off")
    figure.suptitle(f"From printed characters to handwriting\n{words}", fontsize=11)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def run(output="demo-output", seed=0, epochs=EPOCHS, train_images=None, test_images=None):
    """Fine-tunes, writes files and a picture; returns what `demo.json` holds."""
    started, output = time.perf_counter(), Path(output)
    output.mkdir(parents=True, exist_ok=True)
    train, test = data.load_digits()
    train, test = (data.Digits(*(x[:n] for x in part)) for part, n in ((train, train_images), (test, test_images)))
    print(
        f"keras_vit {keras_vit.__version__} on {keras.backend.backend()}: a Vision Transformer that knows printed "
        f"characters learns to read {len(train.labels):,} handwritten digits."
    )
    steps = RECIPE.replace(epochs=epochs).total_steps(len(train.labels))
    options = {"steps": steps, "every": math.ceil(steps / epochs), "seed": seed, "class_names": list("0123456789")}
    keras.utils.set_random_seed(seed)
    print("From the checkpoint:")
    transfer = training.finetune("glyphs", {"train": train, "test": test}, RECIPE, **options)
    print("The same model from random weights:")
    keras.utils.set_random_seed(seed)
    empty = keras_vit.VisionTransformer(transfer.model.config, name="scratch")
    scratch = training.finetune(empty, {"train": train, "test": test}, RECIPE, **options)

    model = transfer.model.with_config(name="digits")  # not compiled: its file fits every backend
    images = model.preprocess(test.pixels)
    logits = model.predict(images, batch_size=100, verbose=0)
    result = {
        "backend": keras.backend.backend(),
        "seed": seed,
        "epochs": epochs,
        "train_images": len(train.labels),
        "test_images": len(test.labels),
        "accuracy": {"transfer": transfer.accuracy, "scratch": scratch.accuracy},
        "seconds": {"transfer": transfer.log[-1]["seconds"], "scratch": scratch.log[-1]["seconds"]},
        "mistakes": int(np.sum(logits.argmax(-1) != test.labels)),
        "files": write_files(model, images, logits, output),
    }
    words = (
        f"{transfer.accuracy:.1%} of {len(test.labels)} digits are right after {epochs} epochs "
        f"(from scratch {scratch.accuracy:.1%}); the {result['mistakes']} misread ones first"
    )
    draw(model, test, logits, words, output / "demo.png")
    result["total_seconds"] = time.perf_counter() - started
    (output / "demo.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{words}. The picture: {output / 'demo.png'}")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", default="demo-output", help="folder for its files (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few steps, only to see that it runs")
    options = parser.parse_args()
    few = {"epochs": 1, "train_images": 128, "test_images": 100} if options.quick else {}
    run(options.output, options.seed, **few)


if __name__ == "__main__":
    main()
