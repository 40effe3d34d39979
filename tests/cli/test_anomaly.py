"""`keras-vit anomaly`: fit, detect and evaluate, and what is refused."""

import json

import pytest

from tests.conftest import GOLDEN

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:.*does not contain all settings")]
FOLDER = GOLDEN / "anomaly_dino_threshold"


def test_fit_detect_evaluate(run, golden, tmp_path):
    golden(FOLDER.name)  # skips without reference files
    file, picture = tmp_path / "d.keras", FOLDER / "test" / "blot" / "000.png"
    weights = FOLDER / "dinov2_vits14_pretrain.pth"
    fit = ("anomaly", "fit", FOLDER / "train", "--weights", weights, "--image-size", 84, "--false-alarms", 0.2)
    done = run(*fit, "-o", file, "--json")
    assert json.loads(done.out)["false_alarms"] == 0.2 and "train/good/001.png" in done.err
    (row,) = json.loads(run("anomaly", "detect", file, picture, "-o", tmp_path / "map.png", "--json").out)
    assert row["anomalous"] is False and row["score"] < row["threshold"] and (tmp_path / "map.png").stat().st_size
    assert json.loads(run("anomaly", "evaluate", file, FOLDER, "--json").out)["pictures"] == 5
    assert "what `keras-vit anomaly fit` has written" in run("anomaly", "detect", weights, picture, code=1).err


@pytest.mark.parametrize(
    "words, message",
    [
        (("fit", "{photo}", "-o", "d.keras"), "needs --weights"),
        (("detect", "{photo}", "{photo}", "--coreset", "0.1"), "--coreset is for anomaly fit"),
        (("evaluate", "{photo}"), "needs a detector, and one folder"),
    ],
)
def test_what_makes_no_sense(run, photo, words, message):
    assert message in run("anomaly", *[word.replace("{photo}", str(photo)) for word in words], code=1).err
