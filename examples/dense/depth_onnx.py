"""Depth of a picture with ONNX Runtime alone: pip install onnxruntime pillow.

python depth_onnx.py model.onnx photo.jpg depth.npy      (export(model, "model.onnx", uint8_input=True))

For Depth Anything as transformers has it, loaded with `image_size="dynamic"`: what `keras_vit.depth.estimate` does
beside the model. The result is float32 (height, width), inverse depth or metres as the model says.
"""

import sys

import numpy as np
import onnxruntime
from PIL import Image

SIDE, PATCH = 518, 14  # what pictures are resized to, in whole patches: DPTImageProcessor


def cubic(old: int, new: int) -> np.ndarray:
    """Returns the matrix that stretches an axis by PyTorch's bicubic interpolation (a = -0.75), not antialiased."""
    at = (np.arange(new) + 0.5) * old / new - 0.5
    weights = np.zeros((new, old), "float32")
    for near in range(-1, 3):
        place = np.floor(at) + near
        x = np.abs(at - place)
        inner, outer = (1.25 * x - 2.25) * x * x + 1, ((-0.75 * x + 3.75) * x - 6) * x + 3
        np.add.at(weights, (np.arange(new), place.clip(0, old - 1).astype(int)), np.where(x <= 1, inner, outer))
    return weights


def main(side: int = SIDE, patch: int = PATCH) -> None:
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    photo = Image.open(sys.argv[2]).convert("RGB")
    factor = min((side / length for length in photo.size[::-1]), key=lambda factor: abs(1 - factor))
    width, height = (max(round(factor * length / patch), 1) * patch for length in photo.size)
    pixels = np.asarray(photo.resize((width, height), Image.Resampling.BICUBIC))
    (depth,) = session.run(["depth"], {"images": pixels[None]})
    np.save(sys.argv[3], cubic(height, photo.height) @ depth[0] @ cubic(width, photo.width).T)


if __name__ == "__main__":
    main(*map(int, sys.argv[4:]))
