"""What the tests of sharded checkpoints run in processes of their own.

    python -m tests.training.sharded_jobs all PATH                   on 8 virtual devices: written by 8, read on 4 and 1
    python -m tests.training.sharded_jobs save|load DEVICES PATH     with H/14 as it is, and no training step

Prints as JSON what the devices held at most, and the losses of the steps after the checkpoint.
"""

import contextlib
import gc
import json
import sys
import weakref

import jax
import keras
import numpy as np

from keras_vit import VisionTransformer
from keras_vit.layers import skip_initialization
from keras_vit.models import variant_config
from keras_vit.training import load_sharded, model_parallel, save_sharded, sharded

H14 = variant_config("ViT-H/14").replace(classes=1000)
MINI = H14.replace(image_size=28, width=64, depth=1, mlp_width=512, classes=16, dropout=0.0)
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (16, 28, 28, 3)).astype("float32")
LABELS = RNG.integers(0, 16, 16)


class Watch:
    """What every device holds, looked at whenever an array is written, made or assigned.

    Args:
        stack: Where watching ends.
        every: Of how many pieces that are written one is looked at: of thousands that takes long.
    """

    def __init__(self, stack, every=1):
        self.most, self.every, self.pieces = {}, every, {}
        for owner, name in (
            (jax, "make_array_from_callback"),
            (sharded, "write_npz"),
            (keras.Variable, "_direct_assign"),
        ):
            stack.enter_context(self.watching(owner, name))

    def look(self):
        buffers = {}  # by their place: two arrays may be views of one
        for array in jax.live_arrays():
            known, pieces = self.pieces.get(id(array), (None, None))
            if known is None or known() is not array:
                pieces = [
                    ((shard.device.id, shard.data.unsafe_buffer_pointer()), shard.data.nbytes)
                    for shard in array.addressable_shards
                ]
                self.pieces[id(array)] = weakref.ref(array), pieces
            buffers.update(pieces)
        sizes = {}
        for (device, _), size in buffers.items():
            sizes[device] = sizes.get(device, 0) + size
        self.most = {device: max(size, self.most.get(device, 0)) for device, size in sizes.items()}
        return sizes

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
        for number, value in enumerate(values):
            if number % self.every == 0:
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


def run(what, shards, path, full=False):
    found = {}
    config = H14 if full else MINI
    devices = keras.distribution.list_devices()[:shards]
    scope = model_parallel(config, shards, devices).scope() if shards > 1 else contextlib.nullcontext()
    with scope, contextlib.ExitStack() as stack:
        model = compiled(config)
        if what == "save" and not full:
            found["first"] = step(model)
        if what == "load" and full:
            for weight in [*model.trainable_variables, *model.optimizer.variables]:
                weight.assign(np.zeros(weight.shape, weight.dtype))
        watch = Watch(stack, every=16 if full else 1)
        before = watch.look()
        (save_sharded if what == "save" else load_sharded)(model, path)
        variables = list({id(v): v for v in [*model.variables, *model.optimizer.variables]}.values())
        pieces = [shard for variable in variables for shard in variable.value.addressable_shards]
        found |= {
            "devices": len({piece.device for piece in pieces}),
            "whole": sum(variable.value.nbytes for variable in variables),
            "before": max(before.values()),
            "most": max(watch.most.values()),
            "largest": max(variable.value.nbytes for variable in variables),
            # Of weights and momenta.
            "sum": float(sum(np.abs(np.asarray(p.data)).sum(dtype="float64") for p in pieces if p.replica_id == 0)),
        }
        if not full:
            found["losses"] = [step(model), step(model)]  # the second one is after an update with the momenta
    return found


def run_all(path):
    found = []
    for what, shards in (("save", 8), ("load", 4), ("load", 1)):
        found.append(run(what, shards, path))
        keras.backend.clear_session()
        gc.collect()  # so that nothing of one model lies on the devices of the next
    return found


if __name__ == "__main__":
    what, *arguments, path = sys.argv[1:]
    answer = run_all(path) if what == "all" else run(what, int(arguments[0]), path, full=True)
    print("\n" + json.dumps(answer), flush=True)
