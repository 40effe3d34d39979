"""Bad input: the right type of error, which names the file or the array and says what to do. Nothing is half loaded."""

import io
import os
import pickle
import zipfile

import h5py
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import stored_array
from keras_vit.checkpoints.files import read_npz

pytestmark = pytest.mark.once

EVERY_READER = (keras_vit.from_checkpoint, keras_vit.inspect_checkpoint)


def read(path):
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


@pytest.fixture
def arrays(golden):
    return read(golden("mini_token").path)


@pytest.fixture(params=EVERY_READER, ids=lambda function: function.__name__)
def reader(request):
    return request.param


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("absent.npz", FileNotFoundError, "no file .*absent.npz"),
        ("", IsADirectoryError, "is a folder"),
        (42, TypeError, "was given"),
    ],
)
def test_no_file(reader, tmp_path, source, error, message):
    with pytest.raises(error, match=message):
        reader(tmp_path / source if isinstance(source, str) else source)


def keras_file(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("metadata.json", "{}")
        file.writestr("config.json", "{}")
        file.writestr("model.weights.h5", "")


def npy_file(path):
    with path.open("wb") as file:
        np.save(file, np.ones(3))


def hdf5_file(path):
    with h5py.File(path, "w") as file:
        file["x"] = 1.0


NO_NPZ = {
    "text": (lambda path: path.write_text("Hello\n"), "not an .npz file: it starts with b'Hello"),
    "web page": (lambda path: path.write_text(" <!DOCTYPE html><html>404"), "not an .npz file: it is a web page"),
    "xml": (lambda path: path.write_text("<?xml version='1.0'?><Error>AccessDenied"), "it is a web page"),
    "empty": (lambda path: path.write_bytes(b""), "not an .npz file: it is empty"),
    "hdf5": (hdf5_file, "not an .npz file: it is an HDF5 file; load it with model.load_weights"),
    "npy": (npy_file, r"not an .npz file: it is a single array \(.npy\)"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "not an .npz file: it starts with"),
    "keras": (keras_file, "without arrays .*: it looks like a .keras file; load it with keras.saving.load_model"),
    "zip of nothing": (lambda path: zipfile.ZipFile(path, "w").close(), "without arrays"),
}


@pytest.mark.parametrize("what", NO_NPZ)
def test_not_an_npz(reader, tmp_path, what):
    make, message = NO_NPZ[what]
    path = tmp_path / "weights.npz"
    make(path)
    with pytest.raises(ValueError, match=f"weights.npz is .*{message}"):
        reader(path)


@pytest.mark.parametrize("keep", [0.999, 0.9, 0.5, 0.1, 100])
def test_truncated(reader, golden, tmp_path, keep):
    whole = golden("mini_token").path.read_bytes()
    path = tmp_path / "half.npz"
    path.write_bytes(whole[: keep if keep > 1 else int(keep * len(whole))])
    with pytest.raises(ValueError, match="half.npz is not an .npz file: its end is missing .*not fetched completely"):
        reader(path)


def test_a_hole_in_the_middle(golden, tmp_path):
    """Some downloaders reserve the space first: the end is there and the middle is zeros."""
    whole = bytearray(golden("mini_token").path.read_bytes())
    whole[100_000:200_000] = bytes(100_000)
    (tmp_path / "holes.npz").write_bytes(whole)
    with pytest.raises(ValueError, match="holes.npz (is damaged|cannot be read)"):
        keras_vit.from_checkpoint(tmp_path / "holes.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_in_the_values(golden, arrays, tmp_path, save):
    path = tmp_path / "flipped.npz"
    save(path, **arrays)
    for name in ("head/kernel", "head/bias", "Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel"):
        with zipfile.ZipFile(path) as file:
            member = file.getinfo(f"{name}.npy")
        damaged = bytearray(path.read_bytes())
        damaged[member.header_offset + 30 + len(member.filename) + member.compress_size - 5] ^= 4
        (tmp_path / "damaged.npz").write_bytes(damaged)
        with pytest.raises(ValueError, match=f"damaged.npz (is damaged|cannot be read).*{name}"):
            keras_vit.from_checkpoint(tmp_path / "damaged.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_anywhere_is_a_value_error_or_harmless(golden, tmp_path, save):
    """Bytes changed at random, in headers too: a clear error that names the file, or the very same arrays."""
    arrays = {name: a for name, a in read(golden("mini_nohead").path).items() if "block" not in name or "_0/" in name}
    path, damaged = tmp_path / "sound.npz", tmp_path / "damaged.npz"
    save(path, **{name: a[:1] if name.endswith("kernel") else a for name, a in arrays.items()})
    sound = path.read_bytes()
    wanted = load_all(path)
    # Members are listed at the end: every second change hits the list.
    rng = np.random.default_rng(0)
    starts = [m.header_offset for m in zipfile.ZipFile(path).infolist()]
    errors = 0
    for i in range(300):
        bad = bytearray(sound)
        where = [len(sound) - 1 - rng.integers(2500), rng.choice(starts) + rng.integers(200), rng.integers(len(sound))]
        bad[where[i % 3]] ^= 1 << rng.integers(8)
        damaged.write_bytes(bad)
        try:
            got = load_all(damaged)
        except ValueError as error:
            assert "damaged.npz" in str(error), error
            errors += 1
        else:
            same = got.keys() == wanted.keys() and all(np.array_equal(got[name], wanted[name]) for name in wanted)
            # What is left: a name or a note that reads differently.
            assert same or got.keys() != wanted.keys()
    assert errors > 100


def load_all(path):
    return {name: array.read() for name, array in read_npz(path).items()}


class Bomb:
    """Would make a file appear if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_pickles_are_never_loaded(reader, arrays, tmp_path):
    arrays["head/bias"] = np.array([Bomb(tmp_path / "boom")], dtype=object)
    np.savez(tmp_path / "file.npz", allow_pickle=True, **arrays)
    with pytest.raises(ValueError, match="file.npz .*'head/bias' is pickled Python objects, .*numpy.savez"):
        reader(tmp_path / "file.npz")
    # A member that calls itself an array and is a bare pickle.
    np.savez(tmp_path / "bare.npz", cls=arrays["cls"])
    with zipfile.ZipFile(tmp_path / "bare.npz", "a") as file:
        file.writestr("head/bias.npy", pickle.dumps(Bomb(tmp_path / "boom")))
    with pytest.raises(ValueError, match="bare.npz cannot be read .*'head/bias' is no array"):
        reader(tmp_path / "bare.npz")
    assert not (tmp_path / "boom").exists()


def test_structured_arrays_and_strings(reader, arrays, tmp_path):
    for bias in (np.zeros(11, "U4"), np.zeros(11, [("a", "f4")]), np.zeros(11, "c8")):
        np.savez(tmp_path / "file.npz", **(arrays | {"head/bias": bias}))
        with pytest.raises(ValueError, match="file.npz .* stores 'head/bias' as .*expected one of .*float32"):
            reader(tmp_path / "file.npz")


QUERY = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/query/kernel"
WRONG = {
    "missing": (lambda a: a.pop(QUERY), f"missing: {QUERY}"),
    "missing norm": (lambda a: a.pop("Transformer/encoder_norm/bias"), "missing: Transformer/encoder_norm/bias"),
    "missing block": (
        lambda a: [a.pop(name) for name in list(a) if "encoderblock_1/" in name],
        "missing: Transformer/encoderblock_1/.* and 8 more",
    ),
    "missing half of the head": (lambda a: a.pop("head/bias"), "missing: head/bias"),
    "missing patches": (lambda a: a.pop("embedding/bias"), "missing: embedding/bias"),
    "extra": (lambda a: a.update(adapter=np.ones(3, "f4")), "not part of the model: adapter"),
    "extra in block": (
        lambda a: a.update({"Transformer/encoderblock_0/gamma_1": np.ones(48, "f4")}),
        "not part of the model: Transformer/encoderblock_0/gamma_1",
    ),
    "wrong shape": (
        lambda a: a.update({QUERY: a[QUERY].reshape(48, 48)}),
        r"of the wrong shape: .*query/kernel is \(48, 48\), expected \(48, 3, 16\)",
    ),
    "transposed": (
        lambda a: a.update({"head/kernel": a["head/kernel"].T}),
        r"of the wrong shape: head/bias is \(11,\), expected \(48,\).*head/kernel is \(11, 48\), expected \(48, 48\)",
    ),
    "all at once": (
        lambda a: (a.pop("cls"), a.update(adapter=np.ones(3, "f4")), a.update({"head/bias": np.ones(3, "f4")})),
        "not part of the model: adapter; of the wrong shape: .*head/bias",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_arrays_that_do_not_make_a_model(reader, arrays, tmp_path, what):
    change, message = WRONG[what]
    change(arrays)
    np.savez(tmp_path / "file.npz", **arrays)
    options = {"grid_size": (17, 1)} if what == "all at once" else {}  # without cls, all 17 tokens are patches
    with pytest.raises(ValueError, match=f"file.npz is not a complete checkpoint.*{message}.*Nothing was loaded"):
        reader(tmp_path / "file.npz", **options)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("embedding/kernel", (192, 48), r"'embedding/kernel' has the shape \(192, 48\); 4 axes were expected"),
        ("Transformer/posembed_input/pos_embedding", None, "no array 'Transformer/posembed_input/pos_embedding'"),
        ("Transformer/posembed_input/pos_embedding", (17, 48), r"has the shape \(17, 48\); 3 axes"),
        ("Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel", None, "no array .*Dense_0/kernel"),
        ("head/kernel", (528,), r"'head/kernel' has the shape \(528,\); 2 axes were expected"),
    ],
)
def test_arrays_that_tell_no_architecture(reader, arrays, tmp_path, name, shape, message):
    values = arrays.pop(name)
    if shape is not None:
        arrays[name] = values.reshape(shape)
    np.savez(tmp_path / "file.npz", **arrays)
    with pytest.raises(ValueError, match=f"file.npz.*{message}"):
        reader(tmp_path / "file.npz")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("head/kernel", (48, 0)),
        ("Transformer/posembed_input/pos_embedding", (1, 1, 48)),
        ("Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel", (48, 5, 9)),
    ],
)
def test_sizes_that_no_model_has(reader, arrays, tmp_path, name, shape):
    np.savez(tmp_path / "file.npz", **(arrays | {name: np.zeros(shape, "f4")}))
    with pytest.raises(ValueError, match="file.npz"):
        reader(tmp_path / "file.npz")


BAD_VALUES = {
    "nan": lambda a: a.__setitem__((3, 2), np.nan),
    "inf": lambda a: a.__setitem__((3, 2), np.inf),
    "both infinities": lambda a: (a.__setitem__((3, 2), np.inf), a.__setitem__((0, 0), -np.inf)),
}


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "V2"])
@pytest.mark.parametrize("what", BAD_VALUES)
def test_values_that_are_no_numbers(arrays, tmp_path, what, dtype):
    name = "Transformer/encoderblock_2/MlpBlock_3/Dense_1/kernel"
    BAD_VALUES[what](arrays[name])
    if dtype == "V2":
        values = (arrays[name].view(np.uint32) >> 16).astype(np.uint16).view("V2")
    else:
        values = arrays[name].astype(dtype)
    np.savez(tmp_path / "file.npz", **(arrays | {name: values}))
    count = 2 if what == "both infinities" else 1
    with pytest.raises(ValueError, match=f"file.npz holds {count} values that are NaN or infinite in '{name}'"):
        keras_vit.from_checkpoint(tmp_path / "file.npz")


def test_large_values(arrays, tmp_path):
    """Those too large for float32 are refused; those whose sum is too large are fine."""
    np.savez(tmp_path / "file.npz", **(arrays | {"head/bias": np.array([0.0] * 10 + [1e300])}))
    with pytest.raises(ValueError, match="file.npz holds 1 values that are NaN or infinite in 'head/bias'"):
        keras_vit.from_checkpoint(tmp_path / "file.npz")
    arrays["head/bias"][:] = 3e38
    np.savez(tmp_path / "file.npz", **arrays)
    model = keras_vit.from_checkpoint(tmp_path / "file.npz")
    np.testing.assert_array_equal(np.asarray(model.get_layer("head").get_weights()[1]), np.float32(3e38))


def test_bad_numbers_that_are_not_used_do_no_harm(arrays, tmp_path):
    arrays["head/bias"][:] = np.nan
    np.savez(tmp_path / "file.npz", **arrays)
    keras_vit.from_checkpoint(tmp_path / "file.npz", classes=3)
    keras_vit.from_checkpoint(tmp_path / "file.npz", include_top=False)


def test_a_grid_that_the_file_does_not_tell(golden):
    path = golden("mini_nonsquare").path
    for options in ({}, {"image_size": "dynamic"}, {"image_size": 64}, {"image_size": (32, 48)}):
        with pytest.raises(ValueError, match=r"ckpt.npz are for 28 patches.*no square.*grid_size=\(rows, columns\)"):
            keras_vit.from_checkpoint(path, **options)
    assert keras_vit.from_checkpoint(path, image_size=(56, 32)).config.grid_size == (7, 4)
    model = keras_vit.from_checkpoint(path, grid_size=(4, 7), image_size=(64, 64))
    assert model.config.grid_size == (8, 8)


@pytest.mark.parametrize(
    ("grid_size", "error", "message"),
    [
        ((4, 6), ValueError, "grid_size must have 28 patches as .*ckpt.npz.* but 4 x 6 was given"),
        ((-4, -7), ValueError, "grid_size must be"),
        (28, ValueError, "grid_size must have 28 patches"),
        ("4x7", TypeError, "grid_size must be an integer or a pair"),
        ((4, 7, 1), TypeError, "grid_size must be an integer or a pair"),
        ((4.5, 7), ValueError, "grid_size must be"),
    ],
)
def test_a_wrong_grid(reader, golden, grid_size, error, message):
    with pytest.raises(error, match=message):
        reader(golden("mini_nonsquare").path, grid_size=grid_size)


def test_unknown_layout(reader, tmp_path):
    np.savez(tmp_path / "resnet.npz", **{f"layer{i}/kernel": np.ones(3) for i in range(7)})
    message = (
        r"resnet.npz holds arrays, but is not a checkpoint of a known layout \(.*vit_jax.*\).* layer0/kernel.* \.\.\."
    )
    with pytest.raises(ValueError, match=message):
        reader(tmp_path / "resnet.npz")


def test_several_models_under_unknown_prefixes(reader, arrays, tmp_path):
    np.savez(tmp_path / "two.npz", **{f"{prefix}/{name}": a for name, a in arrays.items() for prefix in ("one", "two")})
    with pytest.raises(ValueError, match=r"two.npz.* several models, under the prefixes \['one/', 'two/'\]"):
        reader(tmp_path / "two.npz")


@pytest.mark.parametrize(
    ("shape", "values", "promised"), [((10**12, 48), 0, 192 * 10**12), ((11,), 10, 44), ((11,), 12, None)]
)
def test_a_header_that_promises_another_size(reader, arrays, tmp_path, shape, values, promised):
    """Terabytes are not asked for, and one value is not made up; one too many does no harm, as in NumPy."""
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": shape})
    member.write(np.arange(values, dtype="f4").tobytes())
    np.savez(tmp_path / "file.npz", **{n: a for n, a in arrays.items() if n != "head/bias"})
    with zipfile.ZipFile(tmp_path / "file.npz", "a") as file:
        file.writestr("head/bias.npy", member.getvalue())
    if promised:
        with pytest.raises(ValueError, match=f"file.npz .* is truncated: 'head/bias' should have {promised} bytes"):
            reader(tmp_path / "file.npz")
    else:
        reader(tmp_path / "file.npz")
        np.testing.assert_array_equal(load_all(tmp_path / "file.npz")["head/bias"], np.arange(11))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_two_arrays_of_one_name(reader, arrays, tmp_path, save):
    """Which of them is the model's? NumPy takes the last one."""
    save(tmp_path / "file.npz", **arrays)
    with zipfile.ZipFile(tmp_path / "file.npz", "a") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr("head/bias.npy", npy(np.ones(11, "f4")))
    with pytest.raises(ValueError, match="file.npz .* has two members of the name 'head/bias'"):
        reader(tmp_path / "file.npz")


def npy(values, version=None):
    file = io.BytesIO()
    np.lib.format.write_array(file, values, version)
    return file.getvalue()


def header(text, version=1):
    """The beginning of an array with any text for a header."""
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text.encode()


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
        '{"shape":(2,3),"fortran_order":False,"descr":"<f4"}\n',  # of other writers
    ],
)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_headers_of_other_writers(tmp_path, text, version):
    values = np.arange(6, dtype="<f4")
    with zipfile.ZipFile(tmp_path / "file.npz", "w") as file:
        file.writestr("a.npy", header(text, version) + values.tobytes())
        file.writestr("b.npy", npy(values.reshape(3, 2).T, (version, 0)))
    got = load_all(tmp_path / "file.npz")
    np.testing.assert_array_equal(got["a"], values.reshape(2, 3))
    np.testing.assert_array_equal(got["b"], values.reshape(3, 2).T)


def test_a_header_of_python_2(tmp_path):
    text = " { 'shape' : ( 2L , 3L , ) , 'descr':'=f4', 'fortran_order': False }  "
    with zipfile.ZipFile(tmp_path / "file.npz", "w") as file:
        file.writestr("a.npy", header(text) + np.arange(6, dtype="<f4").tobytes())
    with pytest.warns(UserWarning, match="it was created on Python 2"):
        got = load_all(tmp_path / "file.npz")
    np.testing.assert_array_equal(got["a"], np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", [">f4", ">f2", ">f8", ">i8", "<f4"])
def test_values_of_big_endian_machines(tmp_path, save, dtype):
    values = np.arange(24).reshape(4, 6).astype(dtype)
    save(tmp_path / "file.npz", plain=values, fortran=np.asfortranarray(values), scalar=values[1, 2])
    file = read_npz(tmp_path / "file.npz")
    for name, wanted in (("plain", values), ("fortran", values), ("scalar", values[1, 2])):
        assert file[name].read().dtype.isnative
        np.testing.assert_array_equal(file[name].read(), wanted)
    for name in ("plain", "fortran"):
        for start in (0, 6, 18):
            np.testing.assert_array_equal(file[name].piece(start, (6,)).read(), values.reshape(-1)[start : start + 6])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'descr': '<f4', 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1e3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}" % ("9" * 5000),
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9999999999999999999)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}" % ("1," * 65),
        "{'descr': " + "[" * 4000 + "]" * 4000 + ", 'fortran_order': False, 'shape': (1,)}",
        "{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}" + " " * 20_000,
    ],
)
def test_hostile_headers(tmp_path, text):
    with zipfile.ZipFile(tmp_path / "file.npz", "w") as file:
        file.writestr("head/bias.npy", header(text) + bytes(100))
    with pytest.raises(ValueError, match="file.npz .* 'head/bias' is no array"):
        load_all(tmp_path / "file.npz")


