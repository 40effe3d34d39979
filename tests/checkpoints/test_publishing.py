"""Models that are written to the Hugging Face Hub, which is a local server here, and come back from it."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import DownloadError
from tests.checkpoints.hub_server import Repository, local_hub

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:The layout .* has no word for")]


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A Hub of the test's own."""
    with local_hub(tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture(scope="module")
def model():
    """A small model with names for its classes."""
    sizes = dict(image_size=(16, 24), patch_size=8, width=8, depth=1, heads=2, mlp_width=16, classes=3)
    model = keras_vit.VisionTransformer(keras_vit.ViTConfig(**sizes, class_names=("cat", "dog", "ünicorn")))
    head = model.get_layer("head")
    head.kernel.assign(keras.random.normal(head.kernel.shape))
    return model


def test_there_and_back(server, model):
    yaml = pytest.importorskip("yaml")
    commit = keras_vit.push_to_hub(model, "me/pets", license="apache-2.0", private=True)
    files = server.repositories["me/pets"].files
    assert commit == f"{server.base}/me/pets/commit/{server.repositories['me/pets'].commit}"
    assert server.repositories["me/pets"].private is True
    card = files["README.md"].decode()
    how = "resized straight to 16 x 24 pixels (bilinear)", "mean 0.5, 0.5, 0.5 and standard deviation 0.5, 0.5, 0.5"
    what = "# pets\n", "16 x 24 pixels", "3 classes: cat, dog, ünicorn.", "keras_vit.load('hf://me/pets')"
    for text in ("pipeline_tag: image-classification\n", *what, *how, "## License\n\napache-2.0\n"):
        assert text in card
    index = yaml.safe_load(card.split("---")[1])
    assert index["license"] == "apache-2.0" and "keras-vit" in index["tags"]
    back = keras_vit.load("hf://me/pets")
    assert back.config.class_names == ("cat", "dog", "ünicorn")
    images = np.random.default_rng(0).normal(size=(2, 16, 24, 3)).astype("float32")
    np.testing.assert_array_equal(back.predict(images, verbose=0), model.predict(images, verbose=0))


def test_a_second_time(server, model):
    """The card is the owner's from then on; other weights would be loaded instead of those that are written."""
    keras_vit.push_to_hub(model, "hf://me/pets")
    repository = server.repositories["me/pets"]
    assert "license" not in repository.files["README.md"].decode()
    assert "Unknown. Ask the owner" in repository.files["README.md"].decode()
    repository.files["README.md"] = b"# Mine"
    keras_vit.push_to_hub(model, "me/pets", commit_message="again")
    assert repository.files["README.md"] == b"# Mine"
    (weights,) = [name for name in repository.files if name.startswith("model.")]
    repository.files["pytorch_model.bin"] = b"x"
    before = dict(repository.files)
    with pytest.raises(ValueError, match=f"has other weights, pytorch_model.bin, beside which {weights}"):
        keras_vit.push_to_hub(model, "me/pets")
    assert repository.files == before


def test_names_of_open_clip(server, golden):
    clip = keras_vit.load(golden("fam_hf_clip_full").folder)
    keras_vit.push_to_hub(clip, "me/clip", layout="clip")
    files = server.repositories["me/clip"].files
    assert sorted(files) == ["README.md", "model.safetensors", "open_clip_config.json"]
    assert keras_vit.load("hf://me/clip").config.gelu == "quick"


def test_what_is_in_the_branch_that_is_written_to_counts(server, model):
    server.repositories["me/pets"] = Repository({"other.npz": b"x"}, revisions=("mine",))
    with pytest.raises(ValueError, match="has other weights, other.npz"):
        keras_vit.push_to_hub(model, "me/pets", revision="mine")


def test_a_bit(server):
    config = keras_vit.BiTConfig(image_size=32, stages=(1,), width=32, classes=None)
    keras_vit.push_to_hub(keras_vit.BiT(config), "me/bit")
    assert sorted(server.repositories["me/bit"].files) == ["README.md", "model.npz"]
    assert "It has no head: it returns features." in server.repositories["me/bit"].files["README.md"].decode()
    assert keras_vit.load("hf://me/bit").config.stages == (1,)


def test_what_is_refused(server, model):
    for arguments, error, message in (
        ({"repository": "pets"}, ValueError, "is not an address of the Hub, expected hf://owner/name"),
        ({"repository": "me/pets/model.npz"}, ValueError, "must be 'owner/name', but 'me/pets/model.npz' was given"),
        ({"repository": "me/pets@main"}, ValueError, "A branch is revision="),
        ({"repository": None}, TypeError, "repository must be text such as 'owner/name', but None was given"),
        ({"model": keras.Sequential()}, TypeError, "must be a VisionTransformer or a BiT, but Sequential was given"),
        ({"layout": "onnx"}, ValueError, "layout must be one of"),
        *(({"license": name}, ValueError, "license must be an identifier such as") for name in ("", "mine\nx", "a b")),
    ):
        with pytest.raises(error, match=message):
            keras_vit.push_to_hub(**{"model": model, "repository": "me/pets"} | arguments)
    assert server.seen == []


def test_what_the_hub_refuses(server, model, monkeypatch):
    server.repositories["me/pets"] = Repository({}, api_error=(403, ""))
    with pytest.raises(DownloadError, match=r"hf://me/pets could not be written: 403"):
        keras_vit.push_to_hub(model, "me/pets")
    assert server.repositories["me/pets"].files == {}
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    with pytest.raises(DownloadError, match="hf://me/pets could not be written: .* gave no answer"):
        keras_vit.push_to_hub(model, "me/pets")
