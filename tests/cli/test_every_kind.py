"""Every command with every kind of model: it does its work, or says in a sentence that it is for another kind."""

import functools
import json
import re
import shutil

import numpy as np
import pytest

from keras_vit.checkpoints import save_model
from keras_vit.cli import inputs
from tests.export.tiny import fake_export
from tests.pictures import save
from tests.small_models import (
    small_backbone_config,
    small_bit,
    small_eomt,
    small_linear_depth,
    small_linear_segmenter,
    small_text_encoder,
    small_vit,
)

pytestmark = pytest.mark.once

KINDS = {
    "classifier": small_vit,
    "features": functools.partial(small_vit, classes=None),
    "bit": functools.partial(small_bit, image_size=8),
    "segmenter": functools.partial(small_linear_segmenter, backbone=small_backbone_config(dynamic=True)),
    "queries": small_eomt,
    "depths": functools.partial(small_linear_depth, backbone=small_backbone_config(dynamic=True)),
    "words": small_text_encoder,
}
COMMANDS = {
    "info": ("info", "MODEL"),
    "predict": ("predict", "PHOTO", "--weights", "MODEL"),
    "classify": ("classify", "PHOTO", "--names", "a,b", "--weights", "MODEL"),
    "segment": ("segment", "PHOTO", "-o", "OUT.png", "--weights", "MODEL"),
    "detect": ("detect", "PHOTO", "--weights", "MODEL"),
    "detect --names": ("detect", "PHOTO", "--names", "a,b", "--weights", "MODEL"),
    "segment --names": ("segment", "PHOTO", "-o", "OUT.png", "--names", "a,b", "--weights", "MODEL"),
    "depth": ("depth", "PHOTO", "-o", "OUT.png", "--weights", "MODEL"),
    "inspect": ("inspect", "MODEL", "-o", "OUT.html", "--image", "PHOTO"),
    "convert": ("convert", "MODEL", "OUT.keras"),
    "finetune": ("finetune", "MODEL", "DATA", "--output", "OUT", "--steps", "1", "--batch-size", "2"),
    "finetune --recipe segmentation/eomt": (
        *("finetune", "MODEL", "MASKS", "--output", "OUT", "--steps", "1", "--batch-size", "2", "--points", "8"),
        *("--task", "segmentation", "--recipe", "segmentation/eomt_ade20k_base", "--image-size", "16"),
    ),
    "finetune --recipe segmentation/dinov2": (
        *("finetune", "MODEL", "MASKS", "--output", "OUT", "--steps", "1", "--batch-size", "2"),
        *("--task", "segmentation", "--recipe", "segmentation/dinov2_linear", "--image-size", "16"),
    ),
    "pretrain": (
        *("pretrain", "DATA", "--weights", "MODEL", "--output", "OUT", "--steps", "1", "--batch-size", "2"),
        *("--image-size", "8", "--local-views", "1", "--slices", "8"),
    ),
    "evaluate": ("evaluate", "MODEL", "DATA"),
    "evaluate --few-shot": ("evaluate", "MODEL", "DATA", "--few-shot", "1", "--seeds", "1"),
    "evaluate --knn": ("evaluate", "MODEL", "DATA", "--knn", "1"),
    "embed": ("embed", "PHOTO", "-o", "OUT.npz", "--weights", "MODEL"),
    "export": ("export", "MODEL", "OUT.pt2", "--image-size", "8"),
}
# What does its work; every other pair is refused.
WORKS = {
    **dict.fromkeys(("info", "convert"), {*KINDS}),
    **{"predict": {"classifier", "bit"}, "segment": {"segmenter", "queries"}, "depth": {"depths"}},
    **{"inspect": {"classifier", "features", "bit"}, "finetune": {"classifier", "features", "bit"}},
    **dict.fromkeys(("classify", "detect", "detect --names", "segment --names"), set()),
    **{
        "finetune --recipe segmentation/eomt": {"classifier", "features", "queries"},
        "finetune --recipe segmentation/dinov2": {"classifier", "features"},
        "pretrain": {"classifier", "features"},
    },
    **{"evaluate": {"classifier", "bit"}, "embed": {"classifier", "features", "bit"}},
    **dict.fromkeys(("evaluate --few-shot", "evaluate --knn"), {"classifier", "features", "bit"}),
    **{"export": {*KINDS} - {"words"}},
}


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    for name, make in KINDS.items():
        save_model(make(), folder / f"{name}.keras")
    for kind, channels in (("images", 3), ("masks", 1)):
        pixels = np.arange(256 * channels).reshape(16, 16, channels).squeeze() % 2
        save(folder / "masks" / kind / "a.png", pixels.astype("uint8"))
    return folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_it_works_or_says_whom_it_is_for(run, files, photo, colours, tmp_path, monkeypatch, command, kind):
    fake_export(monkeypatch)  # tests/export writes files
    monkeypatch.chdir(tmp_path)
    values = {"MODEL": files / f"{kind}.keras", "PHOTO": photo, "DATA": colours, "MASKS": files / "masks"}
    arguments = [values.get(word, word) for word in COMMANDS[command]]
    if kind in WORKS[command]:
        run(*arguments)
        return
    message = run(*arguments, code=1).err
    assert not re.search(r"has no attribute|\w+Error|None", message), message
    if command.split()[0] in ("classify", "depth", "detect", "segment") and kind != "words":
        assert f"`keras-vit {command}` takes " in message
    if command == "predict" and "no answer for the whole" in message:
        assert all(f"`{other}`" in message.replace("keras-vit ", "") for other in ("segment", "depth", "detect"))
    assert len(message) < 600 and message.count("\n") <= 2, message
    assert not list(tmp_path.glob("OUT*"))


def test_a_folder_of_pictures_is_predicted_in_parts(run, files, colours, monkeypatch):
    """As many answers as pictures, and no more pictures in memory than asked for."""
    model = files / "classifier.keras"
    whole = json.loads(run("predict", colours / "train", "--weights", model, "--json").out)
    monkeypatch.setattr(inputs, "BATCH", 5)
    parts = json.loads(run("predict", colours / "train", "--weights", model, "--json").out)
    assert len(parts) == len(whole) == 12
    assert [row["image"] for row in parts] == [row["image"] for row in whole]


def test_a_folder_of_pictures_for_every_pixel(run, files, colours, tmp_path):
    """What is not a picture ends the command or, where that is asked for, is said; a mistyped folder is not made."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, path in enumerate(sorted((colours / "train").rglob("*.png"))[:2]):
        shutil.copyfile(path, photos / f"{number}.png")
    (photos / "bad.png").write_bytes(b"no picture")
    command = ("depth", photos, "--weights", files / "depths.keras", "-o")
    assert "bad.png" in run(*command, tmp_path / "first", code=1).err
    rows = json.loads(run(*command, tmp_path / "second", "--skip-unreadable", "--json").out)
    assert [row["output"] is None for row in rows] == [False, False, True] and "bad.png" in rows[2]["error"]
    assert sorted(path.name for path in (tmp_path / "second").iterdir()) == ["0.png", "1.png"]
    (photos / "album").mkdir()
    for name in ("0.png", "bad.png"):
        (photos / name).unlink()
    (photos / "1.png").rename(photos / "album" / "1.png")  # the only one
    run(*command, tmp_path / "third")
    assert (tmp_path / "third" / "album" / "1.png").exists()
    assert f"no folder {tmp_path}/tpyo" in run(*command, tmp_path / "tpyo" / "out", code=1).err
    assert not (tmp_path / "tpyo").exists()
