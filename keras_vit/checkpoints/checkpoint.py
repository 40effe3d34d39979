"""From a checkpoint file to the plan by which it is read and to a model; and what reading tells of a file to write."""

import dataclasses
import itertools
import json
import math
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from keras_vit import layers, models
from keras_vit._arguments import printable, warn_caller
from keras_vit._options import Pair, checked
from keras_vit._terminal import PlainData, ProgressBar, megabytes
from keras_vit.checkpoints import accounting
from keras_vit.checkpoints.accounting import PREPROCESSING, TABLE, Layout, Notice, Plan, check_arrays, listed
from keras_vit.checkpoints.files import SIDECARS, Sidecars, open_file, read_sidecars, weight_files, weights_in
from keras_vit.checkpoints.keras_files import DESCRIBED
from keras_vit.checkpoints.layouts import DENSE, FOREIGN, LAYOUTS, clip, dense, owl, pytorch, timm_json, tips_heads
from keras_vit.checkpoints.stored_array import ArrayFile, StoredArray
from keras_vit.checkpoints.torch_file import AVERAGES, FOLLOWERS, RAW, TARGETS
from keras_vit.models import BiTConfig, DenseConfig, ModelConfig, TextConfig, ViTConfig, variant_of
from keras_vit.models.dense_config import DepthConfig
from keras_vit.models.sizes import describe

# The layout of the published files of each family.
PUBLISHED: dict[type[ModelConfig], str] = {ViTConfig: "vit_jax", BiTConfig: "bit_tf"}
# What makes numbers official: they are those of vit_jax and big_vision, whoever has published the weights.
OFFICIAL = ("gelu", "layer_norm_epsilon", "interpolation", "stem_epsilons", *PREPROCESSING)
# What whoever loads a file chooses, and what only training uses: no file says it.
CHOSEN = (
    *("dynamic", "dropout", "attention_dropout", "patch_drop", "drop_path", "remat", "class_token_only"),
    *("include_preprocessing", "preprocessing_folded", "unit_features"),
)
# What the note beside arrays may say. Others compute the same without it, but prepare `PICTURES` in their own way.
PICTURES = ("filter", "crop_rounding", "pictures", "picture_size")
_OF_BACKBONE = tuple(f"backbone.{name}" for name in ("interpolation", *PREPROCESSING[2:], "trim"))
_NOTED = (
    *("class_names", "classifier_activation", "image_size", "interpolation", "layer_scale", "pool_padding", "pooling"),
    *("classes", "projection", "projection_bias", *PREPROCESSING, "trim"),
    *("pictures", "picture_size", "task", "min_depth", *_OF_BACKBONE),
)
# What no file but one of Keras holds, by the field of a config that is true then.
_STANDARDISED = "kernels that folded() has standardised. Write the original model instead"
_NOWHERE = {
    "unit_features": "a zero-shot head, which normalises features. Save the model as .keras",
    "preprocessing_folded": "the output of optimize_for_inference(). Write the original model instead",
    **dict.fromkeys(("stem_folded", "folded"), _STANDARDISED),
}
PROGRESS_FROM = 200 * 2**20  # bytes of a file whose loading shows a progress bar


@checked
def open_checkpoint(
    path: str | os.PathLike[str],
    grid_size: Pair | None = None,
    image_size: Pair | None = None,
    numerics: Literal["official", "publisher"] | None = None,
    head: pathlib.Path | None = None,
    max_depth: float | str | None = None,
    like: Any = None,
    state: str | None = None,
) -> Plan:
    """Returns how a checkpoint file is to be read: its layout, config and arrays. No weight is read.

    Arguments as in `keras_vit.load`, except that `head` is a file. `image_size` gives the grid if the number of patches
    is not a square. What the arrays do not determine comes from the JSON files beside the file, then from `like`, then
    from the defaults of the family.
    """
    options = {"like": None if like is None else timm_json.find_like(like), "grid_size": grid_size}
    if head is None:
        return _plan_at(path, numerics, state, image_size=image_size, max_depth=max_depth, **options)
    if numerics is not None:
        raise ValueError(f"numerics={numerics!r} does not apply to a backbone with head={str(head)!r}. Leave it out.")
    backbone = _plan_at(path, None, state, image_size=image_size, **options)
    return _plan_at(head, None, image_size=image_size, max_depth=max_depth, backbone=backbone)


