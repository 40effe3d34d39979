"""Runs a model on images with other calls in place of those of its layers, and takes gradients, on each backend."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit._arguments import Tensor, to_numpy, whole_number
from keras_vit._keras import call_layers, has_graph, layers_inside
from keras_vit._pictures import shown
from keras_vit.models import BiT, VisionTransformer
from keras_vit.zoo import as_model

BATCH_SIZE = 16  # images at a time: ViT-B/16 has 30 MB of attention weights for each

Call = Callable[..., Any]
ModelSource = keras.Model | str | os.PathLike[str]  # a model, or what `keras_vit.load` takes


class Probe:
    """A model whose layers can be called otherwise, and the grid of patches in the pass that ran last."""

    def __init__(self, model: ModelSource, *, attention: bool = False) -> None:
        """Loads the model if it is named, and finds the one of this package in it; errors as of the class."""
        self.model = as_model(model)
        self.inner = _find_model(self.model)  # the `VisionTransformer` or `BiT` that it is or has inside, at any depth
        self.config: Any = self.inner.config
        self.grid = (0, 0)  # rows and columns of patches, known after a run: where sizes are free, images decide
        is_mixer = self.config.tokens_mlp_width is not None
        if attention and (is_mixer or not isinstance(self.inner, VisionTransformer)):
            kind = "MLP-Mixer" if is_mixer else type(self.inner).__name__
            raise TypeError(f"model must be a VisionTransformer, but {kind} {self.inner.name} has no attention.")

    def run(self, images: Any, calls: Mapping[str, Call]) -> Any:
        """Returns the model's outputs for a batch of images, an array or a tensor, and sets `grid`.

        `calls` are functions `(layer, *arguments, **options)` by the names of layers of the Vision Transformer or BiT,
        in place of the layers' own.
        """

        def embed(layer: Any, *args: Any, **options: Any) -> Any:
            output = calls.get("embedding", type(layer).__call__)(layer, *args, **options)
            self.grid = (int(output.shape[1]), int(output.shape[2]))
            return output

        own = {**calls, "embedding": embed}
        inside = {layer.name: own[layer.name] for layer in self.inner.layers if layer.name in own}

        def call_around(layer: Any, *args: Any, **kwargs: Any) -> Any:
            if layer is self.inner:
                return self.inner.run(args[0], inside)
            if has_graph(layer) and any(one is self.inner for one in layers_inside(layer)):
                return call_layers(layer, args[0], call_around)
            return layer(*args, **kwargs)

        return call_around(self.model, images)

    def map(self, tokens: Any) -> Any:
        """`(..., tokens, D)` as `(..., rows, columns, D)` on the grid of the last run, without other tokens."""
        rows, columns = self.grid
        return tokens[..., -rows * columns :, :].reshape(*tokens.shape[:-2], rows, columns, tokens.shape[-1])

    def check_all_tokens(self) -> None:
        """Raises ValueError if a model has been optimized, so that its last block does not compute all tokens."""
        if self.config.class_token_only:
            raise ValueError(
                f"{self.inner.name} was optimized for inference, so its last block does not compute the tokens that "
                "are needed here. Use model.with_config(class_token_only=False)."
            )


def _find_model(model: Any) -> VisionTransformer | BiT:
    """Returns the one `VisionTransformer` or `BiT` that a model is or has inside."""
    if isinstance(model, (VisionTransformer, BiT)):
        return model
    inside = layers_inside(model) if isinstance(model, keras.Model) else []
    models = [layer for layer in inside if isinstance(layer, (VisionTransformer, BiT))]
    # A layer of a subclass, or one that wraps another, runs what is inside it where nobody can look.
    if not models or not all(_is_reached(model, inner) for inner in models):
        raise TypeError(
            "model must be a VisionTransformer, a BiT, or a built functional or sequential model with one among its "
            f"layers, but {type(model).__name__} was given. For other models, pass the VisionTransformer or BiT inside."
        )
    if len(models) > 1:
        names = ", ".join(inner.name for inner in models)
        raise ValueError(f"model has several models of keras_vit inside: {names}. Pass one of them.")
    return models[0]


def _is_reached(model: keras.layers.Layer, inner: keras.Model) -> bool:
    return model is inner or (has_graph(model) and any(_is_reached(layer, inner) for layer in model.layers))


def in_batches(images: Any, batch_size: int) -> Iterator[np.ndarray]:
    """Yields images `(batch, height, width, channels)` as float32 arrays of at most `batch_size`."""
    batch_size = whole_number("batch_size", batch_size, 1)
    images = to_numpy(images)
    if images.dtype.kind not in "fiu":
        raise TypeError(f"images must be an array of numbers, but its dtype is {images.dtype}.")
    if images.ndim != 4 or not len(images):
        raise ValueError(
            f"images must be one or more, (batch, height, width, channels), but the shape {images.shape} was given. A "
            "single image needs a batch axis: images[None]."
        )
    for start in range(0, len(images), batch_size):
        yield images[start : start + batch_size].astype("float32")


def shown_pixels(model: ModelSource, images: np.ndarray) -> np.ndarray:
    """Returns `images` that `model` takes as pixels to display, uint8; TypeError, ValueError or OSError for others.

    Examples:
        >>> np.array_equal(inspection.shown_pixels(model, images), pixels)
        True
    """
    config = getattr(as_model(model), "config", None)
    if not hasattr(config, "pipeline"):  # a model that is around one of ours has none
        raise TypeError(f"model must be a VisionTransformer or a BiT, but {type(model).__name__} was given.")
    images = np.concatenate([*in_batches(images, BATCH_SIZE)])
    if images.shape[3] != config.channels:
        raise ValueError(f"images must have the shape (batch, height, width, {config.channels}), not {images.shape}.")
    return shown(images, None if config.include_preprocessing else config.pipeline)


def gradients(function: Callable[[list[Tensor]], Tensor], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the gradients of a scalar with respect to float32 arrays: float32 arrays of their shapes."""
    found: Any
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tensors = [tf.convert_to_tensor(array) for array in arrays]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(tensors)
            value = function(tensors)
        found = tape.gradient(value, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    elif keras.backend.backend() == "jax":
        import jax

        found = jax.grad(function)([jax.numpy.asarray(array) for array in arrays])
    else:
        import torch

        tensors = [keras.ops.convert_to_tensor(array).detach().clone().requires_grad_() for array in arrays]
        with torch.enable_grad():
            value = function(tensors)
        found = torch.autograd.grad(value, tensors, allow_unused=True, materialize_grads=True)
    return [to_numpy(gradient).astype("float32") for gradient in found]