@pytest.mark.parametrize("descr", ["<f4,<f4", "M8[ns]", "V2,V2", ("|i1", (2,)), "|V4", "f16", "", "x", "{'a': 1}"])
def test_types_that_only_numpy_knows(tmp_path, descr):
    text = repr({"descr": descr, "fortran_order": False, "shape": (1,)})
    with zipfile.ZipFile(tmp_path / "file.npz", "w") as file:
        file.writestr("head/bias.npy", header(text) + bytes(100))
    with pytest.raises(ValueError, match="file.npz .* (stores 'head/bias' as|'head/bias' is no array)"):
        load_all(tmp_path / "file.npz")


def test_arrays_that_share_their_bytes(tmp_path):
    """A directory that lists one member many times: each fits into the file, together they would fill the memory."""
    path = tmp_path / "file.npz"
    np.savez(path, a0=np.zeros(100_000, "f4"))
    whole = path.read_bytes()
    start, end = whole.index(b"PK\x01\x02"), whole.index(b"PK\x05\x06")
    entries = b"".join(whole[start:end].replace(b"a0.npy", b"a%d.npy" % i) for i in range(10))
    counts = bytearray(whole[end:])
    counts[8:10] = counts[10:12] = (10).to_bytes(2, "little")
    counts[12:16] = len(entries).to_bytes(4, "little")
    path.write_bytes(whole[:start] + entries + counts)
    with pytest.raises(ValueError, match=r"file.npz .* would unpack to 800,\d+, more than the 400,\d+"):
        load_all(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packed_in_other_ways(tmp_path, method):
    """Their libraries raise errors of their own, and unpack to thousands of times the size."""
    with zipfile.ZipFile(tmp_path / "file.npz", "w", method) as file:
        file.writestr("head/bias.npy", npy(np.zeros(11, "f4")))
    with pytest.raises(ValueError, match="file.npz .* 'head/bias' is compressed in a way that NumPy does not use"):
        load_all(tmp_path / "file.npz")


def test_a_compressed_file_has_a_ceiling(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_array, "UNPACKED_BYTES", 100_000)
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(50_000, "f4"))
    with pytest.raises(
        ValueError, match=r"bomb.npz .* has \d+ bytes and would unpack to 200,128, more than the 100,000"
    ):
        load_all(tmp_path / "bomb.npz")
    values = np.random.default_rng(0).normal(size=50_000).astype("f4")
    np.savez_compressed(tmp_path / "weights.npz", a=values)
    np.testing.assert_array_equal(load_all(tmp_path / "weights.npz")["a"], values)


