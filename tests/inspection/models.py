"""Small models of every kind for images of 8 x 12 pixels, and what stands around them."""

import keras

from tests import small_models

KINDS = {
    "plain": {},
    "gap": {"class_token": False, "pooling": "avg"},
    "class_token_gap": {"pooling": "avg"},
    "map": {"class_token": False, "pooling": "map"},
    "dynamic": {"dynamic": True},
    "hybrid": {"stem_stages": (1, 1), "stem_width": 32, "patch_size": 1, "image_size": (16, 24)},
    "tanh": {"representation_size": 6, "classifier_activation": "softmax"},
    "remat": {"remat": True, "dropout": 0.1, "attention_dropout": 0.1, "drop_path": 0.2},
}


def make(kind="plain", **fields):
    return small_models.small_vit(**{"image_size": (8, 12), "width": 16} | KINDS[kind] | fields)


def images_for(model, count=2):
    return small_models.images_for(model.config, count, seed=1)


def around(model):
    """A larger model that has one inside, two levels deep."""
    pixels = keras.Input((*model.config.image_size, 3))
    inner = keras.Sequential([keras.Input(pixels.shape[1:]), keras.layers.Rescaling(0.5), model])
    return keras.Model(pixels, keras.layers.Dense(4, kernel_initializer="ones")(inner(pixels)))