def _plan_at(path: str | os.PathLike[str], numerics: str | None, state: str | None = None, **options: Any) -> Plan:
    """The plan of the first layout that recognises a file, completed by the user's options and by its note."""
    file = open_file(path, state)
    sidecars = read_sidecars(path, name=str(path), note=file.note, container=file.container, **options)
    return plan_of(file, sidecars, numerics)


def plan_of(file: ArrayFile, sidecars: Sidecars, numerics: str | None = None) -> Plan:
    """Returns the plan by which arrays are read; errors as of `_plan_at`."""
    source, layout = sidecars.name, _layout_of(file, sidecars)
    grid = sidecars.grid_size or file.grid_size
    with accounting.readable(f"{source} cannot be read as a model of the layout {layout.name!r}"):
        plan = layout.plan(file, dataclasses.replace(sidecars, grid_size=grid))
    if sidecars.max_depth is not None and not isinstance(plan.stored, DepthConfig):
        raise ValueError(f"{source} is not a depth model: leave max_depth={sidecars.max_depth!r} out.")
    plan = _with_beside(plan, file, sidecars)
    if numerics is not None and (layout is DESCRIBED or isinstance(plan.stored, DenseConfig)):
        what = f"the settings of {source}, a {plan.stored.model}, are those of its file"
        raise ValueError(f"numerics={numerics!r} does not apply, because {what}. Leave it out.")
    if layout is DESCRIBED:
        return plan
    if isinstance(plan.stored, DenseConfig):
        if sidecars.like is not None:
            accounting.check_like(plan.stored, sidecars.like, ("heads",), source)
        return _with_note(plan, file.note, source)
    if sidecars.like is not None:
        plan = accounting.apply_like(plan, sidecars.like, source)
    if grid is None and sidecars.image_size is not None and not plan.is_grid_known:
        grid_at_size = plan.stored.replace(image_size=sidecars.image_size).grid_size
        grid = grid_at_size if np.prod(grid_at_size) == np.prod(plan.stored.grid_size) else None
    plan = _with_note(accounting.with_grid(plan, grid, source), file.note, source)
    return _with_official_numbers(plan, source) if numerics == "official" else plan


def _layout_of(file: ArrayFile, sidecars: Sidecars) -> Layout:
    """Returns the first layout that recognises a file; ValueError for one that is not supported."""
    if "model" in file.note:
        return DESCRIBED
    source = sidecars.name
    if owl.recognise(file):
        raise ValueError(f"{source} is an OWL-ViT or OWLv2. Load it with keras_vit.load_image_text(...).")
    if any(".lora_A." in name for name in file):
        raise ValueError(f"{source} has LoRA adapters of PEFT alone. Merge them with merge_and_unload(), then save it.")
    names = [*file, *(str(sidecars.config.get(key)) for key in ("model_type", "model_name"))]
    foreign = next((title for start, title in FOREIGN.items() if any(name.startswith(start) for name in names)), None)
    if foreign is not None:
        known = "EoMT, linear heads of DINOv2 and DINOv3, DPT heads of DINOv2, TIPS 2 and Depth Anything for one view"
        raise ValueError(f"{source} holds {foreign}, which is not supported. Supported are {known}.")
    first = []  # those whose JSON files lie beside
    if not any("/" in name for name in file):
        first += ["clip"] if sidecars.open_clip else []
        # A TIPS is told from a DINOv2 with one register by transformers' config.json, or the ending .npz.
        first += ["timm"] if sidecars.config.get("architecture") else ["tips"]
        first += ["huggingface"] if sidecars.config else []
    order = [*DENSE, *(LAYOUTS[name] for name in dict.fromkeys([*first, *LAYOUTS]))]
    layout = next((layout for layout in order if layout.recognise(file, sidecars)), None)
    if sidecars.backbone is not None and layout not in (dense.LINEAR, dense.DEPTH, tips_heads.LAYOUT):
        raise ValueError(f"head={source!r} must be a linear or DPT head, but it has the arrays: {listed(list(file))}.")
    if layout is None:
        known = f"{file.path} must be a checkpoint in one of the layouts {', '.join(LAYOUTS)}"
        raise ValueError(f"{known}, but it has the arrays: {listed(list(file))}.")
    return layout


