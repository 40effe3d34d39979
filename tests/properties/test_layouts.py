"""Random configs in every layout: refused, or read back as themselves, with the answers of the library it is for."""

import dataclasses
import json
import random
import warnings

import numpy as np
import pytest

import keras_vit
from keras_vit import ViTConfig
from keras_vit.checkpoints import LAYOUTS
from keras_vit.checkpoints.checkpoint import CHOSEN, decisive_fields, note_of
from tests.properties.random_models import BITS, TIMES, VALUES, VITS, answers, made
from tests.tolerances import SAME_FUNCTION

pytestmark = pytest.mark.once

SMALL = {"image_size": 16, "patch_size": 8, "width": 64, "depth": 2, "heads": 1, "mlp_width": 64, "gelu": "exact"}
PE = SMALL | {"patch_bias": False, "pre_norm": True, "layer_norm_epsilon": 1e-5, "rotary_embedding": "pe"}
PE |= {"rotary_grid": None, "interpolation": "bilinear"}
TIPS = SMALL | {"register_tokens": 1, "interpolation": "bilinear_antialias", "layer_scale": 1.0}
TIPS |= {"position_embedding": "learned_without_registers", "mlp_width": 256}
CLIP = SMALL | {"pre_norm": True, "patch_bias": False, "layer_norm_epsilon": 1e-5, "projection": 24}
SIGLIP = SMALL | {"class_token": False, "pooling": "map", "gelu": "tanh"}
DINOV2 = SMALL | {"layer_scale": 1.0, "mlp_width": 256}
DINOV3 = SMALL | {"position_embedding": "none", "rotary_embedding": "dinov3", "layer_norm_epsilon": 1e-5}
DINOV3 |= {"layer_scale": 1.0, "register_tokens": 4}
EVA = SMALL | {"rotary_embedding": "eva02", "mlp": "swiglu", "attention_bias": "no_key", "pooling": "avg"}
DEIT = {"distillation_token": True, "classes": 3, "distillation_head": True}
STEM = {"stem_stages": (), "patch_size": 2, "classes": 3}
# Near these every layout has a place for something.
BASES = [
    *VITS,
    *BITS,
    *(ViTConfig(**fields) for fields in (SMALL, PE, TIPS, CLIP, SIGLIP, DINOV2, DINOV3, EVA, SMALL | DEIT)),
    *(ViTConfig(**{**PE, "pooling": pooling}) for pooling in ("none", "avg", "map")),
    ViTConfig(**{**PE, "pooling": "map", "pooling_heads": 8, "projection": 16}),
    ViTConfig(**{**TIPS, "layer_scale": None, "gelu": "tanh", "position_embedding": "learned_patches"}),
    ViTConfig(**{**CLIP, "gelu": "quick", "projection": None}),
    ViTConfig(**{**CLIP, "classes": 5, "projection": None}),
    ViTConfig(**{**SIGLIP, "interpolation": "bilinear_antialias"}),
    ViTConfig(**{**DINOV3, "mlp": "swiglu", "attention_bias": "no_key"}),
    ViTConfig(**{**EVA, "mlp": "swiglu_norm", "classes": 3, "final_norm": "pooled"}),
    ViTConfig(**{**DINOV2, "mlp": "swiglu", "mlp_width": 176}),
    ViTConfig(**{**DINOV2, "classes": 3, "pooling": "token_avg"}),
    ViTConfig(**{**SMALL, "layer_norm_epsilon": 1e-12, "representation_size": 64}),
    ViTConfig(**{**SMALL, **STEM, "stem_epsilons": "timm"}),
    ViTConfig(**{**SMALL, **STEM, "gelu": "tanh"}),
]
_SIZES = [8, 16, 24, (8, 16), (16, 24), (24, 8)]
DRAWN = VALUES | dict.fromkeys(("image_size", "patch_size", "rotary_grid"), _SIZES)
DRAWN |= {"width": [16, 64], "crop_ratio": [0.5, 0.9, 0.95, 1.0], "layer_norm_epsilon": [1e-6, 1e-5, 1e-12]}


def drawn(chance):
    """A config near one of `BASES`, with up to four fields changed that it admits."""
    config = chance.choice(BASES)
    fields = [field for field in dataclasses.fields(config) if field.name not in CHOSEN]
    for field in chance.sample(fields, chance.randint(0, 4)):
        values = DRAWN.get(field.name)
        if values is None:
            values = [True, False] if isinstance(field.default, bool) else field.type.__metadata__[0].values
        try:
            config = config.replace(**{field.name: chance.choice(values)})
        except (TypeError, ValueError):
            continue
    return config


PICTURE = np.random.default_rng(0).integers(0, 256, (40, 52, 3), "uint8")


def written(model, folder, layout):
    """The path of the model's file in a layout, and whether its pictures are said to become others."""
    path = folder / ("model.npz" if LAYOUTS[layout].sidecars is None else "")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        keras_vit.to_checkpoint(model, path, layout)
    said = [str(warning.message) for warning in caught if warning.category is UserWarning]
    assert all("cannot store" in words for words in said), said
    return path, bool(said)


