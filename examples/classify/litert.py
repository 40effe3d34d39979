"""Names what is on a picture with LiteRT alone: pip install ai-edge-litert pillow.

python litert.py model.tflite photo.jpg      (export with uint8_input=True, softmax=True, class_names=...)
"""

import sys
import zipfile

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from PIL import Image

interpreter = Interpreter(sys.argv[1])
(given,), (answer,) = interpreter.get_input_details(), interpreter.get_output_details()
names = zipfile.ZipFile(sys.argv[1]).read("labels.txt").decode().splitlines()
height, width = given["shape"][1:3]
pixels = Image.open(sys.argv[2]).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
interpreter.allocate_tensors()
interpreter.set_tensor(given["index"], np.asarray(pixels, "uint8")[None])
interpreter.invoke()
(probabilities,) = interpreter.get_tensor(answer["index"])
for i in np.argsort(-probabilities)[:3]:
    print(f"{names[i]}  {probabilities[i]:.1%}")
