"""From a checkpoint file to the plan by which it is read and to a model; and from a model to a file."""

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import Any, Literal

import numpy as np

from keras_vit import layers, models
from keras_vit._arguments import Code, Message, check_choice, printable, warn_caller
from keras_vit._terminal import ProgressBar, megabytes
from keras_vit.checkpoints.accounting import (
    Layout,
    Plan,
    Remark,
    check_arrays,
    check_fits_float32,
    check_like,
    extract,
    fill,
    like_of_options,
    listed,
    plain_values,
    settle,
)
from keras_vit.checkpoints.files import (
    Sidecars,
    check_absent,
    open_file,
    read_sidecars,
    weight_files,
    weights_in,
    write_npz,
    write_with_sidecars,
)
from keras_vit.checkpoints.keras_files import DESCRIBED, KERAS_ENDINGS, is_keras_file, note_of_dense, write_keras
from keras_vit.checkpoints.layouts import DENSE, FOREIGN, FOREIGN_TYPES, LAYOUTS, WRITTEN, clip
from keras_vit.checkpoints.stored_array import ArrayFile
from keras_vit.models import BiTConfig, ModelConfig, ViTConfig, pair, variant_of
from keras_vit.models.dense_config import DepthConfig
from keras_vit.models.sizes import describe

# The layout of the published files of each family.
PUBLISHED: dict[type[ModelConfig], str] = {ViTConfig: "vit_jax", BiTConfig: "bit_tf"}
# What makes numbers official: they are those of vit_jax and big_vision, whoever has published the weights.
NUMERICS = ("official", "publisher")
OFFICIAL = (
    *("gelu", "layer_norm_epsilon", "interpolation", "stem_epsilons"),
    *("pixel_mean", "pixel_std", "resize", "crop_ratio", "crop_rounding", "filter"),
)
# What no array tells: the note of an `.npz` says it where it is not as usual.
_NOTED = ("class_names", "pool_padding", "interpolation", *OFFICIAL[4:], "trim")
PROGRESS_FROM = 200 * 2**20  # bytes of a file whose loading shows a progress bar


def open_checkpoint(
    path: str | os.PathLike[str],
    grid_size: tuple[int, int] | None = None,
    image_size: int | tuple[int, int] | None = None,
    heads: int | None = None,
    architecture: str | None = None,
    numerics: str | None = None,
    head: pathlib.Path | None = None,
    max_depth: float | str | None = None,
    like: str | None = None,
) -> Plan:
    """Returns the plan by which a checkpoint file is read: its layout, config and arrays. No weight is read.

    The arguments are those of `keras_vit.load`, except that `head` is a file. `image_size` is a size that the model may
    have been trained at, which tells the grid where the number of patches is no square. What the arrays do not tell is
    taken from the JSON files beside the file, else from `like`, else from the defaults of its family.

    Raises FileNotFoundError or IsADirectoryError where there is no file, other OSErrors where it cannot be read,
    ValueError if it is damaged or of no known format or layout; TypeError or ValueError for an argument of a wrong type
    or value, or that such a file does not take. Warns of deprecated arguments.
    """
    if numerics is not None:
        check_choice("numerics", numerics, NUMERICS)
    stated: dict[str, Any] = {"like": like_of_options(like, architecture, heads), "heads": heads}
    stated["grid_size"] = None if grid_size is None else pair("grid_size", grid_size)
    stated["image_size"] = None if image_size is None else pair("image_size", image_size)
    if head is None:
        return _plan(path, numerics, max_depth=max_depth, **stated)
    backbone = _plan(path, None, **stated)
    return _plan(head, None, image_size=stated["image_size"], max_depth=max_depth, backbone=backbone)


