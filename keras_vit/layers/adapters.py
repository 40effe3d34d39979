"""LoRA's adapters in Keras's own files."""

from typing import Any

import keras
import numpy as np

_FACTORS = ("lora_kernel_a", "lora_kernel_b")
_SCALE = "lora_scale"  # alpha / rank


class KeepsAdapters(keras.layers.Layer):
    """A layer whose adapters are saved beside its kernel, and loaded.

    Keras saves the sum of kernel and adapters, and sets both factors to zero when it loads weights into a layer with
    adapters: they would never train again. To be mixed into a layer of Keras that has `enable_lora`.
    """

    lora_enabled: bool
    lora_alpha: float
    lora_rank: int

    def save_own_variables(self, store: Any) -> None:
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
        """Loads the weights; where this layer has no adapters, those of the file are added to the kernel.

        Raises:
            ValueError: if this layer has adapters, and the file none of that rank; or if the file has some and this
                layer's kernel is quantized, so that they cannot be added to it.
        """
        values = {name: store[name] for name in store.keys()}
        factors = [values.pop(name) for name in _FACTORS if name in values]
        scale = values.pop(_SCALE, None)
        if self.lora_enabled:
            if [factor.shape for factor in factors] != [tuple(getattr(self, name).shape) for name in _FACTORS]:
                found = f"those of rank {factors[0].shape[-1]}" if factors else "none"
                raise ValueError(
                    f"{self.path} has LoRA adapters of rank {self.lora_rank}, but the file has {found}. Load weights "
                    "without adapters before add_lora, and a file of save_adapters with "
                    "keras_vit.training.load_adapters(model, path)."
                )
        elif factors and self.quantization_mode is not None:
            raise ValueError(
                f"The file has LoRA adapters for {self.path}, which has none, and whose kernel is quantized, so that "
                "they cannot be added to it. Call add_lora with the same rank before, or load them with "
                "keras_vit.training.load_adapters(model, path)."
            )
        elif factors:
            values["0"] = values["0"] + (float(scale) * (factors[0] @ factors[1])).astype("float32")
        super().load_own_variables(values)
        for name, value in zip(_FACTORS, factors if self.lora_enabled else (), strict=False):
            getattr(self, name).assign(value)
            self.lora_alpha = float(scale) * self.lora_rank
