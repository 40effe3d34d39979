"""The program: what it imports, how it fails, and that no name in what it prints controls a terminal."""

import os
import re
import shlex
import signal
import subprocess
import sys
import warnings

import pytest

from keras_vit.checkpoints import save_model
from keras_vit.cli import main
from keras_vit.cli.program import APP
from keras_vit.export import FORMATS
from tests.processes import REPOSITORY
from tests.small_models import small_eomt

pytestmark = pytest.mark.once

FRAMEWORKS = {"keras", "tensorflow", "jax", "jaxlib", "torch"}

# What the program imports

LIGHT = [
    "--help",
    "export --help",
    "--version",
    "list B/16",
    "list --models",
    "recipes cifar",
    "info {npz}",
    "info sam/ViT-B_16",
    "info glyphs",
    "download {npz}",
]


def test_no_framework_for_what_needs_none(program, golden):
    out, err, imported = program(*(command.format(npz=golden("mini_token").path).split() for command in LIGHT))
    assert imported == []
    assert out and err == ""


def test_the_framework_is_silent(program, golden, photo, tmp_path):
    """TensorFlow and oneDNN report their start, CUDA what it lacks; all before anything of ours runs."""
    save_model(small_eomt(), tmp_path / "queries.keras")  # whose class the program imports to open it
    convert = ("convert", golden("mini_token").path, tmp_path / "mini.keras")
    out, err, imported = program(convert, ("segment", photo, "-o", "masks.png", "--weights", "queries.keras"))
    assert "keras" in imported and out.startswith("Wrote") and err == ""


# Instead of Keras: what happens while it is imported.
INTERRUPTED = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)"
TURNED_INTO_ANOTHER_ERROR = f"""
try:
    {INTERRUPTED.replace(chr(10), chr(10) + "    ")}
except KeyboardInterrupt:
    raise ImportError("initialization failed")
"""


@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
    reason="a shell has started the tests in the background, where interrupts are ignored, and children inherit that",
)
@pytest.mark.parametrize("keras", [INTERRUPTED, TURNED_INTO_ANOTHER_ERROR], ids=["plain", "turned"])
def test_an_interrupt_while_importing_is_130(program, tmp_path, keras):
    (tmp_path / "keras.py").write_text(keras)
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    out, err, _ = program(["info"], code=130, PYTHONPATH=path)
    assert (out, err) == ("", "keras-vit: interrupted\n")


def test_an_unknown_backend_is_one_line(program):
    out, err, _ = program(["info"], code=1, KERAS_BACKEND="foo")
    assert out == "" and err == "keras-vit: KERAS_BACKEND must be one of tensorflow, jax, torch, but it is 'foo'.\n"


# Commands that cannot do their job, and what they say before Keras is imported, which takes seconds. The first of each
# group run in a fresh process, too.
BEFORE_KERAS = {
    "picture": ("predict missing.png --weights glyphs", "missing.png"),
    "model": ("predict photo.png --weights B17", "Did you mean 'ViT-B/16'? See list_weights() or `keras-vit list`"),
    "data": ("finetune glyphs nowhere", "DATA must be an image folder or tfds:NAME, but 'nowhere'"),
    "recipe": ("finetune glyphs photos --recipe finetune/cifar", "Did you mean 'finetune/cifar10'"),
    "layout": ("convert glyphs out.npz --layout nonsense", "layout must be one of"),
    "page": ("inspect glyphs -o nowhere/page.html", "no folder"),
    "calibration": ("export glyphs out.tflite --calibration missing", "missing"),
}
ALSO_BEFORE_KERAS = {
    "shipped checkpoint": ("predict photo.png --weights glyph", "Did you mean 'glyphs'"),
    "repository": ("predict photo.png --weights me/x", "Did you mean 'hf://me/x'"),
    "nothing recommended": ("predict photo.png --weights H/14", "ViT-H_14"),
    "name to download": ("download imagenet21k/ViT-B_17", "ViT-B_16"),
    "offline": ("download sam/ViT-B_16", "KERAS_VIT_OFFLINE"),
    "variant to download": ("download ViT-B/16", "KERAS_VIT_OFFLINE"),
    "data that is a file": ("evaluate glyphs photo.png", "It is a file"),
    "source to convert": ("convert missing.npz out.keras", "There is no file or folder missing.npz"),
    "unknown ending": ("convert glyphs out.foo --layout timm", ".safetensors file, or a folder"),
    "pictures to pre-train on": ("pretrain nowhere", "There is no file or folder nowhere"),
    "model to pre-train": ("pretrain photos --weights ViT-S/17", "Did you mean 'ViT-S/16'"),
    "format of one map": ("depth photo.png -o x.png --format npy --weights glyphs", "--format npy is for files in a"),
    "format of figures": ("segment photo.png -o x --plot --format npy --weights glyphs", "leave --format npy out"),
    "pictures to embed": ("embed missing -o out.npz", "missing"),
    "folder of a sheet": ("duplicates old.keras --output nowhere/pairs.html", "no folder"),
    "format of one file": (
        "detect photo.png --weights glyphs -o x.png --format json",
        "--format json is for files in a",
    ),
    "folder of boxes": ("detect photo.png --weights glyphs -o nowhere/in/boxes.png", "no folder"),
}


