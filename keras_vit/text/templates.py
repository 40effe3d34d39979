"""What classes are called in sentences: published templates and names, and how their embeddings become a classifier."""

import functools
import json
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from keras_vit._arguments import check_class_names, check_type, listing, unit_vectors
from keras_vit._files import weights_folder
from keras_vit.text.tokenizers import canonicalized

# How originals make weights of the texts of a class: OpenAI's notebook and open_clip, big_vision's
# discriminative_classifier, whose names (their first alias) and templates lose capitals and punctuation first, and
# vit_jax's lit.ipynb, which does not normalise the mean of the normalised embeddings again.
AVERAGINGS = ("openai", "big_vision", "lit")


@functools.cache
def _published() -> dict[str, list[str]]:
    """The texts of `weights/zero_shot.json` by their names, read once; OSError if the file cannot be."""
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
    check_type("class_names", names, Iterable, "a list of strings")
    names = names if isinstance(names, (str, bytes)) else tuple(names)
    if names != imagenet_names():  # which has missile and sunglasses twice
        check_class_names(names, None)
    if len(names) < least:
        raise ValueError(f"class_names must have at least {least} names, but {names} was given.")
    return list(names)


def templates_of(templates: str | Sequence[str]) -> tuple[str, ...]:
    """Returns a tuple of templates: a published list by its name, one template, or several."""
    check_type("templates", templates, Iterable, "a string or a list of strings")
    found = published_templates().get(templates, (templates,)) if isinstance(templates, str) else tuple(templates)
    for template in found:
        if not isinstance(template, str) or template.count("{}") != 1:
            raise ValueError(
                f"Each template must have one {{}} for the class name, but {template!r} was given. templates can also "
                f"be the name of a published list: {', '.join(published_templates())}."
            )
    if not found:
        raise ValueError("templates must not be empty: pass '{}' for the class name alone.")
    return found


def texts_of_classes(names: Sequence[str], templates: Sequence[str], averaging: str) -> list[str]:
    """Returns each name in all templates, name by name; ValueError if "big_vision" leaves equal or empty names."""
    if averaging == "big_vision":
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
    return [template.replace("{}", name) for name in names for template in templates]


def average(embeddings: np.ndarray, classes: int, averaging: str) -> np.ndarray:
    """One row `(classes, D)`, float64, for each class of the embeddings of `texts_of_classes`."""
    mean = unit_vectors(embeddings.astype("float64")).reshape(classes, -1, embeddings.shape[-1]).mean(1)
    return mean if averaging == "lit" else unit_vectors(mean)


Templates = Literal["openai_80", "openai_7", "lit_8", "tcl"] | str | Sequence[str]
