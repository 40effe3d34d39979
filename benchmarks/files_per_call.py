"""How many files of the package a person opens to follow one call: those in which a function ran during it.

Functions that run while a module of the package is being imported do not count. Each call is counted in a process of
its own, with nothing in any cache. A worker process that a call starts is another program to read and is not counted.

    KERAS_BACKEND=tensorflow python benchmarks/files_per_call.py            # all calls
    KERAS_BACKEND=tensorflow python benchmarks/files_per_call.py finetune   # one, with the names of the files
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
from PIL import Image

import keras_vit
from keras_vit import cli, export, segmentation, training

MASKS = training.recipe("segmentation/dinov2_linear").replace(steps=1, batch_size=4, image_size=24, warmup_steps=0)
PACKAGE = Path(keras_vit.__file__).parent


def files_of(call: Callable[[], object]) -> list[str]:
    """The files of the package in which a function ran during a call, imports aside."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file not in files and file.startswith(f"{PACKAGE}{os.sep}"):
            if not _imports(frame):
                files.add(file)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(str(Path(file).relative_to(PACKAGE)) for file in files)


def _imports(frame: FrameType | None) -> bool:
    """Whether a frame runs because a module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def make_photos(folder: Path, classes: int = 2, images: int = 12) -> Path:
    """A folder with `train/` and `test/`, each with one folder of pictures for each class."""
    generator = np.random.default_rng(0)
    for split in ("train", "test"):
        for number in range(classes):
            path = folder / split / f"class_{number}"
            path.mkdir(parents=True)
            for i in range(images):
                Image.fromarray(generator.integers(0, 256, (40, 50, 3), "uint8")).save(path / f"{i}.jpg")
    return folder


def create_model(folder: Path) -> Callable[[], object]:
    """`ViT_Ti16` from a checkpoint file, as after a download."""
    file = folder / "ti16.npz"
    keras_vit.to_checkpoint(keras_vit.ViT_Ti16(image_size=32), file)
    return lambda: keras_vit.ViT_Ti16(weights=str(file), image_size=32)


def from_checkpoint(folder: Path) -> Callable[[], object]:
    """A model from a file whose architecture is read off the arrays."""
    file = folder / "model.npz"
    keras_vit.to_checkpoint(keras_vit.from_checkpoint("glyphs"), file)
    return lambda: keras_vit.from_checkpoint(file)


def timm_folder(folder: Path) -> Callable[[], object]:
    """A model in a folder as timm writes it."""
    keras_vit.to_checkpoint(keras_vit.ViT_Ti16(image_size=32, class_token=True), folder / "timm", layout="timm")
    return lambda: keras_vit.from_checkpoint(folder / "timm")


def finetune(folder: Path) -> Callable[[], object]:
    """One update on a folder of photos, with the files of a run."""
    photos = make_photos(folder / "photos")
    recipe = training.recipe("finetune/cifar10").replace(steps=1, batch_size=4, image_size=24)
    return lambda: training.finetune("glyphs", photos, recipe, output=folder / "run", verbose=False)


def finetune_segmentation(folder: Path) -> Callable[[], object]:
    """One update of a linear head on a folder of pictures with masks, with the files of a run."""
    pairs = _make_masks(folder / "scenes")
    return lambda: training.finetune_segmentation("glyphs", pairs, MASKS, output=folder / "run", verbose=False)


def segment(folder: Path) -> Callable[[], object]:
    """From the file of a picture to its map of classes, with a model that is there."""
    model = _segmenter(folder)
    photo = str(next((folder / "scenes" / "images").rglob("*.png")))
    return lambda: segmentation.segment(model, photo)


def _make_masks(folder: Path, images: int = 8) -> Path:
    """A folder with `images/` and `masks/` of two classes."""
    generator = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for i in range(images):
        Image.fromarray(generator.integers(0, 256, (40, 50, 3), "uint8")).save(folder / "images" / f"{i}.png")
        Image.fromarray(generator.integers(0, 2, (40, 50), "uint8")).save(folder / "masks" / f"{i}.png")
    return folder


def _segmenter(folder: Path) -> keras_vit.LinearSegmenter:
    return training.finetune_segmentation("glyphs", _make_masks(folder / "scenes"), MASKS, verbose=False).model


def export_int8(folder: Path) -> Callable[[], object]:
    """An int8 file for LiteRT."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 24, 24, 3), "uint8")
    model = keras_vit.from_checkpoint("glyphs")
    return lambda: export.export(model, folder / "model.tflite", precision="int8", calibration=pixels)


def predict(folder: Path) -> Callable[[], object]:
    """From the file of a photo to its classes, with a model that is there."""
    photo = str(next(make_photos(folder / "photos").rglob("*.jpg")))
    model = keras_vit.load("glyphs", classifier_activation="softmax")
    names = model.config.class_names
    return lambda: keras_vit.decode_predictions(model.predict(model.preprocess(photo), verbose=0), class_names=names)


def predict_command(folder: Path) -> Callable[[], object]:
    """`keras-vit predict` on one photo, with the model that it loads."""
    photo = str(next(make_photos(folder / "photos").rglob("*.jpg")))
    return lambda: cli.main(["predict", photo, "--weights", "glyphs"])


CALLS = {
    call.__name__: call
    for call in (
        create_model,
        from_checkpoint,
        timm_folder,
        finetune,
        finetune_segmentation,
        segment,
        export_int8,
        predict,
        predict_command,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("call", nargs="?", choices=CALLS, help="one call, with the names of its files; all without it")
    name = parser.parse_args().call
    if name is None:
        for name in CALLS:
            run = subprocess.run([sys.executable, __file__, name], stdout=subprocess.PIPE, text=True, check=True)
            print(run.stdout.partition("\n")[0])
        return
    with tempfile.TemporaryDirectory() as folder:
        call = CALLS[name](Path(folder))
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            files = files_of(call)
    print(f"{name}: {len(files)} files", *files, sep="\n    ")


if __name__ == "__main__":
    main()
