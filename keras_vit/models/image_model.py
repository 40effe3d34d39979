"""What models share: each is functional, and a function of one config; and what models of images do beside that."""

import contextlib
import ctypes
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import keras
import numpy as np

from keras_vit._arguments import caller, check_flag, did_you_mean, warn_caller
from keras_vit._keras import (
    Program,
    SharedModel,
    TrackingModel,
    call_layers,
    clear_losses,
    is_compiled,
    is_rematerialized,
    layers_inside,
    own_metrics,
    program_of,
    without_importing_tensorflow,
)
from keras_vit.layers.base import BaseLayer, quantized_policies, skip_initialization
from keras_vit.layers.fast.flat import FlatLayer, LastChange, Noting, call_flat, device_of_flat_calls, flat
from keras_vit.layers.fast.torch import is_packed, pack_kernels, unpack_kernels
from keras_vit.layers.ops import float32_or_better
from keras_vit.models.changes import (
    changed_config,
    changed_fields,
    copy_state,
    has_adapters,
    inference_steps,
    layers_to_reinitialise,
    packable_kernels,
    restore_training,
    training_config,
)
from keras_vit.models.looking import watched, wrong_values
from keras_vit.models.sizes import describe
from keras_vit.models.variants import variant_of
from keras_vit.preprocessing import Pipeline

# Keras keeps metrics, and on JAX the state of any call, in the model: two threads would take them from each other.
_TURNS: "weakref.WeakKeyDictionary[Any, threading.RLock]" = weakref.WeakKeyDictionary()


