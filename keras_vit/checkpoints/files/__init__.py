"""How arrays are stored: the formats of files, each read without its framework."""

from keras_vit.checkpoints.files.opening import open_file, weights_in
from keras_vit.checkpoints.files.safetensors_file import SafetensorsFile, write_safetensors
from keras_vit.checkpoints.files.stored_array import ArrayFile, StoredArray
from keras_vit.checkpoints.files.torch_file import TorchFile
from keras_vit.checkpoints.folder import Sidecars, read_sidecars

__all__ = [
    "ArrayFile",
    "SafetensorsFile",
    "Sidecars",
    "StoredArray",
    "TorchFile",
    "open_file",
    "read_sidecars",
    "weights_in",
    "write_safetensors",
]
