"""The commands about words: classes that are words, embeddings of texts, images found by words."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.preprocessing import load_image

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:.*token")]
COSINE = 1e-4  # four digits are printed


@pytest.fixture(scope="module")
def clip(golden):
    return golden("txt_hf_clip").folder


def test_classes_of_words(run, clip, photo, tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "names.txt").write_text("cat\n\ndog\nbird\n")
    both = keras_vit.load_image_text(clip)
    model = both.zero_shot_classifier(["cat", "dog", "bird"], progress=False)
    model = model.with_config(classifier_activation="softmax")
    wanted = model.predict(model.preprocess(photo), verbose=0)[0]
    for names in (("--names", "cat,dog,bird"), ("--names-from", tmp_path / "names.txt")):
        found = json.loads(run("classify", photo, "--weights", clip, *names, "--json").out)[0]["names"]
        np.testing.assert_allclose([found[name] for name in ("cat", "dog", "bird")], wanted, rtol=0, atol=1e-6)
    assert "%" in run("classify", photo, "--weights", clip, "--names", "cat,dog", "--top", 1).out
    for arguments, words in (
        ((), "either --names"),
        (("--names", "cat,cat"), "more than once"),
        (("--names", "cat"), "at least 2 names"),
        (("--names", "cat,dog", "--templates", "a cat"), "one {}"),
        (("--names-from", tmp_path / "none.txt"), "none.txt"),
    ):
        assert words in run("classify", photo, "--weights", clip, *arguments, code=1).err


def test_search_by_words(run, clip, colours, tmp_path):
    pytest.importorskip("tokenizers")
    features = tmp_path / "features.npz"
    run("embed", colours, "--weights", clip, "-o", features)
    found = json.loads(run("similar", "--text", "a red car", features, "--weights", clip, "--json").out)
    both = keras_vit.load_image_text(clip)
    cosines = both.embed_texts("a red car")[0] @ both.embed_images([load_image(row["image"]) for row in found]).T
    np.testing.assert_allclose([row["similarity"] for row in found], cosines, rtol=0, atol=COSINE)
    assert np.all(np.diff(cosines) <= COSINE)
    (tmp_path / "words.txt").write_text("a red car\na dog\n")
    words = tmp_path / "words.npz"
    assert "2 texts" in run("embed", tmp_path / "words.txt", "--texts", "--weights", clip, "-o", words).out
    with np.load(words) as file:
        assert file["names"].tolist() == ["a red car", "a dog"]
        np.testing.assert_array_equal(file["features"], both.embed_texts(["a red car", "a dog"]))
    for arguments, message in (
        (("embed", tmp_path / "words.txt", "--texts", "--weights", clip, "-o", words), "--overwrite"),
        (("similar", features), "either an IMAGE"),
        (("similar", "--text", "car", features), "needs --weights"),
    ):
        assert message in run(*arguments, code=1).err


def test_accuracy_of_words(run, clip, colours, tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "names.txt").write_text("\n".join(sorted(path.name for path in (colours / "test").iterdir())))
    names = ("--names-from", tmp_path / "names.txt", "--templates", "a {}.")
    result = json.loads(run("evaluate", clip, colours, *names, "--json").out)
    assert 0 <= result["accuracy"] <= 1 and result["examples"] == 6
    assert "--names-from" in run("evaluate", clip, colours, "--templates", "a {}.", code=1).err
