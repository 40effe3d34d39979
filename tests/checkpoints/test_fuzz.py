"""A few seconds of `benchmarks/fuzz.py`: files with random damage end in a documented way, and nothing else is touched.

The script itself is what runs for an hour, with a ceiling for memory, and with HDF5 files, whose library may crash.
"""

import importlib.util
import warnings
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
COUNTS = {"npz": 40, "image": 80, "classes": 40, "run": 30, "index": 80, "safetensors": 80, "torch": 60}


@pytest.fixture(scope="module")
def fuzz():
    spec = importlib.util.spec_from_file_location("fuzz", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", COUNTS)
def test_random_damage(fuzz, tmp_path, kind):
    folder = tmp_path / "input"
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow about strange pictures, of readers about what they leave out
        sound = fuzz.make_sound(kind, tmp_path / "sound")
        outcomes = [fuzz.try_one(kind, 0, number, sound, folder) for number in range(COUNTS[kind])]
    assert [outcome for outcome in outcomes if outcome[0].startswith("!")] == []
    # Damage was done, and not all of it mattered: the inputs reach beyond the first check.
    errors = sum(outcome != "read" for outcome, _ in outcomes)
    assert COUNTS[kind] // 4 < errors < COUNTS[kind]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["input", "sound"]