@pytest.mark.parametrize(
    "note", ["[" * 60_000, '{"grid_size": [4, "4"]}', '{"grid_size": {"a": 1}}', '{"grid_size": [4]}', "\x00\xff", "7"]
)
def test_a_damaged_note(arrays, tmp_path, note):
    np.savez(tmp_path / "file.npz", **arrays)
    with zipfile.ZipFile(tmp_path / "file.npz", "a") as file:
        file.comment = note.encode("latin1")
    if "grid_size" in note:
        with pytest.raises(ValueError, match="file.npz notes grid_size as .*expected two positive integers"):
            keras_vit.inspect_checkpoint(tmp_path / "file.npz")
    else:
        assert keras_vit.inspect_checkpoint(tmp_path / "file.npz").variant is None


def test_a_file_that_shrinks_while_it_is_read(arrays, tmp_path):
    np.savez(tmp_path / "file.npz", **arrays)
    file = read_npz(tmp_path / "file.npz")
    os.truncate(tmp_path / "file.npz", 5000)
    with pytest.raises(ValueError, match="file.npz was (changed|shortened) while it was read"):
        file["head/kernel"].read()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_that_changes_while_it_is_read(arrays, tmp_path, save):
    save(tmp_path / "file.npz", **arrays)
    file = read_npz(tmp_path / "file.npz")
    file["head/kernel"].read()
    save(tmp_path / "file.npz", **{name: array + 1 for name, array in arrays.items()})
    os.utime(tmp_path / "file.npz", (0, 0))  # clocks of file systems are slower than this test
    with pytest.raises(ValueError, match="file.npz was (changed|shortened) while it was read"):
        file["head/kernel"].read()


