"""Worker processes that decode and transform image files, for machines on which threads wait for each other.

A worker runs `python -m keras_vit.data.worker`. It imports neither Keras nor a framework nor the program that started
it, so that it starts in a fraction of a second, and the program needs no `if __name__ == "__main__":`. Requests are
lines of JSON, answers are bytes; nothing is pickled.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_vit.data.augmentation import ImageTransform
from keras_vit.preprocessing import load_image

BAD, FLOAT, WHOLE = b"\0", b"\1", b"\2"  # what an answer begins with: no image, float32, uint8
LAST_WORDS = 10  # seconds that a worker may take to end
_PACKAGES = str(Path(__file__).resolve().parents[2])  # the folder that the package lies in


class Worker:
    """A process that makes images.

    Args:
        transform: What it does to the images.

    Raises:
        OSError: if there can be no other process.
    """

    def __init__(self, transform: ImageTransform) -> None:
        path = os.pathsep.join(filter(None, [_PACKAGES, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "keras_vit.data.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._send(transform.to_dict())

    def make(self, requests: Sequence[tuple[str, int, int]], images: np.ndarray) -> list[int]:
        """Make images.

        Args:
            requests: Path, epoch and index of each.
            images: float32 `(len(requests), height, width, 3)`, to be filled.

        Returns:
            The places of those that cannot be made.

        Raises:
            RuntimeError: if the process has ended.
        """
        self._send(requests)
        bad = []
        for place in range(len(requests)):
            kind = self._process.stdout.read(1)
            if kind == FLOAT:
                self._receive(images[place])
            elif kind == WHOLE:
                whole = np.empty(images.shape[1:], "uint8")
                self._receive(whole)
                images[place] = whole
            elif kind == BAD:
                bad.append(place)
            else:
                self._ended()
        return bad

    def close(self) -> None:
        """End the process. A worker may be closed more than once."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # of one that has ended
                pipe.close()
        try:
            self._process.wait(LAST_WORDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: object) -> None:
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._ended()

    def _receive(self, array: np.ndarray) -> None:
        if self._process.stdout.readinto(memoryview(array).cast("B")) != array.nbytes:
            self._ended()

    def _ended(self) -> None:
        code = self._process.wait()
        reason = f"by signal {-code} (9 is what a machine without memory sends)" if code < 0 else f"with status {code}"
        raise RuntimeError(f"A worker process that decodes images ended {reason}. processes=False does without.")


def main() -> None:
    """Answer requests until there are no more: what a worker process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, which then closes the pipe.
    answers = os.fdopen(os.dup(1), "wb", buffering=1 << 16)
    os.dup2(2, 1)  # What a library prints is no answer.
    requests = sys.stdin.buffer
    try:
        transform = ImageTransform.from_dict(json.loads(requests.readline()))
        for line in requests:
            for path, epoch, index in json.loads(line):
                try:
                    image = np.ascontiguousarray(transform(load_image(path), epoch, index))
                except Exception:  # The program reads it again, and says what is wrong.
                    answers.write(BAD)
                    continue
                answers.write(WHOLE if image.dtype == np.uint8 else FLOAT)
                answers.write(memoryview(image).cast("B"))
            answers.flush()
    except (BrokenPipeError, ValueError):  # The program has ended, in the middle of a line perhaps.
        os._exit(0)


if __name__ == "__main__":
    main()
