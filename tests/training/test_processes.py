"""Several processes: the same numbers as in one, and an end with a clear message when one is lost."""

import contextlib
import json
import os
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_vit._processes import Place, Processes, batch_shares, placement, scope_of
from keras_vit.training.distribution import distributed
from tests.processes import environment, run_together
from tests.training import in_processes
from tests.training.distributed import CONFIGS, compiled, curve

pytestmark = [pytest.mark.once, pytest.mark.long]

# Gradients are summed in another order. Measured, relative to the loss: up to 2e-7 a step.
TOLERANCE = 5e-6


def same_run(found, wanted):
    np.testing.assert_allclose(found["log"], wanted["log"], rtol=TOLERANCE)
    # Biases of keys change nothing, so that theirs are sums of rounding only: 1e-10.
    np.testing.assert_allclose(found["weights"], wanted["weights"], rtol=TOLERANCE, atol=1e-6)


@pytest.fixture
def one_thread(backend):
    """As `run_together` sets it: the order of sums, and so their last bits, depends on the number of threads."""
    if backend != "torch":
        return (yield)
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def in_two_processes(job, backend, folder):
    """How they ended, what they said, and the answer of both."""
    if backend == "tensorflow":
        pytest.skip("one process of TensorFlow uses all GPUs")
    in_processes.start(folder)
    variables = environment("matplotlib", "tensorflow")
    command = ["-m", "tests.training.in_processes", job, str(folder)]
    codes, output, errors = run_together(command, 2, variables)
    assert output == ""  # what process 0 prints is the program's alone: gloo tells elsewhere that it is connected
    assert (folder / "1.json").exists(), errors
    first, second = (json.loads((folder / f"{index}.json").read_text()) for index in range(2))
    assert first == second
    return codes, errors, first


@pytest.mark.nightly_elsewhere
@pytest.mark.usefixtures("one_thread")
def test_two_processes_do_what_one_does(backend, tmp_path):
    """They evaluate and train; one is killed, and a process alone ends the run as if nothing had happened."""
    codes, errors, found = in_two_processes("labels", backend, tmp_path)
    assert not found["tensorflow"]  # it is installed and takes seconds to import
    loss, counts = in_processes.count(tmp_path)
    assert found["count"] == [pytest.approx(loss, rel=TOLERANCE), counts]
    alone = in_processes.tune(tmp_path, "alone")
    same_run(found["tuned"], alone)
    models = (keras.saving.load_model(tmp_path / run / "model.keras") for run in ("whole", "alone"))
    for weight, wanted in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(weight, wanted, rtol=TOLERANCE, atol=1e-6)
    assert codes[1] == -9 and codes[0] not in (0, None), errors
    assert "Another of the processes of this run has ended" in errors
    assert [path.name for path in (tmp_path / "killed").glob("step-*")] == ["step-00000002.npz"]
    same_run(in_processes.tune(tmp_path, "killed"), alone)


@pytest.mark.nightly
@pytest.mark.each
@pytest.mark.usefixtures("one_thread")
def test_two_processes_do_what_one_does_in_other_tasks(backend, tmp_path):
    codes, errors, found = in_two_processes("others", backend, tmp_path)
    assert codes == [0, 0], errors
    assert in_processes.embed(tmp_path, "alone.npz") == 7
    parts = [np.load(tmp_path / f"features-{index}-of-2.npz")["features"] for index in range(2)]
    np.testing.assert_array_equal(np.concatenate(parts), np.load(tmp_path / "alone.npz")["features"])
    masks = in_processes.tune_masks(tmp_path)
    np.testing.assert_allclose(found["masks"]["losses"], masks["losses"], rtol=1e-6)
    np.testing.assert_allclose(found["masks"]["weights"], masks["weights"], rtol=TOLERANCE, atol=1e-6)
    assert found["masks"]["mean_iou"] == pytest.approx(masks["mean_iou"], abs=1e-6)
    assert (tmp_path / "masks/masks.png").exists()  # process 0 draws, and the other does not wait for it
    if backend == "jax":  # where an EoMT trains in one process
        assert found["sharded"] == 0
        return
    boxes = in_processes.tune_boxes(tmp_path)
    for name, alone in (("segments", in_processes.tune_segments(tmp_path)), ("boxes", boxes)):
        np.testing.assert_allclose(found[name]["losses"], alone["losses"], rtol=TOLERANCE)
        # Sums of rounding again, which AdamW enlarges: 1e-5 where the biases of queries have moved to a sum of 0.1.
        np.testing.assert_allclose(found[name]["weights"], alone["weights"], rtol=TOLERANCE, atol=1e-5)
    assert found["boxes"]["ap"] == pytest.approx(boxes["ap"], abs=1e-6)
    one = curve(compiled(CONFIGS["vit"].replace(dropout=0.0)))
    for way in ("loop", "fit"):  # global_clipnorm sees the averaged gradients: the steps are those of one process
        np.testing.assert_allclose(found["wrapped"][way], one, rtol=TOLERANCE)