# Names of arrays beside an image model that nobody misses, by their first or last part: text towers, training, counts.
_BESIDE = frozenset(
    "text text_model text_encoder txt transformer token_embedding ln_final positional_embedding text_projection "
    "logit_scale logit_bias temperature t b mask_token position_ids inv_freq pixel_mean pixel_std num_batches_tracked "
    "local_cls_norm bias_mask attn_mask context_length input_resolution vocab_size opt opt_state step extra".split()
)
# Classes of transformers that are a Vision Transformer with or without a head for classes.
_IS_PLAIN = re.compile(r"(Model|WithProjection|ForImageClassification(WithTeacher)?|Backbone|^)$")


def _left_out(plan: Plan, file: ArrayFile) -> list[str]:
    """Returns the names of arrays, beside the model that is read, which may be a part of another model."""
    numbers = {name for name, array in file.items() if array.shape == () or array.dtype.kind in "iub"}
    own, containers = plan.prefix.partition(".")[0], {*pytorch.CONTAINERS, "params"}
    left = []
    for name in plan.unused:
        first, *parts = re.split(r"[./]", name)
        of_training = first in pytorch.CONTAINERS and first != own
        inside = [*itertools.dropwhile(containers.__contains__, [first, *parts])]
        if not (of_training or name in numbers or _BESIDE & {*inside[:1], *inside[-1:]}):
            left.append(name)
    return left


def _with_beside(plan: Plan, file: ArrayFile, sidecars: Sidecars) -> Plan:
    """Returns the plan with warnings of arrays that are left out, and of averages of weights."""
    warnings = [*plan.warnings]
    if file.outside:
        example = printable(repr(file.outside[0]), 200)
        text = f"{len(file.outside)} arrays outside of {file.container!r} are not read, such as {example}"
        warnings.append(Notice(text))
    if not isinstance(plan.stored, DenseConfig):  # of whose backbone a head need not read everything
        left, classes = _left_out(plan, file), sidecars.config.get("architectures") or [""]
        if left:
            text = f"{len(left)} arrays are not part of the model, and are not read: {listed(left)}"
            warnings.append(Notice(text, "", "left out"))
        if isinstance(classes, list) and not _IS_PLAIN.search(str(classes[0])):
            text = f"config.json is that of the class {printable(classes[0], 100)}"
            warnings.append(Notice(text, "", "left out"))
    taken = file.container.partition(".")[0] or plan.prefix.partition(".")[0]
    raw = {name.partition(".")[0] for name in (*file, *file.outside)} & {*RAW, *FOLLOWERS}
    if taken in (*AVERAGES, *TARGETS) and raw:
        text = f"the averaged weights in {taken!r} are read; state={min(raw)!r} reads the weights in {min(raw)!r}"
        warnings.append(Notice(text, "", "assumed"))
    return dataclasses.replace(plan, unused=[*plan.unused, *file.outside], warnings=warnings)


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
    and in leaving out the head or the pre-logits. The head is new and zero unless `keep_head`.
    """
    source = str(path)
    plan = plan if keep_head else accounting.without_heads(plan)
    check_arrays(plan, source)
    if not plan.is_grid_known:
        what = f"The {np.prod(plan.stored.grid_size)} patches of {source} do not form a square"
        raise ValueError(f"{what}. Pass the image_size of the training, or grid_size=(rows, columns).")

    if isinstance(config, ViTConfig) and config.tokens_mlp_width is not None:
        models.check_tokens(plan.stored, config)
    _warn_of_choices(plan, config, source)

    def convert(path: str, values: np.ndarray) -> np.ndarray:
        if path != TABLE or isinstance(config, TextConfig) or config.grid_size == plan.stored.grid_size:
            return values
        values = values.reshape(1, -1, values.shape[-1])
        return layers.resize_table(values, plan.stored.grid_size, config.grid_size, config.interpolation)

    with layers.skip_initialization():
        build = {} if input_tensor is None else {"input_tensor": input_tensor}
        model = getattr(models, config.model)(config, name=name, dtype=dtype, **build)
    total = sum(array.bytes for array in plan.arrays.values())
    fresh = () if keep_head else ("head/", "head_dist/")
    title, shown = f"Loading {os.path.basename(source)}", total >= PROGRESS_FROM
    with ProgressBar(title, total, in_bytes=True, shown=shown) as bar:
        accounting.fill(model, plan, source, fresh, convert, bar.advance)
    if keep_head and isinstance(config, ModelConfig) and config.classes and plan.is_head_zero:
        advice = "Pass classes=... for a new head or include_top=False for features."
        warn_caller(f"The head of {source} is all zeros, so its logits mean nothing. {advice}")
    if plan.unnamed and config.classes and keep_head:
        warn_caller(f"{source}: {plan.unnamed}")
    return model


def _warn_of_choices(plan: Plan, config: ModelConfig, source: str) -> None:
    """Warns of the plan's assumptions, and raises ValueError for what it does not know."""
    published = plan.config
    kept = [r for r in plan.warnings if getattr(config, r.field, None) == getattr(published, r.field, None)]
    unknown = [warning.text for warning in kept if warning.kind == "unknown"]
    assumed = [warning.text for warning in kept if warning.kind == "assumed"]
    if unknown:
        raise ValueError(f"{source} cannot be loaded: {'; '.join(unknown)}.")
    left = [warning.text for warning in plan.warnings if warning.kind == "left out"]
    if left:
        warn_caller(f"{source} holds more than the {config.model} that is loaded: {'; '.join(left)}.")
    if assumed:
        missing = f"{source} does not contain all settings of its model: {'; '.join(assumed)}"
        warn_caller(f"{missing}. Wrong settings give wrong outputs. {plan.layout.advice}")


