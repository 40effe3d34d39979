"""What the program imports before it has to: no framework for what needs none. Nothing here knows a backend."""

import os
import signal
import subprocess
import sys

import pytest

from tests.processes import REPOSITORY, environment

pytestmark = pytest.mark.once

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
# Instead of Keras: what happens while it is imported.
INTERRUPTED = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)"
TURNED_INTO_ANOTHER_ERROR = f"""
try:
    {INTERRUPTED.replace(chr(10), chr(10) + "    ")}
except KeyboardInterrupt:
    raise ImportError("initialization failed")
"""

LIGHT = {
    "help": ("--help",),
    "help of a command": ("export", "--help"),
    "version": ("--version",),
    "list": ("list", "B/16"),
    "list of variants": ("list", "--models"),
    "recipes": ("recipes", "cifar"),
    "plan": ("plan", "ViT-H/14", "--devices", "8"),
    "info": ("info", "{npz}"),
    "info of a name": ("info", "sam/ViT-B_16"),
    "info of the one that comes along": ("info", "glyphs"),
    "download": ("download", "{npz}"),
}


@pytest.mark.parametrize("case", LIGHT)
def test_no_framework_for_what_needs_none(program, golden, case):
    npz = golden("mini_token").path
    out, err, imported = program(*(argument.format(npz=npz) for argument in LIGHT[case]))
    assert imported == []
    assert out and err == ""


def test_what_is_imported_late_is_there(program, tmp_path):
    script = tmp_path / "keras-vit"
    script.write_text(LATE)
    variables = {**program.environment, "PYTHONPATH": environment()["PYTHONPATH"]}
    subprocess.run([sys.executable, str(script)], env=variables, check=True, timeout=120)


@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
    reason="a shell has started the tests in the background, where interrupts are ignored, and children inherit that",
)
@pytest.mark.parametrize("keras", [INTERRUPTED, TURNED_INTO_ANOTHER_ERROR])
def test_an_interrupt_while_importing_is_130(program, tmp_path, keras):
    (tmp_path / "keras.py").write_text(keras)
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    out, err, _ = program("demo", code=130, PYTHONPATH=path)
    assert (out, err) == ("", "keras-vit: interrupted\n")


def test_an_unknown_backend_is_one_line(program):
    out, err, _ = program("demo", code=1, KERAS_BACKEND="foo")
    assert out == "" and err == "keras-vit: KERAS_BACKEND must be one of tensorflow, jax, torch, but it is 'foo'.\n"
