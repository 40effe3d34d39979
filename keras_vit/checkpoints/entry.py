"""What is known about one published checkpoint."""

import dataclasses
import re
import urllib.parse

_LISTED = re.compile(r"(\d+)(?:\.(\d+))? (B|KiB|MiB|GiB)")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One published checkpoint: a row of the catalogue.

    What is not known is None. What was deduced and not seen is named in `inferred`.

    Attributes:
        name: Folder and name of the file, without `.npz`; what users pass as `weights`.
        layout: Family of files that it belongs to: `"vit_jax"`, `"big_vision"` or `"bit"`.
        variant: The paper's name of the model, such as `"ViT-B/16"`.
        image_size: Height and width in pixels that it was trained at.
        classes: Outputs of its head; None without a head.
        dataset: What it was trained on.
        top1: Published accuracy on ImageNet-1k's validation images, in percent.
        top1_source: Who published it, for which evaluation.
        params: Number of weights of the model in it.
        size: Size of the file as listed, such as `"393.69 MiB"`.
        license: SPDX name of its license.
        notes: What is unusual about it.
        urls: Where it is, in the order to try.
        inferred: Names of the fields that are deduced.
    """

    name: str
    layout: str
    variant: str
    image_size: int | None
    classes: int | None
    dataset: str
    urls: tuple[str, ...]
    top1: float | None = None
    top1_source: str | None = None
    params: int | None = None
    size: str | None = None
    license: str | None = None
    notes: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()

    @property
    def basename(self) -> str:
        """The name without its folder."""
        return self.name.rpartition("/")[2]

    @property
    def url(self) -> str:
        """Where the file was published."""
        return self.urls[0]

    @property
    def family(self) -> str:
        """What `list_models` calls its family."""
        if self.layout == "bit":
            return "BiT"
        names = {"big_vision/siglip2/": "SigLIP2", "big_vision/siglip/": "SigLIP", "big_vision/zoo/deit3/": "DeiT-III"}
        by_folder = next((family for folder, family in names.items() if self.name.startswith(folder)), None)
        return by_folder or ("hybrid" if self.variant.startswith("R") else "ViT")

    def size_range(self) -> tuple[int, int] | None:
        """The least and the most bytes that a file of the listed size can have; None if no size is listed.

        Listings round, in ways that they do not tell, so that one unit of the last digit is allowed either way.
        """
        if self.size is None:
            return None
        match = _LISTED.fullmatch(self.size)
        if match is None:
            raise ValueError(f"size of {self.name} must be like '393.69 MiB', but it is {self.size!r}.")
        whole, digits, unit = match.groups(default="")
        step = _UNITS[unit] / 10 ** len(digits)
        bytes = int(whole + digits) * step
        return int(bytes - step), int(bytes + step)


def published_url(base: str, name: str) -> str:
    """The address of a file in a bucket; `+` is written `%2B`, which no server takes for a space."""
    return f"{base}{urllib.parse.quote(name)}.npz"


def plain_variant(name: str) -> str:
    """A variant's name without case, punctuation and `ViT`, so that `R50_L_32` and `R50+ViT-L/32` are the same."""
    return re.sub(r"[^a-z0-9]", "", name.lower()).replace("vit", "")
