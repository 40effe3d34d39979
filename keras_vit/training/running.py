"""One run of a recipe, whatever is trained: optimizer, loop, files. `finetune` and `pretrain` end here."""

import dataclasses
import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
from rich.console import Console

from keras_vit._files import write_text
from keras_vit.checkpoints import save_model
from keras_vit.data import Batches, ImageStream
from keras_vit.layers import skip_initialization
from keras_vit.models import BiT, VisionTransformer, pair
from keras_vit.tables import Table
from keras_vit.training.curve import draw_curve
from keras_vit.training.loop import train
from keras_vit.training.names import has_adapters
from keras_vit.training.recipes import Recipe, loss, optimizer, schedule
from keras_vit.training.run_folder import RunFolder


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a run gives.

    Attributes:
        model: The trained model.
        recipe: The recipe as it was run, with all changes.
        log: A row per evaluation: `step`, `loss`, `accuracy`, `val_loss`, `val_accuracy`, `learning_rate`, `seconds`.
        class_names: What the outputs of the model stand for; None where the data does not say.
        output: The folder of the run, or None.
        bad_images: Files that were left out, and why (only with `on_bad_image="skip"`).
    """

    model: Any
    recipe: Recipe
    log: Table
    class_names: list[str] | None = None
    output: Path | None = None
    bad_images: list[Any] = dataclasses.field(default_factory=list)

    @property
    def accuracy(self) -> float | None:
        """Share of the validation images that the trained model names right; None without validation."""
        return self.log[-1].get("val_accuracy") if self.log else None

    def to_dict(self) -> dict[str, Any]:
        """Everything but the model, as plain data for JSON."""
        return {
            "recipe": self.recipe.to_dict(),
            "log": list(self.log),
            "accuracy": self.accuracy,
            "class_names": self.class_names,
            "output": None if self.output is None else str(self.output),
            "bad_images": [dataclasses.asdict(image) for image in self.bad_images],
        }


def run(
    model: keras.Model,
    trained: keras.Model,
    recipe: Recipe,
    batch: Callable[[int], tuple[Any, Any]],
    *,
    stream: ImageStream,
    validation: Batches | None,
    settings: dict[str, Any],
    output: str | os.PathLike[str] | None,
    resume: bool,
    every: int | None,
    callbacks: Sequence[keras.callbacks.Callback],
    compile_with: dict[str, Any],
    title: str,
    verbose: bool,
) -> Trained:
    """Compiles `model`, trains it by a recipe and writes the files of the run.

    Args:
        model: What computes the loss.
        trained: The model that the user gets: `model` itself, or one that shares its weights.
        recipe: What to do.
        batch: From the number of a batch to inputs and targets.
        stream: Where the batches come from.
        validation: What to evaluate on.
        settings: What decides the numbers, beside recipe and backend.
        output: The folder of the run; None for no files.
        resume: Whether to go on with a run that is in the folder.
        every: Updates between two evaluations; None for an epoch, or a tenth of the run where that is shorter.
        callbacks: Keras callbacks.
        compile_with: More arguments of `compile`, such as `metrics`, and `loss` in place of the recipe's.
        title: Beside the progress bar.
        verbose: Whether there is a progress bar.
    """
    if recipe.steps < 1:
        raise ValueError(f"steps must be at least 1, but {recipe.steps} was given.")
    if every is None:
        every = max(1, min(stream.steps_per_epoch or recipe.steps, -(-recipe.steps // 10)))
    elif every < 1:
        raise ValueError(f"every must be at least 1 step, but {every} was given.")
    folder = None
    if output is not None:
        everything = {"recipe": recipe.to_dict(), "backend": keras.backend.backend(), "every": every, **settings}
        folder = RunFolder(output, everything, resume)
    model.compile(optimizer=optimizer(recipe, model), **{"loss": loss(recipe), **compile_with})
    if verbose:
        Console(stderr=True).print(describe_run(trained, recipe, title), highlight=False)
    log = train(
        model,
        batch,
        recipe.steps,
        every=every,
        batches_per_step=recipe.accumulate,
        validation=validation,
        folder=folder,
        schedule=schedule(recipe),
        callbacks=callbacks,
        title=title,
        verbose=verbose,
    )
    done = Trained(trained, recipe, log, stream.class_names, folder.path if folder else None, list(stream.bad))
    if folder:
        _write_results(done, folder.path)
    return done


def describe_run(model: VisionTransformer | BiT, recipe: Recipe, title: str) -> str:
    """What is going to happen, in one line: an image size or a number of steps nobody meant is seen at once."""
    height, width = pair("image_size", recipe.image_size)
    patches = ""
    if isinstance(model, VisionTransformer) and not model.config.dynamic:
        patches = f" ({math.prod(model.config.grid_size):,} patches)"
    return (
        f"{title} {model.name}: {recipe.steps:,} updates of {recipe.batch_size} images, {height} x {width} "
        f"pixels{patches}, learning rate {recipe.learning_rate:g}, {recipe.name}"
    )


def _write_results(done: Trained, path: Path) -> None:
    """The trained model without the optimizer, the names of its classes and the learning curve."""
    save_model(_without_optimizer(done.model), path / "model.keras", overwrite=True)
    if done.class_names is not None:
        write_text(path / "classes.txt", "".join(f"{name}\n" for name in done.class_names))
    if importlib.util.find_spec("matplotlib") is not None:
        draw_curve(done.log, path / "curve.png", f"{done.model.name}: {done.recipe.name}")


def _without_optimizer(model: keras.Model) -> keras.Model:
    """The same model, not compiled: its file is half as large and knows no optimizer of one backend."""
    if not isinstance(model, (VisionTransformer, BiT)):
        return model
    if any(map(has_adapters, model._flatten_layers())):
        return model  # saving merges the adapters
    with skip_initialization():
        plain = type(model).from_config(model.get_config())
    plain.set_weights(model.get_weights())
    return plain
