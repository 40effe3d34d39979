"""What files call their arrays: one file for each kind of names, each with tables that read both ways."""

from typing import Any

from keras_vit.checkpoints.accounting import Layout
from keras_vit.checkpoints.layouts import clip, dense, eomt, flax, huggingface, timm, tips
from keras_vit.models import DPTConfig, EoMTConfig

# Layouts of dense models, which are asked first: a backbone's arrays are among theirs.
DENSE = (eomt.LAYOUT, dense.DEPTH, dense.LINEAR)
# Those that transformers reads, by the configs of the models.
WRITTEN: dict[type[Any], Layout] = {EoMTConfig: eomt.HUGGINGFACE, DPTConfig: dense.HUGGINGFACE}
# Models for segmentation that are not a plain ViT with a head: what they are called, by how names of their arrays
# begin, or by how the `model_type` in their config.json does.
FOREIGN: dict[str, str] = {
    "model.pixel_level_module.": "Mask2Former",
    "sem_seg_head.": "Mask2Former",
    "mask_decoder.": "SAM",
    "sam_mask_decoder.": "SAM",
    "segformer.": "SegFormer",
    "decode_head.linear_c": "SegFormer",
    "beit.": "BEiT",
    "tipsv2_dpt": "a TIPS with dense heads",
}
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        flax.BIG_VISION,
        flax.VIT_JAX,
        flax.BIT_TF,
        flax.BIT_BV,
        clip.PE,
        clip.LAYOUT,
        huggingface.LAYOUT,
        timm.LAYOUT,
        tips.LAYOUT,
        tips.SCENIC,
    )
}
