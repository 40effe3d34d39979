"""The program: what it imports, how it fails, and that no name in what it prints controls a terminal."""

import argparse
import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import types
import warnings
from typing import TypedDict, Unpack

import pytest

from keras_vit.cli import COMMANDS, main
from keras_vit.cli.program import CLASSES, derived, make_parser
from tests.processes import REPOSITORY, environment

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


# As the program, which imports late: every name that a room offers can be had.
LATE = """
import importlib, sys
import keras_vit

assert "keras" not in sys.modules
for room in ("", ".layers", ".models", ".checkpoints", ".data", ".training"):
    room = "keras_vit" + room
    late = importlib.import_module(room)
    late = {name: getattr(late, name) for name in late.__all__}
    assert not hasattr(importlib.import_module(room), "nonsense")
    for name, value in late.items():
        module = getattr(value, "__module__", "keras_vit")
        assert module.startswith("keras_vit"), (room, name, module)
"""


def test_what_is_imported_late_is_there(tmp_path):
    script = tmp_path / "keras-vit"
    script.write_text(LATE)
    subprocess.run([sys.executable, str(script)], env=environment(), check=True, timeout=120)


def test_the_framework_is_silent(program, golden, tmp_path):
    """TensorFlow and oneDNN report their start, CUDA what it lacks; all before anything of ours runs."""
    out, err, imported = program(("convert", golden("mini_token").path, tmp_path / "mini.keras"))
    assert "keras" in imported and out.startswith("Wrote") and err == ""


