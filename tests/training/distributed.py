"""What the tests of several devices run, each in processes of its own: `python -m tests.training.distributed WHAT`.

How many devices there are is settled when a framework starts, so that it cannot be changed within the tests' process.
Each job prints its figures as JSON on its last line.
"""

import json
import math
import os
import sys

import keras
import numpy as np

from keras_vit import BiT, BiTConfig, VisionTransformer, ViTConfig, training
from keras_vit.evaluation import evaluate, extract_features
from keras_vit.layers import skip_initialization
from keras_vit.training import MomentumSGD

VIT = ViTConfig(
    image_size=16, patch_size=8, width=64, depth=1, heads=4, mlp_width=128, representation_size=32, classes=10
)
CONFIGS = {
    "vit": VIT.replace(dropout=0.1),
    "hybrid": VIT.replace(
        patch_size=1,
        stem_stages=(1,),
        stem_width=32,
        pooling="map",
        class_token=False,
        representation_size=None,
    ),
    "bit": BiTConfig(image_size=16, width=32, stages=(1, 1), classes=10),
}
# A batch is all the images, for JAX and TensorFlow to compile no more than they must.
BATCH, STEPS = 16, 4
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (BATCH, 16, 16, 3)).astype("float32")
LABELS = RNG.integers(0, 10, BATCH)


