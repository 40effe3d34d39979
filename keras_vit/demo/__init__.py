"""`keras-vit demo`: the package's main job, without network, in some four minutes on two cores.

The checkpoint that comes along is fine-tuned on real scans of handwritten digits: files that agree with the model, a
table and a picture.
"""

import json
import math
import os
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from rich.console import Console

import keras_vit
from keras_vit import inspection, training
from keras_vit._arguments import printable, require_packages, whole_number
from keras_vit._files import at_home, weights_folder, write_text
from keras_vit._keras import set_random_seed
from keras_vit._names import pip_install
from keras_vit._pictures import plot_map
from keras_vit._terminal import Table, megabytes
from keras_vit.checkpoints import save_model
from keras_vit.export import FORMATS, export
from keras_vit.models import VisionTransformer

__all__ = ["Digits", "load_digits", "run"]

TEST_IMAGES = 500
IMAGE_SIZE = 32  # the checkpoint saw 24 x 24 pixels: a grid of 6 x 6 patches becomes one of 8 x 8
EPOCHS = 5
# The paper's: SGD with momentum 0.9, warm-up, cosine decay, gradients clipped at a norm of 1; a rate of its sweep.
RECIPE = training.recipe("finetune/cifar10").replace(
    batch_size=32,
    learning_rate=0.03,
    image_size=IMAGE_SIZE,
    augmentation=training.Augmentation(crop="resize", flip=False),  # a cut or mirrored digit is another one, or none
)
NEEDS = ("sklearn", "matplotlib")
COLUMNS, ROWS = 12, 4  # of test digits in the picture


class Digits(NamedTuple):
    """Scans and what they show.

    Attributes:
        pixels: uint8 `(images, 8, 8, 3)`, ink bright on black.
        labels: int32 `(images,)`, 0 to 9.
    """

    pixels: np.ndarray
    labels: np.ndarray


def load_digits(train_images: int | None = None) -> tuple[Digits, Digits]:
    """Returns 1,797 scans of handwritten digits, which come with scikit-learn, as training and test images."""
    require_packages("load_digits", ("sklearn",), "demo")
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    scans = datasets.load_digits()
    pixels = np.repeat(np.round(scans.images * (255 / 16)).astype("uint8")[..., None], 3, axis=-1)
    labels = scans.target.astype("int32")
    train, test = train_test_split(
        np.arange(len(labels)), test_size=TEST_IMAGES, random_state=0, shuffle=True, stratify=labels
    )
    train_images = len(train) if train_images is None else whole_number("train_images", train_images, 10)
    if train_images > len(train):
        raise ValueError(f"train_images must be at most {len(train)}, but {train_images} was given.")
    train = train[:train_images]
    return Digits(pixels[train], labels[train]), Digits(pixels[test], labels[test])


