"""How fast the models are, beside native implementations of the same models and the products they consist of.

    make bench                                            all rows, in an environment with all peers
    make bench BENCH_ARGS='--rows calls'                  the calls of Python alone, which benchmarks/calls.py counts
    make bench BENCH_ARGS=--page-only                     docs/speed_rows.md and its pictures, from docs/speed.json
    python benchmarks/speed.py --list                     the rows
    python benchmarks/speed.py --backends torch --rows "ViT-B/16 224 8 float32 forward" --json speed.json

A row is a model, an image size, a batch, a precision and a job. For `forward` and `train` all contestants take turns,
one step each in every round, so that ratios hold where the machine's speed drifts. Each has a process of its own: in
one for all, whose memory the first have cut up, others take up to a tenth longer. For `start` and `start-train`
processes are fresh, and find their own framework alone, as after `pip install keras-vit-zoo[torch]`: how long imports,
building, the first call and those after it take, and the peak of memory. `int8` is Keras's `quantize("int8")`.

Contestants beside `keras_vit`, which is `predict_on_batch` or `train_on_batch`: the same with the exact GELU (`exact`,
PyTorch), the model called as a function (`called`, `XLA`), `optimize_for_inference` (`optimized`), `folded()`; for
smaller precisions the same in `float32`; timm and Transformers (PyTorch), a minimal Linen model of Flax's own layers
(JAX), KerasHub (TensorFlow); and the limit, the matrix products alone in the same framework.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import calls
import numpy as np
from speed_page import BACKENDS, STEPS, is_start, lines, write, write_between, write_page

SHAPES = {  # width, depth, heads, MLP
    "ViT-Ti/16": (192, 12, 3, 768),
    "ViT-S/16": (384, 12, 6, 1536),
    "ViT-B/16": (768, 12, 12, 3072),
    "ViT-L/16": (1024, 24, 16, 4096),
    "ViT-H/14": (1280, 32, 16, 5120),
    "R50+ViT-B/16": (768, 12, 12, 3072),
}
TEXT = "CLIP-B/32-text"  # the text tower of OpenAI's CLIP; its row has the context in place of pixels
TEXT_CONTESTANTS = ("keras_vit", "called", "Transformers")
TIMM = {
    "ViT-Ti/16": "vit_tiny_patch16_224",
    "ViT-S/16": "vit_small_patch16_224",
    "ViT-B/16": "vit_base_patch16_224",
    "ViT-L/16": "vit_large_patch16_224",
    "ViT-H/14": "vit_huge_patch14_224",
    "R50+ViT-B/16": "vit_base_r50_s16_224",
}
ROWS = (
    "ViT-B/16 224 8 float32 forward",
    "ViT-B/16 224 1 float32 forward",
    "ViT-B/16 384 1 float32 forward",
    "ViT-B/16 224 8 bfloat16 forward",
    "ViT-B/16 224 1 int8 forward",
    "ViT-B/16 224 4 float32 train",
    "ViT-Ti/16 224 1 float32 forward",
    "ViT-Ti/16 224 8 float32 forward",
    "ViT-Ti/16 224 8 float32 train",
    "ViT-S/16 224 1 float32 forward",
    "ViT-L/16 224 1 float32 forward",
    "R50+ViT-B/16 224 1 float32 forward",
    "R50+ViT-B/16 224 4 float32 forward",
    f"{TEXT} 77 32 float32 forward",
    "ViT-B/16 224 4 float32 start-train",
    *(f"ViT-B/16 224 {batch} float32 start" for batch in (1, 4, 16, 64)),
    *(f"ViT-B/16 {pixels} 1 float32 start" for pixels in (512, 1024)),
    *(f"{model} 224 1 float32 start" for model in ("ViT-Ti/16", "ViT-S/16", "ViT-L/16", "ViT-H/14")),
)
PACKAGES = ("keras", "torch", "jax", "tensorflow", "timm", "transformers", "flax", "keras-hub")
PAUSE = 0.05  # seconds between two contestants, in which idle threads stop looking for work
JOBS = ("forward", "train", "start", "start-train")
CALLS = "calls"  # a row of its own: no times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    row = {"type": row_of, "metavar": "ROW", "help": f"such as {ROWS[0]!r} (default: all)"}
    parser.add_argument("--rows", nargs="+", default=ROWS, **row)
    parser.add_argument("--rounds", type=positive, default=9, help="at most so many (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="no new round after so many (default: %(default)s)")
    names = sorted({name for contestants in CONTESTANTS.values() for name in contestants})
    only = {"nargs": "+", "choices": names, "metavar": "CONTESTANT"}
    parser.add_argument("--only", **only, help=f"keras_vit and these of: {', '.join(names)}")
    parser.add_argument("--json", type=Path, help="file for all times; rows that are measured again are replaced")
    parser.add_argument("--page", type=Path, help="Markdown file that gets the tables and pictures of the JSON file")
    parser.add_argument("--page-only", action="store_true", help="measure nothing, write --page from --json")
    parser.add_argument("--serve", nargs=2, metavar=("ROW", "CONTESTANT"), help=argparse.SUPPRESS)
    parser.add_argument("--build", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--start", nargs=2, metavar=("ROW", "CONTESTANT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.page_only and not (options.page and options.json and options.json.exists()):
        parser.error("--page-only needs --page, and --json with a file that exists")
    if options.page and not installed("matplotlib"):
        parser.error("--page draws pictures with matplotlib, which is not installed: pip install matplotlib")
    if options.list:
        print("\n".join([*ROWS, CALLS]))
    elif options.build:
        print(json.dumps(build_of_torch()))
    elif options.start:
        print(json.dumps(start(*options.start)))
    elif options.serve:
        serve(*options.serve)
    else:
        run_all(options)


def row_of(text):
    """An argument of `--rows`, checked."""
    match text.split():
        case ["calls"]:
            return text
        case [model, size, batch, "float32" | "bfloat16" | "int8" as dtype, job] if (
            (model in SHAPES and job in JOBS or model == TEXT and job == "forward")
            and (dtype != "int8" or (model in SHAPES and job == "forward"))
            and size.isdecimal()
            and batch.isdecimal()
        ):
            return text
    form = f"MODEL PIXELS BATCH float32|bfloat16|int8 {'|'.join(JOBS)}"
    raise argparse.ArgumentTypeError(
        f"{text!r} is not {CALLS!r} or {form!r}, with a model of {', '.join([*SHAPES, TEXT])}"
    )


def positive(text):
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def run_all(options):
    """Measures, and writes the JSON file after each row. What fails is named at the end, and the rest goes on."""
    results = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    failed = []
    rows = [] if options.page_only else [*options.rows]
    if CALLS in rows:
        rows.remove(CALLS)
        print("\n".join(counts := [*calls.table()]), flush=True)
        if options.page:
            write_between(options.page.with_name("speed.md"), "\n".join(["", *counts, "", ""]), CALLS)
    for row in rows:
        for backend in options.backends:
            result = {"row": row, "backend": backend, "machine": machine(), "versions": versions()}
            result["date"] = time.strftime("%Y-%m-%d")
            if backend == "torch":
                result["torch"] = in_process(backend, "--build")
            try:
                result["contestants"] = contestants(row, backend, options)
            except subprocess.CalledProcessError as error:
                failed.append(f"{row}, {backend}: {error}")
                continue
            print("\n".join(lines(result)), flush=True)
            results = in_order([r for r in results if (r["row"], r["backend"]) != (row, backend)] + [result])
            if options.json:
                write(options.json, json.dumps(results, indent=1) + "\n")
    if options.page:
        write_page(options.page, in_order(results))
    if failed:
        sys.exit("Failed:\n" + "\n".join(failed))


def in_order(results):
    """Results in the order of `ROWS`, then others; for each row the backends in theirs."""
    places = {row: place for place, row in enumerate(ROWS)}
    backends = list(BACKENDS)
    return sorted(results, key=lambda r: (places.get(r["row"], len(ROWS)), backends.index(r["backend"])))


def contestants(row, backend, options):
    """What was measured of each contestant, by its name."""
    names = [name for name in CONTESTANTS[backend] if name == "keras_vit" or not options.only or name in options.only]
    if is_start(row):
        return in_fresh_processes(row, backend, [name for name in names if name in STARTED], options)
    names = [name for name in names if not row.startswith(TEXT) or name in TEXT_CONTESTANTS]
    names = [name for name in names if " int8 " not in row or name in ("keras_vit", "float32")]
    with contextlib.ExitStack() as stack:
        steps = {}
        for name in names:
            process = stack.enter_context(open_process(backend, "--serve", row, name, stdin=subprocess.PIPE))
            if answer(process) is not None:
                steps[name] = process
        times = {name: [] for name in steps}
        begun = time.perf_counter()
        while len(times["keras_vit"]) < options.rounds:
            for name, process in steps.items():
                time.sleep(PAUSE)
                with contextlib.suppress(BrokenPipeError):  # of one that was killed, which `answer` says
                    process.stdin.write("\n")
                    process.stdin.flush()
                times[name].append(answer(process))
            if time.perf_counter() - begun > options.seconds:
                break
        return times


def answer(process):
    """What a contestant's process says next, in JSON on a line of its own; None from one that has ended well."""
    for line in process.stdout:
        with contextlib.suppress(ValueError):
            return json.loads(line)
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return None


