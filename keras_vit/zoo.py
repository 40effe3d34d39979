"""Models by name and from files: the functions that most users need."""

import os
import warnings
from collections.abc import Sequence
from typing import Any, Literal

from keras_vit._types import DType, ImageSize, Source, Tensor
from keras_vit.checkpoints import (
    config_in_file,
    find_checkpoint,
    is_copy,
    load_model,
    open_checkpoint,
    read_keras,
    read_weights_h5,
    recommended,
    with_names_beside,
)
from keras_vit.models import (
    BIT_VARIANTS,
    MODELS,
    BiT,
    BiTConfig,
    ModelConfig,
    VisionTransformer,
    ViTConfig,
    find_variant,
    has_layers_of,
    variant_config,
    variant_of,
)

# Options that a BiT, which is a ResNet, has no use for; and what is about the Keras model, not about its config.
OF_TRANSFORMERS = (
    "pre_logits",
    "interpolation",
    "class_token",
    "representation_size",
    "dropout",
    "attention_dropout",
    "drop_path",
    "remat",
)
_OF_THE_MODEL = ("input_tensor", "name", "dtype")
# What files of PyTorch's models leave open.
_OF_OPEN_FILES = ("heads", "architecture", "numerics")


def create_model(
    variant: str,
    *,
    pretrained: bool = False,
    weights: Source | None = None,
    image_size: ImageSize | Literal["dynamic"] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    include_top: bool = True,
    pooling: str | None = None,
    classifier_activation: str | None = "softmax",
    include_preprocessing: bool = False,
    interpolation: str | None = None,
    class_token: bool | None = None,
    representation_size: int | None = None,
    dropout: float | None = None,
    attention_dropout: float | None = None,
    drop_path: float | None = None,
    remat: bool = False,
    input_tensor: Tensor | None = None,
    name: str | None = None,
    dtype: DType = None,
) -> VisionTransformer | BiT:
    """A Vision Transformer of the papers.

    Or a BiT, the ResNet that the first paper compares with, by a name such as `"BiT-R50x1"`. Arguments that are about
    tokens, position embeddings and dropout make no sense for it and are refused.

    Args:
        variant: The paper's name, such as `"ViT-B/16"`; case and punctuation do not matter (but g is not G).
        pretrained: Whether to load the recommended ImageNet-1k checkpoint of the variant, which is downloaded once.
        weights: A name of the catalogue (see `list_weights`), an address, the path of a checkpoint `.npz` of a known
            layout, or of a `.weights.h5` that this same model saved. None for new random weights.
        image_size: Height and width in pixels, an integer for squares, or `"dynamic"` for any size at run time.
            None for the checkpoint's own, or the variant's, which is 224 for those of the first papers; for a BiT,
            which has no size of its own, the same as `"dynamic"`.
        classes: Outputs of the head. None for the checkpoint's head, or 1,000 without weights. Another number than
            the checkpoint's gives a new, zero-initialised head and drops the pre-logits, as the original does.
        class_names: What the outputs stand for, in order; without weights they also say how many `classes` there
            are. None for those that the checkpoint names, or none.
        include_top: Whether the head is there, and what else comes after pooling.
        pooling: Without the top: `"token"`, `"avg"`, `"map"`, or None for the sequence of all tokens. With it: None
            for the variant's own (`"token"`, or `"avg"` without a class token); `"none"` puts the head on every
            token. A BiT has no tokens: `"avg"`, or None without the top for its last map.
        classifier_activation: Name of an activation on the head; None for logits.
        include_preprocessing: Whether the model takes pixels of 0..255 and scales them to [-1, 1] itself.
        interpolation: How position embeddings change size: `"official"` (as the original code), `"bicubic"` (as
            timm), `"bicubic_hf"` (as Hugging Face), `"bicubic_offset"` (as Facebook's DINO), `"bilinear"`,
            `"bilinear_antialias"` (as FlexiViT). None for the checkpoint's, or the variant's own.
        class_token: Whether there is a class token. None for the checkpoint's, or the variant's own without weights.
        representation_size: Without weights, the length of the tanh layer before the head; None for no such layer.
        dropout: Rate in the encoder. None for the variant's official rate without weights, and 0 with.
        attention_dropout: Rate on the attention weights; None for 0, as everywhere in the official configurations.
        drop_path: Stochastic depth of the last block; None for 0.
        remat: Whether blocks are recomputed in the backward pass to save memory.
        input_tensor: Keras tensor to build the model on.
        name: Name of the model; None for one made from the variant.
        dtype: Dtype policy, such as `"mixed_bfloat16"`; None for Keras's global one.

    Returns:
        A `VisionTransformer`, or a `BiT`.

    Raises:
        TypeError, ValueError: if an argument makes no sense, or the file does not hold that variant.
        FileNotFoundError: if there is no file at `weights`.

    Examples:
        >>> tiny = keras_vit.create_model("ViT-mu/16", image_size=32, classes=10, classifier_activation=None)
        >>> tiny.predict(np.zeros((1, 32, 32, 3)), verbose=0).shape
        (1, 10)
    """
    options = dict(locals())
    del options["pretrained"], options["weights"]
    variant = find_variant(options.pop("variant"))
    if pretrained:
        if weights is not None:
            raise ValueError(f"pretrained=True chooses the weights itself, but weights={weights!r} was given, too.")
        weights = recommended(variant).name
    build = {name: options.pop(name) for name in _OF_THE_MODEL}
    if variant in BIT_VARIANTS:
        options = _options_of_bit(variant, options)
    else:
        del options["class_token"], options["representation_size"]
        options |= {"attention_dropout": attention_dropout or 0.0, "drop_path": drop_path or 0.0}
    if weights is not None and not str(weights).endswith(".weights.h5"):
        path = find_checkpoint(weights)
        numerics = "official" if is_copy(weights, path) else None
        weights, saved = path, open_checkpoint(path, numerics=numerics).config
        if not has_layers_of(saved, variant):
            raise ValueError(
                f"{weights} holds {variant_of(saved) or 'a model that is no known variant'}, but {variant} was asked "
                "for. Load it with keras_vit.from_checkpoint(path), which takes the model from the file."
            )
        for argument, value in (("class_token", class_token), ("representation_size", representation_size)):
            if value not in (None, getattr(saved, argument, None)):
                raise ValueError(f"{argument}={value} contradicts {weights}: leave it out, the file tells.")
        if not include_top or (classes is None and saved.classes is None):
            options["classifier_activation"] = None  # there is no head for it
        if variant not in BIT_VARIANTS:
            options["dropout"] = dropout or 0.0
        return from_checkpoint(weights, numerics=numerics, **options, **build)

    base = variant_config(variant)
    if isinstance(base, ViTConfig):
        if class_token is not None:
            base = base.replace(class_token=class_token, pooling="token" if class_token else "avg")
        base = base.replace(representation_size=representation_size)
        options["dropout"] = base.dropout if dropout is None else dropout
    elif image_size is None:
        options["image_size"] = _size_of_bit(input_tensor)
    if classes is None and include_top and isinstance(class_names, Sequence):
        options["classes"] = len(class_names)
    if not include_top:
        options["classifier_activation"] = None
    config = _adapt(base, variant, pre_logits=include_top and bool(representation_size), **options)
    if weights is not None and config.class_names is None and os.path.isfile(weights):
        saved = config_in_file(weights)
        if saved is not None and saved.classes == config.classes:
            config = config.replace(class_names=saved.class_names)
        config = _with_names_beside(config, weights)
    model = MODELS[type(config)](config, **build)
    if weights is not None:
        model.load_weights(weights)
    return model


