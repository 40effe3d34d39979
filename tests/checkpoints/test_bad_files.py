"""Bad input: the right type of error, which names the file or the array and says what to do. Nothing is half loaded."""

import os
import pickle
import zipfile

import h5py
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import stored_array
from keras_vit.checkpoints.files import read_npz
from tests.checkpoints.npz_files import as_bfloat16, read

pytestmark = pytest.mark.once

DENSE = "Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel"
QUERY = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/query/kernel"
POSITION, STACK = "Transformer/posembed_input/pos_embedding", "Transformer/encoderblock/"


@pytest.fixture
def arrays(golden):
    return read(golden("mini_token").path)


@pytest.fixture(params=[keras_vit.from_checkpoint, keras_vit.inspect_checkpoint])
def reader(request):
    return request.param


def load_all(path):
    return {name: array.read() for name, array in read_npz(path).items()}


def npy_header(text, version=1):
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text.encode()


def zipped(path, compression=zipfile.ZIP_STORED, **members):
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "a", compression) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def hdf5_file(path):
    with h5py.File(path, "w") as file:
        file["x"] = 1.0


KERAS = {"metadata.json": "{}", "config.json": "{}", "model.weights.h5": ""}
NO_NPZ = {
    "text": (lambda path: path.write_text("Hello\n"), "not an .npz file: it starts with b'Hello"),
    "web page": (lambda path: path.write_text(" <!DOCTYPE html><html>404"), "not an .npz file: it is a web page"),
    "empty": (lambda path: path.write_bytes(b""), "not an .npz file: it is empty"),
    "hdf5": (hdf5_file, "not an .npz file: it is an HDF5 file. Load it with model.load_weights"),
    "npy": (lambda path: path.write_bytes(npy_header("")), r"not an .npz file: it is a single array \(.npy\)"),
    "keras": (lambda path: zipped(path, **KERAS), "without arrays .*: it looks like a .keras file. Load it with keras"),
    "zip of nothing": (zipped, "without arrays"),
}


@pytest.mark.parametrize("what", NO_NPZ)
def test_not_an_npz(reader, tmp_path, what):
    make, message = NO_NPZ[what]
    make(tmp_path / "weights.npz")
    with pytest.raises(ValueError, match=f"weights.npz is .*{message}"):
        reader(tmp_path / "weights.npz")


def test_half_a_file(golden, tmp_path):
    """Truncated, and with a hole: some downloaders reserve the space first."""
    whole, path = golden("mini_token").path.read_bytes(), tmp_path / "half.npz"
    holes = whole[:100_000] + bytes(100_000) + whole[200_000:]
    message = "half.npz is not an .npz file: it is incomplete.*Download it again"
    for data, error in ((whole[:-100], message), (whole[:999], message), (holes, "npz (is damaged|cannot be read)")):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=error):
            keras_vit.from_checkpoint(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_in_the_values(arrays, tmp_path, save):
    path = tmp_path / "damaged.npz"
    save(path, **arrays)
    with zipfile.ZipFile(path) as file:
        member = file.getinfo(f"{DENSE}.npy")
    damaged = bytearray(path.read_bytes())
    damaged[member.header_offset + 30 + len(member.filename) + member.compress_size - 5] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=f"damaged.npz (is damaged|cannot be read).*{DENSE}"):
        keras_vit.from_checkpoint(path)


