"""The arrays of both towers of a file, or of two, and what makes logits of cosine similarities."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_vit._arguments import listing
from keras_vit.checkpoints.accounting import Plan
from keras_vit.checkpoints.files import Sidecars, open_file, text_of_pair
from keras_vit.checkpoints.layouts import pe
from keras_vit.checkpoints.layouts.sidecars import number
from keras_vit.checkpoints.layouts.text import Names
from keras_vit.checkpoints.stored_array import StoredArray

# What a TIPS calls its temperature, by which cosines are divided.
TEMPERATURES = ("temperature", "temperature_contrastive")
_LARGEST_NUMBER = 80  # of a bias, and of the logarithm of a temperature, whose exponential is a float32


@dataclasses.dataclass(frozen=True)
class Scale:
    """What makes logits of cosines.

    Attributes:
        log_scale: The logarithm of what they are multiplied with.
        bias: What is added then; None for none.
        temperature: What a TIPS divides them by, as its file says it.
    """

    log_scale: float
    bias: float | None
    temperature: float | None = None


def arrays_of_towers(path: Path) -> Mapping[str, StoredArray]:
    """The arrays of a file by their names; of an image tower of TIPS also those of the text tower's file beside it."""
    file, text = pe.with_unwrapped_names(open_file(path)), text_of_pair(path.name)
    if text is None or not path.with_name(text).is_file():
        return file
    return {**file, **open_file(path.with_name(text))}


def scale_of(file: Mapping[str, StoredArray], plan: Plan, names: Names, sidecars: Sidecars, source: str) -> Scale:
    """The temperature and the bias of a file with both towers.

    Raises ValueError where one of them or the image tower is missing, is no single number near 0, or belongs elsewhere.
    """
    if names.is_tips:
        temperature = _temperature(file, plan, sidecars, source)
        _check_image_tower(plan, [f"{plan.prefix}{name}" for name in TEMPERATURES], source)
        return Scale(-math.log(temperature), None, temperature)
    numbers: list[float | None] = []
    places = [f"{plan.prefix}{names.scale}", f"{plan.prefix}{names.bias}"]
    for name in places:
        values = file[name].read().reshape(-1) if name in file else None
        if values is not None and (len(values) != 1 or not abs(float(values[0])) < _LARGEST_NUMBER):
            raise ValueError(f"The array {name!r} of {source} must be one number near 0, but is {values[:3].tolist()}.")
        numbers.append(None if values is None else float(values[0]))
    scale, bias = numbers
    if scale is None:
        raise ValueError(
            f"{source} has no array {places[0]!r}, the logarithm of its temperature: it is half of a model."
        )
    if bias is None and plan.dialect == "siglip":
        raise ValueError(f"{source} has no array {places[1]!r}, which every SigLIP has: it is half of a model.")
    beside = _check_image_tower(plan, places, source)
    towers = (f"{plan.prefix}img/", f"{plan.prefix}txt/")
    foreign = [name for name in beside if not name.startswith(towers)]
    if foreign and plan.dialect == "flax":
        raise ValueError(f"{source} has arrays that are part of neither tower: {listing(foreign)}.")
    return Scale(scale, bias)


def _check_image_tower(plan: Plan, places: Sequence[str], source: str) -> list[str]:
    """The arrays beside the text tower and these places; ValueError where there are none."""
    beside = [name for name in plan.unused if name not in places]
    if not beside:
        raise ValueError(f"{source} has a text tower and no image tower: it is half of a model.")
    return beside


def _temperature(file: Mapping[str, StoredArray], plan: Plan, sidecars: Sidecars, source: str) -> float:
    """The temperature of a TIPS, of its array or, as in published files of transformers, of config.json.

    Raises ValueError where neither has it, or the array is no single number above 0.
    """
    name = next((found for name in TEMPERATURES for found in (f"{plan.prefix}{name}", name) if found in file), None)
    if name is None and "temperature_init_value" in sidecars.config:
        return float(np.float32(number(sidecars.config, "temperature_init_value", 1.0)))
    if name is None:
        raise ValueError(f"{source} has no array 'temperature', by which cosines are divided: it is half of a model.")
    values = file[name].read().reshape(-1)
    if len(values) != 1 or not math.exp(-_LARGEST_NUMBER) < values[0] < math.exp(_LARGEST_NUMBER):
        raise ValueError(f"The array {name!r} of {source} must be one number above 0, but is {values[:3].tolist()}.")
    return float(values[0])
