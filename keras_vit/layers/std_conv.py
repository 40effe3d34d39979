"""Convolution with standardised weights (Qiao et al., arXiv 1903.10520), as in BiT and the hybrids."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.fast_paths import fast_path
from keras_vit.layers.initialization import initializer


@keras.saving.register_keras_serializable(package="keras_vit")
class StdConv2D(keras.layers.Layer):
    """Convolution without bias whose kernel has mean 0 and standard deviation 1 for every output channel.

    The stored kernel is raw; it is standardised at every call, in float32.

    Args:
        filters: Number of output channels.
        kernel_size: Height and width of the kernel.
        strides: Step of the convolution in both directions.
        padding: `"same"` (TensorFlow's, which pads more after than before), or the number of zeros on every side.
        epsilon: Keeps the division finite.
        epsilon_inside: False: the kernel is divided by `std + epsilon` (`StdConv` in the official
            `models_resnet.py`). True: by `sqrt(var + epsilon)` (BiT).
        folded: True where the stored kernel has been standardised already, for inference.

    Input: `(batch, height, width, channels)`. Output: `(batch, rows, columns, filters)`.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        strides: int = 1,
        padding: str | int = "same",
        epsilon: float = 1e-5,
        epsilon_inside: bool = False,
        folded: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = filters
        self.kernel_size = kernel_size
        self.strides = strides
        self.padding = padding
        self.epsilon = epsilon
        self.epsilon_inside = epsilon_inside
        self.folded = folded

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            initializer=initializer("lecun_normal"),
            autocast=False,
        )

    def standardized_kernel(self) -> Any:
        """The kernel that the convolution uses, in float32."""
        kernel = ops.convert_to_tensor(self.kernel)
        if self.folded:
            return kernel
        kernel = kernel - ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
        variance = ops.mean(ops.square(kernel), axis=(0, 1, 2), keepdims=True)
        if self.epsilon_inside:
            return kernel / ops.sqrt(variance + self.epsilon)
        return kernel / (ops.sqrt(variance) + self.epsilon)

    def call(self, x: Any) -> Any:
        kernel = ops.cast(self.standardized_kernel(), x.dtype)
        padding = self.padding
        fast = fast_path("conv", x)
        if fast is not None:
            return fast(x, kernel, self.strides, padding)
        if padding != "same":
            x = ops.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0))) if padding else x
            padding = "valid"
        return ops.conv(x, kernel, self.strides, padding, data_format="channels_last")

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        def length(n: int | None) -> int | None:
            if n is None:
                return None
            if self.padding == "same":
                return -(-n // self.strides)
            return (n + 2 * self.padding - self.kernel_size) // self.strides + 1

        return (input_shape[0], length(input_shape[1]), length(input_shape[2]), self.filters)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "epsilon": self.epsilon,
            "epsilon_inside": self.epsilon_inside,
            "folded": self.folded,
        }
