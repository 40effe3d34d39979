"""A look at the values of images that a model is given: pixels of 0..255 where it takes normalised images, or reverse.

Nothing is read from a device and nothing becomes part of a compiled program: data that come batch by batch are passed
on as they are, and the first batch is looked at on its way.
"""

import copy
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.models.config import ModelConfig

_LARGEST = 16.0  # no normalised image comes near it: with ImageNet's statistics the largest value is 2.6
_IMAGES = 4  # that are looked at: one may be black
_ROWS = 16  # of an image that are looked at, evenly spaced


def wrong_values(config: ModelConfig, images: Any) -> str | None:
    """Why images cannot be what a model of the config takes, to follow its name; None where nothing is wrong."""
    inside, pipeline = config.include_preprocessing, config.pipeline
    prepare = "takes normalised images. Pass model.preprocess(images)"
    if not inside and "int" in keras.backend.standardize_dtype(images.dtype):
        return f"was given integers, which can only be pixels of 0..255, but {prepare}"
    values = _first_values(images)
    if values is None:
        return None
    low, high = float(values.min()), float(values.max())
    if inside and (low < 0 or (high <= 1 and (values % 1).any())):
        return f"normalises pixels of 0..255 itself, but was given values in [{low:.3g}, {high:.3g}]. Pass the pixels"
    white = float(np.max((1 - np.asarray(pipeline.mean)) / np.asarray(pipeline.std)))  # the largest normalised value
    if not inside and high > max(_LARGEST, 2 * white):
        return f"was given values up to {high:.3g}, which can only be pixels of 0..255, but {prepare}"
    return None


def _first_values(images: Any) -> np.ndarray | None:
    """The first images of an array or a tensor of floats in the processor's memory, without copying the rest."""
    # None for other shapes and kinds of numbers, for tensors of a device, and for what is symbolic, traced or compiled.
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(images, torch.Tensor):
        if torch.compiler.is_compiling() or torch.jit.is_tracing() or type(images) is not torch.Tensor:
            return None
        if images.ndim != 4 or images.device.type != "cpu" or not images.is_floating_point():
            return None
        try:
            images = images.detach()[:_IMAGES].float().numpy()
        except RuntimeError:  # inside `torch.func`, where a tensor has no values of its own
            return None
    elif not isinstance(images, np.ndarray):
        is_symbolic = jax is not None and isinstance(images, jax.core.Tracer)
        device = "" if is_symbolic else str(getattr(images, "device", None))
        if "cpu" not in device.lower() or not hasattr(images, "__array__"):
            return None
        images = np.asarray(images)
    if images.ndim != 4 or not images.size or images.dtype.kind != "f":
        return None
    return images[:_IMAGES, :: max(1, images.shape[1] // _ROWS)]


def watched(data: Any, look: Callable[[Any], None]) -> Any:
    """Returns loaders that pass the images of their first batch to `look`; arrays and other data as they are."""
    # Loaders are generators, `PyDataset`s of this process, `tf.data.Dataset`s, and PyTorch's.
    look = _Once(look)
    torch = sys.modules.get("torch")
    if isinstance(data, types.GeneratorType):
        return _generator(data, look)
    if isinstance(data, keras.utils.PyDataset):
        return data if data.use_multiprocessing else _WatchedDataset(data, look)
    if torch is not None and isinstance(data, torch.utils.data.DataLoader):
        loader = copy.copy(data)
        iterate = functools.partial(_generator, look=look)
        loader.__class__ = type("DataLoader", (type(data),), {"__iter__": lambda _: iterate(data)})
        return loader
    if hasattr(data, "element_spec") and hasattr(data, "enumerate"):
        return _watched_tf_data(data, look)
    return data


class _Once:
    """Calls a function with the images of the first batch that it is given, and with no other."""

    def __init__(self, look: Callable[[Any], None]) -> None:
        self._look: Callable[[Any], None] | None = look

    def __call__(self, batch: Any) -> None:
        look, self._look = self._look, None
        flat = keras.tree.flatten(batch) if look is not None else []
        if look is not None and flat:
            look(flat[0])


def _generator(batches: Any, look: Callable[[Any], None]) -> Iterator[Any]:
    """Yields the batches, each after `look` has been called with it."""
    for batch in batches:
        look(batch)
        yield batch


class _WatchedDataset(keras.utils.PyDataset):
    """A `PyDataset` that is another one, except for `look`, which is called with each batch."""

    def __init__(self, data: keras.utils.PyDataset, look: Callable[[Any], None]) -> None:
        super().__init__(workers=data.workers, max_queue_size=data.max_queue_size)
        self._data, self._look = data, look

    @property
    def num_batches(self) -> int | None:
        return self._data.num_batches

    def __getitem__(self, index: int) -> Any:
        batch = self._data[index]
        self._look(batch)
        return batch

    def on_epoch_begin(self) -> None:
        self._data.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._data.on_epoch_end()


def _watched_tf_data(data: Any, look: Callable[[Any], None]) -> Any:
    """Returns a `tf.data.Dataset` with the same elements; the first calls `look` on its way, outside of the model."""
    import tensorflow as tf

    images = keras.tree.flatten(data.element_spec)[0]
    if not isinstance(images, tf.TensorSpec) or not images.dtype.is_floating:
        return data

    def first(number: Any, *batch: Any) -> Any:
        def show() -> Any:
            with tf.control_dependencies([tf.py_function(look, [keras.tree.flatten(batch)[0]], [])]):
                return tf.constant(True)

        tf.cond(number == 0, show, lambda: tf.constant(False))
        return batch if len(batch) > 1 else batch[0]

    return data.enumerate().map(first)
