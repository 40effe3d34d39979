"""One file from one address: resumed where it broke off, tried again where that may help, checked before it counts."""

import base64
import binascii
import dataclasses
import errno
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from typing import Any

from keras_vit._text import printable

TIMEOUT = 30.0  # seconds without a byte
PAUSES = (0.5, 1.0, 2.0)  # seconds before another try, after tries that brought nothing new
LARGEST = 2**34  # bytes of a file whose size nobody knows; the largest published one has a third of it
_LONGEST_PAUSE = 30.0  # seconds that a server may ask for
_PIECE = 2**18  # bytes read at a time
_HEAD = 512  # bytes that tell what a file is
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # answers of servers that may have another one later
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


class AddressFailed(Exception):
    """An address gave no file that can be used; the message is what it answered."""

    def __init__(self, answer: str) -> None:
        super().__init__(printable(answer, 400))


class DiskFull(Exception):
    """There is no room for the file; the message says how much is needed."""


class _Temporary(Exception):
    """It may work the next time."""

    def __init__(self, answer: str, pause: float | None = None) -> None:
        super().__init__(answer)
        self.pause = pause


@dataclasses.dataclass(frozen=True)
class _State:
    """What has to be remembered to go on with a file that broke off; kept beside it as JSON."""

    url: str
    validator: str  # the ETag or the date by which the server knows whether its file is still the same
    total: int | None
    md5: str | None


def transfer(
    url: str, part: pathlib.Path, npz: bool, size: tuple[int, int] | None, report: Callable[[int, int | None], None]
) -> None:
    """Fetches a file into `part`, going on with what is there if the server still has the same file.

    Args:
        url: An `http` or `https` address.
        part: Where the bytes go; complete and checked when this returns.
        npz: Whether the file is an `.npz`.
        size: The least and the most bytes that it may have; None for anything up to `LARGEST`.
        report: Called with the bytes there are and the bytes there will be (None if the server does not tell).

    Raises:
        AddressFailed: if the address has no such file, or none that is right. What can be resumed is kept.
        DiskFull: if there is no room. What filled the disk is removed; what was there before is kept.
    """
    fruitless, most = 0, _size(part) if _read_state(part, url) else 0
    while True:
        try:
            return _try(url, part, npz, size, report)
        except _Temporary as error:
            fruitless = 0 if can_resume(part) and _size(part) > most else fruitless + 1
            most = max(most, _size(part))
            if fruitless > len(PAUSES):
                raise AddressFailed(f"{error} ({fruitless} tries)") from None
            pause = PAUSES[max(fruitless - 1, 0)] if error.pause is None else min(error.pause, _LONGEST_PAUSE)
            time.sleep(pause)


def forget(part: pathlib.Path) -> None:
    """Removes an incomplete file and what is remembered of it."""
    part.unlink(missing_ok=True)
    _state_path(part).unlink(missing_ok=True)


def can_resume(part: pathlib.Path) -> bool:
    """Whether there is an incomplete file that a later call can go on with."""
    return _size(part) > 0 and _state_path(part).is_file()


def what_is_wrong(path: pathlib.Path, npz: bool) -> str | None:
    """Whether a file is obviously not what it should be, in words: a web page, or an `.npz` that lacks its end."""
    with path.open("rb") as file:
        problem = _wrong_start(file.read(_HEAD), npz)
    if problem is None and npz and not zipfile.is_zipfile(path):
        return "it is not complete: the end of the .npz is missing"
    return problem


def _try(url: str, part: pathlib.Path, npz: bool, size: tuple[int, int] | None, report: Callable[..., None]) -> None:
    state = _read_state(part, url)
    offset = _size(part) if state else 0
    with _open(url, part, state, offset) as response:
        resumed = state is not None and response.status == 206
        headers = response.headers
        if response.status != 200 and not resumed:
            raise AddressFailed(_status(response.status, response.reason))
        if headers.get("Content-Encoding", "identity") != "identity":
            raise AddressFailed(
                f"sent the file with the encoding {headers['Content-Encoding']}, which nobody asked for"
            )
        if not resumed:
            offset, state = 0, _begin(url, part, headers, size)
        elif not re.fullmatch(rf"bytes {offset}-\d+/({state.total}|\*)", headers.get("Content-Range", "")):
            forget(part)
            raise _Temporary(f"sent another range than asked for ({headers.get('Content-Range', 'none')})")
        if state.total is not None and shutil.disk_usage(part.parent).free < state.total - offset:
            raise DiskFull(_no_room(part, state.total))
        limit = state.total or (size[1] if size else LARGEST)
        received = _receive(response, part, offset, state.total, limit, npz, report)
    if state.total is not None and received < state.total:
        raise _Temporary(f"ended the connection after {received:,} of {state.total:,} bytes")
    problem = what_is_wrong(part, npz) or _wrong_md5(part, state.md5)
    if problem is None and size and received < size[0]:
        problem = f"it has {received:,} bytes, expected {size[0]:,} to {size[1]:,}"
    if problem is not None:
        forget(part)
        # The pieces of a resumed file may not belong together: once more from the start.
        raise (_Temporary if resumed else AddressFailed)(f"sent a wrong file: {problem}")


