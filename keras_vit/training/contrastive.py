"""Losses of image-text pairs on the logits of a whole batch, `(images, texts)`: text i belongs to image i."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class ContrastiveLoss(keras.losses.Loss):
    """Softmax over the texts of each image and over the images of each text (CLIP, arXiv 2103.00020, figure 3).

    Args:
        name: Name of the loss.

    Call arguments:
        y_true: 1 where a text belongs to an image, `(batch, batch)`; `ImageText` makes it.
        y_pred: Scaled similarities, `(batch, batch)`.

    Output: the mean over the batch of both cross-entropies, halved.

    Examples:
        >>> float(training.ContrastiveLoss()(np.eye(2, dtype="float32"), 100 * np.eye(2, dtype="float32")))
        0.0
    """

    def __init__(self, name: str = "contrastive", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The mean of both cross-entropies for each image, `(batch,)`."""
        rows, columns = (-ops.sum(y_true * ops.log_softmax(y_pred, axis=axis), axis=axis) for axis in (1, 0))
        return (rows + columns) / 2


@keras.saving.register_keras_serializable(package="keras_vit")
class SigmoidContrastiveLoss(keras.losses.Loss):
    """A yes or no for each pair of an image and a text (SigLIP, arXiv 2303.15343, algorithm 1).

    Args:
        name: Name of the loss.

    Call arguments: as of `ContrastiveLoss`; the logits have the learned bias.

    Output: the sum over the pairs divided by the number of images.

    Examples:
        >>> loss = training.SigmoidContrastiveLoss()
        >>> round(float(loss(np.eye(2, dtype="float32"), np.zeros((2, 2), "float32"))), 4)
        1.3863
    """

    def __init__(self, name: str = "sigmoid_contrastive", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return -ops.sum(ops.log_sigmoid((2 * y_true - 1) * y_pred), axis=1)