def compiled(config, clip=1.0, optimizer=keras.optimizers.SGD):
    """The same model whoever calls, with no weights of zero, so that the first step tells something."""
    keras.utils.set_random_seed(0)
    with skip_initialization():  # the random numbers of JAX take it seconds to compile, for every way to divide them
        model = (BiT if isinstance(config, BiTConfig) else VisionTransformer)(config)
    rng = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(rng.normal("gamma" in weight.path, 0.1, weight.shape).astype("float32"))
    # Not Adam: where a gradient is all rounding, its steps are as large as anywhere, and in any direction.
    model.compile(
        optimizer(0.1, momentum=0.9, global_clipnorm=clip),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def curve(model, part=slice(None)):
    """The loss of each step; `part` is what this process sees of the one batch that there is."""
    images, labels = IMAGES[part], LABELS[part]
    return model.fit(images, labels, batch_size=len(images), epochs=STEPS, shuffle=False, verbose=0).history["loss"]


def odd(model):
    """What is counted in a number of images that no number of devices divides: at once, and in batches."""
    images, labels = np.resize(IMAGES, (37, *IMAGES.shape[1:])), np.resize(LABELS, 37)
    counts = [evaluate(model, (images, labels), batch_size=size, progress=False) for size in (64, 16)]
    features, _ = extract_features(model, (images, labels))
    return {
        "loss": [result.loss for result in counts],
        "examples": [result.examples for result in counts],
        "features": features[-1].tolist(),
    }


def shares(model):
    """What one device holds of the split weights, of all weights, and of the optimizer's variables."""
    from keras_vit.training.distribution import split_weights

    def share(variables):
        whole = sum(v.value.nbytes for v in variables)
        return sum(v.value.addressable_shards[0].data.nbytes for v in variables) / whole

    split = list(split_weights(model).values())
    found = {"split": share(split), "weights": share(model.weights), "arrays": len(split)}
    if getattr(model, "optimizer", None) and model.optimizer.built:
        found["optimizer"] = share([v for v in model.optimizer.variables if len(v.shape)])
    return found


def fine_tuned(model, validation=13, batch_size=BATCH, **options):
    """The log of a short run, evaluated on images that do not divide."""
    pixels = (IMAGES + 1) * 127.5
    recipe = training.Recipe(
        steps=2,
        batch_size=batch_size,
        image_size=16,
        learning_rate=0.1,
        clip_norm=1.0,
        augmentation=training.Augmentation(crop="resize", flip=False),
    )
    test = (pixels[:validation], LABELS[:validation])
    done = training.finetune(model, (pixels, LABELS), recipe, validation=test, every=1, verbose=False, **options)
    # The model can be read, too: it is not lost.
    total = float(sum(np.abs(keras.ops.convert_to_numpy(w)).sum() for w in done.model.trainable_weights))
    return {name: [row[name] for row in done.log] for name in ("loss", "val_loss", "val_accuracy")} | {"total": [total]}


def exchanged(config):
    """How often all tokens are summed, and gathered, over the devices of a split model in a forward pass."""
    import re

    import jax

    with training.model_parallel(config, 8).scope():
        model = VisionTransformer(config)
        groups = (model.trainable_variables, model.non_trainable_variables)
        state = [[variable.value for variable in group] for group in groups]
        call = jax.jit(lambda state, images: model.stateless_call(*state, images)[0])
        program = call.lower(state, IMAGES).compile().as_text()
    tokens = BATCH * (1 + math.prod(config.grid_size)) * config.width
    counts = {"all-reduce": 0, "all-gather": 0}
    for shapes, kind in re.findall(r" = (.*?) (all-reduce|all-gather)(?:-start)?\(", program):
        sizes = [math.prod(map(int, shape.split(","))) for shape in re.findall(r"\[([\d,]+)\]", shapes)]
        counts[kind] += sizes.count(tokens)
    return counts


def eight():
    """JAX on 8 virtual devices: every kind of model whole, and divided in one way or another."""
    import tempfile

    from keras_vit import from_checkpoint, to_checkpoint
    from keras_vit.training.distribution import data_parallel, model_parallel

    config, found = CONFIGS["vit"], {}
    model = compiled(config)
    found["one"] = {"loss": curve(model)}
    for name, distribution in {"data": data_parallel(), "model": model_parallel(config, 8)}.items():
        with distribution.scope():
            divided = compiled(config)
            found[name] = {"loss": curve(divided), **shares(divided)}
            found[name]["odd"] = odd(divided)
            found[name]["finite"] = all(np.isfinite(weight.numpy()).all() for weight in divided.weights)
    found["one"]["odd"] = odd(model)
    found["exchanged"] = exchanged(config.replace(representation_size=None, depth=2))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "vit.npz")
        to_checkpoint(model, path)
        with model_parallel(config, 4).scope():
            loaded = from_checkpoint(path)
            # 13 images on two groups of devices: the last batch cannot be divided, and need not be.
            there = evaluate(loaded, (IMAGES[:13], LABELS[:13]), batch_size=8, progress=False)
    here = evaluate(model, (IMAGES[:13], LABELS[:13]), batch_size=13, progress=False)
    found["loaded"] = {
        "loss": [here.loss, there.loss],
        "same_counts": bool((there.confusion == here.confusion).all()),
        **shares(loaded),
    }
    plain = config.replace(dropout=0.0)
    found["tuned"] = {"one": fine_tuned(compiled(plain), batch_size=12)}  # batches that cannot be divided either
    with data_parallel().scope():
        found["tuned"]["shared"] = fine_tuned(compiled(plain), batch_size=12)
    logits = compiled(CONFIGS["hybrid"]).predict(IMAGES, verbose=0)
    with model_parallel(CONFIGS["hybrid"], 4).scope():
        divided = compiled(CONFIGS["hybrid"])
        error = np.abs(divided.predict(IMAGES, verbose=0) - logits).max()
        found["hybrid"] = {"error": float(error), **shares(divided)}
    return found


