"""What classes are called in sentences: published templates and names, and how their embeddings become a classifier."""

import dataclasses
import functools
import json
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from keras_vit._arguments import is_class_name, listing, unit_vectors
from keras_vit._files import weights_folder
from keras_vit.text.tokenizers import canonicalized


@dataclasses.dataclass(frozen=True)
class Averaging:
    """How an original makes weights of the texts of a class."""

    canonical: bool  # whether names (their first alias) and templates lose capitals and punctuation first
    renormalize: bool  # whether the mean of the normalised embeddings is normalised again


AVERAGINGS = {
    "openai": Averaging(canonical=False, renormalize=True),  # OpenAI's notebook, open_clip
    "big_vision": Averaging(canonical=True, renormalize=True),  # its discriminative_classifier
    "lit": Averaging(canonical=False, renormalize=False),  # vit_jax's lit.ipynb
}


@functools.cache
def _published() -> dict[str, list[str]]:
    """Returns the texts of `weights/zero_shot.json` by their names, read once; OSError if the file cannot be."""
    return json.loads((weights_folder() / "zero_shot.json").read_text(encoding="utf-8"))


def imagenet_names() -> tuple[str, ...]:
    """Returns the 1,000 ImageNet-1k class names that OpenAI chose for CLIP, in the order of the classes.

    Examples:
        >>> text.imagenet_names()[2]
        'great white shark'
    """
    return tuple(_published()["imagenet1k"])


def published_templates() -> dict[str, tuple[str, ...]]:
    """Returns the published lists of templates by name, for `zero_shot_classifier(templates=name)`.

    They are `"openai_80"` and `"openai_7"` (OpenAI's notebooks, ImageNet), 26 lists for other data sets such as
    `"openai_cifar10"` (`data/prompts.md` of openai/CLIP), `"lit_8"` (LiT, and big_vision's `clip_best`),
    `"huggingface_1"` (transformers' pipeline) and `"tcl"` (segmentation: arXiv 2212.00785 and TIPS).

    Examples:
        >>> text.published_templates()["openai_oxfordpets"]
        ('a photo of a {}, a type of pet.',)
    """
    return {name: tuple(texts) for name, texts in _published().items() if name != "imagenet1k"}


def checked_names(names: Sequence[str], least: int = 2) -> list[str]:
    """Returns names of classes as a list; `least` is how many there must be."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"class_names must be a list of strings, but {names!r:.80} was given.")
    names = list(names)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"class_names must be a list of strings, but {names!r:.80} was given.")
    for name in names:
        if not name.strip() or not is_class_name(name):
            raise ValueError(f"class_names must be non-empty single lines, but {name!r} was given.")
    # OpenAI's list for ImageNet has missile and sunglasses twice.
    if len({*names}) < max(len(names), least) and tuple(names) != imagenet_names():
        twice = listing(sorted({name for name in names if names.count(name) > 1}))
        if twice:
            raise ValueError(f"class_names must be different, but {twice} was given more than once.")
        raise ValueError(
            f"class_names must have at least {'one name' if least == 1 else 'two names'}, but {names} was given."
        )
    return names


def templates_of(templates: str | Sequence[str]) -> tuple[str, ...]:
    """Returns a tuple of templates: a published list by its name, one template, or several."""
    if isinstance(templates, bytes) or not isinstance(templates, Iterable):
        raise TypeError(f"templates must be a string or a list of strings, but {templates!r:.80} was given.")
    if isinstance(templates, str):
        found = published_templates().get(templates, (templates,))
    else:
        found = tuple(templates)
    for template in found:
        if not isinstance(template, str) or template.count("{}") != 1:
            raise ValueError(
                f"Each template must have one {{}} for the class name, but {template!r} was given. templates can also "
                f"be the name of a published list: {', '.join(published_templates())}."
            )
    if not found:
        raise ValueError("templates must not be empty: pass '{}' for the class name alone.")
    return found


def texts_of_classes(names: Sequence[str], templates: Sequence[str], averaging: Averaging) -> list[list[str]]:
    """Returns for each class the texts that stand for it, one a template."""
    if averaging.canonical:
        words = [canonicalized(name, keep=",").split(",")[0].strip() for name in names]
        twins: dict[str, set[str]] = {}
        for name, word in zip(names, words, strict=True):
            twins.setdefault(word, set()).add(name)
        for word, same in twins.items():
            if not word or len(same) > 1:
                raise ValueError(
                    "class_names must be different and not empty without capitals, punctuation and text after a comma, "
                    f"but {listing(sorted(same))} become {word!r}. Rename them, or pass averaging='openai'."
                )
        names = words
        templates = [canonicalized(template, keep="{}") for template in templates]
    return [[template.replace("{}", name) for template in templates] for name in names]


def average(embeddings: np.ndarray, averaging: Averaging) -> np.ndarray:
    """Returns one row `(classes, D)`, float64, for each class of embeddings `(classes, texts, D)`."""
    mean = unit_vectors(embeddings.astype("float64")).mean(1)
    return unit_vectors(mean) if averaging.renormalize else mean


Templates = Literal["openai_80", "openai_7", "lit_8", "tcl"] | str | Sequence[str]
