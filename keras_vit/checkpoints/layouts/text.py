"""The text towers of two-tower files, in the names of OpenAI and open_clip, Hugging Face, Flax and Scenic.

One table of names for each; rows made of it read and write. What arrays do not tell stands in the JSON files beside
them, as for image towers; what those say and is not computed here is an error.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit._arguments import printable
from keras_vit.checkpoints.accounting import TABLE, Layout, Notice, Plan, Row, depth_of, prefixed, shape_of
from keras_vit.checkpoints.files import Sidecars
from keras_vit.checkpoints.layouts import clip, flax, huggingface, pytorch
from keras_vit.checkpoints.layouts.jsons import Key, check_sizes, fields_in, mapping, value_in
from keras_vit.checkpoints.layouts.pytorch import Family, linear, norm
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import TextConfig

Fields = dict[str, Any]  # of a `TextConfig`

# Both towers of a file call their parts the same, except for the last normalisation.
_OPENAI = dataclasses.replace(clip.FAMILY, norm="ln_final")
_HUGGINGFACE = dataclasses.replace(huggingface.FAMILIES["clip"], title="Hugging Face", norm="final_layer_norm")
_FLAX = Family(title="Flax", blocks="Encoder_0/encoderblock_", norm="Encoder_0/encoder_norm")
_SCENIC = Family(title="Scenic", blocks="transformer/encoderblock_", norm="text_encoder_norm")


@dataclasses.dataclass(frozen=True)
class Names:
    """What a kind of file calls the parts of a text tower."""

    family: Family  # the names within a block
    module: str  # what stands before the names
    tokens: str  # the table
    positions: str  # the table; empty where they are computed
    projection: str  # the linear layer to the text's embedding; empty where there is none
    outside: bool = False  # whether that has no module before it
    is_matrix: bool = False  # whether it is an array `(width, embedding)` of its own
    scale: str = "logit_scale"  # the logarithm of the temperature; of a TIPS the temperature itself
    bias: str = "logit_bias"  # what is added to logits

    @property
    def is_flax(self) -> bool:
        return self.family in (_FLAX, _SCENIC)

    @property
    def is_tips(self) -> bool:
        return not self.positions


_OPENAI_TABLES = ("token_embedding.weight", "positional_embedding", "text_projection")
_HF_TABLES = ("embeddings.token_embedding.weight", "embeddings.position_embedding.weight")
# The first of these whose table of tokens and last normalisation are there; of a TIPS, whose towers have no table of
# positions and no projection, if these are not there.
NAMES: dict[str, Names] = {
    "tips_hub": Names(_OPENAI, "text_encoder.", "token_embedding.weight", "", "", scale="temperature"),
    "tips_transformers": Names(_HUGGINGFACE, "text_model.", _HF_TABLES[0], "", "", scale="temperature"),
    "tips": Names(_OPENAI, "", "token_embedding.weight", "", "", scale="temperature"),
    "tips_scenic": Names(_SCENIC, "", "token_emb/emb_var", "", "", scale="temperature_contrastive"),
    "siglip": Names(_HUGGINGFACE, "text_model.", *_HF_TABLES, "head"),
    "hf_clip": Names(_HUGGINGFACE, "text_model.", *_HF_TABLES, "text_projection", outside=True),
    "open_clip_custom": Names(_OPENAI, "text.", *_OPENAI_TABLES, is_matrix=True),
    "open_clip": Names(_OPENAI, "", *_OPENAI_TABLES, is_matrix=True),
    "flax": Names(_FLAX, "txt/", "Embed_0/embedding", "pos_embedding", "head", scale="t", bias="b"),
}
# Arrays of towers that are not computed here, and what they are.
_OTHERS = {
    r"(^|\.)(multimodal_decoder|text_decoder)\.|(^|\.)text\.cls_emb$": "CoCa, whose text tower also writes captions",
    r"(^|/)txt/Bert(Encoder_0|Model)/": "LiT with a BERT as its text tower",
    r"(^|\.)text\.transformer\.(embeddings|encoder|shared)\.": "open_clip with a text tower of transformers",
    r"(^|\.)text_model\.(roberta\.|embeddings\.word_embeddings\.)": "a CLIP with a BERT or XLM-R as its text tower",
    r"(^|\.)visual\.(layer1|attnpool)\.": "a CLIP with a ResNet as its image tower",
    r"(^|\.)visual\.trunk\.embeds\.": "an image tower of timm's NaFlex in open_clip's names",
    r"(^|\.)visual\.(cls_token|blocks\.)": "an EVA-CLIP in BAAI's names, of which open_clip has other copies",
}
# Arrays that text towers of TIPS do not have, and those of other families do.
_POSITIONS = re.compile(
    r"(^|\.)(positional_embedding$|embeddings\.position_embedding\.|text_projection)|text_model\.head"
)
# How the arrays of a text tower begin, where no module's name does.
_OWN = r"transformer[./]|token_emb|ln_final\.|text_(projection|encoder_norm)|positional_embedding$"
# What open_clip's text_cfg may say that changes nothing, or is read below.
_TEXT_CFG = (
    *("context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "hf_tokenizer_name", "no_causal_mask"),
    *("pool_type", "eos_id", "proj_bias", "proj_type", "act_kwargs", "norm_kwargs", "pad_id", "tokenizer_kwargs"),
)
# What transformers' text_config says that arrays tell as well, also of texts of any length.
_SIZES = (*huggingface.TOWER, Key("vocabulary", "vocab_size"))
_CONTEXT = Key("context", "max_position_embeddings")
_NO_CONFIG = "without config.json the heads, GELU and epsilon of the text tower are the defaults of its family"
# What every text tower of TIPS computes; its arrays do not tell it, nor how long texts are.
TIPS: Fields = {"gelu": "relu", "pooling": "mean", "position_embedding": "sincos", "pad_id": 0}
_TIPS_CONTEXT = 64
OPEN_CLIP_POOLINGS = {"argmax": "largest_id", "last": "last", "first": "first", "eos": "end_id"}


def _text_rows(config: TextConfig, names: Names, projection_is_linear: bool = False) -> list[Row]:
    width, family, depth = config.width, names.family, range(config.depth)
    first = (1,) if family is _FLAX else ()
    rows = [Row(names.tokens, "token_embedding/embeddings", (config.vocabulary, width))]
    if config.position_embedding == "learned":
        rows.append(Row(names.positions, TABLE, (*first, config.context, width)))
    if names.is_flax:
        for i in depth:
            rows += flax.block_rows(f"{family.blocks}{i}/", f"block_{i}/", config)
        rows += flax.norm_rows(family.norm, "encoder_norm", width)
        if config.pooling == "map":
            rows += flax.attention_pooling_rows(config)
    else:
        rows += [row for i in depth for row in pytorch.block(f"{family.blocks}{i}.", f"block_{i}", config, family)]
        rows += norm(family.norm, "encoder_norm", width)
    end: list[Row] = []
    if config.projection and family is _FLAX:
        end = flax.dense_rows(names.projection, "projection", width, config.projection)
    elif config.projection and names.is_matrix and not projection_is_linear:
        end = [Row(names.projection, "projection/kernel", (width, config.projection))]
    elif config.projection:
        end = linear(names.projection, "projection", config.projection, width, config.projection_bias)
    return prefixed(names.module, rows) + end if names.outside else prefixed(names.module, rows + end)


def plan_of_text(file: Mapping[str, StoredArray], sidecars: Sidecars) -> tuple[Plan, Names]:
    """Returns the plan by which the text tower of a file is read, and what the file calls its parts."""
    for pattern, what in _OTHERS.items():
        if any(re.search(pattern, name) for name in file):
            raise ValueError(f"The file is {what}. Supported are CLIP, SigLIP and LiT with two Transformers, and TIPS.")
    found = _find(file)
    if found is None:
        raise ValueError("The file has no text tower of a CLIP, SigLIP, LiT or TIPS: it is a model of images only.")
    kind, names, outer = found
    inside = {name.removeprefix(outer): array for name, array in file.items() if name.startswith(outer)}
    tops = (names.projection, f"{names.projection}.weight", f"{names.projection}.bias") if names.outside else ()
    own = re.escape(names.module) or _OWN
    arrays = {name: array for name, array in inside.items() if re.match(own, name) or name in tops}
    arrays.pop(f"{names.module}embeddings.position_ids", None)
    if names.family is _FLAX:
        arrays = _in_linen(arrays)
    unused = sorted(file.keys() - {array.name for array in arrays.values()})
    linear_projection = f"{names.module}{names.projection}.weight" in arrays
    gelu = None  # where nothing beside the text tower tells it
    if any(name.rpartition(".")[2] == "context_length" for name in unused):  # a number in OpenAI's own files
        gelu = "quick"
    elif clip.recognise_pe(file, sidecars):
        gelu, kind = "exact", "pe"
    fields = _text_fields(arrays, sidecars, kind, names, linear_projection, gelu)
    by_arrays = names.is_matrix or names.is_flax or names.is_tips
    made = Plan(
        layout=text_layout(names, linear_projection),
        dialect=kind,
        prefix=outer,
        stored=TextConfig(**fields),
        arrays=arrays,
        unused=unused,
        warnings=[] if by_arrays or sidecars.config else [Notice(_NO_CONFIG)],
    )
    return made, names


def text_layout(names: Names, linear_projection: bool) -> Layout:
    """How a kind of file stores a text tower; `linear_projection` is for open_clip's with a bias."""
    return Layout(names.family.title, lambda config: _text_rows(config, names, linear_projection))


