"""The other process of `export` on JAX and torch: loads a saved model with TensorFlow, writes the file, runs it.

    KERAS_BACKEND=tensorflow python -m keras_vit.export.worker FORMAT FOLDER FILE

`FOLDER` holds `model.keras` and `images.npy`; the file's answers to those are left there as `answers.npy`.
"""

import sys
from pathlib import Path

import keras
import numpy as np

import keras_vit.models  # noqa: F401  Keras has to know the classes that the file names
from keras_vit.export.formats import FORMATS


def main(format: str, folder: Path, path: Path) -> None:
    """Writes `folder/model.keras` to `path`, and the answers of what was written to `folder/answers.npy`."""
    # Not compiled: the optimizer may be one that only exists on the backend that saved it.
    model = keras.saving.load_model(folder / "model.keras", compile=False)
    FORMATS[format].write(model, path)
    images = np.load(folder / "images.npy", allow_pickle=False)
    np.save(folder / "answers.npy", FORMATS[format].run(path, images))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
