# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Masks on your own pictures
#
# A class for every pixel, from a plain Vision Transformer: one matrix on its patches, which is how DINOv2 and DINOv3
# measure their features. Trained here on notes in three pens: **which pen wrote it?** The pictures are made of scans of
# handwritten digits, and the model is the small one that comes along; with a published one, only its name changes.
#
# Runs on TensorFlow, JAX and PyTorch. `pip install "keras-vit[torch,demo]"`, or `tensorflow`, or `jax`.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from keras_vit import data, segmentation, training

pens = {"red pen": (200, 40, 40), "blue pen": (40, 60, 200), "green pen": (30, 140, 70)}
classes = ["paper", *pens]
scans = [Image.fromarray((scan * 15.9).astype("uint8")) for scan in load_digits().images]


def note(rng, scans, height=48, width=48, digits=4):
    """A picture of some digits on paper, and its mask: the number of the pen for each pixel."""
    picture = np.array([225, 220, 200]) + rng.integers(-15, 15, 3) + rng.normal(0, 6, (height, width, 1))
    mask = np.zeros((height, width), "uint8")
    for _ in range(digits):
        size, pen = int(rng.integers(24, 34)), int(rng.integers(len(pens)))
        y, x = rng.integers(0, height - size + 1), rng.integers(0, width - size + 1)
        scan = scans[rng.integers(len(scans))].resize((size, size), Image.Resampling.BICUBIC)
        ink = np.asarray(scan)[..., None] / 255
        part, written = (slice(y, y + size), slice(x, x + size)), ink[..., 0] > 0.35
        picture[part] = picture[part] * (1 - ink) + ink * (list(pens.values())[pen] + rng.integers(-20, 20, 3))
        mask[part][written] = pen + 1
    return picture.clip(0, 255).astype("uint8"), mask


rng = np.random.default_rng(0)
notes = [note(rng, scans[:1000], digits=2) for _ in range(300)]
pictures, masks = (np.stack(arrays) for arrays in zip(*notes, strict=True))
figure, axes = plt.subplots(2, 6, figsize=(9, 3), layout="constrained", subplot_kw={"xticks": [], "yticks": []})
for column, (picture, mask) in enumerate(notes[:6]):
    axes[0, column].imshow(picture)
    axes[1, column].imshow(mask, vmax=len(pens))

# %% [markdown]
# ## Train
#
# Pictures and masks are arrays here; a folder of `images/` and `masks/` goes as well (`data.open_masks`). The recipe is
# that of DINOv2's published heads, made short. The backbone is frozen; then it gets adapters (LoRA). The colour is the
# class, so that augmentation leaves the hue alone.

# %%
recipe = training.recipe("segmentation/dinov2_linear").replace(
    steps=200,
    batch_size=8,
    image_size=48,
    learning_rate=0.01,
    augmentation=data.MaskAugmentation(scale=(0.8, 1.25), hue=0),
)
options = {"validation": 0.1, "class_names": classes, "every": 50, "verbose": False}
linear = training.finetune_segmentation("glyphs", (pictures, masks), recipe, **options)
adapted = training.finetune_segmentation("glyphs", (pictures, masks), recipe.replace(lora_rank=8), **options)
print(f"mean IoU: {linear.mean_iou:.2f} by a linear head, {adapted.mean_iou:.2f} with adapters")
print(adapted.log)

# %% [markdown]
# ## A picture of any size
#
# The shorter side becomes as long as it was in training, 48 pixels; `scales=(2.0,)` looks at this page, which is twice
# as high, twice as closely. A window slides over it, and every pixel of the picture gets its class. These digits were
# not trained on.

# %%
page, truth = note(rng, scans[1000:], height=96, width=216, digits=12)
result = segmentation.segment(adapted.model, page, scales=(2.0,))
for segment in result.segments:
    print(f"{segment.label:10} {segment.area:6,} pixels")
segmentation.plot(result, page, colours=[(190, 190, 180), *pens.values()])

# %% [markdown]
# ## How good is it?
#
# The mean IoU is exact over any number of pictures: intersections and unions are summed before they are divided.

# %%
metric = segmentation.MeanIoU(classes=len(classes))
for _ in range(20):
    page, truth = note(rng, scans[1000:], height=96, width=96, digits=6)
    metric.add(prediction=segmentation.segment(adapted.model, page, scales=(2.0,)).map, label=truth)
print(metric.result())

# %% [markdown]
# ## With a published model
#
#     done = training.finetune_segmentation("hf://facebook/dinov2-base", "scenes/", "segmentation/dinov2_linear")
#
# trains the same head on DINOv2. Masks without any training, of 133 kinds of things and stuff:
#
#     model = keras_vit.load("hf://tue-mps/coco_panoptic_eomt_large_640")
#     result = segmentation.segment(model, "photo.jpg", task="panoptic")
