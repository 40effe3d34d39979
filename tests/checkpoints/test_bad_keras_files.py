"""Damaged `.keras` and `.weights.h5` files: one-line errors that name the file, before memory is taken."""

import json
import re
import shutil
import warnings
import zipfile

import h5py
import pytest

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.checkpoints import class_names, read_keras, save_model
from keras_vit.zoo import load

pytestmark = pytest.mark.once

CONFIG = ViTConfig(image_size=8, patch_size=8, width=8, depth=1, heads=2, mlp_width=8, classes=3)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("files"), VisionTransformer(CONFIG)
    for name in ("sound.keras", "sound.weights.h5"):
        save_model(model, folder / name)
    return folder


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def changed_config(**fields):
    def change(text):
        model = json.loads(text)
        model["config"]["config"].update(fields)
        return json.dumps(model).encode()

    return change


def changed_class(**fields):
    return lambda text: json.dumps(json.loads(text) | fields).encode()


CHANGED = {
    "no json": (lambda text: b"{", "has a model config that cannot be read"),
    "deep": (lambda text: b"[" * 60_000, "has a model config that cannot be read"),
    "list": (lambda text: b"[]", "must hold a model of keras_vit"),
    "foreign": (changed_class(class_name="Sequential"), "must hold a model of keras_vit"),
    "foreign registration": (changed_class(registered_name="evil>VisionTransformer"), "must hold a model of keras_vit"),
    "no config": (changed_class(config={}), "has a model config that cannot be read.*config"),
    "unknown field": (changed_config(unknown=1), "has a model config that cannot be read.*unknown"),
    "wrong type": (changed_config(width="8"), "has a model config that cannot be read.*width"),
    "control characters": (changed_config(gelu="\x1b[31m"), r"has a model config that cannot be read.*\\x1b"),
    "too deep": (changed_config(depth=10**9), "its model needs .* bytes of weights, but it has only"),
    "too many channels": (changed_config(channels=10**10), "channels must be a whole number from 1 to 65,536"),
    "too many classes": (changed_config(classes=10**9), "its model needs"),
    "another width": (changed_config(mlp_width=16), "cannot be loaded: it is damaged"),
    "wrong name": (changed_class(config={"config": CONFIG.to_dict(), "name": ["a"]}), "cannot be loaded: it is damag"),
}


def with_words(source, target, change):
    """A file of Keras as another one, except for what it says of its model."""
    if source.suffix == ".keras":
        with zipfile.ZipFile(target, "w") as archive:
            for name, data in members(source).items():
                archive.writestr(name, change(data) if name == "config.json" else data)
    else:
        shutil.copyfile(source, target)
        with h5py.File(target, "r+") as file:
            file.attrs["keras_vit"] = change(file.attrs["keras_vit"].encode()).decode()
    return target


@pytest.mark.parametrize("kind", [".keras", ".weights.h5"])
@pytest.mark.parametrize("what", CHANGED)
def test_changed_words_about_the_model(files, tmp_path, kind, what):
    change, message = CHANGED[what]
    path = with_words(files / f"sound{kind}", tmp_path / f"changed{kind}", change)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))} .*{message}") as caught:
        load(path)
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value) and len(str(caught.value)) < 1000


def test_a_keras_file_with_other_members(files, tmp_path):
    for without, more, message in (
        (["config.json"], [], "is not a .keras file"),
        (["model.weights.h5"], [], "is damaged"),
        *(([], names, "is not .* must have only") for names in (["a/../../x"], ["metadata.json"])),
    ):
        with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "other.keras", "w") as archive:
            warnings.simplefilter("ignore")  # of the name that is there twice
            for name, data in [*members(files / "sound.keras").items(), *((name, b"{}") for name in more)]:
                if name not in without:
                    archive.writestr(name, data)
        with pytest.raises(ValueError, match=f"other.keras {message}"):
            read_keras(tmp_path / "other.keras")