def _plan(path: str | os.PathLike[str], numerics: str | None, **stated: Any) -> Plan:
    """Returns the plan of the first layout that recognises a file, completed by the user's options and by its note.

    `stated` are fields of `Sidecars`: the user's options, and for the file of a head the plan of its backbone.

    Raises FileNotFoundError or IsADirectoryError where there is no file, other OSErrors where it cannot be read,
    ValueError if it is damaged, no layout recognises it, or arrays, note and options contradict each other; TypeError
    for what is no path.
    """
    file, source = open_file(path), str(path)
    sidecars = read_sidecars(path, name=source, note=file.note, container=file.container, **stated)
    try:
        plan = _plan_of_dense(file, sidecars)
    except ValueError as error:
        raise ValueError(f"{path} is no dense model that is known here: {error}") from error
    if plan is not None:
        if sidecars.like is not None:
            check_like(plan.stored, sidecars.like, ("heads",), source)
        return _with_outside(plan, file)
    if sidecars.max_depth is not None:
        raise ValueError(f"{path} holds no depth model: leave max_depth={sidecars.max_depth!r} out.")
    if sidecars.backbone is not None:
        raise ValueError(f"head={source!r} holds no head of a known kind. Its arrays are: {listed(list(file))}.")
    grid = sidecars.grid_size or file.grid_size
    layout = next((layout for layout in _in_order(file, sidecars) if layout.recognise(file, sidecars)), None)
    if layout is None:
        words = f"holds arrays, but is not a checkpoint of a known layout ({', '.join(LAYOUTS)})"
        raise ValueError(f"{file.path} {words}. Its arrays are: {listed(list(file))}.")
    try:
        plan = layout.plan(file, dataclasses.replace(sidecars, grid_size=grid))
    except ValueError as error:
        raise ValueError(f"{path} is no model of the layout {layout.name!r}: {error}") from error
    heads = getattr(plan.stored, "heads", None)
    if plan.layout.settled_by is None and sidecars.heads not in (None, heads):
        raise ValueError(f"heads={sidecars.heads} was given, but the arrays of {source} tell that it has {heads}.")
    if sidecars.like is not None:
        plan = settle(plan, sidecars.like, source)
    plan = _with_outside(plan, file)
    if grid is None and sidecars.image_size is not None and not plan.is_grid_known:
        grid_at_size = plan.stored.replace(image_size=sidecars.image_size).grid_size
        grid = grid_at_size if np.prod(grid_at_size) == np.prod(plan.stored.grid_size) else None
    if grid is not None:
        plan = _with_grid(plan, grid, source)
    plan = _with_note(plan, file.note, source)
    return _with_official_numbers(plan, source) if numerics == "official" else plan


def _plan_of_dense(file: ArrayFile, sidecars: Sidecars) -> Plan | None:
    """Returns the plan of a dense model (segmentation or depth); None for a file of another model.

    Raises ValueError for a dense model of an unknown kind, or damaged, and for options that it does not take; OSError
    if the file cannot be read.
    """
    layout = DESCRIBED if "model" in file.note else None
    if layout is None:
        _refuse_foreign(file, sidecars)
        layout = next((layout for layout in DENSE if layout.recognise(file, sidecars)), None)
    if layout is None:
        return None
    plan = layout.plan(file, sidecars)
    if sidecars.max_depth is not None and not isinstance(plan.stored, DepthConfig):
        raise ValueError(f"it returns no depth: leave max_depth={sidecars.max_depth!r} out.")
    return plan


def _with_outside(plan: Plan, file: ArrayFile) -> Plan:
    """Returns the plan with the arrays outside of the dict that holds the model as unused, and a remark about them."""
    if not file.outside:
        return plan
    example = printable(repr(file.outside[0]), 200)
    remark = Remark(f"{len(file.outside)} arrays outside of {file.container!r} are not part of it: {example}")
    return dataclasses.replace(plan, unused=[*plan.unused, *file.outside], warnings=[*plan.warnings, remark])


