"""`keras-vit finetune` and `demo`."""

import argparse
import dataclasses

from keras_vit._arguments import printable
from keras_vit.cli.command import (
    COUNT,
    COUNT_OR_0,
    DTYPES,
    SOURCE,
    Answer,
    Command,
    at_least_0,
    check_data,
    check_source,
    image_size,
    start_keras,
)

RECIPE = "finetune/cifar10"


def _finetune_arguments(parser: argparse.ArgumentParser) -> None:
    from keras_vit.training import recipe

    usual = recipe(RECIPE)

    def default(field: str) -> str:
        value = getattr(usual, field, None) or getattr(usual.augmentation, field, 0)
        return f"(default: the recipe's; {RECIPE}: {value:,})" if value else "(default: the recipe's)"

    add = parser.add_argument
    add("weights", metavar="WEIGHTS", help=SOURCE)
    add("data", metavar="DATA", help="a folder with train/ and test/ or with one folder per class, or tfds:NAME")
    add("--recipe", default=RECIPE, help="see `keras-vit recipes` (default: %(default)s)")
    add("--output", default="runs/finetune", help="folder of the run (default: %(default)s)")
    add("--steps", type=COUNT, help=f"updates of the weights {default('steps')}")
    add("--batch-size", type=COUNT, help=f"images per update {default('batch_size')}")
    add("--learning-rate", type=at_least_0, help=default("learning_rate"))
    add("--warmup-steps", type=COUNT_OR_0, help=f"0 for none {default('warmup_steps')}")
    add("--image-size", type=image_size, help=f"pixels, as 384 or 384x512 {default('image_size')}")
    add("--crop", help=f"inception, random or resize (default: the recipe's; {RECIPE}: {usual.augmentation.crop})")
    add("--no-flip", action="store_false", default=None, dest="flip", help="mirror no images (digits, text)")
    add("--mixup", type=at_least_0, metavar="P", help=f"0 for none {default('mixup')}")
    add(
        "--randaugment", type=int, nargs=2, metavar=("LAYERS", "MAGNITUDE"), help="such as 2 15 (default: the recipe's)"
    )
    add("--lora", type=COUNT, metavar="RANK", help="train adapters of this rank and the head instead of all weights")
    add("--every", type=COUNT, help="updates between two evaluations and checkpoints (default: an epoch, or a tenth)")
    add("--seed", type=COUNT_OR_0, default=0, help="(default: %(default)s)")
    add("--dtype", choices=DTYPES, help="dtype policy (default: float32)")
    add("--on-bad-image", choices=("stop", "skip"), default="stop", help="(default: %(default)s)")
    add("--restart", action="store_true", help="start again instead of going on with OUTPUT")


def _finetune(options: argparse.Namespace) -> Answer:
    """Trains in the folder `options.output`, where a run that was killed goes on."""
    from keras_vit import training

    recipe = training.recipe(options.recipe)
    changes = {name: getattr(options, name) for name in ("crop", "flip", "mixup", "randaugment")}
    changes = {name: value for name, value in changes.items() if value is not None}
    recipe = recipe.replace(augmentation=dataclasses.replace(recipe.augmentation, **changes))
    if options.lora is not None:
        recipe = recipe.replace(lora_rank=options.lora)
    check_source(options.weights)
    check_data(options.data)
    start_keras()
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


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", default="demo-output", help="folder for its files (default: %(default)s)")


def _demo(options: argparse.Namespace) -> Answer:
    """Runs the demo, which prints what it does."""
    start_keras()
    from keras_vit import demo

    code = demo.main(["--output", options.output])
    return Answer({"ok": code == 0, "output": options.output}, None, ok=code == 0)


FINETUNE = Command(
    "Fine-tunes a checkpoint on images of your own, as in the paper.",
    _finetune_arguments,
    _finetune,
    (
        "glyphs photos --steps 500 --image-size 32",
        "ViT-B/16 photos --recipe finetune/imagenet2012 --batch-size 32 --lora 8",
    ),
)
DEMO = Command(
    "Fine-tunes the checkpoint that comes along on real digits, without network.",
    _demo_arguments,
    _demo,
    ("--output demo-output",),
)
