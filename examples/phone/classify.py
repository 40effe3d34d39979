"""Names what is on a picture with LiteRT's CompiledModel, as a phone's app does: pip install ai-edge-litert pillow.

python classify.py model.tflite photo.jpg [--gpu] [--float32]      (made by export(..., target="gpu", uint8_input=True,
softmax=True, class_names=...))

`--gpu` asks for the GPU alone, which computes in float16 unless `--float32` is there as well. LiteRT's accelerator for
Python needs a Vulkan driver; one that computes on the CPU will do (docs/export/litert.md).
"""

import argparse
import zipfile

import numpy as np
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.gpu_options import GpuOptions
from ai_edge_litert.hardware_accelerator import HardwareAccelerator
from ai_edge_litert.options import Options
from PIL import Image

parser = argparse.ArgumentParser()
parser.add_argument("file")
parser.add_argument("picture")
parser.add_argument("--gpu", action="store_true")
parser.add_argument("--float32", action="store_true")
asked = parser.parse_args()

# One accelerator: with the CPU beside the GPU, what the GPU lacks moves there without a word.
kind = HardwareAccelerator.GPU if asked.gpu else HardwareAccelerator.CPU
options = Options(hardware_accelerators=kind, gpu_options=GpuOptions(enforce_f32=asked.float32))
model = CompiledModel.from_file(asked.file, options=options)
names = zipfile.ZipFile(asked.file).read("labels.txt").decode().splitlines()
((key, ends),) = model.get_signature_list().items()
_, height, width, _ = model.get_input_tensor_details(key)["images"]["shape"]

pixels = Image.open(asked.picture).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
images = model.create_input_buffer_by_name(key, "images")
images.write(np.asarray(pixels, "uint8").ravel())
answer = model.create_output_buffer_by_name(key, ends["outputs"][0])
model.run_by_name(key, {"images": images}, {ends["outputs"][0]: answer})
probabilities = answer.read(len(names), np.float32)
for i in np.argsort(-probabilities)[:3]:
    print(f"{names[i]}  {probabilities[i]:.1%}")