@pytest.fixture
def place(tmp_path, monkeypatch, photo):
    """The working folder, with what the commands above expect there."""
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "old.keras").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", BEFORE_KERAS | ALSO_BEFORE_KERAS)
def test_what_is_known_without_keras_is_said_before_it_starts(run, place, monkeypatch, case):
    """`start_keras` is the only door: the next test shows for some that nothing else imports a framework."""
    monkeypatch.setattr("keras_vit.cli.inputs.start_keras", None)
    command, words = (BEFORE_KERAS | ALSO_BEFORE_KERAS)[case]
    err = run(*shlex.split(command), code=1).err
    assert words in err and err.count(" or ") <= 6


def test_no_framework_is_imported_to_say_so(program, place):
    _, err, imported = program(*(shlex.split(command) for command, _ in BEFORE_KERAS.values()), code=1)
    said = err.split("keras-vit: ")[1:]
    assert all(words in line for line, (_, words) in zip(said, BEFORE_KERAS.values(), strict=True))
    assert not FRAMEWORKS & set(imported)


def test_embed_checks_its_output_before_the_model_is_loaded(run, place, monkeypatch):
    monkeypatch.setattr("keras_vit.zoo.load", None)  # not called
    for output, words in (("none/x.npz", "no folder"), ("x.csv", "end with .npz")):
        assert words in run("embed", "photos", "-o", output, code=1).err


WRONG_USAGE = """finetune glyphs data --learning-rate nan
finetune glyphs data --dtype nonsense
finetune glyphs data --image-size 32x
finetune glyphs data --randaugment 2 31
evaluate glyphs data --few-shot 0
export glyphs out.tflite --image-size any
embed photos -o x.npz --shard=2/2
embed photos -o x.npz --shard=a/b
predict photo.png --top a
classify --names a --weights b
convert one
nonsense""".splitlines()


@pytest.mark.parametrize("command", WRONG_USAGE)
def test_values_that_make_no_sense_are_wrong_usage(run, command):
    """The flag is named, and where its help is."""
    words = command.split()
    flag = next((word.partition("=")[0] for word in reversed(words) if word.startswith("--")), words[0])
    err = run(*words, code=2).err
    assert (flag in err or "is missing. For example:" in err) and "--help`" in err


def test_no_command_is_wrong_usage():
    assert main([]) == 2


@pytest.mark.parametrize(("wrong", "right"), [("finetun", "finetune"), ("Predict", "predict"), ("exprt", "export")])
def test_a_wrong_command_is_answered_with_the_nearest(run, wrong, right):
    assert f'Unknown command "{wrong}". Did you mean "{right}"?' in run(wrong, "glyphs", code=2).err
    for flag, meant in (("--stps", "--steps"), ("--lr", "--learning-rate")):
        assert f"Did you mean {meant}?" in run("finetune", "glyphs", "photos", flag, "3", code=2).err


@pytest.mark.parametrize(
    "command", ["segment photo.jpg -o x", "depth photo.jpg -o x", "detect photo.jpg", "classify a"]
)
def test_weights_that_are_missing_are_shown_in_an_example(run, command):
    said = run(*command.split(), code=2).err
    assert said.startswith(f"keras-vit: --weights is missing. For example:\n  keras-vit {command.split()[0]} photo.jpg")
    assert "--weights \\\n      hf://" in said
    assert "--weights requires an argument" in run(*command.split(), "--weights", code=2).err


PLACED = {
    "finetune glyphs photos --task segmentation": ("label", "teacher"),
    "finetune glyphs photos": ("file", "ignore", "reduce-zero-label", "annotations", "distill"),
    "evaluate glyphs photos --task segmentation": (
        *("file", "views", "threshold", "few-shot", "knn", "names-from", "image-size", "batch-size", "output"),
        *("report", "annotations"),
    ),
    "evaluate glyphs photos": ("ignore", "annotations", "separator", "seeds", "l2", "templates"),
    "evaluate glyphs photos --few-shot 1": ("views", "threshold", "names-from", "report"),
    "evaluate glyphs photos --knn": ("views", "threshold", "names-from"),
    "embed texts.txt -o x.npz --texts": ("features", "skip-unreadable", "shard"),
    "segment photo.png -o x.png --weights glyphs": ("templates", "mode", "tokenizer"),
    "segment photo.png -o x.png --weights glyphs --names a,b": ("head",),
    "detect photo.png --weights glyphs": ("format", "templates", "tokenizer", "box"),
    "detect photo.png --weights glyphs --names a,b": ("like",),
}
VALUES = {"views": ["flip"], "distill": ["hard"], "mode": ["slide"], "format": ["png"], "shard": ["0/2"]}
VALUES |= {"box": ["1"] * 4, "skip-unreadable": [], "reduce-zero-label": []}


