"""What is installed: pinned versions, and a wheel that carries its data."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def pins():
    lines = re.findall(r"^([\w.-]+)==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in lines}


def test_every_requirement_is_pinned(pins):
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    names = {re.match(r"[\w.-]+", line)[0].replace("_", "-") for line in [*PROJECT["dependencies"], *extras]}
    assert names - set(pins) == {"keras-vit"}


def test_torch_is_pinned_and_nothing_of_cuda_is(pins):
    assert pins["torch"] == "2.13.0"
    assert not [name for name in pins if name.startswith(("nvidia", "cuda", "triton"))]


def test_pre_commit_runs_the_pinned_ruff(pins):
    hooks = re.findall(r"ruff==([\w.]+)", (REPOSITORY / ".pre-commit-config.yaml").read_text())
    assert set(hooks) == {pins["ruff"]}


def test_the_wheel_carries_its_data(tmp_path):
    """Built without network, with the build tools of this environment."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*command, str(REPOSITORY)], check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("keras_vit-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    data = {path.name for path in (REPOSITORY / "weights").iterdir() if path.is_file() and path.suffix != ".py"}
    assert {f"keras_vit/weights/{name}" for name in data} <= names
    assert "imagenet1k_classes.tsv" in data
    assert {"keras_vit/py.typed", "keras_vit/__init__.py", "keras_vit/layers/__init__.py"} <= names
    roots = {name.split("/")[0].split("-")[0] for name in names}
    assert roots == {"keras_vit"}
    assert not [name for name in names if "__pycache__" in name or re.match(r"keras_vit/weights/.*\.py", name)]
