"""`keras-vit finetune`."""

import argparse
import dataclasses

from keras_vit._text import printable
from keras_vit.cli.command import COUNT, COUNT_OR_0, DTYPES, SOURCE, Answer, at_least_0, image_size

HELP = "Fine-tunes a checkpoint on images of your own, as in the paper."
NEEDS_KERAS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    add = parser.add_argument
    add("weights", metavar="WEIGHTS", help=SOURCE)
    add("data", metavar="DATA", help="a folder with train/ and test/ or with one folder per class, or tfds:NAME")
    add("--recipe", default="finetune/cifar10", help="see `keras-vit recipes` (default: %(default)s)")
    add("--output", default="runs/finetune", help="folder of the run (default: %(default)s)")
    add("--steps", type=COUNT, help="updates of the weights (default: the recipe's)")
    add("--batch-size", type=COUNT, help="images per update (default: the recipe's)")
    add("--learning-rate", type=at_least_0, help="(default: the recipe's)")
    add("--warmup-steps", type=COUNT_OR_0, help="0 for none (default: the recipe's)")
    add("--image-size", type=image_size, help="pixels, as 384 or 384x512 (default: the recipe's)")
    add("--crop", help="inception, random or resize (default: the recipe's)")
    add("--no-flip", action="store_false", default=None, dest="flip", help="mirror no images (digits, text)")
    add("--mixup", type=at_least_0, metavar="P", help="0 for none (default: the recipe's)")
    add("--randaugment", type=int, nargs=2, metavar=("LAYERS", "MAGNITUDE"), help="for example 2 15")
    add("--lora", type=COUNT, metavar="RANK", help="train adapters of this rank and the head instead of all weights")
    add("--every", type=COUNT, help="updates between two evaluations and checkpoints")
    add("--seed", type=COUNT_OR_0, default=0, help="(default: %(default)s)")
    add("--dtype", choices=DTYPES, help="dtype policy (default: float32)")
    add("--on-bad-image", choices=("stop", "skip"), default="stop", help="(default: %(default)s)")
    add("--restart", action="store_true", help="start again instead of going on with OUTPUT")


def run(options: argparse.Namespace) -> Answer:
    """Trains in the folder `options.output`, where a run that was killed goes on."""
    from keras_vit import training

    recipe = training.recipe(options.recipe)
    changes = {name: getattr(options, name) for name in ("crop", "flip", "mixup", "randaugment")}
    changes = {name: value for name, value in changes.items() if value is not None}
    recipe = recipe.replace(augmentation=dataclasses.replace(recipe.augmentation, **changes))
    if options.lora is not None:
        recipe = recipe.replace(lora_rank=options.lora)
    done = training.finetune(
        options.weights,
        options.data,
        recipe,
        output=options.output,
        steps=options.steps,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        warmup_steps=options.warmup_steps,
        image_size=options.image_size,
        every=options.every,
        seed=options.seed,
        dtype=options.dtype,
        on_bad_image=options.on_bad_image,
        resume=not options.restart,
    )
    lines = [str(done.log)]
    lines += [f"Left out: {printable(image.path)}: {printable(image.reason)}" for image in done.bad_images]
    return Answer(done.to_dict(), "\n".join([*lines, f"Wrote {printable(done.output)}"]))
