"""However a command fails, it says so in words, without a traceback, and nothing controls the terminal."""

import dataclasses
import warnings
import zipfile

import pytest

from keras_vit.cli import main
from keras_vit.cli.program import COMMANDS

pytestmark = pytest.mark.once


@pytest.fixture
def fails(monkeypatch, run):
    """A function that runs a command that raises an error, and gives back what is on standard error."""

    def fail(error, code=1):
        def raise_error(options):
            raise error

        monkeypatch.setitem(COMMANDS, "list", dataclasses.replace(COMMANDS["list"], run=raise_error))
        return run("list", code=code).err

    return fail


def test_an_error_is_its_first_words(fails):
    assert (
        fails(ValueError("It is so.\n\nArguments received by VisionTransformer.call():\n  x"))
        == "keras-vit: It is so.\n"
    )
    assert fails(RuntimeError("one\ntwo")) == "keras-vit: one\ntwo\n"
    assert fails(ValueError()) == "keras-vit: ValueError\n"
    assert fails(FloatingPointError("The loss is nan.")) == "keras-vit: The loss is nan.\n"
    assert fails(KeyError("name")) == "keras-vit: KeyError: 'name'\n"
    assert fails(KeyboardInterrupt(), code=130) == "keras-vit: interrupted\n"


def test_an_error_shows_names_as_they_are(fails):
    err = fails(OSError(2, "No file", "[red]\x1b]0;title\x07\x9b31m\n.npz"))
    assert "[red]" in err and not {"\x1b", "\x07", "\x9b"} & set(err)


def test_where_an_error_came_from_is_shown_when_asked_for(monkeypatch, capsys):
    monkeypatch.setenv("KERAS_VIT_TRACEBACK", "1")
    assert main(["info", "missing.npz"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and err.splitlines()[-1].startswith("keras-vit: ")


def test_a_warning_is_a_line(monkeypatch, capsys):
    def warn(options):
        warnings.warn("[red]\x1b[31m of ours", stacklevel=2)
        warnings.warn_explicit("of a library", UserWarning, "/usr/lib/python3/library.py", 1)
        raise ValueError("the end")

    monkeypatch.setitem(COMMANDS, "list", dataclasses.replace(COMMANDS["list"], run=warn))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        main(["list"])
    assert capsys.readouterr().err == "keras-vit: [red]\\x1b[31m of ours\nkeras-vit: the end\n"


def altered(path, **members):
    """A copy of a .keras file with other members; None leaves one out."""
    target = path.with_name(f"altered-{path.name}")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as copy:
        for name in source.namelist():
            data = members.get(name.partition(".")[0], source.read(name))
            if data is not None:
                copy.writestr(name, data)
    return target


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"null", b'{"module": "os", "class_name": "system"}'])
def test_a_keras_file_with_another_config_is_named(run, tiny, tmp_path, content):
    path = altered(tiny("tiny.keras"), config=content)
    for command in (("info", path), ("convert", path, tmp_path / "out.npz")):
        assert str(path) in run(*command, code=1).err


@pytest.mark.parametrize("file", ["a.npz", "a.keras", "a.weights.h5"])
@pytest.mark.parametrize(
    "content", [b"", b"no such file", b"PK\x03\x04" + bytes(100), b"\x89HDF\r\n\x1a\n" + bytes(100)]
)
def test_a_file_with_something_else_in_it_is_named(run, tmp_path, file, content):
    (tmp_path / file).write_bytes(content)
    for command in (("info", tmp_path / file), ("convert", tmp_path / file, tmp_path / "out.npz")):
        assert str(tmp_path / file) in run(*command, code=1).err


@pytest.mark.parametrize(
    "url", ["https://exämple.org/ä b.npz", "https://[/m.npz", "https://x y/m.npz", "https://a:b/m.npz"]
)
def test_a_strange_address_is_named(run, url):
    for command in ("info", "download"):
        assert "m.npz" in (err := run(command, url, code=1).err) or "b.npz" in err


def test_a_query_without_an_answer_fails(run):
    for command in (("recipes", "zzz"), ("list", "zzz"), ("list", "--models", "zzz")):
        assert "zzz" in run(*command, code=1).err


USAGE = {
    "batch size": ("finetune", "glyphs", "data", "--batch-size", "0"),
    "steps": ("finetune", "glyphs", "data", "--steps", "0"),
    "rate": ("finetune", "glyphs", "data", "--learning-rate", "-1"),
    "not a number": ("finetune", "glyphs", "data", "--learning-rate", "nan"),
    "warm-up": ("finetune", "glyphs", "data", "--warmup-steps", "-1"),
    "every": ("finetune", "glyphs", "data", "--every", "0"),
    "seed": ("finetune", "glyphs", "data", "--seed", "-1"),
    "dtype": ("finetune", "glyphs", "data", "--dtype", "nonsense"),
    "image size": ("finetune", "glyphs", "data", "--image-size", "0"),
    "image width": ("finetune", "glyphs", "data", "--image-size", "32x"),
    "mixup": ("finetune", "glyphs", "data", "--mixup", "-1"),
    "batch size of evaluate": ("evaluate", "glyphs", "data", "--batch-size", "0"),
    "shots": ("evaluate", "glyphs", "data", "--few-shot", "0"),
    "seeds": ("evaluate", "glyphs", "data", "--few-shot", "--seeds", "0"),
    "l2": ("evaluate", "glyphs", "data", "--few-shot", "--l2", "-1"),
    "batch size of export": ("export", "glyphs", "out.tflite", "--batch-size", "0"),
    "size of export": ("export", "glyphs", "out.tflite", "--image-size", "any"),
    "no such command": ("nonsense",),
    "no command": (),
}


@pytest.mark.parametrize("case", USAGE)
def test_values_that_make_no_sense_are_wrong_usage(run, case):
    assert "usage: keras-vit" in run(*USAGE[case], code=2).err
