"""The private parts of Keras that this package uses, all in this file, under names for the rest of the package.

Each has its reason; `tests/test_keras_internals.py` holds every one to what a new Keras does.
"""

import collections
import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import keras
from keras.src.utils.module_utils import tensorflow

from keras_vit._arguments import Tensor
from keras_vit._files import replacing

PRIVATE: dict[str, str] = {
    "_flatten_layers": "Without it, freezing, adapters and quantization do not reach layers inside layers.",
    "_trainable_variables": "A layer's own weights. Without it, what LoRA froze stays frozen when its layer trains.",
    "_run_through_graph": "Calls a functional model layer by layer. Without it, nobody can look inside a model.",
    "_layout": "Where a variable lies on several devices. Without it, momentum is copied to each of them.",
    "_clip_gradients": "Called with all gradients of an update. Without it, each replica clips by itself.",
    "_apply_weight_decay": "Called before an update. Without it, weights decay twice.",
    "_get_variable_index": "Which momentum is that of a weight. Without it, optimizers search for it.",
}

# Of models on JAX.
PRIVATE_IN_JAX: dict[str, str] = {
    "_purge_model_variables": "Called before a loop, and takes the weights out of a model. Without it, a thread that "
    "reads a model finds none of them while another one predicts.",
}

# Of PyTorch, whose modules Keras's layers are there.
PRIVATE_IN_TORCH: dict[str, str] = {
    "torch.nn.modules.module._has_any_global_hook": "Without it, hooks for all modules miss the layers inside layers.",
    "torch.utils._python_dispatch.is_in_torch_dispatch_mode": "The module is where PyTorch has `TorchDispatchMode`. "
    "Without it, what such a mode keeps is written over.",
    "torch.ops.mkldnn._linear_pointwise": "What programs of `torch.compile` call for a linear layer. Without it, "
    "products take twice as long on processors that are not Intel's.",
    "torch.ops.mkldnn._reorder_linear_weight": "What they call for its weights. Without it, oneDNN sorts a kernel anew "
    "in every call, a tenth of the time of ViT-B.",
}

# Modules of Keras that are not public.
PRIVATE_MODULES: dict[str, str] = {
    "keras.src.utils.module_utils.tensorflow": "Keras asks it whether TensorFlow is there, and so imports it, when a "
    "seed is set or a model saved. Without it, JAX and PyTorch wait seconds for a framework that they do not use.",
}

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
    """Within it, TensorFlow is missing for Keras on the other backends, where the program has not imported it.

    Nothing can be of one of its types then, which is what Keras asks for, and nothing can depend on its seed.
    """
    token = _hidden.set(keras.backend.backend() != "tensorflow" and "tensorflow" not in sys.modules)
    try:
        yield
    finally:
        _hidden.reset(token)


def set_random_seed(seed: int) -> None:
    """Seeds as `keras.utils.set_random_seed`, TensorFlow only where the program has imported it.

    Raises ValueError unless the seed is an integer of at least 0 that NumPy takes.
    """
    with without_importing_tensorflow():
        keras.utils.set_random_seed(seed)


def layers_inside(layer: keras.layers.Layer, include_self: bool = True) -> list[keras.layers.Layer]:
    """Returns all layers inside a layer or model, outer ones first, with itself before them if `include_self`."""
    return layer._flatten_layers(include_self=include_self)


def own_trainable_weights(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Returns a layer's own weights that are made to be trained, frozen or not; not those of layers inside it."""
    return layer._trainable_variables


def layout_of(variable: keras.Variable) -> Any:
    """Returns the layout by which a variable is spread over devices; None where there is one device or no layouts."""
    return getattr(variable, "_layout", None)


def any_module_is_watched() -> bool:
    """Whether there are hooks of PyTorch for the calls of all modules."""
    from torch.nn.modules import module

    return module._has_any_global_hook()


def is_recorded() -> bool:
    """Whether a `TorchDispatchMode` sees the operations of PyTorch: it may keep what they return."""
    from torch.utils._python_dispatch import is_in_torch_dispatch_mode

    return is_in_torch_dispatch_mode()


def has_onednn_product() -> bool:
    """Whether this PyTorch has `onednn_product` and `onednn_kernel`."""
    import torch

    return all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))


def onednn_product(x: Any, kernel: Any, bias: Any = None) -> Any:
    """Returns `x @ kernel + bias` for float32 tensors `(..., D)` and `(D, units)` on a CPU, by oneDNN."""
    return onednn_product_of_packed(x, kernel.t(), bias)


