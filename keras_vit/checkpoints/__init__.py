"""Foreign files to models and back (`files`, `layouts`, `accounting`); published files and how to get them."""

from typing import TYPE_CHECKING

from keras_vit._names import lazy_names

if TYPE_CHECKING:
    from keras_vit.checkpoints.catalogue import augreg_index as augreg_index
    from keras_vit.checkpoints.catalogue import best_augreg as best_augreg
    from keras_vit.checkpoints.catalogue import list_models as list_models
    from keras_vit.checkpoints.catalogue import list_weights as list_weights
    from keras_vit.checkpoints.catalogue import recommended as recommended
    from keras_vit.checkpoints.catalogue import recommended_size as recommended_size
    from keras_vit.checkpoints.checkpoint import LAYOUTS as LAYOUTS
    from keras_vit.checkpoints.checkpoint import CheckpointInfo as CheckpointInfo
    from keras_vit.checkpoints.checkpoint import inspect_checkpoint as inspect_checkpoint
    from keras_vit.checkpoints.checkpoint import load_model as load_model
    from keras_vit.checkpoints.checkpoint import open_checkpoint as open_checkpoint
    from keras_vit.checkpoints.download import class_names as class_names
    from keras_vit.checkpoints.download import find_checkpoint as find_checkpoint
    from keras_vit.checkpoints.download import find_recommended as find_recommended
    from keras_vit.checkpoints.download import is_copy as is_copy
    from keras_vit.checkpoints.download import is_variant as is_variant
    from keras_vit.checkpoints.download import resolve_source as resolve_source
    from keras_vit.checkpoints.files import is_keras_file as is_keras_file
    from keras_vit.checkpoints.files import names_beside as names_beside
    from keras_vit.checkpoints.files import pair_in as pair_in
    from keras_vit.checkpoints.hub import DownloadError as DownloadError
    from keras_vit.checkpoints.hub import push_to_hub as push_to_hub
    from keras_vit.checkpoints.keras_files import config_in_file as config_in_file
    from keras_vit.checkpoints.keras_files import read_keras as read_keras
    from keras_vit.checkpoints.writing import check_format as check_format
    from keras_vit.checkpoints.writing import save_model as save_model
    from keras_vit.checkpoints.writing import to_checkpoint as to_checkpoint

__getattr__ = lazy_names(__name__)
