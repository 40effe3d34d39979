"""What layers share: declared arguments, dtype policies, first values of weights, dropout; Keras's on our `ops`."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ClassVar, TypeVar, get_origin

import keras
import numpy as np
from keras import initializers, ops, tree

from keras_vit._arguments import DType, Shape, Tensor, aligned_zeros
from keras_vit._keras import is_compiled, layers_inside
from keras_vit._options import Check, check_of
from keras_vit.layers.fast.flat import (
    FlatLayer,
    Noting,
    NotingClass,
    call_flat,
    device_of_flat_calls,
    flat,
    may_be_flat,
    may_run_flat,
)
from keras_vit.layers.ops import activate, activate_in_place, dense, dense_of_all, layer_normalization, rematerialized

C = TypeVar("C", bound=type[keras.layers.Layer])


def registered(cls: C) -> C:
    """Class decorator of all layers: registers the class for Keras's files as `keras_vit>name` and returns it."""
    may_run_flat(cls)
    return keras.saving.register_keras_serializable(package="keras_vit")(cls)


class LayerClass(NotingClass):
    """The class of layers' classes."""

    fields: dict[str, tuple[str, Check]]
    signature: inspect.Signature

    @property
    def __signature__(cls) -> inspect.Signature:  # of the class; an attribute would be the signature of calls, too
        if not cls.fields or cls.__init__ is not BaseLayer.__init__:
            raise AttributeError
        return cls.signature


class BaseLayer(Noting, keras.layers.Layer, metaclass=LayerClass):
    """A layer whose arguments are declared as fields, as in a dataclass: `heads: int`, `dropout: Rate = 0.0`.

    The types check the values, as in `Options`. They are kept as attributes and stand in the config. A field `use_bias`
    is the argument `bias`, for layers where a weight or an inner layer has that name.
    """

    fields: ClassVar[dict[str, tuple[str, Check]]] = {}  # by argument: the attribute, and its check
    drops: ClassVar[tuple[str, ...]] = ()  # the rates of dropout that the layer draws seeds for
    takes_training = False  # whether `call` does

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__module__.startswith("keras_vit."):  # annotations of a user's layer are hints, as everywhere
            return
        own = {name: of for name, of in inspect.get_annotations(cls).items() if get_origin(of) is not ClassVar}
        if own and "__init__" not in vars(cls):
            cls.fields = cls.fields | {name.removeprefix("use_"): (name, check_of(of)) for name, of in own.items()}
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            parameters = [
                inspect.Parameter(argument, kind, default=getattr(cls, name, inspect.Parameter.empty))
                for argument, (name, _) in cls.fields.items()
            ]
            rest = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
            cls.signature = inspect.Signature([*parameters, rest])

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not self.fields:  # also one of Keras's layers, with arguments of its own
            super().__init__(*args, **kwargs)
            return
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        super().__init__(**bound.arguments.pop("kwargs"))
        for argument, (name, check) in self.fields.items():
            setattr(self, name, check(argument, bound.arguments[argument]))
        if self.drops:
            self.seed_generator = SeedGenerator() if any(getattr(self, name) for name in self.drops) else None
        self._check_together()

    def _check_together(self) -> None:
        pass  # Layers whose arguments have to fit each other raise ValueError here.

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Returns what the layer computes; flat, without Keras's bookkeeping, where nobody can see the difference."""
        dtypes = {one.dtype for one in (*args, *options.values()) if hasattr(one, "dtype")}
        # Where the caller does not say whether it trains, only Keras knows.
        asks = bool(args) and options.get("training") is not None
        if asks and is_compiled():  # a program needs no flat layers to leave Keras's bookkeeping out
            if may_be_flat(self) and {*map(keras.backend.standardize_dtype, dtypes)} <= {self.compute_dtype, "bool"}:
                return self.call(*args, **{k: v for k, v in options.items() if k != "training" or self.takes_training})
            return super().__call__(*args, **options)
        device = device_of_flat_calls(args[0]) if asks else None
        function = None if device is None else flat(self)
        if function is None or not dtypes <= function.dtypes:
            return call_flat(None, super().__call__, *args, **options)
        return call_flat(device, function, *args, **options)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **{name: getattr(self, kept) for name, (kept, _) in self.fields.items()}}

    def draw(self, training: bool | None, *rates: float) -> list[Any]:
        """A newly drawn seed for each rate; None for each that is 0, and for all unless `training`."""
        if not training:
            return [None] * len(rates)
        return [self.seed_generator.next() if rate else None for rate in rates]


