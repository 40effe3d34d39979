"""What all models of the package share: each is functional, and a function of one config, which its files keep."""

import json
from typing import Any, Self

import keras

from keras_vit._keras import ClonableModel, layers_inside, without_importing_tensorflow
from keras_vit.layers.base import quantized_policies
from keras_vit.models.changes import copy_structure, restore_training, training_config


class ConfiguredModel(ClonableModel):
    """A functional model that is made from a config: `cls(config, name=..., dtype=..., trainable=...)`.

    Subclasses set `config_type`, the class of their configs, which has `to_dict`.
    """

    config_type: type[Any]

    def set_up(self, config: Any, policy: Any) -> None:
        """Keeps what `get_config` saves, once the layers are there."""
        self._config = config
        self._policy = policy
        # Keras asks the model, not its layers, whether the loss has to be scaled for float16.
        self.dtype_policy = getattr(policy, "default_policy", policy)

    def init_as_clone(self, source: Self, inputs: Any, outputs: Any, name: str | None = None) -> None:
        """What the constructor does where `keras.models.clone_model` has made the layers of `source` anew."""
        super().__init__(inputs, outputs, name=name)
        self.set_up(source._config, source._policy)
        self.trainable = source.trainable
        copy_structure(source, self)

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


def _frozen(model: keras.Model) -> list[str]:
    """Paths of the layers that do not train; those inside a listed one go without saying."""
    paths = {layer.path for layer in layers_inside(model, include_self=False) if layer.path and not layer.trainable}
    return sorted(path for path in paths if not any(path.startswith(f"{outer}/") for outer in paths))
