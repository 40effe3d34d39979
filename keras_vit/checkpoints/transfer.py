"""One file from one address: resumed where it broke off, tried again where that may help, checked before it counts."""

import base64
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
from http.client import HTTPResponse

from keras_vit._text import printable

TIMEOUT = 30.0  # seconds without a byte
PAUSES = (0.5, 1.0, 2.0)  # seconds before another try, after tries that brought nothing new
LARGEST = 2**34  # bytes of a file whose size nobody knows; the largest published one has a third of it
_LONGEST_PAUSE = 30  # seconds that a server may ask for
_PIECE = 2**18  # bytes read at a time
_HEAD = 512  # bytes that tell what a file is
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # answers of servers that may have another one later
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))

Report = Callable[[int, int | None], None]


class AddressFailed(Exception):
    """An address gave no file that can be used; the message is what it answered."""

    def __init__(self, answer: str) -> None:
        super().__init__(printable(answer, 400))


class DiskFull(Exception):
    """There is no room for the file; the message says how much is needed."""

    def __init__(self, part: pathlib.Path, size: int | None) -> None:
        needed = f"{size / 2**20:,.0f} MiB" if size is not None else "the file"
        free = shutil.disk_usage(part.parent).free / 2**20
        super().__init__(f"{part.parent} has no room for {needed} ({free:,.0f} MiB are free)")


class _Temporary(Exception):
    """It may work the next time, after a number of seconds if the server names one."""

    def __init__(self, answer: str, pause: float | None = None) -> None:
        super().__init__(answer)
        self.pause = pause


@dataclasses.dataclass(frozen=True)
class _Note:
    """What is needed to go on with a file that broke off, as JSON beside it."""

    url: str
    validator: str  # the ETag or the date by which the server knows whether its file is still the same
    total: int | None
    md5: str | None


def transfer(url: str, part: pathlib.Path, npz: bool, size: tuple[int, int] | None, report: Report) -> None:
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
    fruitless, most = 0, _size(part) if _read_note(part, url) else 0
    while True:
        try:
            return _try(url, part, npz, size, report)
        except _Temporary as error:
            fruitless = 0 if can_resume(part) and _size(part) > most else fruitless + 1
            most = max(most, _size(part))
            if fruitless > len(PAUSES):
                raise AddressFailed(f"{error} ({fruitless} tries)") from None
            pause = PAUSES[max(fruitless - 1, 0)] if error.pause is None else error.pause
            time.sleep(min(pause, _LONGEST_PAUSE))


def forget(part: pathlib.Path) -> None:
    """Removes an incomplete file and the note about it."""
    part.unlink(missing_ok=True)
    _note_path(part).unlink(missing_ok=True)


def can_resume(part: pathlib.Path) -> bool:
    """Whether there is an incomplete file that a later call can go on with."""
    return _size(part) > 0 and _note_path(part).is_file()


def what_is_wrong(path: pathlib.Path, npz: bool) -> str | None:
    """Whether a file is obviously not what it should be, in words: a web page, or an `.npz` that lacks its end."""
    with path.open("rb") as file:
        problem = _wrong_start(file.read(_HEAD), npz)
    if problem is None and npz and not zipfile.is_zipfile(path):
        return "it is not complete: the end of the .npz is missing"
    return problem


def _try(url: str, part: pathlib.Path, npz: bool, size: tuple[int, int] | None, report: Report) -> None:
    note = _read_note(part, url)
    offset = _size(part) if note else 0
    with _open(url, part, note, offset) as response:
        resumed = note is not None and response.status == 206
        if response.status != 200 and not resumed:
            raise AddressFailed(f"answered {response.status} {response.reason}")
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise AddressFailed(f"sent the file with the encoding {encoding}, which nobody asked for")
        sent_range = response.headers.get("Content-Range", "none")
        if not resumed:
            note, offset = _begin(url, part, response, size), 0
        elif not re.fullmatch(rf"bytes {offset}-\d+/({note.total}|\*)", sent_range):
            forget(part)
            raise _Temporary(f"sent another range than asked for ({sent_range})")
        total = note.total
        if total is not None and shutil.disk_usage(part.parent).free < total - offset:
            raise DiskFull(part, total)
        limit = total or (size[1] if size else LARGEST)
        received = _receive(response, part, offset, total, limit, npz, report)
    if total is not None and received < total:
        raise _Temporary(f"ended the connection after {received:,} of {total:,} bytes")
    problem = what_is_wrong(part, npz) or _wrong_md5(part, note.md5)
    if problem is None and size and received < size[0]:
        problem = f"it has {received:,} bytes, expected {size[0]:,} to {size[1]:,}"
    if problem is not None:
        forget(part)
        # The pieces of a resumed file may not belong together: once more from the start.
        raise (_Temporary if resumed else AddressFailed)(f"sent a wrong file: {problem}")


