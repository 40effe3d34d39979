"""`keras-vit launch`, which is gone: it says what starts several processes now."""

import argparse

from keras_vit.cli.command import Answer

HELP = "Gone: torchrun and Slurm start several processes."
NEEDS_KERAS = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Takes whatever it was called with."""
    parser.add_argument("job", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> Answer:
    """Says what to call instead.

    Raises:
        ValueError: always.
    """
    count, *job = options.job or ["8", "finetune", "..."]
    program = " ".join(job) if job and job[0].endswith(".py") else " ".join(["-m", "keras_vit.cli", *job])
    raise ValueError(
        f"keras-vit launch is gone. Call torchrun --nproc-per-node {count} {program} instead; it comes with PyTorch "
        "and works for KERAS_BACKEND=jax, too. Slurm's srun starts processes as well (docs/distribution.md)."
    )
