"""Worker processes: the same batches as threads, quick to start, and nothing left behind."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from keras_vit.data import open_data
from tests.data.sources import folder, plain_colours

pytestmark = pytest.mark.once

OPTIONS = {"image_size": (8, 12), "batch_size": 5, "workers": 2}


@pytest.fixture
def root(tmp_path, monkeypatch):
    pytest.importorskip("PIL.Image")
    return folder(plain_colours(12), tmp_path, monkeypatch)


def test_processes_end_with_their_stream(root):
    with open_data(root, processes=True, seed=np.int64(3), **OPTIONS) as stream:
        stream.batch(0)
        processes = [worker._process for worker in stream._processes]
        assert len(processes) == 2 and all(process.poll() is None for process in processes)
    assert all(process.poll() == 0 for process in processes)
    stream.close()
    with pytest.raises(ValueError, match="The stream is closed"):
        stream.batch(0)


def test_bad_files_are_named_and_replaced(root):
    path = sorted((root / "train" / "green").iterdir())[1]
    with open_data(root, processes=True, **OPTIONS | {"workers": 1}) as stream:
        stream.batch(0)
        path.write_bytes(path.read_bytes()[:40])
        with pytest.raises(ValueError, match=f'{path.name}.*on_bad_image="skip"'):
            for step in range(1, 9):
                stream.batch(step)
    batches = []
    for processes in (True, False):
        with pytest.warns(UserWarning, match=path.name):
            options = OPTIONS | {"workers": 1, "processes": processes}
            with open_data(root, on_bad_image="skip", check="none", **options) as stream:
                batches.append([stream.batch(step)[0] for step in range(4)])
                assert [bad.path for bad in stream.bad] == [str(path)]
    np.testing.assert_array_equal(*batches)


def test_a_worker_that_is_killed_is_an_error(root):
    with open_data(root, processes=True, prefetch=0, **OPTIONS | {"workers": 1}) as stream:
        stream.batch(0)
        process = stream._processes[0]._process
        process.send_signal(signal.SIGKILL)
        process.wait()
        with pytest.raises(RuntimeError, match="died by signal 9.*processes=False"):
            stream.batch(1)


def test_what_a_worker_cannot_import_is_made_by_threads(root, monkeypatch, tmp_path):
    """A class of the program itself has no module in a worker; one of a module beside the program is found."""
    (tmp_path / "own_crops.py").write_text(
        "import dataclasses\nimport numpy\nfrom keras_vit import data\nclass Own(data.Transform):\n"
        "    def __call__(self, picture, target, draw):\n        return numpy.resize(picture, (8, 12, 3)), target\n"
        "@dataclasses.dataclass(frozen=True)\nclass Crops(data.Augmentation):\n    transform = Own\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from own_crops import Crops, Own

    augmentation, few = Crops(crop="resize", flip=False), OPTIONS | {"workers": 1}
    with open_data(root, augmentation=augmentation, processes=True, **few) as stream:
        assert stream.batch(0)[0].shape == (5, 8, 12, 3) and not stream._unreadable and stream._processes
    monkeypatch.setattr(Own, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Own", Own, raising=False)
    with pytest.raises(ValueError, match="to a module"):
        open_data(root, augmentation=augmentation, processes=True, **few)
    monkeypatch.setattr("keras_vit.data.streams.cores", lambda: 16)
    with open_data(root, augmentation=augmentation, **few) as stream:
        stream.batch(0)
        assert not stream._processes


def test_streams_that_nobody_closes_leave_no_process(root):
    stream = open_data(root, processes=True, **OPTIONS | {"workers": 1})
    stream.batch(0)
    processes = [worker._process for worker in stream._processes]
    for future in stream._ahead.values():
        future.result()
    stream._readers.shutdown()
    stream._threads.shutdown()
    del stream, future
    import gc

    gc.collect()
    assert all(process.wait(60) == 0 for process in processes)


def test_a_worker_imports_no_keras_and_no_framework():
    module, function = "keras_vit.data.segments", "_of_files"
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-P", "-m", "keras_vit.data.workers"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        input=f"c{module}\n{function}\n.".encode(),  # a pickle
        capture_output=True,
        timeout=120,
    )
    modules = {line.rpartition("|")[2].strip() for line in result.stderr.decode().splitlines()}
    assert "numpy" in modules and {"keras_vit.preprocessing", module} <= modules
    assert not {"keras", "tensorflow", "jax", "torch", "grain"} & modules


@pytest.mark.parametrize(("cores", "processes"), [(2, False), (16, True)])
def test_processes_begin_where_cores_are_many(root, monkeypatch, cores, processes):
    monkeypatch.setattr("keras_vit.data.streams.cores", lambda: cores)
    for split, expected in (("train", processes), ("test", False)):
        with open_data(root, split=split, **OPTIONS) as stream:
            assert (stream._own is not None) == expected