def _open(url: str, part: pathlib.Path, state: _State | None, offset: int) -> Any:
    """The server's response, once it is one that a file can be in."""
    headers = {"User-Agent": "keras_vit", "Accept-Encoding": "identity"}
    if state is not None:
        headers |= {"Range": f"bytes={offset}-", "If-Range": state.validator}
    try:
        return urllib.request.build_opener().open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            answer = _status(error.code, error.reason, _text(error))
            if error.code == 416 and state is not None:
                forget(part)
                raise _Temporary(answer, 0.0) from None
            if error.code in _BUSY:
                pause = _integer(error.headers.get("Retry-After"))
                raise _Temporary(answer, None if pause is None else float(pause)) from None
        raise AddressFailed(answer) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        final = isinstance(reason, ssl.SSLCertVerificationError | http.client.InvalidURL | ValueError)
        raise (AddressFailed if final else _Temporary)(f"did not answer: {_words(reason)}") from None


def _begin(url: str, part: pathlib.Path, headers: Any, size: tuple[int, int] | None) -> _State:
    """Starts the file anew, and remembers what is needed to go on with it."""
    total = _integer(headers.get("Content-Length"))
    if total is not None and not (size[0] <= total <= size[1] if size else total <= LARGEST):
        expected = f"{size[0]:,} to {size[1]:,}" if size else f"at most {LARGEST:,}"
        raise AddressFailed(f"has a file of {total:,} bytes, expected {expected}")
    etag = headers.get("ETag", "")
    # A weak ETag stands for "about the same file", which is not enough to join two halves.
    validator = etag if etag.startswith('"') else headers.get("Last-Modified", "")
    state = _State(url, validator, total, _sent_md5(headers))
    forget(part)
    if validator and total is not None:
        _state_path(part).write_text(json.dumps(dataclasses.asdict(state)), encoding="utf-8")
    return state


def _receive(
    response: Any,
    part: pathlib.Path,
    received: int,
    total: int | None,
    limit: int,
    npz: bool,
    report: Callable[[int, int | None], None],
) -> int:
    """Appends the body to the file; gives back how many bytes there are now."""
    head = None if received else b""
    report(received, total)
    try:
        with part.open("ab") as file:
            while piece := _read(response):
                received += len(piece)
                if received > limit:
                    raise AddressFailed(f"sent more than {limit:,} bytes, which is more than the file may have")
                file.write(piece)
                report(received, total)
                if head is not None:
                    head += piece[:_HEAD]
                    if len(head) >= _HEAD and (problem := _wrong_start(head, npz)):
                        raise AddressFailed(f"sent a wrong file: {problem}")
                    head = head if len(head) < _HEAD else None
            file.flush()
            os.fsync(file.fileno())  # before it gets its name: a crash must not leave a file with holes
    except AddressFailed:
        forget(part)
        raise
    except OSError as error:
        if error.errno in _FULL:
            forget(part)
            raise DiskFull(_no_room(part, total)) from error
        raise
    return received


def _read(response: Any) -> bytes:
    try:
        return response.read1(_PIECE)
    except (OSError, http.client.HTTPException) as error:
        raise _Temporary(f"broke off: {_words(error)}") from None


def _sent_md5(headers: Any) -> str | None:
    """The MD5 that a server sends with a file, as hexadecimal digits: Google's storage in `x-goog-hash`, if it has one.

    An ETag is no hash in general and is not taken for one.
    """
    hashes = ",".join(headers.get_all("x-goog-hash") or []).split(",")
    encoded = [text.strip().removeprefix("md5=") for text in hashes if text.strip().startswith("md5=")]
    for text in [*encoded, (headers.get("Content-MD5") or "").strip()]:
        try:
            digest = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            continue
        if len(digest) == 16:
            return digest.hex()
    return None


def _wrong_md5(path: pathlib.Path, expected: str | None) -> str | None:
    if expected is None:
        return None
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return None if actual == expected else f"its md5 is {actual}, expected {expected}"


def _no_room(part: pathlib.Path, total: int | None) -> str:
    needed = f"{total / 2**20:,.0f} MiB" if total is not None else "the file"
    free = shutil.disk_usage(part.parent).free / 2**20
    return f"{part.parent} has no room for {needed} ({free:,.0f} MiB are free)"


def _wrong_start(head: bytes, npz: bool) -> str | None:
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "it is a web page, not the file"
    if not head:
        return "it is empty"
    if npz and not head.startswith(b"PK\x03\x04"):
        return f"it is no .npz, but starts with {head[:8]!r}"
    return None


def _state_path(part: pathlib.Path) -> pathlib.Path:
    return part.with_name(f"{part.name}.json")


def _read_state(part: pathlib.Path, url: str) -> _State | None:
    """What is remembered of an incomplete file; None unless it came from that address and can be resumed."""
    try:
        state = _State(**json.loads(_state_path(part).read_text(encoding="utf-8")))
        return state if state.url == url and 0 < _size(part) < state.total else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _size(path: pathlib.Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _integer(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\s*\d{1,18}\s*", text, re.ASCII) else None


def _status(code: int, reason: str, text: str = "") -> str:
    return f"answered {code} {reason}" + (f": {text}" if text else "")


def _text(response: Any) -> str:
    """What an error page says, in one short line."""
    try:
        page = response.read1(4096).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return ""
    title = re.search(r"<title>(.*?)</title>", page, re.IGNORECASE | re.DOTALL)
    line = " ".join(re.sub(r"<[^>]*>", " ", title.group(1) if title else page).split())
    return line if len(line) <= 200 else f"{line[:200]} ..."


def _words(error: Any) -> str:
    return str(error) or type(error).__name__
