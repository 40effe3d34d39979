"""What `keras-vit plan` says of memory, beside what JAX's compiler reports for the same training step.

    python benchmarks/planning.py                         # XLA for this CPU: a table of all cases
    python benchmarks/planning.py --tpu v5e:2x2           # XLA for TPUs, without one: `pip install libtpu`

Each case is lowered and compiled from shapes alone; no step is run. For CPUs, XLA drops the barriers that keep
rematerialised blocks from being merged with their first computation, so that remat saves nothing there; the pass that
does it is switched off for this comparison. Compiling for TPUs takes one to two minutes for a case.
"""

import argparse
import dataclasses
import json
import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

KEEP_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A training step: a variant, with fewer blocks where that makes it quick to compile."""

    variant: str
    depth: int
    batch: int
    remat: bool = False
    dtype: str = "float32"


CPU = (
    Case("ViT-Ti/16", 4, 16),
    Case("ViT-S/16", 4, 8),
    Case("ViT-S/16", 4, 8, remat=True),
    Case("ViT-S/16", 4, 8, dtype="mixed_bfloat16"),
    Case("ViT-S/16", 4, 8, remat=True, dtype="mixed_bfloat16"),
    Case("ViT-B/16", 2, 2),
    Case("ViT-B/16", 2, 8, remat=True),
    Case("ViT-B/16", 2, 2, dtype="mixed_bfloat16"),
    Case("EVA-02-Ti/14", 2, 8),
    Case("DINOv2-S/14-reg4", 2, 2),
    Case("SigLIP-B/16", 2, 4),
    Case("R26+ViT-S/32", 2, 8),
    Case("ViT-B/16", 12, 8),
)
TPU = (
    Case("ViT-S/16", 4, 8),
    Case("ViT-S/16", 2, 64, dtype="mixed_bfloat16"),
    Case("ViT-S/16", 4, 64, dtype="mixed_bfloat16"),
    Case("ViT-S/16", 4, 64, remat=True, dtype="mixed_bfloat16"),
    Case("ViT-B/16", 2, 32, dtype="mixed_bfloat16"),
    Case("ViT-B/16", 2, 32, remat=True, dtype="mixed_bfloat16"),
)


def compiled_step(config: Any, batch: int, dtype: str = "float32", topology: str | None = None) -> Any:
    """The compiled training step of a model: Adam, gradients clipped by their common length, as in the recipes.

    Args:
        config: The model.
        batch: Images of a step.
        dtype: The precision.
        topology: Such as `"v5e:2x2"` for TPUs; None for the CPU of this machine.
    """
    import jax
    import keras

    from keras_vit import VisionTransformer
    from keras_vit.layers import skip_initialization

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        with skip_initialization():
            model = VisionTransformer(config)
    finally:
        keras.config.set_dtype_policy(before)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=1.0), loss)
    model.optimizer.build(model.trainable_variables)
    variables = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    sharding = None
    if topology is not None:
        from jax.experimental import topologies

        devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
        sharding = jax.sharding.SingleDeviceSharding(devices[0])

    def shape(value: Any, dtype: str | None = None) -> Any:
        return jax.ShapeDtypeStruct(getattr(value, "shape", value), dtype or value.dtype, sharding=sharding)

    state = tuple([shape(variable.value) for variable in group] for group in variables)
    data = (shape((batch, *config.image_size, config.channels), "float32"), shape((batch,), "int32"))
    step = jax.jit(lambda state, data: model.train_step(state, data), donate_argnums=0)
    options = KEEP_BARRIERS if topology is None else None
    return step.lower(state, data).compile(compiler_options=options)


def reported_bytes(compiled: Any) -> int:
    """All that a compiled step takes on its device: what goes in and comes out, and what is in between."""
    memory = compiled.memory_analysis()
    both = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return both + memory.temp_size_in_bytes


def main() -> None:
    """Prints the table, a line for each case, and at the end the largest difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tpu", metavar="TOPOLOGY", help="such as v5e:2x2")
    parser.add_argument("--only", metavar="TEXT", help="cases whose variant has this in its name")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each case")
    options = parser.parse_args()

    from keras_vit.models import variant_config
    from keras_vit.training.memory import training_memory

    compiler = "accelerator" if options.tpu else "cpu"
    differences = []
    for case in TPU if options.tpu else CPU:
        if options.only and options.only not in case.variant:
            continue
        config = variant_config(case.variant).replace(classes=1000, depth=case.depth, remat=case.remat)
        compiled = compiled_step(config, case.batch, case.dtype, options.tpu)
        reported = reported_bytes(compiled)
        between = compiled.memory_analysis().temp_size_in_bytes
        memory = training_memory(config, case.batch, case.dtype, compiler=compiler)
        planned_between = max(memory.activations, memory.gradients) + memory.temporaries
        row = {
            **dataclasses.asdict(case),
            "reported_MB": round(reported / 1e6, 1),
            "planned_MB": round(memory.peak / 1e6, 1),
            "difference": round(memory.peak / reported - 1, 3),
            "reported_between_MB": round(between / 1e6, 1),
            "planned_between_MB": round(planned_between / 1e6, 1),
            "difference_between": round(planned_between / between - 1, 3),
        }
        differences.append(abs(row["difference"]))
        print(json.dumps(row) if options.json else " | ".join(map(str, row.values())), flush=True)
    print(f"largest difference: {max(differences):.1%}")


if __name__ == "__main__":
    main()
