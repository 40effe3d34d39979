"""More than one device: the same numbers as on one, weights that are split as they should be, and their checkpoints."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_vit import VARIANTS, BiT, VisionTransformer
from keras_vit.layers import skip_initialization
from keras_vit.models import BIT_VARIANTS, variant_config
from keras_vit.training import data_parallel, layout_map, load_sharded, model_parallel, save_sharded, split_weights
from keras_vit.training.distribution import SPLIT
from tests.processes import REPOSITORY, environment
from tests.training.distributed import CONFIGS, compiled

pytestmark = pytest.mark.long

# Sums over devices run in another order than on one. Measured, relative to the loss: up to 2e-7.
TOLERANCE = 5e-6
PER_BLOCK = 6 + 4  # kernels and biases that are split in a block, or in a MAP head


def only(backend, *wanted):
    if backend not in wanted:
        pytest.skip(f"this is about {' and '.join(wanted)}")


def run(job, devices):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    variables = environment(XLA_FLAGS=flags, JAX_PLATFORMS="cpu", OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3")
    command = [sys.executable, "-m", "tests.training.distributed", job]
    done = subprocess.run(command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def eight(backend):
    only(backend, "jax")
    return run("eight", 8)


@pytest.fixture(scope="module")
def moved(backend):
    only(backend, "jax")
    return run("moved", 8)


def same_figures(found, one):
    assert found["count"] == 37
    np.testing.assert_allclose(found["loss"], one["loss"], rtol=TOLERANCE)
    # Features of size 1 in float32, after a Transformer that was trained on several devices.
    np.testing.assert_allclose(found["features"], one["features"], rtol=0, atol=1e-5)


def same_runs(tuned):
    """The same numbers as on one device, also of batches and of 13 test images that the devices do not divide."""
    for where, figures in tuned.items():
        for name, wanted in tuned["one"].items():
            np.testing.assert_allclose(figures[name], wanted, rtol=TOLERANCE, err_msg=f"{where} {name}")


def test_the_curve_of_one_device_with_all_weights_or_an_eighth_of_them(eight):
    one, split = eight["one"]["loss"], eight["model"]
    assert one[-1] < one[0] - 0.1  # it learns something
    for found in (eight["data"], split):
        np.testing.assert_allclose(found["loss"], one, rtol=TOLERANCE)
    assert eight["data"]["weights"] == 1
    same_figures(eight["data"]["odd"], eight["one"]["odd"])
    assert split["split"] == 1 / 8
    # This small model has more that is whole than large ones.
    assert 1 / 8 < split["weights"] < 1 / 8 + 0.3
    # The momenta are where their weights are.
    assert split["optimizer"] == pytest.approx(split["weights"], abs=0.01)
    assert split["arrays"] == PER_BLOCK + 3


@pytest.mark.nightly
def test_loading_evaluating_and_fine_tuning_on_several_devices(moved):
    here, there = moved["loaded"]["loss"]
    assert there == pytest.approx(here, rel=TOLERANCE)
    assert moved["loaded"]["same_counts"] and moved["loaded"]["split"] == 1 / 4
    same_runs(moved["tuned"])  # in the scope, and with a distribution that the model was made outside of
    # In each of two blocks attention and MLP are summed; nothing else that is as large as all tokens is sent.
    assert moved["exchanged"] == {"all-reduce": 4, "all-gather": 0}
    # A hybrid with a MAP head: logits of about 1, float32, and a ResNet's normalisations.
    assert moved["hybrid"]["error"] < 1e-5 and moved["hybrid"]["split"] == 1 / 4
    assert moved["hybrid"]["arrays"] == 2 * PER_BLOCK + 5 + 1  # block and head, the ResNet's convolutions, the end


@pytest.mark.nightly
def test_written_by_eight_devices_and_resumed_on_four_and_one(moved):
    pytest.importorskip("orbax.checkpoint")
    saved, *others = moved["resumed"]["found"]
    assert saved["losses"][0] < saved["first"][0] and saved["share"] < 1 / 2 and others[-1]["share"] == 1
    for loaded in others:
        assert loaded["sum"] == pytest.approx(saved["sum"], rel=1e-12)  # the same values, summed in another order
        assert loaded["losses"] == pytest.approx(saved["losses"], rel=TOLERANCE)  # the second one: with the momenta
    assert set(moved["resumed"]["arrays"]) == {1}  # one array at a time


@pytest.mark.nightly
def test_mirrored_strategy(backend):
    only(backend, "tensorflow")
    found = run("mirrored", 1)
    assert found["replicas"] == 2
    np.testing.assert_allclose(found["mirrored"], found["one"]["loss"], rtol=TOLERANCE)
    same_figures(found["odd"], found["one"]["odd"])  # batches of 37, and 5 at the end, on 2 devices
    same_runs(found["tuned"])
    assert found["compiled"] == [True, False]  # XLA knows one device only


def test_checkpoints_that_do_not_fit_are_refused(backend, tmp_path):
    only(backend, "jax")
    pytest.importorskip("orbax.checkpoint")
    saved, config = tmp_path / "saved", CONFIGS["vit"]
    (tmp_path / "old").mkdir()
    model = compiled(config)
    save_sharded(model, saved)
    with pytest.raises(FileExistsError, match="saved exists"):
        save_sharded(model, saved)
    with skip_initialization():
        without_optimizer = VisionTransformer(config)
    for other, path, error, message in (
        (without_optimizer, saved, ValueError, "does not fit this model and optimizer"),
        (compiled(config.replace(depth=2)), saved, ValueError, "does not fit this model and optimizer"),
        (model, tmp_path / "nowhere", FileNotFoundError, "There is no checkpoint"),
        (model, tmp_path / "old", ValueError, "is not a checkpoint of save_sharded"),
    ):
        with pytest.raises(error, match=message):
            load_sharded(other, path)


def mesh(*shape, names=("batch", "model")):
    return keras.distribution.DeviceMesh(shape, names, [f"cpu:{i}" for i in range(int(np.prod(shape)))])


@pytest.mark.once
def test_every_variant_can_be_split():
    for name in (*VARIANTS, *BIT_VARIANTS):
        config = variant_config(name)
        assert len(layout_map(config, mesh(1, 2))) == len(SPLIT) + 1  # and what blocks hand on
        assert len(layout_map(config, mesh(2, names=["model"]))) == len(SPLIT)
        if name != "EVA-02-L/14":  # its SwiGLU has 2,730 units, two thirds of 4 D
            assert len(layout_map(name, mesh(2, 4)).device_mesh.devices.flatten()) == 8


@pytest.mark.once
@pytest.mark.parametrize("name", CONFIGS)
def test_every_large_weight_is_split_once(name):
    with skip_initialization():
        model = (BiT if name == "bit" else VisionTransformer)(CONFIGS[name])
    layouts = layout_map(model, mesh(4, 2))
    split = set(split_weights(model))
    for weight in model.weights:  # an ambiguous path would raise here
        layout = layouts[weight.path]
        assert (layout is not None) == (weight.path in split)
        if layout is not None:
            assert len(layout.axes) == len(weight.shape)
            assert weight.shape[layout.axes.index("model")] % 2 == 0
    whole = {weight.path for weight in model.weights if weight.path not in split and len(weight.shape) > 1}
    assert {path for path in whole if "seed_generator" not in path} <= {
        "embedding/kernel",
        "class_token/token",
        "position_embedding/table",
        "pooling/probe",
    }


@pytest.mark.once
@pytest.mark.parametrize(
    ("model", "shape", "names", "error", "message"),
    [
        (CONFIGS["vit"], (1, 5), None, ValueError, r"width=64 is not a multiple of the 5 devices"),
        ("EVA-02-L/14", (2, 4), None, ValueError, "mlp_width=2730 is not a multiple of the 4"),
        (CONFIGS["vit"].replace(representation_size=36), (1, 8), None, ValueError, "representation_size=36 is no"),
        (CONFIGS["vit"], (2, 2), ["batch", "rows"], ValueError, r"an axis named 'model'.*\['batch', 'rows'\]"),
        (3, (1, 2), None, TypeError, "model must be a config"),
    ],
)
def test_what_does_not_divide_is_refused(model, shape, names, error, message):
    with pytest.raises(error, match=message):
        layout_map(model, mesh(*shape, names=names or ("batch", "model")))


def test_other_backends_are_refused(backend, tmp_path):
    if backend == "jax":
        with pytest.raises(ValueError, match="shards must divide the number of devices, 3, but 2"):
            model_parallel(CONFIGS["vit"], 2, ["cpu:0", "cpu:1", "cpu:2"])
        with pytest.raises(ValueError, match="devices must have at least one device"):
            data_parallel([])
        return
    for make in (data_parallel, lambda: model_parallel(CONFIGS["vit"], 1), lambda: save_sharded(None, tmp_path / "x")):
        with pytest.raises(RuntimeError, match="works only on JAX.*docs/distribution.md"):
            make()
