"""A class for every pixel: segmentation models, from a picture to its segments, and how good they are."""

from keras_vit._importing import lazy_names

__getattr__ = lazy_names(__name__)
