"""From a model to a file, whose note says what reading it does not tell."""

import itertools
import os
import pathlib
from typing import Any

from keras_vit import models
from keras_vit._arguments import check_choice, check_type, warn_caller
from keras_vit._files import expanded_path
from keras_vit.checkpoints.accounting import Layout, check_fits_float32, extract
from keras_vit.checkpoints.checkpoint import LAYOUTS, PICTURES, PUBLISHED, note_of
from keras_vit.checkpoints.files import (
    ENDINGS,
    check_absent,
    is_keras_file,
    write_npz,
    write_safetensors,
    write_with_sidecars,
)
from keras_vit.checkpoints.keras_files import DESCRIBED, described, write_keras
from keras_vit.checkpoints.layouts import WRITTEN, dense
from keras_vit.models import DenseConfig


def to_checkpoint(
    model: "models.VisionTransformer | models.BiT",
    path: str | os.PathLike[str],
    layout: str | None = None,
    overwrite: bool = False,
    stack: bool = False,
) -> None:
    """Writes a model as a checkpoint file for `load`, timm, transformers, open_clip or the original code, in float32.

    Without a layout, a path that ends in `.safetensors` is one file with the whole config, for any model. PyTorch's
    layouts are a `.safetensors` with its JSON files, the others an `.npz`. `load` reads them bit for bit. TypeError or
    ValueError if an argument is wrong, or the layout lacks something.

    Args:
        model: A `VisionTransformer`, a `BiT`, a dense model (segmentation, depth, detection), or a `TextEncoder`.
        path: The file to write, or for the PyTorch layouts also a folder, which gets a `model.safetensors`.
        layout: `"timm"`, `"huggingface"` (transformers), `"clip"` (open_clip), `"vit_jax"`, `"big_vision"`, `"tips"`
            (the authors' PyTorch code), `"tips_scenic"`, `"pe"` (Meta); for a `BiT` `"bit_tf"` or `"bit_bv"`
            (big_vision). None: a file with the whole config for `.safetensors`, and for an `.npz` of a dense model;
            for other paths the official files' layout, or transformers' for dense models.
        overwrite: Whether to replace existing files; otherwise these are a FileExistsError.
        stack: Whether to stack the blocks along a first axis, as big_vision does with `scan=True`.
    """
    check_type("model", model, (models.ImageModel, models.TextEncoder), "a model of keras_vit")
    check_fits_float32(model)
    config, file = model.config, pathlib.Path(expanded_path(path))
    if layout is None and (file.suffix == ".safetensors" or file.suffix == ".npz" and isinstance(config, DenseConfig)):
        write = write_npz if file.suffix == ".npz" else write_safetensors
        write(file, extract(model, DESCRIBED, stack), described(config), overwrite)
        return
    known = _layout_for(config, layout)
    target, note = _target(file, known), note_of(config, known)
    arrays = itertools.chain(extract(model, known, stack), known.constants(config).items())
    if known.sidecars is None:
        write_npz(target, arrays, note, overwrite)
        return
    warn_of_pictures(note, known.name)
    write_with_sidecars(target, arrays, known.sidecars(config), overwrite=overwrite, note=note)


def _layout_for(config: Any, layout: str | None) -> Layout:
    """Returns the layout in which a model is written; ValueError for an unknown one, and one of other models."""
    fitting = {name: known for name, known in LAYOUTS.items() if isinstance(config, known.config_type)}
    if isinstance(config, DenseConfig):
        written = (
            dense.DEPTH_ANYTHING_3 if getattr(config, "design", "") == "depth_anything_3" else WRITTEN.get(type(config))
        )
        fitting = {} if written is None else {"huggingface": written}
    chosen = PUBLISHED.get(type(config), "huggingface") if layout is None else layout
    if chosen not in fitting:
        advice = "Without a layout, a path that ends in .safetensors takes any model, and so does model.save(...)."
        what = f"layout must be one of {[*fitting]} for a {config.model}, but {layout!r} was given"
        raise ValueError(f"{what if fitting else f'No layout of others takes a {config.model}'}. {advice}")
    return fitting[chosen]


def warn_of_pictures(note: dict[str, Any], layout: str) -> None:
    """Warns where those for whom a file is written prepare pictures in another way, as its note says."""
    others = {name: value for name, value in note.get("instead_of", {}).items() if name in PICTURES}
    if others:
        given = ", ".join(f"{name}={note[name]!r} but uses {value!r}" for name, value in others.items())
        warn_caller(
            f"The layout {layout!r} cannot store {given}: other libraries prepare pictures a little differently. "
            "keras_vit reads the true value from the file."
        )


def check_format(path: str | os.PathLike[str], layout: str | None = None) -> None:
    """Raises ValueError for an unknown layout, and for a path whose ending is not that of the layout's files."""
    if layout is not None:
        check_choice("layout", layout, tuple(LAYOUTS))
        is_npz = LAYOUTS[layout].sidecars is None
        if pathlib.Path(path).suffix not in ((".npz",) if is_npz else (".safetensors", "")):
            kind = "an .npz file" if is_npz else "a .safetensors file, or a folder with one"
            raise ValueError(f"The path must be {kind} for the layout {layout!r}, but {str(path)!r} was given.")
        return
    if not (str(path).endswith((".npz", ".safetensors")) or is_keras_file(path)):
        beside = ", ".join(name for name, known in LAYOUTS.items() if known.sidecars is not None)
        raise ValueError(
            f"The path must end in .npz, .safetensors, .keras or .weights.h5, but {str(path)!r} was given. For a "
            f"folder, pass layout= one of {beside}."
        )


def _target(path: pathlib.Path, layout: Layout) -> pathlib.Path:
    own = ".npz" if layout.sidecars is None else ".safetensors"
    if path.suffix != own and path.suffix in (*ENDINGS, ".keras", ".h5"):
        raise ValueError(f"path must end in {own} for the layout {layout.name!r}, but {str(path)!r} was given.")
    return path if own in (".npz", path.suffix) else path / "model.safetensors"


def save_model(model: Any, path: str | os.PathLike[str], layout: str | None = None, overwrite: bool = False) -> None:
    """Writes a model in the format of `layout`, or of the path's ending; arguments as in `to_checkpoint`."""
    # A `.weights.h5` written here also says which model it is of, so that `read_keras` can rebuild it.
    check_format(path, layout)
    path = pathlib.Path(expanded_path(path))
    if not is_keras_file(path):
        to_checkpoint(model, path, layout, overwrite)
        return
    check_absent(path, overwrite=overwrite)
    write_keras(model, path)
