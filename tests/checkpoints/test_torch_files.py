"""Files of torch.save, read without PyTorch: the same values as PyTorch's, and nothing that a pickle can do is done."""

import argparse
import collections
import io
import os
import struct
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest
import torch

from keras_vit.checkpoints import torch_file
from keras_vit.checkpoints.files import open_file

pytestmark = pytest.mark.once

FLOATS = np.arange(12, dtype="<f4").tobytes()


# Pickles by hand, in the instructions of CPython's pickletools.
def text(value):
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value):
    size = (value.bit_length() + 8) // 8
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def many(*values):
    return b"(" + b"".join(values) + b"t"


def numbers(values):
    return many(*map(number, values))


def dictionary(**values):
    return b"}(" + b"".join(text(name) + value for name, value in values.items()) + b"u"


def storage(key="0", count=12, kind="torch\nFloatStorage", *more):
    return many(text("storage"), b"c" + kind.encode() + b"\n", text(key), text("cpu"), number(count), *more) + b"Q"


def tensor(shape=(3, 4), strides=(4, 1), offset=0, of=None, function="_rebuild_tensor_v2", more=None):
    of = storage() if of is None else of
    more = b"\x89}" if more is None else more
    arguments = b"(" + of + number(offset) + numbers(shape) + numbers(strides) + more + b"t"
    return b"ctorch._utils\n" + function.encode() + b"\n" + arguments + b"R"


def pickled(value):
    return b"\x80\x02" + value + b"."