def serve(row, name):
    """Makes a step, and takes it whenever a line comes in: the seconds of each."""
    try:
        step = make(row, name)
    except Unavailable:
        return
    for _ in range(2):  # the first call compiles; a second one warms up what is quick
        step()
    print("true", flush=True)
    for _ in sys.stdin:
        begun = time.perf_counter()
        step()
        print(time.perf_counter() - begun, flush=True)


def in_process(backend, *arguments, **options):
    """What a script prints last, in JSON, in a process of its own."""
    with open_process(backend, *arguments, **options) as process:
        output = process.communicate()[0]
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return json.loads(output.splitlines()[-1])


def open_process(backend, *arguments, script=__file__, stdin=None, search=None, **variables):
    """A process of this package, not of an installed one, with a backend; modules are searched in a folder first."""
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [search, root, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, script, *arguments]
    return subprocess.Popen(command, env=environment | variables, stdin=stdin, stdout=subprocess.PIPE, text=True)


# Read by Python at its start. Keras imports what it finds: on PyTorch, with the others installed, 120 MB more.
HIDE = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in HIDDEN else find(name, *rest)
"""
OTHERS = {*BACKENDS, "jaxlib", "sklearn", "matplotlib"}


def in_fresh_processes(row, backend, names, options):
    """A process for each contestant and round, in turn: three rounds, or what fits into the seconds."""
    rounds = {name: [] for name in names}
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        hidden = OTHERS - {backend, f"{backend}lib"}
        Path(folder, "sitecustomize.py").write_text(f"HIDDEN = {sorted(hidden)}{HIDE}")
        for _ in range(min(options.rounds, 3)):
            for name in names:
                rounds[name] += filter(None, [in_process(backend, "--start", row, name, search=folder)])
            if time.perf_counter() - begun > options.seconds:
                break
    return {name: all_of_one for name, all_of_one in rounds.items() if all_of_one}


def machine():
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
        flags = next(line for line in lines if line.startswith("flags"))
        units = [unit for unit in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f" {unit}" in flags]
        return f"{os.cpu_count()} cores of {name} ({', '.join(units)})"
    return f"{os.cpu_count()} cores of {platform.machine()}"


def build_of_torch():
    """PyTorch's version, the instructions that it uses, and what multiplies matrices in keras_vit."""
    import torch

    from keras_vit.layers.fast.torch import takes_onednn

    products = "oneDNN" if takes_onednn() else "MKL"
    return f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, products by {products}"


