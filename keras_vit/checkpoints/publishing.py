"""Models to the Hugging Face Hub, with a card that says what they are and how to load them."""

import contextlib
import pathlib
import re
import tempfile

import numpy as np

from keras_vit import models
from keras_vit._files import write_text
from keras_vit.checkpoints.checkpoint import LAYOUTS, PUBLISHED, to_checkpoint
from keras_vit.checkpoints.files import ENDINGS, NOT_WEIGHTS
from keras_vit.checkpoints.hub import SCHEME, errors_named, parse_hub_address
from keras_vit.models import BiT, ModelConfig, VisionTransformer, variant_of

CARD = "README.md"
_NAMES_LISTED = 20  # class names in a card


def push_to_hub(
    model: VisionTransformer | BiT,
    repository: str,
    *,
    layout: str | None = None,
    license: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str = "A model of keras_vit",
) -> str:
    """Writes a model into a repository of the Hugging Face Hub, which is made if it does not exist.

    One commit with the weights (`model.safetensors` with `config.json` in a layout of timm or transformers, otherwise
    `model.npz` in that of the original code) and a card, `README.md`, unless the repository has one.
    `keras_vit.load("hf://owner/name")` returns the model. For a `.keras` file there instead, Keras itself has
    `model.save("hf://owner/name")`.

    Args:
        model: A model of this package.
        repository: `"owner/name"`.
        layout: As in `to_checkpoint`; None for the first of timm's, transformers' and the original code's that can say
            the model.
        license: An identifier of the Hub such as `"apache-2.0"`; None to leave it open. The license of the weights
            which the model was trained from may bind it.
        private: Whether a new repository is private; None for what the owner's account says.
        revision: The branch to write to; None for the main one.
        commit_message: What the commit says.

    Returns:
        The address of the commit, for a browser.

    Raises:
        TypeError, ValueError: if an argument makes no sense, no layout can say the model, or the repository has other
            weights, which would be loaded instead.
        DownloadError: if the Hub refuses it or cannot be reached; an OSError.

    Examples:
        >>> keras_vit.push_to_hub(small, "no owner")
        Traceback (most recent call last):
        ValueError: ...
    """
    if not isinstance(model, (VisionTransformer, BiT)):
        raise TypeError(f"model must be a VisionTransformer or a BiT, but {type(model).__name__} was given.")
    if not isinstance(repository, str):
        raise TypeError(f"repository must be text such as 'owner/name', but {repository!r} was given.")
    address = parse_hub_address(f"{SCHEME}{repository.removeprefix(SCHEME)}")
    if address.file is not None or address.revision is not None:
        raise ValueError(f"repository must be 'owner/name', but {repository!r} was given. A branch is revision=...")
    if license is not None and not re.fullmatch(r"[\w.-]{1,100}", license, re.ASCII):
        raise ValueError(f"license must be an identifier such as 'apache-2.0', but {license!r} was given.")
    layout = _layout_of(model.config) if layout is None else layout
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as folder:
        weights = pathlib.Path(folder) / ("model.safetensors" if layout in _OTHERS else "model.npz")
        to_checkpoint(model, weights, layout)
        api = HfApi(library_name="keras_vit")
        with errors_named(address, "written"):
            api.create_repo(address.repository, private=private, exist_ok=True)
            names = [sibling.rfilename for sibling in api.model_info(address.repository).siblings or ()]
        others = {name for name in names if name.endswith(ENDINGS) and "/" not in name} - {weights.name, *NOT_WEIGHTS}
        if others:
            problem = f"has other weights, {min(others)}, beside which {weights.name} would be taken for the same model"
            raise ValueError(f"{address} {problem}. Remove them there, or choose another repository or layout.")
        if CARD not in names:
            write_text(weights.parent / CARD, _card(model.config, address.repository, layout, license))
        with errors_named(address, "written"):
            commit = api.upload_folder(
                repo_id=address.repository, folder_path=folder, revision=revision, commit_message=commit_message
            )
    return str(commit.commit_url)


# By layout: the library that the Hub names, and how it loads the model.
_OTHERS = {
    "timm": ("timm", "timm.create_model('hf-hub:{repository}', pretrained=True)"),
    "huggingface": ("transformers", "transformers.AutoModel.from_pretrained('{repository}')"),
}


def _layout_of(config: ModelConfig) -> str:
    """The preferred layout that can say a model: those of others first, then that of the published files."""
    for name in _OTHERS:
        if isinstance(config, LAYOUTS[name].config_type):
            with contextlib.suppress(ValueError):
                LAYOUTS[name].check_writable(config)
                return name
    return PUBLISHED[type(config)]


def _card(config: ModelConfig, repository: str, layout: str, license: str | None) -> str:
    """The card of a model: Markdown, and what the Hub indexes."""
    library, loading = _OTHERS.get(layout, ("", ""))
    names = config.class_names or ()
    classes = f": {', '.join(names[:_NAMES_LISTED])}{' ...' if len(names) > _NAMES_LISTED else ''}" if names else ""
    output = (
        f"It has {config.classes:,} classes{classes}." if config.classes else "It has no head: it returns features."
    )
    pipeline = config.pipeline
    height, width = pipeline.image_size
    how = {"squash": "straight", "shortest": "with their own aspect ratio"}[pipeline.resize]
    size = f"{height / pipeline.crop_ratio:.0f} x {width / pipeline.crop_ratio:.0f} pixels ({pipeline.filter})"
    crop = "" if pipeline.crop_ratio == 1 else f", of which the central {height} x {width} are cut out"
    mean, std = (", ".join(map(str, np.ravel(values))) for values in (pipeline.mean, pipeline.std))
    inside = " The model does this itself." if config.include_preprocessing else ""
    return f"""---
{f"license: {license}" if license else ""}
{f"library_name: {library}" if library else ""}
pipeline_tag: {"image-classification" if config.classes else "image-feature-extraction"}
tags: [keras, keras-vit, vision-transformer]
---

# {repository.rpartition("/")[2]}

{variant_of(config) or "A Vision Transformer or BiT"}, {models.count_weights(config):,} weights, for images of \
{height} x {width} pixels. {output}

## Use

```python
import keras_vit

model = keras_vit.load('{SCHEME}{repository}')
probabilities = model.predict(model.preprocess("picture.jpg"))
{f"# {library}: {loading.format(repository=repository)}" if library else ""}
```

## Preprocessing

Pictures are resized {how} to {size}{crop}. Values of 0..1 are normalised with mean {mean} \
and standard deviation {std}.{inside} `model.preprocess` does all of it.

## License

{license or "Unknown. Ask the owner before you use the weights."}
"""