def from_checkpoint(
    path: Source,
    *,
    image_size: ImageSize | Literal["dynamic"] | None = None,
    grid_size: tuple[int, int] | None = None,
    heads: int | None = None,
    architecture: str | None = None,
    numerics: Literal["official", "publisher"] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    include_top: bool = True,
    pre_logits: bool | None = None,
    pooling: str | None = None,
    classifier_activation: str | None = None,
    include_preprocessing: bool = False,
    interpolation: str | None = None,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    drop_path: float = 0.0,
    remat: bool = False,
    input_tensor: Tensor | None = None,
    name: str | None = None,
    dtype: DType = None,
) -> VisionTransformer | BiT:
    """The model that a checkpoint file holds; its architecture is read off the arrays.

    Every array of the file is used or deliberately left, and every weight of the model is set once; anything else
    is an error.

    Args:
        path: An `.npz`, `.safetensors` or `.pth` file of a known layout (see `inspect_checkpoint`), a folder with one
            and the JSON files that belong to it, or a name or address as in `create_model`.
        image_size: As in `create_model`; position embeddings are resized where it differs from the file's.
        grid_size: Rows and columns of the file's position embeddings, where they are no square. Not needed where
            `image_size` is the one that the file was trained at, or for files written by `to_checkpoint`.
        heads: Number of attention heads, for files of PyTorch's models that nothing beside them tells it of.
        architecture: timm's name of the model, such as `"vit_base_patch16_clip_quickgelu_224.openai"`, for files in
            timm's names without the config.json that says it.
        numerics: `"publisher"`: the model computes what it does where the file comes from. `"official"`: what the
            official code does (GELU, epsilon, resizing and preprocessing), for weights that it has trained. None:
            the official numbers for a name of the catalogue, the publisher's for a file or an address.
        classes: None for the file's head; another number than the file's for a new, zero-initialised head.
        class_names: What the outputs stand for, in order. None for the names in the file, or in a `classes.txt`
            beside it that has as many lines as the file has classes.
        include_top: Whether the head and the pre-logits are there.
        pre_logits: Whether the tanh layer before the head is there. None: with the file's own head, but not with a
            new one, as in the original's fine-tuning.
        pooling: As in `create_model`.
        classifier_activation: As in `create_model`, but logits by default.
        include_preprocessing: As in `create_model`.
        interpolation: As in `create_model`; None for the way of the code that the file comes from.
        dropout: Rate in the encoder; files do not tell which they were trained with.
        attention_dropout: As in `create_model`.
        drop_path: As in `create_model`.
        remat: As in `create_model`.
        input_tensor: As in `create_model`.
        name: As in `create_model`.
        dtype: As in `create_model`.

    Returns:
        A `VisionTransformer`, or a `BiT` where the file holds one.

    Raises:
        FileNotFoundError: if there is no such file.
        TypeError, ValueError: if the file is no complete, finite checkpoint of a known layout, or an argument makes
            no sense for it. No model is returned half-filled.

    Examples:
        >>> larger = keras_vit.from_checkpoint("glyphs", image_size=32, classes=10)  # a new head, of zeros
        >>> larger.config.grid_size
        (8, 8)
    """
    options = dict(locals())
    source = options.pop("path")
    path = find_checkpoint(source)
    size = None if image_size == "dynamic" else image_size
    untold = {name: options.pop(name) for name in ("grid_size", *_OF_OPEN_FILES)}
    if numerics is None and is_copy(source, path):
        untold["numerics"] = "official"
    contents = open_checkpoint(path, image_size=size, **untold)
    if interpolation is None:
        del options["interpolation"]
    build = {name: options.pop(name) for name in _OF_THE_MODEL}
    base = _with_names_beside(contents.config, path)
    if isinstance(base, BiTConfig):
        options = _options_of_bit(str(path), options)
        options["image_size"] = _size_of_bit(input_tensor) if image_size is None else image_size
    config = _adapt(base, str(path), **options)
    return load_model(path, contents, config, keep_head=classes in (None, base.classes), **build)


