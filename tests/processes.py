"""Child processes of tests, and scripts that are not part of the package."""

import importlib.util
import os
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest

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


def run_together(arguments: list[str], count: int, variables: dict[str, str]) -> tuple[list[int], str, str]:
    """Runs Python with arguments in several processes, which know of each other as by torchrun.

    Returns their exit codes, and what process 0 printed on standard output and on standard error.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    shared |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, *arguments],
            cwd=REPOSITORY,
            env=variables | shared | {"RANK": str(index), "LOCAL_RANK": str(index)},
            stdout=subprocess.DEVNULL if index else subprocess.PIPE,
            stderr=subprocess.DEVNULL if index else subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    try:
        output, errors = processes[0].communicate(timeout=300)
        return [process.wait(timeout=60) for process in processes], output, errors
    finally:
        for process in processes:
            process.kill()
            process.wait()


def script(path: str) -> types.ModuleType:
    """A file of Python in the repository as a module; it finds what lies beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend((REPOSITORY / path).parent)
        spec = importlib.util.spec_from_file_location(Path(path).stem, REPOSITORY / path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