def _guarded(method: Callable[..., Any]) -> Any:
    """A method of `keras.Model` that checks images first: on JAX, Keras has the weights when it finds an error."""
    # Of a `tf.data.Dataset`, shapes are those of its `element_spec`; values of generators and the like are those of the
    # first batch. One thread at a time runs it for a model, except for `predict` and its like on TensorFlow and
    # PyTorch, which keep no state.

    @functools.wraps(method)
    def guarded(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        if x is None:
            raise ValueError(f"{self.name} needs images (batch, height, width, channels), but None was given.")
        if isinstance(x, np.ndarray) and not x.dtype.isnative:
            x = x.astype(x.dtype.newbyteorder("="))  # PyTorch takes no other byte order
        is_free = guarded.__name__.startswith("predict") and keras.backend.backend() != "jax"
        turn = contextlib.nullcontext() if is_free else _TURNS.setdefault(self, threading.RLock())
        batch = getattr(x, "element_spec", x)  # of tf.data
        if batch is not x and isinstance(batch, tuple):  # with labels
            batch = batch[0]
        flat = keras.tree.flatten(batch)
        if not flat or hasattr(flat[0], "shape"):
            self._check_images(batch, batch_of_none=False)
            self.check_values(batch)
        x = self.watch_values(x)
        with turn, self._kept_weights():
            return method(self, x, *args, **kwargs)

    return guarded


def _return_free_memory() -> None:
    # glibc keeps freed memory that lies below memory in use.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


class _Functions:
    """What a model's program calls, and the dtype of inputs for which Keras does nothing around it; None for none."""

    def __init__(self, model: Any, program: Program) -> None:
        import torch

        self.number, self.owner, self.inside = LastChange.number, id(model), None
        self.of_steps = [isinstance(s.layer, BaseLayer) and flat(s.layer) or s.layer for s in program.steps]
        inside, dtype = layers_inside(model), model.inputs[0].dtype
        ours = all(type(layer).__module__.startswith(("keras.src.", "keras_vit.")) for layer in inside)
        noted = model.watched or is_rematerialized(model) or any(layer.activity_regularizer for layer in inside)
        kept = "int" in dtype or model.compute_dtype == dtype
        quiet = ours and kept and not noted and not {"call", "forward"} & vars(model).keys()
        self.dtype = getattr(torch, dtype) if quiet else None
        clear_losses(model)  # of earlier calls
        # Lists that Keras makes again several times in each update; None where a layer with weights notes no changes.
        self.weights = self.variables = self.metrics = None
        self.tracked = False
        if all(isinstance(layer, BaseLayer) and [flat(layer)] or not layer.variables for layer in inside[1:]):
            self.weights, self.variables = (getattr(keras.Model, name).fget(model) for name in ("weights", "variables"))
            self.metrics = None if any(layer.metrics for layer in inside[1:]) else ()
            self.inside = inside

    def is_of(self, model: Any) -> bool:
        """Whether these are a model's functions, and nothing has changed."""
        return self.number == LastChange.number and self.owner == id(model)

    def step_caller(self, training: bool) -> Callable[..., Any]:
        """Returns what runs a step of the program: its flat function, or its layer where Keras has to cast."""

        def call(number: int, layer: Any, args: Any, options: Any) -> Any:
            function = self.of_steps[number]
            if isinstance(function, FlatLayer):
                if not {x.dtype for x in (*args, *options.values()) if hasattr(x, "dtype")} <= function.dtypes:
                    function = layer  # Keras casts
            if isinstance(layer, BaseLayer) or "training" in getattr(layer, "call_signature_parameters", ()):
                options = {**options, "training": training}
            return function(*args, **options)

        return call


_NOTHING: Any = types.SimpleNamespace(weights=None, variables=None, metrics=None)  # what is known where nothing is flat


class ConfiguredModel(Noting, TrackingModel, SharedModel, keras.Model):
    """A functional model that is made from a config: `cls(config, name=..., dtype=..., trainable=...)`.

    Subclasses set `config_type`, the class of their configs, and call `set_up` once their layers are there.
    """

    config_type: type[Any]
    factory: str | None = None  # the name of a function that makes one, for messages
    _program: Any = None

    @classmethod
    def _require_config(cls, config: Any) -> None:
        if not isinstance(config, cls.config_type):
            advice = f" For a variant of the paper, call a factory such as keras_vit.{cls.factory}()."
            raise TypeError(
                f"config must be a {cls.config_type.__name__}, but {type(config).__name__} was given."
                f"{advice if cls.factory else ''}"
            )

    @property
    def config(self) -> Any:
        """The config of this model."""
        return self._config

    def set_up(self, config: Any, policy: Any) -> None:
        """Keeps the config and the dtype policy, which `get_config` saves; called once the layers are there."""
        self._config = config
        self._policy = policy
        self._program = program_of(self) if keras.backend.backend() == "torch" else None
        # Keras asks the model, not its layers, whether the loss has to be scaled for float16.
        self.dtype_policy = getattr(policy, "default_policy", policy)
        _return_free_memory()

    @property
    def weights(self) -> list[keras.Variable]:
        """All weights, including the weights of layers inside."""
        known = self._functions().weights
        return super().weights if known is None else [*known]

    @property
    def variables(self) -> list[keras.Variable]:
        """The weights, and the states of random generators."""
        known = self._functions().variables
        return super().variables if known is None else [*known]

    @property
    def metrics(self) -> list[keras.Metric]:
        """The metrics of `compile` and of layers inside."""
        return super().metrics if self._functions().metrics is None else own_metrics(self)

    def known_layers(self) -> list[keras.layers.Layer] | None:
        """The model and all layers inside, outer ones first; None where they may have changed."""
        known = vars(self).get("_flat")  # which itself asks for the layers when it is made
        return known.inside if known is not None and known.is_of(self) else None

    def has_other_variables(self) -> bool:
        """Whether the variables may be others than at the last question."""
        functions = self._functions()
        known = functions.variables is not None and functions.tracked
        functions.tracked = True
        return not known

    def _functions(self) -> _Functions:
        """Returns the kept functions of the layers that the program calls, made again where the model has changed."""
        if self._program is None or is_compiled():
            return _NOTHING
        known = vars(self).get("_flat")
        if known is None or not known.is_of(self):
            known = _Functions(self, self._program)
            self.__dict__["_flat"] = known
        return known

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Returns the outputs; without what Keras does around a call where nobody can see the difference."""
        if self._program is not None and len(args) == 1 and {*options} <= {"training"} and not is_compiled():
            x, dtype = args[0], self._functions().dtype
            if dtype is not None and isinstance(x, np.ndarray) and x.dtype.name == self.inputs[0].dtype:
                x = keras.ops.convert_to_tensor(x)
            if device_of_flat_calls(x) is not None and x.dtype == dtype:
                return self.call(x, **options)
        return super().__call__(*args, **options)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Returns the outputs; on PyTorch by a list, and each output of a layer is freed once it has been read."""
        inputs = keras.ops.convert_to_tensor(inputs) if isinstance(inputs, np.ndarray) else inputs
        device = None if self._program is None or mask is not None else device_of_flat_calls(inputs)
        if device is None:
            return super().call(inputs, training=training, mask=mask)
        if keras.backend.standardize_dtype(inputs.dtype) != self.inputs[0].dtype:
            inputs = keras.ops.cast(inputs, self.inputs[0].dtype)
        return call_flat(device, self._program.run, inputs, self._functions().step_caller(bool(training)))

    def quantize(self, mode: Any = None, config: Any = None, filters: Any = None, **options: Any) -> None:
        """Quantizes the weights as Keras does; ValueError for float8 beside adapters, which Keras does not compute."""
        is_float8 = "float8" in (mode, getattr(config, "mode", None))
        if is_float8 and any(has_adapters(layer) for layer in layers_inside(self)):
            raise ValueError(
                f"{self.name} has LoRA's adapters, which Keras cannot quantize to float8. Quantize the result of "
                "keras_vit.training.merge_lora(model)."
            )
        super().quantize(mode, config=config, filters=filters, **options)

    def get_config(self) -> dict[str, Any]:
        """Returns the config for Keras's files: the model's own, its dtype, and what is frozen or has adapters."""
        with without_importing_tensorflow():
            dtype = keras.dtype_policies.serialize(quantized_policies(self) or self._policy)
        return {
            "config": self._config.to_dict(),
            "name": self.name,
            "dtype": dtype,
            "trainable": self.trainable,
            "frozen": _frozen(self),
            **training_config(self),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        config = dict(config)
        frozen = set(config.pop("frozen", ()))
        adapters, frozen_weights = config.pop("adapters", {}), config.pop("frozen_weights", ())
        model = cls(cls.config_type(**config.pop("config")), **config)
        for layer in layers_inside(model, include_self=False):
            if layer.path in frozen:
                layer.trainable = False
        restore_training(model, adapters, frozen_weights)
        return model

    def __repr__(self) -> str:
        """The kind and the facts of the model on one line; `config` has the rest."""
        return f"<{type(self).__name__} {describe(self._config, self.count_params())}>"


class _Reached(Exception):
    """Ends a run of a model; its argument is the output of the last layer."""


class ImageModel(ConfiguredModel):
    """A functional model that is made from a config and takes the images that the config says.

    Subclasses set, beside `config_type`, `default_name`, and `outputs_of`, a function from the config, symbolic images
    and a dtype policy to the outputs.
    """

    default_name: str
    outputs_of: Callable[..., Any]

    def __init__(
        self,
        config: Any,
        *,
        input_tensor: Any = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        self._require_config(config)
        # The global policy is looked up now: the model keeps it, whatever the global one is when it is loaded.
        policy = keras.dtype_policies.get(dtype)
        images, outputs, backbone = self._graph_of(config, input_tensor, policy)
        name = name or (variant_of(config) or self.default_name).lower().translate(str.maketrans("-/+", "___"))
        super().__init__(images, outputs, name=name)
        self._kept = types.SimpleNamespace(backbone=backbone)  # which Keras does not take for a layer
        self.set_up(config, policy)
        self.trainable = trainable

    @classmethod
    def _graph_of(cls, config: Any, input_tensor: Any, policy: Any) -> tuple[Any, Any, Any]:
        """Returns the symbolic images and outputs of a new model, and the model that it is built on; None for none."""
        if keras.config.image_data_format() == "channels_first":
            raise ValueError(
                "Models need images (height, width, channels), but Keras is set to 'channels_first'. Call "
                "keras.config.set_image_data_format('channels_last') first."
            )
        shape = (*((None, None) if config.dynamic else config.image_size), config.channels)
        if input_tensor is None:
            input_tensor = keras.Input(shape, name="images", dtype="float32")
        else:
            _check_input(input_tensor, shape, config.include_preprocessing)
        return input_tensor, cls.outputs_of(config, input_tensor, policy), None

    def set_up(self, config: Any, policy: Any) -> None:
        """Keeps the config and the dtype policy; images are checked by `call`, which says more than Keras."""
        super().set_up(config, policy)
        self._warned = False
        self.input_spec = None

    predict = _guarded(SharedModel.predict)
    fit = _guarded(keras.Model.fit)
    evaluate = _guarded(keras.Model.evaluate)
    train_on_batch = _guarded(keras.Model.train_on_batch)
    test_on_batch = _guarded(keras.Model.test_on_batch)
    predict_on_batch = _guarded(keras.Model.predict_on_batch)

    @contextlib.contextmanager
    def _kept_weights(self) -> Iterator[None]:
        """A context that on JAX restores the weights where something fails while Keras has them; it raises nothing."""
        if keras.backend.backend() != "jax":
            yield
            return
        values = [variable.value for variable in self.variables]
        try:
            yield
        except BaseException:
            if any(value.is_deleted() for value in values):  # training has given new ones to the next step
                self.jax_state_sync()
            else:
                for variable, value in zip(self.variables, values, strict=True):
                    variable.assign(value)
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args:
            self.check_values(args[0])
        return super().__call__(*args, **kwargs)

    def check_values(self, images: Any, where: Any = None) -> None:
        """Warns, once for a model, of pixels of 0..255 where it takes normalised images, and the reverse.

        Values are seen in arrays and in tensors in the processor's memory alone; a device would have to be read.
        `where` is what `_arguments.caller` returned, None for the caller of now.
        """
        flat = keras.tree.flatten(images)
        if self._warned or len(flat) != 1 or not hasattr(flat[0], "dtype"):
            return
        wrong = wrong_values(self._config, flat[0])
        if wrong is not None:
            self._warned = True
            advice = f"or take model.with_config(include_preprocessing={not self._config.include_preprocessing})"
            warn_caller(f"{self.name} {wrong}, {advice}.", where=where)

    def watch_values(self, data: Any) -> Any:
        """Data for Keras's loops, whose first batch is passed to `check_values` on its way to them."""
        return data if self._warned else watched(data, functools.partial(self.check_values, where=caller()))

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Returns as `ConfiguredModel.call`; ValueError for images that the model does not take."""
        self._check_images(inputs)
        if keras.backend.backend() == "tensorflow":
            inputs = keras.tree.map_structure(self._with_rank, inputs)
        return super().call(inputs, training=training, mask=mask)

    def _with_rank(self, images: Any) -> Any:
        known = getattr(getattr(images, "shape", None), "rank", 0) is not None
        return images if known else sys.modules["tensorflow"].ensure_shape(images, self.inputs[0].shape)

    def run(
        self,
        images: Any,
        replace: Mapping[str, Callable[..., Any]] | None = None,
        until: str | None = None,
        any_size: bool = False,
    ) -> Any:
        """Runs the model with other functions in place of some of its layers; ValueError for a layer that it lacks.

        Args:
            images: A tensor or an array `(batch, height, width, channels)`, or a symbolic tensor.
            replace: A dict from names of layers to functions `f(layer, *args, **options)`, which are called in place of
                `layer(*args, **options)`.
            until: The name of the last layer to run, whose output is returned; None for all layers.
            any_size: Whether images may have another size than the model's; the functions in `replace` must handle it.

        Examples:
            >>> small.run(images[:, :8, :8], {"pooling": lambda layer, tokens: tokens[:, 0]}, until="pooling").shape[0]
            4
        """
        replace = replace or {}
        names = {layer.name: layer.name for layer in self.layers}
        for name in (*replace, *([] if until is None else [until])):
            if name not in names:
                raise ValueError(f"{self.name} has no layer {name!r}.{did_you_mean(name, names)}")
        if not any_size:
            self._check_images(images)

        def call(layer: Any, *args: Any, **options: Any) -> Any:
            made = replace[layer.name](layer, *args, **options) if layer.name in replace else layer(*args, **options)
            if layer.name == until:
                raise _Reached(made)
            return made

        try:
            return call_layers(self, images, call)
        except _Reached as end:
            return end.args[0]

    def _check_images(self, images: Any, batch_of_none: bool = True) -> None:
        """Raises ValueError, with what to do, unless images have the shape that the model takes."""
        config = self._config
        flat = keras.tree.flatten(images)  # Keras also takes the one input in a list or a dictionary
        shape = getattr(flat[0], "shape", None) if len(flat) == 1 else None
        if getattr(shape, "rank", 0) is None:  # TensorFlow's, as of `numpy_function`: known when there are values
            return
        given = tuple(shape or ())
        if len(given) != 4:
            raise ValueError(
                f"{self.name} needs images (batch, height, width, channels), but the shape {given} was given. A single "
                "image needs a batch axis: images[None]."
            )
        if given[0] == 0 and not batch_of_none:
            raise ValueError(f"{self.name} needs at least one image, but the shape {given} was given.")
        if given[3] is not None and given[3] != config.channels:
            advice = f"For these images, use model.with_config(channels={given[3]})."
            if given[1] == config.channels:
                advice = "The channels seem to come first: move them with keras.ops.moveaxis(images, 1, -1)."
            raise ValueError(
                f"{self.name} needs images with {config.channels} channels on the last axis, but the shape {given} was "
                f"given. {advice}"
            )
        size = tuple(known or wanted for known, wanted in zip(given[1:3], config.image_size, strict=True))
        if not config.dynamic and size != config.image_size:
            raise ValueError(
                f"{self.name} needs images of {_spell(config.image_size)} pixels, but the shape {given} was given. "
                f"Resize them with model.preprocess(images), or use model.with_image_size({size}) or 'dynamic'."
            )

    def preprocess(self, images: Any) -> Any:
        """Returns pictures as `model.predict` takes them: read, resized, cropped and normalised as its publisher does.

        `images` are one or several paths, file objects, PIL images, arrays or tensors (see
        `keras_vit.preprocessing.Pipeline.resized`, also for errors). The result is float32
        `(batch, height, width, channels)`. Also works in `tf.data`: `data.map(model.preprocess)`.

        Examples:
            >>> small.preprocess("photo.jpg").shape
            (1, 8, 8, 3)
        """
        config = self._config
        normalize = not config.include_preprocessing
        return config.pipeline(images, config.channels, normalize=normalize)

    def with_config(
        self, *, name: str | None = None, dtype: Any = None, fresh: str | Iterable[str] = (), **changes: Any
    ) -> Self:
        """Returns a new model with some fields of the config changed and the same weights; it is not compiled.

        Position and patch embeddings are resized. Another number of `classes` gets a new, zero-initialised head. For
        another number of `channels`, the first kernel is adapted by timm's rule: the sum over RGB for one channel,
        otherwise RGB repeated and scaled. Name, dtype policy, adapters and frozen layers stay; reinitialised layers
        train, unless the whole model is frozen. A model for segmentation, detection or depth can change only its image
        size and the fields in `config.SETTINGS`. A quantized model can change only its name and these fields.

        Args:
            name: Name of the new model; None: the same name.
            dtype: Dtype policy of the new model; None: the same policy.
            fresh: Names of layers to reinitialise, such as `"head"`.
            changes: New values of fields, such as `image_size=384` (`"dynamic"` for any size at run time) or
                `classes=37`.

        TypeError or ValueError if a field or value is invalid, or weights do not fit or would be lost without `fresh`.
        """
        config = changed_config(self._config, changes)
        fresh = {fresh} if isinstance(fresh, str) else set(fresh)
        reinitialised = layers_to_reinitialise(self._config, config, fresh)
        policies = quantized_policies(self)
        changed = {*changed_fields(self._config, config)} - {*config.SETTINGS}
        if policies is not None and (reinitialised or changed or dtype is not None):
            raise ValueError(f"The weights of {self.name} are quantized. Change the model before quantizing it.")
        options = {"name": name or self.name, "dtype": dtype or policies or self._policy, "trainable": self.trainable}
        # Other weights are assigned afterwards, and heads start with zeros in any case.
        draws = bool({*reinitialised} - {"head", "head_dist"})
        with contextlib.nullcontext() if draws else skip_initialization():
            model = type(self)(config, **options)
        unknown = sorted(fresh - {layer.name for layer in model.layers})
        if unknown:
            names = ", ".join(layer.name for layer in model.layers if layer.weights)
            raise ValueError(f"fresh must name layers of {self.name}, one of {names}, but {unknown} were given.")
        copy_state(self, model, reinitialised)
        return model

    def with_image_size(self, image_size: int | tuple[int, int] | str) -> Self:
        """A new model for images of another size in pixels, or `"dynamic"` (see `with_config`)."""
        return self.with_config(image_size=image_size)

    def optimize_for_inference(self, *, verbose: bool = True) -> Self:
        """Returns a new model with the same outputs that is faster at inference. `verbose` prints the steps taken.

        - `class_token_only`: with `pooling="token"`, the last block computes only the tokens that heads read. Use
          `model.with_config(class_token_only=False)` for `feature_extractor` and `keras_vit.inspection`.
        - `stem_folded`, or `folded` for a `BiT`: the kernels of the ResNet are standardised permanently.
        - `preprocessing_folded`: normalisation in the model is merged into the patch embedding, in float32.
        - `jit_compile`: in TensorFlow on CPUs, for images of one size, `predict` is compiled with XLA, unless
          `KERAS_VIT_XLA=0`. It is not saved, and `compile` resets it.
        - `kernels_packed`: in PyTorch on AMD CPUs with AVX-512, or with `KERAS_VIT_ONEDNN=1`, dense layers keep a
          second copy of their kernels in oneDNN's order, made again when they change, except through `.data`. It is not
          saved or copied; `model.kernels_packed = False` frees the memory.

        In float32, outputs differ by less than 1e-4. `.npz` and `.safetensors` files cannot hold folded weights.
        """
        steps = inference_steps(self)
        changes: dict[str, Any] = {step.name: True for step in steps if step.obstacle is None and step.is_field}
        model = self.with_config(**changes)
        for step in steps:
            if not step.is_field:  # how the model is run
                setattr(model, step.name, step.obstacle is None)
        if verbose:
            print(f"{self.name}, optimized for inference:")
            for step in steps:
                done = step.obstacle is None
                print(f"  {step.name}: {step.effect}" if done else f"  no {step.name}: {step.obstacle}")
            if any(has_adapters(layer) for layer in layers_inside(self)):
                print("  LoRA's adapters stay beside the kernels; keras_vit.training.merge_lora(model) adds them.")
        return model

    @property
    def kernels_packed(self) -> bool:
        """Whether dense layers keep a copy of their kernels in oneDNN's order; ValueError if set where it cannot be."""
        kernels = packable_kernels(self)
        return bool(kernels) and all(map(is_packed, kernels))

    @kernels_packed.setter
    def kernels_packed(self, value: bool) -> None:
        """Packs the kernels, or frees the memory of packed kernels; errors as in the property."""
        check_flag("kernels_packed", value)
        kernels = packable_kernels(self)
        if value and not kernels:
            raise ValueError(
                f"kernels_packed=True needs float32 kernels without adapters, in PyTorch on a CPU, but {self.name} has "
                "none. Leave it False."
            )
        if value:
            pack_kernels(kernels)
        elif keras.backend.backend() == "torch":  # of all weights: adapters may have come since they were packed
            unpack_kernels(weight.value for weight in self.weights)

    def name_classes(self, class_names: Iterable[str] | None) -> None:
        """Sets `config.class_names` in the order of the head's outputs, or None; ValueError for another number."""
        self._config = self._config.replace(class_names=class_names)


def pixel_scaling(pipeline: Pipeline) -> tuple[list[float], list[float]]:
    """The factors and the offsets that make normalised pixels of 0..255: lists, of one number or one each."""
    mean, std = np.broadcast_arrays(*map(np.atleast_1d, (pipeline.mean, pipeline.std)))
    return (1 / (255 * std)).tolist(), (-mean / std).tolist()


def normalization(pipeline: Pipeline, policy: Any) -> keras.layers.Layer:
    """Returns the layer that normalises pixels of 0..255 as the pipeline does, computing in float32 or better."""
    scale, offset = pixel_scaling(pipeline)
    if len({*scale}) == len({*offset}) == 1:
        scale, offset = scale[0], offset[0]
    return keras.layers.Rescaling(scale, offset, dtype=float32_or_better(policy.compute_dtype), name="preprocessing")


def _check_input(tensor: Any, shape: tuple[int | None, ...], takes_pixels: bool) -> None:
    """Raises ValueError unless a tensor is a `keras.Input` of this shape and, except for pixels, of floats."""
    if not isinstance(tensor, keras.KerasTensor) or keras.utils.get_source_inputs(tensor)[0] is not tensor:
        raise ValueError(
            f"input_tensor must be a tensor from keras.Input(), but {type(tensor).__name__} was given. To put the "
            "model behind other layers, call it on their output: model(x)."
        )
    if tuple(tensor.shape[1:]) != shape:
        raise ValueError(f"input_tensor must have the shape (batch, {_spell(shape)}), but {tensor.shape} was given.")
    if not takes_pixels and not keras.backend.is_float_dtype(tensor.dtype):
        raise ValueError(f"input_tensor must have a float dtype for normalised images, but has {tensor.dtype}.")


def _frozen(model: keras.Model) -> list[str]:
    """The sorted paths of the layers that do not train, without those inside a listed one."""
    paths = {layer.path for layer in layers_inside(model, include_self=False) if layer.path and not layer.trainable}
    return sorted(path for path in paths if not any(path.startswith(f"{outer}/") for outer in paths))


def _spell(shape: tuple[int | None, ...]) -> str:
    return " x ".join("any" if n is None else str(n) for n in shape)