def _open(url: str, part: pathlib.Path, note: _Note | None, offset: int) -> HTTPResponse:
    """The server's response, once it is one that a file can be in."""
    headers = {"User-Agent": "keras_vit", "Accept-Encoding": "identity"}
    if note is not None:
        headers |= {"Range": f"bytes={offset}-", "If-Range": note.validator}
    try:
        return urllib.request.build_opener().open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            answer = f"answered {error.code} {error.reason}{_text(error)}"
            if error.code == 416 and note is not None:
                forget(part)
                raise _Temporary(answer, 0.0) from None
            if error.code in _BUSY:
                seconds = error.headers.get("Retry-After", "").strip()
                raise _Temporary(answer, float(seconds) if re.fullmatch("[0-9]{1,9}", seconds) else None) from None
        raise AddressFailed(answer) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        final = isinstance(reason, ssl.SSLCertVerificationError | http.client.InvalidURL | ValueError)
        raise (AddressFailed if final else _Temporary)(f"did not answer: {_words(reason)}") from None


def _begin(url: str, part: pathlib.Path, response: HTTPResponse, size: tuple[int, int] | None) -> _Note:
    """Starts the file anew, with a note beside it where the server gives what is needed to go on with it."""
    total = response.length
    if total is not None and not (size[0] <= total <= size[1] if size else total <= LARGEST):
        expected = f"{size[0]:,} to {size[1]:,}" if size else f"at most {LARGEST:,}"
        raise AddressFailed(f"has a file of {total:,} bytes, expected {expected}")
    headers = response.headers
    etag = headers.get("ETag", "")
    # A weak ETag stands for "about the same file", which is not enough to join two halves.
    validator = etag if etag.startswith('"') else headers.get("Last-Modified", "")
    # Google's storage has its own header. An ETag is no hash in general and is not taken for one.
    hashes = [*headers.get_all("x-goog-hash", []), f"md5={headers.get('Content-MD5')}"]
    md5 = re.search(r"\bmd5=([A-Za-z0-9+/]{22}==)", ",".join(hashes))
    note = _Note(url, validator, total, md5 and base64.b64decode(md5[1]).hex())
    forget(part)
    if validator and total is not None:
        _note_path(part).write_text(json.dumps(dataclasses.asdict(note)), encoding="utf-8")
    return note


def _receive(
    response: HTTPResponse,
    part: pathlib.Path,
    received: int,
    total: int | None,
    limit: int,
    npz: bool,
    report: Report,
) -> int:
    """Appends the body to the file; gives back how many bytes there are now."""
    report(received, total)
    try:
        with part.open("ab") as file:
            while piece := _read(response):
                # Not the whole of a large web page; what begins with a short piece is looked at when it is complete.
                if not received and len(piece) >= _HEAD and (problem := _wrong_start(piece, npz)):
                    raise AddressFailed(f"sent a wrong file: {problem}")
                received += len(piece)
                if received > limit:
                    raise AddressFailed(f"sent more than {limit:,} bytes, which is more than the file may have")
                file.write(piece)
                report(received, total)
            file.flush()
            os.fsync(file.fileno())  # before it gets its name: a crash must not leave a file with holes
    except AddressFailed:
        forget(part)
        raise
    except OSError as error:
        if error.errno in _FULL:
            forget(part)
            raise DiskFull(part, total) from error
        raise
    return received


def _read(response: HTTPResponse) -> bytes:
    try:
        return response.read1(_PIECE)
    except (OSError, http.client.HTTPException) as error:
        raise _Temporary(f"broke off: {_words(error)}") from None


def _wrong_md5(path: pathlib.Path, expected: str | None) -> str | None:
    if expected is None:
        return None
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return None if actual == expected else f"its md5 is {actual}, expected {expected}"


def _wrong_start(head: bytes, npz: bool) -> str | None:
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "it is a web page, not the file"
    if not head:
        return "it is empty"
    if npz and not head.startswith(b"PK\x03\x04"):
        return f"it is no .npz, but starts with {head[:8]!r}"
    return None


def _note_path(part: pathlib.Path) -> pathlib.Path:
    return part.with_name(f"{part.name}.json")


def _read_note(part: pathlib.Path, url: str) -> _Note | None:
    """The note about an incomplete file; None unless it came from that address and can be resumed."""
    try:
        note = _Note(**json.loads(_note_path(part).read_text(encoding="utf-8")))
        return note if note.url == url and 0 < _size(part) < (note.total or 0) else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _size(path: pathlib.Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _text(response: urllib.error.HTTPError) -> str:
    """What an error page says, in one short line after a colon."""
    try:
        page = response.read1(4096).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return ""
    title = re.search(r"<title>(.*?)</title>", page, re.IGNORECASE | re.DOTALL)
    line = " ".join(re.sub(r"<[^>]*>", " ", title.group(1) if title else page).split())
    return f": {line[:200]}{' ...' if len(line) > 200 else ''}" if line else ""


def _words(error: BaseException | str) -> str:
    return str(error) or type(error).__name__
