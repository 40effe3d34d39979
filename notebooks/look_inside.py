# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Look inside a ViT
#
# This notebook shows where each head looks, which patches decide a prediction, and what the weights contain. Every
# function returns a NumPy array; a second call draws it. The model is `glyphs`, a small Vision Transformer that is
# installed with the package. Any other model works in the same way.
#
# Runs on JAX and PyTorch (and TensorFlow). `pip install "keras-vit-zoo[torch,demo]"`.

# %%
# %matplotlib inline
import numpy as np
from sklearn.datasets import load_digits

import keras_vit
from keras_vit import inspection

model = keras_vit.load("glyphs")
scans = load_digits().images[:8]
pixels = np.repeat((scans * 255 / 16).astype("uint8")[..., None], 3, axis=-1)
images = model.preprocess(pixels)  # resized to 24 x 24, scaled to [-1, 1]
shown = inspection.shown_pixels(model, images)
print(model.config)

# %% [markdown]
# ## Attention rollout
#
# Attention rollout (Abnar and Zuidema, arXiv 2005.00928) multiplies the attention of all blocks.

# %%
rollout = inspection.attention_rollout(model, images)
print(rollout.shape, "images, rows, columns of patches")
inspection.plot("rollout", rollout, shown)

# %% [markdown]
# ## Each head of the last block

# %%
heads = inspection.patch_attention(model, images[3:4])[0]
inspection.plot("heads", heads, shown[3])

# %% [markdown]
# ## Relevance for a class
#
# Attention times its gradient (Chefer et al., arXiv 2103.15679) depends on the chosen class.

# %%
inspection.plot("relevance", inspection.gradient_attention(model, images), shown, title="For the model's own answer")

# %% [markdown]
# ## Mean attention distance
#
# Figure 7 of the paper, on the right: the mean distance between a patch and the patches it attends to, in pixels.

# %%
distances = inspection.mean_attention_distance(model, images)
print(distances.round(1))
inspection.plot("distance", distances)

# %% [markdown]
# ## Position embeddings
#
# The similarity of position embeddings (Figure 7, centre): each place is most similar to itself and its neighbours.

# %%
inspection.plot("positions", inspection.position_similarity(model))

# %% [markdown]
# ## Features for your own model

# %%
extractor = keras_vit.feature_extractor(model, ["block_2", "block_-1", "pre_logits"], layout="map")
print({name: tuple(value.shape) for name, value in extractor(images).items()})
