"""What files with a model's weights are called, in folders and in repositories of the Hugging Face Hub."""

import pathlib
from collections.abc import Iterable

INDEX_ENDING = ".index.json"
# The preferred first.
WEIGHT_NAMES = (
    "model.safetensors",
    f"model.safetensors{INDEX_ENDING}",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
    "model.pth",
    "model.npz",
)
# What lies beside them and says what arrays do not.
SIDECAR_NAMES = ("config.json", "open_clip_config.json", "preprocessor_config.json")
ENDINGS = (".safetensors", ".pth", ".pt", ".bin", ".tar", ".npz")
NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt", "optimizer.bin", "scheduler.bin")


def choose_weights(names: Iterable[str], where: str) -> str | None:
    """The file with a model's weights among others.

    Args:
        names: Their names; those with a folder are passed over.
        where: What has them, for the message.

    Returns:
        The first of `WEIGHT_NAMES`, or the only one with one of `ENDINGS`; None where there is none.

    Raises:
        ValueError: if several have such an ending, none of them a known name.
    """
    here = {name for name in names if "/" not in name}
    for name in WEIGHT_NAMES:
        if name in here:
            return name
    others = sorted(name for name in here - {*NOT_WEIGHTS} if pathlib.PurePath(name).suffix in ENDINGS)
    if len(others) > 1:
        more = " ..." if len(others) > 5 else ""
        raise ValueError(
            f"{where} has several files of weights ({', '.join(others[:5])}{more}): name the one that is meant."
        )
    return others[0] if others else None
