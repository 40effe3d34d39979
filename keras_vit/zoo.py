"""Models by name and from files: the functions that most users need."""

import dataclasses
import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from keras_vit._arguments import DType, ImageSize, Source, Tensor
from keras_vit.checkpoints import (
    config_in_file,
    find_checkpoint,
    find_recommended,
    is_copy,
    is_keras_file,
    is_variant,
    load_model,
    names_beside,
    open_checkpoint,
    pair_in,
    read_keras,
    resolve_source,
)
from keras_vit.models import (
    MODELS,
    VARIANTS,
    BiT,
    BiTConfig,
    DenseConfig,
    DenseModel,
    ModelConfig,
    VisionTransformer,
    ViTConfig,
    factory_name,
    find_variant,
    has_layers_of,
    variant_config,
    variant_of,
)
from keras_vit.models.options import OF_TRANSFORMERS, check_pooling, with_options

P = ParamSpec("P")
T = TypeVar("T")


def load(
    source: Source,
    *,
    image_size: ImageSize | Literal["dynamic"] | None = None,
    like: str | None = None,
    grid_size: tuple[int, int] | None = None,
    heads: int | None = None,
    architecture: str | None = None,
    head: Source | None = None,
    max_depth: float | Literal["relative"] | None = None,
    numerics: Literal["official", "publisher"] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    include_top: bool = True,
    pre_logits: bool | None = None,
    pooling: str | None = None,
    classifier_activation: str | None = None,
    include_preprocessing: bool | None = None,
    channels: int | None = None,
    interpolation: str | None = None,
    dropout: float | None = None,
    attention_dropout: float | None = None,
    patch_drop: float | None = None,
    drop_path: float | None = None,
    remat: bool | None = None,
    input_tensor: Tensor | None = None,
    name: str | None = None,
    dtype: DType = None,
) -> VisionTransformer | BiT | DenseModel:
    """The model that a user names, whatever kind of thing holds it.

    An option that is None is as the source has it: files of Keras say all of it; checkpoints say nothing of activations
    (logits), rates (0) and preprocessing (outside the model). An option that a source cannot honour is an error. Every
    array is used or deliberately left, every weight set once; anything else is an error. See docs/loading.md.

    Args:
        source: A variant such as `"ViT-B/16"`, which stands for its recommended ImageNet-1k checkpoint; a name of the
            catalogue (see `list_weights`); `"glyphs"`, the one that comes along; an address; or the path of an `.npz`,
            `.safetensors`, `.pth`, `.keras` or `.weights.h5` of a known layout, or of a folder with one and its JSON
            files. A file comes before a variant of the same name.
        image_size: Height and width in pixels, an integer for squares, or `"dynamic"` for any size at run time;
            position embeddings are resized.
        grid_size: Rows and columns of a checkpoint's position embeddings, where they are no square. Not needed where
            `image_size` is the one that it was trained at, or for files written by `to_checkpoint`.
        like: A model that stands for all that a bare file of PyTorch does not tell (heads, GELU, epsilon, resizing of
            positions, preprocessing): a variant such as `"DINOv2-S/14"`, or timm's name of one, such as
            `"vit_base_patch16_clip_quickgelu_224"`. One that contradicts the arrays or the JSON files is an error.
        heads: Deprecated: the number of attention heads. `like` says it.
        architecture: Deprecated: timm's name of the model. `like` takes it.
        head: The file of a head for segmentation or depth that is published without its backbone, which `source` is.
        max_depth: Of a depth model whose file does not tell: the largest depth in metres, or `"relative"` for depth
            without a unit. None: what its name suggests, with a warning.
        numerics: `"publisher"`: the model computes what it does where the file comes from. `"official"`: what the
            official code does (GELU, epsilon, resizing and preprocessing), for weights that it has trained. None:
            the official numbers for a name of the catalogue, the publisher's for a file or an address.
        classes: Outputs of the head. Another number than the source's gives a new, zero-initialised head and drops the
            pre-logits, as the original does. Without the top it has no effect, as in keras.applications.
        class_names: What the outputs stand for, in order. None for the names in the file, or in a `classes.txt`
            beside it that has as many lines as the file has classes.
        include_top: Whether the head is there, and what else comes after pooling.
        pre_logits: Whether the tanh layer before the head is there. None: with the source's own head, not a new one.
        pooling: `"token"`, `"token_dist"`, `"avg"`, `"token_avg"` or `"map"`; `"none"` puts the head on every token.
            None for the source's own; without the top for the sequence of all tokens. A BiT has no tokens: `"avg"`, or
            None without the top for its last map.
        classifier_activation: Name of an activation on the head; `"linear"` for logits.
        include_preprocessing: Whether the model takes pixels of 0..255 and scales them to [-1, 1] itself.
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
        dtype: Dtype policy, such as `"mixed_bfloat16"`; None for a Keras file's own, or the global one.

    Returns:
        A `VisionTransformer`, a `BiT` or, with a head for segmentation or depth, a `DenseModel`. It is not compiled;
        what is frozen in a Keras file stays so.

    Raises:
        FileNotFoundError, DownloadError: if there is no such file, or it cannot be fetched.
        TypeError, ValueError: if the source is none of these, damaged or incomplete, or cannot honour an option.

    Examples:
        >>> keras_vit.load("glyphs", classifier_activation="softmax").output_shape
        (None, 164)
        >>> keras_vit.load("glyphs", image_size=32, classes=10).config.grid_size  # a new head, of zeros
        (8, 8)
    """
    if channels is not None and input_tensor is not None:
        raise ValueError("channels and input_tensor: call the model with other channels on the tensor instead.")
    path = find_recommended(str(source)) if is_variant(source) else resolve_source(source)
    from_keras = is_keras_file(path)
    arrays: dict[str, Any] = {"like": like, "grid_size": grid_size, "heads": heads, "architecture": architecture}
    arrays["max_depth"] = max_depth
    if from_keras:
        for option, value in {**arrays, "head": head, "numerics": numerics, "input_tensor": input_tensor}.items():
            if value is not None:
                raise ValueError(f"{path} says all of its model itself: leave {option}={value!r} out.")
        model = read_keras(path)
        base = model.config
    else:
        path, head = pair_in(path) if head is None else (path, find_checkpoint(head))
        path, name_or_path = find_checkpoint(path), path
        arrays["head"] = head
        arrays["numerics"] = "official" if numerics is None and is_copy(name_or_path, path) else numerics
        plan = open_checkpoint(path, image_size=None if image_size == "dynamic" else image_size, **arrays)
        base = plan.config
        if isinstance(base, BiTConfig) and image_size is None:
            image_size = _size_of_bit(input_tensor)
    options = {
        "classes": classes,
        "include_top": include_top,
        "pre_logits": pre_logits,
        "pooling": pooling,
        "classifier_activation": classifier_activation,
        "include_preprocessing": include_preprocessing,
        "interpolation": interpolation,
        "dropout": dropout,
        "attention_dropout": attention_dropout,
        "patch_drop": patch_drop,
        "drop_path": drop_path,
        "remat": remat,
    }
    if isinstance(base, DenseConfig):
        foreign = {"include_top": None if include_top else False, "channels": channels, "numerics": numerics}
        _refuse({**options, **foreign}, f"{path}", base.model)
        named = _with_names_beside(base, path if head is None else head)
        class_names = named.class_names if class_names is None and named is not base else class_names
        changes = {"image_size": image_size, "class_names": class_names, "name": name, "dtype": dtype}
        if from_keras:
            given: dict[str, Any] = {option: value for option, value in changes.items() if value is not None}
            return model.with_config(**given) if given else model
        config = base if image_size is None else base.with_image_size(image_size)
        config = config if class_names is None else config.replace(class_names=class_names)
        return load_model(path, plan, config, input_tensor=input_tensor, name=name, dtype=dtype)
    base = _with_names_beside(base, path)
    config = with_options(base, str(path), image_size=image_size, class_names=class_names, **options)
    keep_head = classes in (None, base.classes)
    check_pooling(base, config, str(path), keep_head)
    if not from_keras:
        build = {"input_tensor": input_tensor, "name": name, "dtype": dtype}
        model = load_model(path, plan, config, keep_head=keep_head, **build)
        return model if channels in (None, config.channels) else model.with_config(channels=channels)
    channels = None if channels == base.channels else channels
    names = [field.name for field in dataclasses.fields(config)]
    changes = {name: getattr(config, name) for name in names if getattr(config, name) != getattr(model.config, name)}
    asked = {"pooling": pooling, "name": name, "dtype": dtype, "channels": channels}
    changes |= {option: value for option, value in asked.items() if value is not None}
    return model.with_config(**changes) if changes else model


