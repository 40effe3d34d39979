"""The names that arguments of layers take; data, for those who check a name without building a layer."""

GELUS = ("tanh", "exact", "quick")
MLPS = ("plain", "plain_norm", "swiglu", "swiglu_norm")
ATTENTION_BIASES = ("all", "no_key", "none")
POOLINGS = ("token", "avg", "token_avg", "map", "none")
POSITION_EMBEDDINGS = ("learned", "learned_patches", "learned_without_registers", "sincos2d", "none")
ROTARY_EMBEDDINGS = ("dinov3", "eva02")
FINAL_NORMS = ("tokens", "pooled", "none")
# What BiT pads its first pooling with.
POOL_PADDINGS = {"-inf": float("-inf"), "zeros": 0.0}
