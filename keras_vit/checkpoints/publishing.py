"""Models to the Hugging Face Hub, with a card that says what they are and how to load them."""

import pathlib
import re
import tempfile

import numpy as np

from keras_vit import models
from keras_vit._files import write_text
from keras_vit.checkpoints.checkpoint import LAYOUTS, PUBLISHED, count_parameters, to_checkpoint
from keras_vit.checkpoints.folder import ENDINGS, NOT_WEIGHTS
from keras_vit.checkpoints.hub import SCHEME, errors_named, hub_library, is_hub_address, parse_hub_address
from keras_vit.models import BiT, ModelConfig, VisionTransformer, ViTConfig, variant_of

# The preferred first: others can load them, too. The layout of the family's published files comes last.
LAYOUTS_OF_OTHERS = ("timm", "huggingface")
CARD = "README.md"
_IDENTIFIER = re.compile(r"[\w.-]{1,100}", re.ASCII)
_NAMES_SHOWN = 20  # class names in a card


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

    What is written: the weights (`model.safetensors` with `config.json` in a layout of timm or transformers, otherwise
    `model.npz` in the layout of the original code) and a card, `README.md`, unless the repository has one. All of it is
    one commit. `keras_vit.load("hf://owner/name")` gives the model back. For a `.keras` file there instead, which
    `keras.saving.load_model` reads, Keras itself has `model.save("hf://owner/name")`.

    Args:
        model: A model of this package.
        repository: `"owner/name"`.
        layout: As in `to_checkpoint`; None for the first of timm's, transformers' and the original code's that can say
            the model.
        license: The licence of the weights, as an identifier of the Hub such as `"apache-2.0"`; None to leave it open.
            That of the weights which the model was trained from may bind it.
        private: Whether a new repository is private; None for what the owner's account says.
        revision: The branch to write to; None for the main one.
        commit_message: What the commit says.

    Returns:
        The address of the commit, for a browser.

    Raises:
        ImportError: if `huggingface_hub` is not installed.
        TypeError: if `model` is none of this package.
        ValueError: if the repository's name is none, no layout can say the model, or the repository has other weights,
            which would be loaded instead.
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
    address = parse_hub_address(repository if is_hub_address(repository) else f"{SCHEME}{repository}")
    if address.file is not None or address.revision is not None:
        raise ValueError(f"repository must be 'owner/name', but {repository!r} was given. A branch is revision=...")
    if license is not None and not _IDENTIFIER.fullmatch(license):
        raise ValueError(f"license must be an identifier such as 'apache-2.0', but {license!r} was given.")
    layout = _layout_of(model.config) if layout is None else layout
    hub = hub_library()
    with tempfile.TemporaryDirectory() as folder:
        weights = pathlib.Path(folder) / _file_name(layout)
        to_checkpoint(model, weights, layout)
        api = hub.HfApi(library_name="keras_vit")
        with errors_named(hub, address, "write"):
            api.create_repo(address.repository, private=private, exist_ok=True)
            info = api.model_info(address.repository)
        names = [sibling.rfilename for sibling in info.siblings or ()]
        others = [name for name in names if name.endswith(ENDINGS) and "/" not in name]
        others = sorted({*others} - {weights.name, *NOT_WEIGHTS})
        if others:
            raise ValueError(
                f"{address} has other weights, {others[0]}, beside which {weights.name} would be taken for the same "
                "model. Remove them there, or choose another repository or layout."
            )
        if CARD not in names:
            write_text(weights.parent / CARD, model_card(model, address.repository, layout, license))
        with errors_named(hub, address, "write"):
            commit = api.upload_folder(
                repo_id=address.repository,
                folder_path=folder,
                revision=revision,
                commit_message=commit_message,
            )
    return str(commit.commit_url)


