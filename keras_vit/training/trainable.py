"""Which weights of a model train, and how fast: freezing, adapters (LoRA, arXiv 2106.09685), rates per layer."""

import difflib
import json
import os
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import as_strings, listing, matches
from keras_vit._keras import layers_inside, own_trainable_weights, register_weights
from keras_vit._options import PART, Above0, Positive, checked
from keras_vit.checkpoints.files import write_npz
from keras_vit.models import DenseModel, EoMT, adapted_layers, layers_by_path, require_adapters, weights_by_path
from keras_vit.training.optimizers import AdamW, WarmupDecay, is_moved_by_muon

HEADS = ("head", "head_norm", "queries", "mask_head", "class_head", "upscale_*")  # layers that train beside adapters
EOMT_HEAD = ("queries", "query_rotation", "map", "mask_head", "class_head", "upscale_*")  # those of an EoMT
Names = Annotated[str | Iterable[str], as_strings]  # patterns; a function that is `checked` has a tuple of them
_ABOUT = "keras_vit_lora"  # the array in a file of adapters that says what they belong to


@checked
def freeze(model: keras.Model, patterns: Names) -> list[str]:
    """Freezes layers or single weights, and returns the names of all weights that do not train now.

    Files that the model is saved to keep this. Compile the model after it.

    Args:
        model: The model, changed in place.
        patterns: Names of layers such as `"block_0"`, `"block_[0-5]"`, `"*/attention"` or `"embedding"`, or of weights
            such as `"class_token/token"`, with the wildcards `*`, `?` and `[...]`; a name may begin at any `/`.
            `"backbone"` is everything below the head of a segmentation, depth or detection model.

    Raises:
        TypeError, ValueError: if a pattern is not a string, or matches nothing; the model does not change then.

    Examples:
        >>> training.freeze(keras_vit.VisionTransformer(config), "block_0")[:2]
        ['block_0/norm1/gamma', 'block_0/norm1/beta']
    """
    return _train_only(model, set(_trained_weights(model)) - _weights_named(model, patterns))


@checked
def unfreeze(model: keras.Model, patterns: Names = ("*",)) -> list[str]:
    """Unfreezes layers, all of them without patterns; arguments, errors and result are as in `freeze`.

    Kernels with adapters stay frozen.

    Examples:
        >>> frozen = keras_vit.VisionTransformer(config)
        >>> names = training.freeze(frozen, ["block_0", "block_1"])
        >>> len(training.unfreeze(frozen))
        0
    """
    adapted = tuple(f"{owner}/" for owner in adapted_layers(model))
    chosen = _weights_named(model, patterns)
    chosen = {name for name in chosen if not name.startswith(adapted) or "/lora_kernel" in name}
    return _train_only(model, set(_trained_weights(model)) | chosen)


def _weights_named(model: keras.Model, patterns: Iterable[str]) -> set[str]:
    names = list(weights_by_path(model))
    if "backbone" in patterns and isinstance(model, DenseModel):
        patterns = [pattern for pattern in patterns if pattern != "backbone"]
        patterns += [layer.name for layer in model.backbone.layers if layer.weights]
    return set(_named(patterns, names, [*layers_by_path(model), *names]))


