"""The loss of pairs on several devices and in several processes: that of the whole batch, or an error."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.processes import environment, run_together

pytestmark = pytest.mark.nightly

TRAIN = """
import json, sys
import keras, numpy as np
import keras_vit
from keras_vit import training
from keras_vit.text import ImageText

index, count = training.connect().shard
images = keras_vit.ViTConfig(image_size=8, patch_size=4, width=8, depth=1, heads=2, mlp_width=16)
words = keras_vit.TextConfig(vocabulary=10, context=4, width=8, depth=1, heads=2, mlp_width=16)
rng = np.random.default_rng(0)
x = rng.normal(size=(8, 8, 8, 3)).astype("float32"), rng.integers(0, 10, (8, 4)).astype("int32")
x = tuple(part[index * 8 // count : (index + 1) * 8 // count] for part in x)
for devices in map(int, sys.argv[1:]):
    shared = None
    if devices > 1:
        assert len(keras.distribution.list_devices()) == devices
        shared = training.data_parallel(auto_shard_dataset=False)
    keras.distribution.set_distribution(shared)
    for loss in (training.ContrastiveLoss(), training.SigmoidContrastiveLoss()):
        keras.utils.set_random_seed(0)
        both = ImageText(keras_vit.VisionTransformer(images), keras_vit.TextEncoder(words), bias=-1.0)
        both.compile(keras.optimizers.SGD(0.1), loss)
        history = both.fit(x, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]
        print(json.dumps(history + [float(np.abs(weight).sum()) for weight in both.get_weights()]))
"""


def test_four_devices_and_two_processes_of_jax_train_as_one(backend):
    if backend != "jax":
        pytest.skip("about JAX")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    program = [sys.executable, "-c", TRAIN, "1", "4"]
    done = subprocess.run(program, env=environment(XLA_FLAGS=flags), capture_output=True, text=True)
    assert not done.returncode, done.stderr[-3000:]
    one, four = np.split(np.array([json.loads(line) for line in done.stdout.splitlines()[-4:]]), 2)
    assert np.ptp(one[:, 0]) > 0.1  # two losses
    codes, output, errors = run_together(["-c", TRAIN, "2"], 2, environment())
    assert codes == [0, 0], errors[-3000:]
    two = np.array([json.loads(line) for line in output.splitlines()[-2:]])
    for several in (four, two):  # float32: sums over the batch in another order
        np.testing.assert_allclose(several, one, rtol=1e-5, atol=1e-6)


def test_processes_of_pytorch_are_refused(backend):
    """Also with a distribution, which Keras takes on PyTorch and does not heed."""
    if backend != "torch":
        pytest.skip("about torch.distributed")
    refused = """
        try:
            both.fit(x, batch_size=8, verbose=0)
        except ValueError as error:
            assert "each of 2 replicas has only a part" in str(error)
            print("refused")
"""
    program, _, _ = TRAIN.partition("        history = ")
    program = program.replace(
        "shared = None", "shared = keras.distribution.DataParallel(devices=['cpu:0']) if devices else None"
    )
    codes, output, errors = run_together(["-c", program + refused, "0", "1"], 2, environment())
    assert codes == [0, 0], errors[-3000:]
    assert output.split() == ["refused"] * 4


def test_replicas_of_tensorflow_are_refused(backend):
    if backend != "tensorflow":
        pytest.skip("about tf.distribute")
    import keras
    import tensorflow as tf

    from keras_vit import training
    from keras_vit.text import ImageText
    from tests.text.test_image_text import tiny_towers

    class Two:  # what Keras asks of a strategy here
        num_replicas_in_sync = 2

    both = ImageText(*tiny_towers())
    both.compile(keras.optimizers.SGD(0.1), training.ContrastiveLoss())
    assert isinstance(both.distribute_strategy, tf.distribute.Strategy)
    both._distribute_strategy = Two()
    with pytest.raises(ValueError, match="whole batch"):
        both.fit((np.zeros((2, 8, 8, 3), "f4"), np.zeros((2, 4), "i4")), verbose=0)
