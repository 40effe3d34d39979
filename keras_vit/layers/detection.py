"""The heads of OWL-ViT and OWLv2 on the patches of a plain Vision Transformer (arXiv 2205.06230, section 3.1)."""

from typing import Annotated, Any

import keras
import numpy as np
from keras import ops

from keras_vit._arguments import Shape, Tensor
from keras_vit._options import OneOf, Pair
from keras_vit.layers.base import CompositeLayer, activated, registered
from keras_vit.layers.choices import HEAD_ACTIVATIONS
from keras_vit.layers.ops import float32_or_better, widened

LEAST_NORM = 1e-6  # added to the length of a patch's embedding
_LEAST_SIDE = 1e-4  # keeps logits of 0 and 1 finite


def box_bias(rows: int, columns: int) -> np.ndarray:
    """What is added to the logits of boxes, float32 `(rows * columns, 4)`: the lower right corner, one patch."""
    # As `compute_box_bias` of transformers' OWL-ViT, in the order centre x, centre y, width, height.
    x, y = np.meshgrid(np.arange(1, columns + 1) / columns, np.arange(1, rows + 1) / rows)
    place = np.stack([x, y, np.full_like(x, 1 / columns), np.full_like(y, 1 / rows)], -1).reshape(-1, 4)
    place = np.clip(place, 0, 1).astype("float32")
    return (np.log(place + _LEAST_SIDE) - np.log1p(-place + _LEAST_SIDE)).astype("float32")


@registered
class DetectionHead(CompositeLayer):
    """A box and the logits of all classes for each patch, from tokens that have taken the final norm.

    Args:
        classes: C, the number of classes.
        embedding: E, the length of the embeddings of patches and classes.
        grid_size: Rows and columns of patches.
        prefix_tokens: Tokens before the patches.
        class_token: Whether patches are multiplied by the first token.
        objectness: Whether there is a head for the probability that a patch shows an object (OWLv2).
        activation: Activation of the heads of boxes and objectness, as in `keras_vit.DetectorConfig`.
        epsilon: Epsilon of the normalisation after the product with the class token.

    Input: `(batch, prefix_tokens + P, D)`. Output: a dictionary of float32 or better: `logits` `(batch, P, C)`, `boxes`
    `(batch, P, 4)`, centre and size in 0..1, and `objectness` `(batch, P)` where there is such a head.

    Source: `OwlViTForObjectDetection` and `Owlv2ForObjectDetection` of transformers; `scenic/projects/owl_vit`.
    """

    classes: int
    embedding: int
    grid_size: Pair
    prefix_tokens: int = 1
    class_token: bool = True
    objectness: bool = False
    activation: Annotated[str, OneOf(HEAD_ACTIVATIONS)] = "exact"
    epsilon: float = 1e-5

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1]
        self.norm = self.inner_norm("norm", input_shape, self.epsilon)
        self.embed = self.inner_dense("embed", input_shape, self.embedding)
        shape = (*input_shape[:-1], self.embedding)
        self.queries = self.inner_dense("queries", shape, self.classes, use_bias=False)
        # A probability of 0.01 at first, as Scenic trains new heads.
        bias = keras.initializers.Constant(float(np.log(0.01 / 0.99)))
        self.logit_shift = self.inner_dense("logit_shift", input_shape, 1, bias=bias)
        self.logit_scale = self.inner_dense("logit_scale", input_shape, 1)
        for name, outputs in (("box", 4), *([("object", 1)] if self.objectness else [])):
            for layer in ("fc1", "fc2"):
                setattr(self, f"{name}_{layer}", self.inner_dense(f"{name}_{layer}", input_shape, width))
            setattr(self, f"{name}_fc3", self.inner_dense(f"{name}_fc3", input_shape, outputs, kernel="zeros"))

    def features(self, tokens: Tensor) -> Tensor:
        """Returns what all heads read, `(batch, P, D)`."""
        patches = tokens[:, self.prefix_tokens :]
        return self.norm(patches * tokens[:, :1] if self.class_token else patches)

    def call(self, tokens: Tensor, queries: Tensor | None = None, training: bool | None = None) -> dict[str, Tensor]:
        """Returns `logits`, `boxes` and, in an OWLv2, `objectness` of tokens; `queries` `(E, C)` replace the kernel."""
        x = self.features(tokens)
        vectors = widened(self.embed(x, training=training))
        vectors = vectors / (ops.sqrt(ops.sum(ops.square(vectors), -1, keepdims=True)) + LEAST_NORM)
        shift = widened(self.logit_shift(x, training=training))
        scale = ops.elu(widened(self.logit_scale(x, training=training))) + 1
        cosines = self.queries(vectors, training=training) if queries is None else ops.matmul(vectors, queries)
        found = {"logits": (widened(cosines) + shift) * scale}
        boxes = widened(self._mlp("box", x, training))
        found["boxes"] = ops.sigmoid(boxes + ops.convert_to_tensor(box_bias(*self.grid_size), boxes.dtype))
        if self.objectness:  # its gradient ends here, as in transformers
            found["objectness"] = widened(self._mlp("object", ops.stop_gradient(x), training))[..., 0]
        return found

    def _mlp(self, name: str, x: Tensor, training: bool | None) -> Tensor:
        """Returns the output of three linear layers."""
        for layer in (getattr(self, f"{name}_fc1"), getattr(self, f"{name}_fc2")):
            x = activated(layer, x, self.activation, training)
        return getattr(self, f"{name}_fc3")(x, training=training)

    def compute_output_spec(
        self, tokens: Tensor, queries: Any = None, training: Any = None
    ) -> dict[str, keras.KerasTensor]:
        shape = (tokens.shape[0], self.grid_size[0] * self.grid_size[1])
        ends = {"logits": (self.classes,), "boxes": (4,)} | ({"objectness": ()} if self.objectness else {})
        dtype = float32_or_better(self.compute_dtype)
        return {name: keras.KerasTensor((*shape, *end), dtype) for name, end in ends.items()}
