"""Models by name and from files: the functions that most users need."""

import contextlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack

from keras_vit import checkpoints, models
from keras_vit._arguments import Source, Tensor, warn_caller
from keras_vit._options import keywords, refuse_unknown
from keras_vit.checkpoints.catalogue import repositories_called
from keras_vit.checkpoints.files import path_of, weights_in
from keras_vit.checkpoints.keras_files import DESCRIBED, check_unpacked
from keras_vit.models import BiT, CreateOptions, LoadOptions, ModelOptions, VisionTransformer
from keras_vit.models.changes import OF_BUILDING, OF_SOURCES, changed_config, config_changes, layers_to_reinitialise

T = TypeVar("T")


def load(source: Source, **options: Unpack[LoadOptions]) -> VisionTransformer | BiT | models.DenseModel:
    """Returns the model of a name, an address, a file or a folder.

    Options that are left out keep the value of the source. Checkpoints other than Keras files do not store activations
    (default: logits), dropout rates (0) and preprocessing (outside the model). An option that the source cannot honour
    is an error, and so is a missing or unknown array. See docs/loading.md.

    Args:
        source: A variant such as `"ViT-B/16"`, which stands for its recommended checkpoint; a name of the catalogue
            (see `list_weights`); `"glyphs"`, which is installed with the package; an address; or the path of an `.npz`,
            `.safetensors`, `.pth`, `.keras` or `.weights.h5` of a known layout, or of a folder with one and its JSON
            files. A file comes before a variant of the same name.
        **options: Fields of `LoadOptions`, such as `image_size=384`, `classes=37`, `include_top=False`.

    Returns:
        A `VisionTransformer`, a `BiT` or, with a head for segmentation or depth, a `DenseModel`. It is not compiled;
        layers that are frozen in a Keras file stay frozen.

    Raises:
        OSError: if there is no such file (FileNotFoundError), it cannot be read or fetched (DownloadError), or a folder
            has no weights (IsADirectoryError).
        TypeError, ValueError: if the source is of another kind, damaged or incomplete, or cannot honour an option.

    Examples:
        >>> keras_vit.load("glyphs", image_size=32, classes=10).config.grid_size  # a new head, of zeros
        (8, 8)
    """
    given: LoadOptions = keywords("load", options, LoadOptions)
    if "channels" in given and "input_tensor" in given:
        raise ValueError(
            "channels and input_tensor exclude each other. Build the model with channels, and call it on the tensor."
        )
    path = path_of(source)
    if path is None:
        is_variant = checkpoints.is_variant(source)
        name = checkpoints.find_recommended(str(source)) if is_variant else checkpoints.resolve_source(source)
        return _load_checkpoint(name, given)
    return (_load_keras_file if checkpoints.is_keras_file(path) else _load_checkpoint)(path, given)


from_checkpoint = load
"""Another name of `load`."""


def _load_keras_file(path: Source, options: LoadOptions) -> Any:
    """Returns the model of a file of Keras, changed by its `with_config` where options are given."""
    for option in (*OF_SOURCES, "input_tensor"):
        if option in options:
            raise ValueError(f"{path} has the whole config of its model. Leave {option}={options[option]!r} out.")
    model = checkpoints.read_keras(path)
    config = _with_names_beside(model.config, path)
    changes = config_changes(config, options, str(path))
    if config is not model.config and changes.get("classes", config.classes) == config.classes:
        changes = {"class_names": config.class_names, **changes}
    changes |= {name: options[name] for name in ("name", "dtype") if name in options}
    return model.with_config(**changes) if changes else model


