"""Several processes: the same numbers as in one, and an end with a clear message when one is lost."""

import contextlib
import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_vit import training
from keras_vit._processes import Place, Processes, batch_shares, placement, scope_of, share
from keras_vit.data import open_data
from keras_vit.training.sharing import distributed
from tests.processes import environment, run_together
from tests.training import in_processes

pytestmark = pytest.mark.long

# Gradients are summed in another order. Measured, relative to the loss: up to 2e-7 a step.
TOLERANCE = 5e-6


def same_features(path, wanted):
    assert path.read_bytes() == wanted.read_bytes()
    with np.load(path) as got, np.load(wanted) as alone:
        assert got["names"].tolist() == alone["names"].tolist() and len(got["names"]) == 7
        np.testing.assert_allclose(got["features"], alone["features"], rtol=TOLERANCE, atol=TOLERANCE)  # of about 1


def test_two_processes_do_what_one_does(backend, tmp_path):
    """They evaluate and train; one is killed, and a process alone ends the run as if nothing had happened."""
    if backend == "tensorflow":
        pytest.skip("one process of TensorFlow uses all GPUs")
    in_processes.start(tmp_path)
    variables = environment("matplotlib", "tensorflow")
    codes, output, errors = run_together(["-m", "tests.training.in_processes", str(tmp_path)], 2, variables)
    assert output == ""  # what process 0 prints is the program's alone: gloo tells elsewhere that it is connected

    assert (tmp_path / "1.json").exists(), errors
    both = [json.loads((tmp_path / f"{index}.json").read_text()) for index in range(2)]
    assert both[0] == both[1]
    if backend == "jax":
        assert both[0]["sharded"] == 0
    assert not both[0]["tensorflow"]  # it is installed and takes seconds to import
    loss, counts = in_processes.count(tmp_path)
    assert both[0]["count"] == [pytest.approx(loss, rel=TOLERANCE), counts]
    assert in_processes.embed(tmp_path, "alone.npz") == both[0]["embedded"] == 7
    same_features(tmp_path / "features.npz", tmp_path / "alone.npz")
    assert not list(tmp_path.glob("*.unfinished"))
    alone = in_processes.tune(tmp_path, "alone")
    same_run(both[0]["tuned"], alone)
    models = (keras.saving.load_model(tmp_path / run / "model.keras") for run in ("whole", "alone"))
    for weight, wanted in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(weight, wanted, rtol=TOLERANCE, atol=1e-6)

    assert codes[1] == -9 and codes[0] not in (0, None), errors
    assert "Another of the processes of this run has ended" in errors
    assert [path.name for path in (tmp_path / "killed").glob("step-*")] == ["step-00000002.npz"]
    same_run(in_processes.tune(tmp_path, "killed"), alone)


def same_run(found, wanted):
    np.testing.assert_allclose(found["log"], wanted["log"], rtol=TOLERANCE)
    # Biases of keys change nothing, so that theirs are sums of rounding only: 1e-10.
    np.testing.assert_allclose(found["weights"], wanted["weights"], rtol=TOLERANCE, atol=1e-6)


# Without processes


@pytest.mark.parametrize("count", [2, 3, 7])
def test_parts_are_the_batch(count):
    """Mixup is with the image before, which is in another part for the first one of each; parts may be empty."""
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (11, 6, 6, 3), dtype="uint8"), np.arange(11) % 3
    for split, options in (("train", {"augmentation": training.Augmentation(mixup=0.3)}), ("test", {})):
        options |= {"image_size": 6, "batch_size": 5, "split": split}
        with open_data(data, **options) as whole:
            parts = [open_data(data, **options, shard=(i, count)) for i in range(count)]
            for step in (0, 2):
                images, labels = (
                    np.concatenate(arrays) for arrays in zip(*(p.batch(step) for p in parts), strict=True)
                )
                np.testing.assert_array_equal(images, whole.batch(step)[0])
                np.testing.assert_array_equal(labels, whole.batch(step)[1])
                assert {part.length(step) for part in parts} == {len(labels)}
            for part in parts:
                part.close()


def test_parts_of_a_pipeline():
    batches = [(np.full((5, 6, 6, 3), 9.0 * (i + 1)), np.arange(5) % 3) for i in range(2)]
    options = {"image_size": 6, "batch_size": 5, "classes": 3, "augmentation": training.Augmentation(mixup=0.3)}
    with open_data(batches, **options) as whole:
        parts = [open_data(batches, **options, shard=(i, 2)) for i in range(2)]
        found = [np.concatenate([part.batch(1)[k] for part in parts]) for k in range(2)]
        for given, wanted in zip(found, whole.batch(1), strict=True):
            np.testing.assert_array_equal(given, wanted)
        for part in parts:
            part.close()


@pytest.mark.parametrize("shard", [(1, 1), (-1, 2), (0, 0), (0, 1, 2)])
def test_bad_parts_are_refused(shard):
    with pytest.raises(ValueError, match="shard must be"):
        open_data(([], []), image_size=6, batch_size=2, shard=shard)


def test_shares_cover_everything():
    for length in (0, 1, 5, 8):
        for count in (1, 2, 3, 9):
            rows = [i for k in range(count) for i in range(length)[share(length, (k, count))]]
            assert rows == list(range(length))


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
        # A shell of salloc, or the script of sbatch: no step of several tasks.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),
    ],
)
def test_what_launchers_say(environment, place):
    assert placement(environment) == place


@pytest.mark.parametrize(
    ("change", "message"), [({"RANK": "x"}, "RANK must be a whole number"), ({"RANK": "8"}, "process 8 of 8")]
)
def test_what_launchers_cannot_mean(change, message):
    with pytest.raises(ValueError, match=message):
        placement(TORCHRUN | change)


def test_distribution_is_checked(backend):
    with distributed("alone") as processes:
        assert processes == Processes()
    with pytest.raises(TypeError, match="distribution must be None, 'alone'"), distributed(2):
        pass


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


def test_failures_that_are_nobodys_loss_stay(backend):
    """A lost process is told in plain words, an error of this one as it is."""
    with pytest.raises(RuntimeError, match="out of memory"), Processes(0, 2).failing_together():
        raise RuntimeError("CUDA out of memory")
    with pytest.raises(ConnectionError, match="Another of the processes"), Processes(0, 2).failing_together():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5")
    with Processes(0, 2).failing_together():
        pass  # what went well later does not fail at the exit
