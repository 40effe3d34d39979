"""Keras layers, one concept per file. They know Keras and nothing else."""

from keras_vit._importing import lazy_names

__getattr__ = lazy_names(__name__)
