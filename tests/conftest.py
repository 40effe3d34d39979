"""What every test stands on: one backend, a Keras home of its own, fixed seeds, reference files."""

import dataclasses
import functools
import gc
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest

BACKENDS = ("tensorflow", "jax", "torch")
GOLDEN = Path(__file__).parent / "golden"
_ALL_ONCE = re.compile(r"^pytestmark = (?:.*|\[[^\]]*)\bonce\b", re.MULTILINE)
_SOME_ELSEWHERE = re.compile(r"mark\.(?:each|nightly_elsewhere)\b")

# All of this must be in place before the first import of Keras, which reads it once.
# A Keras home of our own: the user's ~/.keras/keras.json is neither read nor written.
_keras_home = tempfile.TemporaryDirectory(prefix="keras_vit_tests_", ignore_cleanup_errors=True)
os.environ["KERAS_HOME"] = _keras_home.name
# Hundreds of tests make the same few small models, and on JAX three quarters of their time is XLA compiling what it has
# compiled before. It finds that in this folder: the same code compiled with the same options, by this process, by
# the test processes beside it or by those that they start, and by no other run.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(_keras_home.name, "xla")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
if not os.environ.get("KERAS_BACKEND"):
    os.environ["KERAS_BACKEND"] = next((b for b in BACKENDS if importlib.util.find_spec(b)), BACKENDS[0])
# The tolerances are those of float32 on a CPU. An accelerator has to be asked for by setting these.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Small programs are compiled in less than half of the time without LLVM's optimisation, and with XLA's older code for
# elementwise operations, which needs no passes of MLIR. What XLA makes of a program before that is the same.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)
# Test processes beside each other: threads that wait for a core in a loop would take it from the others.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config):
    config.addinivalue_line("markers", f"once: knows no backend, so that it runs on {BACKENDS[-1]} only")
    config.addinivalue_line("markers", "each: runs on each backend, in a file whose other tests are `once`")
    config.addinivalue_line("markers", "long: of the files that take longest, which begin")
    config.addinivalue_line("markers", "nightly: takes long and seldom fails: for `make test-nightly`")
    config.addinivalue_line("markers", f"nightly_elsewhere: nightly on other backends than {BACKENDS[-1]}")
    # By itself, xdist begins with the files that have most tests, and ends with those that take longest.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    if os.environ["KERAS_BACKEND"] not in BACKENDS:
        raise pytest.UsageError(f"KERAS_BACKEND={os.environ['KERAS_BACKEND']!r}: expected one of {BACKENDS}")


def pytest_ignore_collect(collection_path):
    """Files in which no test knows a backend are not even read where all of them would be skipped."""
    if os.environ["KERAS_BACKEND"] == BACKENDS[-1] or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text()
    # True and None are all that pytest knows: False would overrule what the command line leaves out.
    return True if _ALL_ONCE.search(text) and not _SOME_ELSEWHERE.search(text) else None


def _runs_once(item):
    """A mark of the test itself counts more than that of its file."""
    own = {mark.name for mark in item.own_markers}
    return "once" in own or bool(item.get_closest_marker("once") and not own & {"each", "nightly_elsewhere"})


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config, items):
    if os.environ["KERAS_BACKEND"] != BACKENDS[-1]:
        config.hook.pytest_deselected(items=[item for item in items if _runs_once(item)])
        items[:] = [item for item in items if not _runs_once(item)]
        for item in items:
            if item.get_closest_marker("nightly_elsewhere"):
                item.add_marker(pytest.mark.nightly)
    # They begin, so that no process is left with one of them when the others end.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_unconfigure(config):
    _keras_home.cleanup()


def pytest_report_header(config):
    backend = os.environ["KERAS_BACKEND"]
    versions = ", ".join(f"{name} {_version(name)}" for name in (backend, "keras", "numpy", "keras-vit-zoo"))
    return f"keras backend: {backend} ({versions}; Python {platform.python_version()})"


def _version(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@pytest.fixture(scope="session")
def backend():
    """The name of the Keras backend that this run is about."""
    return os.environ["KERAS_BACKEND"]


@pytest.fixture(autouse=True, scope="module")
def cheap_garbage_collection():
    """What was made before a file is no longer searched: Keras collects garbage after each layer that it quantizes."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seed_and_default_config():
    """The same random numbers for every test, in whatever order they run; no setting outlives its test."""
    import keras

    from keras_vit._keras import set_random_seed

    set_random_seed(0)  # Keras's own would import TensorFlow on every backend
    yield
    keras.config.set_dtype_policy("float32")
    keras.config.set_floatx("float32")
    keras.config.set_epsilon(1e-7)
    keras.config.set_image_data_format("channels_last")


@dataclasses.dataclass(frozen=True)
class Golden:
    """One reference case, computed with the original code: a folder under tests/golden/."""

    folder: Path

    @property
    def path(self) -> Path:
        """The checkpoint file of the case."""
        for name in ("ckpt.npz", "model.safetensors"):
            if (self.folder / name).is_file():
                return self.folder / name
        raise FileNotFoundError(f"golden case {self.folder.name!r} holds no checkpoint")

    @functools.cached_property
    def meta(self) -> dict:
        """What the case is: layout, sizes, epsilons, notes."""
        return json.loads((self.folder / "meta.json").read_text())

    @functools.cached_property
    def ref(self) -> dict[str, np.ndarray]:
        """Inputs and the outputs that must come of them, by name."""
        with np.load(self.folder / "ref.npz", allow_pickle=False) as file:
            return dict(file)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hugging Face Hub of the test's own, on this machine."""
    from tests.checkpoints.hub_server import local_hub

    with local_hub(tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture(scope="session")
def golden():
    """A function from the name of a reference case to the case: `golden("mini_token").ref["logits"]`."""

    @functools.cache
    def case(name: str) -> Golden:
        if not (GOLDEN / name / "meta.json").is_file():
            known = ", ".join(sorted(p.name for p in GOLDEN.iterdir() if p.is_dir()))
            if not known:
                pytest.skip("the source archive has no reference files; the repository has")
            raise FileNotFoundError(f"no golden case {name!r} in {GOLDEN}; there are: {known}")
        return Golden(GOLDEN / name)

    return case