class SameShape(BaseLayer):
    """A layer whose output has the shape of the first argument of `call`."""

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape


class CompositeLayer(BaseLayer):
    """A layer made of layers, which also reloads after `quantize()`.

    Keras rebuilds a saved layer from its config. The config of a composite layer has to tell which of its inner
    layers were quantized; a `DTypePolicyMap` from their paths to their policies does, provided that every composite
    layer inside is created with `dtype=self.dtype_policy` and every other with `policy_at`.
    """

    def get_config(self) -> dict[str, Any]:
        """Returns the config; where layers inside are quantized, its "dtype" is a map of their dtype policies."""
        config = super().get_config()
        policies = quantized_policies(self)
        if policies is not None:
            config["dtype"] = keras.dtype_policies.serialize(policies)
        return config

    def inner_dense(
        self,
        name: str,
        input_shape: Shape,
        units: Any,
        bias: Any = "zeros",
        use_bias: bool = True,
        kernel: str = "glorot_uniform",
    ) -> "Dense":
        """Returns a new, built dense layer for this one to keep as attribute `name`."""
        first = {"kernel_initializer": initializer(kernel), "bias_initializer": bias}
        policy = policy_at(self.dtype_policy, f"{self.path}/{name}")
        layer = Dense(units, use_bias=use_bias, **first, dtype=policy, name=name)
        layer.build(input_shape)
        return layer

    def inner_norm(self, name: str, input_shape: Shape, epsilon: float) -> "LayerNormalization":
        """A new, built layer normalisation over the last axis for this layer to keep as attribute `name`."""
        layer = LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name=name)
        layer.build(input_shape)
        return layer


class ResidualBlock(CompositeLayer):
    """A block that can be computed again for its gradients (`remat`), with the same seeds of dropout both times."""

    remat = False

    def draw_inner_seeds(self, training: bool | None, *parts: Any) -> list[Any]:
        """The seeds to pass to each inner layer; None for one that is to draw for itself."""
        if not (self.remat and training):
            return [None] * len(parts)
        return [part.draw_seeds(training) if hasattr(part, "draw_seeds") else None for part in parts]

    def compute(self, function: Callable[..., Any], x: Any, *inputs: Any, training: bool | None) -> Any:
        """Returns `function(x, *inputs)`; in training with `remat`, it is computed again for its gradients."""
        # Seeds have to be among them: both runs must drop the same units.
        if not (self.remat and training):
            return function(x, *inputs)
        structure = list(inputs)

        def from_tensors(x: Any, *tensors: Any) -> Any:
            following = iter(tensors)
            given = tree.map_structure(lambda value: None if value is None else next(following), structure)
            return function(x, *given)

        # What a rematerialised function reads has to be its arguments, which are tensors.
        return rematerialized(x, from_tensors, *(value for value in tree.flatten(structure) if value is not None))


def activated(layer: Any, x: Any, activation: str, training: bool | None) -> Any:
    """The activation, a checked name of `ops.activate`, of what `layer` returns for `x`."""
    y = layer(x, training=training)
    # On CPUs, new memory for an activation takes more time than its arithmetic.
    return activate_in_place(y, activation) if isinstance(layer, FlatLayer) else activate(y, activation)


def not_none(**options: Any) -> dict[str, Any]:
    """The options that are not None. What somebody has put in a layer's place may not know the others."""
    return {name: value for name, value in options.items() if value is not None}


