"""The private parts of Keras that this package uses, all in this file, under names for the rest of the package.

Each has its reason beside it; `tests/test_keras_internals.py` holds every one to what a new Keras does, and those of
PyTorch to what a new PyTorch does.
"""

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.utils.module_utils import tensorflow

from keras_vit._arguments import Tensor
from keras_vit._files import replacing

# Keras asks `tensorflow` whether TensorFlow is there, and so imports it, when a seed is set or a model saved. Without
# it, JAX and PyTorch wait seconds for a framework that they do not use.
_hidden: ContextVar[bool] = ContextVar("keras_vit_tensorflow_is_hidden", default=False)
_LazyModule: Any = type(tensorflow)


class _HiddenInContext(_LazyModule):
    """What Keras asks whether TensorFlow is there: not for a thread that is inside `without_importing_tensorflow`."""

    @property
    def available(self) -> bool:
        return not _hidden.get() and super().available


tensorflow.__class__ = _HiddenInContext  # once: threads see their own context, and nothing is set back


@contextlib.contextmanager
def without_importing_tensorflow() -> Iterator[None]:
    """Within it, TensorFlow is missing for Keras on the other backends, where the program has not imported it."""
    # Nothing can be of one of its types then, which is what Keras asks for, and nothing can depend on its seed.
    token = _hidden.set(keras.backend.backend() != "tensorflow" and "tensorflow" not in sys.modules)
    try:
        yield
    finally:
        _hidden.reset(token)


def set_random_seed(seed: int) -> None:
    """Seeds as `keras.utils.set_random_seed`, TensorFlow only where the program has imported it."""
    with without_importing_tensorflow():
        keras.utils.set_random_seed(seed)


def no_gradients() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which PyTorch keeps nothing for a backward pass; other backends never do by themselves."""
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def layers_inside(layer: keras.layers.Layer, include_self: bool = True) -> list[keras.layers.Layer]:
    """All layers inside a layer or model, outer ones first, with itself before them if `include_self`."""
    # Without it, freezing, adapters and quantization do not reach layers inside layers.
    return layer._flatten_layers(include_self=include_self)


def own_trainable_weights(layer: keras.layers.Layer) -> list[keras.Variable]:
    """A layer's own weights that are made to be trained, frozen or not; not those of layers inside it."""
    # Without it, what LoRA froze stays frozen when its layer trains.
    return layer._trainable_variables


def layout_of(variable: keras.Variable) -> Any:
    """The layout by which a variable is spread over devices; None where there is one device or no layouts."""
    # Without it, momentum is copied to each device.
    return getattr(variable, "_layout", None)


def has_hidden_state() -> bool:
    """Whether a call in PyTorch is more than it says: there are hooks for all modules, or a scope has other weights."""
    from torch.nn.modules import module

    # Without it, hooks for all modules miss the layers inside layers, and `stateless_call` gets a model's own weights.
    return module._has_any_global_hook() or in_stateless_scope()


def is_compiled() -> bool:
    """Whether `torch.compile` makes a program of what is called."""
    if keras.backend.backend() != "torch":
        return False
    import torch

    return torch.compiler.is_compiling()


def clear_losses(layer: keras.layers.Layer) -> None:
    """Forgets the losses that an earlier call of a layer or of one inside it has left."""
    # Keras does it in each call. Without it, losses of a call stay after what made them is gone.
    layer._clear_losses()


def own_metrics(model: keras.Model) -> list[keras.Metric]:
    """The metrics of `compile`, without those of layers inside."""
    # Without it, each update asks every layer three times.
    return model._get_own_metrics()


def is_rematerialized(layer: keras.layers.Layer) -> bool:
    """Whether a layer was made in a `keras.RematScope`."""
    # Without it, a flat call would not compute it again for its gradients.
    return layer._remat_mode is not None


def raw_value(variable: keras.Variable) -> Any:
    """The tensor of a variable in its own dtype, also where Keras would cast it."""
    # Without it, the tensor is read and cast again in every call.
    return variable._value


def raw_values(variables: list[keras.Variable]) -> list[Any]:
    """The tensors of variables in their own dtypes."""
    # Without it, each is read by a call, and there are hundreds.
    return [variable._value for variable in variables]


def is_recorded() -> bool:
    """Whether a `TorchDispatchMode` sees the operations of PyTorch: it may keep what they return."""
    from torch.utils._python_dispatch import is_in_torch_dispatch_mode

    # Without it, what such a mode keeps is written over.
    return is_in_torch_dispatch_mode()


