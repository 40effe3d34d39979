"""Foreign files to models and back: one file per layout, one engine for all."""

from keras_vit.checkpoints.checkpoint import (
    LAYOUTS,
    CheckpointInfo,
    inspect_checkpoint,
    load_model,
    open_checkpoint,
    to_checkpoint,
)

__all__ = ["LAYOUTS", "CheckpointInfo", "inspect_checkpoint", "load_model", "open_checkpoint", "to_checkpoint"]