def _load_checkpoint(path: Source, options: LoadOptions) -> Any:
    """Returns the model of a checkpoint: its config is read and changed, then the model is built and filled."""
    reading: dict[str, Any] = {name: options.get(name) for name in OF_SOURCES}
    head = options.get("head")
    if head is not None:
        head = checkpoints.find_checkpoint(head)
    else:
        path, head = checkpoints.pair_in(path)
    reading["head"] = head
    if isinstance(path, Path):
        path = weights_in(path)
    else:
        name, path = path, checkpoints.find_checkpoint(path)
        if head is None and "numerics" not in options and checkpoints.is_copy(name, path):
            reading["numerics"] = "official"
    size: Any = options.get("image_size")
    plan = checkpoints.open_checkpoint(path, image_size=None if size == "dynamic" else size, **reading)
    own = plan.stored if size == "dynamic" else plan.config  # a model of any size keeps the positions of the file
    config = _with_names_beside(own, path if head is None else head)
    changes = config_changes(config, options, str(path))
    channels = changes.pop("channels", None)  # the kernel is adapted once it is there
    has_size = plan.layout is DESCRIBED and "input_tensor" not in options
    if isinstance(config, models.BiTConfig) and size is None and not has_size:
        changes["image_size"] = _size_of_bit(options.get("input_tensor"))
    new = changed_config(config, changes)
    keep_head = "head" not in layers_to_reinitialise(config, new) and options.get("include_top", True)
    build: Any = {name: options[name] for name in OF_BUILDING if name in options}
    model = checkpoints.load_model(path, plan, new, keep_head=keep_head, **build)
    return model if channels is None or channels == new.channels else model.with_config(channels=channels)


def config_of(source: Source) -> Any:
    """Returns the config of the model that `load` returns, without its weights; None for a Keras file without one."""
    is_variant = path_of(source) is None and checkpoints.is_variant(source)
    path = checkpoints.find_recommended(str(source)) if is_variant else checkpoints.resolve_source(source)
    if checkpoints.is_keras_file(path):
        return checkpoints.config_in_file(os.path.expanduser(path))
    path, head = checkpoints.pair_in(path)
    return checkpoints.open_checkpoint(checkpoints.find_checkpoint(path), head=head).config


def as_model(model: Any, **options: Any) -> Any:
    """Anything but a string or a path as it is; of these the model that `load` returns with the options."""
    return load(model, **options) if isinstance(model, (str, os.PathLike)) else model


def create_model(variant: str, **options: Unpack[CreateOptions]) -> VisionTransformer | BiT:
    """Returns a model of the papers by its name, with the conventions of keras.applications: new, or `load`ed.

    Names such as `"BiT-R50x1"` make a BiT, the ResNet that the first paper compares with. It refuses options about
    tokens, position embeddings and dropout.

    Args:
        variant: The paper's name, such as `"ViT-B/16"`; case and punctuation do not matter (but g is not G).
        **options: Fields of `CreateOptions`, such as `pretrained=True`, `classes=37`. `classifier_activation` is
            `"softmax"` unless it is given, None for logits. Without weights, `image_size` is the variant's (224 for the
            first papers); a BiT takes any.

    Raises:
        TypeError, ValueError, OSError: as `load`; if the file does not hold that variant.

    Examples:
        >>> tiny = keras_vit.create_model("ViT-mu/16", image_size=32, classes=10, classifier_activation=None)
        >>> tiny.predict(np.zeros((1, 32, 32, 3)), verbose=0).shape
        (1, 10)
    """
    variant = _variant_called(variant)
    asked: CreateOptions = keywords("create_model", options, CreateOptions)
    weights = asked.get("weights")
    if weights == "imagenet":
        raise ValueError("weights='imagenet' is how keras.applications says it: pass pretrained=True.")
    if asked.get("pretrained"):
        if weights is not None:
            raise ValueError(f"pretrained=True and weights={weights!r} exclude each other. Pass one of the two.")
        weights = checkpoints.find_recommended(variant)
    is_ours = weights is not None and os.fspath(weights).endswith(".weights.h5")
    config = models.variant_config(variant) if weights is None or is_ours else _config_of(weights, variant)
    changes: Any = {name: value for name, value in asked.items() if name in ModelOptions.__annotations__}
    if asked.get("include_top", True) and (asked.get("classes") or config.classes):
        changes["classifier_activation"] = options.get("classifier_activation", "softmax") or "linear"
    if weights is None or is_ours:
        return _new_model(variant, config, asked, changes, weights)
    for option in _OF_VARIANTS:
        value = asked.get(option)
        if value not in (None, getattr(config, option, None)):
            raise ValueError(f"{option}={value} contradicts the config of {weights}. Leave {option} out.")
    return load(weights, **changes)


