"""Which attention layer should a Vision Transformer in Keras use?

Times the forward pass and the training step of ViT-B/16 with three ways to write self-attention:

* `keras_mha`: `keras.layers.MultiHeadAttention`;
* `separate`: one Dense each for query, key and value, then `keras.ops.dot_product_attention`;
* `fused`: one Dense for all three, then `keras.ops.dot_product_attention`.

All three run in one process, in turn, on the backend that KERAS_BACKEND names, so that their ratios hold
even where the machine's speed drifts:

    KERAS_BACKEND=jax python benchmarks/attention.py --batch 8 --rounds 5
"""

import argparse
import json
import statistics
import time

import keras
import numpy as np
from keras import layers, ops

WIDTH, HEADS, MLP, DEPTH, PATCH, SIZE = 768, 12, 3072, 12, 16, 224


def keras_mha(x):
    return layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(x, x)


class Separate(layers.Layer):
    """Three projections, fused attention operation, output projection."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.query, self.key, self.value, self.out = (layers.Dense(WIDTH) for _ in range(4))

    def build(self, input_shape):
        for dense in (self.query, self.key, self.value, self.out):
            dense.build(input_shape)

    def heads(self, x):
        return ops.reshape(x, (-1, x.shape[1], HEADS, WIDTH // HEADS))

    def call(self, x):
        y = ops.dot_product_attention(*(self.heads(d(x)) for d in (self.query, self.key, self.value)))
        return self.out(ops.reshape(y, (-1, x.shape[1], WIDTH)))


class Fused(Separate):
    """One projection of three times the width."""

    def __init__(self, **kwargs):
        layers.Layer.__init__(self, **kwargs)
        self.qkv, self.out = layers.Dense(3 * WIDTH), layers.Dense(WIDTH)

    def build(self, input_shape):
        self.qkv.build(input_shape)
        self.out.build(input_shape)

    def call(self, x):
        y = ops.dot_product_attention(*(self.heads(t) for t in ops.split(self.qkv(x), 3, axis=-1)))
        return self.out(ops.reshape(y, (-1, x.shape[1], WIDTH)))


class ByHand(Separate):
    """Three projections and attention written as two einsums."""

    def call(self, x):
        q, k, v = (self.heads(d(x)) for d in (self.query, self.key, self.value))
        scores = ops.einsum("bqhd,bkhd->bhqk", q * (WIDTH // HEADS) ** -0.5, k)
        y = ops.einsum("bhqk,bkhd->bqhd", ops.softmax(scores), v)
        return self.out(ops.reshape(y, (-1, x.shape[1], WIDTH)))


class PatchMatmul(layers.Layer):
    """Patch embedding as a reshape and a matrix product."""

    def build(self, input_shape):
        self.dense = layers.Dense(WIDTH)
        self.dense.build((None, None, PATCH * PATCH * 3))

    def call(self, x):
        g = SIZE // PATCH
        x = ops.reshape(x, (-1, g, PATCH, g, PATCH, 3))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        return self.dense(ops.reshape(x, (-1, g * g, PATCH * PATCH * 3)))


def build(attention, patch="conv"):
    inputs = keras.Input((SIZE, SIZE, 3))
    if patch == "conv":
        x = layers.Conv2D(WIDTH, PATCH, PATCH)(inputs)
        x = layers.Reshape((-1, WIDTH))(x)
    else:
        x = PatchMatmul()(inputs)
    for _ in range(DEPTH):
        x = x + attention(layers.LayerNormalization(epsilon=1e-6)(x))
        y = layers.Dense(MLP)(layers.LayerNormalization(epsilon=1e-6)(x))
        y = layers.Activation(lambda t: ops.gelu(t, approximate=True))(y)
        x = x + layers.Dense(WIDTH)(y)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    model = keras.Model(inputs, layers.Dense(1000)(x[:, 0]))
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


VARIANTS = {
    "keras_mha": lambda: build(keras_mha),
    "separate": lambda: build(lambda x: Separate()(x)),
    "fused": lambda: build(lambda x: Fused()(x)),
    "by_hand": lambda: build(lambda x: ByHand()(x)),
    "separate_patch_matmul": lambda: build(lambda x: Separate()(x), patch="matmul"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--no-train", action="store_true")
    args = parser.parse_args()
    x = np.random.default_rng(0).uniform(-1, 1, (args.batch, SIZE, SIZE, 3)).astype("float32")
    y = np.arange(args.batch)
    times = {}
    models = {name: VARIANTS[name]() for name in args.variants}
    jobs = {"forward": lambda m: m.predict_on_batch(x)}
    if not args.no_train:
        jobs["train"] = lambda m: m.train_on_batch(x, y)
    for job, run in jobs.items():
        for model in models.values():
            run(model)  # compiles
        for _ in range(args.rounds):
            for name, model in models.items():
                start = time.perf_counter()
                run(model)
                times.setdefault(f"{job}/{name}", []).append(time.perf_counter() - start)
    result = {k: round(args.batch / statistics.median(v), 2) for k, v in times.items()}
    print(json.dumps({"backend": keras.backend.backend(), "batch": args.batch, "images_per_second": result}))


if __name__ == "__main__":
    main()
