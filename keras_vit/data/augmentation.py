"""What happens to a training image, as plain data: a part of every recipe."""

import dataclasses

CROPS = ("inception", "random", "resize")
MAX_MAGNITUDE = 30


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """How training images are changed. `Augmentation()` is what the papers fine-tune with.

    Args:
        crop: `"inception"` cuts out a random box of `min_area` to all of the image, of aspect 3/4 to 4/3, and
            scales it to size (vit_jax, `input_pipeline.py`; big_vision, `inception_crop`). `"random"` scales
            the short side to 7/6 of the size, keeping the aspect ratio, and cuts out a random part (big_vision,
            `resize_small` and `random_crop`: 448 to 384 in `configs/transfer.py`). `"resize"` scales the whole
            image to size.
        min_area: The least share of the image's area that the inception crop keeps, in (0, 1].
        flip: Mirror half of the images, left to right.
        mixup: `p` of the Beta(p, p) distribution that pairs of images are mixed by, at most 1; 0: none.
        randaugment: `(layers, magnitude)` of RandAugment, the magnitude as AugReg counts it (0 to 30; its tables
            have 0, 10, 15 and 20); `None`: none.

    Raises:
        ValueError: if a value is unknown or out of range.
        TypeError: if a value has a wrong type.

    Examples:
        >>> data.Augmentation(crop="resize", flip=False).mixup  # for digits and text, which no one mirrors
        0.0
    """

    crop: str = "inception"
    min_area: float = 0.05
    flip: bool = True
    mixup: float = 0.0
    randaugment: tuple[int, int] | None = None

    def __post_init__(self):
        if self.crop not in CROPS:
            raise ValueError(f"crop must be one of {list(CROPS)}, but {self.crop!r} was given.")
        if not isinstance(self.flip, bool):
            raise TypeError(f"flip must be True or False, but {self.flip!r} was given.")
        for name in ("min_area", "mixup"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} must be a number, but {value!r} was given.")
        if not 0 < self.min_area <= 1:
            raise ValueError(f"min_area must lie in (0, 1], a share of the image, but {self.min_area} was given.")
        if not 0 <= self.mixup <= 1:
            raise ValueError(f"mixup must be 0 (none) or the p of Beta(p, p), at most 1, but {self.mixup} was given.")
        if self.randaugment is not None:
            object.__setattr__(self, "randaugment", _layers_magnitude(self.randaugment))


def _layers_magnitude(pair: object) -> tuple[int, int]:
    wanted = f"randaugment must be (layers, magnitude), for example (2, 15), or None, but {pair!r} was given."
    if not isinstance(pair, (tuple, list)) or any(isinstance(n, bool) or not isinstance(n, int) for n in pair):
        raise TypeError(wanted)
    if len(pair) != 2 or pair[0] < 1 or not 0 <= pair[1] <= MAX_MAGNITUDE:
        raise ValueError(f"{wanted} At least 1 layer, a magnitude of 0 to {MAX_MAGNITUDE}.")
    return pair[0], pair[1]