class Bomb:
    """Would make a file appear if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_pickles_are_never_loaded(reader, arrays, tmp_path):
    arrays["head/bias"] = np.array([Bomb(tmp_path / "boom")], dtype=object)
    np.savez(tmp_path / "file.npz", allow_pickle=True, **arrays)
    with pytest.raises(ValueError, match="file.npz .*'head/bias' has Python objects, .*numpy.savez"):
        reader(tmp_path / "file.npz")
    zipped(tmp_path / "bare.npz", **{"head/bias.npy": pickle.dumps(Bomb(tmp_path / "boom"))})
    with pytest.raises(ValueError, match="bare.npz cannot be read .*'head/bias' is not an array"):
        reader(tmp_path / "bare.npz")
    assert not (tmp_path / "boom").exists()


def zeros(*shape):
    return np.zeros(shape, "f4")


MANY = "the file has (99,999,999|100,000,000)"
# By case: the reference file, what becomes of its arrays, what is said.
WRONG = {
    "missing": ("mini_token", {QUERY: None}, f"is not a complete checkpoint.*missing: {QUERY}.*Nothing was loaded"),
    "extra": ("mini_token", {"\x1b[31mred\n": zeros(1)}, r"not part of the model: \\x1b\[31mred\\n\."),
    "shape": ("mini_token", {QUERY: zeros(48, 48)}, r"query/kernel has the shape \(48, 48\), not \(48, 3, 16\)"),
    "empty": ("mini_token", {"embedding/kernel": zeros(0)}, r"is empty: its shape is \(0,\).*zero_to_fp32"),
    "axes": ("mini_token", {"embedding/kernel": zeros(192, 48)}, r"must have 4 axes, but its shape is \(192, 48\)"),
    "no patches": ("mini_token", {POSITION: zeros(1, 1, 48)}, ""),
    "heads": ("mini_token", {QUERY.replace("_1/M", "_0/M"): zeros(48, 5, 9)}, ""),
    "grid": ("mini_token", {POSITION: None}, f"layout 'vit_jax'.* lacks the array '{POSITION}'"),
    # Counting them up would take hours and the whole memory.
    "blocks": ("mini_token", {"Transformer/encoderblock_99999999/LayerNorm_0/scale": zeros(48)}, MANY),
    "scan": ("bv_scan_map", {f"{STACK}LayerNorm_0/scale": zeros(99999999, 0)}, MANY),
    "units": ("bit_mini_bv", {"block99999999/unit01/conv1/kernel": zeros(1)}, MANY),
    "far unit": ("bit_mini_bv", {"block999/unit01/conv1/kernel": zeros(1)}, "numbers go up to 999"),
    "unit": ("bit_mini_bv", {"block2/unit02/gn2/bias": None}, "missing: block2/unit02/gn2/bias"),
    "width": ("bit_mini_bv", {"root_block/conv_root/kernel": zeros(7, 7, 3, 16)}, "width must be a multiple of 32"),
    "map": ("bv_map", {"MAPHead_0/LayerNorm_0/bias": None}, "missing: MAPHead_0/LayerNorm_0/bias"),
    "probe": ("bv_map", {"MAPHead_0/probe": None}, "not part of the model: MAPHead_0/LayerNorm_0/bias"),
    "block": ("bv_gap", {"Transformer/encoderblock_1/MlpBlock_0/Dense_0/bias": None}, "missing: .*encoderblock_1/Mlp"),
    "head": ("bv_gap", {"head/kernel": zeros(40, 11)}, r"head/kernel has the shape \(40, 11\), not \(48, 11\)"),
    "table": (
        "bv_gap",
        {"pos_embedding": zeros(16, 48)},
        r"'pos_embedding' must have 3 axes, but its shape is \(16, 48\)",
    ),
    "naflex": ("bv_gap", {"embedding/kernel": zeros(192, 48)}, "of a NaFlex must be a grid"),
    "no pixels": ("bv_gap_sincos", {"embedding/kernel": zeros(0, 8, 3, 48)}, "must not be empty"),
    "short stack": ("bv_scan_map", {f"{STACK}LayerNorm_0/bias": zeros(2, 48)}, "missing: .*block_0/LayerNorm_0/bias"),
    "empty stack": ("bv_scan_map", {f"{STACK}LayerNorm_0/scale": zeros(0, 48)}, "lacks the array '.*block_0/Multi"),
}


@pytest.mark.parametrize("what", WRONG)
def test_arrays_that_make_no_model(reader, golden, tmp_path, what):
    case, changes, message = WRONG[what]
    arrays = read(golden(case).path, "params/") | changes
    np.savez(tmp_path / "file.npz", **{name: a for name, a in arrays.items() if a is not None})
    with pytest.raises(ValueError, match=f"(?s)file.npz.*{message}|{message}.*file.npz"):
        reader(tmp_path / "file.npz")


@pytest.mark.parametrize(("bad", "dtype"), [([np.nan], "f4"), ([np.inf, -np.inf], "f2"), ([np.nan], "V2")])
def test_values_that_are_no_numbers(arrays, tmp_path, bad, dtype):
    arrays[DENSE][3, : len(bad)] = bad
    values = as_bfloat16(arrays[DENSE])[0] if dtype == "V2" else arrays[DENSE].astype(dtype)
    np.savez(tmp_path / "file.npz", **(arrays | {DENSE: values}))
    with pytest.raises(ValueError, match=f"file.npz has {len(bad)} NaN or infinite values in '{DENSE}'"):
        keras_vit.from_checkpoint(tmp_path / "file.npz")


def test_large_values(arrays, tmp_path):
    """Too large for float32: refused where they are used. Those whose sum is too large are fine."""
    np.savez(tmp_path / "file.npz", **(arrays | {"head/bias": np.array([0.0] * 10 + [1e300])}))
    with pytest.raises(ValueError, match="file.npz has 1 NaN or infinite values in 'head/bias'"):
        keras_vit.from_checkpoint(tmp_path / "file.npz")
    keras_vit.from_checkpoint(tmp_path / "file.npz", classes=3)
    arrays["head/bias"][:] = 3e38
    np.savez(tmp_path / "file.npz", **arrays)
    model = keras_vit.from_checkpoint(tmp_path / "file.npz")
    np.testing.assert_array_equal(np.asarray(model.get_layer("head").get_weights()[1]), np.float32(3e38))


def test_a_grid_that_the_file_does_not_tell(golden, tmp_path):
    arrays = read(golden("bv_gap").path, "params/") | {"pos_embedding": zeros(1, 15, 48)}
    np.savez(tmp_path / "file.npz", **arrays)
    with pytest.raises(ValueError, match="15 patches of .* do not form a square.*image_size"):
        keras_vit.from_checkpoint(tmp_path / "file.npz")
    path = golden("mini_nonsquare").path
    for options in ({}, {"image_size": "dynamic"}, {"image_size": (32, 48)}):
        with pytest.raises(ValueError, match=r"28 patches of .*ckpt.npz do not form a square.*grid_size=\(rows"):
            keras_vit.from_checkpoint(path, **options)
    assert keras_vit.from_checkpoint(path, image_size=(56, 32)).config.grid_size == (7, 4)
    model = keras_vit.from_checkpoint(path, grid_size=(4, 7), image_size=(64, 64))
    assert model.config.grid_size == (8, 8)


def test_unknown_layouts(reader, arrays, tmp_path):
    np.savez(tmp_path / "resnet.npz", **{f"layer{i}/kernel": np.ones(3) for i in range(7)})
    with pytest.raises(ValueError, match=r"resnet.npz must be a checkpoint .*vit_jax.* layer0/.*layer6/kernel\."):
        reader(tmp_path / "resnet.npz")
    np.savez(tmp_path / "two.npz", **{f"{prefix}/{name}": a for name, a in arrays.items() for prefix in ("one", "two")})
    with pytest.raises(ValueError, match=r"two.npz.* several models, with the prefixes \['one/', 'two/'\]"):
        reader(tmp_path / "two.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", [">f4", ">i8", "<f4"])
def test_the_order_of_bytes_and_axes(tmp_path, save, dtype):
    values = np.arange(24).reshape(4, 6).astype(dtype)
    save(tmp_path / "file.npz", plain=values, fortran=np.asfortranarray(values), scalar=values[1, 2])
    file = read_npz(tmp_path / "file.npz")
    for name, wanted in (("plain", values), ("fortran", values), ("scalar", values[1, 2])):
        assert file[name].read().dtype.isnative
        np.testing.assert_array_equal(file[name].read(), wanted)
        if wanted.size > 1:
            np.testing.assert_array_equal(file[name].piece(6, (6,)).read(), values[1])


FIELDS = "{'descr': %s, 'fortran_order': False, 'shape': %s}"
HEADERS = [
    *("", "{'descr': '<f4', 'fortran_order': False}"),
    *(FIELDS % ("'<f4'", shape) for shape in ("(-1,)", "(1e3,)", f"({'9' * 5000})", f"(0, {2**63})", f"({'1,' * 65})")),
    FIELDS % ("[" * 4000 + "]" * 4000, "(1,)"),
    FIELDS % ("__import__('os').system('true')", "(1,)"),
    FIELDS % ("'<f4'", "(1,)") + " " * 20_000,
    *(FIELDS % (descr, "(1,)") for descr in ("'<f4,<f4'", "'M8[ns]'", "('|i1', (2,))", "'|V4'", "'c8'", "'x'")),
]


@pytest.mark.parametrize("text", HEADERS, ids=range(len(HEADERS)))
def test_hostile_headers(tmp_path, text):
    path = zipped(tmp_path / "file.npz", **{"head/bias.npy": npy_header(text) + bytes(100)})
    with pytest.raises(ValueError, match="file.npz .* 'head/bias' (must have one of|has the shape|is not an array)"):
        load_all(path)


def test_a_header_that_promises_another_size(tmp_path):
    """Terabytes are not asked for, and one value is not made up."""
    for shape, values, size in (((10**12, 48), 0, 192 * 10**12), ((11,), 10, 44)):
        data = npy_header(FIELDS % ("'<f4'", shape)) + np.zeros(values, "f4").tobytes()
        with pytest.raises(ValueError, match=f"file.npz .* 'bias' should have {size:,} bytes"):
            load_all(zipped(tmp_path / str(size) / "file.npz", **{"bias.npy": data}))


def test_archives_that_lie(tmp_path, monkeypatch):
    """Names and bytes that are there twice, other compressions, and what unpacks to far more than the file has."""
    path = tmp_path / "file.npz"
    np.savez(path, a0=np.zeros(100_000, "f4"))
    whole = path.read_bytes()
    with pytest.warns(UserWarning, match="Duplicate name"):
        zipped(path, **{"a0.npy": b""})
    with pytest.raises(ValueError, match="file.npz .* has two files of the name 'a0'"):
        load_all(path)
    start, end = whole.index(b"PK\x01\x02"), whole.index(b"PK\x05\x06")
    entries = b"".join(whole[start:end].replace(b"a0.npy", b"a%d.npy" % i) for i in range(10))
    counts = bytearray(whole[end:])
    counts[8:10] = counts[10:12] = (10).to_bytes(2, "little")
    counts[12:16] = len(entries).to_bytes(4, "little")
    path.write_bytes(whole[:start] + entries + counts)
    with pytest.raises(ValueError, match=r"file.npz .* it unpacks to 800,\d+ bytes, more than 400,\d+"):
        load_all(path)
    np.save(tmp_path / "a.npy", np.arange(3))
    zipped(tmp_path / "other.npz", zipfile.ZIP_BZIP2, **{"a.npy": (tmp_path / "a.npy").read_bytes()})
    assert load_all(tmp_path / "other.npz")["a"].tolist() == [0, 1, 2]
    monkeypatch.setattr(stored_array, "UNPACKED_BYTES", 100_000)
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(50_000, "f4"))
    with pytest.raises(ValueError, match=r"bomb.npz .* unpacks to 200,128 bytes, more than 100,000"):
        load_all(tmp_path / "bomb.npz")


@pytest.mark.parametrize("note", ["[" * 60_000, '{"grid_size": [4, "4"]}', "\x00\xff", "7"])
def test_a_damaged_note(arrays, tmp_path, note):
    np.savez(tmp_path / "file.npz", **arrays)
    with zipfile.ZipFile(tmp_path / "file.npz", "a") as file:
        file.comment = note.encode("latin1")
    if "grid_size" in note:
        with pytest.raises(ValueError, match="grid_size in .*file.npz must be two positive integers"):
            keras_vit.inspect_checkpoint(tmp_path / "file.npz")
    else:
        assert keras_vit.inspect_checkpoint(tmp_path / "file.npz").variant is None


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_that_changes_while_it_is_read(tmp_path, save):
    path = tmp_path / "file.npz"
    save(path, a=np.ones(100))
    file = read_npz(path)
    file["a"].read()
    os.truncate(path, 50)
    with pytest.raises(ValueError, match="file.npz was (changed|shortened) while it was read"):
        file["a"].read()
