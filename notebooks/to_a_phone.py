# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # From a checkpoint to a phone
#
# This notebook loads weights, writes a `.tflite` of a quarter of the size, and runs it without Keras, as a phone
# would. `"glyphs"` is installed with the package and needs no download. Your own file, or
# `"hf://timm/vit_small_patch16_224.augreg_in21k_ft_in1k"`, works in the same way.
#
# Runs on TensorFlow (on JAX and PyTorch as well, where TensorFlow writes the file in a second process).
# `pip install "keras-vit-zoo[export,demo]"`.

# %%
import pathlib
import tempfile
import zipfile

import numpy as np
from sklearn.datasets import load_digits

import keras_vit
from keras_vit import export

folder = pathlib.Path(tempfile.mkdtemp())
model = keras_vit.load("glyphs")
scans = load_digits().images[:264]
pixels = np.repeat((scans * 255 / 16).astype("uint8")[..., None], 3, axis=-1)
pixels = keras_vit.inspection.shown_pixels(model, model.preprocess(pixels))  # uint8 (264, 24, 24, 3)

# %% [markdown]
# ## Write and check
#
# Each file is run by its own runtime in a new process and compared with the model before it is saved. int8 needs some
# pictures similar to those in use, to measure the ranges of values; here 200 of the scans.

# %%
options = {"uint8_input": True, "softmax": True, "images": pixels[200:], "measure": False}
reports = {
    "float32": export.export(model, folder / "float32.tflite", **options),
    "int8": export.export(model, folder / "int8.tflite", precision="int8", calibration=pixels[:200], **options),
}
for precision, report in reports.items():
    print(f"{precision}: {report.bytes / 1e6:.2f} MB, the same class for {report.top1_agreement:.1%} of the pictures")

# %% [markdown]
# ## Run it without Keras
#
# An app needs only the interpreter, the file, and the class names in the file.

# %%
from ai_edge_litert.interpreter import Interpreter

interpreter = Interpreter(str(folder / "int8.tflite"))
(image,), (probabilities,) = interpreter.get_input_details(), interpreter.get_output_details()
print(image["name"], image["shape"], image["dtype"].__name__)
names = zipfile.ZipFile(folder / "int8.tflite").read("labels.txt").decode().splitlines()

interpreter.allocate_tensors()
for picture in pixels[200:204]:
    interpreter.set_tensor(image["index"], picture[None])
    interpreter.invoke()
    (answer,) = interpreter.get_tensor(probabilities["index"])
    print(f"{names[int(answer.argmax())]!r:8} {answer.max():.0%}")

# %% [markdown]
# ## Results of the checks

# %%
print(reports["int8"])
