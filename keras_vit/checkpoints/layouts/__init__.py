"""What files call their arrays: one file for each kind of names, each with tables that read both ways."""

from collections.abc import Collection

from keras_vit.checkpoints.accounting import Hints, Layout
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


def in_order(names: Collection[str], hints: Hints) -> list[Layout]:
    """The layouts in the order in which they are asked for a file: first whose JSON files lie beside it.

    Args:
        names: Those of its arrays; only Flax's have slashes.
        hints: What lies beside it.
    """
    pytorch = {"clip": hints.open_clip, "timm": (hints.config or {}).get("architecture"), "huggingface": hints.config}
    first = [name for name, beside in pytorch.items() if beside] if not any("/" in name for name in names) else []
    return [LAYOUTS[name] for name in dict.fromkeys([*first, *LAYOUTS])]
