"""How fast the models compute, beside the native implementations that are installed and the products they consist of.

    python benchmarks/speed.py --backends torch jax tensorflow --json speed.json

Every row is a model, a size, a batch, a precision and a job; its contestants take turns in one process, so that their
ratios hold where the machine's speed drifts. Peers: timm (PyTorch), a minimal Linen model of Flax's own layers (JAX),
KerasHub (TensorFlow). The limit is the model's matrix products alone, in the same framework and precision.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

BACKENDS = ("torch", "jax", "tensorflow")
JOBS = ("forward", "train")
SHAPES = {  # width, depth, heads, MLP
    "ViT-Ti/16": (192, 12, 3, 768),
    "ViT-S/16": (384, 12, 6, 1536),
    "ViT-B/16": (768, 12, 12, 3072),
    "ViT-L/16": (1024, 24, 16, 4096),
    "R50+ViT-B/16": (768, 12, 12, 3072),
}
TIMM = {
    "ViT-Ti/16": "vit_tiny_patch16_224",
    "ViT-S/16": "vit_small_patch16_224",
    "ViT-B/16": "vit_base_patch16_224",
    "ViT-L/16": "vit_large_patch16_224",
    "R50+ViT-B/16": "vit_base_r50_s16_224",
}
ROWS = (
    "ViT-B/16 224 8 float32 forward",
    "ViT-B/16 224 1 float32 forward",
    "ViT-B/16 384 2 float32 forward",
    "ViT-B/16 224 8 bfloat16 forward",
    "ViT-B/16 224 8 float32 train",
    "ViT-Ti/16 224 8 float32 train",
    "R50+ViT-B/16 224 4 float32 forward",
    "R50+ViT-B/16 224 1 float32 forward",
)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--rows", nargs="+", metavar="ROW", default=ROWS, help=f"such as {ROWS[0]!r} (default: all)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    parser.add_argument("--only", nargs="+", help="contestants; keras_vit always takes part")
    parser.add_argument("--json", type=Path, help="file for all times")
    parser.add_argument("--measure", metavar="ROW", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.rounds, options.only)))
        return
    results = []
    print("| row | backend | contestant | images/s | of them in the slowest and fastest round | keras_vit / it |")
    print("|---|---|---|---|---|---|")
    for row in options.rows:
        for backend in options.backends:
            command = [sys.executable, __file__, "--measure", row, "--rounds", str(options.rounds)]
            command += ["--only", *options.only] if options.only else []
            package = str(Path(__file__).resolve().parents[1])
            path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
            environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            times = json.loads(done.stdout.splitlines()[-1])
            results.append({"row": row, "backend": backend, "seconds": times})
            show(row, backend, times)
    if options.json:
        options.json.write_text(json.dumps({"threads": os.cpu_count(), "results": results}, indent=1) + "\n")


def show(row, backend, times):
    batch = int(row.split()[2])
    ours = statistics.median(times["keras_vit"])
    for name, seconds in times.items():
        rate = batch / statistics.median(seconds)
        extremes = f"{batch / max(seconds):.2f} to {batch / min(seconds):.2f}"
        ratio = statistics.median(seconds) / ours
        print(f"| {row} | {backend} | {name} | {rate:.2f} | {extremes} | {ratio:.2f} |", flush=True)


def measure(row, rounds, only):
    """Seconds of every round, by contestant."""
    model, size, batch, dtype, job = row.split()
    makers = CONTESTANTS[os.environ["KERAS_BACKEND"]]
    names = [name for name in makers if name == "keras_vit" or only is None or name in only]
    images = np.random.default_rng(0).uniform(-1, 1, (int(batch), int(size), int(size), 3)).astype("float32")
    steps = {}
    for name in names:
        with contextlib.suppress(NotThere):
            steps[name] = makers[name](model, images, dtype, job)
    times = {name: [] for name in steps}
    for step in steps.values():
        step()  # compiles
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - started)
    return times


class NotThere(Exception):
    """A contestant that is not installed, or has no such model or job."""


def need(condition):
    if not condition:
        raise NotThere


def installed(*names):
    return all(importlib.util.find_spec(name) for name in names)


def ours(model, images, dtype, **changes):
    import keras_vit

    return keras_vit.create_model(model, image_size=images.shape[1], classes=1000, dtype=dtype, **changes)


LABELS = np.arange(1000)


def trained(model, images):
    """One update of a Keras model."""
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    return lambda: model.train_on_batch(images, LABELS[: len(images)])


def predicted(model, images):
    return lambda: model.predict_on_batch(images)


# What Keras computes, whatever the backend


def keras_vit_predicts(model, images, dtype, job):
    """As `predict` and `fit` do it."""
    return (predicted if job == "forward" else trained)(ours(model, images, policy(dtype, job)), images)


def keras_vit_folded(model, images, dtype, job):
    need(job == "forward" and "R50" in model)
    return predicted(ours(model, images, dtype).folded(), images)


def policy(dtype, job):
    return "mixed_bfloat16" if job == "train" and dtype == "bfloat16" else dtype


# PyTorch


def torch_call(model, images, dtype, job):
    """The model called as a function, without what `predict` does around it."""
    import torch

    need(job == "forward")
    model, x = ours(model, images, dtype), torch.from_numpy(images)

    def step():
        with torch.no_grad():
            return model(x, training=False)

    return step


def timm(model, images, dtype, job):
    need(installed("timm", "torchvision"))
    import torch

    # What torchvision registers for detection does not load beside this torch; declared, nobody misses it.
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import timm as package

    net = package.create_model(TIMM[model], img_size=images.shape[1], num_classes=1000)
    net.keep = library
    x, y = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(LABELS[: len(images)])
    reduced = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")
    if job == "forward":
        net.eval()

        def step():
            with torch.no_grad(), reduced:
                return net(x)

        return step
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)

    def step():
        optimizer.zero_grad()
        with reduced:
            loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def torch_limit(model, images, dtype, job):
    import torch

    need(job == "forward" and "R50" not in model)
    dtype = getattr(torch, dtype)
    products = [(torch.randn(n, k).to(dtype), torch.randn(k, m).to(dtype)) for n, k, m in sizes(model, images)]
    depth = SHAPES[model][1]

    def step():
        for _ in range(depth):
            for a, b in products:
                a @ b

    return step


def sizes(model, images):
    """The products of one block's dense layers."""
    width, _, _, hidden = SHAPES[model]
    tokens = len(images) * ((images.shape[1] // 16) ** 2 + 1)
    return [(tokens, width, width)] * 4 + [(tokens, width, hidden), (tokens, hidden, width)]


# JAX


def jax_call(model, images, dtype, job):
    import jax

    need(job == "forward")
    model, x = ours(model, images, dtype), jax.numpy.asarray(images)
    trainable, other = ([v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables))
    function = jax.jit(lambda t, o, x: model.stateless_call(t, o, x, training=False)[0])
    return lambda: function(trainable, other, x).block_until_ready()


def flax(model, images, dtype, job):
    need(installed("flax", "optax") and "R50" not in model)
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax

    width, depth, heads, hidden = SHAPES[model]
    dtype = jnp.dtype(dtype)

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            y = nn.LayerNorm(dtype=dtype)(x)
            x = x + nn.MultiHeadDotProductAttention(heads, dtype=dtype)(y, y)
            y = nn.Dense(hidden, dtype=dtype)(nn.LayerNorm(dtype=dtype)(x))
            return x + nn.Dense(width, dtype=dtype)(nn.gelu(y))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(width, (16, 16), (16, 16), "VALID", dtype=dtype)(x).reshape(len(x), -1, width)
            token = self.param("token", nn.initializers.zeros, (1, 1, width)).astype(dtype)
            x = jnp.concatenate([jnp.tile(token, (len(x), 1, 1)), x], 1)
            x = x + self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:])).astype(dtype)
            for _ in range(depth):
                x = Block()(x)
            return nn.Dense(1000)(nn.LayerNorm(dtype=dtype)(x)[:, 0].astype(jnp.float32))

    net, x, y = Net(), jnp.asarray(images), jnp.asarray(LABELS[: len(images)])
    parameters = jax.jit(net.init)(jax.random.key(0), x[:1])
    if job == "forward":
        function = jax.jit(net.apply)
        return lambda: function(parameters, x).block_until_ready()
    optimizer = optax.sgd(0.01, momentum=0.9)

    def loss(parameters):
        return optax.softmax_cross_entropy_with_integer_labels(net.apply(parameters, x), y).mean()

    @jax.jit
    def update(parameters, state):
        value, grads = jax.value_and_grad(loss)(parameters)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(parameters, updates), state, value

    state = [parameters, optimizer.init(parameters)]

    def step():
        *state[:], value = update(*state)
        return value.block_until_ready()

    return step


