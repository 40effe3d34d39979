"""`pretrain`: from random weights, with labels or without."""

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.models import BiT, VisionTransformer
from keras_vit.training.finetuning import as_input, labelled, logits_model, open_run, test_batches
from keras_vit.training.masked_patches import (
    NO_TARGET,
    MaskedPatchAccuracy,
    MaskedPatchLoss,
    masked_patch_model,
    mean_colours,
    plan_corruption,
)
from keras_vit.training.recipes import Recipe
from keras_vit.training.running import Trained, run
from keras_vit.zoo import create_model

OBJECTIVES = ("labels", "masked_patches")


def pretrain(
    model: VisionTransformer | BiT | str,
    data: Any,
    recipe: Recipe | str,
    *,
    objective: str = "labels",
    validation: Any = None,
    output: str | os.PathLike[str] | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    warmup_steps: int | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    every: int | None = None,
    seed: int = 0,
    on_bad_image: str = "stop",
    resume: bool = True,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    dtype: Any = None,
    verbose: bool = True,
) -> Trained:
    """Trains a model from scratch by a recipe of Table 3 or of AugReg, or without labels as in appendix B.1.2.

    Like `finetune` it is counted in updates and goes on after a kill.

    Args:
        model: The name of a variant, for a model with random weights, or a model, which is trained in place.
        data: As in `finetune`. Labels are not looked at by `"masked_patches"`.
        recipe: A name (see `list_recipes`), or a `Recipe`.
        objective: `"labels"`: the recipe's softmax or sigmoid loss on the head, whose biases begin at the recipe's
            `head_bias`. `"masked_patches"`: half of the patches are corrupted, and the 3-bit mean colour of each has
            to be predicted; the encoder is trained, and the head of the model stays as it is.
        validation: As in `finetune`.
        output: As in `finetune`.
        steps: As in `finetune`.
        batch_size: As in `finetune`.
        learning_rate: As in `finetune`.
        warmup_steps: As in `finetune`.
        classes: As in `finetune`.
        class_names: As in `finetune`.
        every: As in `finetune`.
        seed: As in `finetune`; also decides the first weights of a variant, and which patches are corrupted.
        on_bad_image: As in `finetune`.
        resume: As in `finetune`.
        callbacks: As in `finetune`.
        dtype: Dtype policy of a model that is made here.
        verbose: Whether there is a progress bar.

    Returns:
        The model, the log and more (see `Trained`).

    Raises:
        TypeError, ValueError: if an argument makes no sense, the data is damaged, or `output` holds another run.
        FloatingPointError: if the loss is not finite any more.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {OBJECTIVES}, but {objective!r} was given.")
    changes = {"steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "warmup_steps": warmup_steps}
    given = isinstance(model, (VisionTransformer, BiT))
    if given and not model.config.dynamic:
        changes["image_size"] = model.config.image_size
    options = {"seed": seed, "classes": classes, "class_names": class_names, "on_bad_image": on_bad_image}
    recipe, stream, test = open_run(recipe, changes, data, validation, options)
    if not given:
        model = create(model, recipe, stream.classes, dtype)
    common = {"stream": stream, "output": output, "resume": resume, "every": every, "callbacks": callbacks}
    common |= {"settings": {"model": model.get_config()["config"], "objective": objective, "seed": seed}}
    common["settings"]["data"] = stream.describe()
    if objective == "masked_patches":
        learner = masked_patch_model(model)
        compile_with = {"loss": MaskedPatchLoss(), "metrics": [MaskedPatchAccuracy("accuracy")]}
        masked = {"compile_with": compile_with, "title": "masked patches", "verbose": verbose}
        test_set = test_batches(test, _corrupted(model, test, seed + 1))
        return run(learner, model, recipe, _corrupted(model, stream, seed), validation=test_set, **common, **masked)

    _check_head(model, stream.classes)
    metrics = {"metrics": [keras.metrics.CategoricalAccuracy("accuracy")]}
    common |= {"compile_with": metrics, "title": "pre-training", "verbose": verbose}
    common["validation"] = test_batches(test, labelled(model, test))
    return run(logits_model(model), model, recipe, labelled(model, stream), **common)


def create(variant: str, recipe: Recipe, classes: int, dtype: Any = None) -> VisionTransformer | BiT:
    """A model with random weights as a recipe wants it: rates of dropout, size of images, biases of the head."""
    options: dict[str, Any] = {"dtype": dtype, "classes": classes, "image_size": recipe.image_size}
    if not str(variant).startswith("BiT"):
        options |= {"dropout": recipe.dropout, "drop_path": recipe.drop_path}
    model = create_model(variant, classifier_activation=None, **options)
    model.get_layer("head").bias.assign(np.full(classes, recipe.head_bias, "float32"))
    return model


def _check_head(model: VisionTransformer | BiT, classes: int) -> None:
    if model.config.classes != classes:
        raise ValueError(
            f"model has {model.config.classes or 'no'} outputs, but the data has {classes} classes. "
            f"Give model.with_classes({classes})."
        )


def _corrupted(model: VisionTransformer, stream: Any, seed: int) -> Any:
    """Batches of images with a plan of their corruption, and the colours that have to be predicted."""
    grid = model.config.grid_size

    def batch(number: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        pixels, _ = stream.batch(number)
        plan, corrupted = plan_corruption(len(pixels), grid[0] * grid[1], (seed, number))
        targets = np.where(corrupted, mean_colours(pixels, grid), NO_TARGET).astype("int32")
        return {"images": as_input(model, pixels), "plan": plan}, targets

    return batch
