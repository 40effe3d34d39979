"""What the tests of several devices run in a process: `python -m tests.training.distributed eight|moved|mirrored`.

How many devices there are is fixed when a framework starts, so that it cannot be changed within the tests' process.
The job prints its figures as JSON on its last line.
"""

import contextlib
import importlib.util
import json
import math
import os
import re
import sys
import tempfile

import keras
import numpy as np

from keras_vit import BiT, BiTConfig, VisionTransformer, ViTConfig, from_checkpoint, to_checkpoint, training
from keras_vit.evaluation import evaluate, extract_features
from keras_vit.layers import skip_initialization
from keras_vit.training import MomentumSGD, data_parallel, model_parallel

VIT = ViTConfig(
    image_size=16, patch_size=8, width=64, depth=1, heads=4, mlp_width=128, representation_size=32, classes=10
)
CONFIGS = {
    "vit": VIT.replace(dropout=0.1),
    "hybrid": VIT.replace(
        patch_size=1, stem_stages=(1,), stem_width=32, pooling="map", class_token=False, representation_size=None
    ),
    "bit": BiTConfig(image_size=16, width=32, stages=(1, 1), classes=10),
}
# A batch is all the images, for JAX and TensorFlow to compile no more than they must.
BATCH, STEPS = 16, 4
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (BATCH, 16, 16, 3)).astype("float32")
LABELS = RNG.integers(0, 10, BATCH)


def compiled(config, optimizer=keras.optimizers.SGD):
    """The same model whoever calls, with no weights of zero, so that the first step tells something."""
    keras.utils.set_random_seed(0)
    with skip_initialization():  # the random numbers of JAX take it seconds to compile, for every way to divide them
        model = (BiT if isinstance(config, BiTConfig) else VisionTransformer)(config)
    rng = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(rng.normal("gamma" in weight.path, 0.1, weight.shape).astype("float32"))
    # Not Adam: where a gradient is all rounding, its steps are as large as anywhere, and in any direction.
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(0.1, momentum=0.9, global_clipnorm=1.0), loss)
    return model


def curve(model, part=slice(None), steps=STEPS):
    """The loss of each step; `part` is what this process sees of the one batch that there is."""
    images, labels = IMAGES[part], LABELS[part]
    return model.fit(images, labels, batch_size=len(images), epochs=steps, shuffle=False, verbose=0).history["loss"]


def odd(model):
    """What is counted in a number of images that no number of devices divides, in batches; features of all at once."""
    images, labels = np.resize(IMAGES, (37, *IMAGES.shape[1:])), np.resize(LABELS, 37)
    result = evaluate(model, (images, labels), batch_size=16, progress=False)
    features, _ = extract_features(model, (images, labels))
    return {"loss": result.loss, "features": features[-1].tolist(), "count": result.examples}


def shares(model):
    """What one device holds of the split weights, of all weights, and of the optimizer's variables."""

    def share(variables):
        whole = sum(v.value.nbytes for v in variables)
        return sum(v.value.addressable_shards[0].data.nbytes for v in variables) / whole

    split = list(training.split_weights(model).values())
    found = {"split": share(split), "weights": share(model.weights), "arrays": len(split)}
    if getattr(model, "optimizer", None) and model.optimizer.built:
        found["optimizer"] = share([v for v in model.optimizer.variables if len(v.shape)])
    return found


def fine_tuned(model, batch_size, **options):
    """The log of a short run with batches, and 13 images to evaluate on, that do not divide."""
    pixels = (IMAGES + 1) * 127.5
    recipe = training.Recipe(
        steps=2,
        batch_size=batch_size,
        image_size=16,
        learning_rate=0.1,
        clip_norm=1.0,
        augmentation=training.Augmentation(crop="resize", flip=False),
    )
    test = (pixels[:13], LABELS[:13])
    done = training.finetune(model, (pixels, LABELS), recipe, validation=test, every=1, verbose=False, **options)
    # The model can be read, too: it is not lost.
    total = float(sum(np.abs(keras.ops.convert_to_numpy(w)).sum() for w in done.model.trainable_weights))
    return {name: [row[name] for row in done.log] for name in ("loss", "val_loss", "val_accuracy")} | {"total": [total]}


def exchanged(config):
    """How often all tokens are summed, and gathered, over the devices of a split model in a forward pass."""
    import jax

    with model_parallel(config, 8).scope():
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