def jax_limit(model, images, dtype, job):
    import jax

    need(job == "forward" and "R50" not in model)
    keys = jax.random.key(0)
    products = [
        (jax.random.normal(keys, (n, k)).astype(dtype), jax.random.normal(keys, (k, m)).astype(dtype))
        for n, k, m in sizes(model, images)
    ]
    product, depth = jax.jit(lambda a, b: a @ b), SHAPES[model][1]

    def step():
        for _ in range(depth):
            for a, b in products:
                product(a, b).block_until_ready()

    return step


# TensorFlow


def tensorflow_call(model, images, dtype, job, xla=False):
    import tensorflow as tf

    need(job == "forward")
    model, x = ours(model, images, dtype), tf.constant(images)
    function = tf.function(lambda x: model(x, training=False), jit_compile=xla, autograph=False)
    return lambda: function(x).numpy()


def tensorflow_xla(model, images, dtype, job):
    return tensorflow_call(model, images, dtype, job, xla=True)


def keras_hub(model, images, dtype, job):
    need(installed("keras_hub") and "R50" not in model)
    import keras
    import keras_hub as package

    width, depth, heads, hidden = SHAPES[model]
    dtype = policy(dtype, job)
    backbone = package.models.ViTBackbone(
        image_shape=images.shape[1:],
        patch_size=16,
        num_layers=depth,
        num_heads=heads,
        hidden_dim=width,
        mlp_dim=hidden,
        dtype=dtype,
    )
    head = keras.layers.Dense(1000, dtype="float32")
    net = keras.Model(backbone.inputs, head(backbone.output[:, 0]))
    return (predicted if job == "forward" else trained)(net, images)


def tensorflow_limit(model, images, dtype, job):
    import tensorflow as tf

    need(job == "forward" and "R50" not in model)
    products = [
        (tf.cast(tf.random.normal((n, k)), dtype), tf.cast(tf.random.normal((k, m)), dtype))
        for n, k, m in sizes(model, images)
    ]
    depth = SHAPES[model][1]

    def step():
        for _ in range(depth):
            for a, b in products:
                tf.matmul(a, b)

    return step


CONTESTANTS = {
    "torch": {
        "keras_vit": keras_vit_predicts,
        "called": torch_call,
        "folded": keras_vit_folded,
        "timm": timm,
        "limit": torch_limit,
    },
    "jax": {
        "keras_vit": keras_vit_predicts,
        "called": jax_call,
        "folded": keras_vit_folded,
        "Flax": flax,
        "limit": jax_limit,
    },
    "tensorflow": {
        "keras_vit": keras_vit_predicts,
        "called": tensorflow_call,
        "XLA": tensorflow_xla,
        "folded": keras_vit_folded,
        "KerasHub": keras_hub,
        "limit": tensorflow_limit,
    },
}

if __name__ == "__main__":
    main()
