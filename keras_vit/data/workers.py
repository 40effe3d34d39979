"""Processes that read image files and make examples of them, where threads of one process would wait for each other."""

import contextlib
import os
import pickle  # noqa: TID251 - nothing is read from files
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.data.augmentation import Transform, draws
from keras_vit.data.examples import Examples, read_example


def _received(stream: Any) -> Any:
    return pickle.load(stream)  # noqa: S301 - of this program's own process


class Worker:
    """A process that reads image files and transforms them: `python -m keras_vit.data.workers`, which runs `main`.

    It imports neither Keras nor the program that started it. Messages are pickled; the pixels follow as bytes.
    """

    def __init__(self, examples: Examples, transform: Transform) -> None:
        packages = str(Path(__file__).resolve().parents[2])  # the folder that this package lies in
        path = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH")]))
        # -P: files in the working directory must not hide modules of the same names.
        command = [sys.executable, "-P", "-m", "keras_vit.data.workers"]
        environment = {**os.environ, "PYTHONPATH": path}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._requests: Any = self._process.stdin
        self._replies: Any = self._process.stdout
        self._send((examples.load, examples.annotate, transform))

    def make(
        self, requests: Sequence[tuple[Any, Any, int, int]], slots: Sequence[int], images: Any, targets: Any
    ) -> list[int]:
        """Fills slots of images and targets, and returns the places of the requests that could not be met."""
        self._send(requests)
        return [i for i, slot in enumerate(slots) if not self._receive(slot, images, targets)]

    def _receive(self, slot: int, images: Any, targets: Any) -> bool:
        try:
            header = _received(self._replies)
        except (EOFError, pickle.UnpicklingError):
            self._ended()
        if header is None:
            return False
        shape, dtype, targets[slot] = header
        pixels = images[slot] if isinstance(images, np.ndarray) else np.empty(shape, dtype)
        if self._replies.readinto(pixels.data.cast("B")) != pixels.nbytes:
            self._ended()
        images[slot] = pixels
        return True

    def close(self) -> None:
        """Ends the process, by force where that takes more than ten seconds. A worker may be closed more than once."""
        for pipe in (self._requests, self._replies):
            with contextlib.suppress(OSError):  # of one that has ended
                pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: object) -> None:
        try:
            pickle.dump(message, self._requests)
            self._requests.flush()
        except OSError:
            self._ended()

    def _ended(self) -> None:
        code = self._process.wait()
        reason = f"by signal {-code} (9: the machine ran out of memory)" if code < 0 else f"with status {code}"
        raise RuntimeError(f"A process that decodes images died {reason}. Pass processes=False to use threads.")


def main() -> None:
    """The program of a worker process: reads how examples are made, then requests, and writes pictures and targets."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, which then closes the pipe.
    replies = os.fdopen(os.dup(1), "wb", buffering=1 << 16)
    os.dup2(2, 1)  # What a library prints is not a reply.
    try:
        load, annotate, transform = _received(sys.stdin.buffer)
        while True:
            for *request, epoch, index in _received(sys.stdin.buffer):
                try:
                    made = transform(*read_example(load, annotate, *request), draws(transform.seed, epoch, index))
                    image = np.ascontiguousarray(made[0], None if transform.shape is None else "float32")
                except Exception:  # the program's as well
                    pickle.dump(None, replies)
                    continue
                pickle.dump((image.shape, image.dtype.str, made[1]), replies)
                replies.write(image.data.cast("B"))
            replies.flush()
    except (
        EOFError,
        pickle.UnpicklingError,
        BrokenPipeError,
        ValueError,
    ):  # the program has ended, perhaps in a message
        os._exit(0)


if __name__ == "__main__":
    main()
