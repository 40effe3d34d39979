"""What a model sees: attention, filters, similarities and evidence as arrays, as pictures, and as one page."""

from keras_vit.inspection.attention import (
    attention_distance,
    attention_maps,
    attention_rollout,
    mean_attention_distance,
    patch_attention,
    patch_attention_of_blocks,
    patch_filters,
    position_similarity,
)
from keras_vit.inspection.evidence import (
    class_evidence,
    class_scores,
    gradient_attention,
    nearest_patches,
    saliency,
)
from keras_vit.inspection.page import write_page
from keras_vit.inspection.plots import (
    overlay,
    plot_attention_heads,
    plot_attention_rollout,
    plot_class_evidence,
    plot_mean_attention_distance,
    plot_nearest_patches,
    plot_patch_filters,
    plot_position_similarity,
    plot_saliency,
)
from keras_vit.inspection.running import shown_pixels

__all__ = [
    "attention_distance",
    "attention_maps",
    "attention_rollout",
    "class_evidence",
    "class_scores",
    "gradient_attention",
    "mean_attention_distance",
    "nearest_patches",
    "overlay",
    "patch_attention",
    "patch_attention_of_blocks",
    "patch_filters",
    "plot_attention_heads",
    "plot_attention_rollout",
    "plot_class_evidence",
    "plot_mean_attention_distance",
    "plot_nearest_patches",
    "plot_patch_filters",
    "plot_position_similarity",
    "plot_saliency",
    "position_similarity",
    "saliency",
    "shown_pixels",
    "write_page",
]