def versions():
    installed_ones = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed_ones[name] = importlib.metadata.version(name)
    return installed_ones


# Measuring


STARTED = {"keras_vit": "keras_vit", "timm": "timm", "Transformers": "transformers", "Flax": "flax.linen"}
STARTED["KerasHub"] = "keras_hub"


def make(row, name):
    model, size, batch, dtype, job = row.split()
    if model == TEXT:
        images = np.random.default_rng(0).integers(1, 49406, (int(batch), int(size))).astype("int32")
        images[:, -1] = 49407  # the end of a text
    else:
        images = np.random.default_rng(0).uniform(-1, 1, (int(batch), int(size), int(size), 3)).astype("float32")
    job = {"start": "forward", "start-train": "train"}.get(job, job)
    return CONTESTANTS[os.environ["KERAS_BACKEND"]][name](model, images, dtype, job)


def start(row, name):
    """Seconds and memory of one contestant in this process, which has done nothing yet; None without such a row."""
    clock = [time.perf_counter()]

    def tick():
        clock.append(time.perf_counter())

    if not installed(STARTED[name].partition(".")[0]):
        return None
    importlib.import_module(os.environ["KERAS_BACKEND"])
    if os.environ["KERAS_BACKEND"] == "torch":
        declare_torchvision()
    importlib.import_module(STARTED[name])
    if name == "keras_vit":
        importlib.import_module("keras")
    tick()
    try:
        step = make(row, name)
    except Unavailable:
        return None
    tick()
    step()
    tick()
    calls = []
    while len(calls) < 7 and sum(calls) < 6:
        started = time.perf_counter()
        step()
        calls.append(time.perf_counter() - started)
    seconds = dict(zip(STEPS, [*np.diff(clock), statistics.median(calls)], strict=True))
    # Linux: the largest resident set that this process ever had.
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return {**seconds, "peak_MB": int(peak) * 1024 / 1e6}