def _refuse_foreign(names: Collection[str], sidecars: Sidecars) -> None:
    """Raises ValueError for the arrays, or the config.json, of models that are `FOREIGN`."""
    kind = str(sidecars.config.get("model_type"))
    titles = [title for start, title in FOREIGN.items() if any(name.startswith(start) for name in names)]
    titles += [title for start, title in FOREIGN_TYPES.items() if kind.startswith(start)]
    if titles:
        raise ValueError(
            f"it holds {titles[0]}, which is not read. Of models for segmentation and depth these are: EoMT, linear "
            "heads of DINOv2 and DINOv3, DPT heads of DINOv2 and Depth Anything."
        )


def _in_order(names: Collection[str], sidecars: Sidecars) -> list[Layout]:
    """Returns the layouts in the order in which they are tried: first those whose JSON files lie beside.

    Names with slashes are Flax's, which has no such files.
    """
    first = []
    if not any("/" in name for name in names):
        first += ["clip"] if sidecars.open_clip else []
        # A TIPS is told from a DINOv2 with one register by transformers' config.json, or the ending .npz.
        first += ["timm"] if sidecars.config.get("architecture") else ["tips"]
        first += ["huggingface"] if sidecars.config else []
    return [LAYOUTS[name] for name in dict.fromkeys([*first, *LAYOUTS])]


def load_model(
    path: str | os.PathLike[str],
    plan: Plan,
    config: ModelConfig,
    *,
    keep_head: bool = True,
    input_tensor: Any = None,
    name: str | None = None,
    dtype: Any = None,
) -> "models.VisionTransformer | models.BiT":
    """Returns a new model of `config`, filled from the file at `path` by its plan, each weight once.

    `config` may differ from `plan.config` in what is not stored, in the image size (position embeddings are resized),
    and in leaving out the head or the pre-logits. The head is new and zero unless `keep_head`. Warns of assumptions,
    of a head of zeros and of class names that were left out.

    Raises ValueError if arrays are missing, damaged or left over, the grid of the position embeddings or what the model
    computes is not known, `config` has other tokens than a Mixer's file, `input_tensor` does not fit the model or
    `dtype` is unknown; OSError if the file cannot be read.
    """
    source = str(path)
    check_arrays(plan, source)
    if not plan.is_grid_known:
        words = f"are for {np.prod(plan.stored.grid_size)} patches, which is no square"
        advice = "Pass the image_size that it was trained at, or grid_size=(rows, columns)."
        raise ValueError(f"The position embeddings of {source} {words}. {advice}")

    if isinstance(config, ViTConfig) and config.tokens_mlp_width is not None:
        models.check_tokens(plan.stored, config)
    _warn_of_choices(plan, config, source)

    def convert(path: str, values: np.ndarray) -> np.ndarray:
        """Returns position embeddings resized to the grid of `config`, and other values as they are."""
        if path != "position_embedding/table" or config.grid_size == plan.stored.grid_size:
            return values
        values = values.reshape(1, -1, values.shape[-1])
        return layers.resize_table(values, plan.stored.grid_size, config.grid_size, config.interpolation)

    with layers.skip_initialization():
        model = getattr(models, config.model)(config, input_tensor=input_tensor, name=name, dtype=dtype)
    total = sum(array.bytes for array in plan.arrays.values())
    fresh = () if keep_head else ("head/", "head_dist/")
    if total < PROGRESS_FROM:
        fill(model, plan, source, fresh, convert)
    else:
        with ProgressBar(f"Loading {os.path.basename(source)}", total, in_bytes=True) as bar:
            fill(model, plan, source, fresh, convert, bar.advance)
    if keep_head and plan.head and config.classes and plan.is_head_zero:
        advice = "Pass classes=... for a new head or include_top=False for features."
        warn_caller(f"The head of {source} is all zeros, so its logits mean nothing: it is for fine-tuning. {advice}")
    if plan.unnamed and config.classes and keep_head:
        warn_caller(f"{source}: {plan.unnamed}")
    return model


