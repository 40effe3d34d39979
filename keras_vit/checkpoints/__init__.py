"""Foreign files to models and back (`files`, `layouts`, `accounting`); published files and how to get them."""

from typing import TYPE_CHECKING

from keras_vit._lazy import lazy_names

if TYPE_CHECKING:
    from keras_vit.checkpoints.augreg import augreg_index, best_augreg
    from keras_vit.checkpoints.catalogue import list_models, list_weights, recommended
    from keras_vit.checkpoints.checkpoint import (
        LAYOUTS,
        CheckpointInfo,
        inspect_checkpoint,
        is_keras_file,
        is_variant,
        load_model,
        open_checkpoint,
        resolve_source,
        to_checkpoint,
    )
    from keras_vit.checkpoints.download import find_checkpoint, find_recommended, is_copy
    from keras_vit.checkpoints.files import names_beside, pair_in
    from keras_vit.checkpoints.hub import DownloadError
    from keras_vit.checkpoints.keras_files import (
        check_format,
        class_names,
        config_in_file,
        read_keras,
        save_model,
    )
    from keras_vit.checkpoints.publishing import push_to_hub

__getattr__ = lazy_names(__name__)

__all__ = [
    "LAYOUTS",
    "CheckpointInfo",
    "DownloadError",
    "augreg_index",
    "best_augreg",
    "check_format",
    "class_names",
    "config_in_file",
    "find_checkpoint",
    "find_recommended",
    "inspect_checkpoint",
    "is_copy",
    "is_keras_file",
    "is_variant",
    "list_models",
    "list_weights",
    "load_model",
    "names_beside",
    "open_checkpoint",
    "pair_in",
    "push_to_hub",
    "read_keras",
    "recommended",
    "resolve_source",
    "save_model",
    "to_checkpoint",
]
