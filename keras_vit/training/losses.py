"""The losses of the original code, on logits and one-hot (or mixed) labels, computed in float32."""

from typing import Any

import keras
from keras import ops


class _Loss(keras.losses.Loss):
    """A loss per image, averaged over the batch, computed in at least float32."""

    def __init__(
        self,
        label_smoothing: float = 0.0,
        reduction: str = "sum_over_batch_size",
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be at least 0 and less than 1, but {label_smoothing!r} was given.")
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.label_smoothing = label_smoothing

    def _prepare(self, labels: Any, logits: Any) -> tuple[Any, Any]:
        """Labels, smoothed, and logits in at least float32."""
        if len(labels.shape) != len(logits.shape) or labels.shape[-1] != logits.shape[-1]:
            raise ValueError(
                f"{type(self).__name__} takes one-hot labels of the logits' shape {tuple(logits.shape)}, but labels of "
                f"shape {tuple(labels.shape)} were given. keras.ops.one_hot(labels, classes) makes them from integers."
            )
        dtype = keras.backend.result_type(logits.dtype, "float32")
        labels, logits = ops.cast(labels, dtype), ops.cast(logits, dtype)
        if self.label_smoothing:
            labels = labels * (1.0 - self.label_smoothing) + self.label_smoothing / logits.shape[-1]
        return labels, logits

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package="keras_vit")
class SoftmaxLoss(_Loss):
    """Cross-entropy with a softmax: `-mean over images(sum over classes(label * log_softmax(logit)))`.

    As `cross_entropy_loss` in vit_jax/train.py and `softmax_xent` in big_vision/utils.py.

    Call it with labels `(batch, classes)`, one-hot or mixed, and logits of that shape; others are a ValueError.
    `label_smoothing=s` makes `label * (1 - s) + s / classes` of a label.

    Args:
        label_smoothing: s, from 0 to 1.
        reduction: As for every loss of Keras: `"sum_over_batch_size"` is the mean over the images.
        name: Name of the loss.
        dtype: Dtype policy of the computation; None for Keras's global one.

    Examples:
        >>> round(float(training.SoftmaxLoss()(np.eye(2), np.zeros((2, 2)))), 4)  # log(2)
        0.6931
    """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The loss of each image, `(batch,)`."""
        labels, logits = self._prepare(y_true, y_pred)
        return -ops.sum(labels * ops.log_softmax(logits, axis=-1), axis=-1)


@keras.saving.register_keras_serializable(package="keras_vit")
class SigmoidLoss(_Loss):
    """Cross-entropy with a sigmoid per class, summed over the classes and averaged over the images.

    As `sigmoid_xent` in big_vision/utils.py; what ImageNet-21k and JFT models are pre-trained with, where an image
    may have several labels. The head then starts with the bias -10, so that no class is likely.

    Call it with labels `(batch, classes)`, 0, 1 or in between, and logits of that shape; others are a ValueError.
    `label_smoothing=s` makes `label * (1 - s) + s / classes` of a label.

    Args:
        label_smoothing: s, from 0 to 1.
        reduction: As in `SoftmaxLoss`.
        name: Name of the loss.
        dtype: Dtype policy of the computation; None for Keras's global one.

    Examples:
        >>> float(training.SigmoidLoss()(np.eye(2), np.zeros((2, 2)))) == 2 * float(np.log(np.float32(2)))
        True
    """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The loss of each image, `(batch,)`."""
        labels, logits = self._prepare(y_true, y_pred)
        likelihood = labels * ops.log_sigmoid(logits) + (1.0 - labels) * ops.log_sigmoid(-logits)
        return -ops.sum(likelihood, axis=-1)
