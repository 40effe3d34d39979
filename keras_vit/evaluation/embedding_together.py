"""One file of features from several processes: each writes a share, and the first one joins them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from keras_vit._devices import here
from keras_vit._processes import Processes


def embed_together(
    model: keras.Model,
    output: Path,
    processes: Processes,
    embed: Callable[..., Any],
    join: Callable[[list[Path], Path], Any],
    overwrite: bool,
) -> None:
    """Writes a file of features; after a kill the shares that are there already are not computed again.

    Args:
        model: The model, on the devices of this process.
        output: The file, on a disk that all processes see.
        processes: Those that share the work.
        embed: Writes features to a path; with `shard`, those of a share.
        join: Joins the files of the shares.
        overwrite: Whether a file at `output` may be replaced.

    Raises:
        ValueError: if the model lies on the devices of several processes.
        ConnectionError: if another process ends before its time.
    """
    if here(model) is not model:
        raise ValueError(
            "The model lies on devices of several processes: load it again, outside of keras.distribution."
        )
    with processes.failing_together():
        exists = processes.from_first(output.exists())
        ending = f"of-{processes.count}{output.suffix}"
        parts = [output.with_name(f"{output.stem}.part-{index}-{ending}") for index in range(processes.count)]
        if not exists or overwrite:
            embed(parts[processes.index], shard=processes.shard)
            processes.from_first()  # all shares are there
            if processes.first:
                join(parts, output)
        elif processes.first:  # says whether it is what would be written
            embed(output)
        processes.from_first()
        parts[processes.index].unlink(missing_ok=True)
