"""How images are read, whatever they lie in: options of `open_data`, which says what each does."""

import dataclasses
from typing import TypedDict

from keras_vit._arguments import check_choice, whole_number


class ReadingOptions(TypedDict, total=False):
    """The fields of `Reading`, for signatures."""

    on_bad_image: str
    check: str
    workers: int | None
    processes: bool | None
    prefetch: int
    channels: int


@dataclasses.dataclass(frozen=True)
class Reading:
    """How images are read; ValueError or TypeError if an option is out of its range."""

    on_bad_image: str = "stop"
    check: str = "headers"
    workers: int | None = None
    processes: bool | None = None
    prefetch: int = 1
    channels: int = 3

    def __post_init__(self) -> None:
        check_choice("on_bad_image", self.on_bad_image, ("stop", "skip"))
        check_choice("check", self.check, ("headers", "decode", "none"))
        whole_number("prefetch", self.prefetch, 0)
        whole_number("channels", self.channels, 1)

    @property
    def skip(self) -> bool:
        """Whether images that cannot be read are left out."""
        return self.on_bad_image == "skip"

    @property
    def looks(self) -> bool:
        """Whether files are looked at before they are read; those of other channels than three are not."""
        return self.check != "none" and self.channels == 3
