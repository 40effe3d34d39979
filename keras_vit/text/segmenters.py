"""Segmentation by words: a dense model whose classes are vectors of texts, as the authors of TIPS measure theirs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit import layers
from keras_vit._arguments import unit_vectors, whole_number
from keras_vit.models import LinearSegmenter, LinearSegmenterConfig
from keras_vit.models.changes import copy_state
from keras_vit.models.dense_config import WITHOUT_TOP
from keras_vit.text import tokenizers
from keras_vit.text.templates import AVERAGINGS, Templates, average, templates_of, texts_of_classes

MODES = ("slide", "whole")


def zero_shot_segmenter(
    both: Any, names: Sequence[str], templates: Templates, mode: str, image_size: int, stride: int, batch_size: int
) -> LinearSegmenter:
    """The segmenter of `ImageText.zero_shot_segmenter`, whose arguments are checked; ValueError unless it is a TIPS."""
    config = both.text_encoder.config
    if config.position_embedding != "sincos" or config.pooling != "mean" or both.image_encoder.config.projection:
        raise ValueError(
            "zero_shot_segmenter is for TIPS, whose patches were trained to agree with words. No rule is known here by "
            "which the patches of this model are compared with texts: zero_shot_classifier names whole pictures."
        )
    for name, value in {"image_size": image_size, "stride": stride}.items():
        whole_number(name, value, 1)
    rule = AVERAGINGS["openai"]
    texts = texts_of_classes(names, templates_of(templates), rule)
    ids = _as_written(both.tokenizer, config)([text for of_class in texts for text in of_class])
    vectors = both.text_encoder.predict(ids, batch_size=batch_size, verbose=0)
    vectors = unit_vectors(vectors.astype("float32")).reshape(len(names), len(texts[0]), -1)
    backbone = both.image_encoder.with_config(**WITHOUT_TOP, dynamic=True)
    head = LinearSegmenterConfig(
        backbone=backbone.config,
        classes=len(names),
        class_names=tuple(names),
        blocks=(backbone.config.depth - 1,),
        pictures=f"tips_{mode}",
        short_side=image_size,
        crop_size=image_size,
        stride=min(stride, image_size) if mode == "whole" else stride,
        zero_shot=True,
    )
    model = LinearSegmenter(head, name=f"{both.image_encoder.name}_zero_shot", dtype=backbone.dtype_policy)
    copy_state(backbone, model.backbone)
    layers.assign(model.get_layer("head").kernel, np.ascontiguousarray(average(vectors, rule).T, "float32"))
    return model


def _as_written(tokenizer: tokenizers.Tokenizer, config: Any) -> tokenizers.Tokenizer:
    """The tokenizer that leaves capitals, as the authors' notebook on segmentation has it.

    Where the tokenizer was not made from a SentencePiece model, it is returned as it is.
    """
    model = next((file for file in tokenizer.files if file.suffix == ".model"), None)
    if model is None:
        return tokenizer
    return dataclasses.replace(tokenizers.from_sentencepiece(model, config, tokenizers.TIPS), clean=str)