def archive(value, storages=None, compression=zipfile.ZIP_STORED, root="archive", **members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as zipped:
        zipped.writestr(f"{root}/data.pkl", pickled(value))
        for key, data in ({"0": FLOATS} if storages is None else storages).items():
            zipped.writestr(f"{root}/data/{key}", data)
        for name, data in members.items():
            zipped.writestr(f"{root}/{name}", data)
    return file.getvalue()


def older(value, keys=("0",), storages=((12, FLOATS),), magic=0x1950A86A20F9469CFC6C, version=1001, little=b"\x88"):
    system = dictionary(protocol_version=number(1001), little_endian=little)
    pickles = (number(magic), number(version), system, value, b"](" + b"".join(map(text, keys)) + b"e")
    data = b"".join(struct.pack("<q", count) + data for count, data in storages)
    return b"".join(map(pickled, pickles)) + data


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.pth"
    return lambda data: path.write_bytes(data) and path


def doubled(levels):
    """A tuple that holds itself twice, on many levels: 2**levels to whoever walks through it or hashes it."""
    return number(1) + b"q\x00h\x00\x86" * levels


HARMLESS = {
    "a newer protocol": archive(b"\x80\x04" + dictionary(w=tensor())),
    "compressed": archive(dictionary(w=tensor()), compression=zipfile.ZIP_DEFLATED),
    "code that is not looked at": archive(dictionary(w=tensor()), **{"code/__torch__.py": "import os"}),
    "hooks": archive(dictionary(w=tensor(more=b"\x89" + dictionary(h=number(1))))),
    "tuples that are doubled": archive(b"}" + text("w") + tensor() + b"s" + text("x") + doubled(200) + b"s"),
    "two types": archive(dictionary(w=tensor(), v=tensor(of=storage(count=24, kind="torch\nHalfStorage")))),
    "a name twice": archive(b"}" + 2 * (text("w") + tensor() + b"s")),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_does_no_harm(file, case):
    np.testing.assert_array_equal(open_file(file(HARMLESS[case]))["w"].read(), np.arange(12.0).reshape(3, 4))


def test_values_that_overlap(file):
    """As `Tensor.expand` and `Tensor.unfold` make them."""
    read = open_file(file(archive(dictionary(w=tensor((3, 4), (1, 2)), v=tensor((2, 3), (0, 1), 1)))))
    np.testing.assert_array_equal(read["w"].read(), [[0, 2, 4, 6], [1, 3, 5, 7], [2, 4, 6, 8]])
    np.testing.assert_array_equal(read["v"].read(), [[1, 2, 3]] * 2)


def test_torchscript(tmp_path):
    """Weights of modules in each other, such as OpenAI's CLIP; the code beside them is not looked at."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.LayerNorm(4))).half()
    module.register_buffer("size", torch.tensor(7))
    path = tmp_path / "model.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that torch.jit is old
        torch.jit.save(torch.jit.script(module), path)
    read, wanted = open_file(path), module.state_dict()
    assert read.keys() == wanted.keys() and (read.container, read.outside) == ("", [])
    for name, array in read.items():
        np.testing.assert_array_equal(array.read_stored(), wanted[name].numpy(), err_msg=name)


def test_files_by_hand(file):
    v3 = storage("0", 12, "torch\nFloatStorage", b"N")  # the older form names a view, or none
    parameter = b"ctorch._utils\n_rebuild_parameter\n" + many(tensor(), b"\x88", b"}") + b"R"
    for data in (
        archive(dictionary(w=parameter), byteorder="little", version="3\n"),
        archive(dictionary(w=tensor(function="_rebuild_tensor", more=b"")), root="any name"),
        older(dictionary(w=tensor(of=v3))),
    ):
        read = open_file(file(data))
        np.testing.assert_array_equal(read["w"].read(), np.arange(12.0).reshape(3, 4))
        assert (read.container, read.outside, read.note, read.grid_size) == ("", [], {}, None)


CONTAINERS = [  # by container, the names of its tensors; which is taken, and which arrays are outside
    ({"model": "w", "optimizer": "w", "epoch": None}, "model", ["optimizer.w"]),
    ({"state_dict": "w", "state_dict_ema": "e"}, "state_dict_ema", ["state_dict.w"]),
    ({"student": "s", "teacher": "t", "args": None}, "teacher", ["student.s"]),
    ({"encoder": "w", "predictor": "p", "target_encoder": "w"}, "target_encoder", ["encoder.w", "predictor.p"]),
    ({"state_dict": {"model": "w"}}, "state_dict.model", []),
    ({"backbone": "w", "epoch": None}, "backbone", []),  # unknown, but the only one
    ({"model": "w", "": "x"}, "model", [".x"]),
]


def contents(value):
    match value:
        case None:
            return number(3)
        case str():
            return dictionary(**{value: tensor()})
    return dictionary(**{name: contents(inner) for name, inner in value.items()})


@pytest.mark.parametrize(("value", "container", "outside"), CONTAINERS, ids=[case[1] for case in CONTAINERS])
def test_containers(file, value, container, outside):
    """Of a training state, the weights that were published are taken; the others are named."""
    read = open_file(file(archive(contents(value))))
    assert (read.container, sorted(read.outside), len(read)) == (container, outside, 1)


@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_torch(tmp_path, zipped):
    """What PyTorch itself writes: a module's state, views, all types, a training state's settings."""
    module = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3)).to(torch.float32)
    fused = torch.arange(24.0).reshape(6, 4)
    state = module.state_dict()
    assert isinstance(state, collections.OrderedDict) and state._metadata
    views = {"rows": fused[:2], "part": fused[2:4, 1:3], "turned": fused.T, "column": fused[:, 2], "value": fused[1, 3]}
    kinds = "float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split()
    state |= views | {kind: (fused > 3 if kind == "bool" else fused).to(getattr(torch, kind)) for kind in kinds}
    state |= {"scalar": torch.tensor(2.5), "nothing": torch.zeros(0, 4)}
    state |= {"parameter": torch.nn.Parameter(fused[0].clone()), "bfloat16 row": state["bfloat16"][3]}
    settings = argparse.Namespace(lr=1e-3, name="Ü", size=(1, 2), betas=[0.9, None], wide=2**70, off=False)
    optimizer = {"state": {0: {"exp_avg": fused[0].clone()}}}
    whole = {"model": state, "args": settings, "epoch": 2**31, "optimizer": optimizer}
    path = tmp_path / "model.pth"
    torch.save(whole, path, _use_new_zipfile_serialization=zipped)
    read = open_file(path)
    assert (read.container, read.outside) == ("model", ["optimizer.state.0.exp_avg"])
    assert list(read) == list(state)
    for name, array in read.items():
        wanted = state[name].detach().to(torch.float64).numpy()
        np.testing.assert_array_equal(array.read(), wanted, err_msg=name)
        assert array.shape == wanted.shape and array.read().flags["C_CONTIGUOUS"]
        kind = str(state[name].dtype).removeprefix("torch.")
        assert array.read().dtype == ("float32" if state[name].is_floating_point() else kind)
        if wanted.size > 2:
            np.testing.assert_array_equal(array.piece(1, (2,)).read(), wanted.ravel()[1:3])


def test_a_file_of_torch_without_checksums(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.arange(6)}, tmp_path / "model.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    assert open_file(tmp_path / "model.pth")["w"].read().tolist() == [*range(6)]


def test_an_archive_of_several_disks_is_damaged(file):
    """Python's `is_zipfile` is an error there."""
    saved = io.BytesIO()
    torch.save({"w": torch.arange(6)}, saved)
    data = bytearray(saved.getvalue())
    place = data.index(b"PK\x06\x07")  # where the end of the archive is, then the number of disks
    data[place + 16 : place + 20] = struct.pack("<I", 2)
    with pytest.raises(ValueError, match=r"model.pth .*incomplete, or holds something else"):
        open_file(file(data))


def test_damage_is_found_by_checksums(file):
    data = bytearray(archive(dictionary(w=tensor(), row=tensor((4,), (1,), 4), column=tensor((3,), (4,), 2))))
    data[bytes(data).index(FLOATS) + 3] ^= 1
    for name in ("w", "row", "column"):
        with pytest.raises(ValueError, match="model.pth is damaged: the checksum of .*data/0. is wrong"):
            open_file(file(data))[name].read()


MARKER = "was_run"
CALL = b"c%s\n%s\n" + b"(" + text(f"touch {MARKER}") + b"tR"
GOOD = dictionary(w=tensor())
BEHIND = text("w") + tensor() + b"s"  # sets a good array in the dict below
MODULE = b"c__torch__.m\nM\n)\x81"  # of TorchScript
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
ARCHIVE = archive(GOOD)
LIST = ARCHIVE.rindex(b"PK\x01\x02")  # of archive/data/0, the last member
B = dictionary(b=tensor(offset=1, shape=(2,), strides=(1,)))
# Each pickle would do harm, or make no sense, in PyTorch or in Python's own pickle.
HOSTILE = {
    # No weights.
    "text": (b"hello", "is not a file of torch.save: it starts with b'hello'"),
    "two dicts": (archive(dictionary(one=GOOD, two=GOOD)), "must hold tensors by name.* it has: 'one', 'two'"),
    "a number": (archive(number(3)), "it has: 'a int'"),
    "a list": (archive(b"](" + tensor() + b"e"), "it has: 'a list'"),
    "names alike": (archive(MODULE + dictionary(**{"a.b": tensor(), "a": MODULE + B + b"b"}) + b"b"), "two arrays"),
    # Code.
    "os.system": (archive(CALL % (b"os", b"system")), "needs the class or function os.system, which is not imported"),
    "a name with escapes": (archive(b"c\x1b[2J\nx\n"), r"function \\x1b\[2J.x"),
    "behind good weights": (archive(b"}" + BEHIND + text("x") + CALL % (b"os", b"system") + b"s"), "os.system"),
    "INST": (archive(b"(" + text(MARKER) + b"ios\nsystem\n"), "os.system"),
    "STACK_GLOBAL": (archive(text("os") + text("system") + b"\x93"), "os.system"),
    # Calls of what may be named.
    "attributes of a tensor": (archive(tensor() + dictionary(data=number(1)) + b"b"), "'Tensor' object has no attrib"),
    "attributes of a function": (archive(REBUILD + dictionary(x=number(1)) + b"b"), "it changes a function"),
    "negative values": (archive(dictionary(w=tensor(more=b"\x89}" + dictionary(neg=b"\x88")))), "with flags"),
    # Bombs.
    "doubled shapes": (
        archive(dictionary(w=tensor().replace(numbers((3, 4)), doubled(200)))),
        "does not fit its storage",
    ),
    "a far number of the memo": (archive(b"]r\xff\xff\xff\xff"), "as many places in its memo"),
    "deep tuples": (archive(b")" + b"\x85" * 50_000), "must hold tensors by name"),
    # Python computes the hash of a key without looking at how much stack is left.
    "deep tuples as a key": (archive(b"})" + b"\x85" * 500_000 + b"Ns"), "or 65,536 tuples"),
    "a long pickle": (archive(text("x" * 2**23)), "data.pkl in .* at most 8,388,608 bytes, but it has 8,388,616"),
    "one storage as many arrays": (
        archive(dictionary(**{f"w{i}": tensor() for i in range(5)})),
        "too many arrays share the storage 0",
    ),
    # Tensors that are not in their storage.
    "out of range": (archive(dictionary(w=tensor((4, 4)))), "array 'w' does not fit its storage"),
    "negative offset": (archive(dictionary(w=tensor(offset=-1))), "does not fit its storage"),
    "33 axes": (archive(dictionary(w=tensor((1,) * 33, (1,) * 33))), "does not fit its storage"),
    # Storages that are not what they should be.
    "no storage": (archive(GOOD, {}), "does not fit its storage"),
    "other type": (
        archive(dictionary(w=tensor(of=storage(kind="torch\nHalfStorage")))),
        "storage 0 has 48 bytes, not 12 values of float16",
    ),
    "a view": (archive(dictionary(w=tensor(of=storage("0", 12, "torch\nFloatStorage", b"K\x01")))), "a view"),
    # Damage: the list at an archive's end against the members themselves, and more.
    "members of other names": (ARCHIVE[:LIST] + ARCHIVE[LIST:].replace(b"data/0", b"data/1"), "cannot be read as a fi"),
    "encrypted": (ARCHIVE[: LIST + 8] + b"\x01" + ARCHIVE[LIST + 9 :], "is encrypted"),
    "big endian": (archive(GOOD, byteorder="big"), "must have little-endian values"),
    "older: big endian": (older(GOOD, little=b"\x89"), "must have little-endian values"),
    "older: truncated": (older(GOOD)[:-1], "but its storages end at"),
    "older: bytes behind": (older(GOOD) + b"x", "but its storages end at"),
    "older: a negative storage": (older(GOOD, storages=((-1, b""),)), "but its storages end at"),
    "older: a storage twice": (older(GOOD, ("0", "0")), "its list of storages is invalid"),
    "older: a storage of nobody": (older(GOOD, ("1",)), "its list of storages is invalid"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(file, case, tmp_path, monkeypatch):
    data, message = HOSTILE[case]
    path = file(data)
    monkeypatch.chdir(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message) as error:
            open_file(path)
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()
    assert "model.pth" in str(error.value) and str(error.value).isprintable()
    assert os.listdir(tmp_path) == ["model.pth"]  # no marker


def test_a_pickle_without_end_of_instructions(file, monkeypatch):
    monkeypatch.setattr(torch_file, "MOST_STEPS", 2**12)
    with pytest.raises(ValueError, match="it has more than 4,096 instructions"):
        open_file(file(archive(b"]" * 2**12)))


def test_every_end_is_too_early(file):
    for whole in (archive(GOOD), older(GOOD)):
        for length in range(1, len(whole), 23):
            with pytest.raises(ValueError, match="model.pth"):
                open_file(file(whole[:length]))