_OF_VARIANTS = ("class_token", "representation_size")  # options of new models only


def _variant_called(name: str) -> str:
    """Returns the paper's name of a variant; ValueError also says which variant a repository of that name has."""
    try:
        return models.find_variant(name)
    except ValueError:
        rows = repositories_called(name)
        if not rows:
            raise
    raise ValueError(
        f"There is no variant {name!r}. Did you mean {rows[0].variant!r}, or for its weights "
        f"keras_vit.load({rows[0].name!r})? list_models() shows all."
    )


def _new_model(
    variant: str, config: Any, asked: CreateOptions, changes: Mapping[str, Any], weights: Source | None
) -> VisionTransformer | BiT:
    """Returns a model of a variant with random weights, or with those of a `.weights.h5` that this same model saved."""
    include_top, representation_size = asked.get("include_top", True), asked.get("representation_size")
    if isinstance(config, models.ViTConfig):
        class_token, pooling = asked.get("class_token", config.class_token), config.pooling
        if class_token != config.class_token and pooling in ("token", "avg"):
            pooling = "token" if class_token else "avg"
        config = config.replace(class_token=class_token, pooling=pooling)
        if representation_size is not None and not include_top:
            raise ValueError(
                f"representation_size={representation_size!r} is part of the head: it needs include_top=True."
            )
    else:  # which refuses what is for tokens
        size = _size_of_bit(asked.get("input_tensor"))
        changes = {"image_size": size} | {n: v for n, v in asked.items() if n in _OF_VARIANTS} | {**changes}
    names = asked.get("class_names")
    if "classes" not in asked and include_top and isinstance(names, Sequence):
        changes = {**changes, "classes": len(names)}
    size = asked.get("image_size")
    if config.tokens_mlp_width is not None and not isinstance(size, (str, type(None))):
        config = config.replace(image_size=size)  # there are no weights that fit one grid alone
    config = changed_config(config, config_changes(config, changes, variant))
    if representation_size is not None:
        config = config.replace(representation_size=representation_size)
    weights = None if weights is None else os.path.expanduser(checkpoints.resolve_source(weights))
    if weights is not None and config.class_names is None:
        saved = checkpoints.config_in_file(weights)
        if saved is not None and type(saved) is not type(config):
            raise ValueError(
                f"{weights} holds a {saved.model}, but {variant} was asked for. Load it with keras_vit.load(path)."
            )
        if saved is not None and saved.classes == config.classes:
            config = config.replace(class_names=saved.class_names)
        config = _with_names_beside(config, weights)
    build = {name: asked[name] for name in OF_BUILDING if name in asked}
    model = getattr(models, config.model)(config, **build)
    if weights is not None:
        check_unpacked(weights, config)
        model.load_weights(weights)
    return model


def _config_of(weights: Source, variant: str) -> Any:
    """Returns the config of a source of weights; ValueError unless it has the layers of the variant."""
    config = config_of(weights)
    if config is None or not models.has_layers_of(config, variant):
        known = None if config is None else models.variant_of(config)
        raise ValueError(
            f"{weights} holds {known or 'a model that is not a known variant'}, but {variant} was asked for. Load "
            "it with keras_vit.load(path), which takes the model from the file."
        )
    return config


def _size_of_bit(input_tensor: Tensor | None) -> tuple[int, int] | Literal["dynamic"]:
    """The image size of a BiT where none is given: (height, width) of the input, or "dynamic" for any."""
    height, width = (None, None) if input_tensor is None else input_tensor.shape[1:3]
    return "dynamic" if height is None or width is None else (height, width)


