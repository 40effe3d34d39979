"""What files call their arrays: one file for each kind of names, each with tables that read both ways."""

import importlib
from collections.abc import Mapping
from typing import Any

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


def dense_layout(names: Mapping[str, Any]) -> Any:
    """The module with the layout of a dense model, by the names of its arrays; None for a model of other kinds.

    Raises ValueError for one that is `FOREIGN`.
    """
    for start, title in FOREIGN.items():
        if any(name.startswith(start) for name in names):
            raise ValueError(
                f"it holds {title}, which is not read. Of models for masks and depth these are: EoMT, linear heads of "
                "DINOv2 and DINOv3, DPT heads of DINOv2 and Depth Anything."
            )
    module = next((module for name, module in DENSE.items() if name in names), None)
    return None if module is None else dense_module(module)


def dense_module(name: str) -> Any:
    """The module with a layout of dense models: `read(file, hints)` and, where it is written, `to_write(config)`."""
    return importlib.import_module(f"{__name__}.{name}")
