"""Child processes of tests."""

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

# What Keras imports only because it is installed: more than half of the seconds that `import keras` takes, and as many
# again for TensorFlow, whose seed `keras.utils.set_random_seed` sets on every backend.
UNASKED = ("jax", "matplotlib", "sklearn", "tensorflow")


def environment(*needed: str, **variables: str) -> dict[str, str]:
    """The variables of a process that finds the repository, and imports of `UNASKED` only its backend and `needed`.

    For processes in which no user's surroundings are tested. `variables` come on top of those of this process.
    """
    variables = {**os.environ, **variables}
    folder = Path(os.environ["KERAS_HOME"], "hidden", variables["KERAS_BACKEND"], *needed)
    folder.mkdir(parents=True, exist_ok=True)
    for name in {*UNASKED} - {variables["KERAS_BACKEND"], *needed}:
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is hidden by tests/processes.py')\n")
    return {**variables, "PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)])}
