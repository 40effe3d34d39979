"""The names that arguments of layers take; data, to check a name without building a layer."""

GELUS = ("tanh", "exact", "quick")
MLP_ACTIVATIONS = (*GELUS, "relu")
MLPS = ("plain", "plain_norm", "swiglu", "swiglu_norm")
ATTENTION_BIASES = ("all", "no_key", "none")
POOLINGS = ("token_dist", "token", "avg", "token_avg", "map", "none")
TEXT_POOLINGS = ("last", "first", "largest_id", "end_id", "mean")
TEXT_POSITIONS = ("learned", "sincos")
POSITION_EMBEDDINGS = ("learned", "learned_patches", "learned_without_registers", "sincos2d", "none")
ROTARY_EMBEDDINGS = ("dinov3", "eva02", "pe")
FINAL_NORMS = ("tokens", "pooled", "none")
# What the ResNet of a hybrid adds where it divides: to the variance of a group of channels; to the deviation of a
# kernel, or to its variance where True follows. "official" is `models_resnet.py`, "timm" what timm computes.
STEM_EPSILONS = {"official": (1e-6, 1e-5, False), "timm": (1e-5, 1e-8, True)}
# What BiT pads its first pooling with.
POOL_PADDINGS = {"-inf": float("-inf"), "zeros": 0.0}
# Activations of heads for segmentation: the GELUs, and what transformers calls by these names.
HEAD_ACTIVATIONS = (*GELUS, "silu", "relu")
# How maps change size in a model.
RESIZES = ("corners", "half_pixel")
# How many times larger the maps of DPT are than the grid of patches, and what becomes of its last number.
REASSEMBLE_FACTORS = (4, 2, 1, 0.5)
DEPTH_OUTPUTS = ("relu", "sigmoid", "clipped", "exp")
DISTANCES = ("cosine", "L2")  # of patches to a bank: 1 - cosine, or Euclidean
