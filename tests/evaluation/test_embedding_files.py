"""Files of features: Parquet, and files that are damaged or were made to look like ours."""

import io
import json
import zipfile

import numpy as np
import pytest

from keras_vit.evaluation import join_embeddings
from keras_vit.evaluation.embedding_files import NOTE, Embeddings, read_embeddings, write_embeddings

SETTINGS = {
    "model": "m",
    "images": "i",
    "count": 7,
    "range": [0, 7],
    "features": "block_-1",
    "dtype": "float32",
    "shape": [2, 3],
    "backend": "torch",
}
NAMES = ["a.png", "b/ü.png", "日本.png", "c", "dd"]
ROWS = np.arange(30, dtype="f4").reshape(5, 2, 3)


def embeddings(first=0, last=5, **changes):
    """Five rows of seven images; two could not be read, and come at the end."""
    end = last if last < 5 else 7
    settings = SETTINGS | {"range": [first, end]} | changes
    skipped = ("e", "f") if end == 7 else ()
    names, rows = NAMES[first:last], ROWS[first:last].astype(settings["dtype"])
    pieces = [rows[:1], rows[1:]]
    return Embeddings(settings, skipped, len(names), lambda: iter(names), lambda: iter(pieces))


def same(read, wanted):
    assert (read.settings, read.skipped, read.count) == (wanted.settings, wanted.skipped, wanted.count)
    assert [*read.names()] == [*wanted.names()]
    got, rows = (np.concatenate([*one.rows()]) for one in (read, wanted))
    assert got.dtype == rows.dtype
    np.testing.assert_array_equal(got, rows)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_what_is_written_is_read(suffix, dtype, tmp_path):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    wanted = embeddings(dtype=dtype)
    write_embeddings(wanted, tmp_path / f"x{suffix}")
    same(read_embeddings(tmp_path / f"x{suffix}"), wanted)
    nothing = Embeddings(SETTINGS | {"range": [0, 0]}, (), 0, lambda: iter(()), lambda: iter(()))
    write_embeddings(nothing, tmp_path / f"none{suffix}")
    read = read_embeddings(tmp_path / f"none{suffix}")
    assert read.count == 0 and [*read.names()] == [] == [*read.rows()]


def test_others_read_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_embeddings(embeddings(), tmp_path / "x.parquet")
    table = parquet.read_table(tmp_path / "x.parquet")
    assert table.column("name").to_pylist() == NAMES
    np.testing.assert_array_equal(np.stack(table.column("features").to_pylist()), ROWS.reshape(5, 6))
    assert json.loads(table.schema.metadata[NOTE.encode()])["shape"] == [2, 3]


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_parts_of_both_kinds_are_joined(suffix, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("keras_vit.evaluation.embedding_files.PIECE", 48)  # two rows
    write_embeddings(embeddings(), tmp_path / f"whole{suffix}")
    parts = [tmp_path / name for name in ("a.npz", "b.parquet", "c.npz")]
    for part, (first, last) in zip(parts, ((0, 1), (1, 4), (4, 5)), strict=True):
        write_embeddings(embeddings(first, last), part)
    done = join_embeddings(parts, tmp_path / f"joined{suffix}")
    assert done.skipped == ("e", "f") and done.count == 5 and done.shape == (2, 3)
    assert done.path.read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()


def archive(note, **arrays):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, values in arrays.items():
            with file.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, values, allow_pickle=values.dtype.hasobject)
        file.comment = note if isinstance(note, bytes) else json.dumps(note).encode()
    return buffer.getvalue()


def test_files_that_are_not_ours(tmp_path):
    write_embeddings(embeddings(), tmp_path / "good.npz")
    good = (tmp_path / "good.npz").read_bytes()
    flipped = bytearray(good)
    flipped[good.index(ROWS[2].tobytes())] ^= 1
    arrays = {"names": np.array(NAMES), "features": ROWS, "skipped": np.array(["e", "f"])}
    hostile = [
        b"",
        b"PK",
        good[:-40],
        bytes(flipped),
        archive(b"", **arrays),
        archive(b"[" * 60_000, **arrays),
        archive({NOTE: None}, **arrays),
        archive({NOTE: SETTINGS | {"shape": [2, 0]}}, **arrays),
        archive({NOTE: SETTINGS | {"shape": 3}}, **arrays),
        archive({NOTE: SETTINGS | {"shape": [2, 2]}}, **arrays),
        archive({NOTE: SETTINGS | {"dtype": "object"}}, **arrays),
        archive({NOTE: SETTINGS | {"range": [5, 2]}}, **arrays),
        archive({NOTE: SETTINGS | {"range": "07"}}, **arrays),
        archive({NOTE: SETTINGS | {"count": True}}, **arrays),
        archive({NOTE: SETTINGS}, **arrays | {"names": np.array(NAMES, object)}),
        archive({NOTE: SETTINGS}, **arrays | {"names": np.array(NAMES)[:4]}),
        archive({NOTE: SETTINGS}, **arrays | {"names": np.zeros((5, 1), "U3")}),
        archive({NOTE: SETTINGS}, **arrays | {"names": np.zeros(5, "U100000")}),
        archive({NOTE: SETTINGS}, **arrays | {"features": ROWS.astype("f8")}),
        archive({NOTE: SETTINGS}, **arrays | {"features": ROWS[..., None][:, :, 0]}),
        archive({NOTE: SETTINGS}, names=arrays["names"], features=ROWS),
    ]
    for number, data in enumerate(hostile):
        path = tmp_path / f"{number}.npz"
        path.write_bytes(data)
        with pytest.raises(ValueError, match=rf"{number}\.npz is damaged, or not a file that embed wrote"):
            join_embeddings([path], tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()
    with pytest.raises(FileNotFoundError, match="no file .*none.npz"):
        join_embeddings([tmp_path / "none.npz"], tmp_path / "out.npz")
    with pytest.raises(ValueError, match="are in .npz and .parquet files"):
        join_embeddings([tmp_path / "a.csv"], tmp_path / "out.npz")


def test_parquet_files_that_are_not_ours(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    write_embeddings(embeddings(), tmp_path / "good.parquet")
    good = (tmp_path / "good.parquet").read_bytes()
    parquet.write_table(pyarrow.table({"name": ["a"]}), tmp_path / "other.parquet")
    for number, data in enumerate([b"", good[:-60], good[200:], (tmp_path / "other.parquet").read_bytes()]):
        path = tmp_path / f"{number}.parquet"
        path.write_bytes(data)
        with pytest.raises(ValueError, match=rf"{number}\.parquet is damaged, or not a file that embed wrote"):
            join_embeddings([path], tmp_path / "out.npz")