def _named(patterns: Iterable[str], names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Returns the names that are what a pattern says or inside it, in the order of the patterns, none twice."""
    chosen: dict[str, None] = {}
    for pattern in patterns:
        fitting = dict.fromkeys(name for name in names if _is_inside(name, (pattern,)))
        if not fitting:
            known = list(known)
            near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.5) or known[:3]
            raise ValueError(
                f"{pattern!r} matches no such layer or weight of this model; there are {listing(near)} and "
                f"{max(len(known) - len(near), 0)} more. Wildcards are * ? and [...], as in 'block_*' or '*/mlp'."
            )
        chosen |= fitting
    return list(chosen)


def _is_inside(name: str, patterns: Iterable[str]) -> bool:
    """Whether a layer or a weight of this name is what one of the patterns says, or inside it."""
    return any(matches(name, pattern) or matches(name, f"{pattern}/*") for pattern in patterns)


def _trained_weights(model: keras.Model) -> dict[str, keras.Variable]:
    training = {id(weight) for weight in model.trainable_weights}
    return {name: weight for name, weight in weights_by_path(model).items() if id(weight) in training}


def _train_only(model: keras.Model, names: Collection[str]) -> list[str]:
    """Changes a model: the weights of these names train and no others. Returns the names of the others."""
    # A layer of which no weight trains is frozen itself, as Keras's files know layers only.
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


@checked
def add_lora(
    model: keras.Model,
    rank: Positive,
    targets: Names = ("query", "value"),
    *,
    alpha: Above0 | None = None,
    train: Names = HEADS,
) -> list[str]:
    """Adds adapters of low rank, freezes all else but `train`, and returns the names of all weights that train now.

    A kernel W becomes W + alpha / rank * A B, where A and B train, and W does not. B starts with zeros, so the outputs
    are the same at first. Saved files keep the adapters; `merge_lora` returns a model without them. Compile the model
    after this. TypeError or ValueError if an argument is wrong; the model does not change then.

    Args:
        model: The model, changed in place.
        rank: Columns of A and rows of B.
        targets: Patterns, as for `freeze`, of dense layers or of layers around them, such as `("query", "value")`.
        alpha: Scale of the adapters, above 0; None for `rank`.
        train: Layers that train without adapters; names that the model does not have are ignored.
    """
    if adapted_layers(model):
        raise ValueError(f"{model.name} has adapters already. Call merge_lora() first.")
    chosen = _dense_layers(model, targets, train).values()
    if any(getattr(layer.dtype_policy, "quantization_mode", None) == "float8" for layer in chosen):
        raise ValueError(f"{model.name} was quantized to float8, in which Keras computes no adapters. Use int8.")
    for layer in chosen:
        layer.enable_lora(rank, lora_alpha=alpha)
    register_weights(model)
    names = weights_by_path(model)
    _train_only(model, {name for name in names if "/lora_kernel" in name or _is_inside(name, train)})
    # Functions that were compiled before hold kernels without adapters.
    model.predict_function = model.test_function = model.train_function = None
    return list(_trained_weights(model))


def _dense_layers(
    model: keras.Model, targets: Iterable[str], train: Iterable[str] = HEADS
) -> dict[str, keras.layers.Layer]:
    """Returns the layers that `add_lora` gives adapters, by name; ValueError for a target without, or only `train`."""
    able = {name: layer for name, layer in layers_by_path(model).items() if hasattr(layer, "enable_lora")}
    chosen = [name for name in _named(targets, able, able) if not _is_inside(name, train)]
    if not chosen:
        raise ValueError(
            f"train has all of targets={listing([*targets])}: no layer is left for an adapter. Name others."
        )
    return {name: able[name] for name in chosen}


def adapt(model: keras.Model, recipe: Any) -> None:
    """Gives a model the adapters and the frozen layers of a recipe; ValueError if it would learn nothing by it."""
    if recipe.lora_rank is not None and not _goes_on(model, recipe):
        add_lora(model, recipe.lora_rank, recipe.lora_targets, alpha=recipe.lora_alpha)
    if recipe.freeze:
        freeze(model, recipe.freeze)
    if not model.trainable_weights:
        raise ValueError(f"All of {model.name} is frozen, so nothing would be learned: unfreeze(model, 'head') first.")
    if "layer_decay" in recipe.given:  # a published recipe's is for models of all kinds
        slower = [pattern for pattern, rate in rate_multipliers(recipe, model).items() if rate != 1]
        trains = any(matches(weight.path, pattern) for weight in model.trainable_weights for pattern in slower)
        if slower and not trains:  # a decay of 1.0 makes none slower
            raise ValueError(
                f"layer_decay={recipe.layer_decay} is for layers below the head, but none of them trains: give "
                "layer_decay=None, or let them train."
            )
    if recipe.optimizer == "muon" and not any(map(is_moved_by_muon, model.trainable_weights)):
        raise ValueError(f"optimizer='muon' moves matrices of blocks, but none of {model.name} trains. Give 'adamw'.")


def _goes_on(model: keras.Model, recipe: Any) -> bool:
    """Whether a model has the adapters of a recipe, which train further; ValueError for targets that fit nothing."""
    adapted = adapted_layers(model)
    alphas, ranks = ({getattr(layer, name) for layer in adapted.values()} for name in ("lora_alpha", "lora_rank"))
    if ranks != {recipe.lora_rank} or (recipe.lora_alpha is not None and alphas != {recipe.lora_alpha}):
        return False
    return "lora_targets" not in recipe.given or adapted.keys() == _dense_layers(model, recipe.lora_targets).keys()


def save_adapters(model: keras.Model, path: str | os.PathLike[str]) -> Path:
    """Writes the adapters, the head and other trained weights of `model` to a small `.npz` file, and returns its path.

    The file at `path` is replaced when it is complete. Raises ValueError for a model without adapters, OSError if the
    file cannot be written. `load_adapters` reads it.
    """
    adapted, path = require_adapters(model), os.path.expanduser(path)
    layer = next(iter(adapted.values()))
    about = {"rank": layer.lora_rank, "alpha": float(layer.lora_alpha), "targets": list(adapted)}
    arrays = {name: ops.convert_to_numpy(weight) for name, weight in _trained_weights(model).items()}
    arrays[_ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    write_npz(path, arrays.items(), overwrite=True)
    return Path(path)


def load_adapters(model: keras.Model, path: str | os.PathLike[str]) -> list[str]:
    """Adds the adapters of a file of `save_adapters` to a model, with the other weights that were trained with them.

    `model` is the one that they were trained on, changed in place; adapters of the same layers and rank are
    overwritten. Returns the names of all weights that were read. Raises OSError if the file at `path` cannot be read,
    ValueError if it is another file or its adapters do not fit.

    Examples:
        >>> adapted = keras_vit.VisionTransformer(config)
        >>> names = training.add_lora(adapted, rank=2)
        >>> path = training.save_adapters(adapted, "adapters.npz")
        >>> len(training.load_adapters(keras_vit.VisionTransformer(config), path)) == len(names)
        True
    """
    path = os.path.expanduser(os.fspath(path))
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(arrays.pop(_ABOUT).tobytes())
        rank, alpha, targets = about["rank"], about["alpha"], about["targets"]
    except (zipfile.BadZipFile, EOFError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path!r} is not a file that save_adapters() wrote. Check the path.") from error
    layers, adapted = layers_by_path(model), adapted_layers(model)
    shapes = {name: tuple(weight.shape) for name, weight in weights_by_path(model).items()}
    for name, array in arrays.items():
        layer, _, kind = name.rpartition("/")
        to_come = not adapted and layer in layers and kind in ("lora_kernel_a", "lora_kernel_b")
        if not to_come and shapes.get(name) != array.shape:
            raise ValueError(
                f"{path!r} belongs to another model: it holds {name!r} of shape {array.shape}, but {model.name} has "
                f"{shapes.get(name)}. Build the model as it was, without adapters of another rank (merge_lora)."
            )
    if adapted and adapted.keys() != set(targets):
        others = listing(sorted(adapted.keys() ^ set(targets)))
        raise ValueError(f"{model.name} has adapters of other layers than {path!r}: {others}. merge_lora() first.")
    if not adapted:
        others = {name.rpartition("/")[0] for name in arrays} - set(targets)
        add_lora(model, rank, targets, alpha=alpha, train=sorted(others))
    weights = weights_by_path(model)
    for name, array in arrays.items():
        weights[name].assign(array)
    for layer in adapted_layers(model).values():
        layer.lora_alpha = alpha
    return list(arrays)


def layer_decay(model: keras.Model, rate: float) -> dict[str, float]:
    """Returns learning-rate multipliers that are smaller for layers nearer to the image, for `rate_multipliers`.

    The multiplier is 1 for the head and all else after the blocks, `rate` for the last block and `rate ** 2` for the
    one before it, and so on; patch embedding, stem, class token and position embeddings have `rate ** (depth + 1)`
    (BEiT, arXiv 2106.08254, and MAE, arXiv 2111.06377). Rates of 0.65 to 0.75 are common. Raises ValueError if `rate`
    is not in (0, 1], or `model` is not a Vision Transformer with blocks.

    Examples:
        >>> training.layer_decay(small, 0.5)["block_0/*"]  # of two blocks the first
        0.25
    """
    rate, multipliers = PART("layer_decay", rate), {}
    passed = 0  # blocks so far, this one included
    names = [layer.name for layer in model.layers if layer.weights]
    blocks = [name for name in names if matches(name, "block_[0-9]*")]
    if not blocks:
        raise ValueError(f"layer_decay counts the blocks of a Vision Transformer, but {model.name} is not one.")
    for name in names:
        passed += name in blocks
        after = passed == len(blocks) and name not in blocks
        multipliers[f"{name}/*"] = 1.0 if after else rate ** (len(blocks) + 1 - passed)
    return multipliers


def rate_multipliers(recipe: Any, model: Any) -> dict[str, float]:
    """Returns by patterns of weights' names what a recipe multiplies their learning rates by; others have 1."""
    # In an EoMT, queries, both heads, upscaling and the final norm have the recipe's rate, block i of L `layer_decay **
    # (L - 1 - i)` of it, and what comes before the blocks that of block 0. With `decay_query_blocks=False` blocks with
    # queries have the whole rate.
    if not isinstance(model, EoMT):
        return {} if recipe.layer_decay is None else layer_decay(model, recipe.layer_decay)
    decay = 1.0 if recipe.layer_decay is None else recipe.layer_decay
    config = model.config
    last, first_with_queries = config.backbone.depth - 1, config.backbone.depth - config.query_blocks
    multipliers = {}
    for layer in model.layers:
        name = layer.name
        if any(matches(name, pattern) for pattern in EOMT_HEAD):
            continue
        number = int(name.removeprefix("block_")) if name.startswith("block_") else 0
        whole = name == "encoder_norm" or (number >= first_with_queries and not recipe.decay_query_blocks)
        multipliers[f"{name}/*"] = 1.0 if whole else decay ** (last - number)
    return multipliers


@keras.saving.register_keras_serializable(package="keras_vit")
class TwoStageAdamW(AdamW):
    """AdamW in which all weights decay, and those named by the patterns `backbone` have the schedule `backbone_rate`.

    While a schedule is at 0, gradients still count in the norm and move the moments. The norm is clipped as PyTorch
    does (`torch.nn.utils.clip_grad_norm_`; EoMT's `training/two_stage_warmup_poly_schedule.py`).
    """

    decayed = "*"
    clip_epsilon = 1e-6

    def __init__(
        self, learning_rate: Any = 1e-4, backbone_rate: Any = None, backbone: Iterable[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        self.backbone_rate, self.backbone = backbone_rate, tuple(backbone)

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        self._is_backbone = [any(matches(v.path, pattern) for pattern in self.backbone) for v in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if self.backbone_rate is not None and self._is_backbone[self.index_of(variable)]:
            learning_rate = self.backbone_rate(self.iterations)
        super().update_step(gradient, variable, learning_rate)

    def get_config(self) -> dict[str, Any]:
        rate = None if self.backbone_rate is None else keras.saving.serialize_keras_object(self.backbone_rate)
        return {**super().get_config(), "backbone_rate": rate, "backbone": list(self.backbone)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "TwoStageAdamW":
        config = dict(config)
        if config["backbone_rate"] is not None:
            config["backbone_rate"] = keras.saving.deserialize_keras_object(config["backbone_rate"])
        return super().from_config(config, custom_objects)


def eomt_optimizer(recipe: Any, model: Any, steps: int, **common: Any) -> TwoStageAdamW:
    """Returns the optimizer of a recipe with two warm-ups, built for an EoMT; `common` are arguments of all of them."""
    if not isinstance(model, EoMT):
        warmup, found = recipe.backbone_warmup_steps, type(model).__name__
        raise ValueError(f"backbone_warmup_steps={warmup} is for an EoMT, but {found} was given. Pass None.")
    recipe = recipe.replace(steps=steps)  # which may shorten the warm-ups
    decay = {"decay": recipe.schedule, "end": recipe.end, "power": recipe.power}
    head = WarmupDecay(recipe.learning_rate, steps, warmup_steps=recipe.warmup_steps, **decay)
    delay, warmup = int(head.warmup_steps), recipe.backbone_warmup_steps
    backbone = WarmupDecay(recipe.learning_rate, steps - delay, warmup_steps=warmup, delay=delay, **decay)
    optimizer = TwoStageAdamW(
        **common | {"learning_rate": head},
        backbone_rate=backbone,
        backbone=common["rate_multipliers"],
        beta_1=recipe.beta_1,
        beta_2=recipe.beta_2,
    )
    optimizer.build(model.trainable_variables)
    return optimizer
