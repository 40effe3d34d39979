"""Names what is on a picture with JAX, without Keras: pip install jax flatbuffers pillow.

python stablehlo.py model.stablehlo photo.jpg      (export with uint8_input=True, softmax=True, class_names=...)
"""

import json
import pathlib
import sys
import zipfile

import jax.export
import numpy as np
from PIL import Image

info = json.loads(zipfile.ZipFile(sys.argv[1]).read("keras_vit.json"))
names, (height, width) = info["class_names"], info["image_size"]
call = jax.jit(jax.export.deserialize(bytearray(pathlib.Path(sys.argv[1]).read_bytes())).call)
pixels = Image.open(sys.argv[2]).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
(probabilities,) = np.asarray(call(np.asarray(pixels, "uint8")[None])["probabilities"])
for i in np.argsort(-probabilities)[:3]:
    print(f"{names[i]}  {probabilities[i]:.1%}")
