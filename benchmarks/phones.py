"""What LiteRT's own GPU accelerator makes of a file of each kind, on a machine without a GPU.

    SOFTWARE_VULKAN=FOLDER python benchmarks/phones.py --output docs/exports.md

The folder has a Vulkan driver that computes on the CPU: libvulkan.so.1 and an *icd*.json (SwiftShader in float32,
Mesa's lavapipe in float16 as well).
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import keras_vit
from keras_vit.models.variants import FAMILIES

SIZE = {"image_size": (32, 48), "patch_size": 8, "width": 48, "depth": 2, "heads": 4, "mlp_width": 96}
TOKENS = {"pooling": "none", "classes": None}


def vit(family="ViT", **changes):
    """A small Vision Transformer of a family, as its config."""
    return keras_vit.ViTConfig(**{**SIZE, "classes": 7, **FAMILIES[family], **changes})


def bit(**changes):
    return keras_vit.BiTConfig(**{"image_size": (64, 96), "stages": (1, 1), "width": 32, "classes": 7, **changes})


def linear_segmentation():
    sizes = {"classes": 5, "blocks": (0, 1), "short_side": 32, "crop_size": 32, "stride": 32}
    return keras_vit.models.LinearSegmenterConfig(backbone=vit("DINOv2", **TOKENS), **sizes)


def dpt():
    sizes = {"blocks": (0, 1, 2, 3), "widths": (16, 16, 32, 32), "fusion_width": 16, "head_width": 8}
    return keras_vit.models.DPTConfig(backbone=vit("DINOv2", depth=4, **TOKENS), max_depth=20.0, **sizes)


def tips_heads():
    tower = vit("DINOv2", depth=4, register_tokens=1, interpolation="bilinear_antialias", **TOKENS)
    sizes = {
        "tasks": ("depth", "normals", "segmentation"),
        "classes": 5,
        "widths": (16, 16, 32, 32),
        "fusion_width": 16,
    }
    return keras_vit.models.MultiTaskDPTConfig(backbone=tower, blocks=(0, 1, 2, 3), **sizes)


def eomt():
    sizes = {"classes": 5, "queries": 6, "query_blocks": 1, "upscale_blocks": 2}
    return keras_vit.models.EoMTConfig(backbone=vit("DINOv2", **TOKENS), **sizes)


def owlv2():
    sizes = {"classes": 2, "class_names": ("cat", "dog"), "embedding": 24, "objectness": True}
    return keras_vit.models.DetectorConfig(backbone=vit("CLIP", final_norm="tokens", **TOKENS), **sizes)


KINDS = {
    "glyphs": lambda: keras_vit.load("glyphs"),
    "ViT, class token": vit,
    "ViT, mean pooling": lambda: vit(class_token=False, pooling="avg"),
    "CLIP": lambda: vit("CLIP", projection=24, unit_features=True),
    "SigLIP (attention pooling)": lambda: vit("SigLIP", class_token=False),
    "DINOv2 with registers": lambda: vit("DINOv2-reg", pooling="token_avg"),
    "DINOv3": lambda: vit("DINOv3"),
    "EVA-02": lambda: vit("EVA-02", mlp="swiglu_norm"),
    "Perception Encoder": lambda: vit("PE", pooling_heads=4),
    "DeiT, distilled": lambda: vit("DeiT", distillation_token=True, distillation_head=True),
    "hybrid": lambda: vit(image_size=(64, 96), patch_size=1, stem_stages=(1, 1), stem_width=32),
    "BiT": bit,
    "BiT, padded with zeros": lambda: bit(pool_padding="zeros"),
    "MLP-Mixer": lambda: vit("Mixer", heads=1, class_token=False, pooling="avg", tokens_mlp_width=20),
    "EoMT": eomt,
    "OWLv2, fixed names": owlv2,
    "linear segmentation": linear_segmentation,
    "DPT": dpt,
    "Depth Anything 3": lambda: dpt().replace(design="depth_anything_3", metric=False, max_depth=1.0),
    "TIPS 2 heads": tips_heads,
    "linear depth": lambda: keras_vit.models.LinearDepthConfig(backbone=vit("DINOv2", **TOKENS), blocks=(0, 1)),
    "features": lambda: keras_vit.feature_extractor(
        model_of(vit(class_token=False, pooling="avg")), ["block_-1", "pooled"]
    ),
}


def model_of(config, seed=0):
    """The model of a config, with random weights: kernels keep the size of what they multiply, nothing is zero."""
    if not hasattr(config, "model"):
        return config
    model = getattr(keras_vit.models, config.model)(config)
    for number, weight in enumerate(model.weights):
        rng = np.random.default_rng([seed, number])
        if weight.path.endswith("periods"):
            continue
        fan_in = int(np.prod(weight.shape[:-1])) if len(weight.shape) > 1 else 0
        middle = 1.0 if weight.path.endswith(("gamma", "moving_variance")) else 0.0
        spread = fan_in**-0.5 if weight.path.endswith("kernel") else 0.2
        weight.assign(
            np.abs(middle + rng.normal(0, spread, weight.shape)) if middle else rng.normal(0, spread, weight.shape)
        )
    return model


# The accelerator, in a process of its own: it writes a lot, and keeps memory where it failed

CHILD = """
import sys, numpy as np
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.gpu_options import GpuOptions
from ai_edge_litert.hardware_accelerator import HardwareAccelerator as Kind
from ai_edge_litert.interpreter import Interpreter
from ai_edge_litert.options import Options
path, helped, float32 = sys.argv[1], sys.argv[2] == "helped", sys.argv[3] == "float32"
runner = Interpreter(path).get_signature_runner()
(name, detail), = runner.get_input_details().items()
x = np.random.default_rng(0).uniform(-1, 1, detail["shape"]).astype(detail["dtype"])
kinds = Kind.GPU | Kind.CPU if helped else Kind.GPU
options = Options(hardware_accelerators=kinds, gpu_options=GpuOptions(enforce_f32=float32))
model = CompiledModel.from_file(path, options=options)
(key, ends), = model.get_signature_list().items()
given = model.create_input_buffer_by_name(key, name)
given.write(x.ravel())
buffers = {output: model.create_output_buffer_by_name(key, output) for output in ends["outputs"]}
model.run_by_name(key, {name: given}, buffers)
for output, values in runner(**{name: x}).items():
    found = buffers[output].read(values.size, np.float32).reshape(values.shape)
    print("FOUND", output, np.abs(found - values).max() / np.abs(values).max(), flush=True)
