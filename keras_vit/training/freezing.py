"""Layers and weights chosen by name, for freezing, LoRA and optimizers alike; and layers that do not train."""

import difflib
import fnmatch
from collections.abc import Iterable

import keras

from keras_vit._keras import layers_inside, own_trainable_weights
from keras_vit.models import has_adapters, layers_by_path, weights_by_path


def freeze(model: keras.Model, patterns: str | Iterable[str]) -> list[str]:
    """Keeps layers from training. Compile the model after this.

    Keras freezes layers, not single weights, and files keep it: what is frozen stays so in a `.keras` file.

    Args:
        model: The model, changed in place.
        patterns: Names of layers such as `"block_0"`, `"block_[0-5]"`, `"*/attention"` or `"embedding"`, or of weights
            such as `"class_token/token"`, with the wildcards `*`, `?` and `[...]`; a name may begin at any `/`.

    Returns:
        The names of all weights that do not train now.

    Raises:
        TypeError: if a pattern is not a string.
        ValueError: if a pattern fits nothing, or only some weights of a layer.

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
        ValueError: if a pattern fits nothing, or only some weights of a layer.

    Examples:
        >>> frozen = keras_vit.VisionTransformer(config)
        >>> names = training.freeze(frozen, ["block_0", "block_1"])
        >>> len(training.unfreeze(frozen))
        0
    """
    return _set_trainable(model, check_patterns("patterns", patterns), True)


def _set_trainable(model: keras.Model, patterns: tuple[str, ...], trainable: bool) -> list[str]:
    layers, weights = layers_by_path(model), weights_by_path(model)
    owners = _own_weights(layers)
    chosen = set().union(*(_chosen(pattern, layers, owners) for pattern in patterns))
    frozen = {name for name in owners if not layers[name].trainable}
    frozen = frozen - chosen if trainable else frozen | chosen
    _check_whole(owners, frozen)
    # LoRA keeps single weights from training, which what comes next would change. Those beside adapters stay so, the
    # others unless they are asked for.
    single = [
        weights[name]
        for owner, names in owners.items()
        for name in names
        if (
            "/lora_kernel" not in name
            if has_adapters(layers[owner])
            else layers[owner].trainable and not weights[name].trainable and not (trainable and owner in chosen)
        )
    ]
    train_everything(model)
    for name, layer in layers.items():  # outer layers first
        inside = {owner for owner in owners if _is_inside(owner, name)}
        if inside and inside <= frozen:
            layer.trainable = False
    for weight in single:
        weight.trainable = False
    training = {id(weight) for weight in model.trainable_weights}
    return [name for name, weight in weights.items() if id(weight) not in training]


def _own_weights(layers: dict[str, keras.layers.Layer]) -> dict[str, list[str]]:
    """The layers that have weights of their own, and the names of these."""
    owners = {}
    for name, layer in layers.items():
        others = {id(w) for inner in layers_inside(layer, include_self=False) for w in inner.weights}
        own = [f"{name}{w.path.removeprefix(layer.path)}" for w in layer.weights if id(w) not in others]
        if own:
            owners[name] = own
    return owners


def _chosen(pattern: str, layers: dict[str, keras.layers.Layer], owners: dict[str, list[str]]) -> set[str]:
    """The layers with weights of their own that a pattern means, by their own name, an outer one's or a weight's."""
    outer = [name for name in layers if matches(name, pattern)]
    chosen = {owner for owner in owners if any(_is_inside(owner, name) for name in outer)}
    for owner, weights in owners.items():
        fitting = [weight for weight in weights if matches(weight, pattern)]
        if not fitting or owner in chosen:
            continue
        if len(fitting) < len(weights):
            rest = ", ".join(repr(weight) for weight in weights if weight not in fitting)
            raise ValueError(
                f"{pattern!r} fits {fitting[0]!r}, but Keras trains or freezes a layer as a whole, and {owner!r} also "
                f"has {rest}. Name the layer."
            )
        chosen.add(owner)
    if not chosen:
        raise nothing_matches(pattern, [*owners, *(w for weights in owners.values() for w in weights)])
    return chosen


def _check_whole(owners: dict[str, list[str]], frozen: set[str]) -> None:
    """A layer with weights of its own and others inside cannot stop training while those go on."""
    for name in frozen:
        going_on = [owner for owner in owners if _is_inside(owner, name) and owner not in frozen]
        if going_on:
            raise ValueError(
                f"The weights of {name!r} cannot be frozen while those of the layers inside it, such as "
                f"{going_on[0]!r}, train: Keras freezes a layer with all that is in it."
            )


def _is_inside(name: str, outer: str) -> bool:
    return name == outer or name.startswith(f"{outer}/")


def matches(name: str, pattern: str) -> bool:
    """Whether a name such as `"block_0/attention/query/kernel"` fits a pattern.

    Args:
        name: Path of a layer or a weight.
        pattern: The name, or a part of it from some `/` on, with the wildcards of file names: `*` for anything
            (also `/`), `?` for one character, `[0-5]` for one of several. Case matters.
    """
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*/{pattern}")


def train_everything(model: keras.Model) -> None:
    """Lets all layers of a model train, and all their weights that are made for it."""
    # One by one: on TensorFlow an assignment that does not change the model itself would not reach its layers.
    for layer in layers_inside(model):
        layer.trainable = True
        for weight in own_trainable_weights(layer):
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
