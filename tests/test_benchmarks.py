"""The benchmark's tables and pictures, and the environment that it makes."""

import pytest

from tests.processes import script

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def speed():
    return script("benchmarks/speed.py")


def result(row, backend="torch", **contestants):
    versions = {"p": "1"}
    return {"row": row, "backend": backend, "machine": "a machine", "versions": versions, "contestants": contestants}


def test_ratios_are_taken_within_rounds(speed):
    """The machine becomes ten times as slow in the middle; the ratio stays."""
    row = result(speed.ROWS[0], keras_vit=[0.2, 2.0, 2.2], timm=[0.1, 1.0, 1.1])
    assert [*speed.lines(row)][1] == f"| {speed.ROWS[0]} | torch | timm | 1000.0 | 0.50 | 0.50 to 0.50 |"


def test_a_row_says_where_and_when_it_was_measured(speed):
    row = {**result(speed.ROWS[0], keras_vit=[0.2], timm=[0.1]), "date": "2026-01-02", "torch": "2.0, products by MKL"}
    module = __import__("speed_page")
    assert f"| {speed.ROWS[0]} | A 2026-01-02 | 0.50 |" in "\n".join(module.summary([row]))
    assert [*module.processors([row])] == ["A is a machine, with PyTorch 2.0, products by MKL"]


def test_calls_are_a_row_of_their_own(speed):
    assert speed.row_of("calls") == speed.CALLS
    assert speed.calls.calls_of(lambda: len("")) < 10