def model_card(model: VisionTransformer | BiT, repository: str, layout: str, license: str | None = None) -> str:
    """The card of a model: Markdown, and what the Hub indexes.

    Args:
        model: A model of this package.
        repository: Where it is going to be, `"owner/name"`.
        layout: The layout that its weights are written in.
        license: See `push_to_hub`.
    """
    config = model.config
    name = variant_of(config) or ("Vision Transformer" if isinstance(config, ViTConfig) else "BiT")
    task = "image-classification" if config.classes else "image-feature-extraction"
    index = [
        *([f"license: {license}"] if license else []),
        *([f"library_name: {_LIBRARIES[layout]}"] if layout in _LIBRARIES else []),
        f"pipeline_tag: {task}",
        "tags: [keras, keras-vit, vision-transformer]",
    ]
    sections = [
        "---\n" + "\n".join(index) + "\n---",
        f"# {repository.rpartition('/')[2]}",
        f"{name}, {count_parameters(config):,} weights, {_input(config)}. {_output(config)}",
        f"## Use\n\n```python\nimport keras_vit\n\nmodel = keras_vit.load({SCHEME + repository!r})\n"
        'images = model.preprocess("picture.jpg")\nanswers = model.predict(images)\n```',
    ]
    sections.append(f"## Preprocessing\n\n{_preprocessing(config)}")
    if layout in _LOADING:
        sections.append(_LOADING[layout].format(repository=repository))
    sections.append(f"## Licence\n\n{license or 'Not said. Ask the owner before you use the weights.'}")
    return "\n\n".join(sections) + "\n"


_LIBRARIES = {"timm": "timm", "huggingface": "transformers"}
_LOADING = {
    "timm": (
        "With timm:\n\n```python\nimport timm\n\n"
        'model = timm.create_model("hf-hub:{repository}", pretrained=True).eval()\n```'
    ),
    "huggingface": (
        "With transformers:\n\n```python\nfrom transformers import AutoImageProcessor, AutoModel\n\n"
        'processor = AutoImageProcessor.from_pretrained("{repository}")\n'
        'model = AutoModel.from_pretrained("{repository}")\n```'
    ),
}


def _layout_of(config: ModelConfig) -> str:
    """The preferred layout that can say a model."""
    for name in LAYOUTS_OF_OTHERS:
        if name in LAYOUTS and isinstance(config, LAYOUTS[name].config_type):
            try:
                LAYOUTS[name].check_writable(config)
            except ValueError:
                continue
            return name
    return PUBLISHED[type(config)]


def _file_name(layout: str) -> str:
    return "model.safetensors" if layout in LAYOUTS_OF_OTHERS else "model.npz"


def _input(config: ModelConfig) -> str:
    height, width = models.pair("image_size", config.image_size)
    return f"for images of {height} x {width} pixels"


def _preprocessing(config: ModelConfig) -> str:
    pipeline = config.pipeline
    height, width = pipeline.image_size
    ways = {"squash": "straight", "shortest": "with their own aspect ratio"}
    size = f"{height / pipeline.crop_ratio:.0f} x {width / pipeline.crop_ratio:.0f} pixels ({pipeline.filter})"
    crop = "" if pipeline.crop_ratio == 1 else f", of which the central {height} x {width} are cut out"
    mean, std = (", ".join(map(str, np.ravel(values))) for values in (pipeline.mean, pipeline.std))
    inside = " The model does this itself." if config.include_preprocessing else ""
    return (
        f"Pictures are resized {ways[pipeline.resize]} to {size}{crop}. Values of 0..1 are normalised with mean {mean} "
        f"and standard deviation {std}.{inside} `model.preprocess` does all of it."
    )


def _output(config: ModelConfig) -> str:
    if not config.classes:
        return "It has no head: it gives features."
    if config.class_names is None:
        return f"It tells {config.classes:,} classes apart."
    names = ", ".join(config.class_names[:_NAMES_SHOWN])
    more = " ..." if len(config.class_names) > _NAMES_SHOWN else ""
    return f"It tells {config.classes:,} classes apart: {names}{more}."