@pytest.mark.each
@pytest.mark.nightly
def test_a_model_that_is_split_within_each_of_two_processes(backend):
    """Two devices each: the batch is divided between the processes, and the weights within them."""
    if backend != "jax":
        pytest.skip("models are split on JAX only")
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    codes, output, errors = run_together(
        ["-m", "tests.training.in_processes", "split"], 2, environment(XLA_FLAGS=flags)
    )
    assert codes == [0, 0], errors
    found = json.loads(output.splitlines()[-1])
    assert found["devices"] == 4 and found["split"] == 1 / 2
    np.testing.assert_allclose(found["loss"], curve(compiled(CONFIGS["vit"])), rtol=TOLERANCE)


# Without processes


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "12", "LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "2"}, Place(3, 8, 1, 2, "a:12")),
        ({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}, None),
        ({**SLURM, "SLURM_STEP_NODELIST": "gpu[07-09,12],cpu1", "SLURM_JOB_ID": "7"}, Place(5, 8, 1, 4, "gpu07:20007")),
        ({**SLURM, "SLURM_STEP_NODELIST": "n1", "MASTER_ADDR": "b", "MASTER_PORT": "9"}, Place(5, 8, 1, 4, "b:9")),
        ({**SLURM, "SLURM_STEP_NODELIST": "n1", "MASTER_PORT": ""}, Place(5, 8, 1, 4, "n1:20000")),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "1,4", "SLURM_NODEID": "1"}, Place(5, 8, 1, 4, "localhost:20000")),
        # A shell of salloc, or the script of sbatch: no step of several tasks.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),
    ],
)
def test_what_launchers_say(environment, place):
    assert placement(environment) == place


def test_what_launchers_cannot_mean():
    with pytest.raises(ValueError, match="RANK must be a whole number"):
        placement(TORCHRUN | {"RANK": "x"})
    with pytest.raises(ValueError, match="the number 8, but it must be from 0 to 7"):
        placement(TORCHRUN | {"RANK": "8"})
    with pytest.raises(ValueError, match="LOCAL_WORLD_SIZE must be a whole number of at least 1"):
        placement(TORCHRUN | {"LOCAL_WORLD_SIZE": "0"})
    with pytest.raises(TypeError, match="distribution must be None, 'alone'"), distributed(2):
        pass


@pytest.mark.each
def test_strategies_of_several_processes_are_refused(backend):
    """A strategy with the resolver of MultiWorkerMirroredStrategy, which itself would wait for the other process."""
    if backend != "tensorflow":
        pytest.skip("strategies are TensorFlow's")
    import tensorflow as tf

    class Strategy:
        num_replicas_in_sync, scope = 2, contextlib.nullcontext

        def __init__(self, *workers):
            cluster = tf.train.ClusterSpec({"worker": workers} if workers else {})
            self.cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster)

    several = Strategy("localhost:1", "localhost:2")
    with pytest.raises(RuntimeError, match="strategy over 2 processes .*torchrun"), distributed(several):
        pass
    for ask in (batch_shares, scope_of):
        with pytest.raises(RuntimeError, match="strategy over 2 processes"):
            ask(SimpleNamespace(distribute_strategy=several))
    for alone in (Strategy(), Strategy("localhost:1")):
        assert batch_shares(SimpleNamespace(distribute_strategy=alone)) == 2


def test_failures_that_are_nobodys_loss_stay():
    """A lost process is told in plain words, an error of this one as it is."""
    with pytest.raises(RuntimeError, match="out of memory"), Processes(0, 2).explaining_lost_processes():
        raise RuntimeError("CUDA out of memory")
    with pytest.raises(ConnectionError, match="Another of the processes"), Processes(0, 2).explaining_lost_processes():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5")
