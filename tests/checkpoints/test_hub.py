"""The Hugging Face Hub, spoken to a local server: what is fetched, what is said where it fails, and publishing."""

import json
import re
import traceback

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit import cli
from keras_vit.checkpoints import DownloadError, download, find_checkpoint, find_recommended, recommended
from keras_vit.checkpoints.catalogue import _read as catalogue_data
from keras_vit.checkpoints.files import open_file, read_sidecars
from keras_vit.checkpoints.hub import HubAddress, fetch_from_hub, parse_hub_address
from tests.checkpoints.hub_server import Repository

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:The layout .* cannot store")]


def weights(value):
    return safetensors.numpy.save({"w": np.full(5000, value, "float32")})


ONE, TWO = weights(1), weights(2)


@pytest.fixture
def repository(hub):
    """The repository `me/model`, with weights, what describes them, and much that nobody needs."""
    files = {"README.md": b"# A model", "config.json": b'{"architecture": "vit"}', "model.safetensors": ONE}
    files |= {"pytorch_model.bin": b"\x80\x02", "preprocessor_config.json": b'{"size": 224}'}
    files |= {"classes.txt": b"a\n", "onnx/x.onnx": b"x"}
    return hub.repositories.setdefault("me/model", Repository(files))


def first(path):
    return open_file(path)["w"].read()[0]


ADDRESSES = {
    "hf://google/vit-base-patch16-224": ("google/vit-base-patch16-224",),
    "HF://a/b": ("a/b",),
    "hf://timm/vit_base.augreg_in21k@main": ("timm/vit_base.augreg_in21k", "main"),
    "hf://a/b@v1.0/model.safetensors": ("a/b", "v1.0", "model.safetensors"),
    "hf://a/b/sub/model.pth": ("a/b", None, "sub/model.pth"),
    "hf://a/b@refs/pr/3/x.npz": ("a/b", "refs/pr/3", "x.npz"),
    "hf://a/b@feature%2Fnew/x.npz": ("a/b", "feature/new", "x.npz"),
    "hf://a/b/x@y.npz": ("a/b", None, "x@y.npz"),
}


def test_addresses():
    for text, parts in ADDRESSES.items():
        address = parse_hub_address(text)
        assert address == parse_hub_address(str(address)) == HubAddress(*parts)


NO_ADDRESSES = """
hf:// hf://a hf://a/ hf:///b hf://a/b/ hf://a/b@ hf://a/b@/x hf://../b hf://a/.. hf://a/b/../c hf://a/b//c hf://a/b/./c
hf://a/b/c\\d hf://a/b@../x hf://a/b@%2e%2e hf://a/b?x=1 hf://a/b#c hf://ä/b hf://a:b@c/d hf://a/b@%00 hf://a/b@%2Fetc
"""


ODD = ["hf://a b/c", "hf://a/b\n", "hf://a/b/\x1b[2J", f"hf://a/{'b' * 97}"]


@pytest.mark.parametrize("text", [*NO_ADDRESSES.split(), *ODD])
def test_what_is_no_address(text):
    with pytest.raises(ValueError, match="address of the Hub must be hf://owner/name") as error:
        find_checkpoint(text)
    assert str(error.value).isprintable()


def test_only_what_is_needed_is_fetched(hub, repository):
    path = find_checkpoint("hf://me/model")
    assert (path.name, first(path)) == ("model.safetensors", 1)
    assert hub.downloads() == ["config.json", "preprocessor_config.json", "classes.txt", "model.safetensors"]
    sidecars = read_sidecars(path)
    assert (sidecars.config, sidecars.preprocessor) == ({"architecture": "vit"}, {"size": 224})
    hub.seen.clear()
    assert find_checkpoint("hf://me/model") == path
    assert hub.seen == ["GET /api/models/me/model"]


def test_a_new_commit_is_fetched_and_the_old_one_stays(hub, repository):
    old, commit = find_checkpoint("hf://me/model"), repository.commit
    repository.files["model.safetensors"] = TWO
    new = find_checkpoint("hf://me/model")
    assert (first(old), first(new)) == (1, 2)
    assert read_sidecars(new).config == {"architecture": "vit"}
    repository.revisions += (commit,)
    hub.down = True
    with pytest.warns(UserWarning, match="The cached copy is used"):
        assert find_checkpoint(f"hf://me/model@{commit}") == old


