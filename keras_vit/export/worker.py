"""The other process of `export`: loads a saved model with another backend and writes the file.

    KERAS_BACKEND=tensorflow python -m keras_vit.export.worker FOLDER FILE

`FOLDER` holds `job.json`, `model.keras` and, for precisions that need images, `calibration.npy`. What `writing.write`
returns is left there as `result.json`. The process ends as soon as its standard input does.
"""

import json
import os
import sys
import threading
from pathlib import Path

import keras
import numpy as np

import keras_vit.models  # noqa: F401  Keras has to know the classes that the file names
from keras_vit.export.signature import Signature
from keras_vit.export.writing import FAILURE, RESULT, Job, write


def main(folder: Path, path: Path) -> None:
    """Writes the model in a folder to a path, as the job beside it says."""
    try:
        fields = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        job = Job(**{**fields, "signature": Signature.from_dict(fields["signature"])})
        # Not compiled: the optimizer may be one that only exists on the backend that saved it.
        model = keras.saving.load_model(folder / "model.keras", compile=False)
        images = folder / "calibration.npy"
        calibration = np.load(images, allow_pickle=False) if images.exists() else None
        result = write(model, job, calibration, path)
        (folder / RESULT).write_text(json.dumps(result), encoding="utf-8")
    except OSError as error:
        failure = {"errno": error.errno, "message": error.strerror or str(error)}
        (folder / FAILURE).write_text(json.dumps(failure), encoding="utf-8")
        raise


def _end_with_parent() -> None:
    # Not through sys.stdin: at the end of the process Python would wait for its lock.
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    main(Path(sys.argv[1]), Path(sys.argv[2]))
