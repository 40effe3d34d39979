"""The memory that `keras-vit plan` counts, against what JAX's compiler reports."""

import importlib.util
from pathlib import Path

import pytest

from keras_vit import ViTConfig
from keras_vit.training.memory import training_memory

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "planning.py"
TINY = ViTConfig(image_size=64, patch_size=8, width=96, depth=3, heads=3, mlp_width=384, classes=10)


@pytest.mark.parametrize(("remat", "dtype"), [(False, "mixed_bfloat16"), (True, "float32")])
def test_memory_is_what_the_compiler_reports(backend, remat, dtype):
    """Two quick cases of `benchmarks/planning.py`, held to the 20 % that the plan leaves free."""
    if backend != "jax":
        pytest.skip("JAX's compiler says what a step takes")
    spec = importlib.util.spec_from_file_location("planning_benchmark", SCRIPT)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    config = TINY.replace(remat=remat)
    reported = benchmark.reported_bytes(benchmark.compiled_step(config, 32, dtype))
    assert training_memory(config, 32, dtype, compiler="cpu").peak == pytest.approx(reported, rel=0.2)
