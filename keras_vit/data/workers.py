"""Processes that read image files and make examples of them, where threads of one process would wait for each other."""

import contextlib
import os
import pickle  # noqa: TID251 - nothing is read from files
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_vit.data.augmentation import Transform, draws
from keras_vit.data.examples import Examples, read_example


def _send(message: object, stream: Any) -> None:
    pickle.dump(message, stream, pickle.HIGHEST_PROTOCOL)  # arrays as their bytes, which are not copied
    stream.flush()


def _received(stream: Any) -> Any:
    return pickle.load(stream)  # noqa: S301 - of this program's own process


def is_importable(examples: Examples, transform: Transform) -> bool:
    """Whether a worker can import what makes examples: not what has no name, or is of the program itself."""
    try:
        return b"__main__" not in pickle.dumps((examples.load, examples.annotate, transform))
    except (AttributeError, TypeError, pickle.PicklingError):
        return False


class Worker:
    """A process that reads image files and transforms them: `python -m keras_vit.data.workers`, which runs `main`.

    It imports neither Keras nor the program that started it.
    """

    def __init__(self, examples: Examples, transform: Transform) -> None:
        packages = str(Path(__file__).resolve().parents[2])  # the folder that this package lies in
        path = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH")]))
        # -P: files in the working directory must not hide modules of the same names.
        command = [sys.executable, "-P", "-m", "keras_vit.data.workers"]
        environment = {**os.environ, "PYTHONPATH": path}
        self._process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._first: Any = ([*sys.path], (examples.load, examples.annotate, transform))

    def make(self, requests: Sequence[tuple[Any, Any, int, int]]) -> Iterator[tuple[Any, Any] | None]:
        """Yields picture and target of each request (picture, note, epoch, index), None for one that fails."""
        try:
            for message in self._first:
                _send(message, self._process.stdin)
            self._first = ()
            _send(requests, self._process.stdin)
            for _ in requests:
                yield _received(self._process.stdout)
            return
        except (OSError, EOFError, pickle.UnpicklingError):
            code = self._process.wait()
        reason = f"by signal {-code} (9: the machine ran out of memory)" if code < 0 else f"with status {code}"
        raise RuntimeError(f"A process that decodes images died {reason}. Pass processes=False to use threads.")

    def close(self) -> None:
        """Ends the process, by force where that takes more than ten seconds. A worker may be closed more than once."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # of one that has ended
                pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """The program of a worker process: reads how examples are made, then requests, and writes pictures and targets."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, which then closes the pipe.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What a library prints is not a reply.
    try:
        sys.path += [place for place in _received(sys.stdin.buffer) if place not in sys.path]
        load, annotate, transform = _received(sys.stdin.buffer)
        while True:
            for *request, epoch, index in _received(sys.stdin.buffer):
                try:
                    made = transform(*read_example(load, annotate, *request), draws(transform.seed, epoch, index))
                except Exception:  # the program's as well
                    made = None
                _send(made, replies)
    except (EOFError, pickle.UnpicklingError, BrokenPipeError, ValueError):
        os._exit(0)  # the program has ended, perhaps in a message


if __name__ == "__main__":
    main()