def has_tangents() -> bool:
    """Whether PyTorch differentiates forwards: tensors may have tangents."""
    import torch

    # Without it, each tensor is asked for one.
    return torch.autograd.forward_ad._current_level >= 0


def foreach(operation: str, *args: Any, **options: Any) -> Any:
    """Returns what an operation of PyTorch, such as `"mul_"`, makes of lists of tensors."""
    import torch

    # Without it, an update has thousands of calls.
    return getattr(torch, f"_foreach_{operation}")(*args, **options)


def has_onednn_product() -> bool:
    """Whether this PyTorch has `onednn_product` and `onednn_kernel`."""
    import torch

    return all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))


def onednn_product(x: Any, kernel: Any, bias: Any = None) -> Any:
    """`x @ kernel + bias` for float32 tensors `(..., D)` and `(D, units)` on a CPU, by oneDNN."""
    return onednn_product_of_packed(x, kernel.t(), bias)


def onednn_kernel(kernel: Any) -> Any:
    """Returns a copy of a float32 kernel `(D, units)` in oneDNN's own order, for `onednn_product_of_packed`."""
    import torch

    # Without it, oneDNN sorts a kernel in every call, a tenth of the time of ViT-B.
    return torch.ops.mkldnn._reorder_linear_weight(kernel.detach().t().contiguous())


def onednn_product_of_packed(x: Any, kernel: Any, bias: Any = None) -> Any:
    """Returns as `onednn_product`, with a copy that `onednn_kernel` made, which has no gradients."""
    import torch

    # What programs of `torch.compile` call. Without it, products take twice as long on processors not made by Intel.
    return torch.ops.mkldnn._linear_pointwise(x, kernel, bias, "none", [], "")


def has_graph(layer: keras.layers.Layer) -> bool:
    """Whether a layer is a functional model, or a sequential one that is built: then `call_layers` can run it."""
    return hasattr(_graph(layer), "_run_through_graph")


def _graph(model: Any) -> Any:
    """Returns a sequential model as a functional one, None if it is not built; any other model as it is."""
    if not isinstance(model, keras.Sequential):
        return model
    try:
        return keras.Model(model.inputs, model.outputs[0])
    except (AttributeError, ValueError):  # it is not built
        return None


@dataclasses.dataclass(frozen=True)
class Step:
    """A call of a layer in the graph of a model; values have places, and `done` are those that nobody reads again."""

    layer: Any
    reads: tuple[int, ...]
    structure: Any  # of the arguments by position and by name; None where what is read are the former
    writes: tuple[int, ...]
    done: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """The graph of a model of one input as a list of steps; `values` at the start, and where input and outputs lie."""

    steps: list[Step]
    values: list[Any]
    input: int
    outputs: Any

    def run(self, x: Any, call: Callable[..., Any]) -> Any:
        """Returns the outputs for `x`, with `call(number, layer, args, options)` for each step."""
        values = [*self.values]
        values[self.input] = x
        for number, step in enumerate(self.steps):
            read = [values[place] for place in step.reads]
            args, options = (read, {}) if step.structure is None else keras.tree.pack_sequence_as(step.structure, read)
            y = call(number, step.layer, args, options)
            if len(step.writes) == 1:
                values[step.writes[0]] = y
            else:
                for place, value in zip(step.writes, keras.tree.flatten(y), strict=True):
                    values[place] = value
            for place in step.done:
                values[place] = None
        outputs = self.outputs
        return values[outputs] if isinstance(outputs, int) else keras.tree.map_structure(values.__getitem__, outputs)


def program_of(model: keras.Model) -> Program:
    """Returns the program of a model that `has_graph`."""
    values: list[Any] = []
    places: dict[int, int] = {}
    calls: list[Any] = []
    kept = []  # so that no two have the same id

    def place_of(value: Any) -> int:
        """Returns the place of a value: a symbolic tensor's, which is None at the start, or a new one of a constant."""
        if id(value) not in places or not isinstance(value, keras.KerasTensor):
            places[id(value)] = len(values)
            values.append(None if isinstance(value, keras.KerasTensor) else value)
            kept.append(value)
        return places[id(value)]

    def record(layer: Any, *args: Any, **options: Any) -> Any:
        reads = tuple(map(place_of, keras.tree.flatten((args, options))))
        simple = not options and len(reads) == len(args)
        y = layer.compute_output_spec(*args, **options)
        writes = tuple(map(place_of, keras.tree.flatten(y)))
        calls.append((layer, reads, None if simple else (args, options), writes))
        return y

    (start,) = map(place_of, model.inputs)
    outputs = keras.tree.map_structure(place_of, call_layers(model, model.inputs, record))
    last = {place: number for number, (_, reads, *_) in enumerate(calls) for place in reads}
    stay = {*keras.tree.flatten(outputs), *(place for place, value in enumerate(values) if value is not None)}
    steps = []
    for number, call in enumerate(calls):
        done = tuple(place for place in {*call[1]} - stay if last[place] == number)
        steps.append(Step(*call, done))
    return Program(steps, values, start, outputs)


