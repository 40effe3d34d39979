"""The text tower of CLIP, SigLIP, LiT and TIPS: token ids to one vector; a function of a `TextConfig`."""

from typing import Any

import keras
import numpy as np
from keras import layers

from keras_vit.layers import AddPositionEmbedding, AddTextPositions, MAPHead, TextMask, TextPooling, TransformerBlock
from keras_vit.layers.base import Dense, LayerNormalization, initializer, policy_at
from keras_vit.models.config import TextConfig
from keras_vit.models.image_model import ConfiguredModel


def text_transformer(config: TextConfig, ids: Any, dtype: Any = None) -> Any:
    """The symbolic output `(batch, projection or width)` of a text tower for symbolic ids `(batch, context)`."""
    policy = keras.dtype_policies.get(dtype)
    table = initializer("normal", stddev=0.02)
    embedding = layers.Embedding(
        config.vocabulary, config.width, table, dtype=policy_at(policy, "token_embedding"), name="token_embedding"
    )
    if config.position_embedding == "sincos":
        position = AddTextPositions(dtype=policy, name="position_embedding")
    else:
        position = AddPositionEmbedding((1, config.context), prefix_tokens=0, dtype=policy, name="position_embedding")
    x = position(embedding(ids))
    seen = {} if config.pad_id is None else {"allowed": TextMask(config.pad_id, dtype=policy, name="text_mask")(ids)}
    for i in range(config.depth):
        x = TransformerBlock(
            config.heads,
            config.mlp_width,
            gelu=config.gelu,
            epsilon=config.layer_norm_epsilon,
            causal=config.causal,
            dtype=policy,
            name=f"block_{i}",
        )(x, **seen)
    x = LayerNormalization(epsilon=config.layer_norm_epsilon, dtype=policy, name="encoder_norm")(x)
    if config.pooling == "map":
        epsilon = config.layer_norm_epsilon
        x = MAPHead(config.heads, config.mlp_width, config.gelu, epsilon, dtype=policy, name="pooling")(x)
    else:
        x = TextPooling(config.pooling, config.end_id, config.pad_id, dtype=policy, name="pooling")(x, ids)
    if config.projection is None:
        return x
    return Dense(
        config.projection,
        use_bias=config.projection_bias,
        kernel_initializer=initializer("glorot_uniform"),
        dtype=policy_at(policy, "projection"),
        name="projection",
    )(x)


@keras.saving.register_keras_serializable(package="keras_vit")
class TextEncoder(ConfiguredModel):
    """The text tower of an image-text model (CLIP, SigLIP, LiT, TIPS) as a functional Keras model.

    It takes token ids of the tokenizer of its weights, integers `(batch, context)`, and returns embeddings
    `(batch, projection)` that are not normalised. `load_image_text` loads tower and tokenizer together.

    Args:
        config: The configuration of the tower.
        name: Name of the model.
        dtype: Dtype policy of all layers; None for Keras's global one.
        trainable: Whether training changes the weights.

    Raises:
        TypeError: if `config` is not a `TextConfig`.
        ValueError: if `dtype` is unknown; at call time, if the ids are not integers of 0 to `vocabulary - 1`, or not
            `context` of them.

    Examples:
        >>> tiny = keras_vit.TextConfig(vocabulary=10, context=4, width=8, depth=1, heads=2, mlp_width=16)
        >>> keras_vit.TextEncoder(tiny)(np.array([[3, 1, 0, 0]])).shape[-1]
        8
    """

    config: TextConfig
    config_type = TextConfig

    def __init__(
        self, config: TextConfig, *, name: str | None = None, dtype: Any = None, trainable: bool = True
    ) -> None:
        self._require_config(config)
        policy = keras.dtype_policies.get(dtype)
        ids = keras.Input((config.context,), name="ids", dtype="int32")
        super().__init__(ids, text_transformer(config, ids, policy), name=name or "text_encoder")
        self.set_up(config, policy)
        self.trainable = trainable

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Embeddings `(batch, projection or width)` of token ids `(batch, context)`; ValueError for others."""
        if args:
            self.check_ids(args[0])
        return super().__call__(*args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Embeddings as `keras.Model.predict`; ValueError for invalid token ids, as in `check_ids`."""
        self.check_ids(x)
        return super().predict(x, *args, **kwargs)

    def check_ids(self, ids: Any) -> None:
        """Raises ValueError unless ids are `(batch, context)`, and in NumPy arrays integers below `vocabulary`, from 0.

        Values of tensors are not read from their device, and inputs without a shape are not checked. JAX and TensorFlow
        would compute wrong embeddings for ids outside the vocabulary.
        """
        config = self._config
        shape = getattr(ids, "shape", None)
        if shape is not None and (len(shape) != 2 or shape[1] != config.context):
            raise ValueError(
                f"{self.name} needs token ids (batch, {config.context}), but the shape {tuple(shape)} was given. Use "
                "the tokenizer of load_image_text, which pads texts."
            )
        if not isinstance(ids, np.ndarray):
            return
        if ids.dtype.kind not in "iu":
            raise ValueError(f"{self.name} needs integers as token ids, but {ids.dtype} was given.")
        if ids.size and not (0 <= ids.min() and ids.max() < config.vocabulary):
            raise ValueError(
                f"{self.name} needs token ids from 0 to {config.vocabulary - 1}, but {ids.min()} to {ids.max()} were "
                "given. Use the tokenizer of its weights."
            )
