"""The papers' recipes as plain Keras objects: schedules, optimizers, data, fine-tuning, pre-training."""

from keras_vit._importing import lazy_names

__getattr__ = lazy_names(__name__)
