"""Images in, what models take out; probabilities in, names out. All NumPy, the same on every backend.

A `Pipeline`, which the config of a model holds, is what its family was evaluated with: `model.preprocess("photo.jpg")`.
That of the official checkpoints is `load_image`, then `preprocess_input`: decode to RGB, resize bilinearly without
antialiasing straight to the model's size, map 0..255 to [-1, 1]. Only reading files needs Pillow.
"""

from keras_vit._importing import lazy_names

__getattr__ = lazy_names(__name__)
