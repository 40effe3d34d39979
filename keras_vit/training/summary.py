"""What a run says at its start: what it found, and what is going to happen."""

import math
from typing import Any

import keras

from keras_vit._arguments import pair
from keras_vit.data import ImageStream
from keras_vit.models import VisionTransformer
from keras_vit.training.recipes import Recipe
from keras_vit.training.sharing import Sharing


def summary(
    title: str,
    recipe: Recipe,
    model: Any,
    images: ImageStream,
    test_images: ImageStream | None,
    split: str | None,
    sharing: Sharing,
) -> str:
    """What was found, and what is going to happen; `split` is what the images to evaluate on are called."""
    value = model.weights[0].value
    devices = list(value.devices()) if hasattr(value, "devices") else [value.device]  # JAX has several
    shares, processes = max(len(devices), sharing.shares), sharing.processes.count
    where = str(devices[0]).rpartition("/device:")[2].lower() if shares == 1 else f"{shares} devices"
    where += f", {processes} processes" if processes > 1 else ""
    names = list(images.class_names or ())
    listed = f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else ""
    count = [f"{one.examples:,}" if one and one.examples else "an unknown number of" for one in (images, test_images)]
    what, loss = f"images of {images.classes} classes", recipe.loss
    if images.target == "number":
        what, loss = "images with a number each", "squared errors"
    tests = (
        f"{count[1]} to evaluate on{f' ({split})' if split else ''}"
        if test_images
        else "no images to evaluate on (validation=, or test/)"
    )
    parameters, trained = (sum(math.prod(w.shape) for w in ws) for ws in (model.weights, model.trainable_weights))
    pixels = "{} x {} pixels".format(*pair("image_size", recipe.image_size))
    if isinstance(model, VisionTransformer) and not model.config.dynamic:
        pixels += f" ({math.prod(model.config.grid_size):,} patches)"
    warmup = f" after {recipe.warmup_steps:g} of warm-up" if recipe.warmup_steps else ""
    return f"""{title} on {keras.backend.backend()}, {where}
  data    {count[0]} {what}{listed} to train on, {tests}
  model   {type(model).__name__} {model.name}, {parameters:,} parameters, {trained:,} of them trained
  recipe  {recipe.steps:,} updates of {recipe.batch_size} images, {pixels}, learning rate {recipe.learning_rate:g}, \
{recipe.name}: {recipe.optimizer}, {recipe.schedule}{warmup}, {loss}"""
