"""The benchmark's tables, and the environment that it makes."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def speed():
    spec = importlib.util.spec_from_file_location("speed", ROOT / "benchmarks" / "speed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(row, **contestants):
    return {"row": row, "backend": "torch", "machine": "a machine", "versions": {"p": "1"}, "contestants": contestants}


def test_ratios_are_taken_within_rounds(speed):
    """The machine becomes ten times as slow in the middle; the ratio stays."""
    seen = result(speed.ROWS[0], keras_vit=[0.2, 2.0, 2.2], timm=[0.1, 1.0, 1.1])
    assert [*speed.lines(seen)][1] == f"| {speed.ROWS[0]} | torch | timm | 1000.0 | 0.50 | 0.50 to 0.50 |"


def test_the_page_has_all_rows_in_their_order(speed):
    step = {**dict.fromkeys(speed.STEPS, 1.5), "peak_MB": 300.0}
    starts = next(row for row in speed.ROWS if row.endswith("start"))
    results = [result(starts, keras_vit=[step]), *(result(row, keras_vit=[0.1]) for row in (*speed.ROWS[1::-1], "own"))]
    table = speed.table(results)
    assert "Measured on a machine, with p 1." in table
    rows = [line.split(" | ")[0][2:] for line in table.splitlines() if "| torch |" in line]
    assert rows == [*speed.ROWS[:2], "own", starts]
    assert table.endswith("| keras_vit | 1.50 | 1.50 | 1.50 | 1.50 | 300 |\n")


def test_peers_and_constraints_pin_different_packages():
    def pins(path):
        lines = (ROOT / path).read_text().splitlines()
        return {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}

    assert pins("benchmarks/peers.txt").isdisjoint(pins("constraints.txt"))
    assert {"timm", "flax", "keras-hub"} < pins("benchmarks/peers.txt")
