"""Foreign files to models and back (`files`, `layouts`, `accounting`); published files and how to get them."""

from keras_vit._importing import lazy_names

__getattr__ = lazy_names(__name__)
