"""What files call their arrays: one file for each kind of names, each with tables that read both ways."""

from keras_vit.checkpoints.accounting import Layout
from keras_vit.checkpoints.layouts import clip, flax, huggingface, timm

# Dense models: the module that reads them, by an array that only their files have.
DENSE: dict[str, str] = {
    "network.q.weight": "eomt",
    "query.weight": "eomt",
    "depth_head.scratch.output_conv1.weight": "depth",
    "neck.reassemble_stage.layers.0.projection.weight": "depth",
    "decode_head.conv_depth.weight": "depth",
    "decode_head.conv_depth.head.0.weight": "depth",
    "decode_head.conv_seg.weight": "segmentation",
    "segmentation_model.1.conv.weight": "segmentation",
}
# Models for masks that are no plain ViT with a head: what they are called, by how names of their arrays begin.
FOREIGN: dict[str, str] = {
    "model.pixel_level_module.": "Mask2Former",
    "sem_seg_head.": "Mask2Former",
    "mask_decoder.": "SAM",
    "sam_mask_decoder.": "SAM",
    "segformer.": "SegFormer",
    "decode_head.linear_c": "SegFormer",
    "beit.": "BEiT",
}
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        flax.BIG_VISION,
        flax.VIT_JAX,
        flax.BIT_TF,
        flax.BIT_BV,
        clip.LAYOUT,
        huggingface.LAYOUT,
        timm.LAYOUT,
    )
}