def quantized_policies(layer: keras.layers.Layer) -> keras.dtype_policies.DTypePolicyMap | None:
    """Returns the dtype policies of the quantized layers inside `layer`, by path; None where there are none."""
    policies = {inner.path: inner.dtype_policy for inner in layers_inside(layer) if inner.quantization_mode is not None}
    if not policies:
        return None
    policy = layer.dtype_policy
    default = policy.default_policy if isinstance(policy, keras.dtype_policies.DTypePolicyMap) else policy
    result = keras.dtype_policies.DTypePolicyMap(default_policy=default.name)
    for path, quantized in policies.items():
        result[path] = quantized
    return result


def policy_at(policy: Any, path: str) -> Any:
    """Returns the dtype policy of the layer at `path`: that of a map there or its default, else `policy` itself."""
    # Keras 3.15 saves no layer that has the map.
    if not isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        return policy
    return policy[path] if path in policy else policy.default_policy


def has_adapters(layer: keras.layers.Layer) -> bool:
    """Whether a layer has LoRA's adapters."""
    return getattr(layer, "lora_enabled", False)


def weights_by_path(model: keras.Model) -> dict[str, Any]:
    """The weights of a model by path, wherever it was built: such as `block_0/attention/query/kernel`."""
    return {_path_in(layer, weight.path): weight for layer in model.layers for weight in layer.weights}


def _path_in(layer: keras.layers.Layer, path: str) -> str:
    within = f"{path}/".startswith(f"{layer.path}/")
    return layer.name + path.removeprefix(layer.path) if within else f"{layer.name}/{path}"


def layers_by_path(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """Returns the built layers of a model, with those inside them, by path, as `"block_0/attention/query"`.

    Outer ones come first. As in `weights_by_path`, a path does not depend on where the model was built.
    """
    return {
        _path_in(layer, inner.path): inner
        for layer in model.layers
        for inner in layers_inside(layer)
        if inner.path  # None before a layer is built
    }


# Of the context, not of the process: other threads and other coroutines initialise their models meanwhile.
_skipped: ContextVar[bool] = ContextVar("keras_vit_skip_initialization", default=False)


@contextlib.contextmanager
def skip_initialization() -> Iterator[None]:
    """Returns a context in which new weights have undefined values and take no memory until they are assigned.

    For models whose weights will all be assigned: drawing 86 million random numbers takes seconds. Configs do not
    change, so clones of the model are initialised. Other threads and coroutines are not affected.

    Examples:
        >>> with layers.skip_initialization():
        ...     unfilled = keras_vit.VisionTransformer(config)  # every weight is to be assigned now
    """
    token = _skipped.set(True)
    try:
        yield
    finally:
        _skipped.reset(token)


def initializer(name: str, stddev: float = 0.02) -> initializers.Initializer:
    """The initializer of a name, for "normal" with that deviation."""
    if _skipped.get():
        return _Unwritten(name, stddev)
    return initializers.RandomNormal(stddev=stddev) if name == "normal" else initializers.get(name)


@keras.saving.register_keras_serializable(package="keras_vit")
class _Unwritten(initializers.Initializer):
    """Whatever is there, in pages that the system has not handed out yet: each backend has its own way to that.

    Keras's own layers carry their initializers in their configs: a copy of them has the one that this stands for.
    """

    def __init__(self, name: str, stddev: float) -> None:
        self.name = name
        self.stddev = stddev

    def __call__(self, shape: tuple[int, ...], dtype: DType = None) -> Tensor:
        """Returns a tensor of any values, whose memory is not touched before it is written where that can be."""
        backend = keras.backend.backend()
        if backend == "tensorflow":
            import tensorflow as tf

            return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=False)
        if backend == "jax" and dtype == "float32":
            # With a dtype, JAX takes an aligned array as it is; without, it copies it.
            return keras.ops.convert_to_tensor(aligned_zeros(shape, dtype), dtype)
        return keras.ops.empty(shape, dtype)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "stddev": self.stddev}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> initializers.Initializer:
        """The initializer that this one stands for; itself again inside `skip_initialization`."""
        return initializer(**config)


