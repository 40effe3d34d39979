"""From a model to a file, whose note says what reading it does not tell."""

import itertools
import os
import pathlib
from typing import Any

from keras_vit import models
from keras_vit._arguments import check_choice, warn_caller
from keras_vit.checkpoints.accounting import check_fits_float32, extract
from keras_vit.checkpoints.checkpoint import LAYOUTS, PICTURES, PUBLISHED, note_of
from keras_vit.checkpoints.files import ENDINGS, check_absent, write_npz, write_with_sidecars
from keras_vit.checkpoints.keras_files import DESCRIBED, KERAS_ENDINGS, is_keras_file, note_of_dense, write_keras
from keras_vit.checkpoints.layouts import WRITTEN


def to_checkpoint(
    model: "models.VisionTransformer | models.BiT",
    path: str | os.PathLike[str],
    layout: str | None = None,
    overwrite: bool = False,
    stack: bool = False,
) -> None:
    """Writes the weights of a model as a checkpoint file that other code can read.

    `"timm"`, `"huggingface"` and `"clip"` write a `.safetensors` file and the JSON files that timm, transformers and
    open_clip need; a model that they cannot compute is an error. The other layouts write an `.npz` for the original
    code. It has a note, which the original code ignores: class names, grid and, if they differ from the official code,
    preprocessing, resizing of positions and `pool_padding`.

    It is the exact inverse of `from_checkpoint`: every array of a file comes back bit for bit, under the layout's names
    without a prefix. The same holds for a model that is written to another layout and read again. A class token's
    position is big_vision's first row of the table; where its loader would not know that row, because the number of
    patches is not a square, it is added to the token. vit_jax gives a class token without a position a row of zeros.
    Files hold float32; weights in float64 are rounded, with a warning.

    Args:
        model: A `VisionTransformer`, a `BiT`, or a dense model, which is written for transformers, or with all of its
            config where `path` ends in `.npz` and `layout` is None.
        path: Where the file shall be. For the layouts of PyTorch's models a name that ends in `.safetensors`, or a
            folder, which gets a `model.safetensors`.
        layout: `"vit_jax"`, `"big_vision"`, `"timm"`, `"huggingface"`, `"clip"` (OpenAI's names, for open_clip),
            `"tips"` (the `.npz` of TIPS's authors) or `"tips_scenic"` (Scenic's); for a `BiT`, `"bit_tf"` (the names of
            the published files) or `"bit_bv"` (big_vision's). None for the layout of the official files.
        overwrite: Whether files may be replaced.
        stack: Whether the blocks are stacked along a first axis, as big_vision stores models with `scan=True`.

    Raises:
        TypeError: if `model` is not an image model of this package, or `path` is not a path.
        ValueError: if the layout is unknown, has no place for such a model, another ending or no stacked blocks; if a
            weight is beyond float32's range, or the class names do not fit into a comment (64 KiB).
        OSError: if there is a file already (FileExistsError), no folder above that of `path`, or no room.

    Examples:
        >>> keras_vit.to_checkpoint(model, "back.npz")
        >>> keras_vit.from_checkpoint("back.npz").config == model.config
        True
    """
    if not isinstance(model, (models.VisionTransformer, models.BiT, models.DenseModel)):
        raise TypeError(f"model must be a VisionTransformer or a BiT, but {type(model).__name__} was given.")
    check_fits_float32(model)
    path = os.path.expanduser(path)  # as `load` reads it
    if isinstance(model, models.DenseModel):
        _write_dense(model, pathlib.Path(path), layout, overwrite, stack)
        return
    config = model.config
    layout = PUBLISHED[type(config)] if layout is None else layout
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {list(LAYOUTS)}, but {layout!r} was given.")
    if not isinstance(config, LAYOUTS[layout].config_type):
        names = [name for name, known in LAYOUTS.items() if isinstance(config, known.config_type)]
        raise ValueError(f"A {type(model).__name__} can be written as one of {names}, but layout={layout!r} was given.")
    target, sidecars = _target(pathlib.Path(path), layout), LAYOUTS[layout].sidecars
    note, arrays = note_of(config, LAYOUTS[layout]), extract(model, LAYOUTS[layout], stack)
    if sidecars is None:
        write_npz(target, arrays, note, overwrite)
        return
    warn_of_pictures(note, layout)
    write_with_sidecars(target, arrays, sidecars(config), overwrite=overwrite, note=note)


