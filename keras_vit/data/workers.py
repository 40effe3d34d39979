"""Worker processes that read image files and transform them, for machines of many cores."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.data.augmentation import ImageTransform

BAD, GOOD = b"\0", b"\1"  # what a reply of a worker begins with


class Worker:
    """A process that reads image files and transforms them: `python -m keras_vit.data.workers`.

    It imports neither Keras nor the program that started it. Requests are lines of JSON, replies are bytes.
    """

    def __init__(self, transform: ImageTransform) -> None:
        """Starts the process, and sends it the transform that it applies to every image."""
        packages = str(Path(__file__).resolve().parents[2])  # the folder that this package lies in
        path = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH")]))
        # -P: files in the working directory must not hide modules of the same names.
        command = [sys.executable, "-P", "-m", "keras_vit.data.workers"]
        environment = {**os.environ, "PYTHONPATH": path}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._requests: Any = self._process.stdin
        self._replies: Any = self._process.stdout
        self._send(dataclasses.asdict(transform))

    def make(self, requests: Sequence[tuple[str, int, int]], images: np.ndarray) -> list[int]:
        """Fills float32 images `(requests, height, width, 3)` from (path, epoch, index); returns those of bad ones.

        Raises RuntimeError if the process has ended.
        """
        self._send(requests)
        bad = []
        for place, image in enumerate(images):
            reply = self._replies.read(1)
            if reply == BAD:
                bad.append(place)
            elif reply != GOOD or self._replies.readinto(image.data.cast("B")) != image.nbytes:
                self._ended()
        return bad

    def close(self) -> None:
        """End the process. A worker may be closed more than once."""
        for pipe in (self._requests, self._replies):
            with contextlib.suppress(OSError):  # of one that has ended
                pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: object) -> None:
        """Sends a line of JSON to the process; RuntimeError if it has ended."""
        try:
            self._requests.write(json.dumps(message).encode() + b"\n")
            self._requests.flush()
        except OSError:
            self._ended()

    def _ended(self) -> None:
        """Raises the RuntimeError of a process that has ended."""
        code = self._process.wait()
        reason = f"by signal {-code} (9 is what a machine without memory sends)" if code < 0 else f"with status {code}"
        raise RuntimeError(f"A worker process that decodes images ended {reason}. processes=False does without.")


def main() -> None:
    """Reads and transforms the images that are asked for, until there are no more requests: a worker's program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, which then closes the pipe.
    replies = os.fdopen(os.dup(1), "wb", buffering=1 << 16)
    os.dup2(2, 1)  # What a library prints is no reply.
    requests = sys.stdin.buffer
    try:
        transform = ImageTransform.from_dict(json.loads(requests.readline()))
        for line in requests:
            for path, epoch, index in json.loads(line):
                try:
                    image = np.ascontiguousarray(transform(transform.read(path), epoch, index), "float32")
                except Exception:  # The program reads it again, and says what is wrong.
                    replies.write(BAD)
                    continue
                replies.write(GOOD)
                replies.write(image.data.cast("B"))
            replies.flush()
    except (BrokenPipeError, ValueError):  # The program has ended, in the middle of a line perhaps.
        os._exit(0)


if __name__ == "__main__":
    main()