def assign(variable: keras.Variable, values: np.ndarray) -> None:
    """Writes float32 values of the same shape into a weight; on PyTorch with one copy less than `Variable.assign`.

    `variable` is a Keras variable. Nobody else may change `values`: JAX keeps the array instead of copying it.

    Examples:
        >>> layers.assign(keras.Variable(np.zeros(2, "float32")), np.ones(2, "float32"))
    """
    if keras.backend.backend() == "torch":
        import torch

        with torch.no_grad():
            variable.value.copy_(torch.from_numpy(values))
    else:
        variable.assign(values)


class SeedGenerator(keras.random.SeedGenerator):
    """A seed generator whose state is optional in weight files: dropout may be switched on for saved weights."""

    def load_own_variables(self, store: Any) -> None:
        """Loads the state from a weight file, where that has one."""
        if "0" in store:
            super().load_own_variables(store)  # ty: ignore[missing-attribute]


class DrawnSeed(keras.random.SeedGenerator):
    """One seed that has been drawn already, in the form that `keras.random` takes.

    A rematerialised function runs twice, and both runs must drop the same units: the seed is drawn outside it.
    """

    def __init__(self, seed: Any) -> None:
        # Not calling super().__init__: it would create a variable, and this object only carries a value.
        self._seed = seed

    def next(self, ordered: bool = True) -> Any:
        """The one seed, at each call."""
        return self._seed


def dropout(x: Tensor, rate: float, seed: Any) -> Tensor:
    """Returns `x` with elements set to zero with probability `rate`, the others divided by `1 - rate`.

    The seed has been drawn already; `x` itself where it is None.
    """
    return x if seed is None else x * _mask(ops.shape(x), rate, seed, x.dtype)


def drop_path(x: Tensor, rate: float, seed: Any) -> Tensor:
    """Returns `x` with whole examples set to zero with probability `rate`, the others divided by `1 - rate`.

    The seed has been drawn already; `x` itself where it is None.
    """
    if seed is None:
        return x
    shape = (ops.shape(x)[0], *(1 for _ in x.shape[1:]))
    return x * _mask(shape, rate, seed, x.dtype)


def _mask(shape: Any, rate: float, seed: Any, dtype: Any) -> Any:
    """Zeros with probability `rate` and `1 / (1 - rate)` elsewhere, of a shape and dtype."""
    keep = keras.random.uniform(shape, dtype="float32", seed=DrawnSeed(seed)) >= rate
    return ops.cast(keep, dtype) * (1 / (1 - rate))


def tensor_of(weight: Any, x: Any) -> Any:
    """Returns a weight, a variable or (of a kernel with adapters) a tensor, as a tensor in the dtype of `x`."""
    if weight is None or weight.dtype is x.dtype:  # a tensor of PyTorch: a variable's dtype is a name
        return weight
    # Keras casts weights in a scope that its call of a layer opens, and a flat layer is not called by it.
    value = weight.value if isinstance(weight, keras.Variable) else weight
    return value if value.dtype == x.dtype else ops.cast(value, x.dtype)


_FACTORS = ("lora_kernel_a", "lora_kernel_b")
_SCALE = "lora_scale"  # alpha / rank


