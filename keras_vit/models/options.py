"""The config that a user asks for by the options of `load` and `create_model`."""

from collections.abc import Sequence
from typing import Any, Literal

from keras_vit._arguments import ImageSize
from keras_vit.models.config import BiTConfig, ModelConfig, ViTConfig

# Options that a BiT, which is a ResNet, has no use for.
OF_TRANSFORMERS = (
    "pre_logits",
    "interpolation",
    "class_token",
    "representation_size",
    "dropout",
    "attention_dropout",
    "patch_drop",
    "drop_path",
    "remat",
)


def with_options(
    base: ModelConfig,
    source: str,
    *,
    include_top: bool,
    image_size: ImageSize | Literal["dynamic"] | None,
    classes: int | None,
    class_names: Sequence[str] | None,
    pooling: str | None,
    pre_logits: bool | None = None,
    classifier_activation: str | None = None,
    **fields: Any,
) -> ModelConfig:
    """The config of a source, changed as options say; None leaves what the source has.

    Raises TypeError or ValueError if the config cannot be so; `source` is what messages call it.
    """
    if isinstance(base, BiTConfig):
        _refuse_for_bit(source, {"pre_logits": pre_logits, **fields})
        pre_logits = None
        fields = {option: value for option, value in fields.items() if option not in OF_TRANSFORMERS}
    fields = {name: value for name, value in fields.items() if value is not None}
    if image_size == "dynamic":
        fields["dynamic"] = True
    elif image_size is not None:
        fields |= {"image_size": image_size, "dynamic": False}
    if not include_top:
        head = {"class_names": class_names, "pre_logits": pre_logits or None}
        for option, value in {**head, "classifier_activation": classifier_activation}.items():
            if value is not None:
                raise ValueError(f"{option}={value!r} needs include_top=True; without the top there is no head.")
        if isinstance(base, ViTConfig):
            fields |= {"representation_size": None, "projection": None, "projection_bias": False}
            fields["distillation_head"] = False
        return base.replace(classes=None, classifier_activation=None, pooling=pooling or "none", **fields)
    keep_head = classes in (None, base.classes)
    if not _has_pre_logits(base, source, pre_logits, keep_head):
        fields |= {"representation_size": None} if isinstance(base, ViTConfig) else {}
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


def _refuse_for_bit(source: str, asked: dict[str, Any]) -> None:
    """Raises ValueError where an option is given that a BiT has no use for."""
    refused = [option for option in OF_TRANSFORMERS if asked.get(option) not in (None, False, 0, "official")]
    if refused:
        raise ValueError(
            f"{source} has no use for {', '.join(f'{option}={asked[option]!r}' for option in refused)}: a BiT is a "
            "ResNet, without tokens, position embeddings and dropout. Leave it out."
        )


def check_pooling(base: ModelConfig, config: ModelConfig, source: str, keep_head: bool) -> None:
    """Raises ValueError where a config asks for a pooling that the weights of a source do not fit."""
    if not (isinstance(base, ViTConfig) and isinstance(config, ViTConfig)):
        return
    if config.pooling == "map" and base.pooling != "map":
        raise ValueError(
            f"{source} has no arrays for these weights of pooling='map': pooling/... Load it without, and give "
            "model.with_config(pooling='map', fresh=['pooling']) for new ones."
        )
    if keep_head and config.classes and config.pooled_size != base.pooled_size:
        raise ValueError(
            f"pooling={config.pooling!r} gives {config.pooled_size} features of an image, but the head of {source} "
            f"reads {base.pooled_size}: pass classes=... for a new head, or include_top=False."
        )


def _has_pre_logits(base: ModelConfig, source: str, asked: bool | None, keep_head: bool) -> bool:
    """Whether the model shall have pre-logits; ValueError where it cannot be as asked."""
    has = isinstance(base, ViTConfig) and base.representation_size is not None
    if asked and not has:
        raise ValueError(f"{source} has no pre-logits: leave pre_logits=True out.")
    if has and asked is False and keep_head and base.classes:
        raise ValueError(
            f"The head of {source} reads its pre-logits, so pre_logits=False needs a new head: pass classes=..., or "
            "include_top=False for features."
        )
    return has and (keep_head if asked is None else asked)
