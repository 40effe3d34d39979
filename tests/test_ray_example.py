"""The example for Ray on a cluster of two processes, one of which is killed."""

import importlib.util
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import keras_vit

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}, which is an extra of its own")
    for name in ("ray", "PIL")
] + [pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for the workers in /proc")]


def workers(mark):
    """The processes of Ray, among those with a mark in their environment, that run our task now."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_text() and "embed_share" in (process / "cmdline").read_text():
                yield int(process.name)
        except (OSError, UnicodeDecodeError):  # ended, or somebody else's
            continue


def test_a_worker_is_killed_and_nothing_is_missing(tmp_path):
    from PIL import Image

    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(400):
        Image.fromarray(rng.integers(0, 256, (300, 400, 3), dtype="uint8")).save(folder / f"{i:03}.jpg")
    whole = keras_vit.evaluation.embed(keras_vit.load("glyphs"), folder, tmp_path / "whole.npz", batch_size=4)

    mark = f"KERAS_VIT_TEST_{secrets.token_hex(8)}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), mark: "1", "RAY_USAGE_STATS_ENABLED": "0"}
    output = tmp_path / "features.npz"
    command = [sys.executable, str(ROOT / "examples" / "embed_on_ray.py"), folder, "--weights", "glyphs"]
    command += ["--output", output, "--processes", "2", "--shares", "4", "--batch-size", "4"]
    script = subprocess.Popen(
        [*map(str, command)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    )
    killed, parts = [], output.with_name("features.npz.parts")
    begun = time.monotonic()
    while script.poll() is None and time.monotonic() - begun < 200:
        if not killed and any(path.stat().st_size for path in parts.glob("*.unfinished/*.features")):
            for worker in list(workers(mark))[:1]:
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)
        time.sleep(0.005)
    said, _ = script.communicate(timeout=30)
    assert script.returncode == 0, said
    assert killed and "4 of 4 shares, 400 images" in said
    with np.load(output) as found, np.load(whole.path) as wanted:
        for name in ("names", "features"):
            np.testing.assert_array_equal(found[name], wanted[name])
    assert not parts.exists()
