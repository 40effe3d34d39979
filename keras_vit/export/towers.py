"""The towers of an image-text model as files: unit vectors, ids to compare them on, and what only the pair knows."""

import dataclasses
import hashlib
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import check_type
from keras_vit.export.served_model import IDS, INPUT, Compared, Signature, input_config
from keras_vit.models import TextEncoder
from keras_vit.text import ImageText
from keras_vit.text.tokenizer_json import CLEANINGS, tokenizer_json

TOKENIZER = "tokenizer.json"
EMBEDDINGS = ("embeddings",)


def check_tower(model: keras.Model, pair: Any, precision: str, of_images: dict[str, Any]) -> str:
    """Returns what a model takes, `"images"` or `"ids"`; ValueError for arguments that fit no text tower."""
    check_type("pair", pair, ImageText | None, "what load_image_text returns, an ImageText")
    if pair is not None and model is not pair.image_encoder and model is not pair.text_encoder:
        raise ValueError(f"pair must have {model.name} as a tower: export(both.text_encoder, ..., pair=both).")
    if not isinstance(model, TextEncoder):
        return INPUT
    given = [name for name, value in of_images.items() if value is not None]
    if given:
        raise ValueError(f"{given[0]} is for models of images, but {model.name} is a text tower: leave it out.")
    if precision == "int8":
        raise ValueError("precision='int8' is calibrated with images, which a text tower lacks: take 'dynamic_int8'.")
    return IDS


def with_unit_outputs(model: keras.Model) -> keras.Model:
    """Returns a tower followed by the scaling of its embeddings to length 1; it shares the layers."""
    unit = keras.layers.UnitNormalization(dtype="float32", name="unit_embedding")(model.outputs[0])
    return keras.Model(model.inputs, unit, name=model.name)


def signature_of(model: keras.Model, pair: ImageText | None, signature: Signature, job: tuple[str, str]) -> Signature:
    """The signature of a file, of that of its model, and its format and precision: embeddings have length 1 there."""
    if not isinstance(model, TextEncoder):
        return signature if pair is None else dataclasses.replace(signature, outputs=EMBEDDINGS)
    # LiteRT gathers rows of int16, but none of float16; other formats round the table with all constants.
    table = {"dynamic_int8": "int8", "float16": "int16" if job[0] == "litert" else "float32"}.get(job[1], "float32")
    found = {"input": IDS, "dtype": "int32", "value_range": (0, model.config.vocabulary - 1), "outputs": EMBEDDINGS}
    return dataclasses.replace(signature, **found, table=table)


def compared_ids(tower: keras.Model) -> Compared | None:
    """Random ids, the end and padding, int32 `(32, context)`, to compare a text tower on; None for other models."""
    if not isinstance(tower, TextEncoder):
        return None
    config, rng = tower.config, np.random.default_rng(0)
    ids = rng.integers(0, config.vocabulary, (32, config.context), "int32")
    ends = np.linspace(0, config.context - 1, len(ids)).astype(int)[:, None]
    ids[np.arange(config.context) > ends] = config.pad_id or 0
    np.put_along_axis(ids, ends, config.vocabulary - 1 if config.end_id is None else config.end_id, 1)
    return Compared([ids], None, None, None)


def tokenizer_of(model: keras.Model, pair: ImageText | None) -> str | None:
    """Returns the text of the tokenizer.json beside a text tower; None where there is none."""
    is_text = pair is not None and model is pair.text_encoder and pair.tokenizer is not None
    return tokenizer_json(pair.tokenizer) if is_text else None


def describe_tower(tower: keras.Model, pair: ImageText | None, tokenizer: str | None) -> dict[str, Any]:
    """The metadata of a tower; probabilities are the activation of `logit_scale * cosine + logit_bias`."""
    found: dict[str, Any] = {"context": tower.config.context} if isinstance(tower, TextEncoder) else {}
    if pair is not None:
        found |= {"logit_scale": pair.scale, "logit_bias": pair.bias, "activation": pair.activation}
    if pair is not None and (config := input_config(tower)) is not None:
        found["preprocessing"] = dataclasses.asdict(config.pipeline)
    if pair is not None and pair.tokenizer is not None and tokenizer is not None:
        sha256 = hashlib.sha256(tokenizer.encode()).hexdigest()
        ends = {name: getattr(pair.tokenizer, name) for name in ("context", "start", "end", "pad")}
        cleaning = " but what ftfy repairs in words" if pair.tokenizer.clean in CLEANINGS.values() else ""
        found["tokenizer"] = {"file": TOKENIZER, "sha256": sha256, **ends, "cleaning": f"in the file{cleaning}"}
    return found
