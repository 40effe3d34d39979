"""The benchmark's tables and pictures, and the environment that it makes."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def speed():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        spec = importlib.util.spec_from_file_location("speed", ROOT / "benchmarks" / "speed.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def result(row, backend="torch", **contestants):
    versions = {"p": "1"}
    return {"row": row, "backend": backend, "machine": "a machine", "versions": versions, "contestants": contestants}


def test_ratios_are_taken_within_rounds(speed):
    """The machine becomes ten times as slow in the middle; the ratio stays."""
    row = result(speed.ROWS[0], keras_vit=[0.2, 2.0, 2.2], timm=[0.1, 1.0, 1.1])
    assert [*speed.lines(row)][1] == f"| {speed.ROWS[0]} | torch | timm | 1000.0 | 0.50 | 0.50 to 0.50 |"