def _warn_of_choices(plan: Plan, config: ModelConfig, source: str) -> None:
    """Warns of the plan's assumptions, and raises ValueError for what it does not know.

    Remarks about a field in which `config` differs from the plan's do not count: the user has chosen its value.
    """
    published = plan.config
    kept = [r for r in plan.warnings if getattr(config, r.field, None) == getattr(published, r.field, None)]
    unknown = [remark.text for remark in kept if remark.kind == "unknown"]
    assumed = [remark.text for remark in kept if remark.kind == "assumed"]
    if unknown:
        raise ValueError(f"{source}: {'; '.join(unknown)}.")
    if assumed:
        words = f"{source} does not tell all that its model computes: {'; '.join(assumed)}"
        warn_caller(f"{words}. Another choice gives other numbers. {plan.layout.settled_by}")


def to_checkpoint(
    model: "models.VisionTransformer | models.BiT",
    path: str | os.PathLike[str],
    layout: str | None = None,
    overwrite: bool = False,
    stack: bool = False,
) -> None:
    """Writes the weights of a model as a checkpoint file that other code can read.

    `"timm"`, `"huggingface"` and `"clip"` write a `.safetensors` file and, beside it, the JSON files without which
    timm, transformers and open_clip would not know what to compute; what they cannot compute is an error. The other
    layouts write an `.npz` for the original code, which passes over the note in it: class names, grid,
    and where they are not the official ones how pictures are prepared and positions resized, and `pool_padding`.

    The exact inverse of `from_checkpoint`: every array of a file comes back bit for bit, in the layout's own names
    and without a prefix, and so does a model that goes to another layout and back. A class token's position is
    big_vision's first row of the table; where its loader would not know that row, because the number of patches is no
    square, it is added to the token. vit_jax gives a class token without a position a row of zeros. Files hold float32;
    weights in float64 are rounded, with a warning.

    Args:
        model: A `VisionTransformer`, a `BiT`, or a dense model, which is written for
            transformers, or with all of its config where `path` ends in `.npz` and `layout` is None.
        path: Where the file shall be; it appears when it is complete. For the layouts of PyTorch's models a name that
            ends in `.safetensors`, or a folder, which gets a `model.safetensors`.
        layout: `"vit_jax"`, `"big_vision"`, `"timm"`, `"huggingface"`, `"clip"` (OpenAI's names, for open_clip),
            `"tips"` (the `.npz` of TIPS's authors) or `"tips_scenic"` (Scenic's); for a `BiT`,
            `"bit_tf"` (the names of the published files) or `"bit_bv"` (big_vision's). None for the layout of the
            official files.
        overwrite: Whether files may be replaced.
        stack: Whether the blocks are stacked along a first axis, as big_vision stores models with `scan=True`.

    Raises:
        TypeError: if `model` is none of this package's models of images, or `path` is no path.
        ValueError: if the layout is unknown, has no place for such a model or another ending than `path`, or no stacked
            blocks where `stack` asks for them; a weight is beyond float32's range, or the class names do not fit into a
            comment (64 KiB).
        FileExistsError: if there is a file already and `overwrite` is false.
        FileNotFoundError, OSError: if the folder above that of `path` is missing; if a file cannot be written.

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
        raise ValueError(Message(Code("layout"), f" must be one of {list(LAYOUTS)}, but {layout!r} was given."))
    if not isinstance(config, LAYOUTS[layout].config_type):
        names = [name for name, known in LAYOUTS.items() if isinstance(config, known.config_type)]
        raise ValueError(f"A {type(model).__name__} can be written as one of {names}, but layout={layout!r} was given.")
    sidecars = LAYOUTS[layout].sidecars
    if sidecars is None and pathlib.Path(path).suffix in (".safetensors", ".pth", ".pt", ".bin", ".keras", ".h5"):
        advice = "pass a name that ends in .npz, or layout='timm', 'huggingface' or 'clip'"
        raise ValueError(f"The layout {layout!r} is .npz, but path={str(path)!r} was given: {advice}.")
    if sidecars is None:
        write_npz(path, extract(model, LAYOUTS[layout], stack), note_of(config, LAYOUTS[layout]), overwrite)
        return
    path, arrays = _safetensors(pathlib.Path(path), layout), extract(model, LAYOUTS[layout], stack)
    beside = sidecars(config)  # of what can be written: `extract` raises for other models
    note = None if beside else note_of(config, LAYOUTS[layout])
    write_with_sidecars(path, arrays, beside, overwrite=overwrite, note=note)


def check_format(path: str | os.PathLike[str], layout: str | None = None) -> None:
    """Raises ValueError for an unknown layout, and for a path whose ending is not that of the layout's files.

    Without a layout the ending must be `.npz` (the layout of the official files), `.keras` or `.weights.h5`.
    """
    if layout is not None:
        check_choice("layout", layout, tuple(LAYOUTS))
    ending = next((end for end in KERAS_ENDINGS if str(path).endswith(end)), pathlib.Path(path).suffix)
    beside = [name for name, known in LAYOUTS.items() if known.sidecars is not None]
    if layout is None and ending in (".safetensors", ""):
        words = f"{str(path)!r} can have several layouts: pass "
        raise ValueError(Message(words, Code("layout=..."), f" with one of {', '.join(beside)}."))
    what, kind, expected = f"The layout {layout!r}", "an .npz file", (".npz",)
    if layout is None:
        what, expected = "A model", (".npz", *KERAS_ENDINGS)
        kind = "an .npz, .safetensors, .keras or .weights.h5 file, or a folder"
    elif layout in beside:
        kind, expected = "a .safetensors file, or a folder with one", (".safetensors", "")
    if ending not in expected:
        raise ValueError(f"{what} is {kind}, but {str(path)!r} was given.")


def save_model(model: Any, path: str | os.PathLike[str], layout: str | None = None, overwrite: bool = False) -> None:
    """Writes a model in the format that the path's ending names; arguments as in `to_checkpoint`.

    A `.weights.h5` written here also says which model it is of, so that `read_keras` can rebuild it. Keras passes over
    that note. Where a file cannot be written, what was there before is kept.

    Raises FileExistsError for a file that is there unless `overwrite`; ValueError for another ending, an unknown layout
    or one without a place for the model, and for weights beyond float32's range; TypeError, except for files of Keras,
    for a model of another package; OSError for a full disk or a missing folder.
    """
    check_format(path, layout)
    path = pathlib.Path(path).expanduser()
    if not is_keras_file(path):
        to_checkpoint(model, path, layout, overwrite)
        return
    check_absent(path, overwrite=overwrite)
    write_keras(model, path)


def note_of(config: ModelConfig, layout: Layout) -> dict[str, Any]:
    """Returns the note to write beside the arrays of a model: its grid, and fields of its config that no array tells.

    The latter only where their values differ from those that reading the layout assumes.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(config)} | dict(layout.unstated(config))
    note: dict[str, Any] = {"written_by": "keras_vit"}
    if isinstance(config, ViTConfig):
        note["grid_size"] = list(config.grid_size)
    for name, value in config.to_dict().items():
        if name in _NOTED and getattr(config, name) != defaults[name]:
            note[name] = value
    if config.pooling == "none" and not config.classes:  # arrays do not tell whether a model without a head pools
        note["pooling"] = "none"
    return note


