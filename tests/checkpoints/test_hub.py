"""The Hugging Face Hub, spoken to a local server: what is fetched, and what is said where it fails."""

import json
import re
import traceback

import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit import cli
from keras_vit._files import weights_folder
from keras_vit.checkpoints import DownloadError, download, find_checkpoint, find_recommended, recommended
from keras_vit.checkpoints.catalogue import _read as catalogue_data
from keras_vit.checkpoints.catalogue import find_entry
from keras_vit.checkpoints.files import open_file, read_sidecars
from keras_vit.checkpoints.hub import HubAddress, fetch_from_hub, parse_hub_address
from tests.checkpoints.hub_server import Repository, local_hub

pytestmark = pytest.mark.once


def weights(value):
    """A file of weights, as bytes."""
    return safetensors.numpy.save({"w": np.full(5000, value, "float32")})


ONE, TWO = weights(1), weights(2)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A Hub of the test's own."""
    with local_hub(tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture
def repository(server):
    """The repository `me/model`, with weights, what describes them, and much that nobody needs."""
    files = {"README.md": b"# A model", "config.json": b'{"architecture": "vit"}', "model.safetensors": ONE}
    files |= {"pytorch_model.bin": b"\x80\x02", "preprocessor_config.json": b'{"size": 224}'}
    files |= {"classes.txt": b"a\n", "onnx/x.onnx": b"x"}
    return server.repositories.setdefault("me/model", Repository(files))


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


@pytest.mark.parametrize(
    "text", [*NO_ADDRESSES.split(), "hf://a b/c", "hf://a/b\n", "hf://a/b/\x1b[2J", f"hf://a/{'b' * 97}"]
)
def test_what_is_no_address(text):
    with pytest.raises(ValueError, match="is not an address of the Hub, expected hf://owner/name") as error:
        find_checkpoint(text)
    assert str(error.value).isprintable()


def test_only_what_is_needed_is_fetched(server, repository):
    path = find_checkpoint("hf://me/model")
    assert (path.name, first(path)) == ("model.safetensors", 1)
    assert server.downloads() == ["config.json", "preprocessor_config.json", "classes.txt", "model.safetensors"]
    sidecars = read_sidecars(path)
    assert (sidecars.config, sidecars.preprocessor) == ({"architecture": "vit"}, {"size": 224})
    server.seen.clear()
    assert find_checkpoint("hf://me/model") == path
    assert server.seen == ["GET /api/models/me/model"]


def test_a_new_commit_is_fetched_and_the_old_one_stays(server, repository):
    old, commit = find_checkpoint("hf://me/model"), repository.commit
    repository.files["model.safetensors"] = TWO
    new = find_checkpoint("hf://me/model")
    assert (first(old), first(new)) == (1, 2)
    assert read_sidecars(new).config == {"architecture": "vit"}
    repository.revisions += (commit,)
    server.down = True
    with pytest.warns(UserWarning, match="The copy in the cache is used"):
        assert find_checkpoint(f"hf://me/model@{commit}") == old


def test_revisions(server, repository):
    repository.revisions += ("v1", "refs/pr/2", "a/b")
    for revision in ("v1", "refs/pr/2", "a%2Fb", repository.commit):
        assert first(find_checkpoint(f"hf://me/model@{revision}")) == 1
    with pytest.raises(DownloadError, match="hf://me/model@v2 could not be fetched: .*Revision Not Found"):
        find_checkpoint("hf://me/model@v2")


def test_a_file_or_a_folder_by_name(server, repository):
    """The weights in it, whatever lies beside it; also from the cache, and in a revision."""
    repository.files |= {"large/model.safetensors": TWO, "large/config.json": b'{"large": true}', "large/x/y.pth": ONE}
    for address in ("hf://me/model/large", f"hf://me/model@{repository.commit}/large/model.safetensors"):
        path = find_checkpoint(address)
        assert (first(path), path.parent.name) == (2, "large")
        assert read_sidecars(path).config == {"large": True}
    assert server.downloads() == ["config.json", "model.safetensors"]
    assert fetch_from_hub("hf://me/model/large", offline=True).name == "model.safetensors"
    with pytest.raises(DownloadError, match="hf://me/model/onnx .* the repository has no weights .* x.onnx"):
        find_checkpoint("hf://me/model/onnx")
    with pytest.raises(DownloadError, match="no such file or folder. It has: README.md, .*config.json, large/"):
        find_checkpoint("hf://me/model/absent.safetensors")


def test_which_file_is_meant(server, repository):
    files = repository.files
    repository.files = {"a.safetensors": ONE, "b.pth": ONE, "sub/c.npz": ONE, "optimizer.pt": ONE}
    with pytest.raises(ValueError, match=r"several files of weights \(a.safetensors, b.pth\).* hf://me/model/FILE"):
        find_checkpoint("hf://me/model")
    del repository.files["b.pth"]
    assert find_checkpoint("hf://me/model").name == "a.safetensors"
    repository.files = {"open_clip_model.safetensors": ONE, "pytorch_model.bin": b""}
    assert find_checkpoint("hf://me/model").name == "open_clip_model.safetensors"
    repository.files = {"model.keras": b"x", "config.json": files["config.json"]}
    with pytest.raises(DownloadError, match="no weights that can be read.* config.json, model.keras"):
        find_checkpoint("hf://me/model")


def test_a_file_in_parts(server):
    index = {"weight_map": {"w": "model-1-of-1.safetensors"}}
    files = {"model.safetensors.index.json": json.dumps(index).encode(), "model-1-of-1.safetensors": ONE}
    server.repositories["me/large"] = repository = Repository(files | {"other.safetensors": ONE})
    path = find_checkpoint("hf://me/large")
    assert first(path) == 1
    assert server.downloads() == ["model.safetensors.index.json", "model-1-of-1.safetensors"]
    server.down = True
    with pytest.warns(UserWarning, match="The copy in the cache is used"):
        assert find_checkpoint("hf://me/large") == path
    (path.parent / "model-1-of-1.safetensors").unlink()
    with pytest.raises(DownloadError, match="its shard model-1-of-1.safetensors is not in the cache"):
        find_checkpoint("hf://me/large")
    server.down = False
    for bad in (b"{}", b"{", b'{"weight_map": {"w": "../../x"}}'):
        repository.files["model.safetensors.index.json"] = bad
        with pytest.raises(DownloadError, match="is not an index|names a shard|is damaged"):
            find_checkpoint("hf://me/large")


def test_the_size_of_a_download_is_that_of_all_parts(server, capsys):
    index = json.dumps({"weight_map": {"w": "model-1-of-1.safetensors"}}).encode()
    files = {"model.safetensors.index.json": index, "model-1-of-1.safetensors": ONE}
    server.repositories["me/large"] = Repository(files)
    cli.main(["download", "hf://me/large", "--json"])
    assert json.loads(capsys.readouterr().out)["bytes"] == len(index) + len(ONE)


def test_a_mirror_that_names_no_commit(server, repository, monkeypatch):
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", None)  # which would be asked for a revision "None"
    repository.describes_commit = False
    assert first(find_checkpoint("hf://me/model")) == 1


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_wrong_hash(server, repository, name):
    wrong = "0" * (40 if name == "config.json" else 64)
    repository.etags[name] = wrong
    with pytest.raises(DownloadError, match=f"{name} arrived damaged: its hash is .*, expected {wrong}"):
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
def test_refusals(server, case):
    """In the words of the library; nothing was fetched, so that nothing can be taken from the cache."""
    repository, message = REFUSALS[case]
    server.repositories |= {"me/other": repository} if repository else {}
    with pytest.raises(DownloadError, match=f"hf://me/other could not be fetched: .*{message}") as error:
        find_checkpoint("hf://me/other")
    assert error.value.attempts[0][0] == "hf://me/other"


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "KERAS_VIT_OFFLINE"])
def test_offline(server, repository, monkeypatch, switch):
    path = find_checkpoint("hf://me/model")
    server.seen.clear()
    monkeypatch.setenv(switch, "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", switch == "HF_HUB_OFFLINE")  # it was read before
    assert find_checkpoint("hf://me/model") == find_checkpoint("hf://me/model/model.safetensors") == path
    for absent in ("hf://me/other", "hf://me/model/pytorch_model.bin", "hf://me/model@v1"):
        message = f"{absent} could not be fetched: offline mode is on.*, and it is not in the cache, .*hub"
        with pytest.raises(DownloadError, match=message):
            find_checkpoint(absent)
    assert server.seen == []


