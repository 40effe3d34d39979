"""Writes docs/api/*.md: which public names the API reference has, page by page. The texts are the docstrings.

    python docs/make_api.py

A name that two rooms show stands on the page of the one that it is written in. The factories of the variants, which
have the same options and one text, stand in a table.
"""

import pathlib
import sys
import types

import keras_vit
from keras_vit.models import VARIANTS, factory_name
from keras_vit.zoo import FAMILY_FACTORIES

FOLDER = pathlib.Path(__file__).parent / "api"
ROOMS = {
    "models": "Models, weights and pictures: what `import keras_vit` gives.",
    "training": "",
    "evaluation": "",
    "inspection": "",
    "export": "",
    "data": "",
    "layers": "",
    "text": "",
    "segmentation": "",
    "depth": "",
}
INDEX = """# API reference

Every public name, with its shapes, dtypes and errors. The texts are the docstrings: `help(keras_vit.load)` says the
same.

{pages}

## What the examples stand on

Every example is run by the tests. They share these names, and a folder that has `photo.jpg`, `photos/train` and
`photos/test` in it:

```python
{prelude}```

An array is a NumPy array unless something else is said. Where "images" are taken, a tensor of the backend is as good.
`Raises` names the errors of a function itself; what Keras or the backend raises for a wrong shape is not repeated.
"""
PRELUDE = """import keras
import numpy as np

import keras_vit
from keras_vit import data, evaluation, export, inspection, layers, segmentation, text, training

model = keras_vit.load("glyphs")  # 24 x 24 pixels, 164 characters: the small checkpoint that comes along
pixels = np.random.default_rng(0).integers(0, 256, (4, 24, 24, 3)).astype("uint8")  # four pictures
labels = np.array([0, 1, 0, 1])
images = model.preprocess(pixels)  # float32 (4, 24, 24, 3), in [-1, 1]
config = keras_vit.ViTConfig(image_size=8, patch_size=4, width=8, depth=2, heads=2, mlp_width=16, classes=2)
small = keras_vit.VisionTransformer(config)  # random weights
small_images = np.zeros((4, 8, 8, 3), "float32")
words = keras_vit.TextConfig(vocabulary=128, context=8, width=8, depth=1, heads=2, mlp_width=16)
letters = text.Tokenizer(lambda line: [ord(letter) for letter in line], context=8, end=1, pad=0)
both = text.ImageText(small.with_config(classes=None), keras_vit.TextEncoder(words), letters)  # random weights
backbone = config.replace(depth=4, classes=None, pooling="none", dynamic=True)  # without head, for images of any size
eomt_config = keras_vit.EoMTConfig(
    backbone=config.replace(pooling="none", classes=None), classes=3, queries=5, query_blocks=1, upscale_blocks=1
)
eomt = keras_vit.EoMT(eomt_config)  # random weights
head = keras_vit.LinearSegmenterConfig(backbone=backbone, classes=3, blocks=(3,), short_side=8, crop_size=8, stride=4)
segmenter = keras_vit.LinearSegmenter(head)  # random weights
depth_model = keras_vit.LinearDepth(keras_vit.LinearDepthConfig(backbone=backbone, blocks=(3,)))  # random weights
"""


def pages() -> dict[str, dict[str, object]]:
    """The objects of each page by their names: no modules, each object once, factories apart."""
    rooms = {name: keras_vit if name == "models" else getattr(keras_vit, name) for name in ROOMS}
    written_in = {name: f"keras_vit.{name}." for name in ROOMS if name != "models"}
    result: dict[str, dict[str, object]] = {name: {} for name in ROOMS}
    for page, room in rooms.items():
        for name in room.__all__:
            value = getattr(room, name)
            home = f"{getattr(value, '__module__', room.__name__)}."
            elsewhere = any(home.startswith(prefix) and other != page for other, prefix in written_in.items())
            if not (isinstance(value, types.ModuleType) or name in factories() or elsewhere):
                result[page][name] = value
    return result


def factories() -> dict[str, str]:
    """The functions that make a variant, and the variant's name."""
    variants = {factory_name(variant): variant for variant in [*VARIANTS, *keras_vit.BIT_VARIANTS]}
    return {name: variants[name] for name in variants if name in keras_vit.__all__ or name in FAMILY_FACTORIES}


def texts() -> dict[str, str]:
    """The pages by the names of their files."""
    links = []
    result = {}
    for page, members in pages().items():
        room = "keras_vit" if page == "models" else f"keras_vit.{page}"
        about = ROOMS[page] or str(sys.modules[room].__doc__).strip().splitlines()[0]
        lines = [f"# {room}", "", about, ""]
        for name in sorted(members, key=str.lower):
            lines += [f"::: {room}.{name}", ""]
        if page == "models":
            lines.append(_factory_table())
        result[f"{page}.md"] = "\n".join(lines).rstrip() + "\n"
        links.append(f"- [`{room}`]({page}.md): {about[0].lower() + about[1:]}")
    result["index.md"] = INDEX.format(pages="\n".join(links), prelude=PRELUDE)
    return result


FACTORIES = """## Variants as functions

Each is [`create_model`][keras_vit.create_model] with its first argument filled in: the same
[options][keras_vit.CreateOptions], errors and results, `keras_vit.ViT_B16(classes=10)` for
`keras_vit.create_model("ViT-B/16", classes=10)`. Those of BiT refuse options about tokens, position embeddings and
dropout. Sizes and origins: [the zoo](../zoo.md).

| function | variant |
|---|---|
"""


def _factory_table() -> str:
    rows = (f'| <span id="keras_vit.{name}">`{name}`</span> | {variant} |' for name, variant in factories().items())
    return FACTORIES + "\n".join(rows)


def main() -> None:
    """Writes the pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
