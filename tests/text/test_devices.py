"""The loss of pairs on several devices: on JAX that of the whole batch; where it would not be, an error."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.processes import REPOSITORY

TRAIN = """
import json
import keras, numpy as np
import keras_vit
from keras_vit import training
from keras_vit.text import ImageText

devices = keras.distribution.list_devices()
assert len(devices) == 4, devices
images = keras_vit.ViTConfig(image_size=8, patch_size=4, width=8, depth=1, heads=2, mlp_width=16)
words = keras_vit.TextConfig(vocabulary=10, context=4, width=8, depth=1, heads=2, mlp_width=16)
rng = np.random.default_rng(0)
x = rng.normal(size=(8, 8, 8, 3)).astype("float32"), rng.integers(0, 10, (8, 4)).astype("int32")
for distribution in (None, keras.distribution.DataParallel(devices=devices)):
    keras.distribution.set_distribution(distribution)
    for loss in (training.ContrastiveLoss(), training.SigmoidContrastiveLoss()):
        keras.utils.set_random_seed(0)
        both = ImageText(keras_vit.VisionTransformer(images), keras_vit.TextEncoder(words), bias=-1.0)
        both.compile(keras.optimizers.SGD(0.1), loss)
        history = both.fit(x, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]
        print(json.dumps(history + [float(np.abs(weight).sum()) for weight in both.get_weights()]))
"""


def test_four_devices_of_jax_train_as_one(backend):
    if backend != "jax":
        pytest.skip("about JAX's virtual devices")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", TRAIN], env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-3000:]
    one, four = np.split(np.array([json.loads(line) for line in done.stdout.splitlines()[-4:]]), 2)
    assert np.ptp(one[:, 0]) > 0.1  # two losses
    np.testing.assert_allclose(four, one, rtol=1e-5, atol=1e-6)  # float32: sums over the batch in another order


def test_replicas_of_tensorflow_are_refused(backend):
    if backend != "tensorflow":
        pytest.skip("about tf.distribute")
    import keras
    import tensorflow as tf

    import keras_vit
    from keras_vit import training
    from keras_vit.text import ImageText

    class Two:  # what Keras asks of a strategy here
        num_replicas_in_sync = 2

    images = keras_vit.ViTConfig(image_size=8, patch_size=4, width=8, depth=1, heads=2, mlp_width=16)
    words = keras_vit.TextConfig(vocabulary=10, context=4, width=8, depth=1, heads=2, mlp_width=16)
    both = ImageText(keras_vit.VisionTransformer(images), keras_vit.TextEncoder(words))
    both.compile(keras.optimizers.SGD(0.1), training.ContrastiveLoss())
    assert isinstance(both.distribute_strategy, tf.distribute.Strategy)
    both._distribute_strategy = Two()
    with pytest.raises(ValueError, match="whole batch"):
        both.fit((np.zeros((2, 8, 8, 3), "f4"), np.zeros((2, 4), "i4")), verbose=0)