def _find(file: Mapping[str, StoredArray]) -> tuple[str, Names, str] | None:
    """Returns the kind of text tower in a file (a key of `NAMES`), its names, and what stands before them."""
    is_tips = not any(_POSITIONS.search(name) for name in file)
    for kind, names in NAMES.items():
        if names.is_tips and not is_tips:
            continue
        tokens, last = f"{names.module}{names.tokens}", f"{names.module}{names.family.norm}"
        for name in file:
            outer = name.removesuffix(tokens)
            if name.endswith(tokens) and (not outer or outer[-1] in "./"):
                has_last = any(f"{outer}{last}{end}" in file for end in (".weight", "/scale"))
                if has_last and (kind != "siglip" or f"{outer}text_model.head.weight" in file):
                    return kind, names, outer
    return None


def _in_linen(arrays: dict[str, StoredArray]) -> dict[str, StoredArray]:
    """Returns the arrays by Linen's names, block by block; positions that stand there twice are added up."""
    text, image = "txt/Encoder_0/encoderblock", "Transformer/encoderblock"  # `in_linen` knows an image tower's names
    arrays, _ = flax.in_linen({re.sub(f"^{text}", image, name): array for name, array in arrays.items()})
    arrays = {re.sub(f"^{image}", text, name): array for name, array in arrays.items()}
    second = arrays.pop("txt/Encoder_0/pos_embedding", None)
    if second is not None:
        first = arrays.get("txt/pos_embedding")
        if first is not None and first.shape != second.shape:
            raise ValueError(f"The tables of text positions must have one shape, not {first.shape} and {second.shape}.")
        arrays["txt/pos_embedding"] = second if first is None else _sum(first, second)
    return arrays