def processes(address, count, rank):
    """JAX: one of several processes with 2 virtual devices each; every one gives its part of each batch."""
    count, rank = int(count), int(rank)
    keras.distribution.initialize(address, num_processes=count, process_id=rank)
    from keras_vit.training.distribution import model_parallel

    part = slice(rank * BATCH // count, (rank + 1) * BATCH // count)
    with model_parallel(CONFIGS["vit"], 2, auto_shard_dataset=False).scope():
        model = compiled(CONFIGS["vit"])
        return {"loss": curve(model, part), "devices": len(keras.distribution.list_devices()), **shares(model)}


def mirrored():
    """TensorFlow: MirroredStrategy on 2 logical devices."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    config = CONFIGS["vit"].replace(dropout=0.0)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found = {"replicas": strategy.num_replicas_in_sync, "mirrored": {}}
    alone = compiled(config, 1.0, MomentumSGD)  # at one rate, Keras's SGD does the same on one device
    found["one"] = {"loss": curve(alone), "odd": odd(alone)}
    for optimizer in (keras.optimizers.SGD, MomentumSGD):
        with strategy.scope():
            model = compiled(config, 1.0, optimizer)
        found["mirrored"][optimizer.__name__] = curve(model)
    found["odd"] = odd(model)
    found["tuned"] = {"one": fine_tuned(compiled(config), batch_size=5)}
    with strategy.scope():
        model, other = compiled(config), compiled(config)
        found["tuned"]["inside"] = fine_tuned(other, batch_size=5)
    found["tuned"]["shared"] = fine_tuned(model, batch_size=5)
    found["compiled"] = [alone.optimize_for_inference(verbose=False).jit_compile]
    with strategy.scope():
        found["compiled"].append(model.optimize_for_inference(verbose=False).jit_compile)
    return found


def moved():
    """Models that were made on one device, and distributions of two that `finetune` is given."""
    config = CONFIGS["vit"].replace(dropout=0.0)
    if keras.backend.backend() == "jax":
        distributions = {"data": training.data_parallel(), "model": training.model_parallel(config, 2)}
    else:
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        distributions = {"mirrored": tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])}
    found = {name: fine_tuned(compiled(config), distribution=it) for name, it in distributions.items()}
    return {"one": fine_tuned(compiled(config)), **found}


# torch 2.13 may hang when the last who holds a gloo group is freed: its thread waits for Python's lock, and the freeing
# waits for the thread. So nothing is freed, and the process ends without tidying up.
_KEPT = []


def ddp(address, count, rank):
    """torch: DistributedDataParallel around the model in a loop of one's own, and gradients averaged within `fit`."""
    import torch

    count, rank = int(count), int(rank)
    config = CONFIGS["vit"].replace(dropout=0.0)
    found = {"one": curve(compiled(config))} if rank == 0 else {}
    torch.distributed.init_process_group("gloo", init_method=f"tcp://{address}", world_size=count, rank=rank)
    part = slice(rank * BATCH // count, (rank + 1) * BATCH // count)

    model = compiled(config)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer, weights = model.optimizer, model.trainable_variables
    optimizer.build(weights)
    found["loop"] = []
    for _ in range(STEPS):
        logits = wrapped(torch.from_numpy(IMAGES[part]), training=True)
        loss = model.loss(torch.from_numpy(LABELS[part]), logits)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            optimizer.apply([weight.value.grad for weight in weights], weights)
        found["loop"].append(_mean(loss.detach()))

    def average(parameter):
        torch.distributed.all_reduce(parameter.grad)
        parameter.grad /= count

    model = compiled(config)
    for weight in model.trainable_variables:
        weight.value.register_post_accumulate_grad_hook(average)
    found["fit"] = [_mean(torch.tensor(loss)) for loss in curve(model, part)]
    torch.distributed.barrier()
    _KEPT.append(wrapped)
    return found


def _mean(loss):
    """The mean of the processes' losses."""
    import torch

    torch.distributed.all_reduce(loss)
    return float(loss) / torch.distributed.get_world_size()


if __name__ == "__main__":
    job, *arguments = sys.argv[1:]
    jobs = {"eight": eight, "processes": processes, "mirrored": mirrored, "ddp": ddp, "moved": moved}
    print("\n" + json.dumps(jobs[job](*arguments)), flush=True)
    if job == "ddp":
        os._exit(0)