class Unavailable(Exception):
    """A contestant that is not installed, or has no such model or job."""


def need(condition):
    if not condition:
        raise Unavailable


def installed(*names):
    return all(importlib.util.find_spec(name) for name in names)


def ours(model, images, dtype, **changes):
    import keras_vit

    if model == TEXT:
        options = {"width": 512, "depth": 12, "heads": 8, "mlp_width": 2048, "projection": 512, "gelu": "quick"}
        options |= {"causal": True, "layer_norm_epsilon": 1e-5, "pooling": "largest_id"}
        config = keras_vit.TextConfig(vocabulary=49408, context=images.shape[1], **options)
        return keras_vit.TextEncoder(config, dtype=dtype)
    quantized, dtype = dtype == "int8", "float32" if dtype == "int8" else dtype
    network = keras_vit.create_model(model, image_size=images.shape[1], classes=1000, dtype=dtype, **changes)
    if quantized:
        network.quantize("int8")
    return network


def labels_of(images):
    return np.arange(len(images)) % 1000


def trained(model, images, jit_compile="auto"):
    """One update of a Keras model."""
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, jit_compile=jit_compile)
    labels = labels_of(images)
    return lambda: model.train_on_batch(images, labels)


def predicted(model, images):
    return lambda: model.predict_on_batch(images)


# What Keras computes, whatever the backend


def keras_vit_predicts(model, images, dtype, job, **changes):
    """As `predict` and `fit` do it."""
    network = ours(model, images, policy(dtype, job))
    return (predicted if job == "forward" else trained)(network.with_config(**changes) if changes else network, images)


def keras_vit_exact(model, images, dtype, job):
    """With the exact GELU, timm's default, which the official checkpoints were not trained with."""
    need(model != TEXT)
    return keras_vit_predicts(model, images, dtype, job, gelu="exact")


def keras_vit_folded(model, images, dtype, job):
    need(job == "forward" and "R50" in model)
    return predicted(ours(model, images, dtype).folded(), images)