def resumed(config, folder):
    """A model that 8 devices have saved after a step, and 4 devices and one have read: what each does next."""
    from orbax.checkpoint import v1

    # Orbax must not be given what is on one device only, nor read a whole array where a device has a part of it.
    load, arrays, found = v1.load, [], []
    v1.load = lambda path, target: arrays.append(sum(x is not ... for x in target)) or load(path, target)
    for shards in (8, 4, 1):
        devices = keras.distribution.list_devices()[:shards]
        with model_parallel(config, shards, devices).scope() if shards > 1 else contextlib.nullcontext():
            model = compiled(config)
            model.optimizer.build(model.trainable_variables)
            first = curve(model, steps=1) if shards == 8 else []
            (training.save_sharded if shards == 8 else training.load_sharded)(model, os.path.join(folder, "saved"))
            variables = list({id(v): v for v in [*model.variables, *model.optimizer.variables]}.values())
            total = float(sum(np.abs(np.asarray(v.value)).sum(dtype="float64") for v in variables))
            held = sum(v.value.addressable_shards[0].data.nbytes for v in variables)
            share = held / sum(v.value.nbytes for v in variables)
            found.append({"sum": total, "share": share, "losses": curve(model, steps=2), "first": first})
    v1.load = load
    return {"found": found, "arrays": arrays}


def eight():
    """JAX on 8 virtual devices: a model whole, and its batches or its weights divided."""
    config, found = CONFIGS["vit"], {}
    model = compiled(config)
    found["one"] = {"loss": curve(model)}
    for name, distribution in {"data": data_parallel(), "model": model_parallel(config, 8)}.items():
        with distribution.scope():
            divided = compiled(config)
            found[name] = {"loss": curve(divided), **shares(divided)}
            if name == "data":
                found[name]["odd"] = odd(divided)
    found["one"]["odd"] = odd(model)
    return found


def moved():
    """JAX on 8 virtual devices: models that are read, resumed, evaluated and tuned on others; what devices exchange."""
    config, found = CONFIGS["vit"], {}
    model = compiled(config)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "vit.npz")
        to_checkpoint(model, path)
        with model_parallel(config, 4).scope():
            loaded = from_checkpoint(path)
            # 13 images on two groups of devices: the last batch cannot be divided, and need not be.
            there = evaluate(loaded, (IMAGES[:13], LABELS[:13]), batch_size=8, progress=False)
        if importlib.util.find_spec("orbax"):
            found["resumed"] = resumed(config, folder)
    here = evaluate(model, (IMAGES[:13], LABELS[:13]), batch_size=13, progress=False)
    same = bool((there.confusion == here.confusion).all())
    found["loaded"] = {"loss": [here.loss, there.loss], "same_counts": same, **shares(loaded)}
    plain = config.replace(dropout=0.0)
    found["tuned"] = {"one": fine_tuned(compiled(plain), 12)}
    with data_parallel().scope():
        found["tuned"]["inside"] = fine_tuned(compiled(plain), 12)
    for name, distribution in {"data": data_parallel(), "model": model_parallel(plain, 8)}.items():
        found["tuned"][f"moved to {name}"] = fine_tuned(compiled(plain), 12, distribution=distribution)
    found["exchanged"] = exchanged(config.replace(representation_size=None, depth=2))
    logits = compiled(CONFIGS["hybrid"]).predict(IMAGES, verbose=0)
    with model_parallel(CONFIGS["hybrid"], 4).scope():
        divided = compiled(CONFIGS["hybrid"])
        error = np.abs(divided.predict(IMAGES, verbose=0) - logits).max()
        found["hybrid"] = {"error": float(error), **shares(divided)}
    return found


def mirrored():
    """TensorFlow: MirroredStrategy on 2 logical devices."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    config = CONFIGS["vit"].replace(dropout=0.0)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found = {"replicas": strategy.num_replicas_in_sync}
    alone = compiled(config, MomentumSGD)
    found["one"] = {"loss": curve(alone), "odd": odd(alone)}
    with strategy.scope():
        model = compiled(config, MomentumSGD)
    found["mirrored"] = curve(model)
    found["odd"] = odd(model)
    found["compiled"] = [alone.optimize_for_inference(verbose=False).jit_compile]
    with strategy.scope():
        found["compiled"].append(model.optimize_for_inference(verbose=False).jit_compile)
    found["tuned"] = {
        "one": fine_tuned(compiled(config), 5),
        "moved": fine_tuned(compiled(config), 5, distribution=strategy),
    }
    return found


if __name__ == "__main__":
    print("\n" + json.dumps({"eight": eight, "moved": moved, "mirrored": mirrored}[sys.argv[1]]()), flush=True)