def _safetensors(path: pathlib.Path, layout: str) -> pathlib.Path:
    """Returns the `.safetensors` file that a path names, `model.safetensors` in it where it is a folder's.

    Raises ValueError for the ending of another kind of file.
    """
    if path.suffix in (".npz", ".pth", ".pt", ".bin", ".keras", ".h5"):
        advice = "pass a name that ends in .safetensors, or a folder"
        raise ValueError(f"The layout {layout!r} is safetensors, but path={str(path)!r} was given: {advice}.")
    return path if path.suffix == ".safetensors" else path / "model.safetensors"


def _write_dense(
    model: "models.DenseModel", path: pathlib.Path, layout: str | None, overwrite: bool, stack: bool
) -> None:
    """Writes a dense model as an `.npz` of our own, where `path` ends so and there is no layout, or for transformers.

    Raises ValueError for a layout that has no place for it, another ending and `stack`, FileExistsError unless
    `overwrite`, and OSError where a file cannot be written.
    """
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
    target = _safetensors(path, "huggingface")
    written = to_write(config)
    arrays = itertools.chain(extract(model, written, stack), written.constants(config).items())
    write_with_sidecars(target, arrays, written.sidecars(config), overwrite=overwrite)


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint file holds, as `inspect_checkpoint` returns it.

    Attributes:
        layout: Family of files it belongs to.
        dialect: Which of the layout's names it uses.
        prefix: What stands before every name.
        variant: The paper's name of the model, if it is one of its variants.
        config: The model, as far as the arrays tell.
        parameters: Number of weights of the model.
        bytes: Size of the file; of weights in several files, of all of them with their index.
        oddities: What is unusual about the file, and what was assumed because nothing tells it, in words.
        unused: Names of the arrays that are no part of the model, such as those of a text tower.
    """

    layout: str
    dialect: str
    prefix: str
    variant: str | None
    config: ModelConfig
    parameters: int
    bytes: int
    oddities: list[str]
    unused: list[str]

    def __str__(self) -> str:
        """Returns the facts on one line, what is odd below it; `config` has the rest."""
        facts = describe(self.config, self.parameters)
        return "\n  ".join([f"{self.config.model} {facts}, {self.layout}, {megabytes(self.bytes)}", *self.oddities])

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes by name as plain data, for JSON."""
        return {**dataclasses.asdict(self), "config": self.config.to_dict()}


