"""TensorFlow's SavedModel: `pip install tensorflow`."""

import numpy as np

PACKAGES = ("tensorflow",)


def load(path):
    """A function from a batch of images to the answers of a SavedModel folder.

    Args:
        path: The folder.
    """
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))

    def answers(images: np.ndarray) -> np.ndarray:
        # `loaded` is named here, so that it lives as long as this function: a signature does not keep its variables.
        (answer,) = loaded.signatures["serving_default"](images=tf.constant(images)).values()
        return answer.numpy()

    return answers
