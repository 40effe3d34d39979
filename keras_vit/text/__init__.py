"""Words for images: both towers of CLIP, SigLIP and LiT, their tokenizers, and classifiers made of texts."""

from keras_vit._importing import lazy_names

__getattr__ = lazy_names(__name__)
