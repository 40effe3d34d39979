"""Which weights are split when a model lies on several devices, as data: no backend is needed to ask."""

from keras_vit.models.bit_config import BiTConfig
from keras_vit.models.config import ViTConfig
from keras_vit.models.sizes import convolutions

MODEL = "model"

# Weight paths (regular expressions), and how the weight lies over the devices: an entry per axis, MODEL for the one
# that is split, None for the others. The first of two matrices in a row is split along its outputs and the second along
# its inputs, so that only the second's result has to be summed over the devices (Megatron-LM, arXiv 1909.08053).
# What is not listed (normalisations, tokens, position and patch embedding: about 1 % of B/16) is whole on every device.
SPLIT: dict[str, tuple[str | None, ...]] = {
    r"attention/(query|key|value)/kernel": (None, MODEL),
    r"attention/(query|key|value)/bias": (MODEL,),
    r"attention/out/kernel": (MODEL, None),
    r"mlp/(fc1|gate|value)/kernel": (None, MODEL),
    r"mlp/(fc1|gate|value)/bias": (MODEL,),
    r"mlp/fc2/kernel": (MODEL, None),
    r"pre_logits/kernel": (None, MODEL),
    r"pre_logits/bias": (MODEL,),
    r"(head|head_dist|projection)/kernel": (MODEL, None),  # inputs: the number of classes seldom divides
    # The ResNets of hybrids and of BiT, along the output channels, each of which is standardised for itself.
    r"(conv_root|conv1|conv2|conv3|conv_proj)/kernel": (None, None, None, MODEL),
}


def split_sizes(config: ViTConfig | BiTConfig) -> dict[str, int]:
    """The lengths of all axes that are split, or a divisor of them, by the fields of the config.

    The number of shards has to divide each of them.
    """
    if isinstance(config, BiTConfig):
        return {"width": config.width}
    sizes = {"width": config.width, "mlp_width": config.mlp_width}
    if config.stem_stages is not None:
        sizes["stem_width"] = config.stem_width
    if config.representation_size:
        sizes["representation_size"] = config.representation_size
    return sizes


def count_split_weights(config: ViTConfig) -> int:
    """The number of weights that `SPLIT` divides among the devices; the rest is whole on each of them."""
    width, hidden = config.width, config.mlp_width
    biases = {"all": 3, "no_key": 2, "none": 0}[config.attention_bias]
    matrices = 1 if config.mlp.startswith("plain") else 2  # before the activation
    block = 4 * width**2 + biases * width + (matrices + 1) * width * hidden + matrices * hidden
    total = config.depth * block
    if config.pooling == "map":
        total += 4 * width**2 + 3 * width + 2 * width * hidden + hidden
    features = config.pooled_size
    if config.projection:
        total, features = total + features * config.projection, config.projection
    if config.representation_size:
        total, features = total + (features + 1) * config.representation_size, config.representation_size
    total += features * (config.classes or 0) * (1 + config.distillation_head)
    return total + sum(conv.weights for conv in convolutions(config))