def test_revisions(hub, repository):
    repository.revisions += ("v1", "refs/pr/2", "a/b")
    for revision in ("v1", "refs/pr/2", "a%2Fb", repository.commit):
        assert first(find_checkpoint(f"hf://me/model@{revision}")) == 1
    with pytest.raises(DownloadError, match="hf://me/model@v2 could not be fetched: .*Revision Not Found"):
        find_checkpoint("hf://me/model@v2")


def test_a_file_or_a_folder_by_name(hub, repository):
    """The weights in it, whatever lies beside it; also from the cache, and in a revision."""
    repository.files |= {"large/model.safetensors": TWO, "large/config.json": b'{"large": true}', "large/x/y.pth": ONE}
    for address in ("hf://me/model/large", f"hf://me/model@{repository.commit}/large/model.safetensors"):
        path = find_checkpoint(address)
        assert (first(path), path.parent.name) == (2, "large")
        assert read_sidecars(path).config == {"large": True}
    assert hub.downloads() == ["config.json", "model.safetensors"]
    assert fetch_from_hub("hf://me/model/large", offline=True).name == "model.safetensors"
    with pytest.raises(DownloadError, match="hf://me/model/onnx .* the repository has no weights .* 'x.onnx'"):
        find_checkpoint("hf://me/model/onnx")
    with pytest.raises(
        DownloadError, match="no absent.safetensors. Its files are: 'README.md', .*config.json', 'large/"
    ):
        find_checkpoint("hf://me/model/absent.safetensors")


def test_a_file_in_parts(hub, capsys):
    index = json.dumps({"weight_map": {"w": "model-1-of-1.safetensors"}}).encode()
    files = {"model.safetensors.index.json": index, "model-1-of-1.safetensors": ONE}
    hub.repositories["me/large"] = repository = Repository(files | {"other.safetensors": ONE})
    path = find_checkpoint("hf://me/large")
    assert first(path) == 1
    assert hub.downloads() == ["model.safetensors.index.json", "model-1-of-1.safetensors"]
    cli.main(["download", "hf://me/large", "--json"])
    assert json.loads(capsys.readouterr().out)["bytes"] == len(index) + len(ONE)
    hub.down = True
    with pytest.warns(UserWarning, match="The cached copy is used"):
        assert find_checkpoint("hf://me/large") == path
    (path.parent / "model-1-of-1.safetensors").unlink()
    with pytest.raises(DownloadError, match="its shard model-1-of-1.safetensors is not in the cache"):
        find_checkpoint("hf://me/large")
    hub.down = False
    for bad in (b"{}", b"{", b'{"weight_map": {"w": "../../x"}}'):
        repository.files["model.safetensors.index.json"] = bad
        with pytest.raises(DownloadError, match="must be an index|must have file names|damaged|must be a JSON"):
            find_checkpoint("hf://me/large")


def test_a_mirror_that_names_no_commit(hub, repository, monkeypatch):
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", None)  # which would be asked for a revision "None"
    repository.describes_commit = False
    assert first(find_checkpoint("hf://me/model")) == 1


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_wrong_hash(hub, repository, name):
    wrong = "0" * (40 if name == "config.json" else 64)
    repository.etags[name] = wrong
    with pytest.raises(DownloadError, match=f"{name} is damaged: its hash is .*, not {wrong}"):
        find_checkpoint("hf://me/model")
    repository.etags[name] = "v1"  # mirrors may have their own, which are not hashes
    assert first(find_checkpoint("hf://me/model")) == 1


