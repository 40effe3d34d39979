"""What the tests of sharded checkpoints run in processes of their own.

    python -m tests.training.sharded_jobs save|load DEVICES_PER_COPY PATH [full]

Prints as JSON what the devices held at most, and the loss of the step after the checkpoint. `full` takes H/14 as it is,
without a step.
"""

import contextlib
import json
import sys

import jax
import keras
import numpy as np

from keras_vit import VisionTransformer
from keras_vit.layers import skip_initialization
from keras_vit.models import variant_config
from keras_vit.training import load_sharded, model_parallel, save_sharded, sharded

H14 = variant_config("ViT-H/14").replace(classes=1000)
MINI = H14.replace(image_size=28, width=64, depth=3, mlp_width=256, classes=16, dropout=0.0)
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (16, 28, 28, 3)).astype("float32")
LABELS = RNG.integers(0, 16, 16)


class Watch:
    """What every device holds, looked at whenever an array is written, made or assigned."""

    def __init__(self, monkey):
        self.most = {}
        for owner, name in (
            (jax, "make_array_from_callback"),
            (sharded, "write_npz"),
            (keras.Variable, "_direct_assign"),
        ):
            monkey.enter_context(self.watching(owner, name))

    def look(self):
        buffers = {}  # by their place: two arrays may be views of one
        for array in jax.live_arrays():
            for shard in array.addressable_shards:
                buffers[shard.device.id, shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
        held = {}
        for (device, _), size in buffers.items():
            held[device] = held.get(device, 0) + size
        self.most = {device: max(size, self.most.get(device, 0)) for device, size in held.items()}
        return held

    @contextlib.contextmanager
    def watching(self, owner, name):
        plain = getattr(owner, name)

        def watched(*arguments, **options):
            self.look()
            arguments = [self.each(value) if hasattr(value, "__next__") else value for value in arguments]
            result = plain(*arguments, **options)
            self.look()
            return result

        setattr(owner, name, watched)
        yield
        setattr(owner, name, plain)

    def each(self, values):
        for value in values:
            self.look()
            yield value


def compiled(config):
    with skip_initialization():
        model = VisionTransformer(config)
    for number, weight in enumerate(model.trainable_variables):  # without an array of the whole model on any device
        values = np.random.default_rng(number).normal(0, 0.05, weight.shape).astype("float32")
        weight.assign(values + ("gamma" in weight.path))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)
    return model


def step(model):
    return model.fit(IMAGES, LABELS, batch_size=16, epochs=1, shuffle=False, verbose=0).history["loss"][0]


def run(what, shards, path, full):
    found = {}
    config = H14 if full else MINI
    scope = model_parallel(config, shards).scope() if shards > 1 else contextlib.nullcontext()
    with scope, contextlib.ExitStack() as stack:
        model = compiled(config)
        if what == "save" and not full:
            found["first"] = step(model)
        if what == "load" and full:
            for weight in [*model.trainable_variables, *model.optimizer.variables]:
                weight.assign(np.zeros(weight.shape, weight.dtype))
        watch = Watch(stack)
        before = watch.look()
        (save_sharded if what == "save" else load_sharded)(model, path)
        variables = [*model.variables, *model.optimizer.variables]
        whole = sum(variable.value.nbytes for variable in {id(v): v for v in variables}.values())
        found |= {
            "devices": len(before),
            "whole": whole,
            "before": max(before.values()),
            "most": max(watch.most.values()),
            "largest": max(variable.value.nbytes for variable in variables),
            "sum": float(sum(np.abs(np.asarray(s.data)).sum(dtype="float64") for v in model.trainable_variables
                             for s in v.value.addressable_shards if s.replica_id == 0)),
        }  # fmt: skip
        if not full:
            found["loss"] = step(model)
    return found


if __name__ == "__main__":
    what, shards, path, *full = sys.argv[1:]
    print("\n" + json.dumps(run(what, int(shards), path, full == ["full"])), flush=True)
