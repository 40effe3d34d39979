"""How layers and weights are chosen by name, for freezing, LoRA and optimizers alike."""

import difflib
import fnmatch
from collections.abc import Iterable

import keras


def matches(name: str, pattern: str) -> bool:
    """Whether a name such as `"block_0/attention/query/kernel"` fits a pattern.

    Args:
        name: Path of a layer or a weight.
        pattern: The name, or a part of it from some `/` on, with the wildcards of file names: `*` for anything
            (also `/`), `?` for one character, `[0-5]` for one of several. Case matters.
    """
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*/{pattern}")


def layers_by_name(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """The layers of a model that have weights, also those inside others, outer ones first.

    By the names of `weights_by_path`, without that of the weight.
    """
    return {
        f"{layer.name}{inner.path.removeprefix(layer.path)}": inner
        for layer in model.layers
        for inner in layer._flatten_layers()
        if inner.weights
    }


def has_adapters(layer: keras.layers.Layer) -> bool:
    """Whether a layer has LoRA's adapters."""
    return getattr(layer, "lora_enabled", False)


def train_everything(model: keras.Model) -> None:
    """Lets all layers of a model train, and all their weights that are made for it."""
    # One by one: on TensorFlow an assignment that does not change the model itself would not reach its layers.
    for layer in model._flatten_layers():
        layer.trainable = True
        for weight in layer._trainable_variables:
            weight.trainable = True


def check_patterns(argument: str, patterns: str | Iterable[str]) -> tuple[str, ...]:
    """Patterns as a tuple, from one or several strings.

    Raises:
        TypeError: if they are anything else.
    """
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"{argument} must be a string or several, but {pattern!r} was among them.")
    return patterns


def nothing_matches(pattern: str, names: Iterable[str]) -> ValueError:
    """The error that says that a pattern fits no name, with the names that are most like it."""
    names = list(names)
    near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5) or names[:3]
    return ValueError(
        f"{pattern!r} fits no layer and no weight of this model; there are {', '.join(map(repr, near))} and "
        f"{max(len(names) - len(near), 0)} more. Wildcards are * ? and [...], as in 'block_*' or '*/mlp'."
    )
