"""Names what is on a picture with ONNX Runtime alone: pip install onnxruntime pillow.

python onnx_runtime.py model.onnx photo.jpg      (export with uint8_input=True, softmax=True, class_names=...)
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
info = session.get_modelmeta().custom_metadata_map
names, (height, width) = json.loads(info["class_names"]), json.loads(info["image_size"])
pixels = Image.open(sys.argv[2]).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
((probabilities,),) = session.run(["probabilities"], {"images": np.asarray(pixels, "uint8")[None]})
for i in np.argsort(-probabilities)[:3]:
    print(f"{names[i]}  {probabilities[i]:.1%}")