@pytest.mark.parametrize("status", [403, 503])
def test_a_hub_that_gives_no_answer(server, repository, status, monkeypatch):
    """Whatever the reason, it is said, and what is in the cache is used."""
    path = find_checkpoint("hf://me/model")
    repository.api_error = (status, "")
    with pytest.warns(UserWarning, match=f"hf://me/model: .*{status}.*The copy in the cache is used"):
        assert find_checkpoint("hf://me/model") == path
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    with pytest.warns(UserWarning, match="gave no answer .*The copy in the cache is used"):
        assert find_checkpoint("hf://me/model") == path
    with pytest.raises(DownloadError, match="gave no answer .*, and it is not in the cache"):
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


def test_the_same_weights_from_the_hub(server, unpublished):
    """From the first repository that has them; what is in the cache stays."""
    server.repositories[SECOND] = Repository({"model.safetensors": TWO})
    with pytest.warns(UserWarning, match=f"come from hf://{SECOND}"):
        assert first(find_checkpoint(FINE_TUNED)) == 2
    server.repositories[FIRST] = Repository({"model.safetensors": ONE})
    with pytest.warns(UserWarning, match=f"{re.escape(FINE_TUNED)} is not available.* come from hf://{FIRST}"):
        assert first(find_checkpoint(FINE_TUNED)) == 1
    server.down = True
    with pytest.warns(UserWarning, match=f"come from hf://{FIRST}|copy in the cache is used"):
        assert first(find_checkpoint(FINE_TUNED)) == 1


