"""Layers and weights chosen by name, for freezing, LoRA and optimizers alike; and layers that do not train."""

import difflib
import fnmatch
from collections.abc import Collection, Iterable

import keras

from keras_vit._keras import layers_inside, own_trainable_weights
from keras_vit.models import adapted_layers, layers_by_path, weights_by_path


def freeze(model: keras.Model, patterns: str | Iterable[str]) -> list[str]:
    """Keeps layers from training. Compile the model after this.

    What is frozen stays so in a `.keras` file.

    Args:
        model: The model, changed in place.
        patterns: Names of layers such as `"block_0"`, `"block_[0-5]"`, `"*/attention"` or `"embedding"`, or of weights
            such as `"class_token/token"`, with the wildcards `*`, `?` and `[...]`; a name may begin at any `/`.

    Returns:
        The names of all weights that do not train now.

    Raises:
        TypeError: if a pattern is not a string.
        ValueError: if a pattern fits nothing.

    Examples:
        >>> training.freeze(keras_vit.VisionTransformer(config), "block_0")[:2]
        ['block_0/norm1/gamma', 'block_0/norm1/beta']
    """
    return _set_trainable(model, check_patterns("patterns", patterns), False)


def unfreeze(model: keras.Model, patterns: str | Iterable[str] = "*") -> list[str]:
    """Lets layers train again. Compile the model after this.

    Args:
        model: The model, changed in place.
        patterns: As for `freeze`; all layers where it is left out.

    Returns:
        The names of all weights that do not train now.

    Raises:
        TypeError: if a pattern is not a string.
        ValueError: if a pattern fits nothing.

    Examples:
        >>> frozen = keras_vit.VisionTransformer(config)
        >>> names = training.freeze(frozen, ["block_0", "block_1"])
        >>> len(training.unfreeze(frozen))
        0
    """
    return _set_trainable(model, check_patterns("patterns", patterns), True)


def _set_trainable(model: keras.Model, patterns: tuple[str, ...], trainable: bool) -> list[str]:
    names = list(weights_by_path(model))
    chosen: set[str] = set()
    for pattern in patterns:
        fitting = {name for name in names if fits(name, (pattern,))}
        if not fitting:
            raise nothing_matches(pattern, [*layers_by_path(model), *names])
        chosen |= fitting
    if not trainable:
        return train_only(model, set(trained_weights(model)) - chosen)
    beside = tuple(f"{owner}/" for owner in adapted_layers(model))  # a kernel with adapters stays as it is
    chosen = {name for name in chosen if not name.startswith(beside) or "/lora_kernel" in name}
    return train_only(model, set(trained_weights(model)) | chosen)


def trained_weights(model: keras.Model) -> dict[str, keras.Variable]:
    """The weights of a model that train, by their names."""
    training = {id(weight) for weight in model.trainable_weights}
    return {name: weight for name, weight in weights_by_path(model).items() if id(weight) in training}


def train_only(model: keras.Model, names: Collection[str]) -> list[str]:
    """Lets the weights of some names train and no others; returns the names of the others."""
    frozen = {name: weight for name, weight in weights_by_path(model).items() if name not in names}
    # One by one: on TensorFlow an assignment that does not change the model itself would not reach its layers.
    for layer in layers_inside(model):
        layer.trainable = True
        for weight in own_trainable_weights(layer):
            weight.trainable = True
    for weight in frozen.values():
        weight.trainable = False
    for layer in layers_inside(model, include_self=False):
        inside = [weight for inner in layers_inside(layer) for weight in own_trainable_weights(inner)]
        if inside and not any(weight.trainable for weight in inside):
            layer.trainable = False
    return list(frozen)


def matches(name: str, pattern: str) -> bool:
    """Whether a name such as `"block_0/attention/query/kernel"` fits a pattern.

    Args:
        name: Path of a layer or a weight.
        pattern: The name, or a part of it from some `/` on, with the wildcards of file names: `*` for anything
            (also `/`), `?` for one character, `[0-5]` for one of several. Case matters.
    """
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*/{pattern}")


def fits(name: str, patterns: Iterable[str]) -> bool:
    """Whether a layer or a weight is what a pattern names, or inside it."""
    return any(matches(name, pattern) or matches(name, f"{pattern}/*") for pattern in patterns)


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
