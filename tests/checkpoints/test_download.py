"""Downloads against a local server that does everything a server can do wrong. Nothing leaves 127.0.0.1."""

import base64
import dataclasses
import errno
import hashlib
import http.server
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import filelock
import numpy as np
import pytest

from keras_vit._files import locked
from keras_vit.checkpoints import download, transfer
from keras_vit.checkpoints.catalogue import find_entry
from keras_vit.checkpoints.download import DownloadError, cache_folder, fetch
from keras_vit.checkpoints.entry import Entry

PACKAGE = pathlib.Path(download.__file__).parent.parent


def npz(seed=0, count=50_000):
    file = io.BytesIO()
    np.savez(file, values=np.random.default_rng(seed).normal(size=count).astype("float32"))
    return file.getvalue()


AUGREG = "augreg/B_16-i1k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0"  # not listed in the catalogue
FILE = npz()
HALF = len(FILE) // 2


# The server.


@dataclasses.dataclass
class Page:
    """What a path answers, and how."""

    body: bytes = FILE
    status: int = 200
    headers: dict = dataclasses.field(default_factory=dict)
    etag: str | None = '"v1"'
    ranges: bool = True
    length: bool = True  # whether Content-Length is sent
    breaks: list = dataclasses.field(default_factory=list)  # bytes after which each connection ends, then none
    pause: float = 0.0  # seconds before each piece
    pieces: int = 1
    before: threading.Event | None = None  # waited for before the body
    halfway: threading.Event | None = None  # waited for after the first half of the body


@dataclasses.dataclass
class Seen:
    """A request and what was sent for it."""

    path: str
    range: str | None
    if_range: str | None
    status: int = 0
    sent: int = 0


