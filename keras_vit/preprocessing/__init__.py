"""Images in, what models take out; probabilities in, names out. All NumPy, the same on every backend.

A `Pipeline`, which the config of a model holds, is what its family was evaluated with: `model.preprocess("photo.jpg")`.
That of the official checkpoints is `load_image`, then `preprocess_input`: decode to RGB, resize bilinearly without
antialiasing straight to the model's size, map 0..255 to [-1, 1]. Only reading files needs Pillow.
"""

from keras_vit._importing import imported_names as _imported_names
from keras_vit.interpolation import FILTERS as FILTERS
from keras_vit.preprocessing.applications import LABEL_SETS as LABEL_SETS
from keras_vit.preprocessing.applications import LabelSet as LabelSet
from keras_vit.preprocessing.applications import decode_predictions as decode_predictions
from keras_vit.preprocessing.applications import imagenet1k_classes as imagenet1k_classes
from keras_vit.preprocessing.applications import imagenet21k_classes as imagenet21k_classes
from keras_vit.preprocessing.applications import label_set as label_set
from keras_vit.preprocessing.applications import naflex_size as naflex_size
from keras_vit.preprocessing.applications import preprocess_input as preprocess_input
from keras_vit.preprocessing.applications import sample_image as sample_image
from keras_vit.preprocessing.images import RESIZES as RESIZES
from keras_vit.preprocessing.images import Pipeline as Pipeline
from keras_vit.preprocessing.images import check_mode as check_mode
from keras_vit.preprocessing.images import check_pixels as check_pixels
from keras_vit.preprocessing.images import is_file as is_file
from keras_vit.preprocessing.images import load_image as load_image
from keras_vit.preprocessing.images import resize_and_crop as resize_and_crop
from keras_vit.preprocessing.images import resize_images as resize_images

__all__ = _imported_names(__name__)
