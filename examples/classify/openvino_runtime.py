"""Names what is on a picture with OpenVINO alone: pip install openvino pillow.

python openvino_runtime.py model.xml photo.jpg      (export with uint8_input=True, softmax=True, class_names=...)
"""

import json
import sys

import numpy as np
import openvino
from PIL import Image

model = openvino.Core().read_model(sys.argv[1])  # model.bin lies beside it
info = model.get_rt_info("model_info")
names, (height, width) = json.loads(info["class_names"]), json.loads(info["image_size"])
compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
pixels = Image.open(sys.argv[2]).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
(probabilities,) = compiled(np.asarray(pixels, "uint8")[None])["probabilities"]
for i in np.argsort(-probabilities)[:3]:
    print(f"{names[i]}  {probabilities[i]:.1%}")