def keras_vit_optimized(model, images, dtype, job):
    need(job == "forward")
    return predicted(ours(model, images, dtype).optimize_for_inference(verbose=False), images)


def keras_vit_float32(model, images, dtype, job):
    """What a smaller precision is beside."""
    need(dtype != "float32")
    return keras_vit_predicts(model, images, "float32", job)


def policy(dtype, job):
    return "mixed_bfloat16" if job == "train" and dtype == "bfloat16" else dtype


# PyTorch


LIBRARIES = []


def declare_torchvision():
    """Lets torchvision's wheel for GPUs be imported beside PyTorch's for CPUs: no model here uses its operations."""
    import torch

    if not LIBRARIES:
        LIBRARIES.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            LIBRARIES[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def torch_call(model, images, dtype, job):
    """The model called as a function, without what `predict` does around it."""
    import keras
    import torch

    need(job == "forward")
    model, x = ours(model, images, dtype), keras.ops.convert_to_tensor(images)

    def step():
        with torch.no_grad():
            return model(x, training=False)

    return step


def timm(model, images, dtype, job):
    """With the exact GELU, its default, which takes less time than the tanh that the official checkpoints need."""
    return torch_step(timm_network(model, images), images, dtype, job)


def timm_tanh(model, images, dtype, job):
    """The same function as the official code and keras_vit."""
    return torch_step(timm_network(model, images, act_layer="gelu_tanh"), images, dtype, job)


def timm_compiled(model, images, dtype, job):
    """As `timm_tanh`, as a program of `torch.compile`, whose first call takes a minute and needs a compiler of C++."""
    need(job == "forward" and dtype == "float32" and model in ("ViT-S/16", "ViT-B/16") and images.shape[1] == 224)
    need(shutil.which("g++"))
    net = timm_network(model, images, act_layer="gelu_tanh")
    net.compile()
    return torch_step(net, images, dtype, job)


def timm_network(model, images, **options):
    need(installed("timm"))
    declare_torchvision()
    import timm as package

    return package.create_model(TIMM[model], img_size=images.shape[1], num_classes=1000, **options)


def transformers(model, images, dtype, job):
    need(installed("transformers") and "R50" not in model)
    declare_torchvision()
    import transformers as package

    if model == TEXT:  # whose defaults are the sizes of B/32
        config = package.CLIPTextConfig(max_position_embeddings=images.shape[1])
        return torch_step(package.CLIPTextModelWithProjection(config), images, dtype, job)
    return torch_step(vit_of_transformers(model, images.shape[1]), images, dtype, job)


def vit_of_transformers(model, pixels):
    import transformers as package

    width, depth, heads, hidden = SHAPES[model]
    config = package.ViTConfig(
        image_size=pixels,
        patch_size=patch_of(model),
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=hidden,
        num_labels=1000,
    )
    return package.ViTForImageClassification(config)


def torch_step(net, images, dtype, job):
    """A call, or an update, of a module; with reduced precision where autocast knows it."""
    import torch

    x, y = torch.from_numpy(images), torch.from_numpy(labels_of(images))
    x = x.permute(0, 3, 1, 2).contiguous() if images.ndim == 4 else x.long()

    def logits():
        answer = net(x)
        return getattr(answer, "logits", answer)

    reduced = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")
    if job == "forward":
        net.eval()

        def step():
            with torch.no_grad(), reduced:
                return logits()

        return step
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)

    def step():
        optimizer.zero_grad()
        with reduced:
            loss = torch.nn.functional.cross_entropy(logits(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def torch_limit(model, images, dtype, job):
    import torch

    need(job == "forward" and "R50" not in model)
    need(dtype != "bfloat16" or "bf16" in machine())  # without instructions for them a step takes minutes
    dtype = getattr(torch, dtype)
    products = [(torch.randn(n, k).to(dtype), torch.randn(k, m).to(dtype)) for n, k, m in sizes(model, images)]
    depth = SHAPES[model][1]

    def step():
        for _ in range(depth):
            for a, b in products:
                a @ b

    return step


def patch_of(model):
    return int(model.rpartition("/")[2])


def sizes(model, images):
    """The products of one block's dense layers."""
    width, _, _, hidden = SHAPES[model]
    tokens = len(images) * ((images.shape[1] // patch_of(model)) ** 2 + 1)
    return [(tokens, width, width)] * 4 + [(tokens, width, hidden), (tokens, hidden, width)]


# JAX


def jax_call(model, images, dtype, job):
    import jax

    need(job == "forward")
    model, x = ours(model, images, dtype), jax.numpy.asarray(images)
    trainable, other = ([v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables))
    function = jax.jit(lambda t, o, x: model.stateless_call(t, o, x, training=False)[0])
    return lambda: function(trainable, other, x).block_until_ready()


def flax(model, images, dtype, job):
    need(installed("flax", "optax"))
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax

    width, depth, heads, hidden = SHAPES[model]
    dtype = jnp.dtype(dtype)

    class StdConv(nn.Module):
        filters: int
        size: int
        strides: int = 1

        @nn.compact
        def __call__(self, x):
            shape = (self.size, self.size, x.shape[-1], self.filters)
            kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
            kernel = (kernel - kernel.mean((0, 1, 2))) / (kernel.std((0, 1, 2)) + 1e-5)
            dimensions = ("NHWC", "HWIO", "NHWC")
            step = (self.strides, self.strides)
            return jax.lax.conv_general_dilated(x, kernel.astype(dtype), step, "SAME", dimension_numbers=dimensions)

    class Unit(nn.Module):
        filters: int
        strides: int

        @nn.compact
        def __call__(self, x):
            shortcut = x
            if x.shape[-1] != 4 * self.filters or self.strides != 1:
                shortcut = nn.GroupNorm(dtype=dtype)(StdConv(4 * self.filters, 1, self.strides)(x))
            y = nn.relu(nn.GroupNorm(dtype=dtype)(StdConv(self.filters, 1)(x)))
            y = nn.relu(nn.GroupNorm(dtype=dtype)(StdConv(self.filters, 3, self.strides)(y)))
            return nn.relu(shortcut + nn.GroupNorm(dtype=dtype)(StdConv(4 * self.filters, 1)(y)))

    def resnet(x):
        x = nn.relu(nn.GroupNorm(dtype=dtype)(StdConv(64, 7, 2)(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, units in enumerate((3, 4, 9)):
            for unit in range(units):
                x = Unit(64 * 2**stage, 2 if stage and not unit else 1)(x)
        return x

    patch = 1 if "R50" in model else patch_of(model)

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            y = nn.LayerNorm(dtype=dtype)(x)
            x = x + nn.MultiHeadDotProductAttention(heads, dtype=dtype)(y, y)
            y = nn.Dense(hidden, dtype=dtype)(nn.LayerNorm(dtype=dtype)(x))
            return x + nn.Dense(width, dtype=dtype)(nn.gelu(y))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = resnet(x.astype(dtype)) if "R50" in model else x
            x = nn.Conv(width, (patch, patch), (patch, patch), "VALID", dtype=dtype)(x).reshape(len(x), -1, width)
            token = self.param("token", nn.initializers.zeros, (1, 1, width)).astype(dtype)
            x = jnp.concatenate([jnp.tile(token, (len(x), 1, 1)), x], 1)
            x = x + self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:])).astype(dtype)
            for _ in range(depth):
                x = Block()(x)
            return nn.Dense(1000)(nn.LayerNorm(dtype=dtype)(x)[:, 0].astype(jnp.float32))

    net, x, y = Net(), jnp.asarray(images), jnp.asarray(labels_of(images))
    parameters = jax.jit(net.init)(jax.random.key(0), x[:1])
    if job == "forward":
        function = jax.jit(net.apply)
        return lambda: function(parameters, x).block_until_ready()
    optimizer = optax.sgd(0.01, momentum=0.9)

    def loss(parameters):
        return optax.softmax_cross_entropy_with_integer_labels(net.apply(parameters, x), y).mean()

    @jax.jit
    def update(parameters, state):
        value, grads = jax.value_and_grad(loss)(parameters)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(parameters, updates), state, value

    state = [parameters, optimizer.init(parameters)]

    def step():
        *state[:], value = update(*state)
        return value.block_until_ready()

    return step


def jax_limit(model, images, dtype, job):
    import jax

    need(job == "forward" and "R50" not in model)
    keys = jax.random.key(0)
    products = [
        (jax.random.normal(keys, (n, k)).astype(dtype), jax.random.normal(keys, (k, m)).astype(dtype))
        for n, k, m in sizes(model, images)
    ]
    product, depth = jax.jit(lambda a, b: a @ b), SHAPES[model][1]

    def step():
        for _ in range(depth):
            for a, b in products:
                product(a, b).block_until_ready()

    return step


# TensorFlow


def tensorflow_call(model, images, dtype, job, xla=False):
    import tensorflow as tf

    need(job == "forward")
    model, x = ours(model, images, dtype), tf.constant(images)
    function = tf.function(lambda x: model(x, training=False), jit_compile=xla, autograph=False)
    return lambda: function(x).numpy()


def tensorflow_xla(model, images, dtype, job):
    """As `finetune` trains where there are many updates; Keras leaves XLA out on CPUs."""
    if job == "train":
        return trained(ours(model, images, policy(dtype, job)), images, jit_compile=True)
    return tensorflow_call(model, images, dtype, job, xla=True)


def keras_hub(model, images, dtype, job):
    need(installed("keras_hub") and "R50" not in model)
    import keras
    import keras_hub as package

    width, depth, heads, hidden = SHAPES[model]
    dtype = policy(dtype, job)
    backbone = package.models.ViTBackbone(
        image_shape=images.shape[1:],
        patch_size=patch_of(model),
        num_layers=depth,
        num_heads=heads,
        hidden_dim=width,
        mlp_dim=hidden,
        dtype=dtype,
    )
    head = keras.layers.Dense(1000, dtype="float32")
    net = keras.Model(backbone.inputs, head(backbone.output[:, 0]))
    return (predicted if job == "forward" else trained)(net, images)


def tensorflow_limit(model, images, dtype, job):
    import tensorflow as tf

    need(job == "forward" and "R50" not in model)
    products = [
        (tf.cast(tf.random.normal((n, k)), dtype), tf.cast(tf.random.normal((k, m)), dtype))
        for n, k, m in sizes(model, images)
    ]
    depth = SHAPES[model][1]

    def step():
        for _ in range(depth):
            for a, b in products:
                tf.matmul(a, b)

    return step


CONTESTANTS = {
    "torch": {
        "keras_vit": keras_vit_predicts,
        "float32": keras_vit_float32,
        "called": torch_call,
        "exact": keras_vit_exact,
        "folded": keras_vit_folded,
        "optimized": keras_vit_optimized,
        "timm": timm,
        "timm, tanh": timm_tanh,
        "timm, compiled": timm_compiled,
        "Transformers": transformers,
        "limit": torch_limit,
    },
    "jax": {
        "keras_vit": keras_vit_predicts,
        "float32": keras_vit_float32,
        "called": jax_call,
        "folded": keras_vit_folded,
        "optimized": keras_vit_optimized,
        "Flax": flax,
        "limit": jax_limit,
    },
    "tensorflow": {
        "keras_vit": keras_vit_predicts,
        "float32": keras_vit_float32,
        "called": tensorflow_call,
        "XLA": tensorflow_xla,
        "folded": keras_vit_folded,
        "optimized": keras_vit_optimized,
        "KerasHub": keras_hub,
        "limit": tensorflow_limit,
    },
}

if __name__ == "__main__":
    main()
