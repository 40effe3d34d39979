"""Names what is on a picture with PyTorch, without Keras: pip install torch pillow.

python torch_program.py model.pt2 photo.jpg      (export with uint8_input=True, softmax=True, class_names=...)
"""

import json
import sys

import numpy as np
import torch
from PIL import Image

files = {"keras_vit.json": ""}
model = torch.export.load(sys.argv[1], extra_files=files).module()
info = json.loads(files["keras_vit.json"])
names, (height, width) = info["class_names"], info["image_size"]
pixels = Image.open(sys.argv[2]).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
with torch.inference_mode():
    (probabilities,) = model(torch.from_numpy(np.array(pixels)[None])).numpy()
for i in np.argsort(-probabilities)[:3]:
    print(f"{names[i]}  {probabilities[i]:.1%}")
