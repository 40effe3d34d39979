"""Models as functions of one config, and the table of variants."""

from keras_vit._importing import lazy_names

__getattr__ = lazy_names(__name__)
