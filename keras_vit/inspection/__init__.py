"""What a model sees: attention, filters, similarities and evidence as arrays, as pictures, and as one page."""

from typing import TYPE_CHECKING, Any

from keras_vit._names import lazy_names

if TYPE_CHECKING:
    from keras_vit.inspection.attention import attention_distance as attention_distance
    from keras_vit.inspection.attention import attention_maps as attention_maps
    from keras_vit.inspection.attention import attention_rollout as attention_rollout
    from keras_vit.inspection.attention import mean_attention_distance as mean_attention_distance
    from keras_vit.inspection.attention import patch_attention as patch_attention
    from keras_vit.inspection.attention import patch_attention_of_blocks as patch_attention_of_blocks
    from keras_vit.inspection.attention import patch_filters as patch_filters
    from keras_vit.inspection.attention import position_similarity as position_similarity
    from keras_vit.inspection.evidence import class_evidence as class_evidence
    from keras_vit.inspection.evidence import class_scores as class_scores
    from keras_vit.inspection.evidence import feature_map as feature_map
    from keras_vit.inspection.evidence import gradient_attention as gradient_attention
    from keras_vit.inspection.evidence import nearest_patches as nearest_patches
    from keras_vit.inspection.evidence import saliency as saliency
    from keras_vit.inspection.page import write_page as write_page
    from keras_vit.inspection.plots import overlay as overlay
    from keras_vit.inspection.plots import plot as plot
    from keras_vit.inspection.running import shown_pixels as shown_pixels

_names = lazy_names(__name__)


def __getattr__(name: str) -> Any:
    if name.startswith("plot_"):
        from keras_vit.inspection.plots import old_plot

        return old_plot(name)
    return _names(name)