def _sum(first: StoredArray, second: StoredArray) -> StoredArray:
    def load(offset: int, size: int) -> np.ndarray:
        return np.ascontiguousarray(first.read() + second.read()).reshape(-1).view(np.uint8)[offset : offset + size]

    return StoredArray(first.name, first.shape, np.dtype("float32"), load)


def _text_fields(
    arrays: Mapping[str, StoredArray],
    sidecars: Sidecars,
    kind: str,
    names: Names,
    linear_projection: bool,
    gelu: str | None,
) -> Fields:
    module, family = names.module, names.family
    vocabulary, width = shape_of(arrays, f"{module}{names.tokens}", 2)
    context, block = _TIPS_CONTEXT, f"{module}{family.blocks}0"
    if not names.is_tips:
        context = shape_of(arrays, f"{module}{names.positions}", 3 if family is _FLAX else 2)[-2]
    fields: Fields = {"vocabulary": vocabulary, "context": context, "width": width}
    fields["depth"] = depth_of(arrays, f"{module}{family.blocks}")
    if names.is_flax:
        head = f"{module}{names.projection}/kernel"
        fields |= flax.sizes_of_block(arrays, f"{block}/")
        if names.is_tips:
            return fields | TIPS
        return fields | {
            "pooling": "map" if f"{module}MAPHead_0/probe" in arrays else "last",
            "projection": shape_of(arrays, head, 2)[1] if head in arrays else None,
            "projection_bias": head in arrays,
        }
    fields["mlp_width"] = shape_of(arrays, f"{block}.{family.mlp[0]}.weight", 2)[0]
    if names.is_tips:
        return fields | _from_tips(sidecars, fields)
    start = "" if names.outside else module
    if names.is_matrix and not linear_projection:
        matrix = f"{start}{names.projection}"
        fields["projection"] = shape_of(arrays, matrix, 2)[1] if matrix in arrays else None
    else:
        fields["projection"] = shape_of(arrays, f"{start}{names.projection}.weight", 2)[0]
        fields["projection_bias"] = f"{start}{names.projection}.bias" in arrays
    if names.is_matrix:
        model = mapping(sidecars.open_clip, "model_cfg")
        metadata = mapping(model, "text_cfg")
        check_sizes(metadata, [Key("context", "context_length")], fields, "text_cfg")
        clip.check_open_clip(metadata, "text_cfg", fields)
        clip.check_open_clip(model, "model_cfg", fields)
        return fields | _from_open_clip(model, metadata, sidecars, width, gelu)
    metadata = mapping(sidecars.config, "text_config")
    check_sizes(metadata, (*_SIZES, _CONTEXT), fields, "text_config")
    check_sizes(sidecars.config, [Key("projection", "projection_dim")], fields)
    return fields | _from_huggingface(sidecars.config, metadata, kind)


