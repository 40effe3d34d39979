"""Foreign files to models and back: one file per layout, one engine for all; published files and how to get them."""

from keras_vit.checkpoints.augreg import augreg_index, best_augreg
from keras_vit.checkpoints.catalogue import recommended
from keras_vit.checkpoints.checkpoint import (
    LAYOUTS,
    CheckpointInfo,
    count_parameters,
    inspect_checkpoint,
    load_model,
    open_checkpoint,
    to_checkpoint,
)
from keras_vit.checkpoints.class_list import class_names, with_names_beside
from keras_vit.checkpoints.download import DownloadError
from keras_vit.checkpoints.keras_files import config_in_file, read_keras, read_weights_h5, save_model
from keras_vit.checkpoints.shipped import find_checkpoint
from keras_vit.checkpoints.weights_table import list_weights

__all__ = [
    "LAYOUTS",
    "CheckpointInfo",
    "DownloadError",
    "augreg_index",
    "best_augreg",
    "class_names",
    "config_in_file",
    "count_parameters",
    "find_checkpoint",
    "inspect_checkpoint",
    "list_weights",
    "load_model",
    "open_checkpoint",
    "read_keras",
    "read_weights_h5",
    "recommended",
    "save_model",
    "with_names_beside",
    "to_checkpoint",
]