def warn_of_pictures(note: dict[str, Any], layout: str) -> None:
    """Warns where those for whom a file is written prepare pictures in another way, as its note says."""
    others = {name: value for name, value in note.get("instead_of", {}).items() if name in PICTURES}
    if others:
        given = ", ".join(f"{name}={note[name]!r} (there: {value!r})" for name, value in others.items())
        words = f"The layout {layout!r} has no word for {given}: others prepare pictures with slightly other numbers"
        warn_caller(f"{words}. A note in the file keeps it for keras_vit; with_config(...) takes theirs.")


def check_format(path: str | os.PathLike[str], layout: str | None = None) -> None:
    """Raises ValueError for an unknown layout, and for a path whose ending is not that of the layout's files."""
    if layout is not None:
        check_choice("layout", layout, tuple(LAYOUTS))
        is_npz = LAYOUTS[layout].sidecars is None
        if pathlib.Path(path).suffix not in ((".npz",) if is_npz else (".safetensors", "")):
            kind = "an .npz file" if is_npz else "a .safetensors file, or a folder with one"
            raise ValueError(f"The layout {layout!r} is {kind}, but {str(path)!r} was given.")
        return
    if not str(path).endswith((".npz", *KERAS_ENDINGS)):
        beside = ", ".join(name for name, known in LAYOUTS.items() if known.sidecars is not None)
        raise ValueError(
            f"A model is an .npz, .keras or .weights.h5 file, or with layout=... a .safetensors file or a folder "
            f"({beside}), but {str(path)!r} was given."
        )


def _target(path: pathlib.Path, layout: str) -> pathlib.Path:
    """Returns the file that a path names in a layout: `model.safetensors` in it where it is a folder's."""
    is_npz = layout in LAYOUTS and LAYOUTS[layout].sidecars is None
    own, kind = (".npz", ".npz") if is_npz else (".safetensors", "safetensors")
    if path.suffix != own and path.suffix in (*ENDINGS, ".keras", ".h5"):
        advice = "layout='timm', 'huggingface' or 'clip'" if is_npz else "a folder"
        raise ValueError(
            f"The layout {layout!r} is {kind}, but path={str(path)!r} was given: pass a name that ends in {own}, or "
            f"{advice}."
        )
    return path if is_npz or path.suffix == own else path / "model.safetensors"


def save_model(model: Any, path: str | os.PathLike[str], layout: str | None = None, overwrite: bool = False) -> None:
    """Writes a model in the format that the path's ending names; arguments as in `to_checkpoint`."""
    # A `.weights.h5` written here also says which model it is of, so that `read_keras` can rebuild it.
    check_format(path, layout)
    path = pathlib.Path(path).expanduser()
    if not is_keras_file(path):
        to_checkpoint(model, path, layout, overwrite)
        return
    check_absent(path, overwrite=overwrite)
    write_keras(model, path)


def _write_dense(
    model: "models.DenseModel", path: pathlib.Path, layout: str | None, overwrite: bool, stack: bool
) -> None:
    """Writes a dense model: an `.npz` of our own for that ending without a layout, else for transformers."""
    config = model.config
    if layout is None and path.suffix == ".npz":
        write_npz(path, extract(model, DESCRIBED, stack), note_of_dense(config), overwrite)
        return
    to_write = WRITTEN.get(type(config))
    if to_write is None or layout not in (None, "huggingface"):
        known = "no layout" if to_write is None else "the layout 'huggingface'"
        raise ValueError(
            f"{known} holds a model of the kind {config.model}. Write it as .npz without a layout, or "
            "as .keras: model.save(...)."
        )
    target = _target(path, "huggingface")
    written = to_write(config)
    arrays = itertools.chain(extract(model, written, stack), written.constants(config).items())
    jsons = {} if written.sidecars is None else written.sidecars(config)
    write_with_sidecars(target, arrays, jsons, overwrite=overwrite)