@pytest.mark.parametrize(("line", "flag"), [(line, flag) for line, flags in PLACED.items() for flag in flags])
def test_an_option_that_does_not_apply_is_refused(run, place, line, flag):
    """Elsewhere than where it is declared, it is an error that says the place; before Keras is imported."""
    err = run(*shlex.split(line), f"--{flag}", *VALUES.get(flag, ["1"]), code=1).err
    assert err.startswith(f"keras-vit: --{flag} is for ") and err.endswith(": leave it out.\n")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("It is so.\n\nArguments received by VisionTransformer.call():\n  x"), "It is so."),
        (RuntimeError("one\ntwo"), "one\ntwo"),
        (ValueError(), "ValueError"),
        (FloatingPointError("The loss is nan."), "The loss is nan."),
        (KeyError("name"), "KeyError: 'name'"),
        (OSError("[red]\x1b]0;title\x07\x9b31m.npz"), r"[red]\x1b]0;title\x07\x9b31m.npz"),
        (ValueError("/photos/batch_size=32/a.png"), "/photos/batch_size=32/a.png"),
        (ValueError("Give family='ViT', not models=True or steps=3."), "Give --family ViT, not --models or steps=3."),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_an_error_is_its_first_words(monkeypatch, run, error, message):
    def raise_error(*_):
        raise error

    monkeypatch.setattr("keras_vit.checkpoints.list_weights", raise_error)
    code = 130 if message == "interrupted" else 1
    assert run("list", code=code).err == f"keras-vit: {message}\n"


def test_an_interrupted_run_says_that_its_command_goes_on(monkeypatch, run, place):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_vit.cli.inputs.check_source", interrupt)
    said = "keras-vit: interrupted. The same command goes on with what it has saved.\n"
    assert run("embed", "photos", "-o", "x.npz", code=130).err == said


def test_names_in_a_narrow_table_can_be_copied(monkeypatch, run):
    monkeypatch.setenv("COLUMNS", "80")
    assert "hf://timm/vit_base_patch16_384.augreg_in21k_ft_in1k " in run("list", "B/16").out


def test_where_an_error_came_from_is_shown_when_asked_for(monkeypatch, capsys):
    monkeypatch.setenv("KERAS_VIT_TRACEBACK", "1")
    assert main(["info", "missing.npz"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and err.splitlines()[-1].startswith("keras-vit: ")


def test_a_warning_is_a_line(monkeypatch, capsys):
    def warn(*_):
        warnings.warn("[red]\x1b[31m of ours", stacklevel=2)
        warnings.warn_explicit("of a library", UserWarning, "/usr/lib/python3/library.py", 1)
        raise ValueError("the end")

    monkeypatch.setattr("keras_vit.checkpoints.list_weights", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        main(["list"])
    assert capsys.readouterr().err == "keras-vit: [red]\\x1b[31m of ours\nkeras-vit: the end\n"


@pytest.mark.parametrize("command", ["", *(name for name in APP if not name.startswith("-"))])
def test_help_ends_with_examples_that_are_right_and_shows_defaults(run, command):
    out = run(*command.split(), "--help").out
    _, _, examples = out.partition("\nexamples:\n")
    lines = examples.partition("\n\n")[0].replace("\\\n", "").splitlines()
    assert 1 <= len(lines) <= 3 and "None" not in out
    assert not [line for line in out.splitlines() if len(line) > 80]
    assert not re.findall(r"--\S+ (?:STR|INT|FLOAT|CHOICE|N|X)?(?:\.\.\.)? +│", out)  # each flag has a help
    for line in lines:
        arguments = shlex.split(line)
        assert arguments[0] == "keras-vit" and command in ("", arguments[1])
        APP.parse_args(shlex.split(line.replace("--json", ""))[1:], exit_on_error=False, print_error=False)
    if command == "export":
        assert all(row.suffix in out for row in FORMATS.values())
    if command == "finetune":
        words = " ".join(out.replace("│", "").split())
        assert "updates of the weights (default: 60)" in words and "of the warm-up (default: 0.03)" in words


def test_the_shell_completes():
    script = APP.generate_completion(shell="bash")
    assert all(word in script for word in ("finetune", "reduce-zero-label", "segmentation"))


def test_a_missing_network_is_told_in_one_line(run, photo, monkeypatch):
    import socket

    def unknown(*arguments, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.delenv("KERAS_VIT_OFFLINE")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    message = run("predict", photo, code=1).err
    assert message.count("\n") == 1 and "\\n" not in message
    assert "storage.googleapis.com" in message and "Name or service not known" in message
    assert "the small model `glyphs`" in message


def test_a_reader_that_closes_the_output_of_a_table_is_no_error():
    """As `head` does."""
    command = f"{shlex.quote(sys.executable)} -m keras_vit.cli list; echo $? >&2"
    done = subprocess.run(["sh", "-c", f"{{ {command}; }} | true"], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.stderr.splitlines()[-1] == "0", done.stderr
