"""From a file to what it holds, and from a model to a file."""

import dataclasses
import json
import math
import os
import pathlib
import warnings
from typing import Any

import numpy as np

from keras_vit import layers, models
from keras_vit._files import replacing
from keras_vit._progress import ProgressBar
from keras_vit._text import printable
from keras_vit.checkpoints.engine import Contents, Hints, Layout, check_arrays, extract, fill
from keras_vit.checkpoints.files import open_file, read_sidecars, weights_in, write_safetensors
from keras_vit.checkpoints.files.npz import write_npz
from keras_vit.checkpoints.files.stored_array import ArrayFile
from keras_vit.checkpoints.layouts import big_vision, bit, clip, huggingface, timm, vit_jax
from keras_vit.models import BiTConfig, ModelConfig, ViTConfig, pair, variant_of

# In the order in which they look at a file: vit_jax takes every Vision Transformer of Flax that big_vision left.
_FLAX = (big_vision.LAYOUT, vit_jax.LAYOUT, bit.TF, bit.BV)
_PYTORCH = (clip.LAYOUT, huggingface.LAYOUT, timm.LAYOUT)
LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in (*_FLAX, *_PYTORCH)}
# The layout of the published files of each family.
PUBLISHED: dict[type[ModelConfig], str] = {ViTConfig: "vit_jax", BiTConfig: "bit_tf"}
# What makes numbers official: they are those of vit_jax and big_vision, whoever has published the weights.
NUMERICS = ("official", "publisher")
OFFICIAL = (
    *("gelu", "layer_norm_epsilon", "interpolation", "stem_epsilons"),
    *("pixel_mean", "pixel_std", "resize", "crop_ratio", "filter"),
)
NAMES_LEFT_OUT = "the class names in its note are left out"
PROGRESS_FROM = 200 * 2**20  # bytes of a file whose loading shows a progress bar


def open_checkpoint(
    path: str | os.PathLike[str],
    grid_size: tuple[int, int] | None = None,
    image_size: int | tuple[int, int] | None = None,
    heads: int | None = None,
    architecture: str | None = None,
    numerics: str | None = None,
) -> Contents:
    """Recognises the layout of a checkpoint file and describes it, without reading the weights.

    What the arrays do not tell is taken from the JSON files beside the file, else from what is usual in its family.
    What was assumed stands in the oddities.

    Args:
        path: An `.npz`, `.safetensors` or `.pth` file, or a folder with one.
        grid_size: Rows and columns of its position embeddings, for grids that are no square.
        image_size: A size that the model may have been trained at: it tells the grid where the number of patches is
            no square and `grid_size` is not given.
        heads: Its attention heads, where neither its arrays nor a config.json tell them.
        architecture: timm's name of the model, such as `"vit_base_patch16_clip_quickgelu_224.openai"`, for a file in
            timm's names without its config.json.
        numerics: `"official"` for the numbers of vit_jax and big_vision, where the file holds weights that those have
            trained; `"publisher"` or None for those of whoever has published the file.

    Raises:
        FileNotFoundError, ValueError: if it is no file, of no known kind, or of no known layout, or an argument makes
            no sense for it.
    """
    if numerics not in (None, *NUMERICS):
        raise ValueError(f"numerics must be one of {NUMERICS}, but {numerics!r} was given.")
    if heads is not None and (isinstance(heads, bool) or not isinstance(heads, int) or heads < 1):
        raise ValueError(f"heads must be a positive integer, but {heads!r} was given.")
    if not isinstance(architecture, str | None):
        raise TypeError(f"architecture must be a name of one of timm's models, but {architecture!r} was given.")
    file = open_file(path)
    beside = read_sidecars(path)
    hints = Hints(beside.config, beside.open_clip, beside.preprocessor, heads, architecture)
    for layout in LAYOUTS.values():
        try:
            contents = layout.read(file, hints)
        except ValueError as error:
            raise ValueError(f"{path} is no model of the layout {layout.name!r}: {error}") from error
        if contents is None:
            continue
        contents = _with_containers(contents, file)
        _check_hints(contents, hints, str(path))
        grid_size = grid_size or file.grid_size
        if grid_size is None and image_size is not None and not contents.square:
            asked = contents.config.replace(image_size=image_size).grid_size
            grid_size = asked if np.prod(asked) == np.prod(contents.config.grid_size) else None
        contents = _with_names(_with_grid(contents, grid_size, str(path)), file.note.get("class_names"))
        return _with_official_numbers(contents, str(path)) if numerics == "official" else contents
    names = ", ".join(printable(name, 100) for name in sorted(file)[:5])
    raise ValueError(
        f"{file.path} holds arrays, but is not a checkpoint of a known layout ({', '.join(LAYOUTS)}). Its arrays are: "
        f"{names}{' ...' if len(file) > 5 else ''}."
    )