def load(
    source: Source,
    *,
    image_size: ImageSize | Literal["dynamic"] | None = None,
    grid_size: tuple[int, int] | None = None,
    heads: int | None = None,
    architecture: str | None = None,
    numerics: Literal["official", "publisher"] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    include_top: bool = True,
    pre_logits: bool | None = None,
    pooling: str | None = None,
    classifier_activation: str | None = None,
    include_preprocessing: bool | None = None,
    interpolation: str | None = None,
    dropout: float | None = None,
    attention_dropout: float | None = None,
    drop_path: float | None = None,
    remat: bool | None = None,
    name: str | None = None,
    dtype: DType = None,
) -> VisionTransformer | BiT:
    """The model that a user names, whatever kind of thing holds it.

    An option that is None is as the source has it: files of Keras say all of it; checkpoints of the original code say
    nothing of activations (logits), rates (0) and preprocessing (outside the model). An option that a source cannot
    honour is an error; docs/loading.md has a table.

    Args:
        source: A variant such as `"ViT-B/16"`, which stands for its recommended ImageNet-1k checkpoint; a name of the
            catalogue; `"glyphs"`, the one that comes along; the address of an `.npz`; or the path of an `.npz`,
            `.safetensors` or `.pth` of a known layout, of a folder with one, or of a `.keras` or `.weights.h5` file. A
            file comes before a variant of the same name.
        image_size: Height and width in pixels, or `"dynamic"` for any size; position embeddings are resized.
        grid_size: Rows and columns of an `.npz`'s position embeddings, where they are no square.
        heads: As in `from_checkpoint`.
        architecture: As in `from_checkpoint`.
        numerics: As in `from_checkpoint`.
        classes: Another number than the source's gives a new, zero-initialised head.
        class_names: What the outputs stand for, in order.
        include_top: Whether the head and the pre-logits are there.
        pre_logits: Whether the tanh layer before the head is there. None: with the source's own head, but not with a
            new one, as in the original's fine-tuning.
        pooling: As in `create_model`.
        classifier_activation: Name of an activation on the head; `"linear"` for logits.
        include_preprocessing: Whether the model takes pixels of 0..255 and scales them to [-1, 1] itself.
        interpolation: How position embeddings change size, as in `create_model`.
        dropout: Rate in the encoder.
        attention_dropout: Rate on the attention weights.
        drop_path: Stochastic depth of the last block.
        remat: Whether blocks are recomputed in the backward pass to save memory.
        name: Name of the model.
        dtype: Dtype policy, such as `"mixed_bfloat16"`; None for a Keras file's own, or the global one.

    Returns:
        A `VisionTransformer`, or a `BiT`; a Keras file's frozen layers are frozen. It is not compiled.

    Raises:
        FileNotFoundError, DownloadError: if there is no such file, or it cannot be fetched.
        TypeError, ValueError: if the source is none of these or damaged, or an option makes no sense for it.

    Examples:
        >>> keras_vit.load("glyphs", classifier_activation="softmax").output_shape
        (None, 164)
    """
    options = {option: value for option, value in locals().items() if option != "source" and value is not None}
    if not isinstance(source, (str, os.PathLike)):
        hint = " It is a model already: model.with_config(...) changes it." if hasattr(source, "with_config") else ""
        raise TypeError(f"source must be a name, an address or a path, but {type(source).__name__} was given.{hint}")
    if not str(source).endswith((".keras", ".weights.h5")):
        return from_checkpoint(recommended(str(source)).name if is_variant(source) else source, **options)
    if "://" in str(source):
        raise ValueError(
            f"{source} is the address of a Keras file, which is not made for files from strangers. Download it "
            "yourself if you trust it, and pass the path; addresses of .npz files are fetched."
        )
    if grid_size is not None:
        raise ValueError(f"{source} says its grid itself: leave grid_size={grid_size} out.")
    for option in _OF_OPEN_FILES:
        if option in options:
            raise ValueError(f"{source} says all of its model itself: leave {option}={options[option]!r} out.")
    model = (read_keras if str(source).endswith(".keras") else read_weights_h5)(source)
    build = {option: options.pop(option) for option in ("name", "dtype") if option in options}
    if isinstance(model.config, BiTConfig):
        options = _options_of_bit(str(source), options)
    config = _adapt(_with_names_beside(model.config, source), str(source), **options)
    changes = {field: value for field, value in vars(config).items() if value != getattr(model.config, field)}
    if pooling is not None:
        changes["pooling"] = pooling
    return model.with_config(**build, **changes) if build or changes else model