def call_layers(model: keras.Model, inputs: Any, call: Callable[..., Any]) -> Any:
    """Returns a `has_graph` model's output, with `call(layer, *arguments, **options)` for each layer's call."""
    graph = _graph(model)
    inputs = [
        x if isinstance(x, keras.KerasTensor) else keras.ops.convert_to_tensor(x, reference.dtype)
        for x, reference in zip(keras.tree.flatten(inputs), graph.inputs, strict=True)
    ]
    # Without it, nobody can look inside a model.
    return graph._run_through_graph(inputs, call_fn=call)


class DecayingOptimizer(keras.optimizers.Optimizer):
    """An optimizer that clips all gradients of an update at once, and whose `update_step` decays the weights."""

    # Without its methods for a whole update, each weight and each replica is clipped, updated and overwritten by
    # itself, and weights decay twice.

    def index_of(self, variable: keras.Variable) -> int:
        """A weight's place among those that the optimizer was built for; on TensorFlow also of its `value`."""
        # Without it, optimizers search for it.
        return self._get_variable_index(variable)

    def places_of(self, variables: list[keras.Variable]) -> list[int]:
        """Returns as `index_of`, of several weights at once; not on TensorFlow."""
        # Without it, an update has four calls for each weight.
        places = self._trainable_variables_indices
        return [places[id(variable)] for variable in variables]

    def writes_in_place(self) -> bool:
        """Whether weights are tensors of PyTorch that may be written to; in `stateless_apply` others stand for them."""
        return keras.backend.backend() == "torch" and not in_stateless_scope()

    def clip_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        """The clipped gradients of an update; with accumulation, `grads` are means over the batches."""
        return super()._clip_gradients(grads)

    def update_all(self, grads: list[Tensor], variables: list[keras.Variable], learning_rate: Any) -> bool:
        """Changes all weights at once and returns True; False, with nothing changed, where `update_step` has to."""
        return False

    def _backend_update_step(self, grads: list[Tensor], trainable_variables: list[Any], learning_rate: Any) -> None:
        if not self.update_all(grads, trainable_variables, learning_rate):
            super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _overwrite_variables_directly_with_gradients(self, grads: list[Tensor], weights: list[Any]) -> Any:
        if keras.backend.backend() == "torch" and not [one for one in weights if one.overwrite_with_gradient]:
            return grads, weights
        return super()._overwrite_variables_directly_with_gradients(grads, weights)

    def _clip_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        return self.clip_gradients(grads)

    def _apply_weight_decay(self, trainable_variables: Iterable[keras.Variable]) -> None:
        pass  # Keras would shrink the weights here, and `update_step` does.


_Model: Any = keras.Model if TYPE_CHECKING else object  # Keras exchanges the `keras.Model` that functional models have