def inspect_checkpoint(
    path: str | os.PathLike[str],
    grid_size: tuple[int, int] | None = None,
    heads: int | None = None,
    architecture: str | None = None,
    max_depth: float | Literal["relative"] | None = None,
    like: str | None = None,
) -> CheckpointInfo:
    """Returns what a checkpoint file holds, without loading it.

    Args:
        path: An `.npz`, `.safetensors` or `.pth` file, or a folder with one.
        grid_size: Rows and columns of its position embeddings, for grids that are no square.
        heads: Deprecated; `like` says it.
        architecture: Deprecated; `like` says it.
        max_depth: As in `from_checkpoint`.
        like: A variant, or timm's name of a model, that stands for what a bare file of PyTorch does not tell.

    Returns:
        A `CheckpointInfo`: layout, variant, config, numbers of weights and bytes, and what is odd about the file.
        Printing it shows the facts on one line.

    Raises:
        FileNotFoundError, IsADirectoryError, OSError: if there is no such file, or a folder without one, or it cannot
            be read.
        TypeError, ValueError: if it is damaged, incomplete or of no known layout, or an argument does not fit it.

    Examples:
        >>> keras_vit.to_checkpoint(small, "inspected.npz")
        >>> keras_vit.inspect_checkpoint("inspected.npz").layout
        'vit_jax'
    """
    if isinstance(path, (str, os.PathLike)):  # `open_checkpoint` refuses others
        path = os.path.expanduser(path)
    plan = open_checkpoint(path, grid_size, heads=heads, architecture=architecture, max_depth=max_depth, like=like)
    check_arrays(plan, str(path))
    return CheckpointInfo(
        layout=plan.layout.name,
        dialect=plan.dialect,
        prefix=plan.prefix,
        variant=variant_of(plan.config),
        config=plan.config,
        parameters=sum(array.size for array in plan.arrays.values()),
        bytes=sum(file.stat().st_size for file in weight_files(weights_in(path))),
        oddities=plan.oddities,
        unused=plan.unused,
    )


