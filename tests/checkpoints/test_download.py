"""Downloads against a local server that does everything a server can do wrong. Nothing leaves 127.0.0.1."""

import dataclasses
import errno
import gzip
import io
import os
import pathlib
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.checkpoints import download
from keras_vit.checkpoints.catalogue import Entry, find_entry
from keras_vit.checkpoints.download import DownloadError, cache_folder, find_checkpoint
from tests.checkpoints.hub_server import LocalServer

pytestmark = pytest.mark.once


def npz(seed=0, count=50_000):
    file = io.BytesIO()
    np.savez(file, values=np.random.default_rng(seed).normal(size=count).astype("float32"))
    return file.getvalue()


AUGREG = "augreg/B_16-i1k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0"  # not listed in the catalogue
FILE = npz()
HALF = len(FILE) // 2


@dataclasses.dataclass
class Page:
    """What a path answers, and how."""

    body: bytes = FILE
    status: int = 200
    headers: dict = dataclasses.field(default_factory=dict)
    length: bool = True  # whether Content-Length is sent
    breaks: list = dataclasses.field(default_factory=list)  # bytes after which connections end, one after another
    before: threading.Event | None = None  # waited for before the body


class Server(LocalServer):
    def __init__(self):
        super().__init__()
        self.pages: dict[str, Page | list[Page]] = {}
        self.seen: list[str] = []  # the paths that were asked for
        self.arrived = threading.Semaphore(0)

    def url(self, path, page=None):
        if page is not None:
            self.pages[path] = page
        return self.base + path

    def answer(self, handler):
        self.seen.append(handler.path)
        self.arrived.release()
        page = self.pages.get(handler.path, Page(b"<html><title>404 no such page</title></html>", 404))
        if isinstance(page, list):
            page = page.pop(0) if len(page) > 1 else page[0]
        handler.send_response(page.status)
        for name, value in page.headers.items():
            handler.send_header(name, value)
        handler.send_header(*(("Content-Length", str(len(page.body))) if page.length else ("Connection", "close")))
        handler.end_headers()
        if page.before:
            page.before.wait(10)
        stop = page.breaks.pop(0) if page.breaks else len(page.body)
        handler.wfile.write(page.body[:stop])
        if stop < len(page.body) or not page.length:
            handler.close_connection = True


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A cache of the test's own, no settings of the user's, no proxy, and no patience."""
    for name in [name for name in os.environ if name.startswith("KERAS_VIT_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("KERAS_VIT_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "PAUSES", (0.01, 0.01))
    return tmp_path / "cache"


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def fetch(source, offline=None):
    with pytest.MonkeyPatch.context() as patch:
        if offline is not None:
            patch.setenv("KERAS_VIT_OFFLINE", str(int(offline)))
        return find_checkpoint(source)


def entry(*urls, **fields):
    fields = {"name": "test/Tiny_16", "layout": "vit_jax", "variant": "ViT-Ti/16", "image_size": 224} | fields
    return Entry(**fields, classes=10, dataset="none", urls=urls)


def test_a_download(server, home):
    url = server.url("/models/ViT-B_16+x.npz", Page())
    path = fetch(url)
    assert path.read_bytes() == FILE
    assert path.name == "ViT-B_16+x.npz" and path.parts[-3] == server.base.removeprefix("http://").replace(":", "_")
    assert files(home) == [path.relative_to(home).as_posix()]  # no lock, no part
    assert fetch(url) == path
    assert len(server.seen) == 1
    long = fetch(server.url(f"/{'a' * 3000}.npz", Page()))
    assert long.name.endswith("aaa.npz") and len(long.name) < 110
    assert fetch(server.url("/index.csv", Page(b"a,b\n1,2\n", length=False))).read_bytes() == b"a,b\n1,2\n"
    assert fetch(entry(server.url("/a.npz", Page()), size="196 KiB")).read_bytes() == FILE


def test_an_entry_goes_to_its_name(server, home):
    """By way of a redirection, and the next mirror where the first has no such file."""
    redirected = server.url("/old.npz", Page(b"", 302, {"Location": "/new.npz"}))
    server.url("/new.npz", Page())
    source = entry(server.url("/denied.npz", Page(DENIED, 403)), server.url("/absent.npz"), redirected)
    assert fetch(source) == home / "test" / "Tiny_16.npz"
    assert (home / "test" / "Tiny_16.npz").read_bytes() == FILE
    assert server.seen == ["/denied.npz", "/absent.npz", "/old.npz", "/new.npz"]


def test_what_may_be_better_the_next_time_is_tried_again(server, home, monkeypatch):
    """It ends too early, is busy, falls silent."""
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    for number, bad in enumerate((Page(breaks=[HALF]), Page(b"", 429), Page(b"", 503), Page(before=threading.Event()))):
        assert fetch(server.url(f"/{number}.npz", [bad, Page()])).read_bytes() == FILE
        assert server.seen == [f"/{number}.npz"] * 2 and len(files(home)) == number + 1
        server.seen.clear()


def refused(source, home, match):
    with pytest.raises(DownloadError, match=match) as caught:
        fetch(source)
    assert files(home) == []
    assert str(caught.value).replace("\n", "").isprintable()
    return caught.value


DENIED = b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>AccessDenied</Code></Error>"
SIGN_IN = b"\n <!DOCTYPE html><html><title>Sign in</title>" + b"x" * 5000
# By case: the page, the listed size, what is said, how often it is asked for.
WRONG = {
    "truncated": (Page(breaks=[HALF] * 9), None, "did not answer: .*", 3),
    "truncated, of unknown length": (Page(FILE[:HALF], length=False), None, "it is incomplete", 1),
    "not the listed size": (Page(), "1.5 MiB", f"the file has {len(FILE):,} bytes, not about 1,572,864", 1),
    "a web page": (Page(SIGN_IN), None, "sent a wrong file: damaged: the file is a web page", 1),
    "empty": (Page(b""), None, "the file is empty", 1),
    "another kind": (Page(b"version https://git-lfs.github.com/spec/v1"), None, "a Git LFS pointer", 1),
    "denied": (Page(DENIED, 403), None, "answered 403 Forbidden", 1),
    "always busy": (Page(b"overloaded", 503), None, "answered 503 Service Unavailable", 3),
    "a length that is not a number": (Page(length=False, headers={"Content-Length": "x\x1b[2J"}), None, "literal", 1),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_answers(server, home, case):
    page, size, message, asked = WRONG[case]
    error = refused(entry(server.url("/a.npz", page), size=size), home, message)
    assert len(server.seen) == asked and len(error.attempts) == 1


def safetensors_file():
    return safetensors.numpy.save({"values": np.ones(50_000, "float32")})


def torch_file(old=False):
    torch, file = pytest.importorskip("torch"), io.BytesIO()
    torch.save({"values": torch.ones(50_000)}, file, _use_new_zipfile_serialization=not old)
    return file.getvalue()


@pytest.mark.parametrize("ending", ["safetensors", "pth", "old.pth", "npz"])
def test_what_is_cut_without_a_length_is_refused_and_a_cut_one_in_the_cache_is_fetched_again(server, home, ending):
    whole = {"safetensors": safetensors_file, "npz": npz}.get(ending, lambda: torch_file(ending == "old.pth"))()
    page = Page(whole[: len(whole) // 2], length=False)
    address = server.url(f"/a.{ending}", page)
    refused(address, home, "sent a wrong file: damaged")
    page.body = whole
    path = fetch(address)
    path.write_bytes(whole[: len(whole) // 2])  # as an older version left it
    server.seen.clear()
    assert fetch(address) == path and path.read_bytes() == whole
    assert fetch(address) == path and server.seen == [f"/a.{ending}"]


def test_an_answer_that_is_packed_is_refused(server, home):
    packed = gzip.compress(bytes(2**24))
    for encoding in ("gzip", "deflate", "x-gzip\x1b"):
        page = Page(packed, headers={"Content-Encoding": encoding})
        refused(server.url("/a.safetensors", page), home, "sent a file compressed as .*, which was not requested")


def test_a_password_is_in_no_message_and_no_name(server, home):
    host = server.base.removeprefix("http://")
    for user in ("me:secret", "me:sec@ret", "secret"):
        with pytest.raises(DownloadError) as caught:
            fetch(f"http://{user}@{host}/missing.npz")
        assert "ret" not in str(caught.value) and f"http://{host}/mi" in str(caught.value)
        server.pages["/b.npz"] = Page()
        path = fetch(f"http://{user}@{host}/b.npz")
        assert "secret" not in str(path) and "me" not in path.parent.parent.name
    for address in ("http://me:secret@host:none/a.npz", "ftp://me:secret@host/a.npz", "http://me:secret@host/a.keras"):
        with pytest.raises((ValueError, OSError)) as wrong:
            keras_vit.load(address)
        assert "secret" not in str(wrong.value)


def test_the_error_says_everything(server, home):
    first, second = server.url("/one.npz", Page(DENIED, 403)), server.url("/two.npz")
    error = refused(entry(first, second), home, "test/Tiny_16 could not be downloaded")
    answers = (f"{first}\n    the server answered 403 Forbidden", f"{second}\n    the server answered 404 Not Found")
    for text in (*answers, str(home / "test" / "Tiny_16.npz"), "KERAS_VIT_MIRROR"):
        assert text in str(error)
    assert [where for where, _ in error.attempts] == [first, second]
    assert len(server.seen) == 2  # these answers are final
    put(home, "test/Tiny_16.npz")  # as the message says
    assert fetch(entry(first, second)).read_bytes() == FILE
    server.close()
    with pytest.raises(DownloadError, match="did not answer: .*refused"):
        fetch(server.url("/a.npz"))


FULL = OSError(errno.ENOSPC, "No space left")


@pytest.mark.parametrize("error, words", [(FULL, "has no room .*KERAS_VIT_HOME"), (KeyboardInterrupt("stop"), "stop")])
def test_a_full_disk_and_an_interruption_leave_nothing(server, home, monkeypatch, error, words):

    def fail(*_):
        raise error

    monkeypatch.setattr(download.ProgressBar, "update", fail)
    with pytest.raises((DownloadError, KeyboardInterrupt), match=words):
        fetch(entry(server.url("/a.npz", Page()), server.url("/b.npz", Page())))
    assert server.seen == ["/a.npz"] and files(home) == []


def test_a_cache_that_cannot_be_written(server, home, monkeypatch):
    """Simulated, as root may write anywhere: what is in it is used, and anything else is a clear error."""
    there = entry(server.url("/a.npz", Page()))
    path = fetch(there)

    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    assert fetch(there) == path
    with pytest.raises(DownloadError, match="cannot be written to the cache: .*Read-only file system.*KERAS_VIT_HOME"):
        fetch(dataclasses.replace(there, name="test/Other_16"))
    assert files(home) == ["test/Tiny_16.npz"]


def test_offline_and_a_damaged_file_in_the_cache(server, home):
    source = entry(server.url("/a.npz", Page()))
    with pytest.raises(DownloadError, match="offline mode is on") as caught:
        fetch(source, offline=True)
    assert str(home / "test" / "Tiny_16.npz") in str(caught.value)
    assert server.seen == [] and not home.exists()
    put(home, "test/Tiny_16.npz", FILE[:HALF])
    with pytest.raises(DownloadError, match="damaged: the file is not an .npz file: it is incomplete"):
        fetch(source, offline=True)
    assert files(home) == ["test/Tiny_16.npz"]
    assert fetch(source, offline=False).read_bytes() == FILE
    assert fetch(source, offline=True).is_file()  # it is there now


def put(folder, name, data=FILE):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("imagenet21k/R50+ViT-B_16", "imagenet21k/R50+ViT-B_16.npz"),
        ("imagenet21k/ViT-H_14", "ViT-H_14.npz"),  # the file's own name, where only one checkpoint has it
        (AUGREG, f"{AUGREG.removeprefix('augreg/')}.npz"),
    ],
)
def test_a_mirror_folder(tmp_path, home, monkeypatch, name, file):
    monkeypatch.setenv("KERAS_VIT_MIRROR", f" {tmp_path / 'mirror'} ")
    path = put(tmp_path / "mirror", file)
    assert fetch(name, offline=True) == path
    assert not home.exists()  # used where it is


def test_what_is_wrong_in_a_mirror_is_reported(tmp_path, monkeypatch):
    """ViT-B_16.npz may be any of four: the wrong one would load without complaint. A mirror's files are the user's."""
    put(tmp_path / "mirror", "ViT-B_16.npz")
    half = put(tmp_path / "mirror", "sam/ViT-B_16.npz", FILE[:HALF])
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "mirror"))
    for name, problem in (
        ("imagenet21k", "no such file"),
        ("sam", "damaged: the file is not an .npz file: it is incomplete"),
    ):
        with pytest.raises(DownloadError, match=f"{name}/ViT-B_16.npz\n    {problem}"):
            fetch(f"{name}/ViT-B_16", offline=True)
    assert half.read_bytes() == FILE[:HALF]


def test_a_mirror_server(server, home, monkeypatch):
    """Asked first, with the names of the catalogue; listed sizes are about the published files."""
    monkeypatch.setenv("KERAS_VIT_MIRROR", f"{server.base}/vit/")
    quoted, name = "imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz", "imagenet21k+imagenet2012/R50+ViT-B_16"
    server.url(f"/vit/{quoted}", Page())
    assert fetch(name) == home / f"{name}.npz" and (home / f"{name}.npz").read_bytes() == FILE
    assert server.seen == [f"/vit/{quoted}"]
    server.url("/vit/ViT-H_14.npz", Page(npz(1)))
    assert fetch("imagenet21k/ViT-H_14").read_bytes() == npz(1)
    monkeypatch.setenv("KERAS_VIT_MIRROR", "ftp://127.0.0.1/")
    with pytest.raises(ValueError, match="KERAS_VIT_MIRROR must .*ftp://127"):
        fetch(entry(server.url("/published.npz", Page())))


NO_ADDRESS = "An address must be https://"


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (pathlib.Path("absent"), FileNotFoundError, "no file or folder absent"),
        (pathlib.Path(__file__).parent, IsADirectoryError, "has no weights"),
        ("absent.npz", FileNotFoundError, "no file or folder absent.npz: check the path. There is no checkpoint"),
        ("./ViT-B_16", FileNotFoundError, "no file or folder ./ViT-B_16"),
        ("~nobody-of-this-name/x.npz", FileNotFoundError, "no file or folder ~nobody"),
        ("", ValueError, "no checkpoint or model ''"),
        ("ViT-B_16", ValueError, "is the name of several checkpoints"),
        ("ftp://127.0.0.1/a.npz", ValueError, "https://, http:// or gs://"),
        *((address, ValueError, NO_ADDRESS) for address in ("https://", "https://[::1/a.npz", "https://a/\ud800.npz")),
        (42, TypeError, "but int was given"),
    ],
)
def test_what_is_no_source(source, error, message):
    with pytest.raises(error, match=message) as caught:
        fetch(source)
    assert "\n" not in str(caught.value)


FINE_TUNED = "imagenet21k+imagenet2012/ViT-B_16"
NAMED = [*((find_entry(name).urls[0], name) for name in ("bit_models/BiT-M-R50x1", AUGREG))]


@pytest.mark.parametrize(("address", "name"), [*NAMED, (f"gs://vit_models/{FINE_TUNED}.npz", FINE_TUNED)])
def test_a_published_address_is_the_checkpoint(home, address, name):
    path = put(home, f"{name}.npz")
    assert fetch(address, offline=True) == path
    with pytest.raises(DownloadError, match="storage.googleapis.com/vit_models/gone/x.npz"):
        fetch("gs://vit_models/gone/x.npz", offline=True)


@pytest.mark.parametrize("address", ["https://a.example/../../%2e%2e/a%2f..%2fb.npz", "https://../b.npz"])
def test_no_address_leaves_the_cache(home, address):
    with pytest.raises(DownloadError) as error:
        fetch(address, offline=True)
    path = pathlib.Path(re.search(r"put it at\n  (.*)\n", str(error.value))[1])
    assert path.resolve().is_relative_to(home.resolve()) and ".." not in path.parts


def test_the_cache_folder(tmp_path, monkeypatch):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("KERAS_VIT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "keras_vit"
    monkeypatch.setenv("KERAS_VIT_HOME", "~nobody-of-this-name")
    with pytest.raises(FileNotFoundError, match="~nobody.*KERAS_VIT_HOME"):
        cache_folder()


def test_two_that_want_a_file_fetch_it_once(server, home):
    go = threading.Event()
    address = server.url("/a.npz", Page(before=go))
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(fetch, address) for _ in range(2)]
        assert server.arrived.acquire(timeout=10)
        time.sleep(0.1)  # the other one has come to the lock
        go.set()
        paths = {one.result(timeout=20) for one in both}
    assert [path.read_bytes() for path in paths] == [FILE] and len(server.seen) == 1 and len(files(home)) == 1


def test_file_systems_without_locks(server, monkeypatch):
    def unsupported(*args, **kwargs):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("filelock.FileLock.acquire", unsupported)
    assert fetch(server.url("/a.npz", Page())).read_bytes() == FILE


NAMES = "m@1.npz m_1.npz M.npz m.npz a/m.npz a_m.npz m.npz/m.npz m.npz?a=1 m.npz?a=2 m.npz.lock"


def test_two_addresses_never_share_a_file(server):
    """Also on file systems that do not care about case."""
    paths = [fetch(server.url(f"/{name}", Page(npz(number, 50)))) for number, name in enumerate(NAMES.split())]
    assert len({str(path).lower() for path in paths}) == len(paths)
    for number, path in enumerate(paths):
        assert path.read_bytes() == npz(number, 50)
        assert not any(path.is_relative_to(other) for other in paths if other != path)