def _refuse(options: Mapping[str, Any], source: str, what: str) -> None:
    """Raises ValueError where an option is given that a dense model has no use for."""
    for option, value in options.items():
        if value is not None:
            raise ValueError(f"{option}={value!r} makes no sense for {source}, which holds a model of the kind {what}.")


def _with_old_name(function: Callable[P, T]) -> Callable[P, T]:
    @functools.wraps(function)
    def from_checkpoint(*args: P.args, **kwargs: P.kwargs) -> T:
        if "path" in kwargs:
            warnings.warn("path= is called source= now.", DeprecationWarning, stacklevel=2)
            args = (kwargs.pop("path"), *args)  # ty: ignore[invalid-assignment]
        return function(*args, **kwargs)

    return from_checkpoint


from_checkpoint = _with_old_name(load)
"""Another name of `load`."""


def as_model(model: Any) -> Any:
    """The model itself, or what `load` makes of a name, an address or a path."""
    return load(model) if isinstance(model, (str, os.PathLike)) else model


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
    channels: int | None = None,
    interpolation: str | None = None,
    class_token: bool | None = None,
    representation_size: int | None = None,
    dropout: float | None = None,
    attention_dropout: float | None = None,
    patch_drop: float | None = None,
    drop_path: float | None = None,
    remat: bool = False,
    input_tensor: Tensor | None = None,
    name: str | None = None,
    dtype: DType = None,
) -> VisionTransformer | BiT:
    """A model of the papers by its name, with the conventions of keras.applications: new, or `load`ed.

    Also a BiT, the ResNet that the first paper compares with, by a name such as `"BiT-R50x1"`. Arguments that are about
    tokens, position embeddings and dropout make no sense for it and are refused. The arguments that are
    not listed here are those of `load`.

    - `variant`: The paper's name, such as `"ViT-B/16"`; case and punctuation do not matter (but g is not G).
    - `pretrained`: Whether to load the recommended ImageNet-1k checkpoint of the variant, which is downloaded once.
    - `weights`: What `load` takes and holds this variant, or a `.weights.h5` that this same model saved. None for new
      random weights; these have 1,000 `classes`, or as many as there are `class_names`, the variant's official rate of
      `dropout`, and `pooling="token"`, or `"avg"` without a class token.
    - `image_size`: None for the checkpoint's own, or the variant's, which is 224 for those of the first papers; for a
      BiT, which has no size of its own, the same as `"dynamic"`.
    - `classifier_activation`: Name of an activation on the head; None for logits.
    - `class_token`: Whether there is a class token. None for the checkpoint's, or the variant's own without weights.
    - `representation_size`: Without weights, the length of the tanh layer before the head; None for no such layer.

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
    variant = find_variant(variant)
    if weights == "imagenet":
        raise ValueError("weights='imagenet' is how keras.applications says it: pass pretrained=True.")
    if pretrained:
        if weights is not None:
            raise ValueError(f"pretrained=True chooses the weights itself, but weights={weights!r} was given, too.")
        weights = find_recommended(variant)
    own_weights = weights is not None and os.fspath(weights).endswith(".weights.h5")
    base = variant_config(variant) if weights is None or own_weights else _config_of(weights, variant)
    options: dict[str, Any] = {
        "image_size": image_size,
        "classes": classes,
        "class_names": class_names,
        "include_top": include_top,
        "pooling": pooling,
        "include_preprocessing": include_preprocessing,
        "interpolation": interpolation,
        "dropout": dropout,
        "attention_dropout": attention_dropout,
        "patch_drop": patch_drop,
        "drop_path": drop_path,
        "remat": remat,
    }
    if include_top and (classes or base.classes):
        options["classifier_activation"] = classifier_activation or "linear"
    build: dict[str, Any] = {"input_tensor": input_tensor, "name": name, "dtype": dtype}
    if weights is not None and not own_weights:
        for argument, value in (("class_token", class_token), ("representation_size", representation_size)):
            if value not in (None, getattr(base, argument, None)):
                raise ValueError(f"{argument}={value} contradicts {weights}: leave it out, the file tells.")
        return load(weights, **options, **build, channels=channels)

    base = base if channels is None else base.replace(channels=channels)
    if isinstance(base, ViTConfig):
        if class_token is not None:
            base = base.replace(class_token=class_token, pooling="token" if class_token else "avg")
        base = base.replace(representation_size=representation_size)
        options["pre_logits"] = include_top and bool(representation_size)
    else:
        options |= {"class_token": class_token, "representation_size": representation_size}
        options["image_size"] = _size_of_bit(input_tensor) if image_size is None else image_size
    if classes is None and include_top and isinstance(class_names, Sequence):
        options["classes"] = len(class_names)
    config = with_options(base, variant, **options)
    if weights is not None and config.class_names is None and os.path.isfile(weights):
        saved = config_in_file(weights)
        if saved is not None and saved.classes == config.classes:
            config = config.replace(class_names=saved.class_names)
        config = _with_names_beside(config, weights)
    model = MODELS[type(config)](config, **build)
    if weights is not None:
        model.load_weights(weights)
    return model


def _config_of(weights: Source, variant: str) -> ModelConfig:
    """The config of a source of weights; ValueError if it is none of the variant that is asked for."""
    path = resolve_source(weights)
    config = config_in_file(path) if is_keras_file(path) else open_checkpoint(find_checkpoint(path)).config
    if config is None or not has_layers_of(config, variant):
        known = config and variant_of(config)
        raise ValueError(
            f"{weights} holds {known or 'a model that is no known variant'}, but {variant} was asked for. Load it with "
            "keras_vit.load(path), which takes the model from the file."
        )
    return config


def _size_of_bit(input_tensor: Tensor | None) -> tuple[int, int] | Literal["dynamic"]:
    """The image size of a BiT where none is given: it has none of its own, so that of the input, or any."""
    height, width = (None, None) if input_tensor is None else input_tensor.shape[1:3]
    return "dynamic" if height is None or width is None else (height, width)


def _with_names_beside(config: ModelConfig, path: str | os.PathLike[str]) -> ModelConfig:
    if not getattr(config, "classes", None) or config.class_names is not None:
        return config
    try:
        names = names_beside(path)
        if names is not None and len(names) != config.classes and isinstance(config, DenseConfig):
            raise ValueError(f"{len(names)} stand in classes.txt, but there are {config.classes} classes.")
    except ValueError as error:  # the model is usable, whatever lies beside it
        warnings.warn(f"The outputs of {path} have no names: {error}", stacklevel=3)
        return config
    return config.replace(class_names=names) if names is not None and len(names) == config.classes else config


def _factory(create: Callable[Concatenate[str, P], Any], variant: str, kind: type[T]) -> Callable[P, T]:
    """`create_model` with its variant chosen, under the name and with the signature that users expect."""

    @functools.wraps(create)
    def factory(*args: P.args, **kwargs: P.kwargs) -> T:
        if "input_shape" in kwargs:
            raise TypeError(
                f"{name} has no argument input_shape={kwargs['input_shape']!r}: pass image_size=(height, width), or "
                "one integer for squares."
            )
        return create(variant, *args, **kwargs)

    name = factory.__name__ = factory.__qualname__ = factory_name(variant)
    but = ", but for what a ResNet has no use for" if kind is BiT else ""
    factory.__doc__ = f"""The {variant} of the papers: the arguments are those of `create_model`{but}.

    Examples:
        >>> model = keras_vit.{name}(classes=10)
    """
    signature = inspect.signature(create)
    left_out = ("variant", *(OF_TRANSFORMERS if kind is BiT else ()))
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name not in left_out]
    factory.__signature__ = signature.replace(parameters=parameters, return_annotation=kind)  # ty: ignore[missing-attribute]
    return factory


ViT_Ti16 = _factory(create_model, "ViT-Ti/16", VisionTransformer)
ViT_S16 = _factory(create_model, "ViT-S/16", VisionTransformer)
ViT_S32 = _factory(create_model, "ViT-S/32", VisionTransformer)
ViT_B8 = _factory(create_model, "ViT-B/8", VisionTransformer)
ViT_B16 = _factory(create_model, "ViT-B/16", VisionTransformer)
ViT_B32 = _factory(create_model, "ViT-B/32", VisionTransformer)
ViT_L16 = _factory(create_model, "ViT-L/16", VisionTransformer)
ViT_L32 = _factory(create_model, "ViT-L/32", VisionTransformer)
ViT_H14 = _factory(create_model, "ViT-H/14", VisionTransformer)
R_ViT_Ti16 = _factory(create_model, "R+ViT-Ti/16", VisionTransformer)
R26_ViT_S32 = _factory(create_model, "R26+ViT-S/32", VisionTransformer)
R26_ViT_B32 = _factory(create_model, "R26+ViT-B/32", VisionTransformer)
R50_ViT_B16 = _factory(create_model, "R50+ViT-B/16", VisionTransformer)
R50_ViT_L32 = _factory(create_model, "R50+ViT-L/32", VisionTransformer)
BiT_R50x1 = _factory(create_model, "BiT-R50x1", BiT)
BiT_R50x3 = _factory(create_model, "BiT-R50x3", BiT)
BiT_R101x1 = _factory(create_model, "BiT-R101x1", BiT)
BiT_R101x3 = _factory(create_model, "BiT-R101x3", BiT)
BiT_R152x2 = _factory(create_model, "BiT-R152x2", BiT)
BiT_R152x4 = _factory(create_model, "BiT-R152x4", BiT)

# Those of the other families, DeiT_B16, DINOv2_S14 and so on: a row of the table is all there is to say of each.
FAMILY_FACTORIES: dict[str, Callable[..., VisionTransformer]] = {
    factory_name(variant): _factory(create_model, variant, VisionTransformer)
    for variant, row in VARIANTS.items()
    if row.family != "ViT"
}
globals().update(FAMILY_FACTORIES)
