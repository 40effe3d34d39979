"""What devices send each other in a training step, read from the compiled program, beside the formulas.

    python benchmarks/scaling.py                     # 1, 2, 4 and 8 virtual devices of this CPU
    python benchmarks/scaling.py --variant ViT-S/16 --depth 4 --batch 64

Nothing is run: XLA divides the step among the devices, and the collectives stand in its program with their shapes. Of
an all-reduce over n devices each sends 2 (n - 1) / n of its bytes, of an all-gather or reduce-scatter (n - 1) / n of
all. What each device computes tells the share that does not become less with more devices.
"""

import argparse
import json
import math
import os
import re
from typing import Any

DEVICES = (1, 2, 4, 8)
os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS",
    f"--xla_force_host_platform_device_count={DEVICES[-1]} --xla_backend_optimization_level=0",
)

_SIZES = {"f32": 4, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "s64": 8, "pred": 1, "u8": 1, "s8": 1}
_COLLECTIVE = re.compile(
    r" = (?P<shapes>\(.*?\)|\S+) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
    r"(?:-start)?\((?P<rest>.*)"
)


def sent_bytes(program: str, devices: int) -> dict[str, float]:
    """What a device sends in a step, by the kind of collective; scalars (losses, lengths) are left out.

    Args:
        program: The text of the compiled program of one device.
        devices: How many there are, for collectives over all of them.
    """
    sent: dict[str, float] = {}
    for match in map(_COLLECTIVE.search, program.split("\n")):
        if match is None:
            continue
        size = 0
        for kind, dimensions in re.findall(r"(\w+)\[([\d,]*)\]", match["shapes"]):
            if dimensions:
                size += _SIZES[kind] * math.prod(map(int, dimensions.split(",")))
        group = _group(match["rest"], devices)
        factor = {
            "all-reduce": 2 * (group - 1) / group,
            "reduce-scatter": group - 1,  # its shape is that of a part
            "collective-permute": 1,
        }.get(match["kind"], (group - 1) / group)
        sent[match["kind"]] = sent.get(match["kind"], 0) + factor * size
    return {kind: size for kind, size in sent.items() if size}


def _group(text: str, devices: int) -> int:
    """How many devices take part: of `replica_groups={{0,1},{2,3}}` or of `replica_groups=[2,4]<=[8]`."""
    if match := re.search(r"replica_groups=\[(\d+),(\d+)\]", text):
        return int(match[2])
    if match := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return len(match[1].split(","))
    return devices


def compiled_step(config: Any, batch: int, distribution: Any, clip: float | None = 1.0) -> Any:
    """The compiled training step of a model that is made in the scope of a distribution."""
    import jax
    import keras

    from keras_vit import VisionTransformer
    from keras_vit.layers import skip_initialization

    with distribution.scope():
        with skip_initialization():
            model = VisionTransformer(config)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=clip), loss)
        model.optimizer.build(model.trainable_variables)
        groups = (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
        state = tuple(
            [jax.ShapeDtypeStruct(v.value.shape, v.value.dtype, sharding=v.value.sharding) for v in group]
            for group in groups
        )
        mesh = distribution.device_mesh.backend_mesh
        divided = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(mesh.axis_names[0]))
        data = (
            jax.ShapeDtypeStruct((batch, *config.image_size, config.channels), "float32", sharding=divided),
            jax.ShapeDtypeStruct((batch,), "int32", sharding=divided),
        )
        shardings = jax.tree.map(lambda value: value.sharding, state)
        step = jax.jit(
            lambda state, data: model.train_step(state, data), donate_argnums=0, out_shardings=(None, shardings)
        )
        return step.lower(state, data).compile()


def project(variant: str, images: int, options: argparse.Namespace) -> None:
    """Prints what the formulas come to with up to 1,024 devices: every device with as many images."""
    from keras_vit.models import count_weights, variant_config
    from keras_vit.training import plan
    from keras_vit.training.planning import sent_in_an_update

    config = variant_config(variant).replace(classes=1000)
    for devices in (8, 64, 256, 1024):
        whole = plan(variant, devices, "80GB", images * devices, peak_tflops=options.peak_tflops, share=options.share)
        option = next(option for option in whole.options if option.shards == 1 and not option.remat)
        computing = option.seconds
        sent = sent_in_an_update(config, images, 1, 1, devices, "mixed_bfloat16")
        sending = sent / options.bandwidth / 1e9 + 2 * (devices - 1) * options.latency / 1e6
        # Adam reads weight, gradient and two moments and writes all but the gradient, on every device alike.
        updating = 7 * 4 * count_weights(config) / options.memory_bandwidth / 1e9
        row = {
            "devices": devices,
            "batch": images * devices,
            "computing_ms": round(1e3 * computing),
            "updating_ms": round(1e3 * updating, 1),
            "sent_GB": round(sent / 1e9, 2),
            "sending_ms": round(1e3 * sending),
            "of_linear_one_after_the_other": f"{(computing + updating) / (computing + updating + sending):.0%}",
            # The sums of a block's gradients begin when its backward pass ends: two thirds of the computing hide them.
            "of_linear_overlapped": f"{(computing + updating) / (updating + computing / 3 + max(2 * computing / 3, sending)):.0%}",  # noqa: E501
        }
        print(json.dumps(row))


def main() -> None:
    """Prints a line of JSON for each number of devices and way to divide the work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="ViT-Ti/16")
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--heads", type=int, default=8, help="of the model; a number that the devices divide")
    parser.add_argument("--project", metavar="VARIANT", help="only the arithmetic, for up to 1,024 devices")
    parser.add_argument("--images", type=int, default=128, help="of a device, with --project")
    parser.add_argument("--peak-tflops", type=float, default=989.0)
    parser.add_argument("--share", type=float, default=0.4, help="of the peak that is reached")
    parser.add_argument("--bandwidth", type=float, default=50.0, help="GB/s that a device sends")
    parser.add_argument("--latency", type=float, default=5.0, help="microseconds for each step of a ring")
    parser.add_argument("--memory-bandwidth", type=float, default=3350.0, help="GB/s of a device's memory")
    options = parser.parse_args()
    if options.project:
        return project(options.project, options.images, options)

    from keras_vit.models import variant_config
    from keras_vit.training import data_parallel, model_parallel
    from keras_vit.training.planning import sent_in_an_update

    config = variant_config(options.variant).replace(classes=1000, depth=options.depth, heads=options.heads)
    for way in ("data", "model"):
        operations = {}
        for devices in DEVICES:
            names = [f"cpu:{number}" for number in range(devices)]
            if way == "data":
                distribution, shards = data_parallel(names), 1
            elif devices > 1:
                distribution, shards = model_parallel(config, devices, names), devices
            else:
                continue
            compiled = compiled_step(config, options.batch, distribution)
            sent = sent_bytes(compiled.as_text(), devices)
            copies = devices // shards
            formula = sent_in_an_update(config, options.batch // copies, 1, shards, copies, "float32")
            operations[devices] = compiled.cost_analysis()["flops"]
            row = {
                "way": way,
                "devices": devices,
                "sent_MB": {kind: round(size / 1e6, 3) for kind, size in sent.items()},
                "sum_MB": round(sum(sent.values()) / 1e6, 3),
                "formula_MB": round(formula / 1e6, 3),
                "gflop_of_a_device": round(operations[devices] / 1e9, 3),
            }
            if 1 in operations and devices > 1:
                # F(n) = parallel / n + rest: the rest as a share of F(1).
                rest = (devices * operations[devices] - operations[1]) / (devices - 1)
                row["not_parallel"] = f"{rest / operations[1]:.3%}"
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
