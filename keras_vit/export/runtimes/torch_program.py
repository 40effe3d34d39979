"""PyTorch's exported programs: `pip install torch`."""

import numpy as np

PACKAGES = ("torch", "torch.export")


def load(path):
    """A function from a batch of images to the answers of a `.pt2` file.

    Args:
        path: The file.
    """
    import torch

    module = torch.export.load(str(path)).module()

    def answers(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return module(torch.from_numpy(images)).float().numpy()

    return answers