import os
os._exit(0)
"""


def on_gpu(path, folder, precision="float32"):
    """What the accelerator makes of a file: `gpu_only`, `on_gpu`, `not_on_gpu`, `reasons`, and `error` by output."""
    from ai_edge_litert.interpreter import Interpreter

    (icd,) = Path(folder).glob("*icd*.json")
    environment = {**os.environ, "VK_ICD_FILENAMES": str(icd), "LD_LIBRARY_PATH": str(folder)}
    found = {"gpu_only": False, "on_gpu": 0, "not_on_gpu": 0, "reasons": [], "error": {}}
    for helped in ("alone", "helped"):
        command = [sys.executable, "-c", CHILD, str(path), helped, precision]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        log = run.stdout + run.stderr
        lines = re.search(r"not supported by GPU delegate:\n(.*?)\n\d+ operations", log, re.S)
        found["reasons"] = lines.group(1).splitlines() if lines else found["reasons"]
        counts = re.search(r"(\d+) operations will run on the GPU, and the remaining (\d+)", log)
        if counts:
            found["on_gpu"], found["not_on_gpu"] = map(int, counts.groups())
        found["error"] = {name: float(off) for name, off in re.findall(r"^FOUND (\S+) (\S+)$", log, re.M)}
        if found["error"]:
            if helped == "alone":
                count = len(Interpreter(str(path))._get_ops_details())  # noqa: SLF001 (a count for a page)
                found |= {"gpu_only": True, "on_gpu": count, "not_on_gpu": 0}
            break
    return found


HEAD = "## On a phone's GPU\n"
TEXT = """
This section shows that files for a phone's GPU (`target="gpu"`) run there completely, and how exact they are. No phone
was used: LiteRT's own GPU accelerator (WebGPU, ai-edge-litert {version}) ran on a software driver, which computes on
the CPU in float32. [On a phone](export/litert.md#on-a-phone) has the limits of this measurement. The models are small
and have random weights. [The zoo](zoo.md) lists their families; [segmentation and depth](dense.md) and
[detection](detection.md) explain EoMT, DPT, the linear heads and OWLv2. Errors are relative to the largest output.

- `operators on the GPU` counts the operators of the file that run on the GPU, and all operators of the file.
- `error` is the largest difference from LiteRT's interpreter on the CPU.
- `float16` is the largest difference from the model if each operator's result is rounded to float16.
- `float16, large` is the same difference if 300 is added to one channel before each normalisation. DINOv2 and CLIP have
  such large activations, whose squares overflow in float16 in a file that is not made for the GPU.
- The row `OWLv2, fixed names` is a detector whose class names are part of the file. The row `features` is a feature
  extractor with two outputs.

Measured by `SOFTWARE_VULKAN=FOLDER python benchmarks/phones.py --output docs/exports.md`.

| kind of model | operators on the GPU | error | float16 | float16, large |
|---|---|---|---|---|
"""


def main():
    from importlib.metadata import version

    from keras_vit.export import export

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--output", help="a Markdown file, whose section on phones is replaced")
    options = parser.parse_args()
    text = HEAD + TEXT.format(version=version("ai-edge-litert"))
    for kind in options.kinds:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "m.tflite")
            report = export(model_of(KINDS[kind]()), path, target="gpu", measure=False)
            found = on_gpu(path, os.environ["SOFTWARE_VULKAN"])
        count = f"{found['on_gpu']} of {found['on_gpu'] + found['not_on_gpu']}"
        errors = (max(found["error"].values()), report.float16_error, report.float16_loud_error)
        text += f"| {kind} | {count} | " + " | ".join(f"{error:.1e}" for error in errors) + " |\n"
        print(text.splitlines()[-1], flush=True)
    if options.output:
        page = Path(options.output)
        before, _, after = page.read_text("utf-8").partition(HEAD)
        _, heading, rest = after.partition("\n## ")
        page.write_text(before.rstrip("\n") + "\n\n" + text + heading + rest, "utf-8")


if __name__ == "__main__":
    main()