def load_model(
    path: str | os.PathLike[str],
    contents: Contents,
    config: ModelConfig,
    *,
    keep_head: bool = True,
    input_tensor: Any = None,
    name: str | None = None,
    dtype: Any = None,
) -> "models.VisionTransformer | models.BiT":
    """Builds the model that `config` describes and fills it from a file.

    Every weight is assigned once. `config` may differ from `contents.config` in what is not stored, in the image
    size (position embeddings are resized), and in leaving out the head or the pre-logits.

    Args:
        path: The file, for messages.
        contents: What `open_checkpoint` returned.
        config: The model wanted.
        keep_head: Whether the head is the file's; otherwise it is new and zero.
        input_tensor: See `VisionTransformer`.
        name: See `VisionTransformer`.
        dtype: See `VisionTransformer`.

    Raises:
        ValueError: if arrays are missing, left over, of the wrong shape or not finite.
    """
    source = str(path)
    check_arrays(contents, source)
    if not contents.square:
        raise ValueError(
            f"The position embeddings of {source} are for {np.prod(contents.config.grid_size)} patches, which is no "
            "square, so the grid cannot be told from the file. Pass the image_size that it was trained at, or "
            "grid_size=(rows, columns)."
        )

    def convert(path: str, values: np.ndarray) -> np.ndarray:
        if path != "position_embedding/table" or config.grid_size == contents.config.grid_size:
            return values
        values = values.reshape(1, -1, values.shape[-1])
        return layers.resize_table(values, contents.config.grid_size, config.grid_size, config.interpolation)

    with layers.skip_initialization():
        model = models.MODELS[type(config)](config, input_tensor=input_tensor, name=name, dtype=dtype)
    total = sum(array.bytes for array in contents.arrays.values())
    fresh = () if keep_head else ("head/", "head_dist/")
    title = f"Loading {os.path.basename(source)}"
    with ProgressBar(title, total, in_bytes=True, shown=total >= PROGRESS_FROM) as bar:
        fill(model, contents, source, fresh, convert, bar.advance)
    if config.classes and keep_head and any("head is all zeros" in oddity for oddity in contents.oddities):
        warnings.warn(
            f"The head of {source} is all zeros, so its logits mean nothing: the file is for fine-tuning. Pass "
            "classes=... for a new head or include_top=False for features.",
            stacklevel=3,
        )
    for oddity in contents.oddities:
        if oddity.startswith(NAMES_LEFT_OUT) and config.classes and keep_head:
            warnings.warn(f"{source}: {oddity}", stacklevel=3)
    return model


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
    layouts write an `.npz` for the original code.

    The exact inverse of `from_checkpoint`: every array of a file comes back bit for bit, in the layout's own names
    and without a prefix. A model that both layouts can say goes from one to the other and back bit for bit: a class
    token's position is kept by big_vision as the first row of the table, which its loader adds to the token; where
    that loader would not know the row, because the number of patches is no square, the sum is written as the token.
    vit_jax gives a class token without a position a row of zeros. The names of the classes and the grid of the
    position embeddings are noted in the archive's comment, where the original code passes over them.

    Args:
        model: A `VisionTransformer` or a `BiT`.
        path: Where the file shall be; it appears when it is complete. For the layouts of PyTorch's models a name that
            ends in `.safetensors`, or a folder, which gets a `model.safetensors`.
        layout: `"vit_jax"`, `"big_vision"`, `"timm"`, `"huggingface"` or `"clip"` (OpenAI's names, for open_clip);
            for a `BiT`, `"bit_tf"` (the names of the published files) or `"bit_bv"` (big_vision's). None for the
            layout of the official files.
        overwrite: Whether files may be replaced.
        stack: Whether the blocks are stacked along a first axis, as big_vision stores models with `scan=True`.

    Raises:
        TypeError: if `model` is neither a `VisionTransformer` nor a `BiT`.
        ValueError: if the layout is unknown or has no place for such a model, or there are so many class names that
            they do not fit into a comment (64 KiB).
        FileExistsError: if there is a file already and `overwrite` is false.

    Examples:
        >>> keras_vit.to_checkpoint(model, "back.npz")
        >>> keras_vit.from_checkpoint("back.npz").config == model.config
        True
    """
    if not isinstance(model, (models.VisionTransformer, models.BiT)):
        raise TypeError(f"model must be a VisionTransformer or a BiT, but {type(model).__name__} was given.")
    layout = PUBLISHED[type(model.config)] if layout is None else layout
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {list(LAYOUTS)}, but {layout!r} was given.")
    if not isinstance(model.config, LAYOUTS[layout].config_type):
        names = [name for name, known in LAYOUTS.items() if isinstance(model.config, known.config_type)]
        raise ValueError(f"A {type(model).__name__} can be written as one of {names}, but layout={layout!r} was given.")
    if LAYOUTS[layout].sidecars is not None:
        _write_pytorch(model, path, LAYOUTS[layout], overwrite, stack)
        return
    note: dict[str, Any] = {"written_by": "keras_vit"}
    if isinstance(model, models.VisionTransformer):
        note["grid_size"] = list(model.config.grid_size)
    if model.config.class_names is not None:
        note["class_names"] = list(model.config.class_names)
    write_npz(path, extract(model, LAYOUTS[layout], stack), note, overwrite)


def _write_pytorch(
    model: "models.VisionTransformer", path: str | os.PathLike[str], layout: Layout, overwrite: bool, stack: bool
) -> None:
    """Writes the weights as `.safetensors`, and then the JSON files beside it."""
    path = pathlib.Path(path)
    if path.suffix != ".safetensors":
        if path.suffix in (".npz", ".pth", ".pt", ".bin", ".keras"):
            raise ValueError(
                f"The layout {layout.name!r} is written as safetensors, but path={str(path)!r} was given: pass a name "
                "that ends in .safetensors, or a folder."
            )
        path = path / "model.safetensors"
    arrays = extract(model, layout, stack)
    texts = {
        path.with_name(name): json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        for name, content in layout.sidecars(model.config).items()
    }
    for file in (path, *texts):
        if file.exists() and not overwrite:
            raise FileExistsError(f"{file} exists. Choose another path or pass overwrite=True.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(path, arrays, overwrite)
    for file, text in texts.items():
        with replacing(file) as temporary:
            pathlib.Path(temporary).write_text(text, encoding="utf-8")


def count_parameters(config: ViTConfig | BiTConfig) -> int:
    """The number of weights of a model, without building it."""
    plain = isinstance(config, ViTConfig) and config.stem_stages is None
    layout = timm.LAYOUT if plain else LAYOUTS[PUBLISHED[type(config)]]
    sizes = layout.sizes(config)
    rows = [row for row in layout.rows(config) if row.path is not None]
    stored = sum(math.prod(sizes.get(n, n) for n in row.shape) // row.part[1] for row in rows)
    return stored + sum(values.size for values in layout.computed(config).values())


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """What `inspect_checkpoint` tells of a file.

    Attributes:
        layout: Family of files it belongs to.
        dialect: Which of the layout's names it uses.
        prefix: What stands before every name.
        variant: The paper's name of the model, if it is one of its variants.
        config: The model, as far as the arrays tell.
        parameters: Number of weights of the model.
        bytes: Size of the file.
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

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {**dataclasses.asdict(self), "config": self.config.to_dict()}


def inspect_checkpoint(
    path: str | os.PathLike[str],
    grid_size: tuple[int, int] | None = None,
    heads: int | None = None,
    architecture: str | None = None,
) -> CheckpointInfo:
    """Tells what a checkpoint file is, without loading it.

    Args:
        path: An `.npz`, `.safetensors` or `.pth` file, or a folder with one.
        grid_size: Rows and columns of its position embeddings, for grids that are no square.
        heads: As in `from_checkpoint`.
        architecture: As in `from_checkpoint`.

    Returns:
        A `CheckpointInfo`: layout, variant, config, numbers of weights and bytes, and what is odd about the file.
        Printing it draws a table.

    Raises:
        FileNotFoundError, ValueError: if it is no file, of no known kind or layout, or incomplete.

    Examples:
        >>> keras_vit.to_checkpoint(small, "inspected.npz")
        >>> keras_vit.inspect_checkpoint("inspected.npz").layout
        'vit_jax'
    """
    contents = open_checkpoint(path, grid_size, heads=heads, architecture=architecture)
    check_arrays(contents, str(path))
    return CheckpointInfo(
        layout=contents.layout.name,
        dialect=contents.dialect,
        prefix=contents.prefix,
        variant=variant_of(contents.config),
        config=contents.config,
        parameters=sum(int(np.prod(array.shape)) for array in contents.arrays.values()),
        bytes=os.path.getsize(weights_in(path)),
        oddities=contents.oddities,
        unused=contents.unused,
    )


def _with_containers(contents: Contents, file: ArrayFile) -> Contents:
    """The contents with what lies in the file outside of the dict that holds the model, if it holds several."""
    outside = list(getattr(file, "outside", ()))
    if not outside:
        return contents
    oddity = (
        f"the model is in {file.container!r} of the file; {len(outside)} arrays outside of that are not part of it, "
        f"such as {printable(repr(outside[0]), 200)}"
    )
    return dataclasses.replace(contents, unused=[*contents.unused, *outside], oddities=[*contents.oddities, oddity])


def _check_hints(contents: Contents, hints: Hints, source: str) -> None:
    """Raises ValueError if the user says of a file of Flax what its arrays tell."""
    if contents.layout.name in {layout.name for layout in _PYTORCH}:
        return
    if hints.architecture is not None:
        raise ValueError(
            f"{source} is of the layout {contents.layout.name!r}: leave architecture= out, it tells itself."
        )
    heads = getattr(contents.config, "heads", None)
    if hints.heads is not None and hints.heads != heads:
        raise ValueError(f"heads={hints.heads} was given, but the arrays of {source} tell that it has {heads}.")


def _with_official_numbers(contents: Contents, source: str) -> Contents:
    """The contents with the computation of vit_jax and big_vision."""
    if not isinstance(contents.config, ViTConfig):
        return contents
    usual = {field.name: field.default for field in dataclasses.fields(ViTConfig)}
    config = contents.config.replace(**{name: usual[name] for name in OFFICIAL})
    problems = []
    for layout in (vit_jax.LAYOUT, big_vision.LAYOUT):
        try:
            layout.check_writable(config)
        except ValueError as error:
            problems.append(str(error))
    if len(problems) == 2:
        raise ValueError(
            f"numerics='official' is for weights that the official code has trained, but no official model is like "
            f"{source}: {problems[0]}"
        )
    return dataclasses.replace(contents, config=config)


def _with_grid(contents: Contents, grid_size: Any, source: str) -> Contents:
    """The contents with the grid that somebody knows, instead of the one guessed from the number of patches."""
    if grid_size is None:
        return contents
    if not isinstance(contents.config, ViTConfig):
        raise ValueError(f"{source} has no position embeddings: leave grid_size={grid_size} out.")
    config, (rows, columns) = contents.config, pair("grid_size", grid_size)
    if config.position_rows and rows * columns != np.prod(config.grid_size):
        raise ValueError(
            f"grid_size must have {np.prod(config.grid_size)} patches as the position embeddings of {source} do, but "
            f"{rows} x {columns} was given."
        )
    size = config.image_size_of((rows, columns))
    oddities = [o for o in contents.oddities if "are no square" not in o and "is a guess" not in o]
    return dataclasses.replace(contents, config=config.replace(image_size=size), square=True, oddities=oddities)


def _with_names(contents: Contents, names: Any) -> Contents:
    """The contents with the class names that the file's note holds; the note may be a stranger's."""
    if names is None:
        return contents
    try:
        if not isinstance(names, list):
            raise TypeError(f"class_names must be a list of strings, but is a {type(names).__name__}.")
        return dataclasses.replace(contents, config=contents.config.replace(class_names=names))
    except (TypeError, ValueError) as error:
        oddity = f"{NAMES_LEFT_OUT}: {printable(error, 200)}"
        return dataclasses.replace(contents, oddities=[*contents.oddities, oddity])