def test_names_with_control_characters_are_escaped(reader, arrays, tmp_path):
    np.savez(tmp_path / "file.npz", **arrays, **{"\x1b[31mred\n": np.ones(1)})
    with pytest.raises(ValueError, match=r"not part of the model: \\x1b\[31mred\\n\. Nothing"):
        reader(tmp_path / "file.npz")
    np.savez(tmp_path / "other.npz", **{"\x1b[31mred\n": np.ones(1)})
    with pytest.raises(ValueError, match=r"Its arrays are: \\x1b\[31mred\\n\."):
        reader(tmp_path / "other.npz")


CLAIMS = {
    "mini_token": ("Transformer/encoderblock_99999999/LayerNorm_0/scale", np.ones(48, "f4")),
    "mini_hybrid": ("block1/unit99999999/conv1/kernel", np.ones(1, "f4")),
    "bv_scan_map": ("params/Transformer/encoderblock/LayerNorm_0/scale", np.ones((99999999, 0), "f4")),
    "bit_mini_bv": ("block99999999/unit01/conv1/kernel", np.ones(1, "f4")),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_claims_of_many_blocks_cost_nothing(reader, golden, tmp_path, case):
    """A name or an empty array is enough to claim them; counting them up would take hours and the whole memory."""
    name, values = CLAIMS[case]
    arrays = read(golden(case).path)
    assert case != "bv_scan_map" or name in arrays
    np.savez(tmp_path / "file.npz", **(arrays | {name: values}))
    with pytest.raises(ValueError, match="file.npz is no model .* claims to have (99,999,999|100,000,000) blocks"):
        reader(tmp_path / "file.npz")
