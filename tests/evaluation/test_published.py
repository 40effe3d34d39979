"""The comparison with published answers, on a local server with repositories of small models: nothing is fetched."""

import dataclasses
import io
import json
import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import depth, segmentation
from keras_vit.checkpoints.files import write_safetensors
from keras_vit.cli import main
from keras_vit.depth.metrics import read_nyu
from keras_vit.evaluation import published
from keras_vit.evaluation.published import PublishedAnswer, published_answers, verify, verify_figures
from keras_vit.preprocessing import imagenet1k_classes
from keras_vit.text import imagenet_names, published_templates, templates
from tests.checkpoints.hub_server import Repository, local_hub
from tests.small_models import small_vit

pytestmark = pytest.mark.once

pytest.importorskip("huggingface_hub")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A Hub of the test's own."""
    with local_hub(tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture(scope="module")
def model():
    """A small model that answers."""
    return small_vit(image_size=16, patch_size=8, classes=5)


@pytest.fixture(scope="module")
def picture():
    """A picture of 20 x 30 pixels: its bytes as PNG, and its pixels."""
    pixels = np.random.default_rng(1).integers(0, 256, (20, 30, 3), "u1")
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue(), pixels


@pytest.fixture
def answers(server, model, picture, tmp_path):
    """What was published of `me/model`: logits and tokens of a picture, and of tensors."""
    data, pixels = picture
    images = np.reshape(model.preprocess(pixels), (1, 16, 16, 3))
    logits = model.predict(images, verbose=0)[0]
    tokens = keras.Model(model.input, model.get_layer("encoder_norm").output).predict(images, verbose=0)[0]
    noise = np.random.default_rng(2).normal(size=(2, 16, 16, 3)).astype("float32")
    write_safetensors(
        tmp_path / "tensors.safetensors",
        [("input", np.moveaxis(noise, -1, 1)), ("output", model.predict(noise, verbose=0))],
    )
    keras_vit.to_checkpoint(model, tmp_path / "model.npz")
    files = {"model.npz": (tmp_path / "model.npz").read_bytes(), "test/picture.png": data}
    files["test/tensors.safetensors"] = (tmp_path / "tensors.safetensors").read_bytes()
    server.repositories["me/model"] = Repository(files)
    server.pages["/picture.png"] = data
    common = {"repository": "me/model", "source": "here"}
    at_address = {**common, "picture": f"{server.base}/picture.png"}
    return [
        PublishedAnswer(**at_address, output="logits", expected=tuple(logits[:3].tolist())),
        PublishedAnswer(**at_address, output="tokens", expected=tuple(tokens[:3, :2].tolist())),
        PublishedAnswer(**at_address, output="tokens", row=4, expected=tuple(tokens[4:, :2].tolist())),
        PublishedAnswer(**common, picture="test/picture.png", output="logits", expected=tuple(logits.tolist())),
        PublishedAnswer(**common, tensors="test/tensors.safetensors", output="logits"),
    ]


def test_answers(answers, server, tmp_path):
    table = verify("me/model", answers=answers)
    assert [row["result"] for row in table] == ["agrees"] * 5 and table.agrees
    assert all(row["difference"] <= row["allowed"] for row in table)
    assert [row["input"] for row in table] == ["picture.png"] * 4 + ["tensors.safetensors"]
    assert "me/model" in str(table) and "agrees" in str(table)
    wrong = dataclasses.replace(answers[0], expected=(answers[0].expected[0], answers[0].expected[1] + 0.01))
    shifted = dataclasses.replace(answers[2], row=3)  # two tokens are left from there on, and one is compared
    table = verify(["me/model"], answers=[answers[0], wrong, shifted])
    assert [row["result"] for row in table] == ["agrees", "differs", "differs"] and not table.agrees
    np.testing.assert_allclose(table[1]["difference"], 0.01, rtol=1e-3)  # of 0.01 in float32 numbers of order 1
    # An answer that is not a number.
    path = tmp_path / "nan.safetensors"
    nan = np.full((1, 3, 16, 16), np.nan, "float32")
    write_safetensors(path, [("input", nan), ("output", np.zeros((1, 5), "float32"))])
    server.repositories["me/model"].files["test/tensors.safetensors"] = path.read_bytes()
    (row,) = verify("me/model", answers=answers[-1:])
    assert row["result"] == "differs" and np.isnan(row["difference"])


def test_what_cannot_be_had(answers, server):
    """Each is a row with the reason, and the others are compared all the same."""
    server.repositories["me/damaged"] = Repository(server.repositories["me/model"].files, etags={"model.npz": "0" * 64})
    cases = (
        (dataclasses.replace(answers[0], repository="me/absent"), "Repository Not Found"),
        (dataclasses.replace(answers[0], picture=f"{server.base}/absent.png"), "answered 404"),
        (dataclasses.replace(answers[4], tensors="model.npz"), "input"),
        (dataclasses.replace(answers[0], expected=tuple(range(9))), r"shape \(5,\), expected \(9,\)"),
        (dataclasses.replace(answers[0], repository="me/damaged"), "model.npz arrived damaged: its hash is .*, exp"),
    )
    *rows, good = verify("all", answers=[*(answer for answer, _ in cases), answers[0]])
    assert good["agrees"] and not any(row["agrees"] for row in rows)
    for row, (_, reason) in zip(rows, cases, strict=True):
        assert row["result"].startswith("failed: ") and re.search(reason, row["error"])


def test_names():
    known = [PublishedAnswer("me/model", "logits", "here")]
    for names, error, message in (
        ("me/modal", ValueError, r"No published answers of 'me/modal' are known. Did you mean 'me/model'\?"),
        ([], ValueError, "names must name at least one of: me/model; or pass 'all'"),
        ([3], TypeError, "names must be repositories"),
    ):
        with pytest.raises(error, match=message):
            verify(names, answers=known)


def test_the_command(answers, server, picture, tmp_path, monkeypatch, capsys):
    """With a picture of the user's, so that none is fetched from an address."""
    (tmp_path / "mine.png").write_bytes(picture[0])
    server.pages.clear()
    monkeypatch.setattr(published, "published_answers", lambda: tuple(answers[:2]))
    mine = ["--picture", str(tmp_path / "mine.png")]
    assert main(["verify", "me/model", *mine]) == 0
    assert "agrees" in capsys.readouterr().out
    wrong = dataclasses.replace(answers[0], expected=(9.0,))
    monkeypatch.setattr(published, "published_answers", lambda: (answers[0], wrong))
    assert main(["verify", "all", "--json", *mine]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [row["agrees"] for row in rows] == [True, False]
    assert rows[1]["expected"] == [9.0]


def test_the_published_table():
    """Every row says where it is from, and has something to compute and something to compare with."""
    assert len(published_answers()) >= 14
    for row in published_answers():
        assert row.source and row.output in ("logits", "tokens") and (row.picture is None) != (row.tensors is None)
        assert row.expected is not None or row.answers is not None or row.tensors is not None
        assert 0 < row.absolute <= 1e-3 and 0 < row.relative <= 1e-3


# Figures

TEMPLATES = "openai_stl10"  # two, in place of 80: 1,000 names are many


@pytest.fixture(scope="module")
def figures(golden, tmp_path_factory):
    """Two towers, a folder of three classes of ImageNet, and what independent arithmetic measures on it."""
    pytest.importorskip("tokenizers")
    folder, rng = tmp_path_factory.mktemp("imagenet"), np.random.default_rng(0)
    ids = [wnid for wnid, _ in imagenet1k_classes()]
    both = keras_vit.load_image_text(golden("txt_hf_clip").folder)
    pictures = rng.integers(0, 256, (12, 32, 32, 3), "u1")
    words = [t.replace("{}", name) for name in imagenet_names() for t in published_templates()[TEMPLATES]]
    rows = both.embed_texts(words).reshape(1000, 2, -1).mean(1)
    best = (both.embed_images(list(pictures)) @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T).argmax(1)
    for i, guess in enumerate(best):
        label = guess if i % 3 else (guess + 1) % 1000  # two of three are right
        (folder / ids[label]).mkdir(exist_ok=True)
        Image.fromarray(pictures[i]).save(folder / ids[label] / f"{i}.png")
    return golden("txt_hf_clip").folder, folder


def catalogue_row(folder, figure, family="CLIP", name="zero-shot top-1"):
    return {"name": str(folder), "family": family, "figures": {name: figure, "another": 1.0}}


@pytest.mark.filterwarnings("ignore:.*token")
def test_figures(figures, monkeypatch, capsys):
    weights, folder = figures
    monkeypatch.setitem(templates._published(), "openai_80", templates._published()[TEMPLATES])
    monkeypatch.setattr(published, "list_weights", lambda: [catalogue_row(weights, 60.0)])
    assert main(["verify", str(weights), "--data", str(folder), "--batch-size", "5", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert row["expected"] == [60.0] and row["result"] == "differs: 66.67, published 60"
    assert row["answer"] == pytest.approx([200 / 3]) and row["difference"] == pytest.approx(20 / 3)


def test_accuracy_of_a_classifier(figures, tmp_path):
    _, folder = figures
    model = small_vit(image_size=16, patch_size=8, classes=1000)
    keras_vit.to_checkpoint(model, tmp_path / "model.npz")
    ids = [wnid for wnid, _ in imagenet1k_classes()]
    pictures = sorted(folder.glob("*/*.png"))
    guesses = model.predict(model.preprocess(pictures), verbose=0).argmax(1)
    right = folder / ids[guesses[0]]  # one picture that the model is right about
    right.mkdir(exist_ok=True)
    (right / "one_more.png").write_bytes(pictures[0].read_bytes())
    labels = [path.parent.name for path in pictures]
    expected = 100 * (1 + sum(ids[k] == label for k, label in zip(guesses, labels, strict=True))) / (len(labels) + 1)
    row = {"name": str(tmp_path / "model.npz"), "family": "ViT", "figures": {}, "top1": expected, "classes": 1000}
    (found,) = verify_figures("all", folder, rows=[row])
    (right / "one_more.png").unlink()
    assert found["agrees"] and found["answer"] == pytest.approx([expected]) and found["output"] == "top-1"
    assert found["result"] == f"agrees: {expected:.4g}, published {expected:g}"


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"family": "SigLIP"}, "49408 tokens"), ({"name": "hf://me/absent"}, ""), ({"name": "none.npz"}, "no file none")],
)
def test_figures_that_cannot_be_had(figures, change, reason, server):
    weights, folder = figures
    row = catalogue_row(weights, 60.0) | change
    data = "tfds:imagenet2012" if "name" in change else folder  # which is asked for after the weights
    (found,) = verify_figures(row["name"].removeprefix("hf://"), data, rows=[row])
    assert not found["agrees"] and found["result"].startswith("failed: ") and reason in found["error"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("me/nothing", "--data", "."), "No published figures of 'me/nothing' are known."),
        (("me/nothing", "--batch-size", "3"), "--batch-size is for --data"),
        (("me/nothing", "--data", ".", "--picture", "."), "--picture is for runs without --data"),
        (("me/nothing", "--data", "absent"), "absent"),
    ],
)
def test_the_command_with_data_that_makes_no_sense(arguments, message, capsys):
    assert main(["verify", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_the_figures_of_the_catalogue():
    rows = [row for row in keras_vit.list_weights() if "zero-shot top-1" in row["figures"]]
    assert len(rows) >= 16 and all(50 < row["figures"]["zero-shot top-1"] < 90 for row in rows)
    assert {row["family"] for row in rows} == {"CLIP", "PE", "SigLIP", "SigLIP2"}


def dense_row(folder, figure, published):
    return {"name": str(folder), "family": "", "dataset": "NYU", "figures": {figure: published}}


def test_figures_of_masks_and_depth(golden, tmp_path, monkeypatch):
    """Of small models; what each figure is has tests of its own in segmentation/ and depth/."""
    rng = np.random.default_rng(0)
    for name in ("images", "masks", "depth"):
        (tmp_path / name).mkdir()
    for stem in "ab":
        Image.fromarray(rng.integers(0, 256, (40, 60, 3), "u1")).save(tmp_path / f"images/{stem}.png")
        Image.fromarray(rng.integers(0, 3, (40, 60), "u1")).save(tmp_path / f"masks/{stem}.png")
        Image.fromarray(rng.integers(900, 5000, (40, 60)).astype("uint16")).save(tmp_path / f"depth/{stem}.png")
    folders = [golden(name).folder for name in ("dense_depth_da2_hf", "dense_seg_dinov2_linear")]
    depth_model, mask_model = map(keras_vit.load, folders)
    pairs = list(read_nyu(tmp_path))
    delta1 = np.mean([depth.depth_errors(depth.estimate(depth_model, path), truth).delta1 for path, truth in pairs])
    iou = 100 * segmentation.evaluate(mask_model, tmp_path, progress=False).mean_iou
    figures = (("delta1", float(delta1)), ("mIoU", iou), ("mIoU", iou + 1))
    rows = [dense_row(folders[name == "mIoU"], name, figure) for name, figure in figures]
    table = verify_figures("all", tmp_path, rows=rows)
    assert [row["result"].split(":")[0] for row in table] == ["agrees", "agrees", "differs"]
    # Labels that are the model's own answer.
    folders.append(golden("dense_eomt_hf_panoptic").folder)
    model = keras_vit.load(folders[-1])
    (tmp_path / "panoptic").mkdir()
    (tmp_path / "images/a.png").rename(tmp_path / "a.jpg")
    found = segmentation.segment(model, tmp_path / "a.jpg", task="panoptic", threshold=0.0)
    monkeypatch.setattr(segmentation, "segment", lambda *_, **options: found)
    ids = np.stack([found.map + 1, 0 * found.map, 0 * found.map], -1).astype("u1")
    Image.fromarray(ids).save(tmp_path / "panoptic/a.png")
    parts = [{"id": part.id + 1, "category_id": part.label_id} for part in found.segments]
    about = {"annotations": [{"file_name": "a.png", "segments_info": parts}]}
    about["categories"] = [{"id": k, "name": str(k)} for k in range(model.config.classes)]
    (tmp_path / "panoptic.json").write_text(json.dumps(about))
    (row,) = verify_figures("all", tmp_path, rows=[dense_row(folders[-1], "PQ", 100.0)])
    assert row["result"] == "agrees: 100, published 100" and len(parts) > 1
    rows.append(dense_row(folders[-1], "PQ", 100.0))
    with monkeypatch.context() as patch:
        patch.setattr(published, "load", lambda name: model)
        patch.setattr(segmentation, "segment", lambda *_, **options: dataclasses.replace(found, map=found.map[1:]))
        (row,) = verify_figures(str(folders[-1]), tmp_path, rows=rows)
        assert row["error"].startswith("a.jpg: prediction and label must be equally large")
    monkeypatch.setattr(published, "load", None)  # not even asked for weights
    with pytest.raises(ValueError, match="batch_size=3 is for accuracies, but delta1 is measured"):
        verify_figures(str(folders[0]), tmp_path, rows=rows, batch_size=3)
    (tmp_path / "classes").mkdir()
    for names in ("all", str(folders[0])):
        with pytest.raises(ValueError, match="data is for top-1, zero-shot top-1, but .*delta1.* was to be measured"):
            verify_figures(names, tmp_path / "classes", rows=rows)
    with pytest.raises(FileNotFoundError, match="absent"):
        verify_figures("all", tmp_path / "absent", rows=rows)
    with pytest.raises(ValueError, match="batch_size must be"):
        verify_figures("all", tmp_path, rows=rows, batch_size=0)