def _from_huggingface(config: Mapping[str, Any], metadata: Mapping[str, Any], kind: str) -> Fields:
    """Returns the fields that the `text_config` says, or that its class has where it says nothing."""
    if kind == "siglip":
        value_in(config, "model_type", ("siglip", "siglip_text_model", "siglip2", "siglip2_text_model"))
        fields: Fields = {"heads": 12, "gelu": "tanh", "layer_norm_epsilon": 1e-6}
        return fields | fields_in(huggingface.TOWER, metadata)
    value_in(config, "model_type", ("clip", "clip_text_model"))
    fields = {"heads": 8, "gelu": "quick", "layer_norm_epsilon": 1e-5, "causal": True}
    end = metadata.get("eos_token_id", 49407)
    # OpenAI's configs have the wrong id 2, for which transformers takes the largest one.
    fields |= {"pooling": "largest_id"} if end == 2 else {"pooling": "end_id", "end_id": end}
    return fields | fields_in(huggingface.TOWER, metadata)


def _from_tips(sidecars: Sidecars, fields: Fields) -> Fields:
    """Returns the fields that the `text_config` of a TIPS says, or its authors' where it says nothing."""
    metadata = mapping(sidecars.config, "text_config")
    value_in(sidecars.config, "model_type", ["tipsv2"])
    check_sizes(metadata, _SIZES, fields, "text_config")
    for key, value in {"hidden_act": "relu", "pad_token_id": 0, "scale_sqrt_depth": True}.items():
        value_in(metadata, key, [value], file="text_config")
    width = fields["width"]
    return TIPS | {
        "context": metadata.get("max_position_embeddings", _TIPS_CONTEXT),
        "heads": metadata.get("num_attention_heads", pytorch.HEADS.get(width, max(width // 64, 1))),
        "layer_norm_epsilon": metadata.get("layer_norm_eps", 1e-5),
    }


def _from_open_clip(
    model: Mapping[str, Any], metadata: Mapping[str, Any], sidecars: Sidecars, width: int, known: str | None
) -> Fields:
    """Returns the fields that open_clip's `text_cfg` (`metadata`) in its `model_cfg` says, or has by default."""
    tokens = mapping(metadata, "tokenizer_kwargs")
    unknown = {key: value for key, value in metadata.items() if key not in _TEXT_CFG}
    unknown |= {f"tokenizer_kwargs.{key}": value for key, value in tokens.items() if key != "clean"}
    unknown |= {key: value or "{}" for key, value in model.items() if key == "multimodal_cfg"}
    for key, value in unknown.items():
        if value:
            what = f"{key}={printable(value, 60)} of the text tower in open_clip_config.json"
            raise ValueError(f"{what} is not supported.")
    pooling = OPEN_CLIP_POOLINGS[value_in(metadata, "pool_type", OPEN_CLIP_POOLINGS, file="open_clip_config.json")]
    like = sidecars.like
    gelu = clip.gelu_of(sidecars, metadata, known if like is None or like.config is None else like.config.gelu)
    if gelu is None:
        raise ValueError(pytorch.UNKNOWN_GELU)
    return {
        "heads": metadata.get("heads", 8 if model else max(width // 64, 1)),
        "gelu": gelu,
        "layer_norm_epsilon": mapping(metadata, "norm_kwargs").get("eps", 1e-5),
        "causal": not metadata.get("no_causal_mask", False),
        "pooling": pooling,
        "end_id": metadata.get("eos_id", 2) if pooling == "end_id" else None,
    }