def test_as_a_module(golden):
    command = [sys.executable, "-m", "keras_vit.cli", "info", str(golden("mini_token").path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["config"]["width"] == 48


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
    "model": ("predict photo.png --weights B17", "Did you mean 'ViT-B/16'? See list_weights() (`keras-vit list`) and"),
    "data": ("finetune glyphs nowhere", "DATA must be an image folder or tfds:NAME, but 'nowhere'"),
    "recipe": ("finetune glyphs photos --recipe finetune/cifar", "Did you mean 'finetune/cifar10'"),
    "layout": ("convert glyphs out.npz --layout nonsense", "layout must be one of"),
    "page": ("inspect glyphs -o nowhere/page.html", "no folder"),
    "calibration": ("export glyphs out.tflite --calibration missing", "missing"),
}
ALSO_BEFORE_KERAS = {
    "file": ("predict photo.png --weights missing.npz", "There is no file or folder missing.npz"),
    "shipped checkpoint": ("predict photo.png --weights glyph", "Did you mean 'glyphs'"),
    "repository": ("predict photo.png --weights me/x", "Did you mean 'hf://me/x'"),
    "address": ("info hf:/me/x", "Did you mean 'hf://me/x'"),
    "nothing recommended": ("predict photo.png --weights H/14", "ViT-H_14"),
    "name to download": ("download imagenet21k/ViT-B_17", "ViT-B_16"),
    "offline": ("download sam/ViT-B_16", "KERAS_VIT_OFFLINE"),
    "recipes of nothing": ("recipes zzz", "zzz"),
    "list of nothing": ("list --models zzz", "zzz"),
    "data that is a file": ("evaluate glyphs photo.png", "It is a file"),
    "crop": ("finetune glyphs photos --crop nonsense", "crop must be one of"),
    "randaugment": ("finetune glyphs photos --randaugment 2 31", "randaugment must"),
    "probe": ("evaluate glyphs digits --seeds 2", "--few-shot"),
    "source to convert": ("convert missing.npz out.keras", "There is no file or folder missing.npz"),
    "target that exists": ("convert glyphs old.keras", "--overwrite"),
    "layout of a folder": ("convert glyphs out", "layout=..."),
    "layout of an ending": ("convert glyphs out.npz --layout timm", ".safetensors file, or a folder"),
    "unknown ending": ("convert glyphs out.foo --layout timm", ".safetensors file, or a folder"),
    "no ending": ("convert glyphs out --layout vit_jax", "is an .npz file, but"),
    "page's ending": ("inspect glyphs -o page.txt", "must end with .html"),
    "suffix": ("export glyphs out.nonsense", "path must end in one of .tflite"),
    "export that exists": ("export glyphs old.keras --format litert", "--overwrite"),
    "pictures to pre-train on": ("pretrain nowhere", "There is no file or folder nowhere"),
    "model to pre-train": ("pretrain photos --weights ViT-S/17", "Did you mean 'ViT-S/16'"),
    "format of one map": ("depth photo.png -o x.png --format npy --weights glyphs", "--format npy is for files in a"),
    "format of figures": ("segment photo.png -o x --plot --format npy --weights glyphs", "leave --format npy out"),
    "masks to evaluate": ("evaluate glyphs nowhere --task segmentation", "There is no file or folder nowhere"),
    "class named twice": ("finetune glyphs photos --class-weight a=1 a=2", "names a class twice"),
    "pictures to embed": ("embed missing -o out.npz", "missing"),
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
    for module in ("files", "images", "training"):
        monkeypatch.setattr(f"keras_vit.cli.{module}.start_keras", None)
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
    for output, words in (("none/x.npz", "no folder"), ("x.csv", "end with .npz"), ("x.parquet", "end with .npz")):
        assert words in run("embed", "photos", "-o", output, code=1).err


WRONG_USAGE = [
    "finetune glyphs data --batch-size 0",
    "finetune glyphs data --learning-rate nan",
    "finetune glyphs data --dtype nonsense",
    "finetune glyphs data --image-size 32x",
    "finetune glyphs data --lora 0",
    "evaluate glyphs data --few-shot 0",
    "export glyphs out.tflite --image-size any",
    "embed photos -o x.npz --shard=2/2",
    "embed photos -o x.npz --shard=a/b",
    "predict photo.png --top a",
    "classify --names a --weights b",
    "convert one",
    "nonsense",
    "",
]


@pytest.mark.parametrize("command", WRONG_USAGE)
def test_values_that_make_no_sense_are_wrong_usage(run, command):
    assert "usage: keras-vit" in run(*command.split(), code=2).err


@pytest.mark.parametrize(("wrong", "right"), [("finetun", "finetune"), ("Predict", "predict"), ("exprt", "export")])
def test_a_wrong_command_is_answered_with_the_nearest(run, wrong, right):
    assert f"there is no command {wrong!r}. Did you mean {right!r}?" in run(wrong, "glyphs", code=2).err


# Options that are derived


class Sizes(TypedDict, total=False):
    """Sizes.

    Attributes:
        image_size: Height and width; None for the model's.
        share: Of `all`. 0.5 is half.
    """

    image_size: int | tuple[int, int] | None
    share: float | None


def derived_from(path: str, *, count: int = 7, deep: bool = False, **sizes: Unpack[Sizes]):
    """Does nothing.

    Args:
        path: A file, such as `"a b"`.
        count: How many,
            in all. None for any.
        deep: Whether it goes down, 5 % a step.

    Returns:
        text: No parameter.
    """


@pytest.mark.parametrize(
    ("names", "given", "wanted"),
    [
        ("path count", ["p"], {"path": "p", "count": None}),
        ("path count deep", ["p", "--count", "3", "--deep"], {"path": "p", "count": 3, "deep": True}),
        ("share", ["--share", "0.5"], {"share": 0.5}),
        ("image_size", ["--image-size", "3x4"], {"image_size": (3, 4)}),
    ],
)
def test_options_come_from_signature_and_docstring(monkeypatch, names, given, wanted):
    module = types.SimpleNamespace(f=derived_from, Sizes=Sizes)
    monkeypatch.setitem(sys.modules, "made_up", module)
    source = "made_up:Sizes" if names in ("share", "image_size") else "made_up:f"
    parser = argparse.ArgumentParser()
    for option in derived(source, names)():
        parser.add_argument(*option.flags, **option.settings)
    assert vars(parser.parse_args(given)) == wanted
    with pytest.raises(SystemExit):
        parser.parse_args([*given, "--count", "none"])


def test_the_help_of_derived_options(monkeypatch):
    monkeypatch.setitem(sys.modules, "made_up", types.SimpleNamespace(f=derived_from, Sizes=Sizes))
    functions = {option.name: option.settings["help"] for option in derived("made_up:f", deep="down")()}
    assert functions == {
        "path": "a file, such as a b",
        "count": "how many, in all (default: 7)",
        "deep": "down",
        "image_size": "height and width (default: the model's)",
        "share": "of all",
    }
    typed = {option.name: option.settings["help"] for option in derived("made_up:Sizes")()}
    assert typed == {"image_size": "height and width (default: the model's)", "share": "of all"}


# Options and what they apply to

PLACED = [(command, option) for command, row in COMMANDS.items() for option in row.options() if option.places]
# What is given where no option of a place applies, and the rest of the command line.
LINES = {
    "finetune": "glyphs photos --task {task}",
    "evaluate": "glyphs photos --task {task}",
    "embed": "texts.txt -o x.npz --texts",
}


@pytest.mark.parametrize(("command", "option"), PLACED, ids=lambda part: getattr(part, "name", part))
def test_an_option_that_does_not_apply_is_refused(run, place, command, option):
    """Elsewhere than where it is declared, it is an error that says the place; before Keras is imported."""
    task = "segmentation" if CLASSES in option.places else "classification"
    line = LINES[command].format(task=task)
    value = [] if option.settings.get("action") in ("store_true", "store_const") else ["1"]
    value = option.settings.get("choices", value)[:1]
    value = ["0/2"] if option.name == "shard" else value
    err = run(command, *line.split(), option.flags[-1], *value, code=1).err
    assert err.startswith(f"keras-vit: {option.flags[-1]} is for ") and err.endswith(": leave it out.\n")


OF_RECIPES = {
    "--task segmentation --crop resize": "MaskAugmentation has no argument crop='resize'",
    "--task segmentation --sampling sqrt": "sampling='sqrt' is for the target 'class', 'multilabel', but",
    "--points 3": "points=3 is for the target 'segments', but the target is 'class'",
}


@pytest.mark.parametrize("words", OF_RECIPES)
def test_a_field_of_a_recipe_that_does_not_apply_is_refused(run, place, words):
    assert OF_RECIPES[words] in run("finetune", "glyphs", "photos", *words.split(), code=1).err


# Messages


@pytest.fixture
def fails(monkeypatch, run):
    """A function that runs a command that raises an error, and gives back what is on standard error."""

    def fail(error, code=1, command="list"):
        def raise_error(options):
            raise error

        monkeypatch.setitem(COMMANDS, command, dataclasses.replace(COMMANDS[command], run=raise_error))
        return run(*shlex.split(f"{command} {'glyphs photos' if command == 'finetune' else ''}"), code=code).err

    return fail


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
    ],
)
def test_an_error_is_its_first_words(fails, error, message):
    assert fails(error, command="finetune") == f"keras-vit: {message}\n"


