"""Masks of a picture with ONNX Runtime alone: pip install onnxruntime pillow.

python masks_onnx.py model.onnx photo.jpg map.png      (export(model, "model.onnx", uint8_input=True))

A linear head slides over the picture and gives classes; an EoMT gives segments (panoptic, one pass). What
`keras_vit.segmentation.segment` does beside the model is below. Pictures are resized as Pillow does it, which is what
DINOv3 and transformers' EoMT do; DINOv2's head pads its crops of 512 pixels to 518, and its maps differ slightly.
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image

STRIDE = 2 / 3  # of a crop: DINOv2's and DINOv3's
SURE, OVERLAP = 0.8, 0.8  # the least score of a segment, and the share of its mask that it keeps
BILINEAR = Image.Resampling.BILINEAR


def between(old: int, new: int) -> np.ndarray:
    """Returns the matrix that stretches an axis linearly: half-pixel centres, no antialiasing."""
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return np.maximum(1 - np.abs(at[:, None] - np.arange(old)), 0).astype("float32")


def stretched(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Maps (rows, columns, values) at another size."""
    rows, columns = (between(old, new) for old, new in zip(maps.shape, size, strict=False))
    return np.einsum("yr,rcv,xc->yxv", rows, maps, columns, optimize=True)


def classes_of(run, photo: Image.Image, side: int) -> np.ndarray:
    """Returns the class of each pixel: the mean of the logits of crops that overlap."""
    factor = side / min(photo.size)
    width, height = (side if length == min(photo.size) else int(length * factor + 0.5) for length in photo.size)
    pixels, step = np.asarray(photo.resize((width, height), BILINEAR)), int(side * STRIDE)
    total, count = 0.0, np.zeros((height, width, 1), "float32")
    for top in range(0, max(height - side + step - 1, 0) // step * step + 1, step):
        for left in range(0, max(width - side + step - 1, 0) // step * step + 1, step):
            y, x = min(top, height - side), min(left, width - side)
            (logits,) = run(pixels[None, y : y + side, x : x + side])
            if not np.ndim(total):
                total = np.zeros((height, width, logits.shape[-1]), "float32")
            total[y : y + side, x : x + side] += stretched(logits[0], (side, side))
            count[y : y + side, x : x + side] += 1
    return stretched(total / count, photo.size[::-1]).argmax(-1)


def segments_of(run, photo: Image.Image, side: int) -> tuple[np.ndarray, list[tuple[int, float]]]:
    """Returns the segment of each pixel, -1 for none, and label and score of each segment."""
    factor = side / max(photo.size)
    width, height = (side if length == max(photo.size) else int(length * factor) for length in photo.size)
    pixels = np.zeros((1, side, side, 3), "uint8")
    pixels[0, :height, :width] = np.asarray(photo.resize((width, height), BILINEAR))
    logits, masks = (answer[0] for answer in run(pixels))
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    labels, scores = shares.argmax(-1), shares.max(-1)
    kept = np.flatnonzero((labels < shares.shape[1] - 1) & (scores > SURE))  # the last class is that of no segment
    found, segments = np.full(photo.size[::-1], -1), []
    if not len(kept):
        return found, segments
    inner = stretched(np.moveaxis(masks[kept], 0, -1), (side, side))[:height, :width]
    shares = 1 / (1 + np.exp(-stretched(inner, photo.size[::-1])))
    owner = (scores[kept] * shares).argmax(-1)
    for i, query in enumerate(kept):
        mask = (owner == i) & (shares[..., i] >= 0.5)
        if mask.any() and (owner == i).sum() / (shares[..., i] >= 0.5).sum() > OVERLAP:
            found[mask] = len(segments)
            segments.append((int(labels[query]), float(scores[query])))
    return found, segments


session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
info = session.get_modelmeta().custom_metadata_map
names, side = json.loads(info.get("class_names", "[]")), json.loads(info["image_size"])[0]
outputs = [output.name for output in session.get_outputs()]
photo = Image.open(sys.argv[2]).convert("RGB")
if outputs == ["logits"]:
    found = classes_of(lambda pixels: session.run(outputs, {"images": pixels}), photo, side)
    segments = [(label, 1.0) for label in range(found.max() + 1)]
else:
    run = lambda pixels: session.run(["classes", "masks"], {"images": pixels})  # noqa: E731
    found, segments = segments_of(run, photo, side)
Image.fromarray((found + 1).astype("uint16")).save(sys.argv[3])  # 0 is not a segment
for i, (label, score) in enumerate(segments):
    print(f"{i + 1}  {names[label] if names else label}  {score:.2f}  {(found == i).sum()} pixels")
