"""Names in the layout of timm that differ from file to file, and who has which."""

import dataclasses
from collections.abc import Mapping

from keras_vit.checkpoints.files.stored_array import StoredArray
from keras_vit.checkpoints.layouts.timm_config import is_eva
from keras_vit.models import ViTConfig


@dataclasses.dataclass(frozen=True)
class Dialect:
    """What the names are that differ from file to file.

    Attributes:
        name: Who has them.
        registers: The register tokens.
        scales: The layer scales of a block.
        fused: Whether queries, keys and values share a matrix, `attn.qkv.weight`.
        fused_bias: Whether they share a bias, `attn.qkv.bias`; otherwise it is `attn.q_bias` and `attn.v_bias`.
        mlp: The linear layers of an MLP; two names for a SwiGLU mean that gate and value are one layer.
        norm: The last layer normalisation.
        periods: Whether the periods of the rotary embedding are stored.
    """

    name: str = "timm"
    registers: str = "reg_token"
    scales: tuple[str, str] = ("ls1.gamma", "ls2.gamma")
    fused: bool = True
    fused_bias: bool = True
    mlp: tuple[str, ...] = ("fc1", "fc2")
    norm: str = "norm"
    periods: bool = False


def dialect_of(arrays: Mapping[str, StoredArray], unused: list[str], container: str) -> Dialect:
    """Who has published a file, and what it calls its parts; `container` is the dict that the model was in."""
    has = arrays.keys().__contains__
    block = "blocks.0."
    without = any(name.endswith("mask_token") for name in unused)
    name = "timm"
    if has("storage_tokens") or has("rope_embed.periods"):
        name = "Facebook DINOv3"
    elif has("register_tokens") or (without and has(f"{block}ls1.gamma")):
        name = "Facebook DINOv2"
    elif any("decoder" in name for name in unused):
        name = "Facebook MAE"
    elif has(f"{block}gamma_1") and has(f"{block}attn.qkv.bias") and has("pos_embed"):
        name = "Facebook DeiT-III"
    elif container == "teacher":
        name = "Facebook DINO"
    elif container in ("target_encoder", "encoder"):
        name = "Facebook I-JEPA"
    elif container == "model" and has("cls_token") and has("fc_norm.weight") and has(f"{block}attn.qkv.bias"):
        name = "Facebook MAE"  # fine-tuned
    mlps = (("fc1_g", "fc1_x", "fc2"), ("w1", "w2", "w3"), ("w12", "w3"), ("fc1", "fc2"))
    scales = ("gamma_1", "gamma_2") if has(f"{block}gamma_1") else ("ls1.gamma", "ls2.gamma")
    return Dialect(
        name=name,
        registers=next((n for n in ("storage_tokens", "register_tokens") if has(n)), "reg_token"),
        scales=scales,
        fused=has(f"{block}attn.qkv.weight"),
        fused_bias=not has(f"{block}attn.q_bias"),
        mlp=next((m for m in mlps if all(has(f"{block}mlp.{part}.weight") for part in m)), ("fc1", "fc2")),
        norm="fc_norm" if has("fc_norm.weight") else "norm",
        periods=has("rope_embed.periods"),
    )


def timms_own(config: ViTConfig) -> Dialect:
    """The names that timm itself has for a model."""
    eva = is_eva(config)
    separate = config.mlp == "swiglu_norm"
    unpacked = separate or (config.mlp == "swiglu" and config.rotary_embedding == "dinov3")
    return Dialect(
        scales=("gamma_1", "gamma_2") if eva else ("ls1.gamma", "ls2.gamma"),
        fused=not separate,
        fused_bias=not eva,
        mlp=("fc1_g", "fc1_x", "fc2") if unpacked else ("fc1", "fc2"),
        norm="fc_norm" if config.final_norm == "pooled" else "norm",
    )
