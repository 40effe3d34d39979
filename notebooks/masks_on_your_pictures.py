# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Masks on your own pictures
#
# This notebook trains a model that predicts a class for every pixel: a Vision Transformer with one linear layer on its
# patches, as DINOv2 and DINOv3 evaluate their features. The pictures are pages of handwritten digits in three pens, and
# the classes are the pens. The model is `glyphs`, which is installed with the package; for a published model, change
# its name.
#
# Runs on TensorFlow, JAX and PyTorch. `pip install "keras-vit-zoo[torch,demo]"`, or `tensorflow`, or `jax`.

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


def note(rng, scans, height=48, width=48, digits=4, sizes=(24, 34), tries=1):
    """A picture of digits on paper, the number of the pen for each pixel, and that of the digit.

    So often a place is drawn where it hardly covers other digits.
    """
    picture = np.array([225, 220, 200]) + rng.integers(-15, 15, 3) + rng.normal(0, 6, (height, width, 1))
    mask, ids = np.zeros((height, width), "uint8"), np.zeros((height, width), "uint8")
    for digit in range(digits):
        for _ in range(tries):
            size, pen = int(rng.integers(*sizes)), int(rng.integers(len(pens)))
            y, x = rng.integers(0, height - size + 1), rng.integers(0, width - size + 1)
            scan = scans[rng.integers(len(scans))].resize((size, size), Image.Resampling.BICUBIC)
            ink = np.asarray(scan)[..., None] / 255
            part, written = (slice(y, y + size), slice(x, x + size)), ink[..., 0] > 0.35
            if (ids[part][written] > 0).mean() < 0.05:
                break
        picture[part] = picture[part] * (1 - ink) + ink * (list(pens.values())[pen] + rng.integers(-20, 20, 3))
        mask[part][written], ids[part][written] = pen + 1, digit + 1
    return picture.clip(0, 255).astype("uint8"), mask, ids


rng = np.random.default_rng(0)
notes = [note(rng, scans[:1000], digits=2) for _ in range(300)]
pictures, masks, _ = (np.stack(arrays) for arrays in zip(*notes, strict=True))
figure, axes = plt.subplots(2, 6, figsize=(9, 3), layout="constrained", subplot_kw={"xticks": [], "yticks": []})
for column, (picture, mask, _) in enumerate(notes[:6]):
    axes[0, column].imshow(picture)
    axes[1, column].imshow(mask, vmax=len(pens))

# %% [markdown]
# ## Train
#
# Pictures and masks are arrays here; a folder of `images/` and `masks/` also works (`data.open_masks`). The recipe is
# that of DINOv2's published heads, with fewer steps. First the backbone is frozen; then it gets adapters (LoRA). The
# colour is the class, so the augmentation keeps the hue.

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
# The shorter side is resized to 48 pixels, as in training. This page is twice as high, so `scales=(2.0,)` restores
# the scale of the digits. A window slides over the page, and every pixel of the picture gets a class. These digits
# were not in the training data.

# %%
page, truth, _ = note(rng, scans[1000:], height=96, width=216, digits=12)
result = segmentation.segment(adapted.model, page, scales=(2.0,))
for segment in result.segments:
    print(f"{segment.label:10} {segment.area:6,} pixels")
segmentation.plot(result, page, colours=[(190, 190, 180), *pens.values()])

# %% [markdown]
# ## How good is it?
#
# The mean IoU is exact over any number of pictures: intersections and unions are summed before the division.

# %%
metric = segmentation.MeanIoU(classes=len(classes))
for _ in range(20):
    page, truth, _ = note(rng, scans[1000:], height=96, width=96, digits=6)
    metric.add(prediction=segmentation.segment(adapted.model, page, scales=(2.0,)).map, label=truth)
print(metric.result())

# %% [markdown]
# ## Instance segmentation of the digits
#
# So far, two digits of one pen are one mask. An EoMT (encoder-only mask transformer) finds each digit by itself. It
# adds tokens, the queries, to the last blocks, and each query predicts one mask and its class. `mask_targets` converts
# a map of instance ids. A folder of `images/` and `instances/`, or COCO's annotations, also works
# (`data.open_segments`). All weights are trained, with the authors' recipe in fewer steps: two minutes on two cores.


# %%
def told_apart(rng, scans, count):
    """Pictures of one to four digits that hardly overlap, and a mask with the class of its pen for each digit."""
    made = [note(rng, scans, digits=int(rng.integers(1, 5)), sizes=(18, 27), tries=50) for _ in range(count)]
    targets = []
    for _, mask, ids in made:
        segments = [{"id": k, "label": int(mask[ids == k][0]) - 1} for k in np.unique(ids[ids > 0]).tolist()]
        targets.append(data.mask_targets(ids, segments=segments))
    return [picture for picture, _, _ in made], targets


recipe = training.recipe("segmentation/eomt_coco_panoptic_base").replace(
    steps=600,
    batch_size=8,
    image_size=48,
    queries=12,
    points=196,
    learning_rate=0.002,
    augmentation=data.SegmentAugmentation(scale=(0.7, 1.4), flip=False),
)
told, others = told_apart(rng, scans[:1000], count=600), told_apart(rng, scans[1000:], count=100)
apart = training.finetune_segmentation(
    "glyphs", told, recipe, validation=others, class_names=list(pens), every=200, verbose=False
)
print(apart.log)

# %% [markdown]
# The panoptic quality counts a digit as found if the IoU of its mask is above a half. It is 1 if all digits are found
# with the right pixels. Below, each digit has its own colour.

# %%
figure, axes = plt.subplots(2, 6, figsize=(9, 3), layout="constrained", subplot_kw={"xticks": [], "yticks": []})
for column, picture in enumerate(others[0][:6]):
    found = segmentation.segment(apart.model, picture, task="panoptic")
    colours = np.full(picture.shape, 255, "uint8")
    for number, part in enumerate(found.segments):
        colours[found.map == part.id] = 255 * np.array(plt.get_cmap("tab10").colors[number % 10])
    axes[0, column].imshow(picture)
    axes[1, column].imshow(colours)

# %% [markdown]
# ## With a published model
#
#     done = training.finetune_segmentation("hf://facebook/dinov2-base", "scenes/", "segmentation/dinov2_linear")
#
# trains the same head on DINOv2. This gives masks without training, of 133 classes of things and stuff:
#
#     model = keras_vit.load("hf://tue-mps/coco_panoptic_eomt_large_640")
#     result = segmentation.segment(model, "photo.jpg", task="panoptic")