# Writing: a layout has a place for a model if reading its file gives the model back


def note_of(config: ModelConfig, layout: Layout) -> dict[str, Any]:
    """Returns the note with which reading the file of a model gives its config back."""
    for field, what in _NOWHERE.items():
        if getattr(getattr(config, "backbone", config), field, False):
            raise ValueError(f"The layout {layout.name!r} cannot store {what}.")
    accounting.check_needs(config, layout)
    note: dict[str, Any] = {"written_by": "keras_vit"}
    instead: dict[str, Any] = {}
    try:
        has_json = bool(layout.sidecars and layout.sidecars(config))
        if isinstance(config, ViTConfig) and not has_json:
            note["grid_size"] = list(config.grid_size)
        # A bias of zeros tells what another one does not; of an EoMT, normalisations of zeros tell that it is a delta.
        for fill_value in (1.0,) if isinstance(config, DenseConfig) else (1.0, 0.0):
            stored, back = _read_back(config, layout, note, fill_value)
            ours, theirs = decisive_fields(stored), decisive_fields(back)
            lost = [name for name in ours if theirs.get(name, attrgetter(name)(back)) != ours[name]]
            instead |= {name: attrgetter(name)(back) for name in lost}
    except ValueError as error:
        raise ValueError(f"The layout {layout.name!r} cannot store this model. {error} Save as .keras.") from None
    noted = _fields_of_note(config, layout, has_json)
    wrong = [name for name in instead if name not in noted]
    if wrong:
        found = ", ".join(f"{name}={instead[name]!r} instead of {attrgetter(name)(config)!r}" for name in wrong)
        raise ValueError(f"A {layout.name} file would be read with {found}. Save the model as .keras.")
    if isinstance(config, ViTConfig) and back.crop_ratio != config.crop_ratio:  # without effect at this size
        instead["crop_ratio"] = back.crop_ratio
    said = _flat(config)
    if has_json and instead or "image_size" in instead:  # which a person may say, too
        note["instead_of"] = json.loads(json.dumps(instead))  # tuples as lists, as in the file
    return note | {name: said[name] for name in instead}


def _fields_of_note(config: Any, layout: Layout, has_json: bool) -> set[str]:
    """Returns the fields that a note may say: other programs compute the same, whatever they make of these."""
    noted = {"class_names", "classifier_activation", "interpolation", *PICTURES, *layout.noted}
    if isinstance(config, DenseConfig):
        return noted | {*_OF_BACKBONE}
    if config.pooling == "none" and not config.classes:
        noted.add("pooling")
    if not isinstance(config, ViTConfig):
        return noted
    if config.stem_stages is not None and not has_json:
        noted.add("image_size")  # arrays tell the grid, which a ResNet makes of several sizes
    paths = {row.path for row in layout.rows(config)}
    of_projection = "projection/bias" if config.projection_bias else "projection/kernel"
    if bool(config.classes) != bool(config.projection) and paths & {"head/kernel", of_projection}:
        noted |= {"projection", "projection_bias", "classes"}  # a head by another name
    if "block_0/scale1/gamma" in paths:  # a first value
        noted.add("layer_scale")
    return noted if has_json else noted | {*PREPROCESSING, "trim"}