def as_model(model: Any) -> Any:
    """The model itself, or what `load` makes of a name, an address or a path."""
    return load(model) if isinstance(model, (str, os.PathLike)) else model


def _options_of_bit(source: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options without those for Transformers; ValueError where one of these asks for something."""
    concerned = {name: options[name] for name in OF_TRANSFORMERS if name in options}
    refused = [f"{name}={value!r}" for name, value in concerned.items() if value not in (None, False, 0, "official")]
    if refused:
        raise ValueError(
            f"{source} has no use for {', '.join(refused)}: a BiT is a ResNet, without tokens, position embeddings and "
            "dropout. Leave it out."
        )
    return {name: value for name, value in options.items() if name not in concerned}


def _size_of_bit(input_tensor: Tensor | None) -> tuple[int, int] | Literal["dynamic"]:
    """The image size of a BiT where none is given: it has none of its own, so that of the input, or any."""
    height, width = (None, None) if input_tensor is None else input_tensor.shape[1:3]
    return "dynamic" if height is None or width is None else (height, width)


def _adapt(
    base: ModelConfig,
    source: str,
    *,
    include_top: bool = True,
    image_size: ImageSize | Literal["dynamic"] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    pre_logits: bool | None = None,
    pooling: str | None = None,
    classifier_activation: str | None = None,
    **fields: Any,
) -> ModelConfig:
    """The config that a user asks for, from the one of the source.

    Args:
        base: The config of the variant or of the file.
        source: Its name, for messages.
        include_top: See `load`, as for the others.
        image_size: None for that of `base`.
        classes: None for those of `base`.
        class_names: None for those of `base`.
        pre_logits: None for those of `base` where its head stays.
        pooling: None for that of `base`, or none without the top.
        classifier_activation: None for that of `base`.
        fields: Other fields of the config; None for those of `base`.

    Raises:
        TypeError, ValueError: if the config cannot be so.
    """
    fields = {name: value for name, value in fields.items() if value is not None}
    if image_size == "dynamic":
        fields["dynamic"] = True
    elif image_size is not None:
        fields |= {"image_size": image_size, "dynamic": False}
    if not include_top:
        for option, value in (
            ("classes", classes),
            ("class_names", class_names),
            ("pre_logits", pre_logits or None),
            ("classifier_activation", classifier_activation),
        ):
            if value is not None:
                raise ValueError(f"{option}={value!r} needs include_top=True; without the top there is no head.")
        if isinstance(base, ViTConfig):
            fields |= {"representation_size": None, "projection": None, "distillation_head": False}
        return base.replace(classes=None, classifier_activation=None, pooling=pooling or "none", **fields)
    keep_head = classes in (None, base.classes)
    has_pre_logits = isinstance(base, ViTConfig) and base.representation_size is not None
    if pre_logits and not has_pre_logits:
        raise ValueError(f"{source} has no pre-logits: leave pre_logits=True out.")
    if has_pre_logits and pre_logits is False and keep_head and base.classes:
        raise ValueError(
            f"The head of {source} reads its pre-logits, so pre_logits=False needs a new head: pass classes=..., or "
            "include_top=False for features."
        )
    if has_pre_logits and not (keep_head if pre_logits is None else pre_logits):
        fields["representation_size"] = None
    if classifier_activation is not None:
        if not (classes or base.classes):
            raise ValueError(
                f"classifier_activation={classifier_activation!r} needs a head, but {source} has none. Pass "
                "classes=... for a new one."
            )
        fields["classifier_activation"] = None if classifier_activation == "linear" else classifier_activation
    for field, value in (("classes", classes), ("class_names", class_names), ("pooling", pooling)):
        if value is not None:
            fields[field] = value
    return base.replace(**fields)


def _with_names_beside(config: ModelConfig, path: str | os.PathLike[str]) -> ModelConfig:
    try:
        return with_names_beside(config, path)
    except ValueError as error:  # the model is usable, whatever lies beside it
        warnings.warn(f"The outputs of {path} have no names: {error}", stacklevel=3)
        return config


def is_variant(source: Any) -> bool:
    """Whether a source is the name of a variant, and not a file of that name."""
    if not isinstance(source, str) or os.path.exists(source):
        return False
    try:
        find_variant(source)
    except ValueError:
        return False
    return True
