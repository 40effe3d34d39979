"""What a model that only answers need not compute, or can compute once: each is a field of its config."""

import dataclasses

import keras

from keras_vit._processes import keras_leaves_xla_out
from keras_vit.models.bit_config import BiTConfig
from keras_vit.models.config import ViTConfig


@dataclasses.dataclass(frozen=True)
class Shortcut:
    """One thing that `optimize_for_inference` does, or does not do for a model.

    Attributes:
        field: The field of the config, or the attribute of the model, that becomes True.
        effect: What it does.
        obstacle: Why this model has no use for it or cannot have it; None where it can.
    """

    field: str
    effect: str
    obstacle: str | None

    def __str__(self) -> str:
        return f"{self.field}: {self.effect}" if self.obstacle is None else f"no {self.field}: {self.obstacle}"


def shortcuts(config: ViTConfig | BiTConfig, dtype: str) -> list[Shortcut]:
    """All shortcuts that there are for a kind of model.

    Args:
        config: The model's.
        dtype: The dtype that it computes in.
    """
    if isinstance(config, BiTConfig):
        return [Shortcut("folded", _FOLDED, _done(config.folded))]
    return [
        Shortcut("class_token_only", _CLASS_TOKEN_ONLY, _done(config.class_token_only) or _all_tokens_are_read(config)),
        Shortcut("stem_folded", _FOLDED, _done(config.stem_folded) or _no_resnet(config)),
        Shortcut(
            "preprocessing_folded",
            "pixels are normalised by the weights of the patch embedding",
            _done(config.preprocessing_folded) or _pixels_stay(config, dtype),
        ),
    ]


def xla(model: keras.Model, config: ViTConfig | BiTConfig, dtype: str) -> Shortcut | None:
    """Compiling `predict` with XLA, which Keras 3.15 leaves out where TensorFlow sees CPUs only (docs/speed.md).

    Args:
        model: The model that is to predict.
        config: Its config.
        dtype: The dtype that it computes in.

    Returns:
        What to do, with `"jit_compile"` for a field; None where Keras's choice is as good.
    """
    if not keras_leaves_xla_out(model):
        return None
    obstacle = None
    if config.dynamic:
        obstacle = "images of each size would be compiled anew"
    elif dtype != "float32":
        obstacle = f"it depends on the processor whether XLA is quicker in {dtype}"
    return Shortcut("jit_compile", "predict is compiled with XLA, which takes some seconds at its first call", obstacle)


_CLASS_TOKEN_ONLY = "the last block computes only the tokens that the answer is read from"
_FOLDED = "the kernels of the ResNet are standardised once, not at every call"


def _done(value: bool) -> str | None:
    return "done before" if value else None


def _all_tokens_are_read(config: ViTConfig) -> str | None:
    return None if config.pooling == "token" else f"pooling={config.pooling!r} reads all tokens"


def _no_resnet(config: ViTConfig) -> str | None:
    return None if config.stem_stages is not None else "there is no ResNet"


def _pixels_stay(config: ViTConfig, dtype: str) -> str | None:
    if not config.include_preprocessing:
        return "the model takes images that are normalised already"
    if config.stem_stages is not None:
        return "the first convolution of the ResNet pads its input after it is normalised"
    if dtype not in ("float32", "float64"):
        return f"{dtype} has too few bits for what pixels are before they are normalised"
    return None
