"""What `keras-vit plan` says of memory, beside what JAX's compiler reports for the same training step.

    python benchmarks/planning.py [--tpu v5e:2x2]     # XLA for this CPU, or for TPUs without one: `pip install libtpu`

Each case is compiled from shapes alone; no step is run.
"""

import argparse
import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Variant, blocks (fewer are quicker to compile), images, precision.
CASES = (
    ("ViT-Ti/16", 4, 16, "float32"),
    ("ViT-S/16", 4, 8, "float32"),
    ("ViT-S/16", 4, 64, "mixed_bfloat16"),
    ("ViT-B/16", 12, 8, "float32"),
)


def compiled_step(config: Any, batch: int, dtype: str = "float32", topology: str | None = None) -> Any:
    """The compiled training step of a model: Adam, gradients clipped by their common length, as in the recipes."""
    import jax
    import keras

    from keras_vit import VisionTransformer
    from keras_vit.layers import skip_initialization

    with skip_initialization():
        model = VisionTransformer(config, dtype=dtype)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=1.0), loss)
    model.optimizer.build(model.trainable_variables)
    sharding = None
    if topology is not None:
        from jax.experimental import topologies

        devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
        sharding = jax.sharding.SingleDeviceSharding(devices[0])

    def shaped(shape: Any, dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    groups = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    state = tuple([shaped(v.shape, v.dtype) for v in group] for group in (*groups, model.metrics_variables))
    data = shaped((batch, *config.image_size, config.channels), "float32"), shaped((batch,), "int32")
    return jax.jit(model.train_step, donate_argnums=0).lower(state, data).compile()


def reported_bytes(compiled: Any) -> int:
    """All that a compiled step takes on its device: what goes in and comes out, and what is in between."""
    memory = compiled.memory_analysis()
    both = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return both + memory.temp_size_in_bytes


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tpu", metavar="TOPOLOGY", help="such as v5e:2x2")
    options = parser.parse_args()

    from keras_vit.models import variant_config
    from keras_vit.training.planning import step_memory

    for variant, depth, batch, dtype in CASES:
        config = variant_config(variant).replace(classes=1000, depth=depth)
        reported = reported_bytes(compiled_step(config, batch, dtype, options.tpu))
        planned = step_memory(config, batch, dtype).peak
        print(
            f"{variant}, {depth} blocks, {batch} images, {dtype}: reported {reported / 1e6:,.0f} MB, "
            f"planned {planned / 1e6:,.0f} MB, {planned / reported - 1:+.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
