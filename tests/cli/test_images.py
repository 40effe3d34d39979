"""The commands about models at work: predict, embed, evaluate and finetune."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from keras_vit import training
from keras_vit.cli.training import _at_most_own_size
from tests.pictures import save

pytestmark = pytest.mark.once


def test_predict_shows_all_classes_of_a_small_model(run, tiny, photo):
    weights = tiny(class_names=("one", "two", "three"))
    out = run("predict", photo, photo, "--weights", weights).out
    assert [word for word in out.split() if word in ("one", "two", "three")] == ["two", "three", "one"] * 2
    best = json.loads(run("predict", photo, "--weights", weights, "--top", 1, "--json").out)[0]["classes"]
    # The softmax of 0, 2, 1.
    assert best == [{"id": "class_1", "name": "two", "probability": pytest.approx(0.665241, abs=1e-6)}]


def test_pictures_of_other_channels(run, tiny, tmp_path):
    tifffile = pytest.importorskip("tifffile")
    weights = tiny("four.keras", channels=4, pixel_mean=0.5, pixel_std=0.5)
    tifffile.imwrite(tmp_path / "field.tif", np.arange(8 * 8 * 4).reshape(8, 8, 4).astype("uint8"))
    assert "field.tif" in run("predict", tmp_path, "--weights", weights).out
    run("inspect", weights, "--image", tmp_path / "field.tif", "-o", tmp_path / "page.htm")
    assert "field.tif" in (tmp_path / "page.htm").read_text(encoding="utf-8")


def test_predict_without_pictures_reads_the_sample(run):
    (found,) = json.loads(run("predict", "--json").out)
    assert Path(found["image"]).name == "character.png" and found["classes"][0]["name"] == "R"


@pytest.fixture
def photos(photo, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in "abc":
        shutil.copy(photo, folder / f"{name}.png")
    return folder


def test_embed_a_folder_and_shards(run, tiny, photos, tmp_path):
    model, output = tiny(), tmp_path / "x.npz"
    command = ("embed", photos, "--weights", model, "-o", output)
    following = f"Next:\n  keras-vit similar photo.jpg {output}\n  keras-vit duplicates {output}\n"
    assert run(*command).out == f"Wrote {output}: 3 images, 16 features each\n{following}"
    assert run(*command).out == f"{output} is already complete: 3 images, 16 features each\n{following}"
    with np.load(output) as file:
        assert file["names"].tolist() == ["a.png", "b.png", "c.png"] and file["features"].shape == (3, 16)
    options = ("--weights", model, "--features", "block_-1", "--batch-size", 1, "--dtype", "float16", "--json")
    for i in range(2):
        part = tmp_path / f"part{i}.npz"
        data = json.loads(run("embed", photos, *options, "--shard", f"{i}/2", "-o", part).out)
        wanted = {"path": str(part), "images": 1 + i, "shape": [5, 16], "skipped": [], "already_complete": False}
        assert data == wanted


@pytest.fixture(scope="module")
def first(tiny):
    """A model that says the first class to everything."""
    return tiny(bias=(1.0, 0.0, 0.0))


def test_evaluate(run, colours, first, tmp_path):
    pytest.importorskip("matplotlib")
    out = run("evaluate", first, colours, "--output", tmp_path, "--batch-size", 4).out
    assert "33.33" in out and "blue (2)" in out
    written = json.loads((tmp_path / "evaluation.json").read_text())
    assert written["accuracy"] == pytest.approx(1 / 3) and written["class_names"] == ["blue", "green", "red"]
    assert written["confusion"] == [[2, 0, 0]] * 3
    # Two classes are short of the largest logit by 1.
    assert written["loss"] == pytest.approx(np.log(np.e + 2) - 1 / 3, rel=1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {"confusion.png", "evaluation.json"}


def test_evaluate_few_shot(run, colours, first):
    options = ("--few-shot", 1, 2, "--seeds", 2, "--l2", 2, "--json")
    found = json.loads(run("evaluate", first, colours, *options).out)
    assert found["shots"] == [1, 2] and np.shape(found["accuracy"]) == (2, 1, 2)
    assert found["mean"] == [[1.0], [1.0]]  # a random Transformer tells plain colours apart
    assert (found["train_examples"], found["test_examples"], found["l2"]) == (12, 6, [2.0])
    assert found["seeds"] == [0, 1]


NAMES = ("[red] one", "two")


@pytest.fixture(scope="module")
def arguments(tmp_path_factory, tiny):
    root = tmp_path_factory.mktemp("images")
    for split in ("train", "test"):
        for label, name in enumerate(NAMES):
            for i in range(2):
                save(root / split / name / f"{i}.png", np.full((8, 8, 3), 100 * label + 100 + i, "uint8"))
    return ("finetune", tiny(), root, "--batch-size", 2, "--image-size", 8, "--crop", "resize", "--no-flip")


def test_finetune(run, arguments, tmp_path):
    """Folders that other processes and systems have touched are empty ones."""
    output = tmp_path / "run"
    output.mkdir()
    (output / ".lock").touch()
    (output / ".DS_Store").write_bytes(b"\0")
    options = ("--steps", 2, "--warmup-steps", 1, "--learning-rate", 1e-3, "--lora", 3, "--output", output)
    result = json.loads(run(*arguments, *options, "--json").out)
    assert result["class_names"] == [*NAMES] and result["output"] == str(output)
    recipe = result["recipe"]
    assert (recipe["steps"], recipe["warmup_steps"], recipe["learning_rate"], recipe["batch_size"]) == (2, 1, 1e-3, 2)
    assert (recipe["augmentation"]["crop"], recipe["augmentation"]["flip"]) == ("resize", False)
    assert (output / "model.keras").exists() and (output / ".DS_Store").exists()
    with np.load(output / "adapters.npz") as file:
        ranks = {file[name].shape[-1] for name in file if name.endswith("lora_kernel_a")}
        assert ranks == {3} and {"head/kernel", "head/bias"} < set(file)
    streams = run("predict", arguments[2] / "test" / NAMES[0] / "0.png", "--weights", output / "model.keras")
    assert "[red] one" in streams.out
    # The same again is the same run, which is over.
    assert str(output) in run(*arguments, *options).out


def test_what_a_run_held_out_is_measured_alone(run, colours, tiny, tmp_path):
    """The log of the run has the same loss; elsewhere a warning says what the run was trained on."""
    data, model = tmp_path / "photos", tmp_path / "run" / "model.keras"
    shutil.copytree(colours / "train", data)
    options = ("--batch-size", 2, "--image-size", 8, "--steps", 2, "--validation", 0.25, "--output", tmp_path / "run")
    done = run("finetune", tiny(), data, *options, "--seed", 3)
    assert f"keras-vit evaluate {model} {data} --held-out\n" in done.out
    logged = float((tmp_path / "run" / "log.csv").read_text().split("\n")[2].split(",")[4])
    held = json.loads(run("evaluate", model, data, "--held-out", "--json").out)
    # Float32, in batches of another size.
    assert held["examples"] == 3 and held["loss"] == pytest.approx(logged, rel=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        everything = run("evaluate", model, data, "--json")
    assert json.loads(everything.out)["examples"] == 12
    assert "trained on 9 of these images" in everything.err and "--held-out measures the others" in everything.err
    for other in (colours, colours / "test"):
        assert "trained on" not in run("evaluate", model, other).err
        assert "--held-out needs" in run("evaluate", model, other, "--held-out", code=1).err
    (tmp_path / "run" / "step-00000002.npz").unlink()
    said = run("finetune", tiny(), data, *options, "--seed", 3, "--steps", 2, code=1).err
    assert "other settings: the weights differ" in said and "--restart" in said and "resume=" not in said


def test_files_that_are_not_pictures(run, tiny, photo, tmp_path):
    """The message has the flag that leaves them out, and no objects of Python."""
    shutil.copy(photo, tmp_path / "photo.jpg")
    (tmp_path / "notes.jpg").write_text("no picture")
    (tmp_path / "phone.jpg").write_bytes(b"\0\0\0\x18ftypheic" + bytes(99))
    command = ("predict", photo, tmp_path / "notes.jpg", tmp_path / "phone.jpg", "--weights", tiny())
    said = run(*command, code=1).err
    assert "notes.jpg: it cannot be read as an image: its format is not known. There are 2 such files." in said
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        said = run(*command, "--skip-unreadable")
    assert "photo.png" in said.out and "phone.jpg is left out: " in said.err
    assert "it is a HEIC, which is not supported. Convert it to JPEG" in said.err and "BufferedReader" not in said.err
    said = run("embed", tmp_path, "-o", tmp_path / "x.npz", "--weights", tiny(), code=1).err
    assert "or pass --skip-unreadable to leave" in said and "on_bad_image" not in said


def test_finetune_refuses_before_it_writes(run, arguments, tmp_path):
    assert "multiple of" in run(*arguments, "--output", tmp_path / "run", "--image-size", 10, code=1).err
    assert not (tmp_path / "run").exists()


def test_finetune_without_a_recipe_ends_in_minutes_at_a_size_that_the_weights_are_for(run, arguments, tiny, tmp_path):
    recipe = training.recipe("finetune/folder")
    assert recipe.steps * recipe.batch_size < 2_000 and recipe.image_size == 224
    assert _at_most_own_size(recipe, "glyphs") == (24, 24)
    assert _at_most_own_size(recipe, str(tiny(image_size=256))) == (224, 224)
    options = ("--steps", 1, "--output", tmp_path / "run", "--json")
    result = json.loads(run(*(word for word in arguments if word not in ("--image-size", 8)), *options).out)
    assert (result["recipe"]["name"], result["recipe"]["image_size"]) == ("finetune/folder", [8, 8])


def test_pretrain(run, colours, tmp_path):
    """From random weights, with a probe on labelled pictures; the same again is the same run, which is over."""
    small = ("--image-size", 16, "--batch-size", 4, "--slices", 8, "--local-views", 1, "--no-flip")
    command = ("pretrain", colours / "train", "--weights", "ViT-mu/16", *small, "--epochs", 0.5, "--weight", 0.1)
    options = ("--validation", colours / "test", "--output", tmp_path / "run", "--freeze", "block_[0-9]")
    done = run(*command, *options, "--json")
    result = json.loads(done.out)
    assert "weight 0.1, 8 slices" in done.err and "flip=False, local_views=1" in done.err
    assert "12 images without labels to train on, 6 to evaluate on" in done.err
    assert result["recipe"]["steps"] == 2 and result["recipe"]["freeze"] == ["block_[0-9]"]
    assert 0 <= result["log"][-1]["val_accuracy"] <= 1 and result["log"][-1]["rank"] >= 1
    again = run(*command, *options).out
    assert f"keras-vit finetune {tmp_path / 'run' / 'model.keras'} {colours / 'test'}" in again
    assert json.loads(run("info", tmp_path / "run" / "model.keras", "--json").out)["config"]["classes"] is None
    taught = (*command[:4], *small[:4], "--steps", 1, "--output", tmp_path / "taught", "--teacher", "glyphs")
    assert "val_knn" in json.loads(run(*taught, *options[:2], "--cache", tmp_path, "--json").out)["log"][0]
    assert "--slices" in run(*taught, "--slices", 8, code=1).err


def test_evaluate_by_neighbours_and_with_a_report(run, colours, first, tmp_path):
    pytest.importorskip("matplotlib")
    found = json.loads(run("evaluate", first, colours, "--knn", 3, "--json").out)
    assert found["accuracy"] == 1 and found["class_names"] == ["blue", "green", "red"]
    page = tmp_path / "report.html"
    found = json.loads(run("evaluate", first, colours, "--views", "flip", "--report", page, "--json").out)
    assert len(found["mistakes"]) == 4 and page.read_text().count("taken for blue") == 4
    assert "give one of the two" in run("evaluate", first, colours, "--knn", "--few-shot", code=1).err


def test_evaluate_labels_of_a_table(run, colours, tiny, tmp_path):
    files = sorted((colours / "test").rglob("*.png"))
    lines = ["picture;labels", *(f"{path};{path.parent.name}|{'warm' * (path.parent.name == 'red')}" for path in files)]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(lines))
    model = tiny(bias=(-2.0, -2.0, 2.0, 2.0), classes=4, class_names=("blue", "green", "red", "warm"))
    options = ("--file", "picture", "--label", "labels", "--separator", "|", "--threshold", 0.6, "--json")
    found = json.loads(run("evaluate", model, table, *options).out)
    assert found["threshold"] == 0.6 and found["images_per_class"] == [2, 2, 2, 2]
    assert found["f1"] == [0, 0, 0.5, 0.5] and found["mean_average_precision"] == pytest.approx(1 / 3)
    run("evaluate", model, table, *options, "--output", tmp_path / "results")
    assert (tmp_path / "results" / "evaluation.json").exists()
    assert "no folder" in run("evaluate", model, table, *options, "--report", tmp_path / "no" / "r.html", code=1).err


def test_similar_and_duplicates(run, colours, first, tmp_path):
    pytest.importorskip("matplotlib")
    features, photo = tmp_path / "features.npz", next((colours / "test" / "red").iterdir())
    run("embed", colours / "test", "--weights", first, "-o", features)
    found = json.loads(run("similar", photo, features, "--count", 2, "--json", "--output", tmp_path / "sheet.html").out)
    assert {row["image"] for row in found} == {str(path) for path in (colours / "test" / "red").iterdir()}
    assert found[0]["similarity"] == 1 and (tmp_path / "sheet.html").read_text().count("<img") == 3
    assert "0." in run("similar", photo, features, "--output", tmp_path / "sheet.png").out
    pairs = json.loads(run("duplicates", features, "--json", "--output", tmp_path / "pairs.html").out)
    assert {(Path(row["image"]).parent, Path(row["like"]).parent) for row in pairs} == {
        (colours / "test" / name,) * 2 for name in ("red", "green", "blue")
    }
    for command in (("similar", photo, features), ("duplicates", features, "--threshold", 1)):
        assert "must end with .html, .htm, .png" in run(*command, "--output", "sheet.jpg", code=1).err
    assert "another model" in run("similar", photo, features, "--weights", "glyphs", code=1).err
    np.savez(tmp_path / "foreign.npz", names=["a"])
    assert "was not written by evaluation.embed" in run("duplicates", tmp_path / "foreign.npz", code=1).err
