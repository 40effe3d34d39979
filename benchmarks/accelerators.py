"""How fast the models are on a GPU, beside native implementations and the chip's own limits.

    make bench                                         where `nvidia-smi -L` names a GPU: all rows, then the page
    python benchmarks/accelerators.py --dry-run        anywhere: every row with one small image, on the CPU
    python benchmarks/accelerators.py --lower          anywhere: the programs for CUDA, full size, which are not run
    python benchmarks/accelerators.py --roofline       anywhere: what operations take at the least, from their sizes

A row is a model, its pixels and a job, in bfloat16: `forward` with bfloat16 weights, `train` with float32 weights and
SGD with momentum (`mixed_bfloat16`; autocast for PyTorch's peers). Images lie on the device. The batch doubles until
memory ends or two batches in a row bring less than the best; the best one counts. Every contestant has a process of its
own for each row: `keras_vit` is `predict_on_batch` or `train_on_batch`, `called` the model as a function; timm is
compiled, with `channels_last`; Transformers computes attention by PyTorch's fused operation; Flax is jitted.

The share of the peak counts the multiplications and additions of the model, three times as many for training, and
recomputes nothing: model FLOPs, as in PaLM (arXiv 2204.02311, appendix B).
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import speed
from speed import SHAPES, TIMM, Unavailable, in_process, installed, labels_of, need, patch_of
from speed_page import markdown, write, write_between

ROWS = [
    f"{model} {pixels} {job}"
    for job in ("forward", "train")
    for model, pixels in [*((name, 224) for name in SHAPES if "R50" not in name), ("ViT-B/16", 384)]
]
# Dense bfloat16 multiplications and additions, and bytes of memory, in a second: NVIDIA's data sheets.
CHIPS = {
    "H200": (989e12, 4.8e12),
    "H100 PCIe": (756e12, 2.0e12),
    "H100": (989e12, 3.35e12),
    "A100-SXM4-80GB": (312e12, 2.04e12),
    "A100": (312e12, 1.56e12),
    "L4": (121e12, 0.3e12),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, metavar="ROW", help=f"such as {ROWS[0]!r}")
    parser.add_argument("--backends", nargs="+", choices=[*CONTESTANTS], default=[*CONTESTANTS])
    parser.add_argument("--json", type=Path, help="file for all figures; rows that are measured again are replaced")
    parser.add_argument("--page", type=Path, help="Markdown file that gets the table of the JSON file")
    parser.add_argument("--dry-run", action="store_true", help="one image of four patches, two steps, any device")
    parser.add_argument("--lower", action="store_true", help="what the programs for CUDA consist of; runs nothing")
    parser.add_argument("--roofline", action="store_true", help="shares of the peak that are possible; runs nothing")
    parser.add_argument("--measure", nargs=2, metavar=("ROW", "CONTESTANT"), help=argparse.SUPPRESS)
    parser.add_argument("--lower-one", metavar="ROW", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (options.dry_run or options.lower or options.roofline) and (options.json or options.page):
        parser.error("--dry-run, --lower and --roofline measure nothing: leave --json and --page out (make sets them)")
    if options.roofline:
        print("\n".join(roofline()))
    elif options.measure:
        print(json.dumps(measure(*options.measure, options.dry_run)))
    elif options.lower_one:
        print(json.dumps(LOWERED[os.environ["KERAS_BACKEND"]](options.lower_one)))
    elif options.lower:
        for row in options.rows:
            for backend in options.backends:
                found = in_process(backend, "--lower-one", row, script=__file__, CUDA_VISIBLE_DEVICES="")
                print(f"{row}, {backend}: {', '.join(f'{n} {name}' for name, n in found.items())}", flush=True)
    else:
        run_all(options)


def run_all(options):
    """Measures, and writes the JSON file after each contestant. What fails is named at the end; the rest goes on."""
    results = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    failed = []
    for row in options.rows:
        for backend in options.backends:
            for name in CONTESTANTS[backend]:
                key = {"row": row, "backend": backend, "contestant": name}
                arguments = ["--measure", row, name, *["--dry-run"] * options.dry_run]
                try:
                    found = in_process(backend, *arguments, script=__file__)
                except subprocess.CalledProcessError as error:
                    failed.append(f"{row}, {backend}, {name}: {error}")
                    continue
                if found is None:
                    continue
                results = [r for r in results if {k: r[k] for k in key} != key] + [key | found]
                print(" ".join([row, backend, name, json.dumps(found["batches"])]), flush=True)
                if options.json:
                    write(options.json, json.dumps(results, indent=1) + "\n")
    if options.page and results:
        write_between(options.page, "\n".join(table(results)) + "\n")
    if failed:
        sys.exit("Failed:\n" + "\n".join(failed))


def table(results):
    yield f"Measured on {', '.join(sorted({r['device'] for r in results}))}, with {versions(results)}.\n"
    yield from markdown(["row", "backend", "contestant", "batch", "images/s", "of the peak", "MB", "first call, s"])
    for result in sorted(results, key=lambda r: (ROWS.index(r["row"]), r["backend"])):
        best = max(result["batches"], key=lambda batch: batch["rate"])
        peak = next((peak for name, (peak, _) in CHIPS.items() if re.search(rf"\b{name}\b", result["device"])), None)
        share = f"{best['rate'] * result['flops'] / peak:.2f}" if peak else ""
        names = f"| {result['row']} | {result['backend']} | {result['contestant']} | {best['batch']} "
        yield f"{names}| {best['rate']:.0f} | {share} | {best['MB']:.0f} | {result['batches'][0]['first']:.1f} |"


def versions(results):
    return ", ".join(sorted({f"{name} {number}" for r in results for name, number in r["versions"].items()}))


# Measuring


def measure(row, name, dry):
    """Rate, memory and first call of a contestant with each batch; None where it is not installed."""
    from keras_vit.models.sizes import count_macs
    from keras_vit.models.variants import variant_config

    model, pixels, job = row.split()
    pixels = 2 * patch_of(model) if dry else int(pixels)
    macs = count_macs(variant_config(model, pixels))
    backend = os.environ["KERAS_BACKEND"]
    device = device_name(backend, dry)
    batches, best, worse = [], 0, 0
    batch = 1 if dry else 16
    while worse < 2:
        images = np.random.default_rng(0).uniform(-1, 1, (batch, pixels, pixels, 3)).astype("float32")
        try:
            step, wait = CONTESTANTS[backend][name](model, images, job, dry)
            started = time.perf_counter()
            wait(step())
            first = time.perf_counter() - started
            rate = batch / seconds_of(step, wait, rounds=1 if dry else 5, least=0 if dry else 1)
        except Unavailable:
            return None
        except Exception as error:  # each framework has its own for this
            if not batches or not re.search("out of memory|RESOURCE_EXHAUSTED|alloc", str(error), re.IGNORECASE):
                raise
            break
        batches.append({"batch": batch, "rate": rate, "MB": peak_memory(backend) / 1e6, "first": first})
        worse, best = (worse + 1, best) if rate <= best else (0, rate)
        batch *= 2
        del step
        if dry:
            break
    flops = 2 * macs * (3 if job == "train" else 1)  # of an image
    return {"device": device, "versions": speed.versions(), "flops": flops, "batches": batches}


def seconds_of(step, wait, rounds, least):
    """Median seconds of a step. Steps are queued until they fill a while, and waited for at its end."""
    wait(step())
    count, times = 1, []
    while len(times) < rounds:
        started = time.perf_counter()
        for _ in range(count):
            last = step()
        wait(last)
        passed = time.perf_counter() - started
        if passed < least:
            count *= 2
            continue
        times.append(passed / count)
    return statistics.median(times)


def device_name(backend, dry):
    if dry:
        return "a CPU"
    if backend == "torch":
        import torch

        return torch.cuda.get_device_name()
    import jax

    if jax.default_backend() == "cpu":
        sys.exit("JAX sees no accelerator here: pip install 'keras-vit-zoo[cuda]'; --dry-run measures nothing.")
    return jax.devices()[0].device_kind


def peak_memory(backend):
    """Bytes on the device, at the most so far; 0 without one."""
    if backend == "torch":
        import torch

        return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


# Contestants: a step, and a function that waits for what it gives


def wait_torch(_):
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def wait_jax(value):
    import jax

    jax.block_until_ready(value)


def keras_vit(model, images, job, dry):
    import keras

    images = keras.ops.convert_to_tensor(images)
    return speed.keras_vit_predicts(model, images, "bfloat16", job), lambda _: None  # it gives arrays of NumPy


def called_in_torch(model, images, job, dry):
    return speed.torch_call(model, images, "bfloat16", job), wait_torch


def timm(model, images, job, dry):
    need(installed("timm"))
    speed.declare_torchvision()
    import timm as package

    net = package.create_model(TIMM[model], img_size=images.shape[1], num_classes=1000)
    return of_module(net, images, job, dry, compiled=True)


def transformers(model, images, job, dry):
    need(installed("transformers"))
    speed.declare_torchvision()
    return of_module(speed.vit_of_transformers(model, images.shape[1]), images, job, dry, compiled=False)


def of_module(net, images, job, dry, compiled):
    import torch

    device = "cpu" if dry else "cuda"
    net = net.to(device, memory_format=torch.channels_last)
    x = torch.from_numpy(images).permute(0, 3, 1, 2).to(device)  # a view: channels_last
    y = torch.from_numpy(labels_of(images)).to(device)
    if job == "forward":
        net, x = net.to(torch.bfloat16).eval(), x.to(torch.bfloat16)
    function = torch.compile(net, backend="eager" if dry else "inductor") if compiled else net

    def logits():
        answer = function(x)
        return getattr(answer, "logits", answer)

    if job == "forward":

        def step():
            with torch.inference_mode():
                return logits()

        return step, wait_torch
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(logits(), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, wait_torch


def called_in_jax(model, images, job, dry):
    return speed.jax_call(model, images, "bfloat16", job), wait_jax


def flax(model, images, job, dry):
    return speed.flax(model, images, "bfloat16", job), wait_jax


CONTESTANTS = {
    "torch": {"keras_vit": keras_vit, "called": called_in_torch, "timm": timm, "Transformers": transformers},
    "jax": {"keras_vit": keras_vit, "called": called_in_jax, "Flax": flax},
}


# Programs for CUDA, made where there is none


def unfilled(row, batch=64):
    """A model without values, which takes no memory, and the shape of its images."""
    from keras_vit.layers import fast, skip_initialization

    model, pixels, job = row.split()
    for operation, device in [*fast.FORMS]:
        if device.endswith("cpu"):
            del fast.FORMS[operation, device]
    with skip_initialization():
        net = speed.ours(model, np.empty((0, int(pixels), int(pixels), 3)), speed.policy("bfloat16", job))
    return net, (batch, int(pixels), int(pixels), 3), job


def lowered_in_jax(row):
    """The products of the program, by the type of what is multiplied."""
    import jax

    net, shape, job = unfilled(row)
    variables = (net.trainable_variables, net.non_trainable_variables)
    values = [[jax.ShapeDtypeStruct(v.shape, v.dtype) for v in kind] for kind in variables]

    def forward(trainable, other, x):
        return net.stateless_call(trainable, other, x, training=job == "train")[0]

    def loss(trainable, other, x):
        return -jax.numpy.log(forward(trainable, other, x)[:, 0].astype("float32")).mean()

    function = jax.jit(forward if job == "forward" else jax.grad(loss))
    exported = jax.export.export(function, platforms=["cuda"])(*values, jax.ShapeDtypeStruct(shape, "float32"))
    kinds = re.findall(
        r"stablehlo\.(dot_general|convolution)[^\n]* : \(tensor<[^>]*?(bf16|f32)>", exported.mlir_module()
    )
    return {f"{name} in {kind}": count for (name, kind), count in sorted(Counter(kinds).items())}


def lowered_in_torch(row):
    """Operations of the exported program, which `torch.export` traces without memory."""
    import torch

    net, shape, job = unfilled(row)
    if job == "train":  # its gradients come while it runs
        return {}
    program = torch.export.export(net, (torch.zeros(1).expand(shape),), strict=False)
    names = Counter(str(node.target).split(".")[1] for node in program.graph.nodes if str(node.target).count(".") > 1)
    kept = ("scaled_dot_product_attention", "linear", "matmul", "layer_norm", "gelu", "_to_copy", "to", "item")
    return {name: names[name] for name in kept if names[name]}


LOWERED = {"torch": lowered_in_torch, "jax": lowered_in_jax}


# The least that operations take


def roofline():
    """Shares of the peak in `forward`: each operation by itself, and with what is pointwise fused into the products."""
    yield from markdown(["row, batch 256", "chip", "one by one", "fused", "products that wait for memory"])
    for row in ROWS:
        for chip in ("H100", "H200") if row.endswith("forward") else ():
            peak, bandwidth = CHIPS[chip]
            operations = operations_of(row, 256)
            least = {name: max(flops / peak, moved / bandwidth) for name, (flops, moved) in operations.items()}
            products = [name for name, (flops, _) in operations.items() if flops]
            useful = sum(flops for flops, _ in operations.values()) / peak
            shares = f"{useful / sum(least.values()):.2f} | {useful / sum(least[name] for name in products):.2f}"
            waiting = [name for name in products if operations[name][1] / bandwidth > operations[name][0] / peak]
            yield f"| {row} | {chip} | {shares} | {', '.join(waiting) or 'none'} |"


def operations_of(row, batch):
    """What the operations of all blocks compute, and the bytes that each reads and writes in bfloat16."""
    model, pixels, _ = row.split()
    width, depth, _, hidden = SHAPES[model]
    tokens = (int(pixels) // patch_of(model)) ** 2 + 1
    rows = batch * tokens

    def product(units_in, units):
        return 2 * rows * units_in * units, 2 * (rows * units_in + units_in * units + rows * units)

    block = {
        "query, key, value": tuple(3 * part for part in product(width, width)),
        "attention": (4 * rows * tokens * width, 2 * 4 * rows * width),
        "out": product(width, width),
        "fc1": product(width, hidden),
        "fc2": product(hidden, width),
        "two normalisations": (0, 2 * 2 * 2 * rows * width),
        "GELU": (0, 2 * 2 * rows * hidden),
        "two sums": (0, 2 * 2 * 3 * rows * width),
    }
    return {name: (depth * flops, depth * moved) for name, (flops, moved) in block.items()}


if __name__ == "__main__":
    main()
