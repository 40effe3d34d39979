"""Changes of a model: the options of `load` and `create_model`, the fields that they stand for, and the weights then.

Then what of a model saves time at inference, and its adapters.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

import keras
import numpy as np

from keras_vit._arguments import DType, ImageSize, Source, Tensor, did_you_mean
from keras_vit._keras import layers_inside, own_trainable_weights, register_weights
from keras_vit._options import as_python
from keras_vit._processes import ONEDNN, XLA, may_use_xla, switched_on, tensorflow_has_only_cpus
from keras_vit.layers import StdConv2D, resize_patch_kernel, resize_table, skip_initialization
from keras_vit.layers.base import Dense, has_adapters, layers_by_path, weights_by_path
from keras_vit.layers.fast.torch import takes_onednn
from keras_vit.models.config import BiTConfig, Config, ModelConfig, ViTConfig
from keras_vit.models.dense_config import DenseConfig


class ModelOptions(TypedDict, total=False):
    """The options of `load` and `create_model` that change a model.

    An option that is None or left out keeps the value of the source. An option that a model cannot honour is an error.

    Attributes:
        image_size: Height and width in pixels, an integer for squares, or `"dynamic"` for any size at run time;
            position embeddings are resized.
        classes: Outputs of the head. If the source has another number, the head is new and zero-initialised, and the
            pre-logits are dropped, as in the original. No effect without the top, as in keras.applications.
        class_names: Names of the outputs, in order. None: those of the file, or of a `classes.txt` beside it that fits.
        include_top: Whether to keep the head and the other layers after pooling.
        pooling: `"token"`, `"token_dist"`, `"avg"`, `"token_avg"` or `"map"`; `"none"` puts the head on every token.
            None: the source's pooling, or no pooling without the top. A BiT has only `"avg"` and `"none"`.
        classifier_activation: Name of an activation on the head; `"linear"` for logits.
        include_preprocessing: Whether the model takes pixels of 0..255 and normalises them itself.
        channels: Channels of the images, if they are not RGB; weights are adapted as by `with_config(channels=...)`.
        interpolation: How position embeddings are resized: `"official"` (the original code), `"bicubic"` (timm),
            `"bicubic_hf"` (Hugging Face), `"bicubic_offset"` (Facebook's DINO), `"bilinear"`, `"bilinear_antialias"`
            (FlexiViT). None: as in the code that the source comes from.
        dropout: Dropout rate in the encoder.
        attention_dropout: Dropout rate of the attention weights.
        patch_drop: Share of each image's patches that is dropped in training.
        drop_path: Stochastic depth rate of the last block.
        remat: Whether blocks are recomputed in the backward pass to save memory.
        input_tensor: Keras tensor to build the model on; not for files of Keras.
        name: Name of the model.
        dtype: Dtype policy, such as `"mixed_bfloat16"`; None: the policy of a Keras file, or the global one.

    Examples:
        >>> options: keras_vit.ModelOptions = {"image_size": 32, "classes": 10}
        >>> keras_vit.load("glyphs", **options).output_shape
        (None, 10)
    """

    image_size: ImageSize | Literal["dynamic"] | None
    classes: int | None
    class_names: Sequence[str] | None
    include_top: bool
    pooling: str | None
    classifier_activation: str | None
    include_preprocessing: bool | None
    channels: int | None
    interpolation: str | None
    dropout: float | None
    attention_dropout: float | None
    patch_drop: float | None
    drop_path: float | None
    remat: bool | None
    input_tensor: Tensor | None
    name: str | None
    dtype: DType


class LoadOptions(ModelOptions, total=False):
    """The options of `load`: how to read the source, and all `ModelOptions`.

    Attributes:
        like: Where to take settings from that a PyTorch file without JSON lacks (heads, GELU, epsilon, resizing of
            positions, preprocessing): a variant such as `"DINOv2-S/14"`, or a timm model such as
            `"vit_base_patch16_clip_quickgelu_224"`. It is an error if they contradict the arrays or the JSON files.
        state: The dict of a training checkpoint to read, such as `"model"`. None: averaged weights (`"ema"`) if the
            file has them.
        grid_size: Rows and columns of a checkpoint's position embeddings, if they are not a square. Not needed if
            `image_size` is the size it was trained at, or for files written by `to_checkpoint`.
        head: The file of a segmentation or depth head that was published without its backbone; `source` is the
            backbone.
        max_depth: Largest depth of a depth model in metres, if its file does not have it, or `"relative"` for depth
            without a unit. None: the depth that its name suggests, with a warning.
        numerics: `"publisher"`: results as in the library that the file was published for. `"official"`: results as in
            the official code (GELU, epsilon, resizing and preprocessing), for weights that it has trained. None:
            `"official"` for a name of the catalogue, `"publisher"` for a file or an address.
        pre_logits: Whether to keep the tanh layer before the head. None: yes with the source's head, no with a new one.

    Examples:
        >>> options: keras_vit.LoadOptions = {"numerics": "official"}
        >>> keras_vit.load("glyphs", **options).config.gelu
        'tanh'
    """

    like: str | None
    state: str | None
    grid_size: tuple[int, int] | None
    head: Source | None
    max_depth: float | Literal["relative"] | None
    numerics: Literal["official", "publisher"] | None
    pre_logits: bool | None


class CreateOptions(ModelOptions, total=False):
    """The options of `create_model`: where the weights come from, and all `ModelOptions`.

    Attributes:
        pretrained: Whether to load the recommended checkpoint of the variant, which is downloaded once. Its image size
            may differ from the variant's, and it has no head if none was published.
        weights: A source of `load` with weights of this variant, or a `.weights.h5` that the same model saved. None:
            random weights, by default with 1,000 `classes`, the variant's official `dropout`, and `pooling="token"`, or
            `"avg"` without a class token.
        class_token: Whether there is a class token. None: as in the checkpoint, or the variant without weights.
        representation_size: Without weights, the length of the tanh layer before the head; None for no such layer.

    Examples:
        >>> options: keras_vit.CreateOptions = {"image_size": 32, "representation_size": 24}
        >>> keras_vit.ViT_Ti16(**options).config.representation_size
        24
    """

    pretrained: bool
    weights: Source | None
    class_token: bool | None
    representation_size: int | None


OF_SOURCES = ("like", "state", "grid_size", "head", "max_depth", "numerics")
OF_BUILDING = ("input_tensor", "name", "dtype")


def _keeps_pre_logits(config: Config, changes: Mapping[str, Any], pre_logits: bool | None, source: str) -> bool:
    """Whether the pre-logits stay as the model has them: as the option says; for None with the source's head."""
    if config.representation_size is None:
        if pre_logits:
            raise ValueError(f"pre_logits=True needs a tanh layer before the head, which {source} lacks. Leave it out.")
        return True
    classes = getattr(config, "classes", None)
    keeps_head = changes.get("classes", classes) == classes
    if pre_logits is False and keeps_head and classes:
        raise ValueError(
            f"pre_logits=False needs a new head, because the head of {source} reads them: pass classes=..., or "
            "include_top=False for features."
        )
    return keeps_head if pre_logits is None else pre_logits


def config_changes(config: Config, options: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns the changes of fields that options stand for, for `changed_config`; values are not checked here."""
    is_dense = not isinstance(config, ModelConfig)
    known = {field.name for field in dataclasses.fields(config)}
    if hasattr(config, "image_size"):
        known.add("image_size")
    if not is_dense:
        known.add("include_top")
    if "representation_size" in known:
        known.add("pre_logits")
    changes, refused = {}, []
    for name, value in options.items():
        if name in OF_SOURCES or name in OF_BUILDING:  # some are called as fields are: max_depth
            continue
        if name in known:
            changes[name] = value
        elif name == "include_top" and value:
            continue
        elif is_dense or value not in (False, 0, "official"):  # which is how a BiT is
            refused.append(f"{name}={value!r}")
    if refused:
        kind = f"a model of the type {config.model}" if is_dense else "a BiT, a ResNet without tokens and dropout"
        raise ValueError(f"{source} does not use {', '.join(refused)}, because it is {kind}. Leave it out.")
    include_top, pre_logits = changes.pop("include_top", True), changes.pop("pre_logits", None)
    pooling = changes.get("pooling", None if is_dense else config.pooling) if include_top else changes.get("pooling")
    if config.class_token_only and pooling != "token":
        changes["class_token_only"] = False  # `optimize_for_inference` computes the token alone
    if not include_top:
        return _without_top(config, changes, pre_logits)

    if not _keeps_pre_logits(config, changes, pre_logits, source):
        changes["representation_size"] = None
    if changes.get("classifier_activation") == "linear":
        changes["classifier_activation"] = None
    return changes


def _without_top(config: Config, changes: dict[str, Any], pre_logits: bool | None) -> dict[str, Any]:
    """Changes for no head and by default no pooling; ValueError for options of a head, but `classes` has no effect."""
    for option, value in {**changes, "pre_logits": pre_logits or None}.items():
        if option in ("class_names", "pre_logits", "classifier_activation") and value is not None:
            raise ValueError(f"{option}={value!r} needs include_top=True, because without the top there is no head.")
    changes = {"pooling": "none", **changes, "classes": None, "classifier_activation": None}
    if isinstance(config, ViTConfig):
        changes |= {"representation_size": None, "projection": None}
        changes |= {"projection_bias": False, "distillation_head": False}
    return changes


# The fields of a config that may change while the model keeps its weights, with the layers that have to start again.
# Any other field, such as width or depth, decides what all the weights are.
CHANGES: dict[str, tuple[str, ...]] = {
    # Position embeddings and the patch embedding are resized, the first kernel is adapted to other channels.
    **dict.fromkeys(("image_size", "patch_size", "dynamic", "interpolation", "channels"), ()),
    **dict.fromkeys(("dropout", "attention_dropout", "patch_drop", "drop_path", "remat"), ()),
    **dict.fromkeys(("gelu", "layer_norm_epsilon", "final_norm_epsilon", "stem_epsilons", "pool_padding"), ()),
    **dict.fromkeys(("classifier_activation", "include_preprocessing", "pixel_mean", "pixel_std"), ()),
    **dict.fromkeys(("resize", "crop_ratio", "crop_rounding", "filter", "trim"), ()),
    # Kernels are standardised, or the patch embedding is scaled, which cannot be undone.
    **dict.fromkeys(("folded", "stem_folded", "preprocessing_folded", "class_token_only"), ()),
    # From "none", to "map", and to or from "token_avg": see `layers_to_reinitialise`.
    **dict.fromkeys(("final_norm", "pooling", "map_prefix", "class_names"), ()),
    **dict.fromkeys(("projection", "projection_bias"), ("projection", "pre_logits", "head")),
    "representation_size": ("pre_logits", "head"),
    "unit_features": ("head",),
    "classes": ("head", "head_dist"),
    "distillation_head": ("head_dist",),
}
# The fields that change weights permanently, with those that cannot change afterwards, and neither then nor together.
_PERMANENT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "folded": ((), ("channels",)),
    "stem_folded": ((), ("channels", "stem_epsilons")),
    "preprocessing_folded": (("include_preprocessing", "pixel_mean", "pixel_std"), ("channels", "patch_size")),
}


def changed_fields(old: Config, new: Config) -> list[str]:
    """The names of the fields in which two configs of one class differ, in the order of the fields."""
    names = [field.name for field in dataclasses.fields(old)]
    return [name for name in names if getattr(old, name) != getattr(new, name)]


def changed_config(config: Config, changes: Mapping[str, Any]) -> Any:
    """Returns a config with some fields changed that describes a model with the same weights, except for its head."""
    changes = dict(changes)
    if "image_size" in changes and "dynamic" not in changes:
        changes["dynamic"] = isinstance(changes["image_size"], str) and changes["image_size"] == "dynamic"
        if changes["dynamic"]:
            del changes["image_size"]
    if isinstance(config, DenseConfig):
        of_images = {name: changes.pop(name) for name in ("image_size", "dynamic") if name in changes}
        if of_images:
            config = config.replace(backbone=changed_config(config.backbone, of_images))
    fields = [field.name for field in dataclasses.fields(config)]
    kept = CHANGES.keys() if isinstance(config, ModelConfig) else config.SETTINGS
    for name, value in changes.items():
        if name not in fields:
            hint = did_you_mean(name, dict(zip(fields, fields, strict=True))) or f" It has: {', '.join(fields)}."
            raise TypeError(f"{type(config).__name__} has no field {name!r}.{hint}")
        before, after = getattr(config, name), as_python(value)
        if name not in kept and after != before:
            raise ValueError(
                f"{name} cannot change from {before!r} to {after!r}, because the weights depend on it. For new "
                f"weights, build another model: type(model)(model.config.replace({name}={after!r}))."
            )
    new = config.replace(**changes)
    if isinstance(config, ModelConfig):
        _check_permanent(config, new)
        check_tokens(config, new)
        if config.channels not in (3, new.channels):
            change = f"channels cannot change from {config.channels} to {new.channels}"
            raise ValueError(f"{change}, because only weights for RGB can be adapted. Change the model for RGB.")
        if changes.get("classifier_activation") is not None and not new.classes:
            raise ValueError(
                f"classifier_activation={new.classifier_activation!r} needs a head, but the model has none. Pass "
                "classes= for a new head."
            )
        if new.classes and not config.classes and new.pooling == "none" and "pooling" not in changes:
            poolings = "'token', 'avg' or 'map'" if isinstance(new, ViTConfig) else "'avg'"
            raise ValueError(
                "The model has no pooling, so a head would classify every token. Call "
                f"model.with_config(classes={new.classes}, pooling=...) with {poolings}, or 'none' for every token."
            )
    return new


def _check_permanent(old: ModelConfig, new: ModelConfig) -> None:
    """Raises ValueError where weights that were changed permanently would have to be changed back."""
    changed = changed_fields(old, new)
    for field, (after, together) in _PERMANENT.items():
        before, now = getattr(old, field, False), getattr(new, field, False)
        fixed = (*([field, *after] if before else []), *(together if before or now else []))
        for name in changed:
            if name in fixed:
                raise ValueError(
                    f"{name} cannot change to {getattr(new, name)!r}, because {field}=True changes weights "
                    "permanently. Load the model again, and make this change first."
                )


def check_tokens(old: ModelConfig, new: ModelConfig) -> None:
    """Raises ValueError where `old` is an MLP-Mixer, whose weights mix one grid of tokens, and `new` has another."""
    if getattr(old, "tokens_mlp_width", None) is not None and old.grid_size != new.grid_size:
        raise ValueError(
            f"image_size cannot be {new.image_size}, because this MLP-Mixer mixes {old.grid_size[0]} x "
            f"{old.grid_size[1]} patches. Use image_size={old.image_size}."
        )


def layers_to_reinitialise(old: Config, new: Config, fresh: Collection[str] = ()) -> set[str]:
    """Returns the layers of `new` to initialise; ValueError where a change from `old` needs more than `fresh` names."""
    if not isinstance(new, ModelConfig):
        return set(fresh)
    changed = changed_fields(old, new)
    causes = {name: set(CHANGES[name]) for name in changed}
    if "pooling" in changed and new.pooling == "map":
        causes["pooling"].add("pooling")
    if "pooling" in changed and getattr(old, "pooled_size", None) != getattr(new, "pooled_size", None):
        causes["pooling"] |= {"projection", "pre_logits", "head"}
    if "final_norm" in changed and old.final_norm == "none":
        causes["final_norm"].add("encoder_norm")
    needed = set().union(*causes.values())
    fields = {"head": "classes", "projection": "projection", "pre_logits": "representation_size"}
    absent = {layer for layer, field in fields.items() if not getattr(new, field, None)}
    if not (new.classes and getattr(new, "distillation_head", False)):
        absent.add("head_dist")
    allowed = {*fresh, "head", "head_dist"} if "classes" in changed else set(fresh)
    lost = sorted(needed - absent - allowed)
    if lost:
        values = ", ".join(f"{name}={getattr(new, name)!r}" for name in changed if causes[name] & {*lost})
        raise ValueError(
            f"{values} needs new weights in {' and '.join(lost)}. To initialise them again, call "
            f"model.with_config(..., fresh={sorted({*fresh, *lost})})."
        )
    return (needed | set(fresh)) - absent


def copy_state(old: Any, new: Any, fresh: Collection[str] = ()) -> None:
    """Gives `new` the weights of `old`, resized, and its adapters, except layers in `fresh`; the same weights train."""
    copy_structure(old, new, fresh)
    values, folded = weights_by_path(old), {}
    changed = changed_fields(old.config, new.config)
    if "stem_folded" in changed or "folded" in changed:
        resnet = {path: layer for path, layer in layers_by_path(old).items() if isinstance(layer, StdConv2D)}
        folded |= {f"{path}/kernel": layer.standardized_kernel() for path, layer in resnet.items()}
    if "preprocessing_folded" in changed:
        folded |= _normalizing_embedding(old, new.config)
    for path, variable in weights_by_path(new).items():
        if not _within(path, fresh):
            # A copy: on JAX, training donates the buffers of one model, and they must not be the other's.
            value = folded[path] if path in folded else keras.ops.copy(values[path])
            variable.assign(_resized(path, value, old.config, new.config))


def _within(path: str, names: Collection[str]) -> bool:
    return any(f"{path}/".startswith(f"{name}/") for name in names)


def copy_structure(old: Any, new: Any, fresh: Collection[str] = ()) -> None:
    """Gives `new` LoRA's adapters where `old` has them, with new values; the same weights train as in `old`."""
    layers, weights = layers_by_path(old), weights_by_path(old)
    for path, layer in layers_by_path(new).items():
        if not _within(path, fresh) and path in layers:
            if has_adapters(layers[path]):
                if not has_adapters(layer):
                    layer.enable_lora(layers[path].lora_rank)
                layer.lora_alpha = layers[path].lora_alpha
            layer.trainable = layers[path].trainable
    register_weights(new)
    for path, weight in weights_by_path(new).items():
        if not _within(path, fresh) and path in weights:
            weight.trainable = weights[path].trainable  # LoRA trains single weights of a layer


def _resized(path: str, value: Any, old: Any, new: Any) -> Any:
    """Returns a weight of a model with the config `old`, by its path, as a model with the config `new` needs it."""
    if isinstance(new, DenseConfig):
        old, new = old.backbone, new.backbone
    if path == "embedding/kernel" and new.patch_size != old.patch_size:
        value = resize_patch_kernel(keras.ops.convert_to_numpy(value), new.patch_size)
    is_plain = isinstance(old, ViTConfig) and old.stem_stages is None
    first_kernel = "embedding/kernel" if is_plain else "conv_root/kernel"
    if path == first_kernel and new.channels != old.channels:
        return adapt_kernel(keras.ops.convert_to_numpy(keras.ops.cast(value, "float32")), new.channels)
    if path == "position_embedding/table" and new.grid_size != old.grid_size:
        return resize_table(keras.ops.convert_to_numpy(value), old.grid_size, new.grid_size, new.interpolation)
    return value


def adapt_kernel(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Returns a kernel `(height, width, 3, filters)` adapted to other channels by timm's rule (`adapt_input_conv`)."""
    # One channel gets the sum; more get the three in turn, times 3 / channels, so that activations stay as large.
    if channels == 1:
        return kernel[:, :, 0:1] + kernel[:, :, 1:2] + kernel[:, :, 2:3]
    return kernel[:, :, np.arange(channels) % 3] * np.float32(3 / channels)


def _normalizing_embedding(model: Any, config: Any) -> dict[str, Any]:
    """Returns kernel and bias, by path, that make the patch embedding of a model normalise pixels as `config` says."""
    layer = model.get_layer("embedding")
    kernel = keras.ops.convert_to_numpy(keras.ops.cast(layer.kernel, "float32")).astype("float64")
    bias = keras.ops.convert_to_numpy(keras.ops.cast(layer.bias, "float32")) if layer.use_bias else 0.0
    mean, std = (np.asarray(values)[:, None] for values in (config.pixel_mean, config.pixel_std))
    bias = bias - (kernel * (mean / std)).sum((0, 1, 2))
    return {"embedding/kernel": kernel / (255 * std), "embedding/bias": bias}


class InferenceStep(NamedTuple):
    """A step of `optimize_for_inference`: it sets a field of the config or, unless `is_field`, an attribute to True."""

    name: str
    effect: str
    obstacle: str | None = None  # why this model has no use for it or cannot have it
    is_field: bool = True


def inference_steps(model: Any) -> list[InferenceStep]:
    """Returns the steps of `optimize_for_inference` for a model of its kind, with what is in the way of each."""
    config, dtype = model.config, model.compute_dtype
    standardised = "the kernels of the ResNet are standardised once, not at every call"
    if isinstance(config, BiTConfig):
        steps = [InferenceStep("folded", standardised)]
    else:
        needed = "the last block computes only the tokens that the output is read from"
        others = None if config.pooling == "token" else f"pooling={config.pooling!r} reads all tokens"
        pixels = None
        if not config.include_preprocessing:
            pixels = "the model takes images that are normalised already"
        elif config.stem_stages is not None:
            pixels = "the first convolution of the ResNet pads its input after it is normalised"
        elif dtype not in ("float32", "float64"):
            pixels = f"{dtype} has too few bits for what pixels are before they are normalised"
        steps = [
            InferenceStep("class_token_only", needed, others),
            InferenceStep("stem_folded", standardised, "there is no ResNet" if config.stem_stages is None else None),
            InferenceStep(
                "preprocessing_folded", "pixels are normalised by the weights of the patch embedding", pixels
            ),
        ]
    steps = [step._replace(obstacle="done before") if getattr(config, step.name) else step for step in steps]
    if may_use_xla(model):  # Keras 3.15 does where TensorFlow sees CPUs only (docs/speed.md)
        slow = None
        if config.dynamic:
            slow = "images of each size would be compiled again"
        elif not switched_on(XLA, True):
            slow = f"{XLA} is 0"
        effect = "predict is compiled with XLA, which takes some seconds at its first call"
        steps.append(InferenceStep("jit_compile", effect, slow, is_field=False))
    kernels = packable_kernels(model)
    if kernels:
        import torch

        size = sum(kernel.numel() for kernel in kernels) * 4 / 1e6
        slow = None if takes_onednn() else f"products are PyTorch's own on this processor, unless {ONEDNN}=1"
        if torch.is_inference_mode_enabled():
            slow = "kernels that are made in torch.inference_mode() cannot be packed"
        effect = f"kernels are in memory a second time, in oneDNN's own order: {size:,.0f} MB more"
        steps.append(InferenceStep("kernels_packed", effect, slow, is_field=False))
    return steps


def packable_kernels(model: Any) -> list[Any]:
    """The kernels, tensors, of dense layers that are float32 on PyTorch's CPU, not quantized, without adapters."""
    if keras.backend.backend() != "torch" or model.compute_dtype != "float32":
        return []
    kernels = [
        layer.kernel.value
        for layer in layers_inside(model)
        if isinstance(layer, Dense) and not layer.quantization_mode and not has_adapters(layer)
    ]
    return [kernel for kernel in kernels if kernel.device.type == "cpu" and not kernel.is_inference()]


def arithmetic() -> dict[str, int]:
    """The environment variables that choose the arithmetic of this backend's CPUs, with the values in use."""
    if keras.backend.backend() == "torch":
        return {ONEDNN: int(takes_onednn())}
    return {XLA: int(switched_on(XLA, True))} if tensorflow_has_only_cpus() else {}


# LoRA's adapters and frozen weights: what files say of them, and the same model without adapters


def adapted_layers(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """The layers of a model that have LoRA's adapters, by their paths."""
    return {name: layer for name, layer in layers_by_path(model).items() if has_adapters(layer)}


def training_config(model: keras.Model) -> dict[str, Any]:
    """Returns what a model's config says of training: `adapters` and `frozen_weights`, each left out where empty."""
    frozen: set[int] = set()
    for layer in layers_inside(model, include_self=False):
        if layer.trainable:
            frozen |= {id(weight) for weight in own_trainable_weights(layer) if not weight.trainable}
    adapted = adapted_layers(model).items()
    adapters = {name: {"rank": layer.lora_rank, "alpha": layer.lora_alpha} for name, layer in adapted}
    frozen_weights = [name for name, weight in weights_by_path(model).items() if id(weight) in frozen]
    described = {"adapters": adapters, "frozen_weights": frozen_weights}
    return {name: value for name, value in described.items() if value}


def restore_training(model: keras.Model, adapters: Mapping[str, Any], frozen_weights: Collection[str]) -> None:
    """Gives a new model the adapters of a `training_config`, with new values, and freezes its `frozen_weights`."""
    layers = layers_by_path(model) if adapters else {}
    for name, options in adapters.items():
        if not has_adapters(layers[name]):
            layers[name].enable_lora(options["rank"])
        layers[name].lora_alpha = options["alpha"]
    register_weights(model)
    weights = weights_by_path(model) if frozen_weights else {}
    for name in frozen_weights:
        weights[name].trainable = False


def merge_lora(model: Any) -> Any:
    """Returns a new model with LoRA's adapters merged into the kernels, which computes the same.

    It has the variables that `model` had before `add_lora`, all of them trainable. Raises ValueError if the model has
    no adapters, or its kernels are quantized.

    Examples:
        >>> adapted = keras_vit.VisionTransformer(config)
        >>> names = training.add_lora(adapted, rank=2)
        >>> merged = training.merge_lora(adapted)
        >>> np.allclose(merged.predict(small_images, verbose=0), adapted.predict(small_images, verbose=0), atol=1e-6)
        True
    """
    adapted = require_adapters(model)
    if any(layer.quantization_mode for layer in adapted.values()):
        raise ValueError(f"The kernels of {model.name} are quantized. Merge adapters before quantizing.")
    config = {name: value for name, value in model.get_config().items() if name not in ("adapters", "frozen_weights")}
    with skip_initialization():
        merged = type(model).from_config({**config, "frozen": (), "trainable": True})
    values = weights_by_path(model)
    for name, weight in weights_by_path(merged).items():
        owner, _, attribute = name.rpartition("/")
        value = keras.ops.convert_to_numpy(values[name])
        if owner in adapted and attribute == "kernel":
            layer = adapted[owner]
            a, b = (keras.ops.convert_to_numpy(x) for x in (layer.lora_kernel_a, layer.lora_kernel_b))
            value = value + layer.lora_alpha / layer.lora_rank * (a @ b)
        weight.assign(value)
    return merged


def require_adapters(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """Returns `adapted_layers` of a model; ValueError if it has none."""
    adapted = adapted_layers(model)
    if not adapted:
        raise ValueError(f"{model.name} has no adapters. Add them with keras_vit.training.add_lora(model, rank).")
    return adapted
