"""How good a model is: accuracy on a labelled set, and a linear probe from a few examples; features of many images."""

from keras_vit._importing import lazy_names

__getattr__ = lazy_names(__name__)
