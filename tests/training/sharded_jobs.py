"""What the test of sharded checkpoints runs in a process of its own, on 8 virtual devices of JAX.

    python -m tests.training.sharded_jobs PATH     written by 8 devices, read on 4 and on 1

Prints as JSON the losses of the steps after the checkpoint, a sum over all values, and what a device held.
"""

import contextlib
import gc
import json
import sys

import jax
import keras
import numpy as np
from orbax.checkpoint import v1

from keras_vit import VisionTransformer
from keras_vit.layers import skip_initialization
from keras_vit.models import variant_config
from keras_vit.training import load_sharded, model_parallel, save_sharded

CONFIG = variant_config("ViT-H/14").replace(
    image_size=28, width=64, depth=1, mlp_width=512, classes=16, representation_size=None, dropout=0.0
)
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (16, 28, 28, 3)).astype("float32")
LABELS = RNG.integers(0, 16, 16)


def compiled():
    with skip_initialization():
        model = VisionTransformer(CONFIG)
    for number, weight in enumerate(model.trainable_variables):
        values = np.random.default_rng(number).normal(0, 0.05, weight.shape).astype("float32")
        weight.assign(values + ("gamma" in weight.path))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)
    return model


def step(model):
    return model.fit(IMAGES, LABELS, batch_size=16, epochs=1, shuffle=False, verbose=0).history["loss"][0]


def most_bytes(variables):
    """Of the device that holds most: each buffer once."""
    sizes = {}
    for variable in variables:
        for shard in variable.value.addressable_shards:
            sizes[shard.device] = sizes.get(shard.device, 0) + shard.data.nbytes
    return max(sizes.values())


def run(path, shards, save):
    devices = keras.distribution.list_devices()[:shards]
    scope = model_parallel(CONFIG, shards, devices).scope() if shards > 1 else contextlib.nullcontext()
    with scope:
        model = compiled()
        first = step(model) if save else None
        (save_sharded if save else load_sharded)(model, path)
        variables = list({id(v): v for v in [*model.variables, *model.optimizer.variables]}.values())
        return {
            "first": first,
            "device_bytes": most_bytes(variables),
            "bytes": sum(v.value.nbytes for v in variables),
            "sum": float(sum(np.abs(np.asarray(v.value)).sum(dtype="float64") for v in variables)),
            "losses": [step(model), step(model)],  # the second one is after an update with the momenta
        }


if __name__ == "__main__":
    # Orbax must not be given what lies on one device only, nor read a whole array where a device has a part of it.
    load, shardings = v1.load, []
    v1.load = lambda path, target: shardings.append([x.sharding for x in target if x is not ...]) or load(path, target)
    found = []
    for shards, save in ((8, True), (4, False), (1, False)):
        found.append(run(sys.argv[1], shards, save))
        keras.backend.clear_session()
        gc.collect()  # so that nothing of one model lies on the devices of the next
    assert all(len(one) == 1 for one in shardings)  # one array at a time
    assert jax.device_count() == 8
    print("\n" + json.dumps(found), flush=True)
