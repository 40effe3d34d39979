"""What files call their arrays: one file for each kind of names, each with tables that read both ways."""

from keras_vit.checkpoints.accounting import Layout
from keras_vit.checkpoints.layouts import clip, flax, huggingface, timm

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