def run(
    output: str | os.PathLike[str] = "demo-output",
    seed: int = 0,
    epochs: int = EPOCHS,
    train_images: int | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Fine-tunes the shipped checkpoint on handwritten digits, writes files and a picture; returns the figures."""
    require_packages("The demo", NEEDS, "demo")
    seed, epochs = whole_number("seed", seed, 0), whole_number("epochs", epochs, 1)
    if seed >= 2**32:
        raise ValueError(f"seed must be below 2**32, but {seed} was given.")
    train, test = load_digits(train_images)
    console = console or Console()
    started = time.perf_counter()
    set_random_seed(seed)
    output = Path(at_home(output))
    output.mkdir(parents=True, exist_ok=True)

    console.print(
        f"[bold]keras_vit {keras_vit.__version__}[/] on {keras.backend.backend()}: a Vision Transformer that knows "
        f"printed characters learns to read {len(train.labels):,} handwritten digits."
    )
    data = {"train": train, "test": test}
    steps = RECIPE.replace(epochs=epochs).total_steps(len(train.labels))
    options: dict[str, Any] = {"steps": steps, "every": math.ceil(steps / epochs), "seed": seed}
    options |= {"class_names": [str(digit) for digit in range(10)], "verbose": not console.quiet}
    console.print("From the checkpoint:")
    transfer = training.finetune(weights_folder() / "glyphs.npz", data, RECIPE, **options)
    console.print("The same model from random weights:")
    set_random_seed(seed)
    scratch = training.finetune(VisionTransformer(transfer.model.config, name="scratch"), data, RECIPE, **options)

    model = transfer.model.with_config(name="digits")  # not compiled: its file fits every backend
    images = model.preprocess(test.pixels)
    logits = model.predict(images, batch_size=100, verbose=0)
    # A zero head returns the same logit for every class, and the first of equals wins.
    untrained = float(np.mean(test.labels == 0))
    runs = {"transfer": transfer.log, "scratch": scratch.log}
    histories = {name: [untrained, *(row["val_accuracy"] for row in log)] for name, log in runs.items()}
    result = {
        "backend": keras.backend.backend(),
        "seed": seed,
        "epochs": epochs,
        "train_images": len(train.labels),
        "test_images": len(test.labels),
        "accuracy": {name: history[-1] for name, history in histories.items()},
        "accuracy_per_epoch": histories,
        "seconds": {name: log[-1]["seconds"] for name, log in runs.items()},
        "mistakes": int(np.sum(logits.argmax(-1) != test.labels)),
        "files": _write_files(model, images, logits, output, console),
        "picture": str(output / "demo.png"),
    }
    with _doing("Drawing ...", console):
        _draw(model, test, logits, result)
    result["total_seconds"] = time.perf_counter() - started
    write_text(output / "demo.json", json.dumps(result, indent=2) + "\n")
    console.print(
        f"{result['test_images']} test images, {epochs} epochs, {result['backend']}:", *_tables(result), sep="\n"
    )
    console.print(f"The picture: {printable(result['picture'])}", markup=False, highlight=False)
    return result


def _doing(words: str, console: Console) -> AbstractContextManager[object]:
    """Says what takes time, while it does on a terminal and in a line of its own elsewhere."""
    if console.is_terminal:
        return console.status(words)
    console.print(words)
    return nullcontext()


def _draw(model: VisionTransformer, test: Digits, logits: np.ndarray, result: dict[str, Any]) -> None:
    """Writes `result["picture"]`: test digits with the predicted classes, misread ones first, and attention maps."""
    # The maps are those of the last row of digits, in the first and the last block.
    read = logits.argmax(-1)
    shown = np.argsort(read == test.labels, kind="stable")[: COLUMNS * ROWS]
    names = [str(read[i]) if read[i] == test.labels[i] else f"{read[i]}, not {test.labels[i]}" for i in shown]
    tiles = [(name, 255 - test.pixels[i]) for name, i in zip(names, shown, strict=True)]
    images = model.preprocess(test.pixels[shown[-COLUMNS:]])
    for name, block in (("first block", 0), ("last block", -1)):
        for image, attention in zip(images, inspection.patch_attention(model, images, block).mean(1), strict=True):
            tiles.append((name, inspection.overlay((image[..., :1] + 1) / 2, attention)))
    transfer, scratch = (f"{result['accuracy'][name]:.1%}" for name in ("transfer", "scratch"))
    words = (
        f"{transfer} of {len(test.labels)} digits are right after {result['epochs']} epochs (from scratch {scratch}); "
        f"the {result['mistakes']} misread ones first. Below: where the class token looks."
    )
    title = "From printed characters to handwriting"
    plot_map(tiles, result["picture"], title=title, words=words, columns=COLUMNS, side=1.2, gap=0.25)


def _write_files(
    model: VisionTransformer, images: np.ndarray, logits: np.ndarray, output: Path, console: Console
) -> dict[str, dict[str, Any]]:
    """Writes the model in three formats; returns of each file its bytes and largest difference from the logits."""
    # By file name, `{"bytes", "max_abs_error"}` each.
    with _doing("Saving ...", console):
        save_model(model, output / "digits.keras", overwrite=True)
        keras_vit.to_checkpoint(model, output / "digits.npz", overwrite=True)
        reloaded = {name: keras_vit.load(output / name) for name in ("digits.keras", "digits.npz")}
        outputs = {name: m.predict(images, batch_size=100, verbose=0) for name, m in reloaded.items()}
    if not FORMATS["litert"].missing():
        console.print("Exporting to LiteRT:")
        export(model, output / "digits.tflite", batch_size="any", overwrite=True)
        (outputs["digits.tflite"],) = FORMATS["litert"].run(output / "digits.tflite", images).values()
    files = {}
    for name, found in outputs.items():
        error = float(np.max(np.abs(found - logits)))
        if not error <= 1e-4:
            raise RuntimeError(f"{output / name} does not return the outputs of the model: they differ by {error:.1e}.")
        files[name] = {"bytes": (output / name).stat().st_size, "max_abs_error": error}
    return files


def _tables(result: dict[str, Any]) -> tuple[Table, Table]:
    """Returns two tables: accuracy and time of the two trainings; size and largest difference of the written files."""
    titles = {"transfer": "from the checkpoint", "scratch": "from scratch"}
    runs = Table(
        {
            "training": title,
            "test accuracy": f"{result['accuracy'][name]:.1%}",
            "time": f"{result['seconds'][name]:.1f} s",
        }
        for name, title in titles.items()
    )
    files = Table(
        {"file": name, "difference": f"{file['max_abs_error']:.1e}", "size": megabytes(file["bytes"])}
        for name, file in result["files"].items()
    )
    if "digits.tflite" not in result["files"]:
        files.append({"file": "digits.tflite", "difference": None, "size": f"needs {pip_install('export')}"})
    return runs, files