def _with_names_beside(config: Any, path: Source) -> Any:
    """Returns the config, with the names of a `classes.txt` beside the file if it has none and their number fits."""
    if not getattr(config, "classes", None) or config.class_names is not None:
        return config
    try:
        names = checkpoints.names_beside(path)
        if names is not None and len(names) != config.classes and isinstance(config, models.DenseConfig):
            raise ValueError(f"classes.txt has {len(names)} names, but the model has {config.classes} classes.")
    except ValueError as error:  # the model is usable, whatever lies beside it
        warn_caller(f"The outputs of {path} have no names: {error}")
        return config
    if names is None or len(names) != config.classes:
        return config
    return config.replace(class_names=names)


def _show_options(function: Any, *options: Any) -> None:
    """Appends the options that `TypedDict`s declare to a function's docstring: `help()` shows nothing else of them."""
    # Python 3.13 takes the indentation out of docstrings, earlier versions do not.
    docs = [inspect.cleandoc(kind.__doc__ or "") for kind in (function, *options)]
    texts = [doc.partition("\nAttributes:\n")[2].partition("\n\nExamples:")[0] for doc in docs[1:]]
    function.__doc__ = "\n".join([docs[0], "\nOptions:", *texts])


_show_options(load, ModelOptions, LoadOptions)
_show_options(create_model, CreateOptions, ModelOptions)


def _factory(variant: str, kind: type[T]) -> Callable[..., T]:
    """Returns `create_model` with its variant chosen, as a function with the name of `factory_name`."""

    def factory(**options: Unpack[CreateOptions]) -> T:
        refuse_unknown(options, CreateOptions.__annotations__, name)
        model: Any = create_model(variant, **options)
        return model

    name = factory.__name__ = factory.__qualname__ = models.factory_name(variant)
    but = ", except for what a ResNet has no use for" if kind is BiT else ""
    loaded = ""
    with contextlib.suppress(FileNotFoundError):  # where the package was packed without its data
        size = checkpoints.recommended_size(variant)
        if size:
            loaded = f" `pretrained=True` loads weights for images of {size} pixels; `image_size=` resizes them."
    factory.__doc__ = f"""The {variant} of the papers: the options are those of `create_model`{but}.{loaded}

    Examples:
        >>> model = keras_vit.{name}(classes=10)
    """
    _show_options(factory, CreateOptions, ModelOptions)
    return factory


ViT_Ti16 = _factory("ViT-Ti/16", VisionTransformer)
ViT_S16 = _factory("ViT-S/16", VisionTransformer)
ViT_S32 = _factory("ViT-S/32", VisionTransformer)
ViT_B8 = _factory("ViT-B/8", VisionTransformer)
ViT_B16 = _factory("ViT-B/16", VisionTransformer)
ViT_B32 = _factory("ViT-B/32", VisionTransformer)
ViT_L16 = _factory("ViT-L/16", VisionTransformer)
ViT_L32 = _factory("ViT-L/32", VisionTransformer)
ViT_H14 = _factory("ViT-H/14", VisionTransformer)
R_ViT_Ti16 = _factory("R+ViT-Ti/16", VisionTransformer)
R26_ViT_S32 = _factory("R26+ViT-S/32", VisionTransformer)
R26_ViT_B32 = _factory("R26+ViT-B/32", VisionTransformer)
R50_ViT_B16 = _factory("R50+ViT-B/16", VisionTransformer)
R50_ViT_L32 = _factory("R50+ViT-L/32", VisionTransformer)
BiT_R50x1 = _factory("BiT-R50x1", BiT)
BiT_R50x3 = _factory("BiT-R50x3", BiT)
BiT_R101x1 = _factory("BiT-R101x1", BiT)
BiT_R101x3 = _factory("BiT-R101x3", BiT)
BiT_R152x2 = _factory("BiT-R152x2", BiT)
BiT_R152x4 = _factory("BiT-R152x4", BiT)

# Those of the other families, DeiT_B16, DINOv2_S14 and so on: a row of the table is all there is to say of each.
FAMILY_FACTORIES: dict[str, Callable[..., VisionTransformer]] = {
    models.factory_name(variant): _factory(variant, VisionTransformer)
    for variant, row in models.VARIANTS.items()
    if row.family != "ViT"
}
globals().update(FAMILY_FACTORIES)
