"""`like=`: a model that everybody knows, which stands for what a bare file of PyTorch does not tell."""

import dataclasses
import re
from typing import Any

from keras_vit._arguments import did_you_mean, listing, warn_caller
from keras_vit.models import VARIANTS, ModelConfig, ViTConfig, find_variant, variant_config

# How images are prepared, as fields of a config.
PREPROCESSING = ("pixel_mean", "pixel_std", "resize", "crop_ratio", "crop_rounding", "filter")
# What no array tells of the computation.
COMPUTATION = ("heads", "gelu", "layer_norm_epsilon", "interpolation")
# Of these what a JSON file says of a model; how it resizes position embeddings is a matter of its publisher's code.
STATED = ("heads", "gelu", "layer_norm_epsilon")
# What arrays tell as well, and a variant must have in common with them.
_SIZES = ("width", "depth", "mlp_width", "patch_size", "stem_stages", "tokens_mlp_width")
_PARTS = (
    *("distillation_token", "register_tokens", "patch_bias", "pre_norm", "mlp", "attention_norm", "rotary_embedding"),
)
# How the names of timm's Transformers begin, and those of open_clip's.
_TIMM_NAMES = re.compile(
    r"(test_vit\d*|(vit|deit3?|beit3|eva|eva02|flexivit|mixer|naflexvit|sam\w*|sapiens2|aimv2)_\w+|ViT-[\w-]+)(\.\w+)?"
)


@dataclasses.dataclass(frozen=True)
class Like:
    """A model that stands for what a file does not tell.

    Attributes:
        name: What the user has called it.
        config: Its config, where it is a variant of this package; None where it is a name of timm's.
    """

    name: str
    config: ViTConfig | None = None


def find_like(name: Any) -> Like:
    """The model that a name means: a variant, or one of timm's; TypeError or ValueError where it is neither."""
    if not isinstance(name, str):
        raise TypeError(f"like must be a variant such as 'DINOv2-S/14' or a name of timm's, but {name!r} was given.")
    is_timms = _TIMM_NAMES.fullmatch(name.rpartition("/")[2]) is not None
    # `mixer_b16_224` is a spelling of a variant as well.
    if is_timms and re.search(r"patch\d+|^(\w+/)?mixer_\w+_\d+(\.|$)", name):
        return Like(name)
    try:
        variant = find_variant(name)
    except ValueError:
        if is_timms:
            return Like(name)
        near = did_you_mean(name, {variant.lower(): variant for variant in VARIANTS})
        raise ValueError(
            f"like must be a variant such as 'DINOv2-S/14' (see list_models()) or a name of timm's such as "
            f"'vit_base_patch16_224', but {name!r} was given.{near}"
        ) from None
    config = variant_config(variant)
    if not isinstance(config, ViTConfig):
        raise ValueError(f"like={name!r} is a BiT, whose files tell all of it: leave it out.")
    return Like(variant, config)


def like_of_options(like: Any, architecture: Any, heads: Any) -> Like | None:
    """What `like=` means, or `architecture=`, which it replaces; a DeprecationWarning of that and of `heads=`.

    Raises TypeError or ValueError for names that nobody knows, both at once, or heads that are no number.
    """
    if heads is not None and (isinstance(heads, bool) or not isinstance(heads, int) or heads < 1):
        raise ValueError(f"heads must be a positive integer, but {heads!r} was given.")
    if heads is not None or architecture is not None:
        option = "architecture" if heads is None else "heads"
        advice = "Pass like=..., a variant such as 'DINOv2-S/14' or a name of timm's, or put its config.json beside it"
        warn_caller(f"{option}= is deprecated and goes with the next version. {advice}.", DeprecationWarning)
    if architecture is None:
        return None if like is None else find_like(like)
    if like is not None:
        raise ValueError(
            f"like={like!r} and architecture={architecture!r} say the same thing: leave architecture= out."
        )
    if not isinstance(architecture, str):
        raise TypeError(f"architecture must be a name of one of timm's models, but {architecture!r} was given.")
    if not _TIMM_NAMES.fullmatch(architecture.rpartition("/")[2]):
        raise ValueError(f"timm has no architecture={architecture!r}. Names are like 'vit_base_patch16_224'.")
    return Like(architecture)


def check_like(config: ModelConfig, like: Like, stated: tuple[str, ...], source: str) -> None:
    """Raises ValueError where a variant has other sizes or parts than the arrays, or other `stated` fields."""
    known, image_model = like.config, getattr(config, "backbone", config)
    if known is None:
        return
    if not isinstance(image_model, ViTConfig):
        raise ValueError(f"like={like.name!r} is a Vision Transformer, but {source} holds none: leave it out.")
    compared = [field for field in (*_SIZES, *_PARTS, *stated) if getattr(image_model, field) != getattr(known, field)]
    theirs = [f"{field}={getattr(image_model, field)!r}" for field in compared]
    ours = [f"{field}={getattr(known, field)!r}" for field in compared]
    if (image_model.layer_scale is None) != (known.layer_scale is None):
        theirs.append("no layer scale" if image_model.layer_scale is None else "a layer scale")
        ours.append("none" if known.layer_scale is None else "one")
    if theirs:
        raise ValueError(
            f"{source} is not like {like.name!r}: it has {listing(theirs)}, where {like.name} has {listing(ours)}."
        )