def _with_official_numbers(plan: Plan, source: str) -> Plan:
    """Returns the plan with the numerics and image size of vit_jax and big_vision; of a Perception Encoder, of Meta.

    Other kinds of models than a Vision Transformer are returned as they are. Raises ValueError if neither of the two
    codes (for a Perception Encoder: Meta's) has such a model.
    """
    if not isinstance(plan.stored, ViTConfig):
        return plan
    if plan.stored.rotary_embedding == "pe":
        return _with_metas_numbers(plan, source)
    config = plan.stored.replace(**{field: default for field, (default,) in plain_values(*OFFICIAL).items()})
    problems = []
    for layout in (LAYOUTS["vit_jax"], LAYOUTS["big_vision"]):
        try:
            layout.check_writable(config)
        except ValueError as error:
            problems.append(str(error))
    if len(problems) == 2:
        raise ValueError(f"numerics='official', but no official model is like {source}: {problems[0]}")
    remarks = [remark for remark in plan.warnings if remark.kind != "assumed" or remark.field not in OFFICIAL]
    return dataclasses.replace(plan, stored=config, image_size=None, warnings=remarks)


def _with_metas_numbers(plan: Plan, source: str) -> Plan:
    """Returns the plan of a Perception Encoder with the numerics of Meta's code.

    Raises ValueError if its rotary embedding counts places in another grid than that of its patches.
    """
    stored = plan.stored
    if stored.rotary_grid not in (None, stored.grid_size):
        words = f"counts places in a grid of {stored.rotary_grid}, and has patches in one of {stored.grid_size}"
        raise ValueError(f"numerics='official', but no model of Meta is like {source}: it {words}.")
    official = {"rotary_grid": None, "interpolation": clip.PE_FAMILY.interpolation, **clip.PE_FAMILY.preparation}
    remarks = [remark for remark in plan.warnings if remark.kind != "assumed" or remark.field not in OFFICIAL]
    return dataclasses.replace(plan, stored=stored.replace(**official, crop_rounding="even"), warnings=remarks)


def _with_grid(plan: Plan, grid_size: tuple[int, int], source: str) -> Plan:
    """Returns the plan with a given grid of patches instead of the one guessed from their number.

    Raises ValueError if it has another number of patches, or the model is no Vision Transformer.
    """
    config, (rows, columns) = plan.stored, grid_size
    if not isinstance(config, ViTConfig):
        raise ValueError(f"{source} has no position embeddings: leave grid_size={grid_size} out.")
    if (config.position_rows or config.tokens_mlp_width) and rows * columns != np.prod(config.grid_size):
        wanted = f"{np.prod(config.grid_size)} patches as the position embeddings of {source} do"
        raise ValueError(f"grid_size must have {wanted}, but {rows} x {columns} was given.")
    remarks = [remark for remark in plan.warnings if (remark.kind, remark.field) != ("note", "image_size")]
    stored = config.replace(image_size=config.image_size_of((rows, columns)))
    return dataclasses.replace(plan, stored=stored, is_grid_known=True, warnings=remarks)


def _with_note(plan: Plan, note: Mapping[str, Any], source: str) -> Plan:
    """Returns the plan with the class names and the other fields of the config in a file's note.

    The note may be a stranger's. Wrong class names are left out, and `unnamed` says why. Raises ValueError for a wrong
    value of another field.
    """
    stored, names, unnamed = plan.stored, note.get("class_names"), ""
    try:
        if not isinstance(names, list | None):
            raise TypeError(f"class_names must be a list of strings, but is a {type(names).__name__}.")
        stored = stored if names is None else stored.replace(class_names=names)
    except (TypeError, ValueError, RecursionError) as error:
        unnamed = f"the class names in its note are left out: {printable(error, 200)}"
    known = [name for name in _NOTED[1:] if hasattr(stored, name) and name in note]
    known += ["pooling"] if note.get("pooling") == "none" and not stored.classes else []
    try:
        stored = stored.replace(**{name: note[name] for name in known})
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ValueError(f"The note of {source} says nothing sensible: {printable(error, 200)}.") from None
    return dataclasses.replace(plan, stored=stored, unnamed=unnamed)
