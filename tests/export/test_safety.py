"""What goes wrong leaves nothing behind and overwrites nothing."""

import errno
import os

import keras
import numpy as np
import pytest

from keras_vit.export import FORMATS, export, processes
from keras_vit.export.format import Format, Precision
from tests.export.tiny import fake_export, new_model, shared_model, skip_without

pytestmark = pytest.mark.once

SUFFIXES = {name: row.suffix for name, row in FORMATS.items()}
KINDS = ("saved_model", "onnx", "openvino")  # a folder, a file, two files


def everything_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize("format", KINDS)
@pytest.mark.parametrize("difference", [1e-2, np.nan])
def test_a_file_that_disagrees_is_not_left(monkeypatch, tmp_path, format, difference):
    fake_export(monkeypatch, difference)
    path = tmp_path / f"model{SUFFIXES[format]}"
    with pytest.raises(RuntimeError, match="(?s)does not return the outputs.*Nothing was written"):
        export(shared_model(), path, format)
    assert everything_in(tmp_path) == []
    path.write_text("old")
    with pytest.raises(RuntimeError, match="does not return the outputs"):
        export(shared_model(), path, format, overwrite=True)
    assert path.read_text() == "old" and everything_in(tmp_path) == [path.name]


def test_the_tolerance_is_the_user_s_and_relative(monkeypatch, tmp_path):
    fake_export(monkeypatch, 1e-2)
    report = export(shared_model(), tmp_path / "model.tflite", tolerance=2e-2)
    assert report.max_abs_error == pytest.approx(1e-2, rel=1e-3)
    model = new_model()
    for weight in model.get_layer("head").weights:
        weight.assign(weight * 1000)
    # 1e-2 is a rounding error for answers of a few hundred.
    report = export(model, tmp_path / "large.tflite")
    assert report.tolerance > 1e-2


@pytest.mark.parametrize("format", KINDS)
@pytest.mark.parametrize("old", ["file", "folder", "link"])
def test_overwriting_has_to_be_asked_for(monkeypatch, tmp_path, format, old):
    fake_export(monkeypatch)
    path = tmp_path / f"model{SUFFIXES[format]}"
    {"file": lambda: path.write_text("old"), "folder": path.mkdir, "link": lambda: path.symlink_to("nowhere")}[old]()
    before = path.lstat().st_ino
    with pytest.raises(FileExistsError, match="overwrite=True"):
        export(shared_model(), path, format)
    assert path.lstat().st_ino == before
    export(shared_model(), path, format, overwrite=True)
    assert (path / FORMATS[format].inside).read_text() == "new"
    wanted = {target.name for target in FORMATS[format].files(path)}
    assert {entry.name for entry in tmp_path.iterdir()} == wanted


def test_what_else_is_never_replaced(monkeypatch, tmp_path):
    """OpenVINO's second file, and a folder of other things."""
    fake_export(monkeypatch)
    (tmp_path / "model.bin").write_text("old")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "precious.txt").write_text("old")
    before = everything_in(tmp_path)
    with pytest.raises(FileExistsError, match=r"model\.bin exists"):
        export(shared_model(), tmp_path / "model.xml")
    with pytest.raises(FileExistsError, match="does not replace"):
        export(shared_model(), tmp_path / "results", "saved_model", overwrite=True)
    assert everything_in(tmp_path) == before and (tmp_path / "model.bin").read_text() == "old"


def test_a_folder_is_replaced_by_its_own_format_alone(monkeypatch, tmp_path):
    fake_export(monkeypatch)
    monkeypatch.setattr(type(FORMATS["saved_model"]), "inside", "program.bin")
    for name, file in {"model.onnx": "program.bin", "other": "saved_model.pb", "model": "program.bin"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("old")
    for name, format in {"model.onnx": "onnx", "other": "saved_model"}.items():
        with pytest.raises(FileExistsError, match=f"not one of the format '{format}'"):
            export(shared_model(), tmp_path / name, format, overwrite=True)
    export(shared_model(), tmp_path / "model", "saved_model", overwrite=True)
    assert [path.read_text() for path in sorted(tmp_path.rglob("*.*")) if path.is_file()] == ["new", "old", "old"]


def test_folders_are_made_and_go_again_where_nothing_was_left(monkeypatch, tmp_path):
    path = tmp_path / "a" / "model.onnx"
    fake_export(monkeypatch, 1.0)
    with pytest.raises(RuntimeError):
        export(shared_model(), path)
    assert everything_in(tmp_path) == []
    with pytest.raises(FileNotFoundError, match="no folder .*tpyo: check the path"):
        export(shared_model(), tmp_path / "tpyo" / "a" / "model.onnx")
    fake_export(monkeypatch)
    export(shared_model(), str(path))
    assert path.exists()


def test_a_read_only_folder(monkeypatch, tmp_path):
    fake_export(monkeypatch)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file is not a folder"):
        export(shared_model(), tmp_path / "file" / "model.tflite")
    (tmp_path / "folder").mkdir(mode=0o555)
    allowed = os.access
    # For the administrator, whom no mode stops.
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / "folder" and allowed(path, mode))
    with pytest.raises(PermissionError, match="folder is read-only"):
        export(shared_model(), tmp_path / "folder" / "model.tflite")
    assert everything_in(tmp_path) == ["file", "folder"]


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("format", KINDS)
def test_a_full_disk_while_writing(monkeypatch, tmp_path, format):
    fake_export(monkeypatch, write=lambda target: (target.write_text("half"), full()))
    path = tmp_path / f"model{SUFFIXES[format]}"
    path.write_text("old")
    with pytest.raises(OSError, match="No space left on device. Nothing was written") as caught:
        export(shared_model(), path, format, overwrite=True)
    assert caught.value.errno == errno.ENOSPC
    assert path.read_text() == "old" and everything_in(tmp_path) == [path.name]


