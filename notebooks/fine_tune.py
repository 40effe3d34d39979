# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Fine-tune on your photos
#
# This notebook trains a model on a folder of photos, with one sub-folder per class, and uses the model. Here the photos
# are scans of handwritten digits, and the model is `glyphs`, a small Vision Transformer that is installed with the
# package: training takes a minute on two cores. With your own photos, use `"ViT-B/16"` instead of `"glyphs"` and leave
# out the arguments about size.
#
# Runs on TensorFlow, JAX and PyTorch. `pip install "keras-vit-zoo[torch,demo]"`, or `tensorflow`, or `jax`.

# %%
import pathlib
import tempfile

import keras_vit  # before Keras: it chooses the installed backend
import keras
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from keras_vit import training

# %% [markdown]
# This block writes pictures as they might be on your disk: `photos/train/3/0017.png`.

# %%
photos = pathlib.Path(tempfile.mkdtemp()) / "photos"
digits = load_digits()
for number, (scan, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
    split = "train" if number < 1200 else "test"
    picture = Image.fromarray((scan * 255 / 16).astype("uint8")).resize((24, 24), Image.Resampling.BICUBIC)
    path = photos / split / str(digit) / f"{number:04}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)
print(sorted(path.name for path in (photos / "train").iterdir()))

# %% [markdown]
# A recipe is a row of the paper's Table 4. Digits must not be mirrored or cropped, so the pictures are only resized.

# %%
recipe = training.recipe("finetune/cifar10").replace(
    steps=60, batch_size=32, image_size=24, augmentation=training.Augmentation(crop="resize", flip=False)
)
done = training.finetune("glyphs", photos, recipe, output=photos.parent / "run", verbose=False)
print(f"{done.accuracy:.1%} of the test pictures are named rightly.")

# %% [markdown]
# The run wrote these files. The same call would resume the run, or return the finished model.

# %%
print(sorted(path.name for path in (photos.parent / "run").iterdir()))

# %%
result = keras_vit.evaluation.evaluate(done.model, photos, progress=False)
print(result)

# %% [markdown]
# ## Name a picture
#
# The model contains its preprocessing and the names of its classes.

# %%
images = done.model.preprocess(next((photos / "test" / "7").iterdir()))
logits = done.model.predict(images, verbose=0)
probabilities = keras.ops.softmax(logits)
for _, name, score in keras_vit.decode_predictions(probabilities, top=3, class_names=done.model.config.class_names)[0]:
    print(f"{name}  {score:.1%}")

# %% [markdown]
# ## Keep it
#
# Save it as a Keras file, and as a file that the original JAX code reads.

# %%
done.model.save(photos.parent / "digits.keras")
keras_vit.to_checkpoint(done.model, photos.parent / "digits.npz")
again = keras_vit.load(photos.parent / "digits.npz")
same = np.array_equal(again.predict(images, verbose=0), logits)
print("The same logits, to the last bit:", same)
