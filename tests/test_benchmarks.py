"""The benchmark's tables and pictures, and the environment that it makes."""

import importlib.util
import json
import sys
import xml.etree.ElementTree as xml
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


def run(speed, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["speed.py", *map(str, arguments)])
    speed.main()


@pytest.fixture
def page(speed, tmp_path):
    """A page with the marks, and times of some rows in no order."""
    step = {**dict.fromkeys(speed.STEPS, 1.5), "peak_MB": 300.0}
    start = next(row for row in speed.ROWS if row.endswith("start"))
    results = [result(start, keras_vit=[step]), result("ViT-S/16 96 2 bfloat16 train", keras_vit=[0.1], timm=[0.2])]
    results += [result(row, keras_vit=[0.1, 0.2], timm=[0.1, 0.1], limit=[0.1, 0.1]) for row in speed.ROWS[2::-1]]
    results.append(result(speed.ROWS[0], backend="jax", keras_vit=[0.1]))
    (tmp_path / "speed.json").write_text(json.dumps(results))
    page = tmp_path / "speed.md"
    page.write_text("# Before\n\n<!-- measured: begin -->\nold\n<!-- measured: end -->\n\nAfter.\n")
    return page


def test_a_page_is_written_again_without_measuring(speed, page, monkeypatch):
    arguments = ("--page-only", "--json", page.with_suffix(".json"), "--page", page)
    run(speed, monkeypatch, *arguments)
    text = page.read_text()
    assert text.startswith("# Before\n") and text.endswith("\nAfter.\n") and "old" not in text
    assert "Measured on a machine, with p 1." in text
    start = next(row for row in speed.ROWS if row.endswith("start"))
    assert f"| {start} | torch | keras_vit | 1.50 | 1.50 | 1.50 | 1.50 | 300 |\n" in text
    rows = [*speed.ROWS[:3], "ViT-S/16 96 2 bfloat16 train"]
    head, details = text.split("<details")
    assert [line.split(" | ")[0][2:] for line in head.splitlines() if line.startswith(("| ViT", "| R50"))] == [
        *rows,
        start,
    ]
    lines = [line.split(" | ") for line in details.splitlines() if "| keras_vit |" in line]
    assert [line[0][2:] for line in lines] == [rows[0], *rows]
    assert [line[1] for line in lines[:2]] == ["torch", "jax"]
    pictures = [page.parent / name for name in ("images/speed_peers.svg", "images/speed_growth.svg")]
    assert all(f"]({path.relative_to(page.parent).as_posix()})" in head for path in pictures)
    peers, growth = ("".join(xml.parse(path).getroot().itertext()) for path in pictures)
    assert "ViT-S/16 96, batch 2, bfloat16, training" in peers and "PyTorch" in growth
    files = {path: path.read_bytes() for path in (page, *pictures)}
    run(speed, monkeypatch, *arguments)
    assert {path: path.read_bytes() for path in files} == files  # the same figures give the same files
