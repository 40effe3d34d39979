"""Random damage to every kind of foreign file that the package reads: does each input end in a documented way?

    python benchmarks/fuzz.py --count 4000 --output fuzz.json
    python benchmarks/fuzz.py --kinds npz keras --seed 7 --first 1200 --count 1

Input n of a kind is a function of (seed, kind, n): sound files of that kind, changed by one to four mutations (bits,
lengths, pieces moved or lost; members of archives renamed, doubled, emptied, bombs; hostile headers, shapes, JSON,
names, links). For each of them the readers of the package may return, or raise an error of the documented types:
ValueError, TypeError, OSError (which FileNotFoundError is). Anything else is a finding: another error, a crash, more
memory than the kind's ceiling, no end after 60 seconds, a file written beside the one that is read, a message that
names no file, has several lines or would control a terminal.

Inputs run in batches in forked processes with a limit on their memory: a crash costs its input only. PyTorch is the
backend, as the others do not survive a fork; what differs between backends comes after the reading.
"""

import argparse
import collections
import contextlib
import csv
import io
import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import h5py
import keras
import numpy as np

import keras_vit
from keras_vit.checkpoints import augreg_index, best_augreg, class_names, files, read_keras, save_model
from keras_vit.preprocessing import load_image
from keras_vit.training.loop import RunFolder

SECONDS = 60  # for one input
BATCH = 250  # inputs of one process
ALLOWED = (ValueError, TypeError, OSError)
MEGABYTE = 2**20
SETTINGS = {"recipe": {"steps": 10, "learning_rate": 0.03}, "classes": ["a", "b", "c"]}

Mutation = Callable[[bytes, np.random.Generator], bytes]


# Sound files.


def small_model(seed: int = 0, **changes) -> keras.Model:
    config = dict(image_size=16, patch_size=8, width=8, depth=2, heads=2, mlp_width=12, classes=3) | changes
    keras.utils.set_random_seed(seed)
    model = keras_vit.VisionTransformer(keras_vit.ViTConfig(**config))
    random = np.random.default_rng(seed)
    model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    return model


def make_npz(folder: pathlib.Path) -> list[pathlib.Path]:
    paths = [folder / f"{n}.npz" for n in range(6)]
    model = small_model(class_names=("a", "b", "c"))
    keras_vit.to_checkpoint(model, paths[0])
    keras_vit.to_checkpoint(small_model(class_token=False, pooling="map"), paths[1], layout="big_vision", stack=True)
    keras_vit.to_checkpoint(small_model(stem_stages=(1,), stem_width=32, image_size=16, patch_size=1), paths[2])
    bit = keras_vit.BiT(keras_vit.BiTConfig(stages=(1,), width=32, classes=3, image_size=32))
    keras_vit.to_checkpoint(bit, paths[3])
    arrays = dict(np.load(paths[0]))
    np.savez_compressed(paths[4], **{f"params/{name}": np.asfortranarray(a, "f2") for name, a in arrays.items()})
    np.savez(paths[5], **{f"opt/target/{name}": a.astype("f8") for name, a in arrays.items()}, step=np.int64(3))
    return paths


def make_safetensors(folder: pathlib.Path) -> list[pathlib.Path]:
    random = np.random.default_rng(0)
    arrays = {
        f"blocks.{n}.weight": random.normal(size=(4, n + 1)).astype(kind) for n, kind in enumerate(("f4", "f2", "i8"))
    }
    files.write_safetensors(folder / "0.safetensors", arrays.items())
    files.write_safetensors(folder / "1.safetensors", [("empty", np.zeros((0, 3), "f8")), ("one", np.ones((), "f4"))])
    return [folder / "0.safetensors", folder / "1.safetensors"]