def test_an_interrupt_is_130(fails):
    assert fails(KeyboardInterrupt(), code=130) == "keras-vit: interrupted\n"


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


# Files that are damaged


@pytest.mark.parametrize(
    "url", ["https://exämple.org/ä b.npz", "https://[/m.npz", "https://x y/m.npz", "https://a:b/m.npz"]
)
def test_a_strange_address_is_named(run, url):
    for command in ("info", "download"):
        assert url[-5:] in run(command, url, code=1).err


# Help


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_examples_that_are_right_and_shows_defaults(run, command):
    out = run(command, "--help").out
    about, _, examples = out.partition("\nexamples:\n")
    lines = examples.replace("\\\n", "").splitlines()
    assert 1 <= len(lines) <= 3 and "None" not in out
    words = [line for line in out.splitlines() if len(line) > 80]
    assert not words, f"longer than a terminal: {words}"
    for line in lines:
        arguments = shlex.split(line)
        assert arguments[:2] == ["keras-vit", command]
        make_parser(COMMANDS, arguments[1:]).parse_args(arguments[1:])
    if command == "finetune":
        words = " ".join(out.split())
        assert "updates of the weights (default: the recipe's; finetune/folder: 60)" in words
        assert "(default: the recipe's; finetune/folder: 0.03)" in words


def test_help_without_a_command_has_examples_that_are_right(run):
    out = run("--help").out
    for line in out.partition("\nexamples:\n")[2].partition("\n\n")[0].splitlines():
        arguments = shlex.split(line)[1:]
        make_parser(COMMANDS, arguments).parse_args(arguments)
    assert not [line for line in out.splitlines() if len(line) > 80]


COMPLETED = {
    "keras-vit fin": {"finetune"},
    "keras-vit finetune glyphs photos --ta": {"--task", "--target"},
    "keras-vit finetune --task seg": {"segmentation"},
    "keras-vit nonsense --": {"--help", "--version"},
}


def test_the_shell_completes(tmp_path):
    """As bash asks: argcomplete's variables, the answer in a file."""
    pytest.importorskip("argcomplete")
    script = f"""
        eval "$({sys.executable} -m argcomplete.scripts.register_python_argcomplete keras-vit)"
        for COMP_LINE in {shlex.join(COMPLETED)}; do
            COMP_POINT=${{#COMP_LINE}} COMP_TYPE=9
            words=($COMP_LINE)
            _python_argcomplete keras-vit "${{words[-1]}}" "${{words[-2]}}"
            echo "${{COMPREPLY[@]}}"
        done
    """
    (tmp_path / "keras-vit").write_text(f"#!{sys.executable}\nfrom keras_vit.cli import main\nmain()\n")
    (tmp_path / "keras-vit").chmod(0o755)
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=variables, timeout=60)
    for line, expected in zip(done.stdout.splitlines(), COMPLETED.values(), strict=True):
        assert expected <= {*line.split()}, (done.stdout, done.stderr)


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
    assert "`--weights glyphs`" in message


def test_a_reader_that_closes_the_output_of_a_table_is_no_error():
    """As `head` does."""
    command = f"{shlex.quote(sys.executable)} -m keras_vit.cli list; echo $? >&2"
    done = subprocess.run(["sh", "-c", f"{{ {command}; }} | true"], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.stderr.splitlines()[-1] == "0", done.stderr
