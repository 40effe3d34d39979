"""Checking a file against the hashes that are known of it and those that storage servers send along."""

import base64
import binascii
import functools
import hashlib
import pathlib
from collections.abc import Mapping

import numpy as np

_PIECE = 2**22  # bytes read at a time
_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), bits reversed
_LANES = 4096  # parts of a piece whose checksums are computed side by side


def sent_hashes(headers: Mapping[str, str], whole: bool) -> dict[str, str]:
    """The hashes of a file that a server tells, as hexadecimal digits by algorithm.

    Google's storage sends `x-goog-hash` with the whole object's CRC-32C and, unless it was put together from parts,
    its MD5. Others send `Content-MD5`, which is the body's. An ETag is no hash in general and is not taken for one.

    Args:
        headers: Headers of the response.
        whole: Whether its body is the whole file.
    """
    found = {}
    # A header may come several times; http.client's get_all gives all of them, a plain dict has one.
    values = getattr(headers, "get_all", lambda name: [headers[name]] if name in headers else [])("x-goog-hash") or []
    pairs = [pair.strip().partition("=") for value in values for pair in value.split(",")]
    if whole and headers.get("Content-MD5"):
        pairs.append(("md5", "=", headers["Content-MD5"].strip()))
    for algorithm, _, encoded in pairs:
        try:
            digest = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            continue
        if (algorithm, len(digest)) in (("md5", 16), ("crc32c", 4)):
            found.setdefault(algorithm, digest.hex())
    return found


def wrong_hash(path: pathlib.Path, expected: Mapping[str, str]) -> str | None:
    """Compares a file with the hashes that it should have.

    Args:
        path: The file.
        expected: Hexadecimal digits by algorithm: `"sha256"`, `"md5"` or `"crc32c"`. The strongest one is checked.

    Returns:
        What is wrong, in words; None if nothing is, or nothing is known.
    """
    for algorithm in ("sha256", "md5", "crc32c"):
        if algorithm in expected:
            actual = _digest(path, algorithm)
            if actual == expected[algorithm].lower():
                return None
            return f"its {algorithm} is {actual}, expected {expected[algorithm].lower()}"
    return None


def _digest(path: pathlib.Path, algorithm: str) -> str:
    with path.open("rb") as file:
        if algorithm == "crc32c":
            checksum = 0
            while piece := file.read(_PIECE):
                checksum = crc32c(piece, checksum)
            return f"{checksum:08x}"
        state = hashlib.new(algorithm, usedforsecurity=algorithm == "sha256")
        while piece := file.read(_PIECE):
            state.update(piece)
        return state.hexdigest()


def crc32c(data: bytes, checksum: int = 0) -> int:
    """CRC-32C of bytes, going on from the checksum of those before them.

    The standard library has none. Checksums of many parts are computed at once with NumPy and joined afterwards:
    about 100 MB per second, where a loop in Python would manage 5.
    """
    lanes = _LANES if len(data) >= 64 * _LANES else 1
    length = len(data) // lanes
    table = _table()
    parts = np.frombuffer(data, np.uint8, lanes * length).reshape(lanes, length)
    state = np.zeros(lanes, np.uint32)
    state[0] = checksum ^ 0xFFFFFFFF
    if lanes == 1:
        value = int(state[0])
        small = table.tolist()
        for byte in data:
            value = small[(value ^ byte) & 0xFF] ^ (value >> 8)
        return value ^ 0xFFFFFFFF
    for column in np.ascontiguousarray(parts.T):
        state = table[(state ^ column) & 0xFF] ^ (state >> 8)
    # The checksum of a part, moved over the zeros that the parts after it are there, adds up by exclusive or.
    move, value = _after_zeros(length), 0
    for part in state.tolist():
        value = _apply(move, value) ^ part
    rest = data[lanes * length :]
    return crc32c(rest, value ^ 0xFFFFFFFF) if rest else value ^ 0xFFFFFFFF


@functools.cache
def _table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


@functools.lru_cache(8)
def _after_zeros(count: int) -> tuple[int, ...]:
    """What `count` zero bytes do to a checksum: the images of its 32 bits."""
    table = _table().tolist()
    one = tuple(table[bit & 0xFF] ^ (bit >> 8) for bit in (1 << i for i in range(32)))
    result = tuple(1 << i for i in range(32))
    while count:
        if count & 1:
            result = tuple(_apply(one, bit) for bit in result)
        one = tuple(_apply(one, bit) for bit in one)
        count >>= 1
    return result


def _apply(move: tuple[int, ...], value: int) -> int:
    result = 0
    for bit in move:
        if value & 1:
            result ^= bit
        value >>= 1
    return result