def test_a_config_that_unpacks_without_end(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", b" " * 2**25)
        archive.writestr("model.weights.h5", b"")
    with pytest.raises(ValueError, match="bomb.keras .* config.json has 33,554,432 bytes"):
        read_keras(tmp_path / "bomb.keras")


def test_weights_that_unpack_without_end(files, tmp_path, monkeypatch):
    """Told before anything is unpacked: packed by the archive, by HDF5's filters, or arrays that have no values."""
    unpacked = []
    monkeypatch.setattr("keras.saving.load_model", unpacked.append)
    monkeypatch.setattr("keras.Model.load_weights", lambda *_: unpacked.append(_))

    def inflated(name, **options):
        (tmp_path / name).write_bytes(members(files / "sound.keras")["model.weights.h5"])
        with h5py.File(tmp_path / name, "r+") as file:
            file.create_dataset("zeros", (2**20, 64), "float32", **options)  # 256 MiB
        assert (tmp_path / name).stat().st_size < 2**20
        return (tmp_path / name).read_bytes()

    kept = {name: data for name, data in members(files / "sound.keras").items() if name != "model.weights.h5"}
    for case, weights, packing in (
        ("packed", members(files / "sound.keras")["model.weights.h5"] + bytes(2**28), zipfile.ZIP_DEFLATED),
        ("filtered", inflated("a.h5", compression="gzip"), zipfile.ZIP_STORED),
        ("without values", inflated("b.h5", chunks=(64, 64)), zipfile.ZIP_STORED),
        ("both", inflated("c.h5", chunks=(64, 64)), zipfile.ZIP_DEFLATED),
    ):
        path = tmp_path / f"{case}.keras"
        with zipfile.ZipFile(path, "w", packing) as archive:
            for name, data in {**kept, "model.weights.h5": weights}.items():
                archive.writestr(name, data)
        with pytest.raises(ValueError, match=r"its weights unpack to 2[0-9]{2},[0-9,]+ bytes; at most 16,"):
            load(path)
    path = tmp_path / "a.weights.h5"
    path.write_bytes((files / "sound.weights.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        file.create_dataset("zeros", (2**20, 64), "float32", chunks=(64, 64))
    with pytest.raises(ValueError, match="its weights unpack to 268,"):
        load(path)
    assert not unpacked


def test_a_file_that_somebody_packed_again_loads(files, tmp_path):
    with zipfile.ZipFile(tmp_path / "again.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members(files / "sound.keras").items():
            archive.writestr(name, data)
    again, sound = load(tmp_path / "again.keras"), load(files / "sound.keras")
    assert all((a == b).all() for a, b in zip(again.get_weights(), sound.get_weights(), strict=True))


@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5"])
@pytest.mark.parametrize("data", [b"", b"PK", b"\x89HDF\r\n\x1a\n", b"<!doctype html>"])
def test_not_such_a_file(tmp_path, name, data):
    with pytest.raises(FileNotFoundError, match=name):
        load(tmp_path / name)
    (tmp_path / name).write_bytes(data)
    (tmp_path / "folder" / name).mkdir(parents=True)
    for read in (load, class_names):
        with pytest.raises(IsADirectoryError, match=name):  # and not a damaged file
            read(tmp_path / "folder" / name)
        with pytest.raises(ValueError, match=f"{name} is not "):
            read(tmp_path / name)


def test_a_truncated_file_and_a_flipped_bit(files, tmp_path):
    for name in ("sound.keras", "sound.weights.h5"):
        (tmp_path / name).write_bytes((files / name).read_bytes()[:-100])
        with pytest.raises(ValueError, match=f"{name} is not "):
            read_keras(tmp_path / name)
    data = bytearray((files / "sound.keras").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "a.keras").write_bytes(data)
    with pytest.raises(ValueError, match="a.keras cannot be loaded: it is damaged.*CRC"):
        read_keras(tmp_path / "a.keras")