def onednn_kernel(kernel: Any) -> Any:
    """Returns a copy of a float32 kernel `(D, units)` in oneDNN's own order, for `onednn_product_of_packed`."""
    import torch

    return torch.ops.mkldnn._reorder_linear_weight(kernel.detach().t().contiguous())


def onednn_product_of_packed(x: Any, kernel: Any, bias: Any = None) -> Any:
    """Returns as `onednn_product`, with a copy that `onednn_kernel` made, which has no gradients."""
    import torch

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


@dataclasses.dataclass
class _Activation:
    """The output of a layer for a number of readers: it is let go of when the last one has taken it."""

    value: Any
    readers: int

    def read(self) -> Any:
        """Returns the output for one of its readers; the last one takes it, and `value` becomes None."""
        value = self.value
        self.readers -= 1
        if not self.readers:
            self.value = None
        return value


def count_readers(model: keras.Model) -> tuple[int, ...]:
    """Returns how often each layer's output is read when a model that `has_graph` is called, in their order."""
    outputs, readers = [], collections.Counter()

    def count(layer: Any, *args: Any, **options: Any) -> Any:
        readers.update(map(id, keras.tree.flatten((args, options))))
        result = layer.compute_output_spec(*args, **options)
        outputs.extend(keras.tree.flatten(result))
        return result

    readers.update(map(id, keras.tree.flatten(call_layers(model, model.inputs, count))))
    return tuple(readers[id(output)] for output in outputs)


def call_layers(model: keras.Model, inputs: Any, call: Callable[..., Any], readers: Iterable[int] | None = None) -> Any:
    """Returns a `has_graph` model's output, with `call(layer, *arguments, **options)` for each layer's call.

    The inputs are tensors, symbolic or not, in the structure that the model takes. With the result of `count_readers`,
    the output of a layer is let go of when it has been read for the last time, and not when all have been called.
    """
    if readers is not None:
        remaining = iter(readers)

        def call_on_values(layer: Any, *args: Any, **options: Any) -> Any:
            args, options = keras.tree.map_structure(
                lambda x: x.read() if isinstance(x, _Activation) else x, (args, options)
            )
            y = call(layer, *args, **options)
            return keras.tree.map_structure(lambda value: _Activation(value, next(remaining)), y)

        return keras.tree.map_structure(_Activation.read, call_layers(model, inputs, call_on_values))
    graph = _graph(model)
    inputs = [
        x if isinstance(x, keras.KerasTensor) else keras.ops.convert_to_tensor(x, reference.dtype)
        for x, reference in zip(keras.tree.flatten(inputs), graph.inputs, strict=True)
    ]
    return graph._run_through_graph(inputs, call_fn=call)


class DecayingOptimizer(keras.optimizers.Optimizer):
    """An optimizer that clips all gradients of an update at once, and whose `update_step` decays the weights."""

    def index_of(self, variable: keras.Variable) -> int:
        """Returns a weight's place among those that the optimizer was built for; on TensorFlow also of its `value`."""
        return self._get_variable_index(variable)

    def clip_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        """Returns the clipped gradients of an update; with accumulation, `grads` are means over the batches."""
        return super()._clip_gradients(grads)

    def _clip_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        return self.clip_gradients(grads)

    def _apply_weight_decay(self, trainable_variables: Iterable[keras.Variable]) -> None:
        """Does nothing: Keras would shrink the weights here, and `update_step` does."""


_Model: Any = keras.Model if TYPE_CHECKING else object  # Keras exchanges the `keras.Model` that functional models have


class SharedModel(_Model):
    """Beside `keras.Model`: threads may read it while another one predicts; its files take their place when whole."""

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
        if metrics_variables or self.steps_per_execution != 1:
            super()._purge_model_variables(metrics_variables=metrics_variables, **parts)

    def save(self, filepath: Any, overwrite: bool = True, *args: Any, **options: Any) -> None:
        """Saves as Keras does; a `.keras` or `.h5` file at that path is replaced when the new one is complete.

        Raises OSError where it cannot be written, and what Keras raises.
        """
        with _in_place(filepath, overwrite) as path:
            super().save(path, overwrite, *args, **options)

    def save_weights(self, filepath: Any, overwrite: bool = True, *args: Any, **options: Any) -> None:
        """Saves the weights as Keras does; a `.h5` file at that path is replaced when the new one is complete.

        Raises OSError where it cannot be written, and what Keras raises.
        """
        with _in_place(filepath, overwrite) as path:
            super().save_weights(path, overwrite, *args, **options)


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
