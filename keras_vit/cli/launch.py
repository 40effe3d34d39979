"""`keras-vit launch`: the same command in several processes on this machine."""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

from keras_vit._text import printable
from keras_vit.cli.command import COUNT, Answer

HELP = "Runs a command in several processes on this machine, which share its work."
NEEDS_KERAS = False
COMMANDS = ("finetune", "evaluate", "embed")  # those that processes can share
GRACE = 20  # seconds for the others to end by themselves, once one has failed
_POLL = 0.1
_TAIL = 2000  # bytes of what a process has said last
LOST = "Another of the processes"  # what those say that failed because another one did


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    parser.epilog = (
        "Needs the backend jax or torch. The batch is shared: with the same arguments the losses are those of one "
        "process. A process of torch takes the GPU of its number, one of JAX likewise. On several machines: torchrun, "
        "Slurm (docs/distribution.md)."
    )
    parser.add_argument("processes", metavar="N", type=COUNT, help="how many processes, usually one for each GPU")
    parser.add_argument(
        "job",
        metavar="COMMAND",
        nargs=argparse.REMAINDER,
        help=f"{', '.join(COMMANDS)} with its arguments, or a Python program (a .py file) with its own",
    )


def run(options: argparse.Namespace) -> Answer:
    """Starts the processes, and waits until all have ended."""
    job = options.job[1:] if options.job[:1] == ["--"] else options.job
    if not job or (job[0] not in COMMANDS and not job[0].endswith(".py")):
        raise ValueError(
            f"launch takes {', '.join(COMMANDS)} or a Python program (a .py file) after the number of processes, but "
            f"{job[0]!r} was given."
            if job
            else "launch needs a command: keras-vit launch 2 finetune ..."
        )
    program = job if job[0].endswith(".py") else ["-m", "keras_vit.cli", *job]
    codes, reason = launch([sys.executable, *program], options.processes)
    if reason is not None:
        print(f"keras-vit: {reason}", file=sys.stderr)
    return Answer({"processes": options.processes, "exit_codes": codes}, None, ok=not any(codes))


def launch(command: Sequence[str], count: int) -> tuple[list[int], str | None]:
    """Runs a command in several processes, in which the variables of torchrun say which of them each one is.

    Process 0 prints as if it were alone. What the others say is shown only if one of them is the reason of a failure.
    When one fails, the others get `GRACE` seconds to end by themselves, and are killed then.

    Args:
        command: The program and its arguments.
        count: How many processes.

    Returns:
        Their exit codes (negative: the signal that killed it), and which of them is the reason of a failure, in words.
    """
    with contextlib.ExitStack() as stack:
        voices = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        processes = stack.enter_context(_started(command, count, voices))
        failed: list[int] = []
        deadline = None
        while any(process.poll() is None for process in processes):
            for index, process in enumerate(processes):
                if process.poll() and index not in failed:
                    failed.append(index)
                    deadline = deadline or time.monotonic() + GRACE
            if deadline is not None and time.monotonic() > deadline:
                break  # they are killed on the way out
            time.sleep(_POLL)
        codes = [process.poll() for process in processes]
        failed += [index for index, code in enumerate(codes) if code and index not in failed]
        codes = [-signal.SIGKILL if code is None else code for code in codes]
        return codes, _reason(failed, codes, voices) if failed else None


@contextlib.contextmanager
def _started(command: Sequence[str], count: int, voices: Sequence[IO[bytes]]) -> Iterator[list[subprocess.Popen[Any]]]:
    """The processes; none of them lives longer than the `with` statement."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shared = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {"OMP_NUM_THREADS": str(max(1, cores // count)), **os.environ}
    processes: list[subprocess.Popen[Any]] = []
    terminated = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        for index in range(count):
            own = {**shared, "RANK": index, "LOCAL_RANK": index}
            processes.append(
                subprocess.Popen(
                    command,
                    env=environment | {name: str(value) for name, value in own.items()},
                    stdout=subprocess.DEVNULL if index else None,
                    stderr=voices[index] if index else None,
                )
            )
        yield processes
    finally:
        signal.signal(signal.SIGTERM, terminated)
        for process in processes:
            process.kill()
            process.wait()


def _raise_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _reason(failed: Sequence[int], codes: Sequence[int], voices: Sequence[IO[bytes]]) -> str:
    """Which process is to blame, and what it has said if nobody has heard it."""
    words = {}
    for index in failed:
        voices[index].seek(max(0, voices[index].seek(0, os.SEEK_END) - _TAIL))
        words[index] = voices[index].read().decode("utf-8", "replace").strip()
    # A process that was killed is the reason, then one that failed for reasons of its own.
    killed = [index for index in failed if codes[index] < 0]
    own = [index for index in failed if LOST not in words[index]]
    first = (killed or own or failed)[0]
    if codes[first] < 0:
        how = f"was ended by {signal.Signals(-codes[first]).name}"
    else:
        how = f"failed with exit code {codes[first]}"
    text = f"process {first} of {len(codes)} {how}, so all have ended."
    said = "\n".join(printable(line) for line in words[first].splitlines()[-20:])
    hint = "Start it again in the same way: a run with an output folder goes on from its last checkpoint."
    return "\n".join(filter(None, [text, said, hint if codes[first] < 0 else ""]))
