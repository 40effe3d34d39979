"""What models of segmentation and depth share: they are made of the layers of a Vision Transformer."""

from collections.abc import Callable
from typing import Any, Self

import keras

from keras_vit.layers import TokenMap
from keras_vit.models.dense_config import DenseConfig
from keras_vit.models.image_model import ImageModel
from keras_vit.models.vision_transformer import VisionTransformer


def block_map(backbone: VisionTransformer, block: int, policy: Any) -> tuple[Any, Any]:
    """What a block returns, as a map of the patches and as all tokens; normalised if the backbone has a final norm."""
    return token_map(backbone, backbone.get_layer(f"block_{block}").output, block, policy)


def token_map(backbone: VisionTransformer, tokens: Any, block: int, policy: Any) -> tuple[Any, Any]:
    """Tokens that a block has made, as a map of the patches and as they are, both normalised if the backbone is."""
    vit = backbone.config
    if vit.final_norm == "tokens":
        tokens = backbone.get_layer("encoder_norm")(tokens)
    layer = TokenMap(vit.grid_size, vit.prefix_tokens, dtype=policy, name=f"map_{block}")
    return layer(tokens, backbone.get_layer("embedding").output) if vit.dynamic else layer(tokens), tokens


class _Untracked:
    """Holds a model without Keras taking it for a part of another one."""

    def __init__(self, model: VisionTransformer) -> None:
        self.model = model


class DenseModel(ImageModel):
    """A functional model on the layers of a `VisionTransformer`: a function of one `DenseConfig`.

    It saves, trains, freezes, quantizes and takes LoRA as models of images do. Subclasses set `config_type`,
    `default_name`, and `outputs_of`, a function from the config, the backbone and a dtype policy to the outputs.

    Args:
        config: What to build.
        input_tensor: As in `VisionTransformer`.
        name: Name of the model.
        dtype: Dtype policy of all layers; None for Keras's global one.
        trainable: Whether training changes the weights.

    Raises:
        TypeError: if `config` is none of this model.
    """

    config_type = DenseConfig
    outputs_of: Callable[..., Any]

    def __init__(
        self,
        config: Any,
        *,
        input_tensor: Any = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        if not isinstance(config, self.config_type):
            raise TypeError(f"config must be a {self.config_type.__name__}, but {type(config).__name__} was given.")
        policy = keras.dtype_policies.get(dtype)
        backbone = VisionTransformer(config.backbone, input_tensor=input_tensor, name="backbone", dtype=policy)
        outputs = type(self).outputs_of(config, backbone, policy)
        super(ImageModel, self).__init__(backbone.input, outputs, name=name or self.default_name)
        self.set_up(config, policy)
        self._shared = _Untracked(backbone)
        self.trainable = trainable

    @property
    def config(self) -> Any:
        """The config of this model."""
        return self._config

    @property
    def backbone(self) -> VisionTransformer:
        """The Vision Transformer of the same layers: what changes its weights changes this model, too."""
        return self._shared.model

    def optimize_for_inference(self, *, verbose: bool = True) -> Self:
        """Raises ValueError: a dense model needs all tokens for its output, and computes no more."""
        raise ValueError(f"{self.name} needs all tokens for its output: there is nothing that it need not compute.")