class Server:
    def __init__(self):
        self.pages: dict[str, Page | list[Page]] = {}
        self.seen: list[Seen] = []
        self.arrived = threading.Semaphore(0)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                outer._answer(self)

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass  # clients that hang up are part of the tests

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def url(self, path, page=None):
        if page is not None:
            self.pages[path] = page
        return self.base + path

    def _answer(self, handler):
        seen = Seen(handler.path, handler.headers["Range"], handler.headers["If-Range"])
        self.seen.append(seen)
        self.arrived.release()
        page = self.pages.get(handler.path, Page(b"<html><title>404 no such page</title></html>", 404))
        if isinstance(page, list):
            page = page.pop(0) if len(page) > 1 else page[0]
        status, body, headers = page.status, page.body, dict(page.headers)
        if status == 200 and page.etag:
            headers["ETag"] = page.etag
        same = seen.if_range in (page.etag, page.headers.get("Last-Modified"))
        if seen.range and page.ranges and status == 200 and same:
            start = int(re.fullmatch(r"bytes=(\d+)-", seen.range)[1])
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            body = body[start:]
        seen.status = status
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        if page.length:
            handler.send_header("Content-Length", str(len(body)))
        if not page.length:
            handler.send_header("Connection", "close")
        handler.end_headers()
        if page.before:
            page.before.wait(10)
        stop = page.breaks.pop(0) if page.breaks else len(body)
        step = -(-stop // (2 if page.halfway else page.pieces)) or 1
        for start in range(0, stop, step):
            time.sleep(page.pause)
            if page.halfway and start:
                page.halfway.wait(10)
            piece = body[start : min(start + step, stop)]
            handler.wfile.write(piece)
            handler.wfile.flush()
            seen.sent += len(piece)
        if stop < len(body) or not page.length:
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
    monkeypatch.setattr(transfer, "PAUSES", (0.01, 0.01, 0.01))
    return tmp_path / "cache"


def files(folder):
    """All files under a folder, by their paths in it."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def entry(*urls, **fields):
    fields = {"name": "test/Tiny_16", "layout": "vit_jax", "variant": "ViT-Ti/16", "image_size": 224} | fields
    return Entry(**fields, classes=10, dataset="none", urls=urls)


def md5(data):
    return base64.b64encode(hashlib.md5(data).digest()).decode()


# What goes well.


def test_a_download(server, home):
    url = server.url("/files/model.npz", Page())
    path = fetch(url)
    assert path.read_bytes() == FILE
    assert path.is_relative_to(home) and path.name == "model.npz"
    assert files(home) == [path.relative_to(home).as_posix()]  # no lock, no part
    assert [(seen.path, seen.range) for seen in server.seen] == [("/files/model.npz", None)]
    assert fetch(url) == path
    assert len(server.seen) == 1


def test_an_entry_goes_to_its_name(server, home):
    path = fetch(entry(server.url("/anything.npz", Page())))
    assert path == home / "test" / "Tiny_16.npz"
    assert path.read_bytes() == FILE


def test_a_folder_of_the_callers(server, home, tmp_path):
    path = fetch(entry(server.url("/a.npz", Page())), folder=tmp_path / "own")
    assert path == tmp_path / "own" / "test" / "Tiny_16.npz"
    assert not home.exists()


def test_a_slow_server(server, monkeypatch):
    """The time-out is for silence, not for the whole."""
    monkeypatch.setattr(transfer, "TIMEOUT", 0.5)
    started = time.monotonic()
    assert fetch(server.url("/a.npz", Page(pause=0.1, pieces=8))).read_bytes() == FILE
    assert time.monotonic() - started > 0.7
    assert len(server.seen) == 1


def test_a_query_is_part_of_the_address(server, home):
    first = fetch(server.url("/get/model.npz?version=1", Page()))
    second = fetch(server.url("/get/model.npz?version=2", Page(npz(1))))
    assert first != second and first.suffix == second.suffix == ".npz"
    assert first.read_bytes() == FILE and second.read_bytes() == npz(1)
    assert len(files(home)) == 2


def test_a_redirection(server):
    url = server.url("/old.npz", Page(b"", 302, {"Location": "/new.npz"}))
    server.url("/new.npz", Page())
    assert fetch(url).read_bytes() == FILE


def test_files_of_other_kinds(server):
    """Only an .npz is known to begin with PK; a web page is refused under any name."""
    assert fetch(server.url("/index.csv", Page(b"a,b\n1,2\n"))).read_bytes() == b"a,b\n1,2\n"
    with pytest.raises(DownloadError, match="web page"):
        fetch(server.url("/weights.h5", Page(b"\n <!DOCTYPE html><p>Sign in")))


def test_the_progress_bar(server, capfd, monkeypatch):
    fetch(server.url("/quiet.npz", Page()))
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    monkeypatch.setenv("COLUMNS", "120")
    fetch(server.url("/silent.npz", Page()), progress=False)
    assert capfd.readouterr() == ("", "")
    fetch(server.url("/shown.npz", Page(npz(2, 500_000), breaks=[1_000_000])))
    out, shown = capfd.readouterr()
    assert out == ""
    assert "Downloading shown.npz" in shown and "2.0/2.0 MB" in shown


# Broken connections.


def test_a_dropped_connection_is_resumed(server, home):
    path = fetch(server.url("/a.npz", Page(breaks=[HALF])))
    assert path.read_bytes() == FILE
    first, second = server.seen
    assert (first.range, first.sent) == (None, HALF)
    assert (second.range, second.if_range, second.status) == (f"bytes={HALF}-", '"v1"', 206)
    assert second.sent == len(FILE) - HALF  # nothing twice
    assert len(files(home)) == 1


def test_a_date_will_do_to_resume(server):
    date = "Tue, 20 Oct 2020 11:48:22 GMT"
    for path, etag in (("/a.npz", None), ("/b.npz", 'W/"about the same"')):
        page = Page(breaks=[HALF], etag=etag, headers={"Last-Modified": date})
        assert fetch(server.url(path, page)).read_bytes() == FILE
        assert (server.seen[-1].if_range, server.seen[-1].status) == (date, 206)


def test_silence_is_a_broken_connection(server, monkeypatch):
    monkeypatch.setattr(transfer, "TIMEOUT", 0.2)
    never = threading.Event()
    pages = [Page(halfway=never), Page()]
    server.pages["/a.npz"] = pages
    assert fetch(server.url("/a.npz")).read_bytes() == FILE
    assert server.seen[1].range == f"bytes={HALF}-"
    never.set()


def test_a_server_that_ignores_ranges(server):
    assert fetch(server.url("/a.npz", Page(breaks=[HALF], ranges=False))).read_bytes() == FILE
    assert [seen.status for seen in server.seen] == [200, 200]
    assert server.seen[1].sent == len(FILE)


def test_a_file_that_changed_meanwhile(server):
    server.pages["/a.npz"] = [Page(breaks=[HALF]), Page(npz(1), etag='"v2"')]
    assert fetch(server.url("/a.npz")).read_bytes() == npz(1)
    assert server.seen[1].if_range == '"v1"'


def test_halves_of_two_files_are_not_joined(server, home):
    """A server with two files under one ETag: the hash tells, and the file is fetched once more as a whole."""
    other = Page(npz(1), headers={"x-goog-hash": f"md5={md5(npz(1))}"})
    server.pages["/a.npz"] = [Page(breaks=[HALF], headers={"x-goog-hash": f"md5={md5(FILE)}"}), other]
    assert fetch(server.url("/a.npz")).read_bytes() == npz(1)
    assert [seen.status for seen in server.seen] == [200, 206, 200]


def test_an_impossible_range(server):
    server.pages["/a.npz"] = [Page(breaks=[HALF]), Page(b"", 416), Page()]
    assert fetch(server.url("/a.npz")).read_bytes() == FILE
    assert [seen.range for seen in server.seen] == [None, f"bytes={HALF}-", None]


def test_another_range_than_asked_for(server):
    wrong = Page(FILE[:10], 206, {"Content-Range": f"bytes 0-9/{len(FILE)}"})
    server.pages["/a.npz"] = [Page(breaks=[HALF]), wrong, Page()]
    assert fetch(server.url("/a.npz")).read_bytes() == FILE


def test_many_drops_are_borne_as_long_as_something_arrives(server):
    step = len(FILE) // 10
    assert fetch(server.url("/a.npz", Page(breaks=[step] * 9))).read_bytes() == FILE
    assert sum(seen.sent for seen in server.seen) == len(FILE)


def test_what_arrived_is_kept_for_the_next_call(server, home):
    url = server.url("/a.npz", Page(breaks=[HALF, 0, 0, 0, 0]))
    with pytest.raises(DownloadError, match=r"ended the connection after .* \(4 tries\)") as caught:
        fetch(url)
    assert "a.npz.part" in str(caught.value) and "goes on" in str(caught.value)
    assert [name.rpartition("/")[2] for name in files(home)] == ["a.npz.part", "a.npz.part.json"]
    assert len(server.seen) == 5
    assert fetch(url).read_bytes() == FILE
    assert server.seen[-1].range == f"bytes={HALF}-"
    assert len(files(home)) == 1


def test_an_interruption_is_resumed(server, home, monkeypatch):
    read = transfer._read
    monkeypatch.setattr(transfer, "_read", lambda response: (_ for _ in ()).throw(KeyboardInterrupt))
    url = server.url("/a.npz", Page())
    with pytest.raises(KeyboardInterrupt):
        fetch(url)
    assert files(home) == []  # nothing had arrived

    def read_once(response):
        monkeypatch.setattr(transfer, "_read", lambda response: (_ for _ in ()).throw(KeyboardInterrupt))
        return read(response)

    monkeypatch.setattr(transfer, "_read", read_once)
    with pytest.raises(KeyboardInterrupt):
        fetch(url)
    monkeypatch.setattr(transfer, "_read", read)
    assert fetch(url).read_bytes() == FILE
    assert sum(seen.sent for seen in server.seen if seen.status == 206) < len(FILE)


def test_a_damaged_note_beside_a_part_costs_only_time(server, home):
    url = server.url("/a.npz", Page(breaks=[HALF, 0, 0, 0, 0]))
    with pytest.raises(DownloadError):
        fetch(url)
    next(home.rglob("*.json")).write_text("{")
    assert fetch(url).read_bytes() == FILE
    assert server.seen[-1].range is None


# Wrong files: none of them stays.


def refused(source, home, match):
    with pytest.raises(DownloadError, match=match) as caught:
        fetch(source)
    assert files(home) == []
    return caught.value


def test_a_truncated_body(server, home):
    """Shorter than announced, time and again, and nothing to resume by."""
    page = Page(breaks=[HALF] * 9, etag=None)
    error = refused(server.url("/a.npz", page), home, f"after {HALF:,} of {len(FILE):,} bytes")
    assert len(server.seen) == 4 and len(error.attempts) == 1


def test_a_truncated_body_of_unknown_length(server, home):
    refused(server.url("/a.npz", Page(FILE[:HALF], length=False)), home, "end of the .npz is missing")
    assert fetch(server.url("/b.npz", Page(length=False))).read_bytes() == FILE


@pytest.mark.parametrize(
    "headers",
    [
        {"x-goog-hash": f"md5={md5(b'other')}"},
        {"x-goog-hash": f"crc32c=AAAAAA==, md5={md5(b'other')}"},
        {"Content-MD5": md5(b"other")},
    ],
)
def test_not_the_hash_that_the_server_sent(server, home, headers):
    (name, value), *_ = headers.items()
    refused(server.url("/a.npz", Page(headers=headers)), home, "sent a wrong file: its md5 is [0-9a-f]+, expect")
    assert len(server.seen) == 1  # it would be as wrong again


@pytest.mark.parametrize(
    "headers",
    [
        {"x-goog-hash": f"md5={md5(FILE)}"},
        {"x-goog-hash": f"crc32c=AAAAAA==,md5={md5(FILE)}"},
        {"Content-MD5": md5(FILE)},
        {"x-goog-hash": "md5=?, sha3=00=="},  # unknown ones are passed over
    ],
)
@pytest.mark.parametrize("breaks", [[], [HALF]], ids=["whole", "resumed"])
def test_the_hash_that_the_server_sent(server, headers, breaks):
    assert fetch(server.url("/a.npz", Page(headers=headers, breaks=list(breaks)))).read_bytes() == FILE


def test_not_the_size_of_the_catalogue(server, home):
    """Refused before the body is fetched."""
    source = entry(server.url("/a.npz", Page(pause=5)), size="1.5 MiB")
    refused(source, home, f"has a file of {len(FILE):,} bytes, expected 1,468,006 to 1,677,721")
    assert fetch(dataclasses.replace(source, urls=(server.url("/b.npz", Page()),), size="196 KiB")).is_file()


def test_a_web_page_with_status_200(server, home):
    page = Page(b"<!DOCTYPE html><html><title>Sign in</title>" + b"x" * 5000, headers={"Content-Type": "text/html"})
    refused(server.url("/a.npz", page), home, "sent a wrong file: it is a web page")
    refused(server.url("/b.npz", Page(b"<html>")), home, "web page")  # shorter than what is looked at
    refused(server.url("/c.npz", Page(b"")), home, "empty")
    refused(server.url("/d.npz", Page(b"version https://git-lfs.github.com/spec/v1")), home, "starts with b'version '")


def test_an_encoding_that_nobody_asked_for(server, home):
    refused(server.url("/a.npz", Page(headers={"Content-Encoding": "gzip"})), home, "encoding gzip")


# Answers that are no file.

DENIED = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>AccessDenied</Code><Message>Access denied.</Message>"
    b"<Details>Anonymous caller does not have storage.objects.get access</Details></Error>"
)


def test_the_error_says_everything(server, home):
    first = server.url("/one.npz", Page(DENIED, 403))
    second = server.url("/two.npz")
    error = refused(entry(first, second), home, "test/Tiny_16 could not be downloaded")
    text = str(error)
    assert f"{first}\n    answered 403 Forbidden: AccessDenied Access denied. Anonymous caller" in text
    assert f"{second}\n    answered 404 Not Found: 404 no such page" in text
    assert str(home / "test" / "Tiny_16.npz") in text
    assert "KERAS_VIT_MIRROR" in text and "test/Tiny_16.npz" in text
    assert [where for where, _ in error.attempts] == [first, second]
    assert len(server.seen) == 2  # these answers are final
    # What the message says works.
    (home / "test").mkdir(parents=True, exist_ok=True)
    (home / "test" / "Tiny_16.npz").write_bytes(FILE)
    assert fetch(entry(first, second)).read_bytes() == FILE
    assert len(server.seen) == 2


def test_the_next_mirror_is_tried(server):
    urls = [server.url("/a.npz", Page(DENIED, 403)), server.url("/b.npz"), server.url("/c.npz", Page())]
    assert fetch(entry(*urls)).read_bytes() == FILE
    assert [seen.path for seen in server.seen] == ["/a.npz", "/b.npz", "/c.npz"]


def test_half_a_file_from_one_mirror_and_the_other_from_the_next_are_not_joined(server):
    first = server.url("/a.npz", Page(npz(1), breaks=[HALF, 0, 0, 0, 0]))
    assert fetch(entry(first, server.url("/b.npz", Page()))).read_bytes() == FILE
    assert server.seen[-1].range is None


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(server, status):
    server.pages["/a.npz"] = [Page(b"", status, {"Retry-After": "0"}), Page(b"", status), Page()]
    assert fetch(server.url("/a.npz")).read_bytes() == FILE
    assert len(server.seen) == 3


def test_a_server_that_stays_busy(server, home):
    refused(server.url("/a.npz", Page(b"overloaded", 503)), home, r"503 Service Unavailable: overloaded \(4 tries\)")
    assert len(server.seen) == 4


def test_nobody_there(server, home):
    url = server.url("/a.npz")
    server.close()
    refused(url, home, "did not answer: .*refused")


# This machine.


def test_a_full_disk_is_seen_before(server, home, monkeypatch):
    usage = transfer.shutil.disk_usage(home.parent)
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda path: usage._replace(free=HALF - 10))
    with pytest.raises(DownloadError, match="no room for 0 MiB.*KERAS_VIT_HOME to a folder on another"):
        fetch(server.url("/a.npz", Page()))
    assert files(home) == []


def test_a_half_is_not_lost_where_there_is_no_room_for_the_other(server, home, monkeypatch):
    url = server.url("/a.npz", Page(breaks=[HALF, 0, 0, 0, 0]))
    with pytest.raises(DownloadError, match="ended the connection"):
        fetch(url)
    with monkeypatch.context() as full:
        usage = transfer.shutil.disk_usage(home)
        full.setattr(transfer.shutil, "disk_usage", lambda path: usage._replace(free=HALF - 10))
        with pytest.raises(DownloadError, match="no room"):
            fetch(url)
    assert fetch(url).read_bytes() == FILE
    assert server.seen[-1].range == f"bytes={HALF}-"


def test_a_disk_that_fills_up(server, home, monkeypatch):
    open_path = pathlib.Path.open

    class Full(io.FileIO):
        def write(self, data):
            if self.tell() + len(data) > HALF:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    def open_part(path, mode="r", *args, **kwargs):
        return Full(path, "a") if mode == "ab" else open_path(path, mode, *args, **kwargs)

    url = server.url("/a.npz", Page(pause=0.001, pieces=8))
    with monkeypatch.context() as full, pytest.raises(DownloadError, match="no room for") as caught:
        full.setattr(pathlib.Path, "open", open_part)
        fetch(entry(url, server.url("/b.npz", Page())))
    assert caught.value.__cause__.__cause__.errno == errno.ENOSPC
    assert files(home) == []  # a full disk is not kept full
    assert {seen.path for seen in server.seen} == {"/a.npz"}  # no other mirror would help
    assert fetch(url).read_bytes() == FILE


def test_a_cache_that_cannot_be_written(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERAS_VIT_HOME", str(tmp_path / "file" / "cache"))
    with pytest.raises(DownloadError, match="cannot be kept in the cache.*Set KERAS_VIT_HOME"):
        fetch(server.url("/a.npz", Page()))
    assert server.seen == []


def test_a_read_only_cache(server, home, monkeypatch):
    """Simulated, as root may write anywhere: what is in it is used, and anything else is a clear error."""
    there = entry(server.url("/a.npz", Page()))
    path = fetch(there)

    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    assert fetch(there) == path
    with pytest.raises(DownloadError, match="Read-only file system.*KERAS_VIT_HOME"):
        fetch(dataclasses.replace(there, name="test/Other_16"))
    assert files(home) == ["test/Tiny_16.npz"]


def test_a_damaged_file_in_the_cache_is_replaced(server, home):
    source = entry(server.url("/a.npz", Page()))
    (home / "test").mkdir(parents=True)
    (home / "test" / "Tiny_16.npz").write_bytes(FILE[:HALF])
    with pytest.raises(DownloadError, match="damaged: .*end of the .npz is missing"):
        fetch(source, offline=True)
    assert files(home) == ["test/Tiny_16.npz"]
    assert fetch(source).read_bytes() == FILE


def test_offline(server, home, monkeypatch):
    source = entry(server.url("/a.npz", Page()))
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    with pytest.raises(DownloadError, match="offline mode is on") as caught:
        fetch(source)
    assert str(home / "test" / "Tiny_16.npz") in str(caught.value)
    assert server.seen == [] and not home.exists()
    assert fetch(source, offline=False).is_file()
    assert fetch(source).is_file()  # it is there now
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "0")
    assert fetch(dataclasses.replace(source, name="b"), offline=None).is_file()
    with pytest.raises(DownloadError, match="offline"):
        fetch(dataclasses.replace(source, name="c"), offline=True)


# Mirrors of the user's own.


def put(folder, name, data=FILE):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["imagenet21k/ViT-L_16.npz", "imagenet21k/R50+ViT-B_16.npz"])
def test_a_mirror_folder(tmp_path, home, monkeypatch, name):
    path = put(tmp_path / "mirror", name)
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "mirror"))
    assert fetch(name.removesuffix(".npz"), offline=True) == path
    assert not home.exists()  # used where it is


def test_a_mirror_folder_by_file_name(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_MIRROR", f" {tmp_path / 'none'} ; {tmp_path / 'mirror'};")
    path = put(tmp_path / "mirror", "ViT-H_14.npz")
    assert fetch("imagenet21k/ViT-H_14", offline=True) == path
    path = put(tmp_path / "mirror", f"{AUGREG.removeprefix('augreg/')}.npz")
    assert fetch(AUGREG, offline=True) == path


def test_a_file_name_that_several_checkpoints_have_is_not_taken(tmp_path, monkeypatch):
    """ViT-B_16.npz may be any of four; the wrong one would load without complaint."""
    put(tmp_path / "mirror", "ViT-B_16.npz")
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "mirror"))
    with pytest.raises(DownloadError, match="imagenet21k/ViT-B_16.npz\n    no such file"):
        fetch("imagenet21k/ViT-B_16", offline=True)


def test_a_damaged_file_in_a_mirror_is_reported(tmp_path, server, monkeypatch):
    path = put(tmp_path / "mirror", "test/Tiny_16.npz", FILE[:HALF])
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "mirror"))
    with pytest.raises(DownloadError) as caught:
        fetch(entry(server.url("/gone.npz")))
    assert caught.value.attempts[0] == (str(path), "damaged: it is not complete: the end of the .npz is missing")
    assert path.read_bytes() == FILE[:HALF]  # a mirror is the user's


def test_a_mirror_server(server, home, monkeypatch):
    """Asked first, with the names of the catalogue; listed sizes are about the published files."""
    monkeypatch.setenv("KERAS_VIT_MIRROR", f"{server.base}/vit/;{server.base}/other")
    server.url("/other/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz", Page())
    path = fetch("imagenet21k+imagenet2012/R50+ViT-B_16")
    assert path == home / "imagenet21k+imagenet2012" / "R50+ViT-B_16.npz"
    assert path.read_bytes() == FILE
    assert [seen.path for seen in server.seen] == [
        "/vit/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz",
        "/other/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz",
    ]
    server.url("/vit/ViT-H_14.npz", Page())
    assert fetch("imagenet21k/ViT-H_14").read_bytes() == FILE


def test_a_mirror_before_the_published_address(server, tmp_path, monkeypatch):
    source = entry(server.url("/published.npz", Page()))
    monkeypatch.setenv("KERAS_VIT_MIRROR", f"{tmp_path};{server.base}/mirror")
    server.url("/mirror/test/Tiny_16.npz", Page(npz(1)))
    assert fetch(source).read_bytes() == npz(1)
    monkeypatch.setenv("KERAS_VIT_MIRROR", "ftp://127.0.0.1/")
    with pytest.raises(ValueError, match="KERAS_VIT_MIRROR must .*ftp://127"):
        fetch(source)


# What `source` may be.


def test_a_path_is_given_back(tmp_path, monkeypatch):
    path = put(tmp_path, "model.npz", b"not looked at")
    assert fetch(path) == path
    assert fetch(str(path)) == path
    monkeypatch.chdir(tmp_path)
    assert fetch("model.npz").absolute() == path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetch("~/model.npz") == path


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (pathlib.Path("absent"), FileNotFoundError, "no file absent"),
        (pathlib.Path(__file__).parent, IsADirectoryError, "is a folder"),
        ("absent.npz", FileNotFoundError, "no file absent.npz. As a name: There is no checkpoint"),
        ("./ViT-B_16", FileNotFoundError, "no file ./ViT-B_16"),
        ("ViT-B_16", ValueError, "may be any of"),
        ("augreg/B_16-i21k-300ep", ValueError, "lr is missing"),
        ("ftp://127.0.0.1/a.npz", ValueError, "https://, http:// or gs://"),
        (42, TypeError, "42"),
    ],
)
def test_what_is_no_source(source, error, message):
    with pytest.raises(error, match=message):
        fetch(source)


@pytest.mark.parametrize(
    "address",
    [
        "https://storage.googleapis.com/vit_models/imagenet21k%2Bimagenet2012/ViT-B_16.npz",
        "https://storage.googleapis.com/vit_models/imagenet21k+imagenet2012/ViT-B_16.npz",
        "gs://vit_models/imagenet21k+imagenet2012/ViT-B_16.npz",
    ],
)
def test_a_published_address_is_the_checkpoint(home, address):
    path = put(home, "imagenet21k+imagenet2012/ViT-B_16.npz")
    assert fetch(address, offline=True) == path


def test_published_addresses_of_other_buckets_and_unlisted_files(home):
    for name in ("big_vision/flexivit/flexivit_b_i1k", "bit_models/BiT-M-R50x1", AUGREG):
        path = put(home, f"{name}.npz")
        assert fetch(find_entry(name).url, offline=True) == path
    with pytest.raises(DownloadError, match="storage.googleapis.com/vit_models/gone/x.npz"):
        fetch("gs://vit_models/gone/x.npz", offline=True)


def test_no_address_leaves_the_cache(server, home):
    url = server.url("/../../%2e%2e/a%2f..%2fb.npz", Page())
    path = fetch(url)
    assert path.resolve().is_relative_to(home.resolve()) and ".." not in path.parts


def test_the_cache_folder(tmp_path, monkeypatch):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("KERAS_VIT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "keras_vit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    if sys.platform != "win32":
        assert cache_folder() == tmp_path / "user" / ".cache" / "keras_vit"


# Several processes.

# The package without its __init__, which would load Keras and a backend: downloads need neither.
WORKER = f"""
import sys, types
for name, folder in (("keras_vit", {str(PACKAGE)!r}), ("keras_vit.checkpoints", {str(PACKAGE / "checkpoints")!r})):
    module = types.ModuleType(name)
    module.__path__ = [folder]
    sys.modules[name] = module
from keras_vit.checkpoints.download import fetch
print("ready", flush=True)
print(fetch(sys.argv[1]), flush=True)
"""


def start(url):
    process = subprocess.Popen([sys.executable, "-c", WORKER, url], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def test_two_processes_fetch_a_file_once(server, home):
    go = threading.Event()
    url = server.url("/a.npz", Page(before=go))
    workers = [start(url), start(url)]
    assert server.arrived.acquire(timeout=10)
    time.sleep(0.3)  # the other one has long come to the lock
    go.set()
    paths = {worker.communicate(timeout=20)[0].strip() for worker in workers}
    assert [worker.returncode for worker in workers] == [0, 0]
    assert len(server.seen) == 1
    (path,) = paths
    assert pathlib.Path(path).read_bytes() == FILE
    assert len(files(home)) == 1


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_process_leaves_no_lock_and_its_half_is_used(server, home):
    never = threading.Event()
    server.pages["/a.npz"] = [Page(halfway=never), Page()]
    url = server.url("/a.npz")
    worker = start(url)
    for _ in range(200):
        if any(path.stat().st_size == -(-len(FILE) // 2) for path in home.rglob("*.part")):
            break
        time.sleep(0.05)
    worker.kill()
    worker.communicate(timeout=10)
    never.set()
    assert sorted(name.rpartition("npz")[2] for name in files(home)) == [".lock", ".part", ".part.json"]
    assert fetch(url).read_bytes() == FILE
    assert server.seen[1].range == f"bytes={-(-len(FILE) // 2)}-"
    assert len(files(home)) == 1


def test_the_lock_excludes_threads(tmp_path):
    inside, most, waits = 0, 0, []

    def work():
        nonlocal inside, most
        for _ in range(3):
            with locked(tmp_path / "a.lock", lambda: waits.append(1)):
                inside += 1
                most = max(most, inside)
                time.sleep(0.005)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and waits
    assert files(tmp_path) == []


def test_a_lock_that_may_not_be_waited_for(tmp_path):
    def refuse():
        raise RuntimeError("busy")

    with locked(tmp_path / "a.lock"):
        with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="busy"):
            pool.submit(lambda: locked(tmp_path / "a.lock", refuse).__enter__()).result()
        assert files(tmp_path) == ["a.lock"]
    assert files(tmp_path) == []


@pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "No locks available"), NotImplementedError()])
def test_file_systems_without_locks(server, monkeypatch, error):
    def unsupported(*args, **kwargs):
        raise error

    monkeypatch.setattr(filelock.FileLock, "acquire", unsupported)
    assert fetch(server.url("/a.npz", Page())).read_bytes() == FILE


# Addresses and files in the cache.


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("m@1.npz", "m_1.npz"),
        ("m 1.npz", "m_1.npz"),
        ("M.npz", "m.npz"),  # file systems that do not care about case
        ("a/m.npz", "a_m.npz"),
        ("a/m.npz", "a//m.npz"),
        ("a/m.npz", "a/./m.npz"),
        ("m.npz", "m.npz/m.npz"),
        ("m.npz?a=1", "m.npz?a=2"),
        ("m.npz", "m.npz.lock"),
        ("m.npz", "m.npz.part"),
        ("\u00e9.npz", "e\u0301.npz"),  # one letter, spelt in two ways
    ],
)
def test_two_addresses_never_share_a_file(server, home, first, second):
    quoted = {name: download._address(f"{server.base}/{name}").removeprefix(server.base) for name in (first, second)}
    assert len(set(quoted.values())) == 2
    server.url(quoted[first], Page(npz(1)))
    server.url(quoted[second], Page(npz(2)))
    paths = [fetch(f"{server.base}/{name}") for name in (first, second)]
    assert len({str(path).lower() for path in paths}) == 2
    assert [path.read_bytes() for path in paths] == [npz(1), npz(2)]
    assert paths[0].suffix == ".npz" and not paths[0].is_relative_to(paths[1])


def test_names_in_the_cache_stay_readable(server, home):
    path = fetch(server.url("/models/ViT-B_16+x.npz", Page()))
    assert path.name == "ViT-B_16+x.npz" and path.parts[-3] == server.base.removeprefix("http://").replace(":", "_")
    long = fetch(server.url(f"/{'a' * 3000}.npz", Page()))
    assert long.name.endswith("aaa.npz") and len(long.name) < 110


def test_an_address_in_other_letters(server):
    """As a browser asks for it: UTF-8, quoted."""
    server.url("/mod%C3%A8les/%E6%A8%A1%20b.npz?v=%C3%A9", Page())
    assert fetch(f"{server.base}/modèles/模 b.npz?v=é").read_bytes() == FILE
    with pytest.raises(DownloadError, match="https://xn--bcher-kva.example/a.npz is not on this machine"):
        fetch("https://bücher.example/a.npz", offline=True)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("https://", "names no host"),
        ("https:///a.npz", "names no host"),
        ("https://[::1/a.npz", "Invalid IPv6"),
        ("https://127.0.0.1:port/a.npz", "Port"),
        ("https://127.0.0.1:99999/a.npz", "Port"),
        ("https://" + "a" * 70 + ".example/a.npz", "label"),
        ("https://a.example/\ud800.npz", "surrogates"),
        ("https://user:secret@a.example/a.npz", "password"),
    ],
)
def test_what_is_no_address(address, message):
    with pytest.raises(ValueError, match=f"is no address to download from: .*{message}") as caught:
        fetch(address)
    assert "\n" not in str(caught.value)


# Servers that send too much.


def test_a_body_without_end(server, home):
    """The catalogue's size is the ceiling, where the server does not say how long the file is."""
    never = entry(server.url("/a.npz", Page(FILE + bytes(2**22), length=False)), size="196 KiB")
    refused(never, home, "sent more than 201,728 bytes, which is more than the file may have")


def test_a_body_without_end_of_an_unknown_file(server, home, monkeypatch):
    monkeypatch.setattr(transfer, "LARGEST", 300_000)
    refused(server.url("/a.npz", Page(FILE + bytes(2**22), length=False)), home, "sent more than 300,000 bytes")
    refused(server.url("/b.npz", Page(FILE + bytes(2**22))), home, r"a file of [\d,]+ bytes, expected at most 300,000")
    assert fetch(server.url("/c.npz", Page(length=False))).read_bytes() == FILE


def test_too_little_without_an_announced_length(server, home):
    source = entry(server.url("/a.npz", Page(length=False)), size="300 KiB")
    refused(source, home, f"sent a wrong file: it has {len(FILE):,} bytes, expected")


def test_a_rest_without_end(server, home):
    """Going on with a file: more arrives than was announced for the whole."""
    longer = Page(FILE + bytes(2**22), length=False, headers={"Content-Range": f"bytes {HALF}-9/{len(FILE)}"})
    server.pages["/a.npz"] = [Page(breaks=[HALF]), dataclasses.replace(longer, status=206, body=bytes(2**22))]
    refused(server.url("/a.npz"), home, f"sent more than {len(FILE):,} bytes")


def test_what_a_server_says_does_not_control_the_terminal(server, home):
    page = b"<title>\x1b[31mred\x07</title>"
    error = refused(server.url("/a.npz", Page(page, 403)), home, r"403 Forbidden: \\x1b\[31mred\\x07")
    assert "\x1b" not in str(error.attempts)
    refused(server.url("/b.npz", Page(headers={"Content-Encoding": "\x1b[2J"})), home, r"encoding \\x1b\[2J")
