"""Small models of every kind whose weights are neither zero nor one, and images for them."""

import keras
import numpy as np

import keras_vit

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


def make(kind="plain", dtype=None, **fields):
    config = {"image_size": (8, 12), "patch_size": 4, "width": 16, "depth": 2, "heads": 2, "mlp_width": 24}
    config = keras_vit.ViTConfig(**config | {"classes": 3} | KINDS[kind] | fields)
    with keras_vit.layers.skip_initialization():
        model = keras_vit.VisionTransformer(config, dtype=dtype)
    return filled(model)


def filled(model, seed=0):
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(0.05, 0.3, weight.shape))
    return model


def images_for(model, batch=2):
    return np.random.default_rng(1).uniform(-1, 1, (batch, *model.config.image_size, 3)).astype("f4")


def around(model):
    """A larger model that has one inside, two levels deep."""
    pixels = keras.Input((*model.config.image_size, 3))
    inner = keras.Sequential([keras.Input(pixels.shape[1:]), keras.layers.Rescaling(0.5), model])
    return keras.Model(pixels, keras.layers.Dense(4, kernel_initializer="ones")(inner(pixels)))