@registered
class Dense(keras.layers.Dense, BaseLayer):
    """`keras.layers.Dense`, whose LoRA adapters are saved beside the kernel and loaded.

    Keras saves the sum of kernel and adapters, and sets both factors to zero when it loads weights into a layer with
    adapters: they would never train again.

    Input: `(batch, ..., D)`. Output: `(batch, ..., units)`.
    """

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """The product with the kernel, adapters included, plus the bias, through the activation if any."""
        y = dense(inputs, tensor_of(self.kernel, inputs), tensor_of(self.bias, inputs))
        return y if self.activation is keras.activations.linear else self.activation(y)

    def enable_lora(self, rank: int, lora_alpha: float | None = None, *args: Any, **options: Any) -> None:
        """Adds LoRA adapters of a rank; `lora_alpha` None: that of the layer's config, or the rank."""
        # Keras 3.15 forgets the `lora_alpha` of a layer that is made from a config.
        super().enable_lora(rank, self.lora_alpha if lora_alpha is None else lora_alpha, *args, **options)

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """Quantizes the kernel, as Keras does; NotImplementedError for a subclass if `type_check`."""
        # Keras refuses subclasses of its own class, because they might compute something else.
        super().quantize(mode, type_check=type_check and type(self) is not Dense, config=config)

    def save_own_variables(self, store: Any) -> None:
        """Writes kernel and bias into `store`, without adapters, and adapters beside them with alpha / rank."""
        if not self.lora_enabled:
            super().save_own_variables(store)
            return
        self.lora_enabled = False  # or Keras would add the adapters to the kernel
        try:
            super().save_own_variables(store)
        finally:
            self.lora_enabled = True
        for name in _FACTORS:
            store[name] = getattr(self, name)
        store[_SCALE] = np.asarray(self.lora_alpha / self.lora_rank, "float64")

    def load_own_variables(self, store: Any) -> None:
        """Loads the weights; where this layer has no adapters, those of the file are added to the kernel."""
        values = {name: store[name] for name in store.keys()}
        factors = [values.pop(name) for name in _FACTORS if name in values]
        scale = values.pop(_SCALE, None)
        if self.lora_enabled:
            if [factor.shape for factor in factors] != [tuple(getattr(self, name).shape) for name in _FACTORS]:
                found = f"those of rank {factors[0].shape[-1]}" if factors else "none"
                raise ValueError(
                    f"{self.path} has LoRA adapters of rank {self.lora_rank}, but the file has {found}. Load weights "
                    "without adapters before add_lora, and a file of save_adapters with training.load_adapters."
                )
        elif factors and self.quantization_mode is not None:
            raise ValueError(
                f"The file has LoRA adapters for {self.path}, whose kernel is quantized, so that they cannot be added "
                "to it. Call add_lora with the same rank before, or training.load_adapters(model, path)."
            )
        elif factors:
            values["0"] = values["0"] + (float(scale) * (factors[0] @ factors[1])).astype("float32")
        super().load_own_variables(values)
        for name, value in zip(_FACTORS, factors if self.lora_enabled else (), strict=False):
            getattr(self, name).assign(value)
            self.lora_alpha = float(scale) * self.lora_rank


def outputs_of_all(layers: list[Any], x: Any, training: bool | None) -> list[Any]:
    """Returns what each of several projections makes of `x`: by one product where all are flat and that is quicker."""
    plain = keras.activations.linear
    if all(isinstance(one, FlatLayer) and type(one.layer) is Dense and one.activation is plain for one in layers):
        weights = [[tensor_of(weight, x) for weight in (one.kernel, one.bias)] for one in layers]
        return dense_of_all(x, *map(list, zip(*weights, strict=True)))
    return [layer(x, training=training) for layer in layers]


@registered
class LayerNormalization(keras.layers.LayerNormalization, BaseLayer):
    """`keras.layers.LayerNormalization` over the last axis, right to the second derivative on every backend.

    Input: `(batch, ..., D)`. Output: the same shape.
    """

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """The normalised inputs; by Keras where the options are not those of a plain layer normalisation."""
        if self.axis not in (-1, [-1]) or self.rms_scaling or not (self.center and self.scale):
            return keras.layers.LayerNormalization.call(self, inputs)
        return layer_normalization(inputs, tensor_of(self.gamma, inputs), tensor_of(self.beta, inputs), self.epsilon)