def make_torch(folder: pathlib.Path) -> list[pathlib.Path]:
    import torch

    fused = torch.arange(24.0).reshape(6, 4)
    state = {"a": fused[:2], "b": fused[2:].T, "c": fused.to(torch.bfloat16), "d": torch.nn.Parameter(fused.clone())}
    whole = {"model": collections.OrderedDict(state), "args": argparse.Namespace(lr=0.1, size=(1, 2)), "epoch": 3}
    for name, value, zipped in (("0.pth", state, True), ("1.pth", whole, True), ("2.pth", whole, False)):
        torch.save(value, folder / name, _use_new_zipfile_serialization=zipped)
    return [folder / "0.pth", folder / "1.pth", folder / "2.pth"]


def make_keras(folder: pathlib.Path) -> list[pathlib.Path]:
    model = small_model(class_names=("a", "b", "c"))
    save_model(model, folder / "0.keras")
    model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
    model.optimizer.build(model.trainable_variables)
    save_model(model, folder / "1.keras")
    return [folder / "0.keras", folder / "1.keras"]


def make_weights_h5(folder: pathlib.Path) -> list[pathlib.Path]:
    save_model(small_model(class_names=("a", "b", "c")), folder / "0.weights.h5")
    save_model(small_model(class_token=False, pooling="map"), folder / "1.weights.h5")
    return [folder / "0.weights.h5", folder / "1.weights.h5"]


def make_images(folder: pathlib.Path) -> list[pathlib.Path]:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (24, 31, 4), "u1")
    pictures = {
        "0.png": Image.fromarray(pixels),
        "1.jpg": Image.fromarray(pixels[..., :3]),
        "2.gif": Image.fromarray(pixels[..., :3]).quantize(16),
        "3.bmp": Image.fromarray(pixels[..., :3]),
        "4.tiff": Image.fromarray(pixels[..., 0].astype("u2") * 256),
        "5.webp": Image.fromarray(pixels[..., :3]),
        "6.ppm": Image.fromarray(pixels[..., :3]),
    }
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, picture in pictures.items():
        picture.save(folder / name, **({"exif": exif} if name == "1.jpg" else {}))
    return [folder / name for name in pictures]


def make_classes(folder: pathlib.Path) -> list[pathlib.Path]:
    path = folder / "classes.txt"
    keras_vit.to_checkpoint(small_model(), folder / "model.npz")
    with np.load(folder / "model.npz") as file:
        _nameless.update(file)
    path.write_text("apple\nnaïve 日本\n[red] fox\n", encoding="utf-8")
    return [path]


def make_run(folder: pathlib.Path) -> list[pathlib.Path]:
    run, model = RunFolder(folder / "run", SETTINGS), compiled()
    with run.locked():
        run.save(model, 5, [{"step": 0, "loss": 1.5, "accuracy": 0.25}, {"step": 5, "loss": 1e-3, "accuracy": None}])
    return sorted(path for path in (folder / "run").iterdir() if path.suffix in (".json", ".npz"))


def make_index(folder: pathlib.Path) -> list[pathlib.Path]:
    columns = (
        "name ds epochs lr aug wd do sd best_val final_val final_test adapt_ds adapt_lr adapt_steps adapt_resolution "
        "adapt_final_val adapt_final_test params infer_samples_per_sec filename adapt_filename"
    ).split()
    path = folder / "index.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for number in range(20):
            stem = f"B_16-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.{number % 2}"
            adapted = f"{stem}--cifar100-steps_10k-lr_0.0{number}-res_224"
            row = ["B/16", "i21k", 300, 0.001, "light1", 0.1, 0.0, number % 2 / 10, 0.5, number / 40, 0.5]
            writer.writerow([*row, "cifar100", 0.03, 10000, 224, number / 30, 0.9, 86e6, 138.0, stem, adapted])
    return [path]


# Readers. Each gets the damaged file, and the model that the kind needs.


def read_npz(path: pathlib.Path) -> None:
    # Each step even where the one before has refused the file: users call them in any order.
    with attempt():
        keras_vit.inspect_checkpoint(path)
    with attempt():
        for array in files.read_npz(path).values():
            array.read()
    with attempt():
        class_names(path)
    keras_vit.from_checkpoint(path)


def read_arrays(path: pathlib.Path) -> None:
    with attempt():
        keras_vit.inspect_checkpoint(path)
    for array in files.open_file(path).values():
        array.read()


