# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Words to pictures
#
# This notebook trains two small models as CLIP does, an image tower and a text tower, so that text finds pictures and
# sentences serve as classes. Both learn from scans of handwritten digits in six colours. The training data **contain no
# red seven**: at the end, the towers find it by the words alone. For published towers, see the last section.
#
# Runs on TensorFlow, JAX and PyTorch. `pip install "keras-vit-zoo[torch,demo]"`, or `tensorflow`, or `jax`.

# %%
# %matplotlib inline
import keras_vit  # before Keras: it chooses the installed backend
import keras
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from keras_vit import evaluation, text, training

keras.utils.set_random_seed(0)
digits = "zero one two three four five six seven eight nine".split()
colours = {"red": (255, 40, 40), "green": (40, 220, 40), "blue": (70, 90, 255)}
colours |= {"yellow": (240, 220, 30), "violet": (200, 60, 240), "white": (255, 255, 255)}
scans = load_digits()
rng = np.random.default_rng(0)
painted = rng.choice(list(colours), len(scans.images))
ink = np.array([colours[name] for name in painted])
pixels = (scans.images[..., None] / 16 * ink[:, None, None]).astype("uint8")  # (1797, 8, 8, 3)
texts = np.array([f"a {name} {digits[digit]}" for name, digit in zip(painted, scans.target, strict=True)])
print(len(set(texts)), "sentences, such as:", *texts[:4], sep="\n  ")

# %% [markdown]
# ## Two towers
#
# The image tower starts from the small checkpoint of the package. The text tower starts from random weights and reads
# letters. A tokenizer is any function from a sentence to numbers.

# %%
pictures = keras_vit.load("glyphs", include_top=False, pooling="token")
width = pictures.output_shape[-1]
words = keras_vit.TextConfig(vocabulary=128, context=16, width=width, depth=2, heads=4, mlp_width=2 * width)
letters = text.Tokenizer(lambda line: [ord(letter) for letter in line], context=16, end=1, pad=0)
both = text.ImageText(pictures, keras_vit.TextEncoder(words), letters)
images = pictures.preprocess(pixels)  # resized to 24 x 24, scaled to [-1, 1]

# %% [markdown]
# ## Learn from pairs
#
# In each batch, the loss asks which sentence belongs to which picture (CLIP, arXiv 2103.00020). The last 300 scans
# and all red sevens are kept for the test.

# %%
unseen = texts == "a red seven"
train = np.flatnonzero(~unseen[:-300])
test = np.union1d(np.arange(len(texts))[-300:], np.flatnonzero(unseen))
both.compile(keras.optimizers.Adam(1e-3), training.ContrastiveLoss())
history = both.fit((images[train], list(texts[train])), batch_size=48, epochs=8, verbose=0)
print(f"loss {history.history['loss'][0]:.2f} -> {history.history['loss'][-1]:.2f}")

# %% [markdown]
# ## Find pictures by words
#
# Every picture is embedded once. A query is one row, and the answer is the pictures with the largest cosine.

# %%
found = both.embed_images(images[test])


def search(question, k=6):
    """Draws the pictures that answer best; gives the sentences that belong to them."""
    rows, cosines = evaluation.search(found, both.embed_texts(question)[0], k=k)
    figure, axes = plt.subplots(1, k, figsize=(1.3 * k, 1.7), layout="constrained")
    figure.suptitle(question)
    for axis, row, cosine in zip(axes, rows, cosines, strict=True):
        axis.imshow(pixels[test[row]])
        axis.set(xticks=[], yticks=[], xlabel=f"{cosine:.2f}")
    return [str(texts[test[row]]) for row in rows]


print(search("a green four"))
print(search("a red seven"))

# %% [markdown]
# ## Name pictures with words
#
# A classifier of sentences is an ordinary model: its head holds the embeddings of the texts. The same two towers
# classify digits or colours, depending on the sentences.

# %%
by_digit = both.zero_shot_classifier(digits, [f"a {name} {{}}" for name in colours], progress=False)
by_colour = both.zero_shot_classifier(list(colours), [f"a {{}} {name}" for name in digits], progress=False)
answers = by_digit.predict(images[test], verbose=0).argmax(1), by_colour.predict(images[test], verbose=0).argmax(1)
right = answers[0] == scans.target[test], np.array(list(colours))[answers[1]] == painted[test]
red = unseen[test]
print(f"digits {right[0].mean():.0%}, colours {right[1].mean():.0%} of {len(test)} pictures")
print(f"{red.sum()} red sevens, never shown: digits {right[0][red].mean():.0%}, colours {right[1][red].mean():.0%}")

# %% [markdown]
# ## With a published model
#
# The same three lines, for photographs, after a download of 600 MB:
#
#     both = keras_vit.load_image_text("hf://openai/clip-vit-base-patch32")
#     both.probabilities(["photo.jpg"], ["a photo of a cat", "a photo of a dog"])
#     model = both.zero_shot_classifier(["cat", "dog"], templates="openai_80")