class TrackingModel(_Model):
    """Beside `keras.Model`: on PyTorch, asks what layers and weights there are after a change, not in each update."""

    # Without its losses, an update asks every layer in five calls. Without its step, it has twelve calls for each
    # weight, and some subclasses, whose `compute_loss` takes no `training`, do not train.

    def known_layers(self) -> list[keras.layers.Layer] | None:
        """The model and all layers inside, outer ones first; None where they may have changed."""
        return None

    def has_other_variables(self) -> bool:
        """Whether the variables may be others than at the last question."""
        return True

    @property
    def losses(self) -> list[Tensor]:
        """What `add_loss` was given, and the losses of regularizers."""
        layers = self.known_layers()
        if layers is None or in_stateless_scope() or self._losses_override:
            return super().losses
        return [
            *(loss for layer in layers if layer._losses for loss in layer._losses),
            *self._get_regularization_losses(),
        ]

    def train_step(self, *data: Any) -> Any:
        """Trains on a batch as Keras does; on PyTorch, weights are asked for their gradients in one call."""
        weights = self.trainable_weights if keras.backend.backend() == "torch" and not is_compiled() else []
        if not weights or self.optimizer is None:
            return super().train_step(*data)
        import torch

        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(*data)
        y_pred = self(x, training=True)
        for value in raw_values(self.variables):
            value.grad = None
        loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        self._loss_tracker.update_state(loss, sample_weight=keras.tree.flatten(x)[0].shape[0])
        self.optimizer.scale_loss(loss).backward()
        with torch.no_grad():
            self.optimizer.apply([value.grad for value in raw_values(weights)], weights)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def _flatten_layers(self, include_self: bool = True, recursive: bool = True) -> list[keras.layers.Layer]:
        layers = self.known_layers() if recursive else None
        return super()._flatten_layers(include_self, recursive) if layers is None else layers[not include_self :]

    def _track_variables(self) -> None:
        if self.has_other_variables():
            super()._track_variables()


class SharedModel(_Model):
    """Beside `keras.Model`: threads may read it while another one predicts; its files take their place when whole."""

    # On TensorFlow an array becomes `tf.data` without functions, which Keras would trace in each call.
    @functools.wraps(keras.Model.predict)
    def predict(self, x: Any, batch_size: Any = None, verbose: Any = "auto", steps: Any = None, callbacks: Any = None):
        if (
            keras.backend.backend() == "tensorflow"
            and steps is None
            and self.distribute_strategy.num_replicas_in_sync < 2
        ):
            batches = _batches(x, batch_size)
            x, batch_size = batches, batch_size if batches is x else None
        return super().predict(x, batch_size, verbose, steps, callbacks)

    def make_predict_function(self, force: bool = False) -> Any:
        """Makes `predict_function` as Keras does; on JAX it does not take over the memory of the weights."""
        if keras.backend.backend() != "jax" or self.steps_per_execution != 1:
            return super().make_predict_function(force)
        if self.predict_function is None or force:
            import jax

            def outputs_of(state: Any, data: Any) -> Any:
                return self.predict_step(state, data)[0]

            compute = outputs_of if self.run_eagerly or not self.jit_compile else jax.jit(outputs_of)
            self.predict_function = lambda state, iterator: (compute(state, next(iterator)), state)
        return self.predict_function

    def _purge_model_variables(self, metrics_variables: bool = False, **parts: bool) -> None:
        """Takes the weights out of the model as Keras does, but where it predicts, which has no metrics."""
        # Without it, a thread that reads a model finds no weights while another one predicts.
        if metrics_variables or self.steps_per_execution != 1:
            super()._purge_model_variables(metrics_variables=metrics_variables, **parts)

    def save(self, filepath: Any, overwrite: bool = True, *args: Any, **options: Any) -> None:
        """Saves as Keras does; a `.keras` or `.h5` file at that path is replaced when the new one is complete."""
        with _in_place(filepath, overwrite) as path:
            super().save(path, overwrite, *args, **options)

    def save_weights(self, filepath: Any, overwrite: bool = True, *args: Any, **options: Any) -> None:
        """Saves the weights as Keras does; a `.h5` file at that path is replaced when the new one is complete."""
        with _in_place(filepath, overwrite) as path:
            super().save_weights(path, overwrite, *args, **options)


def _batches(images: Any, size: int | None) -> Any:
    """Returns an array as `tf.data` without functions, which would be traced in each call; other data as it is."""
    if not isinstance(images, np.ndarray) or images.dtype.name not in ("float32", "uint8"):
        return images
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(images).batch(size or 32)  # as Keras does


def _in_place(path: Any, overwrite: bool) -> Any:
    """Returns a context with the path to write to: beside `path`, or `path` where Keras asks or writes several."""
    is_file = isinstance(path, (str, os.PathLike)) and os.fspath(path).endswith((".keras", ".h5"))
    if not is_file or "://" in os.fspath(path) or (not overwrite and os.path.exists(path)):
        return contextlib.nullcontext(path)
    return replacing(path)


def register_weights(model: keras.Model) -> None:
    """Adds weights that came after a model was built, such as adapters, to its `torch_params`; only on PyTorch."""
    if keras.backend.backend() != "torch":
        return
    for weight in model.weights:
        if weight.path not in model.torch_params:
            model.torch_params[weight.path] = weight.value