REFUSALS = {
    "gated": (Repository({"model.npz": b""}, error=(403, "GatedRepo")), "Cannot access gated repo"),
    "absent": (None, "Repository Not Found"),
    "refused": (Repository({}, api_error=(403, "")), "403 Forbidden"),
    "down in the middle": (Repository({"model.npz": b""}, error=(503, "")), "503"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(hub, case):
    repository, message = REFUSALS[case]
    hub.repositories |= {"me/other": repository} if repository else {}
    with pytest.raises(DownloadError, match=f"hf://me/other could not be fetched: .*{message}") as error:
        find_checkpoint("hf://me/other")
    assert error.value.attempts[0][0] == "hf://me/other"


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "KERAS_VIT_OFFLINE"])
def test_offline(hub, repository, monkeypatch, switch):
    path = find_checkpoint("hf://me/model")
    hub.seen.clear()
    monkeypatch.setenv(switch, "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", switch == "HF_HUB_OFFLINE")  # it was read before
    assert find_checkpoint("hf://me/model") == find_checkpoint("hf://me/model/model.safetensors") == path
    for absent in ("hf://me/other", "hf://me/model/pytorch_model.bin", "hf://me/model@v1"):
        message = f"{absent} could not be fetched: offline mode is on.*, and the repository is not in the cache, .*hub"
        with pytest.raises(DownloadError, match=message):
            find_checkpoint(absent)
    assert hub.seen == []


@pytest.mark.parametrize("status", [403, 503])
def test_a_hub_that_gives_no_answer(hub, repository, status, monkeypatch):
    path = find_checkpoint("hf://me/model")
    repository.api_error = (status, "")
    with pytest.warns(UserWarning, match=f"hf://me/model: .*{status}.*The cached copy is used"):
        assert find_checkpoint("hf://me/model") == path
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    with pytest.warns(UserWarning, match="did not answer .*The cached copy is used"):
        assert find_checkpoint("hf://me/model") == path
    with pytest.raises(DownloadError, match="did not answer .*, and the repository is not in the cache"):
        find_checkpoint("hf://me/other")


@pytest.fixture
def unpublished(monkeypatch):
    """The official address refuses everybody, as it did."""

    def refuse(url, *more):
        raise ValueError("answered 403 Forbidden")

    monkeypatch.setattr(download, "_transfer", refuse)


FINE_TUNED = "imagenet21k+imagenet2012/ViT-B_16-224"
SIMILAR = "timm/vit_base_patch16_384.augreg_in21k_ft_in1k"
FIRST, SECOND = "timm/vit_base_patch16_224.orig_in21k_ft_in1k", "google/vit-base-patch16-224"


def test_the_same_weights_from_the_hub(hub, unpublished):
    """From the first repository that has them; what is in the cache stays."""
    hub.repositories[SECOND] = Repository({"model.safetensors": TWO})
    with pytest.warns(UserWarning, match=f"come from hf://{SECOND}"):
        assert first(find_checkpoint(FINE_TUNED)) == 2
    hub.repositories[FIRST] = Repository({"model.safetensors": ONE})
    with pytest.warns(UserWarning, match=f"{re.escape(FINE_TUNED)} is not available.* come from hf://{FIRST}"):
        assert first(find_checkpoint(FINE_TUNED)) == 1
    hub.down = True
    with pytest.warns(UserWarning, match=f"come from hf://{FIRST}|cached copy is used"):
        assert first(find_checkpoint(FINE_TUNED)) == 1


