"""Names what is on a picture with TensorFlow, without Keras: pip install tensorflow pillow.

python saved_model.py folder photo.jpg      (export with uint8_input=True, softmax=True, class_names=...)
"""

import json
import pathlib
import sys

import numpy as np
import tensorflow as tf
from PIL import Image

info = json.loads((pathlib.Path(sys.argv[1]) / "assets.extra" / "keras_vit.json").read_text())
names, (height, width) = info["class_names"], info["image_size"]
model = tf.saved_model.load(sys.argv[1])
pixels = Image.open(sys.argv[2]).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
answers = model.signatures["serving_default"](images=tf.constant(np.asarray(pixels, "uint8")[None]))
(probabilities,) = answers["probabilities"].numpy()
for i in np.argsort(-probabilities)[:3]:
    print(f"{names[i]}  {probabilities[i]:.1%}")