def _read_back(
    config: ModelConfig, layout: Layout, note: Mapping[str, Any], fill_value: float
) -> tuple[ModelConfig, ModelConfig]:
    """Returns the config that is stored, and what reading tells of its file: by shapes, JSON files and the note."""
    rows = getattr(getattr(config, "backbone", config), "position_rows", 0)
    stored, _ = layout.rewritten(config, lambda path: np.zeros((1, rows if path == TABLE else 1, 1), np.float32))

    def load(value: float) -> Callable[[int, int], np.ndarray]:
        return lambda offset, size: np.full(size // 4, value, np.float32).view(np.uint8)

    arrays = {
        row.name: StoredArray(row.name, row.shape, np.dtype("float32"), load(fill_value if row.path else 0.0))
        for row in layout.rows(stored)
    }
    for name, values in layout.constants(config).items():
        arrays[name] = StoredArray(name, values.shape, values.dtype, load(0.0))
    written = {} if layout.sidecars is None else json.loads(json.dumps(layout.sidecars(config)))
    path = pathlib.Path("model.npz" if layout.sidecars is None else "model.safetensors")
    beside = {key: written[name] for key, name in SIDECARS.items() if name in written}
    plan = plan_of(ArrayFile(path, arrays, dict(note)), Sidecars(name="The file", note=note, **beside))
    check_arrays(plan, "The file")
    if plan.layout.name != layout.name:
        raise ValueError(f"The file would be read as the layout {plan.layout.name!r}.")
    unknown = [warning.field for warning in plan.warnings if warning.kind == "unknown"]
    if unknown or not plan.is_grid_known:
        raise ValueError(f"The file would not contain {', '.join(unknown) or 'image_size'}.")
    return stored, plan.config


def decisive_fields(config: Any) -> dict[str, Any]:
    """Returns the fields that determine a model's outputs, each in a normal form."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if isinstance(config, DenseConfig):
        return fields | {f"backbone.{name}": value for name, value in decisive_fields(fields.pop("backbone")).items()}
    without = [*CHOSEN]
    if not config.classes:
        without += ["class_names", "classifier_activation", "distillation_head"]
    if not isinstance(config, ViTConfig):
        without += ["image_size"]
        return {name: value for name, value in fields.items() if name not in without}
    if config.stem_stages is None:
        without += ["stem_width", "stem_epsilons", "stem_folded"]
    if config.rotary_embedding in (None, "dinov3"):
        without += ["rotary_grid"]
    if config.mlp.startswith("swiglu") and config.pooling != "map":
        without += ["gelu"]
    if config.position_rows == 0:
        without += ["interpolation"]
    else:  # by the number of its rows
        fields["position_embedding"] = config.position_rows - math.prod(config.grid_size)
    if config.pooling == "map":
        fields["pooling_heads"] = config.pooling_heads or config.heads
        fields["pooling_mlp_width"] = config.pooling_mlp_width or config.mlp_width
    else:
        without += ["pooling_heads", "pooling_mlp_width"]
    if config.pooling != "map" or not config.prefix_tokens:
        without += ["map_prefix"]
    if config.pooling == "none" and config.final_norm == "pooled":
        fields["final_norm"] = "tokens"
    fields["rotary_grid"] = config.rotary_grid or config.grid_size
    fields["crop_ratio"] = config.pipeline.uncropped_size
    if config.crop_ratio == 1 and config.resize == "squash":
        without += ["crop_rounding"]
    return {name: value for name, value in fields.items() if name not in without}


@dataclasses.dataclass(frozen=True)
class CheckpointInfo(PlainData):
    """The contents of a checkpoint file, as `inspect_checkpoint` returns them.

    Attributes:
        layout: Name of the file's layout, such as `"timm"`.
        dialect: Variation of the layout's array names.
        prefix: Prefix of every array name.
        variant: Name of the model, such as `"ViT-B/16"`; None if it is not a known variant.
        config: Config of the model.
        parameters: Number of weights of the model.
        bytes: Size of the file, or of all files of a sharded checkpoint.
        oddities: Sentences about unusual properties of the file and assumed settings.
        unused: Names of arrays that are not part of the model, such as those of a text tower.
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
        facts = describe(self.config, self.parameters)
        return "\n  ".join([f"{self.config.model} {facts}, {self.layout}, {megabytes(self.bytes)}", *self.oddities])

    __repr__ = __str__


def inspect_checkpoint(
    path: str | os.PathLike[str],
    grid_size: tuple[int, int] | None = None,
    max_depth: float | Literal["relative"] | None = None,
    like: str | None = None,
    state: str | None = None,
) -> CheckpointInfo:
    """Returns a `CheckpointInfo` about a checkpoint file, without loading its weights; print it for a summary.

    `path` is an `.npz`, `.safetensors` or `.pth` file, or a folder with one. `grid_size` are the rows and columns of
    position embeddings for grids that are not a square. `max_depth`, `like`, `state` and errors are as in
    `from_checkpoint`.

    Examples:
        >>> keras_vit.to_checkpoint(small, "inspected.npz")
        >>> keras_vit.inspect_checkpoint("inspected.npz").layout
        'vit_jax'
    """
    if isinstance(path, (str, os.PathLike)):  # `open_checkpoint` refuses others
        path = os.path.expanduser(path)
    plan = open_checkpoint(path, grid_size, max_depth=max_depth, like=like, state=state)
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
    """Returns the plan with the numerics and image size of vit_jax and big_vision; of a Perception Encoder, of Meta."""
    stored, image_size, problems = plan.stored, plan.image_size, []
    if not isinstance(stored, ViTConfig):
        return plan
    if stored.rotary_embedding == "pe":
        if stored.rotary_grid not in (None, stored.grid_size):
            what = f"{source}, which has {stored.grid_size} patches and rotary_grid={stored.rotary_grid}"
            raise ValueError(f"numerics='official' does not fit {what}. Pass numerics='publisher'.")
        numbers = {"rotary_grid": None, "interpolation": clip.PE_FAMILY.interpolation, **clip.PE_FAMILY.preparation}
        stored = stored.replace(**numbers | {"crop_rounding": "even"})
    else:
        defaults = {field.name: field.default for field in dataclasses.fields(ViTConfig) if field.name in OFFICIAL}
        stored, image_size = stored.replace(**defaults), None
        for layout in (LAYOUTS["vit_jax"], LAYOUTS["big_vision"]):
            try:
                note_of(stored, layout)
            except ValueError as error:
                problems.append(str(error))
        if len(problems) == 2:
            raise ValueError(f"numerics='official' does not fit {source}: pass numerics='publisher'. {problems[0]}")
    warnings = [warning for warning in plan.warnings if warning.kind != "assumed" or warning.field not in OFFICIAL]
    return dataclasses.replace(plan, stored=stored, image_size=image_size, warnings=warnings)


def _flat(config: Any) -> dict[str, Any]:
    """The fields of a config as plain data, those of a backbone as `backbone.heads`."""
    fields = config.to_dict()
    return fields | {f"backbone.{name}": value for name, value in fields.pop("backbone", {}).items()}


def _with_note(plan: Plan, note: Mapping[str, Any], source: str) -> Plan:
    """Returns the plan with the class names and the other fields of the config in a file's note."""
    # Wrong class names are left out, and `unnamed` says why.
    if not note.keys() & {*_NOTED}:
        return plan
    stored, names, unnamed = plan.stored, note.get("class_names"), ""
    try:
        if not isinstance(names, list | None):
            raise TypeError(f"class_names must be a list of strings, but {type(names).__name__} was found.")
        stored = stored if names is None else stored.replace(class_names=names)
    except (TypeError, ValueError, RecursionError) as error:
        unnamed = f"the class names in the file are ignored: {printable(error, 200)}"
    read, instead = _flat(stored), note.get("instead_of")
    instead = instead if isinstance(instead, dict) else {}
    # Where what lies beside the file says something else than when it was written, that counts.
    known = {
        name: note[name]
        for name in _NOTED[1:]
        if name in note and name in read and instead.get(name, read[name]) == read[name]
    }
    with accounting.readable(f"The settings that keras_vit wrote into {source} cannot be read"):
        of_backbone = {name.partition(".")[2]: known.pop(name) for name in _OF_BACKBONE if name in known}
        if of_backbone:
            known["backbone"] = stored.backbone.replace(**of_backbone)
        stored = stored.replace(**known)
    return dataclasses.replace(plan, stored=stored, unnamed=unnamed)