def test_a_published_name_means_the_official_numbers(hub, unpublished, tmp_path):
    """And a repository its publisher's; `numerics` overrides both."""
    config = keras_vit.ViTConfig(image_size=16, patch_size=8, width=64, depth=1, heads=1, mlp_width=64, classes=3)
    model = keras_vit.VisionTransformer(config.replace(gelu="exact", interpolation="bicubic"))
    head = model.get_layer("head").kernel
    head.assign(np.random.default_rng(0).normal(size=head.shape))
    keras_vit.to_checkpoint(model, tmp_path / "made" / "model.safetensors", layout="timm")
    files = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    hub.repositories[FIRST] = Repository(files)
    with pytest.warns(UserWarning, match=f"come from hf://{FIRST}"):
        official = keras_vit.from_checkpoint(FINE_TUNED)
    assert (official.config.gelu, official.config.interpolation) == ("tanh", "official")
    publisher = keras_vit.load(f"hf://{FIRST}")
    assert (publisher.config.gelu, publisher.config.interpolation) == ("exact", "bicubic")
    assert keras_vit.load(f"hf://{FIRST}", numerics="official").config == official.config
    with pytest.warns(UserWarning, match=f"come from hf://{FIRST}"):
        assert keras_vit.load(FINE_TUNED, numerics="publisher").config == publisher.config
    for ours, theirs in zip(official.get_weights(), publisher.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_nobody_has_the_weights(hub, unpublished):
    with pytest.raises(DownloadError) as error:
        find_checkpoint(FINE_TUNED)
    tried = [where for where, _ in error.value.attempts]
    assert tried[0].startswith("https://storage.googleapis.com/") and tried[1:] == [f"hf://{FIRST}", f"hf://{SECOND}"]
    for text in ("could not be downloaded", "answered 403 Forbidden", "Repository Not Found", "put it at"):
        assert text in str(error.value)
    for ask in (lambda: keras_vit.ViT_B16(pretrained=True), lambda: keras_vit.load("ViT-B/16")):
        with pytest.raises(DownloadError) as error:
            ask()
        assert [where for where, _ in error.value.attempts][1:] == [f"hf://{SIMILAR}"]


def test_no_equal_weights_but_similar_ones(hub, unpublished):
    """timm has another file of AugReg than the recommended one of B/16, which does for `pretrained=True`."""
    name = recommended("ViT-B/16").name
    similar = name.replace("lr_0.03-res", "lr_0.01-res")
    with pytest.raises(DownloadError, match=f"similar checkpoint is on the Hugging Face Hub, try {similar}"):
        find_checkpoint(name)
    assert hub.seen == []
    hub.repositories[SIMILAR] = Repository({"model.safetensors": TWO})
    with pytest.warns(UserWarning) as warned:
        assert find_recommended("ViT-B/16") == similar
    assert f"a similar checkpoint is loaded: {similar}" in str(warned[-1].message)
    with pytest.warns(UserWarning, match=f"come from hf://{SIMILAR}"):
        assert first(find_checkpoint(similar)) == 2


def test_a_recommended_repository(hub, monkeypatch, tmp_path):
    """Loaded by `pretrained=True`, `load` and `weights`; what cannot be had is named, in one traceback."""
    monkeypatch.setitem(catalogue_data("catalogue.json")["recommended"], "ViT-mu/16", "hf://timm/test_vit.r160_in1k")
    for ask in (
        lambda: keras_vit.create_model("ViT-mu/16", pretrained=True),
        lambda: keras_vit.load("ViT-mu/16"),
        lambda: keras_vit.load("DINOv2-B/14"),
        lambda: keras_vit.DeiT_B16(pretrained=True, classes=3),
    ):
        for down, reason in ((False, "Repository Not Found"), (True, "503 Service Unavailable")):
            hub.down = down
            with pytest.raises(DownloadError, match=f"hf://[a-z]+/[a-z0-9_.-]+ could not be .*{reason}") as error:
                ask()
            printed = "".join(traceback.format_exception(error.value))
            assert "During handling" not in printed and "direct cause" not in printed
            assert printed.count("Traceback") == 1 and "\n" not in str(error.value)
    hub.down = False
    model = keras_vit.create_model("ViT-mu/16", include_top=False, image_size=32)
    keras_vit.to_checkpoint(model, tmp_path / "mu", layout="timm")
    files = {path.name: path.read_bytes() for path in (tmp_path / "mu").iterdir()}
    hub.repositories["timm/test_vit.r160_in1k"] = Repository(files)
    for loaded in (keras_vit.create_model("vit_mu16", pretrained=True), keras_vit.load("ViT-mu/16")):
        assert loaded.config.classes is None and loaded.config.image_size == (32, 32)
        np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


@pytest.fixture(scope="module")
def model():
    sizes = dict(image_size=(16, 24), patch_size=8, width=8, depth=1, heads=2, mlp_width=16, classes=3)
    model = keras_vit.VisionTransformer(keras_vit.ViTConfig(**sizes, class_names=("cat", "dog", "ünicorn")))
    head = model.get_layer("head")
    head.kernel.assign(keras.random.normal(head.kernel.shape))
    return model


def test_there_and_back(hub, model):
    yaml = pytest.importorskip("yaml")
    commit = keras_vit.push_to_hub(model, "me/pets", license="apache-2.0", private=True)
    files = hub.repositories["me/pets"].files
    assert commit == f"{hub.base}/me/pets/commit/{hub.repositories['me/pets'].commit}"
    assert hub.repositories["me/pets"].private is True
    card = files["README.md"].decode()
    how = "resized straight to 16 x 24 pixels (bilinear)", "mean 0.5, 0.5, 0.5 and standard deviation 0.5, 0.5, 0.5"
    what = "# pets\n", "16 x 24 pixels", "3 classes: 'cat', 'dog', 'ünicorn'.", "keras_vit.load('hf://me/pets')"
    for text in ("pipeline_tag: image-classification\n", *what, *how, "## License\n\napache-2.0\n"):
        assert text in card
    index = yaml.safe_load(card.split("---")[1])
    assert index["license"] == "apache-2.0" and "keras-vit" in index["tags"]
    back = keras_vit.load("hf://me/pets")
    assert back.config.class_names == ("cat", "dog", "ünicorn")
    images = np.random.default_rng(0).normal(size=(2, 16, 24, 3)).astype("float32")
    np.testing.assert_array_equal(back.predict(images, verbose=0), model.predict(images, verbose=0))


def test_the_card_has_the_sizes_of_the_preprocessing(hub, model):
    cropped = model.with_config(crop_ratio=0.9, resize="shortest")
    keras_vit.push_to_hub(cropped, "me/cropped")
    rows, columns = cropped.config.pipeline.uncropped_size
    card = hub.repositories["me/cropped"].files["README.md"].decode()
    assert (rows, columns) == (17, 26) and f"to {rows} x {columns} pixels" in card and "central 16 x 24" in card


def test_a_second_time(hub, model):
    """The card is the owner's from then on; other weights would be loaded instead of those that are written."""
    keras_vit.push_to_hub(model, "hf://me/pets")
    repository = hub.repositories["me/pets"]
    assert "license" not in repository.files["README.md"].decode()
    assert "Unknown. Ask the owner" in repository.files["README.md"].decode()
    repository.files["README.md"] = b"# Mine"
    keras_vit.push_to_hub(model, "me/pets", commit_message="again")
    assert repository.files["README.md"] == b"# Mine"
    (weights,) = [name for name in repository.files if name.startswith("model.")]
    repository.files["pytorch_model.bin"] = b"x"
    before = dict(repository.files)
    with pytest.raises(ValueError, match=f"has other weights already, pytorch_model.bin, .* instead of {weights}"):
        keras_vit.push_to_hub(model, "me/pets")
    assert repository.files == before


def test_what_is_refused(hub, model):
    for arguments, error, message in (
        ({"repository": "pets"}, ValueError, "address of the Hub must be hf://owner/name"),
        ({"repository": "me/pets/model.npz"}, ValueError, "must be 'owner/name', but 'me/pets/model.npz' was given"),
        ({"repository": "me/pets@main"}, ValueError, "Pass a branch as revision="),
        ({"repository": None}, TypeError, "repository must be a string such as 'owner/name', but NoneType was given"),
        ({"model": keras.Sequential()}, TypeError, "must be a VisionTransformer or a BiT, but Sequential was given"),
        ({"layout": "onnx"}, ValueError, "layout must be one of"),
        *(({"license": name}, ValueError, "license must be an identifier such as") for name in ("", "mine\nx", "a b")),
    ):
        with pytest.raises(error, match=message):
            keras_vit.push_to_hub(**{"model": model, "repository": "me/pets"} | arguments)
    assert hub.seen == []


def test_what_the_hub_refuses(hub, model, monkeypatch):
    hub.repositories["me/pets"] = Repository({}, api_error=(403, ""))
    with pytest.raises(DownloadError, match=r"hf://me/pets could not be written: 403"):
        keras_vit.push_to_hub(model, "me/pets")
    assert hub.repositories["me/pets"].files == {}
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    with pytest.raises(DownloadError, match="hf://me/pets could not be written: .* did not answer"):
        keras_vit.push_to_hub(model, "me/pets")
