"""safetensors files: what is written comes back, what other programs write is read, and nothing has to be trusted."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
import safetensors

from keras_vit.checkpoints import files, open_checkpoint
from keras_vit.checkpoints.files import open_file, read_sidecars, write_safetensors
from keras_vit.checkpoints.stored_array import PIECE

pytestmark = pytest.mark.once


def raw(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def field(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


TWO = b'{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    return lambda data: path.write_bytes(data) and path


ARRAYS = {
    "z.matrix": np.arange(12, dtype="float32").reshape(3, 4) - 5,
    "a.scalar": np.array(2.5, "float32"),
    "empty": np.zeros((0, 7), "float32"),
    "double": np.array([1e-3, 2.0], "float64"),
    "half": np.array([0.5, -1.5, 65504], "float16"),
    "brain": np.array([0.5, -1.5, 3e38], ml_dtypes.bfloat16),
    "position_ids": np.arange(5)[None],
    "flags": np.array([True, False]),
    "transposed": np.arange(6, dtype="float32").reshape(2, 3).T,
    "big": np.arange(3, dtype=">f4"),
}


def test_what_is_written_comes_back(tmp_path):
    path = tmp_path / "new" / "model.safetensors"
    write_safetensors(path, ARRAYS.items())
    file = open_file(path)
    assert file.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        stored = file[name]
        assert (stored.shape, stored.stored, stored.bytes) == (array.shape, array.dtype.name, array.nbytes)
        values = stored.read()
        floats = array.dtype.kind not in "ib"
        assert values.dtype == ("float32" if floats else array.dtype)
        np.testing.assert_array_equal(values, array.astype("float32") if floats else array)
        assert values.flags["C_CONTIGUOUS"]
    assert (file.note, file.grid_size) == ({}, None)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model.safetensors"]
    with safetensors.safe_open(path, "numpy") as opened:
        assert opened.metadata() == {"format": "pt"}  # without which transformers refuses it
        np.testing.assert_array_equal(opened.get_tensor("transposed"), ARRAYS["transposed"])


def test_pieces(tmp_path):
    """Of a fused array, that part is read that is asked for; also where it is longer than what is read at a time."""
    values = np.arange(3 * PIECE // 4, dtype="float32").reshape(3, -1)
    write_safetensors(tmp_path / "a.safetensors", [("before", np.zeros(5, "float16")), ("qkv", values)])
    qkv = open_file(tmp_path / "a.safetensors")["qkv"]
    n = values.shape[1]
    np.testing.assert_array_equal(qkv.read(), values)
    for i in range(3):
        np.testing.assert_array_equal(qkv.piece(i * n, (n,)).read(), values[i])
    np.testing.assert_array_equal(qkv.piece(n, (2, n)).piece(n, (5,)).read(), values[2, :5])


HOSTILE = {
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
    "header of petabytes": (raw(b"{}", length=2**60), "at most .* bytes, but it should have 1,152,921,504,606,846,976"),
    "no arrays": (raw({}), "has no arrays"),
    "deep nesting": (raw(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "recursion limit exceeded"),
    "a name twice": (raw(b'{"a":%s,"a":%s}' % (TWO, TWO.replace(b"F", b"I")), bytes(8)), "the name 'a' twice"),
    "dtype": (raw({"a": field("F8_E4M3", (8,))}, bytes(8)), "must have one of the types F64, F32.*F8_E4M3"),
    "shape that overflows": (raw({"a": field(shape=(2**40, 2**40, 0))}, bytes(8)), "overflow"),
    "shape of 33 axes": (raw({"a": field(shape=(1,) * 33, offsets=(0, 4))}, bytes(4)), "has the shape"),
    "truncated": (raw({"a": field()}, bytes(7)), "not fully covered"),
    "overlap": (raw({"a": field(), "b": field(offsets=(4, 12))}, bytes(12)), "invalid offset"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(file, case):
    data, message = HOSTILE[case]
    path = file(data)
    with pytest.raises(ValueError, match=f"model.safetensors.*{message}") as error:
        open_file(path)
    assert "\x1b" not in str(error.value)


def test_what_is_too_long_is_not_parsed(file, parts, monkeypatch):
    monkeypatch.setattr(files, "LONGEST", 50)
    for path in (file(raw({"a" * 1000: field()}, bytes(8))), parts()):
        with pytest.raises(ValueError, match="at most 50 bytes"):
            open_file(path)


def test_a_file_that_is_changed_after_it_was_opened(file):
    path = file(raw({"a": field()}, bytes(8)))
    opened = open_file(path)
    os.utime(path, (0, 0))
    with pytest.raises(ValueError, match="was changed while it was read"):
        opened["a"].read()


@pytest.mark.parametrize("length", [123, 122, 2**8 - 1, 2**8])
def test_a_header_whose_length_begins_like_text(file, length):
    text = json.dumps({"a": field()}).encode()
    path = file(raw(text + b" " * (length - len(text)), bytes(8)))
    assert open_file(path.rename(path.with_name("weights.npz")))["a"].read().tolist() == [0, 0]


def test_what_is_not_written(tmp_path):
    path, good = tmp_path / "model.safetensors", [("a", np.ones(2, "float32"))]
    write_safetensors(path, good)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="pass overwrite=True"):
        write_safetensors(path, good)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["model.safetensors"]
    write_safetensors(path, [("b", np.ones(2, "float32"))], overwrite=True)
    assert list(open_file(path)) == ["b"]


@pytest.fixture
def parts(tmp_path):
    """A folder with a file in two parts; a function changes its index."""
    first = {"a": np.ones(2, "float32"), "b": np.full(3, 2.0, "float32")}
    write_safetensors(tmp_path / "model-1.safetensors", first.items())
    write_safetensors(tmp_path / "model-2.safetensors", [("c", np.full(1, 3.0, "float16"))])
    path = tmp_path / "model.safetensors.index.json"
    names = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}

    def write(**changes):
        path.write_text(json.dumps({"metadata": {"total_size": 22}, "weight_map": names} | changes))
        return path

    write()
    write.names = names
    return write


def test_parts(parts):
    path = parts()
    for source in (path, path.parent):
        file = open_file(source)
        assert {name: array.read().tolist() for name, array in file.items()} == {"a": [1, 1], "b": [2, 2, 2], "c": [3]}


def test_bad_parts(parts):
    names, beside = parts.names, "must have file names"
    for changed, error, message in (
        ([], ValueError, "it has no weight_map"),
        (names | {"d": "model-2.safetensors"}, ValueError, "the array 'd' is only in model.safetensors.index.json"),
        (names | {"b": "model-2.safetensors"}, ValueError, "the array 'b' is only in model-1.safetensors"),
        (names | {"d": "model-3.safetensors"}, FileNotFoundError, "needs the file model-3.safetensors"),
        (names | {"d": "model.safetensors.index.json"}, ValueError, "is not a .safetensors file"),
        *(({"a": part}, ValueError, beside) for part in (3, "../x", "/etc/passwd", "..", "", ".", "a\\b", "C:\\b")),
    ):
        with pytest.raises(error, match=message):
            open_file(parts(weight_map=changed))


def test_folders(tmp_path):
    def add(name, array):
        write_safetensors(tmp_path / name, [(array, np.ones(1, "float32"))])

    with pytest.raises(IsADirectoryError, match="has no weights"):
        open_file(tmp_path)
    for absent in (tmp_path / "absent.safetensors", ""):
        with pytest.raises(FileNotFoundError, match="path of the checkpoint is empty|There is no file"):
            open_file(absent)
    for wrong in (None, 3, b"model.safetensors"):
        with pytest.raises(TypeError, match="must be a string or a path"):
            open_file(wrong)
    add("one.safetensors", "one")
    assert list(open_file(tmp_path)) == ["one"]
    add("two.safetensors", "two")
    with pytest.raises(ValueError, match=r"has several files of weights \(one.safetensors, two.safetensors\)"):
        open_file(tmp_path)
    add("open_clip_model.safetensors", "clip")
    assert list(open_file(tmp_path)) == ["clip"]
    add("model.safetensors", "decoder.weight")
    assert list(open_file(str(tmp_path))) == ["decoder.weight"]
    with pytest.raises(ValueError, match=r"model.safetensors must be a checkpoint in one of .* decoder.weight\."):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Expecting value"),
        (b"[1, 2]", "must be a JSON object, but it is a list"),
        (b'{"a": "\xe4"}', "utf-8"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the name 'c' twice"),
        (b'{"a":' * 50_000, "nested too deeply"),
        (b'{"a": 1' + b" " * 2**23 + b"}", "at most 8,388,608 bytes"),
    ],
)
def test_bad_sidecars(tmp_path, data, message):
    (tmp_path / "open_clip_config.json").write_bytes(data)
    with pytest.raises(ValueError, match=f"open_clip_config.json .*{message}"):
        read_sidecars(tmp_path / "model.safetensors")


def test_a_file_that_cannot_be_written_is_an_os_error(tmp_path, monkeypatch):
    def save_file(*arguments, **options):
        raise safetensors.SafetensorError("No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", save_file)
    with pytest.raises(OSError, match="a.safetensors cannot be written: No space left"):
        write_safetensors(tmp_path / "a.safetensors", [("x", np.zeros(2))])
    assert not list(tmp_path.iterdir())
