"""Models by name and from files: the functions that most users need."""

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from keras_vit.checkpoints import load_model, open_checkpoint
from keras_vit.models import (
    VARIANTS,
    VisionTransformer,
    ViTConfig,
    find_variant,
    variant_config,
    variant_of,
)

P = ParamSpec("P")
T = TypeVar("T")


def create_model(
    variant: str,
    *,
    pretrained: bool = False,
    weights: str | os.PathLike[str] | None = None,
    image_size: int | tuple[int, int] | str | None = None,
    classes: int | None = None,
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
) -> VisionTransformer:
    """A Vision Transformer of the papers.

    Args:
        variant: The paper's name, such as `"ViT-B/16"`; case and punctuation do not matter.
        pretrained: Reserved for a catalogue of published checkpoints; there is none yet, so `True` is refused.
        weights: Path to a checkpoint `.npz` of a known layout, or to a `.weights.h5` that this same model saved. None
            for new random weights.
        image_size: Height and width in pixels, an integer for squares, or `"dynamic"` for any size at run time.
            None for the checkpoint's own, or 224.
        classes: Outputs of the head. None for the checkpoint's head, or 1,000 without weights. Another number than
            the checkpoint's gives a new, zero-initialised head and drops the pre-logits, as the original does.
        include_top: Whether the head is there.
        pooling: Without the top: `"token"`, `"avg"`, `"map"`, or None for the sequence of all tokens. With it: None
            for the variant's own (`"token"`, or `"avg"` without a class token); `"none"` puts the head on every
            token.
        classifier_activation: Name of an activation on the head; None for logits.
        include_preprocessing: Whether the model takes pixels of 0..255 and scales them to [-1, 1] itself.
        interpolation: How position embeddings change size: `"official"` (as the original code), `"bicubic"` (as
            timm), `"bilinear"`.
        class_token: Whether there is a class token. None for the checkpoint's, or yes without weights.
        representation_size: Without weights, the length of the tanh layer before the head; None for no such layer.
        dropout: Rate in the encoder. None for the variant's official rate without weights, and 0 with.
        attention_dropout: Rate on the attention weights; None for 0, as everywhere in the official configurations.
        drop_path: Stochastic depth of the last block; None for 0.
        remat: Whether blocks are recomputed in the backward pass to save memory.
        input_tensor: Keras tensor to build the model on.
        name: Name of the model; None for one made from the variant.
        dtype: Dtype policy, such as `"mixed_bfloat16"`; None for Keras's global one.

    Returns:
        A `VisionTransformer`.

    Raises:
        TypeError, ValueError: if an argument makes no sense, or the file does not hold that variant.
        FileNotFoundError: if there is no file at `weights`.
    """
    variant = find_variant(variant)
    if pretrained:
        raise ValueError(
            "pretrained=True needs a catalogue of published checkpoints, which this version does not have. Download "
            "the official .npz file and pass its path: weights='B_16.npz'."
        )
    options: dict[str, Any] = {
        "image_size": image_size,
        "classes": classes,
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
        found = variant_of(open_checkpoint(weights).config)
        if found != variant:
            raise ValueError(
                f"{weights} holds {found or 'a model that is no known variant'}, but {variant} was asked for. Load it "
                "with keras_vit.from_checkpoint(path), which takes the model from the file."
            )
        return from_checkpoint(weights, **options, **build, dropout=dropout or 0.0)

    base = variant_config(variant)
    if class_token is False:
        base = base.replace(class_token=False, pooling="avg")
    base = base.replace(representation_size=representation_size)
    options["dropout"] = base.dropout if dropout is None else dropout
    model = VisionTransformer(_adapt(base, pre_logits=True, **options), **build)
    if weights is not None:
        model.load_weights(weights)
    return model


def from_checkpoint(
    path: str | os.PathLike[str],
    *,
    image_size: int | tuple[int, int] | str | None = None,
    grid_size: tuple[int, int] | None = None,
    classes: int | None = None,
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
) -> VisionTransformer:
    """The model that a checkpoint file holds; its architecture is read off the arrays.

    Every array of the file is used or deliberately left, and every weight of the model is set once; anything else
    is an error.

    Args:
        path: An `.npz` file of a known layout (see `inspect_checkpoint`).
        image_size: As in `create_model`; position embeddings are resized where it differs from the file's.
        grid_size: Rows and columns of the file's position embeddings, where they are no square. Not needed where
            `image_size` is the one that the file was trained at, or for files written by `to_checkpoint`.
        classes: None for the file's head; another number than the file's for a new, zero-initialised head.
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
        A `VisionTransformer`.

    Raises:
        FileNotFoundError: if there is no such file.
        TypeError, ValueError: if the file is no complete, finite checkpoint of a known layout, or an argument makes
            no sense for it. No model is returned half-filled.
    """
    contents = open_checkpoint(path, grid_size, None if image_size == "dynamic" else image_size)
    base = contents.config
    config = _adapt(
        base,
        image_size=image_size,
        classes=classes,
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
    )
    keep_head = classes in (None, base.classes)
    if pre_logits and not include_top:
        raise ValueError("pre_logits=True needs include_top=True; without the top there are no pre-logits.")
    if pre_logits and not base.representation_size:
        raise ValueError(f"{path} has no pre-logits: leave pre_logits=True out.")
    if include_top and keep_head and base.classes and config.representation_size != base.representation_size:
        raise ValueError(
            f"The head of {path} reads its pre-logits, so pre_logits=False needs a new head: pass classes=..., or "
            "include_top=False for features."
        )
    return load_model(path, contents, config, keep_head=keep_head, input_tensor=input_tensor, name=name, dtype=dtype)


def _adapt(
    base: ViTConfig,
    *,
    image_size: int | tuple[int, int] | str | None,
    classes: int | None,
    include_top: bool,
    pre_logits: bool | None,
    pooling: str | None,
    classifier_activation: str | None,
    **fields: Any,
) -> ViTConfig:
    """The config that a user wants, from the one of the variant or of the file."""
    if image_size == "dynamic":
        fields["dynamic"] = True
    elif image_size is not None:
        fields["image_size"] = image_size
    if not include_top:
        if classes is not None:
            raise ValueError(f"classes={classes} needs include_top=True; without the top there is no head.")
        return base.replace(
            classes=None, representation_size=None, classifier_activation=None, pooling=pooling or "none", **fields
        )
    if pre_logits is None:
        pre_logits = classes in (None, base.classes)
    if pre_logits is False:
        fields["representation_size"] = None
    classes = base.classes if classes is None else classes
    activation = None if classes is None else classifier_activation
    return base.replace(classes=classes, classifier_activation=activation, pooling=pooling or base.pooling, **fields)


def list_models() -> list[str]:
    """The names of all variants, for `create_model`."""
    return list(VARIANTS)


def _factory(create: Callable[Concatenate[str, P], T], variant: str) -> Callable[P, T]:
    """`create` with its variant chosen, under the name and with the signature that users expect."""

    def factory(*args: P.args, **kwargs: P.kwargs) -> T:
        return create(variant, *args, **kwargs)

    functools.update_wrapper(factory, create)
    signature = inspect.signature(create)
    _, *parameters = signature.parameters.values()
    factory.__signature__ = signature.replace(parameters=parameters)
    factory.__name__ = factory.__qualname__ = variant.replace("-", "_").replace("/", "").replace("+", "_")
    before, _, after = create.__doc__.partition("        variant: ")
    arguments = after[after.index("        pretrained: ") :]
    factory.__doc__ = before.replace("A Vision Transformer of the papers.", f"The {variant} of the papers.") + arguments
    return factory


ViT_Ti16 = _factory(create_model, "ViT-Ti/16")
ViT_S16 = _factory(create_model, "ViT-S/16")
ViT_S32 = _factory(create_model, "ViT-S/32")
ViT_B8 = _factory(create_model, "ViT-B/8")
ViT_B16 = _factory(create_model, "ViT-B/16")
ViT_B32 = _factory(create_model, "ViT-B/32")
ViT_L16 = _factory(create_model, "ViT-L/16")
ViT_L32 = _factory(create_model, "ViT-L/32")
ViT_H14 = _factory(create_model, "ViT-H/14")
R_ViT_Ti16 = _factory(create_model, "R+ViT-Ti/16")
R26_ViT_S32 = _factory(create_model, "R26+ViT-S/32")
R26_ViT_B32 = _factory(create_model, "R26+ViT-B/32")
R50_ViT_B16 = _factory(create_model, "R50+ViT-B/16")
R50_ViT_L32 = _factory(create_model, "R50+ViT-L/32")
