"""The options of `load` and `create_model`, and the changes of a config that they stand for."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import numpy as np

from keras_vit._arguments import DType, ImageSize, Source, Tensor, did_you_mean
from keras_vit.models.config import Config, ViTConfig
from keras_vit.models.dense_config import DenseConfig


class ModelOptions(TypedDict, total=False):
    """What `load` and `create_model` can change of a model.

    An option that is None or left out is as the source has it. One that a model cannot honour is an error.

    Attributes:
        image_size: Height and width in pixels, an integer for squares, or `"dynamic"` for any size at run time;
            position embeddings are resized.
        classes: Outputs of the head. Another number than the source's makes a new, zero-initialised head and drops the
            pre-logits, as the original does. Without the top it has no effect, as in keras.applications.
        class_names: What the outputs stand for, in order. None for the names in the file, or in a `classes.txt`
            beside it that has as many lines as the file has classes.
        include_top: Whether the head is there, and what else comes after pooling.
        pooling: `"token"`, `"token_dist"`, `"avg"`, `"token_avg"` or `"map"`; `"none"` puts the head on every token.
            None for the source's; without the top for the sequence of all tokens. A BiT has no tokens: `"avg"`, or
            None without the top for its last map.
        classifier_activation: Name of an activation on the head; `"linear"` for logits.
        include_preprocessing: Whether the model takes pixels of 0..255 and normalises them itself.
        channels: Channels of the images, where they are not red, green and blue: as `with_config(channels=...)`.
        interpolation: How position embeddings change size: `"official"` (as the original code), `"bicubic"` (as
            timm), `"bicubic_hf"` (as Hugging Face), `"bicubic_offset"` (as Facebook's DINO), `"bilinear"`,
            `"bilinear_antialias"` (as FlexiViT). None for the way of the code that the source comes from.
        dropout: Rate in the encoder.
        attention_dropout: Rate on the attention weights.
        patch_drop: Share of the patches that each image goes without while training.
        drop_path: Stochastic depth of the last block.
        remat: Whether blocks are recomputed in the backward pass to save memory.
        input_tensor: Keras tensor to build the model on; not for files of Keras.
        name: Name of the model.
        dtype: Dtype policy, such as `"mixed_bfloat16"`; None for a Keras file's, or the global one.

    Examples:
        >>> options: keras_vit.ModelOptions = {"image_size": 32, "classes": 10}
        >>> keras_vit.load("glyphs", **options).output_shape
        (None, 10)
    """

    image_size: ImageSize | Literal["dynamic"] | None
    classes: int | None
    class_names: Sequence[str] | None
    include_top: bool
    pooling: str | None
    classifier_activation: str | None
    include_preprocessing: bool | None
    channels: int | None
    interpolation: str | None
    dropout: float | None
    attention_dropout: float | None
    patch_drop: float | None
    drop_path: float | None
    remat: bool | None
    input_tensor: Tensor | None
    name: str | None
    dtype: DType


class LoadOptions(ModelOptions, total=False):
    """The options of `load`: what says more of a source than itself, and all others of `ModelOptions`.

    Attributes:
        like: A model that stands for all that a bare file of PyTorch does not tell (heads, GELU, epsilon, resizing of
            positions, preprocessing): a variant such as `"DINOv2-S/14"`, or timm's name of one, such as
            `"vit_base_patch16_clip_quickgelu_224"`. One that contradicts the arrays or the JSON files is an error.
        grid_size: Rows and columns of a checkpoint's position embeddings, where they are no square. Not needed where
            `image_size` is the one that it was trained at, or for files written by `to_checkpoint`.
        heads: Deprecated: the number of attention heads. `like` says it.
        architecture: Deprecated: timm's name of the model. `like` takes it.
        head: The file of a head for segmentation or depth that is published without its backbone, which `source` is.
        max_depth: Of a depth model whose file does not tell: the largest depth in metres, or `"relative"` for depth
            without a unit. None: what its name suggests, with a warning.
        numerics: `"publisher"`: the model computes what it does where the file comes from. `"official"`: what the
            official code does (GELU, epsilon, resizing and preprocessing), for weights that it has trained. None:
            the official numbers for a name of the catalogue, the publisher's for a file or an address.
        pre_logits: Whether the tanh layer before the head is there. None: with the source's head, not with a new one.

    Examples:
        >>> options: keras_vit.LoadOptions = {"numerics": "official"}
        >>> keras_vit.load("glyphs", **options).config.gelu
        'tanh'
    """

    like: str | None
    grid_size: tuple[int, int] | None
    heads: int | None
    architecture: str | None
    head: Source | None
    max_depth: float | Literal["relative"] | None
    numerics: Literal["official", "publisher"] | None
    pre_logits: bool | None


class CreateOptions(ModelOptions, total=False):
    """The options of `create_model`: where the weights come from, and all others of `ModelOptions`.

    Attributes:
        pretrained: Whether to load the recommended ImageNet-1k checkpoint of the variant, which is downloaded once.
        weights: What `load` takes and holds this variant, or a `.weights.h5` that this same model saved. None for new
            random weights; these have 1,000 `classes`, or as many as there are `class_names`, the variant's official
            rate of `dropout`, and `pooling="token"`, or `"avg"` without a class token.
        class_token: Whether there is a class token. None for the checkpoint's, or the variant's without weights.
        representation_size: Without weights, the length of the tanh layer before the head; None for no such layer.

    Examples:
        >>> options: keras_vit.CreateOptions = {"image_size": 32, "representation_size": 24}
        >>> keras_vit.ViT_Ti16(**options).config.representation_size
        24
    """

    pretrained: bool
    weights: Source | None
    class_token: bool | None
    representation_size: int | None


OF_SOURCES = ("like", "grid_size", "heads", "architecture", "head", "max_depth", "numerics")
OF_BUILDING = ("input_tensor", "name", "dtype")


def given_options(function: str, options: Mapping[str, Any], known: Any) -> dict[str, Any]:
    """Returns the options that are not None; `known` is the `TypedDict` that declares those of `function`.

    Raises TypeError for a name that it does not declare, with the nearest option, and where `include_top`, `pre_logits`
    or `pretrained` is not True or False; other values are not checked here.
    """
    for name in options.keys() - known.__annotations__.keys():
        words = f"{function} has no argument {name}={options[name]!r}"
        if name == "input_shape":
            raise TypeError(f"{words}: pass image_size=(height, width), or one integer for squares.")
        raise TypeError(f"{words}.{did_you_mean(name, {option: option for option in known.__annotations__})}")
    given = {name: value for name, value in options.items() if value is not None}
    for name in ("include_top", "pre_logits", "pretrained"):
        if not isinstance(given.get(name, True), (bool, np.bool_)):
            raise TypeError(f"{name} must be True or False, but {given[name]!r} was given.")
    return given


def _keeps_pre_logits(config: Config, changes: Mapping[str, Any], pre_logits: bool | None, source: str) -> bool:
    """Returns whether the pre-logits stay as the model has them: as the option says; for None with the source's head.

    Raises ValueError for `pre_logits=True` where there are none, and for False beside a head that is kept.
    """
    if getattr(config, "representation_size", None) is None:
        if pre_logits:
            raise ValueError(f"{source} has no pre-logits: leave pre_logits=True out.")
        return True
    classes = getattr(config, "classes", None)
    keeps_head = changes.get("classes", classes) == classes
    if pre_logits is False and keeps_head and classes:
        words = f"pre_logits=False needs a new head, because that of {source} reads them"
        raise ValueError(f"{words}: pass classes=..., or include_top=False for features.")
    return keeps_head if pre_logits is None else pre_logits


def config_changes(config: Config, options: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns the changes of fields that options stand for, for `changed_config`; values are not checked here.

    Options of reading and of building (`OF_SOURCES`, `OF_BUILDING`) are left out; `source` names the model in messages.
    Raises ValueError for options that such a model does not have, and for those of a head where there is none.
    """
    is_dense = isinstance(config, DenseConfig)
    known = {"image_size", *(field.name for field in dataclasses.fields(config))}
    if not is_dense:
        known.add("include_top")
    if "representation_size" in known:
        known.add("pre_logits")
    changes, refused = {}, []
    for name, value in options.items():
        if name in OF_SOURCES or name in OF_BUILDING:  # some are called as fields are: max_depth, heads
            continue
        if name in known:
            changes[name] = value
        elif name == "include_top" and value:
            continue
        elif is_dense or value not in (False, 0, "official"):  # which is how a BiT is
            refused.append(f"{name}={value!r}")
    if refused:
        kind = f"a model of the kind {config.model}" if is_dense else "a BiT, a ResNet without tokens and dropout"
        raise ValueError(f"{source} has no use for {', '.join(refused)}: it is {kind}. Leave it out.")
    include_top, pre_logits = changes.pop("include_top", True), changes.pop("pre_logits", None)
    if not include_top:
        return _without_top(config, changes, pre_logits)

    classes = getattr(config, "classes", None)
    if not _keeps_pre_logits(config, changes, pre_logits, source):
        changes["representation_size"] = None
    activation = changes.get("classifier_activation")
    if activation is not None and not (changes.get("classes") or classes):
        words = f"classifier_activation={activation!r} needs a head, but {source} has none"
        raise ValueError(f"{words}. Pass classes=... for a new one.")
    if activation == "linear":
        changes["classifier_activation"] = None
    return changes


def _without_top(config: Config, changes: dict[str, Any], pre_logits: bool | None) -> dict[str, Any]:
    """Returns changes that leave out all that comes after pooling, and by default pooling too; `classes` has no effect.

    Raises ValueError for class names, pre-logits or an activation, which need a head.
    """
    for option, value in {**changes, "pre_logits": pre_logits or None}.items():
        if option in ("class_names", "pre_logits", "classifier_activation") and value is not None:
            raise ValueError(f"{option}={value!r} needs include_top=True; without the top there is no head.")
    changes = {"pooling": "none", **changes, "classes": None, "classifier_activation": None}
    if isinstance(config, ViTConfig):
        changes |= {"representation_size": None, "projection": None}
        changes |= {"projection_bias": False, "distillation_head": False}
    return changes
