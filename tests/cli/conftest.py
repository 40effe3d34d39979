"""The program in a fresh process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
HEAVY = ("keras", "tensorflow", "jax", "jaxlib", "torch", "h5py", "PIL", "scipy")

# What pip writes as bin/keras-vit; at the end it says what has been imported.
PROGRAM = f"""
import atexit, json, os, sys
atexit.register(lambda: os.write(int(os.environ["REPORT"]), json.dumps(
    sorted({{name.partition(".")[0] for name in sys.modules}} & set({HEAVY!r}))).encode()))
from keras_vit.cli import main
sys.exit(main())
"""


@pytest.fixture
def program(tmp_path):
    """A function that runs `keras-vit` in a fresh process: its output, errors, and the heavy modules it imported."""
    script = tmp_path / "bin" / "keras-vit"
    script.parent.mkdir()
    script.write_text(PROGRAM)

    def run(*arguments, code=0, **environment):
        reader, writer = os.pipe()
        done = subprocess.run(
            [sys.executable, str(script), *map(str, arguments)],
            env={**bare_environment(tmp_path), "REPORT": str(writer), **environment},
            pass_fds=[writer],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=120,
        )
        os.close(writer)
        with os.fdopen(reader) as report:
            imported = json.load(report)
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr, imported

    run.environment = bare_environment(tmp_path)
    return run


def bare_environment(home):
    """Without what tests/conftest.py sets to keep frameworks quiet."""
    kept = ("PATH", "KERAS_BACKEND", "SYSTEMROOT", "LD_LIBRARY_PATH")
    bare = {name: os.environ[name] for name in kept if name in os.environ}
    return {**bare, "PYTHONPATH": str(REPOSITORY), "HOME": str(home), "KERAS_VIT_OFFLINE": "1"}