def test_an_error_without_a_number_has_none(monkeypatch, tmp_path):
    def write(target):
        raise OSError("The converter gave up")

    fake_export(monkeypatch, write=write)
    with pytest.raises(OSError, match=r"^The converter gave up\. Nothing was written"):
        export(shared_model(), tmp_path / f"model{SUFFIXES[KINDS[0]]}", KINDS[0])


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_a_disk_that_refuses_while_files_are_moved(monkeypatch, tmp_path, fails_at):
    fake_export(monkeypatch)
    for suffix in (".xml", ".bin"):
        (tmp_path / f"model{suffix}").write_text("old")
    move, calls = os.replace, []

    def replace(source, target):
        calls.append(target)
        full() if len(calls) == fails_at else move(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="Nothing was written"):
        export(shared_model(), tmp_path / "model.xml", overwrite=True)
    assert everything_in(tmp_path) == ["model.bin", "model.xml"]
    assert {path.read_text() for path in tmp_path.iterdir()} == {"old"}


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")  # Keras asks all layers
def test_models_that_are_refused(tmp_path):
    broken, quantized = new_model(), new_model()
    value = np.ones((16, 24), "float32")
    value[0, 0] = np.inf
    broken.get_layer("block_0").mlp.fc1.kernel.assign(value)
    broken.get_layer("head").bias.assign(np.full(5, np.nan))
    quantized.quantize("int8")
    for model, error, words in (
        (broken, ValueError, "NaN or infinite.*block_0/mlp/fc1/kernel', 'head/bias"),
        (quantized, ValueError, "quantized.*dynamic_int8"),
        (keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]), TypeError, "or .* a Sequential"),
    ):
        with pytest.raises(error, match=words):
            export(model, tmp_path / "a" / "model.tflite")
    assert everything_in(tmp_path) == []


def test_operators_that_the_runtime_lacks_have_to_be_allowed(monkeypatch, tmp_path):
    fake_export(monkeypatch, select=["FlexErf"])
    with pytest.raises(RuntimeError, match="FlexErf.*allow_select_ops=True"):
        export(shared_model(), tmp_path / "model.tflite")
    assert everything_in(tmp_path) == []
    report = export(shared_model(), tmp_path / "model.tflite", allow_select_ops=True)
    assert report.select_operators == ("FlexErf",) and report.operators == ("ADD", "FlexErf")
    assert "FlexErf" in str(report)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("kill -9 $$", "(?s)killed by signal 9.*Nothing was written"),
        ("echo The reason. >&2; exit 3", "(?s)exit status 3.*The reason"),
    ],
)
def test_a_worker_that_fails(monkeypatch, tmp_path, script, words):
    """Another program in the place of the worker, and a format that needs one under this backend."""
    format = "torch" if keras.backend.backend() == "jax" else "stablehlo"
    skip_without(format)
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho half > $4; {script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(processes.sys, "executable", str(program))
    with pytest.raises(RuntimeError, match=words):
        export(shared_model(), tmp_path / "out" / f"model{SUFFIXES[format]}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", ["torch", "stablehlo"])
def test_a_converter_that_fails_here_and_a_model_that_cannot_be_saved_for_another_process(
    monkeypatch, tmp_path, format
):
    def fails(*_):
        raise KeyError("what no converter knows")

    skip_without(format)
    monkeypatch.setattr(*((processes, "write") if format == "torch" else (keras.Model, "save")), fails)
    with pytest.raises(RuntimeError, match="(?s)could not be written.*KeyError.*no converter knows.*Nothing was"):
        export(shared_model(), tmp_path / f"model{SUFFIXES[format]}", format)
    assert everything_in(tmp_path) == []


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(Format, "precision", lambda *_: Precision())  # whose packages are asked for first
    for format, row in FORMATS.items():
        with pytest.raises(ImportError, match=rf"needs .*{row.needs[-1]}.*keras-vit-zoo\[{row.extra}\]"):
            export(shared_model(), tmp_path / f"model{SUFFIXES[format]}", format)
    assert everything_in(tmp_path) == []
