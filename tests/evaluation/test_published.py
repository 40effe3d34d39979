"""The comparison with published answers, on a local server with repositories of small models: nothing is fetched."""

import dataclasses
import io
import json
import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints.files import write_safetensors
from keras_vit.cli import main
from keras_vit.evaluation import published
from keras_vit.evaluation.published import PublishedAnswer, published_answers, verify
from tests.checkpoints.hub_server import Repository, local_hub

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
    config = keras_vit.ViTConfig(image_size=16, patch_size=8, width=8, depth=1, heads=2, mlp_width=16, classes=5)
    model = keras_vit.VisionTransformer(config)
    random = np.random.default_rng(0)
    model.set_weights([random.normal(size=w.shape).astype("float32") for w in model.get_weights()])
    return model


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
    # An answer that is no number.
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


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ("me/modal", ValueError, "No published answers of 'me/modal' are known. Did you mean 'me/model'?"),
        ([], ValueError, "names must name at least one of: me/model; or pass 'all'"),
        ([3], TypeError, "names must be repositories"),
    ],
)
def test_names(answers, names, error, message):
    with pytest.raises(error, match=re.escape(message)):
        verify(names, answers=answers)


def test_the_command(answers, server, picture, tmp_path, monkeypatch, capsys):
    """With a picture of the user's, so that none is fetched from an address."""
    (tmp_path / "mine.png").write_bytes(picture[0])
    server.pages.clear()
    monkeypatch.setattr(published, "published_answers", lambda: tuple(answers))
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
