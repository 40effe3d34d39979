"""What the models of this package share: each is a functional Keras model and a function of one config."""

import contextlib
import functools
import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import keras
import numpy as np

from keras_vit._keras import ClonableModel, call_layers, layers_inside, without_importing_tensorflow
from keras_vit.layers.base import is_plain, quantized_policies
from keras_vit.layers.ops import float32_or_better, runs_eagerly_in_torch
from keras_vit.models.adapters import restore_training, training_config
from keras_vit.models.changes import (
    changed_fields,
    copy_state,
    copy_structure,
    has_adapters,
    layers_to_start_anew,
    quick_initialization,
    replaced,
)
from keras_vit.models.config import ModelConfig
from keras_vit.models.inference import shortcuts, xla
from keras_vit.preprocessing import Pipeline


def _checking_images(method: Callable[..., Any]) -> Any:
    """A method of `keras.Model` that checks images first: on JAX, Keras has the weights when it finds an error."""

    @functools.wraps(method)
    def checking(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, np.ndarray) and not x.dtype.isnative:
            x = x.astype(x.dtype.newbyteorder("="))  # PyTorch takes no other byte order
        with self._checked(x):
            return method(self, x, *args, **kwargs)

    return checking


class ImageModel(ClonableModel):
    """A functional model that is made from a config and takes the images that the config says.

    Subclasses set `config_type`, the class of their configs.

    Args:
        config: What to build.
        outputs: Function from the config, the images and the dtype policy to the outputs of the model.
        default_name: Name of the model where none is given.
        input_tensor: Keras tensor to build on; None for a new input `(batch, *image_size, channels)`, or with
            `config.dynamic` `(batch, None, None, channels)`.
        name: Name of the model.
        dtype: Dtype policy of all layers; None for Keras's global one.
        trainable: Whether training changes the weights.

    Raises:
        ValueError: if `input_tensor` does not fit the config; at call time, if the images do not.
    """

    config_type: type[ModelConfig]

    def __init__(
        self,
        config: Any,
        outputs: Any,
        default_name: str,
        *,
        input_tensor: Any = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        if keras.config.image_data_format() == "channels_first":
            raise ValueError(
                "keras_vit takes images as (height, width, channels), but Keras is set to 'channels_first'. "
                "Call keras.config.set_image_data_format('channels_last') first."
            )
        size = (None, None) if config.dynamic else config.image_size
        shape = (*size, config.channels)
        images = keras.Input(shape, name="images", dtype="float32") if input_tensor is None else input_tensor
        if input_tensor is not None:
            _check_input(input_tensor, shape)
        # The global policy is looked up now: the model keeps it, whatever the global one is when it is loaded.
        policy = keras.dtype_policies.get(dtype)
        name = name or default_name.lower().translate(str.maketrans("-/+", "___"))
        super().__init__(images, outputs(config, images, policy), name=name)
        self._set_up(config, policy)
        self.trainable = trainable

    def _set_up(self, config: Any, policy: Any) -> None:
        self._config = config
        self._policy = policy
        self._warned = False
        # Keras asks the model, not its layers, whether the loss has to be scaled for float16.
        self.dtype_policy = getattr(policy, "default_policy", policy)
        self.input_spec = None  # call() below says more than Keras does when images do not fit

    def init_as_clone(self, source: Self, inputs: Any, outputs: Any, name: str | None = None) -> None:
        """What the constructor does where `keras.models.clone_model` has made the layers of another model anew.

        Args:
            source: The model that is cloned.
            inputs: Symbolic images.
            outputs: What the new layers make of them.
            name: Name of the model.
        """
        super().__init__(inputs, outputs, name=name)
        self._set_up(source._config, source._policy)
        self.trainable = source.trainable
        copy_structure(source, self)

    predict = _checking_images(keras.Model.predict)
    fit = _checking_images(keras.Model.fit)
    evaluate = _checking_images(keras.Model.evaluate)
    train_on_batch = _checking_images(keras.Model.train_on_batch)
    test_on_batch = _checking_images(keras.Model.test_on_batch)
    predict_on_batch = _checking_images(keras.Model.predict_on_batch)

    @contextlib.contextmanager
    def _checked(self, x: Any) -> Iterator[None]:
        """Checks images, and gives a model of JAX its weights back where something fails while Keras has them.

        Raises:
            ValueError: if `x` has a shape, or batches of a shape that is known, which the model does not take.
        """
        spec = getattr(x, "element_spec", None)  # of tf.data
        batch = (spec[0] if isinstance(spec, tuple) else spec) if spec is not None else x
        if hasattr(keras.tree.flatten(batch)[0] if batch is not None else None, "shape"):
            self._check_images(batch, batch_of_none=False)
            self._check_values(batch)
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
            self._check_values(args[0])
        return super().__call__(*args, **kwargs)

    def _check_values(self, images: Any) -> None:
        """Warns, once for each model, where images are not in the range that the model takes.

        Only what is known without reading from a device: the dtype, and of NumPy arrays the first image.
        """
        flat = keras.tree.flatten(images)
        if self._warned or len(flat) != 1 or not hasattr(flat[0], "dtype"):
            return
        image, message = flat[0], None
        if not self._config.include_preprocessing:
            if "int" in keras.backend.standardize_dtype(image.dtype):
                message = (
                    f"{self.name} was given integers, which can only be pixels of 0..255, but takes images that are "
                    "normalised as config.pixel_mean and pixel_std say. Pass model.preprocess(images), or make the "
                    "model normalise them itself: model.with_config(include_preprocessing=True)."
                )
        elif isinstance(image, np.ndarray) and image.dtype.kind == "f" and image.size and image.ndim == 4:
            low, high = float(image[0].min()), float(image[0].max())
            if low < 0 or (high <= 1 and (image[0] % 1).any()):
                message = (
                    f"{self.name} normalises pixels of 0..255 itself, but was given values in [{low:.3g}, {high:.3g}], "
                    "which seem to be normalised already. Pass the pixels, or take "
                    "model.with_config(include_preprocessing=False)."
                )
        if message is not None:
            self._warned = True
            warnings.warn(message, stacklevel=3)

    def call(self, images: Any, training: bool | None = None, mask: Any = None) -> Any:
        self._check_images(images)
        images = keras.ops.convert_to_tensor(images) if isinstance(images, np.ndarray) else images
        if not training and mask is None and runs_eagerly_in_torch(images):
            return call_layers(self, images, _answer)
        return super().call(images, training=training, mask=mask)

    def call_layers(self, images: Any, call: Callable[..., Any]) -> Any:
        """What the model computes, with `call(layer, *arguments, **options)` in place of each layer's own call.

        Args:
            images: As the model takes them; a tensor, or a symbolic one.
            call: Gives the outputs of a layer for its arguments, as `lambda layer, *args, **kw: layer(*args, **kw)`
                does.

        Raises:
            ValueError: if the images do not fit the model.
        """
        self._check_images(images)
        return call_layers(self, images, call)

    def _check_images(self, images: Any, batch_of_none: bool = True) -> None:
        """Raises ValueError unless images have the shape that the model takes."""
        config = self._config
        flat = keras.tree.flatten(images)  # Keras also takes the one input in a list or a dictionary
        given = tuple(getattr(flat[0], "shape", None) or ()) if len(flat) == 1 else ()
        if len(given) != 4:
            raise ValueError(
                f"{self.name} takes a batch of images (batch, height, width, channels), but the shape {given} was "
                "given. A single image needs a batch axis: images[None]."
            )
        if given[0] == 0 and not batch_of_none:
            raise ValueError(f"{self.name} takes at least one image, but the shape {given} was given.")
        if given[3] is not None and given[3] != config.channels:
            raise ValueError(
                f"{self.name} takes images with {config.channels} channels on the last axis, but the shape {given} "
                "was given. Grey images can be repeated along it; an alpha channel has to go."
            )
        size = tuple(known or wanted for known, wanted in zip(given[1:3], config.image_size, strict=True))
        if not config.dynamic and size != config.image_size:
            raise ValueError(
                f"{self.name} was built for images of {_spell(config.image_size)} pixels, but the shape {given} was "
                f"given. Resize them with model.preprocess(images), make a model for that size with "
                f"model.with_image_size({size}), or build it with image_size='dynamic'."
            )

    def preprocess(self, images: Any) -> Any:
        """Pictures as this model takes them: read, resized, cropped and normalised as its publisher does.

        Args:
            images: One picture or several: paths, binary file objects, PIL images, or arrays and tensors of any
                backend, `(height, width, channels)` or `(batch, height, width, channels)`, uint8 or values of 0..255.
                The pictures of a list may differ in size and kind. Also for `tf.data`: `data.map(model.preprocess)`.

        Returns:
            float32 array `(batch, height, width, channels)` for `model.predict`; inside `tf.data` maps a tensor, which
            has no batch axis where the images have none.

        Raises:
            FileNotFoundError: if there is no such file.
            TypeError, ValueError: if the values are no pixels, a file is no picture, or the channels are not as many
                as the model's.
            ImportError: if a file is to be read, and Pillow is not installed.

        Warns:
            UserWarning: if floats all lie in [-1, 1]: they look scaled already.

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
        """A new model that has some fields of the config changed and the same weights.

        Position and patch embeddings are resized where they belong to a size; other `classes` get a new,
        zero-initialised head. Name, dtype policy, adapters and what is frozen stay; layers that start anew train,
        unless the model is frozen as a whole. The new model is not compiled. A quantized model can change its name and
        `class_names` only.

        Args:
            name: Name of the new model; None for this one's.
            dtype: Dtype policy of the new model; None for this one's.
            fresh: Names of layers that start anew, such as `"head"`, because their weights are not wanted or cannot
                be kept.
            changes: New values of fields of the config, such as `image_size=384, classes=37`. `image_size="dynamic"` is
                for any size at run time, and a number for that size alone.

        Raises:
            TypeError: if the config has no such field, or a value has a wrong type.
            ValueError: if a value makes no sense, if the weights do not fit it (`width`, `depth`, ...), or if weights
                would be lost that `fresh` does not give up. No model is returned half-filled.
        """
        if "image_size" in changes and "dynamic" not in changes:
            dynamic = isinstance(changes["image_size"], str) and changes["image_size"] == "dynamic"
            changes = {name: value for name, value in changes.items() if name != "image_size" or not dynamic}
            changes["dynamic"] = dynamic
        config = replaced(self._config, changes)
        fresh = {fresh} if isinstance(fresh, str) else set(fresh)
        anew = layers_to_start_anew(self._config, config, fresh)
        policies = quantized_policies(self)
        if policies is not None and (
            anew or dtype is not None or set(changed_fields(self._config, config)) - {"class_names"}
        ):
            raise ValueError(
                f"The weights of {self.name} were quantized, and fit no other model. Change the model before it is "
                "quantized."
            )
        with quick_initialization(anew):
            model = type(self)(
                config, name=name or self.name, dtype=dtype or policies or self._policy, trainable=self.trainable
            )
        unknown = sorted(fresh - {layer.name for layer in model.layers})
        if unknown:
            names = ", ".join(layer.name for layer in model.layers if layer.weights)
            raise ValueError(f"fresh names layers that {self.name} does not have: {unknown}. There are: {names}.")
        copy_state(self, model, anew)
        return model

    def with_image_size(self, image_size: int | tuple[int, int] | str) -> Self:
        """A new model for another image size with the same weights, resized where they belong to a size.

        Args:
            image_size: An integer, (height, width), or `"dynamic"` for any size at run time.
        """
        return self.with_config(image_size=image_size)

    def optimize_for_inference(self, *, verbose: bool = True) -> Self:
        """A new model with the same answers that computes no more than they need.

        - `class_token_only`: with `pooling="token"`, the last block computes the class token alone (with a second head
          the distillation token as well): of all other tokens it needs keys and values only. The model then has no
          other token after that block, so that `feature_extractor` and `keras_vit.inspection` ask for the model that
          it was made from, or `model.with_config(class_token_only=False)`, which has the same weights.
        - `stem_folded`, or `folded` of a `BiT`: the kernels of the ResNet are standardised for good, as `folded` does.
        - `preprocessing_folded`: where the model normalises pixels itself and computes in float32, the weights of the
          patch embedding do it for good.
        - `jit_compile`: in TensorFlow on CPUs, in float32 and for images of one size, `predict` is compiled with XLA,
          which Keras leaves out there. It says nothing about the weights: a file does not keep it, and `compile`
          decides anew.

        In float32 answers differ by rounding, below 1e-4. Fields that stay `False` in the config of the new model were
        of no use. The dtype stays, and so do LoRA's adapters: `keras_vit.training.merge_lora` takes them away first.
        The new model predicts, saves, loads and exports like any other; `.npz` and `.safetensors` files have no place
        for folded weights. It is not compiled.

        Args:
            verbose: Whether to print what was done, and what not and why.

        Raises:
            ValueError: if the model has been quantized: optimize it first.
        """
        steps = shortcuts(self._config, self._policy.compute_dtype)
        changes: dict[str, Any] = {step.field: True for step in steps if step.obstacle is None}
        model = self.with_config(**changes)
        compilation = xla(model, self._config, self._policy.compute_dtype)
        if compilation is not None:
            steps.append(compilation)
            model.jit_compile = compilation.obstacle is None
        if verbose:
            print(f"{self.name}, optimized for inference:")
            for step in steps:
                print(f"  {step}")
            if any(has_adapters(layer) for layer in layers_inside(self)):
                print("  LoRA's adapters stay beside the kernels; keras_vit.training.merge_lora(model) adds them.")
        return model

    def name_classes(self, class_names: Iterable[str] | None) -> None:
        """Says what the outputs of the head stand for; `model.config.class_names` and files have it then.

        Args:
            class_names: A name for each class, in order; None for none.

        Raises:
            TypeError, ValueError: if they are no strings, or not as many as classes.
        """
        self._config = self._config.replace(class_names=class_names)

    def get_config(self) -> dict[str, Any]:
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
        return f"<{type(self).__name__} {self.name}: {json.dumps(self._config.to_dict())}>"


def normalization(pipeline: Pipeline, policy: Any) -> keras.layers.Layer:
    """The layer that does in the graph what the pipeline does to pixels of 0..255 at last, in at least float32."""
    mean, std = (np.unique(np.asarray(values, "float64")) for values in (pipeline.mean, pipeline.std))
    if mean.size == std.size == 1:
        scale, offset = 1 / (255 * float(std[0])), -float(mean[0] / std[0])
    else:
        mean, std = np.broadcast_arrays(pipeline.mean, pipeline.std)
        scale, offset = (1 / (255 * std)).tolist(), (-mean / std).tolist()
    return keras.layers.Rescaling(scale, offset, dtype=float32_or_better(policy.compute_dtype), name="preprocessing")


def _answer(layer: Any, *args: Any, **options: Any) -> Any:
    """What a layer of a graph computes where nothing is trained."""
    plain = len(args) == 1 and not options and is_plain(layer, args[0])
    return layer.call(*args) if plain else layer(*args, **options)


def _check_input(tensor: Any, shape: tuple[int | None, ...]) -> None:
    if not isinstance(tensor, keras.KerasTensor) or keras.utils.get_source_inputs(tensor)[0] is not tensor:
        raise ValueError(
            "input_tensor must be what keras.Input() returns. To put the model behind other layers, call it on their "
            f"output: model(x). {type(tensor).__name__} was given."
        )
    if tuple(tensor.shape[1:]) != shape:
        raise ValueError(f"input_tensor must have the shape (batch, {_spell(shape)}), but has {tensor.shape}.")


def _frozen(model: keras.Model) -> list[str]:
    """Paths of the layers that do not train; those inside a listed one go without saying."""
    paths = {layer.path for layer in layers_inside(model, include_self=False) if layer.path and not layer.trainable}
    return sorted(path for path in paths if not any(path.startswith(f"{outer}/") for outer in paths))


def _spell(shape: tuple[int | None, ...]) -> str:
    return " x ".join("any" if n is None else str(n) for n in shape)
