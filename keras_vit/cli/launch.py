"""`keras-vit launch`, which is gone: it says what starts several processes now."""

import argparse

from keras_vit.cli.command import Answer, Command


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _run(options: argparse.Namespace) -> Answer:
    count, *job = options.job or ["8", "finetune", "..."]
    program = " ".join(job) if job and job[0].endswith(".py") else " ".join(["-m", "keras_vit.cli", *job])
    raise ValueError(
        f"keras-vit launch is gone. Call torchrun --nproc-per-node {count} {program} instead; it comes with PyTorch "
        "and works for KERAS_BACKEND=jax, too. Slurm's srun starts processes as well (docs/distribution.md)."
    )


LAUNCH = Command("Gone: torchrun and Slurm start several processes.", _arguments, _run, ())
