"""What files call their arrays: one file for each kind of names, each with tables that read both ways."""

from typing import Any

from keras_vit.checkpoints.accounting import Layout
from keras_vit.checkpoints.layouts import clip, dense, eomt, flax, huggingface, timm, tips, tips_heads
from keras_vit.models import DPTConfig, EoMTConfig, MultiTaskDPTConfig

# Layouts of dense models, which are asked first: a backbone's arrays are among theirs.
DENSE = (eomt.LAYOUT, tips_heads.LAYOUT, dense.DEPTH, dense.LINEAR)
# Those that transformers reads, by the configs of the models; of Depth Anything 3 that which its authors' code reads.
WRITTEN: dict[type[Any], Layout] = {
    EoMTConfig: eomt.HUGGINGFACE,
    DPTConfig: dense.HUGGINGFACE,
    MultiTaskDPTConfig: tips_heads.HUGGINGFACE,
}
# Models of dense prediction that are not a plain ViT with a head: what they are called, by how names of their arrays
# begin, or by how the `model_type` or `model_name` in their config.json does.
FOREIGN: dict[str, str] = {
    "model.pixel_level_module.": "Mask2Former",
    "sem_seg_head.": "Mask2Former",
    "mask_decoder.": "SAM",
    "sam_mask_decoder.": "SAM",
    "segformer.": "SegFormer",
    "decode_head.linear_c": "SegFormer",
    "beit.": "BEiT",
    **dict.fromkeys(
        (
            *("da3-", "da3nested", "model.da3.", "model.backbone.pretrained.camera_token", "model.cam_dec."),
            *(
                "model.cam_enc.",
                "model.gs_head.",
                "model.head.scratch.output_conv1_aux",
                "model.head.scratch.refinenet1_aux",
            ),
        ),
        "a Depth Anything 3 for several views",
    ),
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
