"""Labelled images from anywhere, as batches: folders, arrays, tensorflow-datasets, other people's pipelines."""

from keras_vit._importing import lazy_names

__getattr__ = lazy_names(__name__)