def check_read_back(model, path):
    """The file gives the model back: what decides its computation, its answers and its pixels."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not contain all settings of its model")
        again = keras_vit.load(path, image_size=model.config.image_size)
    wanted, found = decisive_fields(model.config), decisive_fields(again.config)
    other = {name for name in wanted if found.get(name, getattr(again.config, name)) != wanted[name]}
    assert other <= {"position_embedding"}, other  # rows of zeros are written where a layout has some
    expected = answers(model)["answer"]
    np.testing.assert_allclose(answers(again)["answer"], expected, rtol=2e-5, atol=SAME_FUNCTION)
    if model.config.channels == 3:
        np.testing.assert_array_equal(again.preprocess(PICTURE), model.preprocess(PICTURE))


def pixels_and_answer(model):
    """Images for PyTorch of the size that publishers prepare, and what the model answers to what it sees of them."""
    import torch

    config = model.config
    pixels = np.random.default_rng(1).normal(size=(2, *config.pipeline.prepared_size, config.channels)).astype("f4")
    height, width = config.image_size
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), model.predict(pixels[:, :height, :width], verbose=0)


def check_timm(model, path, said):
    """timm answers alike from the same pixels, and prepares the same ones unless the warning said otherwise."""
    import timm
    import torch
    from PIL import Image

    theirs = timm.create_model(f"local-dir:{path}", pretrained=True).eval()
    pixels, ours = pixels_and_answer(model)
    with torch.no_grad():
        given = theirs(pixels).numpy()
    np.testing.assert_allclose(given, ours, rtol=0, atol=2e-5 * max(1, np.abs(ours).max()))
    if model.config.channels == 3 and not any(model.config.trim):
        transform = timm.data.create_transform(**timm.data.resolve_model_data_config(theirs))
        found = transform(Image.fromarray(PICTURE)).permute(1, 2, 0).numpy()
        assert said or np.abs(found - model.preprocess(PICTURE)[0]).max() < 1e-4


def check_transformers(model, path, said):
    """transformers answers alike from the same pixels, and prepares the same ones unless the warning said otherwise."""
    import torch
    import transformers

    (name,) = json.loads((path / "config.json").read_text())["architectures"]
    theirs, report = getattr(transformers, name).from_pretrained(path, output_loading_info=True)
    missing = {key for key in report["missing_keys"] if "pooler" not in key}  # which ViTModel always has
    assert not missing and not report["unexpected_keys"] and not report["mismatched_keys"], report
    config = model.config
    if config.channels == 3 and not any(config.trim):
        processor = transformers.AutoImageProcessor.from_pretrained(path, backend="pil")
        if "Siglip2" not in type(processor).__name__:  # which cuts patches itself
            found = processor(PICTURE, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
            assert said or np.abs(found - model.preprocess(PICTURE)[0]).max() < 1e-4
    if "Siglip2" in name:
        return
    pixels, ours = pixels_and_answer(model)
    with torch.no_grad():
        given = theirs.eval()(pixels)
    if config.classes:
        found = given["logits"]
    elif config.projection:
        found = given["image_embeds"]
    elif config.pooling == "none" or (config.pooling == "avg" and not config.class_token):
        found = given["last_hidden_state"]
        found = found if config.pooling == "none" else found.mean(axis=1)
    elif config.pooling == "token" and "pooler_output" in given and not name.startswith(("ViT", "DeiT")):
        found = given["pooler_output"]
    elif config.representation_size or config.pooling == "map":
        found = given["pooler_output"]
    else:
        found = given["last_hidden_state"][:, 0]
    if "CLIP" in name and config.pooling == "none":
        return  # before the last normalisation
    np.testing.assert_allclose(found.numpy(), ours, rtol=0, atol=2e-5 * max(1, np.abs(ours).max()))


LIBRARIES = {"timm": ("timm", check_timm), "huggingface": ("transformers", check_transformers)}


def try_configs(seed, count, folder, layouts, check):
    """How many of so many random configs were written; each of them is checked."""
    chance, number = random.Random(seed), 0
    for i in range(count):
        config, model = drawn(chance), None
        for layout in layouts:
            if not isinstance(config, LAYOUTS[layout].config_type):
                continue
            try:
                note_of(config, LAYOUTS[layout])
            except ValueError:
                continue
            model = made(config.replace(classifier_activation=None)) if model is None else model
            place = folder / f"{i}_{layout}"
            place.mkdir()
            try:
                check(model, *written(model, place, layout), layout)
            except Exception as error:
                error.add_note(f"{layout}: {config}")
                raise
            number += 1
    return number


def test_what_is_written_is_read(tmp_path):
    check = lambda model, path, said, layout: check_read_back(model, path)  # noqa: E731
    assert try_configs(0, 12 * TIMES, tmp_path, [*LAYOUTS], check) >= 12 * TIMES


@pytest.mark.parametrize("layout", LIBRARIES)
def test_the_library_answers_alike(layout, tmp_path):
    package, check = LIBRARIES[layout]
    pytest.importorskip(package)
    try_configs(1, 30 * TIMES, tmp_path, [layout], lambda model, path, said, layout: check(model, path, said))