def read_keras_file(path: pathlib.Path) -> None:
    with attempt():
        class_names(path)
    read_keras(path)


def read_image(path: pathlib.Path) -> None:
    with attempt(), path.open("rb") as file:
        load_image(file)
    load_image(path, 16)


def read_classes(path: pathlib.Path) -> None:
    # Names are looked for beside a file that has none of its own.
    model = path.with_name("model.npz")
    np.savez(model, **_nameless)
    try:
        class_names(model)
    finally:
        model.unlink()


def read_run(path: pathlib.Path) -> None:
    run = RunFolder(path.parent, SETTINGS)
    with run.locked():
        run.restore(compiled())


def read_index(path: pathlib.Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows that are left out
        rows = augreg_index(path)
    best = best_augreg(rows, "B/16", adapt_ds="cifar100")
    keras_vit.list_weights(best["weights"])


_nameless: dict[str, np.ndarray] = {}
_compiled: list[keras.Model] = []


def compiled() -> keras.Model:
    """One compiled model per process."""
    if not _compiled:
        model = small_model()
        model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
        model.optimizer.build(model.trainable_variables)
        _compiled.append(model)
    return _compiled[0]


_problems: list[str] = []


@contextlib.contextmanager
def attempt() -> Iterator[None]:
    """One of several calls on the same file: a documented error is noted like the last one's, and the next follows."""
    try:
        yield
    except ALLOWED as error:
        _problems.extend(bad_words(error))


# Mutations of bytes.


def spot(data: bytes, random: np.random.Generator) -> int:
    """A place in the data; half of them near an end, where archives and pictures keep what matters."""
    if not data:
        return 0
    near = int(random.integers(0, min(len(data), 600)))
    return int(random.choice([near, len(data) - 1 - near, random.integers(len(data)), random.integers(len(data))]))


def flip_bits(data: bytes, random: np.random.Generator) -> bytes:
    result = bytearray(data)
    for _ in range(int(random.choice([1, 1, 2, 8, 64]))):
        if result:
            result[spot(data, random)] ^= 1 << int(random.integers(8))
    return bytes(result)


def set_numbers(data: bytes, random: np.random.Generator) -> bytes:
    """Lengths and offsets that are nothing, everything, negative, one too many."""
    result, width = bytearray(data), int(random.choice([1, 2, 4, 8]))
    value = int(random.choice([0, 1, 0x7F, 0x80, 0xFF])) if width == 1 else None
    start = spot(data, random)
    old = int.from_bytes(result[start : start + width], "little")
    most = 2 ** (8 * width)
    choices = [0, 1, most - 1, most // 2, most // 2 - 1, old + 1, old - 1, 2 * old, len(data)]
    choices.append(int.from_bytes(random.bytes(width), "little"))
    value = int(choices[int(random.integers(len(choices)))]) % most if value is None else value
    result[start : start + width] = value.to_bytes(width, str(random.choice(["little", "big"])))
    return bytes(result)


def truncate(data: bytes, random: np.random.Generator) -> bytes:
    return data[: int(random.choice([0, 1, 8, spot(data, random), spot(data, random), max(len(data) - 1, 0)]))]


def move_pieces(data: bytes, random: np.random.Generator) -> bytes:
    a, b, c = sorted(spot(data, random) for _ in range(3))
    ways = [data[:a] + data[b:], data[:b] + data[a:], data[:a] + data[b:c] + data[a:b] + data[c:], data[c:] + data[:c]]
    return ways[int(random.integers(len(ways)))]


def insert(data: bytes, random: np.random.Generator) -> bytes:
    start, size = spot(data, random), int(random.choice([1, 4, 100, 5000]))
    piece = random.bytes(size) if random.random() < 0.5 else bytes([int(random.integers(256))]) * size
    return data[:start] + piece + data[start + (size if random.random() < 0.5 else 0) :]


BYTES: tuple[Mutation, ...] = (flip_bits, flip_bits, set_numbers, set_numbers, truncate, move_pieces, insert)


# Mutations of archives: they are written again, so that checksums are right and the damage reaches deeper.

HUGE = (0, -1, 1, 2**31 - 1, 2**31, 2**63 - 1, 2**64, 10**9, 10**30, 0.5, 1e308, -0.0)
TEXTS = (
    "",
    "\x1b[31m",
    "a\nb",
    "../../etc/passwd",
    "/",
    "\x00",
    "é" * 3,
    "[red]",
    "9" * 400,
    "nan",
    "x" * 5000,
    "\ud800",
)


def hostile_value(random: np.random.Generator):
    kinds = [
        lambda: HUGE[int(random.integers(len(HUGE)))],
        lambda: TEXTS[int(random.integers(len(TEXTS)))],
        lambda: [None, True, False, [], {}, [[[]]], float("nan"), float("inf")][int(random.integers(8))],
        lambda: [hostile_value(random) for _ in range(int(random.integers(1, 4)))],
        lambda: {str(random.choice(["a", "class_name", "config", "module"])): hostile_value(random)},
    ]
    return kinds[int(random.integers(len(kinds)))]()


def change_json(data: bytes, random: np.random.Generator) -> bytes:
    """JSON with another value somewhere, a key lost, doubled or added; or no JSON at all."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data
    places = list(json_places(value))
    way = random.random()
    if way < 0.1 or not places:
        return [b"[" * 100_000, b"", b"null", b"{}", b"1", b'"x"', data + b"}", b"\xff" + data][int(random.integers(8))]
    owner, key = places[int(random.integers(len(places)))]
    if way < 0.25:
        del owner[key]
    elif way < 0.35 and isinstance(owner, dict):
        owner[str(random.choice(["unknown", "class_name", "shared_object_id", "registered_name", "module"]))] = owner[
            key
        ]
    else:
        owner[key] = hostile_value(random)
    return json.dumps(value).encode()


def json_places(value) -> Iterator[tuple]:
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from json_places(value[key])


def unzip(data: bytes) -> tuple[list[tuple[str, bytes]], bytes] | None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return [(member.filename, archive.read(member)) for member in archive.infolist()], archive.comment
    except Exception:
        return None  # mutated before, so that there is no archive any more


def rezip(members: list[tuple[str, bytes]], comment: bytes, random: np.random.Generator) -> bytes:
    file = io.BytesIO()
    method = int(random.choice([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA]))
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", method) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name.encode("utf-8", "replace").decode()), content, method)
        archive.comment = comment[:65535]
    return file.getvalue()


def change_members(data: bytes, random: np.random.Generator) -> bytes:
    unpacked = unzip(data)
    if unpacked is None or not unpacked[0]:
        return flip_bits(data, random)
    members, comment = unpacked
    i, j = (int(random.integers(len(members))) for _ in range(2))
    name, content = members[i]
    way = int(random.integers(12))
    if way == 0:
        members.append(members[i])
    elif way == 1:
        del members[i]
    elif way == 2:
        members[i], members[j] = (name, members[j][1]), (members[j][0], content)
    elif way == 3:
        members[i] = (str(TEXTS[int(random.integers(len(TEXTS)))]) + name, content)
    elif way == 4:  # other numbers in the names: blocks, units
        digits = [k for k, letter in enumerate(name) if letter.isdigit()]
        if digits:
            k = digits[int(random.integers(len(digits)))]
            members[i] = (name[:k] + str(random.choice(["0", "7", "10", "999999999", "00"])) + name[k + 1 :], content)
    elif way == 5:
        members[i] = (name, b"")
    elif way == 6:
        comment = change_json(comment, random) if random.random() < 0.8 else random.bytes(2000)
    elif way in (7, 8) and name.endswith(".npy"):
        members[i] = (name, change_array(content, random))
    elif name.endswith(".json"):
        members[i] = (name, change_json(content, random))
    elif name.endswith(".h5"):
        members[i] = (name, change_hdf5(content, random))
    else:
        mutation = BYTES[int(random.integers(len(BYTES)))]
        members[i] = (name, mutation(content, random))
    return rezip(members, comment, random)


def change_array(data: bytes, random: np.random.Generator) -> bytes:
    """An array with another shape or type, whose values fit; or with a header that lies."""
    try:
        array = np.lib.format.read_array(io.BytesIO(data))
    except Exception:
        return data
    way = int(random.integers(6))
    if way == 0:
        shapes = [(), (0,), (1,) * 33, array.shape[::-1], (*array.shape, 1), array.shape[1:], (10**6, 0), (2**20,)]
        array = np.zeros(shapes[int(random.integers(len(shapes)))], array.dtype)
    elif way == 1:
        types = ["f2", "f8", "i8", "u1", "?", ">f4", "c8", "U3", "M8[s]", "V2", "V4", "f4,f4", "S5"]
        array = np.zeros(array.shape, types[int(random.integers(len(types)))])
    elif way == 2:
        array = np.full(array.shape, np.nan, array.dtype if array.dtype.kind == "f" else "f4")
    elif way == 3:
        array = np.asfortranarray(array)
    if way in (4, 5):
        shape = tuple(int(random.choice([0, 1, 2**31, 2**62, 10**12, -1, *array.shape, 5])) for _ in range(array.ndim))
        fields = {"descr": str(random.choice(["<f4", "O", "|O", "<f9", "V", "a" * 50, "<f4,<f4", "<U999999999"]))}
        fields |= {"fortran_order": bool(random.random() < 0.5), "shape": shape}
        text = (
            repr(fields) if random.random() < 0.8 else repr(fields).replace("'", str(random.choice(['"', "", "'''"])))
        )
        length = int(random.choice([len(text), 0, 65535, len(text) + 1]))
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", length) + text.encode() + array.tobytes()
    file = io.BytesIO()
    np.lib.format.write_array(file, array)
    return file.getvalue()


def bomb(data: bytes, random: np.random.Generator) -> bytes:
    """A member that unpacks to 300 MB, beside the others or instead of one of them."""
    unpacked = unzip(data)
    members, comment = unpacked or ([("a.npy", b"")], b"")
    i = int(random.integers(len(members)))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (75 * 10**6,)})
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        warnings.simplefilter("ignore")
        for number, (name, content) in enumerate(members):
            if number != i:
                archive.writestr(name, content)
        with archive.open(members[i][0], "w") as member:
            member.write(header.getvalue() if members[i][0].endswith(".npy") else b"")
            for _ in range(300):
                member.write(bytes(MEGABYTE))
        archive.comment = comment
    return file.getvalue()


def overlap(data: bytes, random: np.random.Generator) -> bytes:
    """A directory whose entries all lead to one member, or that is repeated."""
    start, end = data.find(b"PK\x01\x02"), data.rfind(b"PK\x05\x06")
    if not 0 <= start < end:
        return flip_bits(data, random)
    entries = data[start:end].split(b"PK\x01\x02")[1:]
    target = entries[int(random.integers(len(entries)))][38:42]
    entries = [entry[:38] + target + entry[42:] for entry in entries if len(entry) > 42]
    entries *= int(random.choice([1, 2, 50]))
    directory = b"".join(b"PK\x01\x02" + entry for entry in entries)
    tail = bytearray(data[end:])
    tail[8:10] = tail[10:12] = struct.pack("<H", len(entries) % 65536)
    tail[12:16] = struct.pack("<I", len(directory))
    return data[:start] + directory + bytes(tail)


# Mutations of HDF5: through the library, so that the file is sound and says something else.


def change_hdf5(data: bytes, random: np.random.Generator) -> bytes:
    if random.random() < 0.5:
        return BYTES[int(random.integers(len(BYTES)))](data, random)
    buffer = io.BytesIO(data)
    try:
        with h5py.File(buffer, "r+") as file:
            names: list[str] = []
            file.visit(names.append)
            datasets = [name for name in names if isinstance(file[name], h5py.Dataset)]
            name = datasets[int(random.integers(len(datasets)))]
            shape, way = file[name].shape, int(random.integers(10))
            if way == 0:
                del file[name]
            elif way == 1:
                del file[name]
                file[name] = np.zeros((*shape[:-1], 7), "f4")
            elif way == 2:
                del file[name]
                file[name] = np.full(shape, "x", h5py.string_dtype())
            elif way == 3:
                del file[name]
                file[name] = h5py.SoftLink(["/nowhere", "/", f"/{name}"][int(random.integers(3))])
            elif way == 4:
                del file[name]
                file[name] = h5py.ExternalLink(str(random.choice(["/etc/passwd", "nowhere.h5", "."])), "/")
            elif way == 5:
                del file[name]
                file.create_group(name)
            elif way == 6:  # 40 TB, of which nothing is stored
                del file[name]
                file.create_dataset(name, (10**7, 10**6), "f4", chunks=(1000, 1000), fillvalue=1.0)
            elif way == 7:  # values that lie in another file
                del file[name]
                size = 4 * int(np.prod(shape))
                file.create_dataset(name, shape, "f4", external=[("/etc/passwd", 0, size)])
            elif way == 8 and "keras_vit" in file.attrs:
                text = change_json(str(file.attrs["keras_vit"]).encode(), random)
                file.attrs["keras_vit"] = text.decode("utf-8", "replace").replace("\x00", "")[:60_000]
            else:
                values = [3, np.zeros(5), "", "{}", np.void(b"ab"), h5py.Empty("f4")]
                file.attrs["keras_vit"] = values[int(random.integers(len(values)))]
    except Exception:
        return BYTES[int(random.integers(len(BYTES)))](data, random)
    return buffer.getvalue()


# Mutations of text.


def change_cells(data: bytes, random: np.random.Generator) -> bytes:
    lines = data.split(b"\n")
    i = int(random.integers(len(lines)))
    cells = lines[i].split(b",")
    k = int(random.integers(len(cells)))
    way = int(random.integers(6))
    if way == 0:
        del cells[k]
    elif way == 1:
        cells.insert(k, b"extra")
    elif way == 2:
        cells[k] = str(hostile_value(random)).encode("utf-8", "replace")
    elif way == 3:
        cells[k] = [b"-nan", b"inf", b"1e999", b"", b'"', b"0x1p3", b"1_000", "１".encode(), b"\xff"][
            int(random.integers(9))
        ]
    lines[i] = b",".join(cells)
    if way == 4:
        lines.insert(i, lines[int(random.integers(len(lines)))])
    elif way == 5:
        return (b"\xef\xbb\xbf" + data) if random.random() < 0.5 else data.decode("utf-8", "replace").encode("utf-16")
    return b"\n".join(lines)


def change_picture_size(data: bytes, random: np.random.Generator) -> bytes:
    """The size in the head of a PNG or BMP, the former with a checksum that is right."""
    import zlib

    width, height = (int(random.choice([0, 1, 1000, 10_000, 40_000, 2**31 - 1])) for _ in range(2))
    if data[:4] == b"\x89PNG" and len(data) > 33:
        head = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
        return data[:12] + head + struct.pack(">I", zlib.crc32(head)) + data[33:]
    if data[:2] == b"BM" and len(data) > 26:
        return data[:18] + struct.pack("<ii", width, height if height < 2**31 else -1) + data[26:]
    return set_numbers(data, random)


def change_header(data: bytes, random: np.random.Generator) -> bytes:
    """A .safetensors file whose header says something else, with the length that it then has."""
    length = int.from_bytes(data[:8], "little")
    header = change_json(data[8 : 8 + length], random)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


ZIP = (*BYTES, change_members, change_members, change_members, change_members, overlap)
# What a kind needs: sound files, a reader, mutations, megabytes beside what the process has.
KINDS = {
    "npz": (make_npz, read_npz, (*ZIP, change_members, change_members), 400),
    "keras": (make_keras, read_keras_file, ZIP, 400),
    "weights_h5": (make_weights_h5, read_keras_file, (*BYTES, *[change_hdf5] * 6), 400),
    "image": (make_images, read_image, (*BYTES, change_picture_size), 2500),
    "classes": (make_classes, read_classes, (*BYTES, change_cells), 200),
    "run": (make_run, read_run, (*ZIP, change_json, change_json, change_cells), 400),
    "index": (make_index, read_index, (*BYTES, change_cells, change_cells, change_cells), 200),
    "safetensors": (make_safetensors, read_arrays, (*BYTES, *[change_header] * 6), 300),
    "torch": (make_torch, read_arrays, (*ZIP, *BYTES), 300),
}
RARE = {"npz": bomb, "keras": bomb, "run": bomb}  # mutations that take seconds


def damaged(kind: str, seed: int, number: int, sound: list[pathlib.Path]) -> tuple[pathlib.Path, bytes]:
    """Which file is damaged in input `number`, and what it holds then."""
    random = np.random.default_rng([seed, list(KINDS).index(kind), number])
    path = sound[int(random.integers(len(sound)))]
    data, mutations = path.read_bytes(), KINDS[kind][2]
    if kind in RARE and number % 200 == 199:
        return path, RARE[kind](data, random)
    for _ in range(int(random.choice([1, 1, 2, 4]))):
        data = mutations[int(random.integers(len(mutations)))](data, random)
    return path, data


# One input.


def bad_words(error: BaseException) -> list[str]:
    """What is wrong with an error's message; its first line is what a user sees."""
    text = str(error)
    problems = [] if text.strip() else ["empty message"]
    if any(not letter.isprintable() and not letter.isspace() for letter in text):
        problems.append("control characters in the message")
    if "\n" in text:
        problems.append("message of several lines")
    if len(text) > 5000:
        problems.append(f"message of {len(text)} characters")
    return problems


def try_one(kind: str, seed: int, number: int, sound: list[pathlib.Path], folder: pathlib.Path) -> tuple[str, str]:
    """The outcome of one input, and what is to be known about it; findings begin with an exclamation mark."""
    origin, data = damaged(kind, seed, number, sound)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    if kind == "run":
        for path in sound:
            shutil.copy(path, folder / path.name)
    target = folder / origin.name
    target.write_bytes(data)
    before = {path.name for path in folder.iterdir()}
    _problems.clear()
    outcome, detail = "read", ""
    try:
        KINDS[kind][1](target)
    except ALLOWED as error:
        outcome, detail = type(error).__name__, str(error)
        _problems.extend(bad_words(error))
        if kind != "index" and str(target) not in detail and str(folder) not in detail:
            _problems.append("message without the file's name")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)
        ours = next((f for f in reversed(where) if "keras_vit" in f.filename), where[-1])
        outcome = f"!{type(error).__name__}"
        detail = f"{pathlib.Path(ours.filename).name}:{ours.lineno} {str(error)[:200]}"
    left = {path.name for path in folder.iterdir()} - before - {".lock", "log.csv"}
    if left:
        _problems.append(f"left behind: {sorted(left)}")
    if _problems:
        outcome, detail = f"!{outcome}", f"{'; '.join(dict.fromkeys(_problems))}: {detail}"
    return outcome, detail[:1000]


# Batches.


def limit_memory(megabytes: int) -> None:
    now = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + megabytes * MEGABYTE, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def watch_writes(folder: pathlib.Path) -> None:
    """Lets nothing be written but under `folder`: the attempt is an error that no reader may raise."""

    class Written(BaseException):
        pass

    def hook(event: str, arguments: tuple) -> None:
        writes = event in ("os.mkdir", "os.rename", "os.remove", "os.symlink", "os.link", "shutil.rmtree", "os.chmod")
        if event == "open" and isinstance(arguments[1], str):
            writes = any(letter in arguments[1] for letter in "wax+")
        elif event == "open" and isinstance(arguments[2], int):
            writes = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if not writes or not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if not path.startswith((str(folder), "/dev/", "/proc/self")):
            raise Written(f"{event} {path}")

    sys.addaudithook(hook)


def run_batch(kind: str, seed: int, numbers: range, sound: list[pathlib.Path], pipe: int, folder: pathlib.Path) -> None:
    """Runs in a process of its own; each input's outcome goes down the pipe as a line of JSON."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        warnings.simplefilter("ignore")
        if kind == "run":
            compiled()
        watch_writes(folder.parent)
        limit_memory(KINDS[kind][3])
        with os.fdopen(pipe, "w", buffering=1) as out:
            for number in numbers:
                out.write(json.dumps([number, None, None]) + "\n")
                outcome, detail = try_one(kind, seed, number, sound, folder)
                out.write(json.dumps([number, outcome, detail]) + "\n")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def fuzz(kind: str, seed: int, numbers: range, sound: list[pathlib.Path], scratch: pathlib.Path) -> Iterator[tuple]:
    """(number, outcome, detail) for each input; a process that dies loses the one that it was at."""
    import select

    first = numbers.start
    while first < numbers.stop:
        batch = range(first, min(first + BATCH, numbers.stop))
        folder = pathlib.Path(tempfile.mkdtemp(dir=scratch)) / "input"
        folder.mkdir()
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(reading)
            run_batch(kind, seed, batch, sound, writing, folder)
        os.close(writing)
        at, rest, hung = first, b"", False
        while True:
            if not select.select([reading], [], [], SECONDS)[0]:
                hung = True
                os.kill(process, signal.SIGKILL)
                break
            piece = os.read(reading, 2**16)
            if not piece:
                break
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                at, outcome, detail = json.loads(line)
                if outcome is not None:
                    yield at, outcome, detail
                    first = at + 1
        os.close(reading)
        _, status = os.waitpid(process, 0)
        shutil.rmtree(folder.parent, ignore_errors=True)
        if hung or os.WIFSIGNALED(status) or first < batch.stop:
            what = "hang" if hung else f"crash by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "exit"
            yield at, f"!{what}", ""
            first = at + 1


def make_sound(kind: str, folder: pathlib.Path) -> list[pathlib.Path]:
    """The sound files of a kind in a folder of their own."""
    folder = folder / kind
    folder.mkdir(parents=True)
    return KINDS[kind][0](folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--count", type=int, default=4000, help="inputs of each kind")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the inputs of findings")
    args = parser.parse_args()
    findings, table = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        for kind in args.kinds:
            sound = make_sound(kind, pathlib.Path(scratch).resolve() / "sound")
            outcomes, start, worst = collections.Counter(), time.perf_counter(), 0.0
            last = start
            for number, outcome, detail in fuzz(
                kind, args.seed, range(args.first, args.first + args.count), sound, pathlib.Path(scratch).resolve()
            ):
                outcomes[outcome] += 1
                worst, last = max(worst, time.perf_counter() - last), time.perf_counter()
                if outcome.startswith("!"):
                    findings.append({"kind": kind, "number": number, "outcome": outcome, "detail": detail})
                    print(f"{kind} {number} {outcome} {detail}", flush=True)
                    if args.keep:
                        args.keep.mkdir(parents=True, exist_ok=True)
                        path, data = damaged(kind, args.seed, number, sound)
                        (args.keep / f"{kind}-{number}{path.suffix}").write_bytes(data)
            seconds = time.perf_counter() - start
            table[kind] = {"inputs": sum(outcomes.values()), "seconds": round(seconds, 1), "slowest": round(worst, 2)}
            table[kind]["outcomes"] = dict(outcomes.most_common())
            print(kind, json.dumps(table[kind]), flush=True)
    result = {"seed": args.seed, "inputs": sum(row["inputs"] for row in table.values()), "findings": len(findings)}
    result |= {"python": sys.version.split()[0], "h5py": h5py.__version__, "hdf5": h5py.version.hdf5_version}
    print(json.dumps(result))
    if args.output:
        args.output.write_text(json.dumps(result | {"kinds": table, "what": findings}, indent=1) + "\n")


if __name__ == "__main__":
    main()
