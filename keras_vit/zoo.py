"""Models by name and from files: the functions that most users need."""

import os
import warnings
from collections.abc import Sequence
from typing import Any

from keras_vit.checkpoints import (
    config_in_file,
    find_checkpoint,
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
    VisionTransformer,
    ViTConfig,
    find_variant,
    variant_config,
    variant_of,
)


def create_model(
    variant: str,
    *,
    pretrained: bool = False,
    weights: str | os.PathLike[str] | None = None,
    image_size: int | tuple[int, int] | str | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    include_top: bool = True,
    pooling: str | None = None,
    classifier_activation: str | None = "softmax",
    include_preprocessing: bool = False,
    interpolation: str = "official",
    class_token: bool | None = None,
    representation_size: int | None = None,
    dropout: float | None = None,
    attention_dropout: float | None = None,
    drop_path: float | None = None,
    remat: bool = False,
    input_tensor: Any = None,
    name: str | None = None,
    dtype: Any = None,
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
            None for the checkpoint's own, or 224; for a BiT, which has no size of its own, the same as `"dynamic"`.
        classes: Outputs of the head. None for the checkpoint's head, or 1,000 without weights. Another number than
            the checkpoint's gives a new, zero-initialised head and drops the pre-logits, as the original does.
        class_names: What the outputs stand for, in order; without weights they also say how many `classes` there
            are. None for those that the checkpoint names, or none.
        include_top: Whether the head is there.
        pooling: Without the top: `"token"`, `"avg"`, `"map"`, or None for the sequence of all tokens. With it: None
            for the variant's own (`"token"`, or `"avg"` without a class token); `"none"` puts the head on every
            token. A BiT has no tokens: `"avg"`, or None without the top for its last map.
        classifier_activation: Name of an activation on the head; None for logits.
        include_preprocessing: Whether the model takes pixels of 0..255 and scales them to [-1, 1] itself.
        interpolation: How position embeddings change size: `"official"` (as the original code), `"bicubic"` (as
            timm), `"bilinear"`, `"bilinear_antialias"` (as FlexiViT).
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
    """
    variant = find_variant(variant)
    if pretrained:
        if weights is not None:
            raise ValueError(f"pretrained=True chooses the weights itself, but weights={weights!r} was given, too.")
        weights = recommended(variant).name
    if variant in BIT_VARIANTS:
        _refuse(
            variant,
            interpolation=interpolation,
            class_token=class_token,
            representation_size=representation_size,
            dropout=dropout,
            attention_dropout=attention_dropout,
            drop_path=drop_path,
            remat=remat,
        )
    options: dict[str, Any] = {
        "image_size": image_size,
        "classes": classes,
        "class_names": class_names,
        "include_top": include_top,
        "pooling": pooling,
        "classifier_activation": classifier_activation,
        "include_preprocessing": include_preprocessing,
        "interpolation": interpolation,
        "attention_dropout": attention_dropout or 0.0,
        "drop_path": drop_path or 0.0,
        "remat": remat,
    }
    build: dict[str, Any] = {"input_tensor": input_tensor, "name": name, "dtype": dtype}
    if weights is not None and not str(weights).endswith(".weights.h5"):
        weights = find_checkpoint(weights)
        held = open_checkpoint(weights).config
        found = variant_of(held)
        if found != variant:
            raise ValueError(
                f"{weights} holds {found or 'a model that is no known variant'}, but {variant} was asked for. Load it "
                "with keras_vit.from_checkpoint(path), which takes the model from the file."
            )
        for argument, value in (("class_token", class_token), ("representation_size", representation_size)):
            if value not in (None, getattr(held, argument, None)):
                raise ValueError(f"{argument}={value} contradicts {weights}: leave it out, the file tells.")
        return from_checkpoint(weights, **options, **build, dropout=dropout or 0.0)

    base = variant_config(variant)
    if isinstance(base, ViTConfig):
        if class_token is not None:
            base = base.replace(class_token=class_token, pooling="token" if class_token else "avg")
        base = base.replace(representation_size=representation_size)
        options["dropout"] = base.dropout if dropout is None else dropout
    if classes is None and include_top and isinstance(class_names, Sequence):
        options["classes"] = len(class_names)
    config = _adapt(base, pre_logits=True, input_tensor=input_tensor, **options)
    if weights is not None and config.class_names is None and os.path.isfile(weights):
        noted = config_in_file(weights)
        if noted is not None and noted.classes == config.classes:
            config = config.replace(class_names=noted.class_names)
        config = _with_names_beside(config, weights)
    model = MODELS[type(config)](config, **build)
    if weights is not None:
        model.load_weights(weights)
    return model


def from_checkpoint(
    path: str | os.PathLike[str],
    *,
    image_size: int | tuple[int, int] | str | None = None,
    grid_size: tuple[int, int] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    include_top: bool = True,
    pre_logits: bool | None = None,
    pooling: str | None = None,
    classifier_activation: str | None = None,
    include_preprocessing: bool = False,
    interpolation: str = "official",
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    drop_path: float = 0.0,
    remat: bool = False,
    input_tensor: Any = None,
    name: str | None = None,
    dtype: Any = None,
) -> VisionTransformer | BiT:
    """The model that a checkpoint file holds; its architecture is read off the arrays.

    Every array of the file is used or deliberately left, and every weight of the model is set once; anything else
    is an error.

    Args:
        path: An `.npz` file of a known layout (see `inspect_checkpoint`), or a name or address as in `create_model`.
        image_size: As in `create_model`; position embeddings are resized where it differs from the file's.
        grid_size: Rows and columns of the file's position embeddings, where they are no square. Not needed where
            `image_size` is the one that the file was trained at, or for files written by `to_checkpoint`.
        classes: None for the file's head; another number than the file's for a new, zero-initialised head.
        class_names: What the outputs stand for, in order. None for the names in the file, or in a `classes.txt`
            beside it that has as many lines as the file has classes.
        include_top: Whether the head and the pre-logits are there.
        pre_logits: Whether the tanh layer before the head is there. None: with the file's own head, but not with a
            new one, as in the original's fine-tuning.
        pooling: As in `create_model`.
        classifier_activation: As in `create_model`, but logits by default.
        include_preprocessing: As in `create_model`.
        interpolation: As in `create_model`.
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
    """
    path = find_checkpoint(path)
    contents = open_checkpoint(path, grid_size, None if image_size == "dynamic" else image_size)
    base = _with_names_beside(contents.config, path)
    if isinstance(base, BiTConfig):
        _refuse(
            str(path),
            pre_logits=pre_logits,
            interpolation=interpolation,
            dropout=dropout,
            attention_dropout=attention_dropout,
            drop_path=drop_path,
            remat=remat,
        )
    config = _adapt(
        base,
        image_size=image_size,
        classes=classes,
        class_names=class_names,
        include_top=include_top,
        pre_logits=pre_logits,
        pooling=pooling,
        classifier_activation=classifier_activation,
        include_preprocessing=include_preprocessing,
        interpolation=interpolation,
        dropout=dropout,
        attention_dropout=attention_dropout,
        drop_path=drop_path,
        remat=remat,
        input_tensor=input_tensor,
    )
    keep_head = classes in (None, base.classes)
    if pre_logits and not include_top:
        raise ValueError("pre_logits=True needs include_top=True; without the top there are no pre-logits.")
    if pre_logits and not base.representation_size:
        raise ValueError(f"{path} has no pre-logits: leave pre_logits=True out.")
    reads_pre_logits = isinstance(base, ViTConfig) and base.classes and base.representation_size
    if reads_pre_logits and include_top and keep_head and pre_logits is False:
        raise ValueError(
            f"The head of {path} reads its pre-logits, so pre_logits=False needs a new head: pass classes=..., or "
            "include_top=False for features."
        )
    return load_model(path, contents, config, keep_head=keep_head, input_tensor=input_tensor, name=name, dtype=dtype)


def _refuse(model: str, **arguments: Any) -> None:
    """Raises ValueError where an argument that is about Transformers asks a BiT for something."""
    asked = [f"{name}={value!r}" for name, value in arguments.items() if value not in (None, False, 0, "official")]
    if asked:
        raise ValueError(
            f"{model} has no use for {', '.join(asked)}: a BiT is a ResNet, without tokens, position embeddings and "
            "dropout. Leave it out."
        )


def _adapt(
    base: ViTConfig | BiTConfig,
    *,
    image_size: int | tuple[int, int] | str | None,
    classes: int | None,
    class_names: Sequence[str] | None,
    include_top: bool,
    pre_logits: bool | None,
    pooling: str | None,
    classifier_activation: str | None,
    include_preprocessing: bool,
    input_tensor: Any,
    **transformer: Any,
) -> ViTConfig | BiTConfig:
    """The config that a user wants, from the one of the variant or of the file."""
    fields: dict[str, Any] = {"include_preprocessing": include_preprocessing}
    if isinstance(base, ViTConfig):
        fields |= transformer
        if not include_top or not (classes in (None, base.classes) if pre_logits is None else pre_logits):
            fields["representation_size"] = None
    elif image_size is None:
        given = None if input_tensor is None else tuple(input_tensor.shape[1:3])
        image_size = "dynamic" if given is None or None in given else given
    if image_size == "dynamic":
        fields["dynamic"] = True
    elif image_size is not None:
        fields |= {"image_size": image_size, "dynamic": False}
    if not include_top:
        if classes is not None:
            raise ValueError(f"classes={classes} needs include_top=True; without the top there is no head.")
        if class_names is not None:
            raise ValueError("class_names needs include_top=True; without the top there are no classes.")
        return base.replace(classes=None, classifier_activation=None, pooling=pooling or "none", **fields)
    classes = base.classes if classes is None else classes
    activation = None if classes is None else classifier_activation
    if class_names is not None:
        fields["class_names"] = class_names
    return base.replace(classes=classes, classifier_activation=activation, pooling=pooling or base.pooling, **fields)


def load_any(source: str | os.PathLike[str], **options: Any) -> VisionTransformer | BiT:
    """The model that a user names, from a file of any kind.

    Args:
        source: A path that ends with `.keras` or `.weights.h5`, what `from_checkpoint` takes, or a variant such as
            `"ViT-B/16"` for its recommended weights.
        options: Arguments of `from_checkpoint`; a `.keras` or `.weights.h5` file has its own.

    Raises:
        FileNotFoundError, ValueError: if there is no such file, or it holds no model of this package.
    """
    if str(source).endswith(".weights.h5"):
        return _named(read_weights_h5(source), source)
    if not str(source).endswith(".keras"):
        if _is_variant(source):
            return create_model(source, pretrained=True, **{"classifier_activation": None, **options})
        return from_checkpoint(source, **options)
    return _named(read_keras(source), source)


def _named(model: VisionTransformer | BiT, path: str | os.PathLike[str]) -> VisionTransformer | BiT:
    """The model, with the class names beside its file where it has none itself."""
    names = _with_names_beside(model.config, path).class_names
    return model if names == model.config.class_names else model.with_config(class_names=names)


def _with_names_beside(config: ViTConfig | BiTConfig, path: str | os.PathLike[str]) -> ViTConfig | BiTConfig:
    try:
        return with_names_beside(config, path)
    except ValueError as error:  # the model is usable, whatever lies beside it
        warnings.warn(f"The outputs of {path} have no names: {error}", stacklevel=3)
        return config


def _is_variant(source: Any) -> bool:
    if not isinstance(source, str) or os.path.exists(source):
        return False
    try:
        find_variant(source)
    except ValueError:
        return False
    return True
