"""What is trained on labels that are not one class of equal weight each: several labels, numbers, uneven classes."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import listing, warn_caller
from keras_vit.data import Augmentation, ImageStream
from keras_vit.training.options import AUGMENTATION, OBJECTIVES, RECIPE, refuse_unused
from keras_vit.training.recipes import Recipe, build_loss

WIDE = 5  # standard deviation of numbers that steps of the recipes' size hardly reach


def check_options(recipe: Recipe, objective: str, target: str) -> None:
    """Raises ValueError if data of a target, or a field of a recipe, is not for what a run learns from."""
    if target not in OBJECTIVES[objective]:
        wanted = f"{objective} takes data of the target {listing(OBJECTIVES[objective])}"
        raise ValueError(f"{wanted}, but the target of this data is {target!r}.")
    refuse_unused(recipe, Recipe(), RECIPE, objective=objective, target=target)
    if isinstance(recipe.augmentation, Augmentation):
        refuse_unused(recipe.augmentation, Augmentation(), AUGMENTATION, objective=objective, target=target)


def loss_and_metric(recipe: Recipe, images: ImageStream) -> tuple[keras.losses.Loss, keras.metrics.Metric]:
    """What `finetune` compiles a model with: cross-entropy by classes, a sigmoid for each label, or squared errors."""
    if images.target == "number":
        if images.labels is not None and (spread := np.std(images.labels)) > WIDE:
            hint = "what recipes call a learning rate is for numbers that spread by about 1. Divide them."
            warn_caller(f"The labels have a standard deviation of {spread:.3g}, and {hint}")
        return keras.losses.MeanSquaredError(), keras.metrics.MeanAbsoluteError(name="mean_absolute_error")
    weights = class_weights(recipe.class_weight, images)
    if images.target == "class":
        return build_loss(recipe, weights), keras.metrics.CategoricalAccuracy(name="accuracy")
    return build_loss(recipe, weights), RankingPrecision(name="ranking_precision")


def class_weights(given: str | dict[str | int, float] | None, images: ImageStream) -> list[float] | None:
    """The factor of each class in the loss, in the order of the classes; `given` is a recipe's `class_weight`.

    `"balanced"` is scikit-learn's `examples / (classes * count)`; of several labels a positive one weighs
    `(examples - count) / count`, as PyTorch proposes for the `pos_weight` of its BCEWithLogitsLoss.
    """
    if given is None:
        return None
    if isinstance(given, dict):
        numbers = [str(i) for i in range(images.classes)]
        names = images.class_names or numbers
        # Keras's users write {3: 2.0}, by the numbers of classes; JSON makes strings of them.
        if all(isinstance(name, int) for name in given):
            given, names = {str(number): weight for number, weight in given.items()}, numbers
        if unknown := [name for name in given if name not in names]:
            raise ValueError(f"class_weight has {listing(unknown)}, but the classes are {listing(names)}.")
        return [float(given.get(name, 1.0)) for name in names]
    if images.labels is None:
        raise ValueError("A pipeline does not say how many images a class has: class_weight={name: weight, ...}.")
    labels, count = images.labels, len(images.labels)
    sums = np.bincount(labels, minlength=images.classes) if labels.ndim == 1 else labels.sum(axis=0)
    sums = np.maximum(sums, 1)  # a class without images has no part in the loss
    weights = (count - sums) / sums if images.target == "multilabel" else count / (images.classes * sums)
    return weights.astype("float64").tolist()


class RankingPrecision(keras.metrics.MeanMetricWrapper):
    """Of several labels: for each image the mean, over its labels, of the share of true ones among those ranked above.

    scikit-learn's `label_ranking_average_precision_score`, where no scores are equal; an image without labels has 1.
    A mean over images, which processes and batches can share; the mean average precision over classes is `evaluate`'s.
    """

    def __init__(self, name: str = "ranking_precision", dtype: Any = None) -> None:
        super().__init__(_ranking_precision, name=name, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}


def _ranking_precision(y_true: Any, y_pred: Any) -> Any:
    order = ops.argsort(-y_pred, axis=-1)
    true = ops.cast(ops.take_along_axis(y_true, order, axis=-1) > 0.5, "float32")
    share = ops.cumsum(true, axis=-1) / ops.arange(1, true.shape[-1] + 1, dtype="float32")
    count = ops.sum(true, axis=-1)
    return ops.where(count > 0, ops.sum(true * share, axis=-1) / ops.maximum(count, 1.0), 1.0)
