"""`keras-vit detect`: words, an example, files, and what is refused."""

import json

import pytest

pytestmark = pytest.mark.once


def test_words_and_an_example(run, photo, golden, tmp_path):
    owl = ("--weights", golden("owl_v2_p14").folder)
    out = run("detect", photo, *owl, "--names", "cat, dog", "--threshold", 0, "--most", 2, "--json").out
    (row,) = json.loads(out)
    assert len(row["boxes"]) == len(row["scores"]) == 2 and {*row["names"]} <= {"cat", "dog"}
    for name in ("boxes.png", "boxes.json", "boxes.csv"):
        run("detect", photo, *owl, "--names", "cat", "--threshold", 0, "-o", tmp_path / name)
        assert (tmp_path / name).stat().st_size
    run("detect", photo, *owl, "--like", photo, "--box", 1, 2, 50, 60, "--nms", 0.3, "-o", tmp_path / "one.csv")
    folder = tmp_path / "photos"
    folder.mkdir()
    photo.rename(folder / "photo.png")
    (folder / "photo.jpg").write_bytes((folder / "photo.png").read_bytes())  # two of one name, and nothing to write
    assert len(json.loads(run("detect", folder, *owl, "--names", "cat", "--json").out)) == 2
    (folder / "photo.jpg").unlink()
    run("detect", folder, *owl, "--names", "cat", "-o", tmp_path / "found", "--format", "json")
    assert json.loads((tmp_path / "found" / "photo.json").read_text())["names"].count("cat") == 16


@pytest.mark.parametrize(
    "words, message",
    [
        (("--names", "a", "--threshold", "2"), "threshold must be a number from 0 to 1"),
        (("--like", "nothing.png"), "no file or folder nothing.png"),
        (("--names", "a,a"), "class_names must differ"),
    ],
)
def test_what_makes_no_sense(run, photo, golden, words, message):
    words = [word.replace("{photo}", str(photo)) for word in words]
    assert message in run("detect", photo, "--weights", golden("owl_v1_p16").folder, *words, code=1).err


def test_other_weights(run, photo, golden, tiny):
    pair = golden("fam_hf_clip_full").folder
    assert "names whole pictures" in run("detect", photo, "--weights", pair, "--names", "a,b", code=1).err
    assert "takes a detector of" in run("detect", photo, "--weights", tiny(), code=1).err
    owl = golden("owl_v1_p16").folder
    assert "which finds boxes" in run("classify", photo, "--weights", owl, "--names", "a,b", code=1).err