@pytest.mark.filterwarnings("ignore:The layout .* has no word for")
def test_a_published_name_means_the_official_numbers(server, unpublished, tmp_path):
    """And a repository its publisher's; `numerics` overrides both."""
    config = keras_vit.ViTConfig(image_size=16, patch_size=8, width=64, depth=1, heads=1, mlp_width=64, classes=3)
    model = keras_vit.VisionTransformer(config.replace(gelu="exact", interpolation="bicubic"))
    head = model.get_layer("head").kernel
    head.assign(np.random.default_rng(0).normal(size=head.shape))
    keras_vit.to_checkpoint(model, tmp_path / "made" / "model.safetensors", layout="timm")
    files = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    server.repositories[FIRST] = Repository(files)
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


def test_nobody_has_the_weights(server, unpublished):
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


def test_no_equal_weights_but_similar_ones(server, unpublished):
    """timm has another file of AugReg than the recommended one of B/16, which does for `pretrained=True`."""
    name = recommended("ViT-B/16").name
    similar = name.replace("lr_0.03-res", "lr_0.01-res")
    with pytest.raises(DownloadError, match=f"has the weights of a similar checkpoint: {similar}"):
        find_checkpoint(name)
    assert server.seen == []
    server.repositories[SIMILAR] = Repository({"model.safetensors": TWO})
    with pytest.warns(UserWarning) as warned:
        assert find_recommended("ViT-B/16") == similar
    assert f"a similar checkpoint is loaded: {similar}" in str(warned[-1].message)
    with pytest.warns(UserWarning, match=f"come from hf://{SIMILAR}"):
        assert first(find_checkpoint(similar)) == 2


def test_names_of_files_control_no_terminal(server):
    server.repositories["me/many"] = Repository({"a\x1b[2J.safetensors": ONE, "b\x1b[2J.npz": TWO})
    with pytest.raises(ValueError, match=r"several files of weights .a\\x1b\[2J.safetensors") as error:
        find_checkpoint("hf://me/many")
    assert str(error.value).isprintable()


@pytest.mark.filterwarnings("ignore:The layout .* has no word for")
def test_a_recommended_repository(server, monkeypatch, tmp_path):
    """Loaded by `pretrained=True`, `load` and `weights`; what cannot be had is named, in one traceback."""
    monkeypatch.setitem(catalogue_data("catalogue.json")["recommended"], "ViT-mu/16", "hf://timm/test_vit.r160_in1k")
    for ask in (
        lambda: keras_vit.create_model("ViT-mu/16", pretrained=True),
        lambda: keras_vit.load("ViT-mu/16"),
        lambda: keras_vit.load("DINOv2-B/14"),
        lambda: keras_vit.DeiT_B16(pretrained=True, classes=3),
    ):
        for down, reason in ((False, "Repository Not Found"), (True, "503 Service Unavailable")):
            server.down = down
            with pytest.raises(
                DownloadError, match=f"hf://[a-z]+/[a-z0-9_.-]+ could not be fetched: .*{reason}"
            ) as error:
                ask()
            printed = "".join(traceback.format_exception(error.value))
            assert "During handling" not in printed and "direct cause" not in printed
            assert printed.count("Traceback") == 1 and "\n" not in str(error.value)
    server.down = False
    model = keras_vit.create_model("ViT-mu/16", include_top=False, image_size=32)
    keras_vit.to_checkpoint(model, tmp_path / "mu", layout="timm")
    files = {path.name: path.read_bytes() for path in (tmp_path / "mu").iterdir()}
    server.repositories["timm/test_vit.r160_in1k"] = Repository(files)
    for loaded in (keras_vit.create_model("vit_mu16", pretrained=True), keras_vit.load("ViT-mu/16")):
        assert loaded.config.classes is None and loaded.config.image_size == (32, 32)
        np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


def test_equal_weights_are_of_published_files():
    names = json.loads((weights_folder() / "catalogue.json").read_text(encoding="utf-8"))["hub"]
    assert len(names) >= 30
    for name, hub in names.items():
        assert find_entry(name).name == name and hub
        assert [str(parse_hub_address(f"hf://{repository}")) for repository in hub] == [f"hf://{r}" for r in hub]
