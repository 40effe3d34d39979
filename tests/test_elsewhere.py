"""The pages for those who come from other packages: both sides of them are run, where the other is installed."""

import ast
import functools
import importlib
import inspect
import re
import types
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import keras_vit
from keras_vit.cli import main

ROOT = Path(__file__).parents[1]


class Peer(NamedTuple):
    """Another package, as its page speaks of it."""

    needs: tuple[str, ...]  # what has to be importable for its page to run
    backends: tuple[str, ...]  # those that its page runs on


PEERS = {
    "timm": Peer(("timm",), ("torch",)),
    "huggingface": Peer(("transformers",), ("torch",)),
    "tfvit_flaxvit": Peer(("transformers.models.vit.modeling_tf_vit",), ("tensorflow",)),  # up to version 4
    "keras": Peer(("keras_hub",), ("tensorflow", "jax", "torch")),
    "vit_jax": Peer(("vit_jax.checkpoint", "vit_jax.models_vit"), ("jax",)),
    "big_vision": Peer(("big_vision.models.vit",), ("jax",)),
}
# What the first part of a name in our column of a table stands for; other names are of the package itself.
OURS = {"keras_vit": "keras_vit", "training": "keras_vit.training", "ViTConfig": "keras_vit:ViTConfig"}
OURS["Augmentation"] = "keras_vit.training:Augmentation"


def page(name):
    return (ROOT / "docs" / "from" / f"{name}.md").read_text(encoding="utf-8")


def table(name):
    """The pieces of code in our column of the first table of a page, a list for each row."""
    rows = page(name).partition("|---|---|\n")[2].partition("\n\n")[0].splitlines()
    cells = [re.split(r"(?<!\\)\|", row)[1:-1][1] for row in rows]
    return [re.findall("`([^`]+)`", cell.replace("\\|", "|")) for cell in cells]


def names_and_calls(rows):
    """What is Python among pieces of code: each as it stands, its name, and the call or None for a name alone."""
    before = None
    for snippet in (snippet for row in rows for snippet in row):
        try:
            code = ast.parse(snippet, mode="eval").body
        except SyntaxError:
            assert re.match(r"[\w-]+ |\.?\w+=|[.:]\w|\w+://|\w+(/\w+)+\.py", snippet), f"{snippet!r} is not Python"
            continue
        while isinstance(code, ast.Call) and isinstance(code.func, ast.Call):
            code = code.func  # f(x)(y): what f(x) gives is not known here
        if isinstance(code, ast.Call):
            before = before if isinstance(code.func, ast.Constant) else code.func  # `...(x=1)`: the one before
            yield snippet, before, code
        elif isinstance(code, ast.Attribute) or (isinstance(code, ast.Name) and code.id[0].isupper()):
            yield snippet, code, None


def look_up(name):
    """The object with a dotted name; a method of a class without its `self`."""
    if isinstance(name, ast.Attribute):
        owner = look_up(name.value)
        value = getattr(owner, name.attr, None)
        if value is None:
            value = importlib.import_module(f"{owner.__name__}.{name.attr}")
        is_method = inspect.isclass(owner) and isinstance(value, types.FunctionType)
        return functools.partial(value, None) if is_method else value
    module, _, path = OURS.get(name.id, f"keras_vit:{name.id}").partition(":")
    return functools.reduce(getattr, path.split(".") if path else [], importlib.import_module(module))


def check(snippet, value, call):
    """Raises unless something takes the arguments of a call."""
    if call is None:
        return
    positional = [argument for argument in call.args if getattr(argument, "value", None) is not ...]
    keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
    try:
        inspect.signature(value).bind_partial(*positional, **keywords)
    except TypeError as error:
        raise AssertionError(f"{snippet}: {error}") from error


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")


@pytest.fixture
def peer(request, backend):
    """The name of a page whose package is installed and is for this backend."""
    name = request.param
    if backend not in PEERS[name].backends:
        pytest.skip("not on this backend")
    for module in PEERS[name].needs:
        pytest.importorskip(module)
    return name


def theirs(*names):
    """For tests that run other packages, whose warnings are not errors of ours."""

    def decorated(test):
        test = pytest.mark.parametrize("peer", names, indirect=True)(test)
        return pytest.mark.filterwarnings("default")(test)

    return decorated


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.once
def test_our_side_of_the_table_is_there(name, capsys):
    """Functions with their arguments, published checkpoints, commands with their options."""
    rows = table(name)
    instances = {"model": keras_vit.load("glyphs"), "recipe": keras_vit.training.recipe("finetune/cifar10")}
    for snippet, path, call in names_and_calls(rows):
        root, *attributes = snippet.partition("(")[0].split(".")
        if root in instances:
            value = functools.reduce(getattr, attributes, instances[root])
            if attributes[-1] in ("replace", "with_config"):  # which take any keyword
                value(**{keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords})
        else:
            value = look_up(path)
        check(snippet, value, call)
    text = " ".join(snippet for row in rows for snippet in row)
    published = re.findall(r'(?:load\(|weights=)"((?:hf://)?[\w+-]+/[\w.+-]*\w)"', text)
    assert [source for source in published if keras_vit.list_weights(source)[0]["name"] != source] == []
    for command, options in re.findall(r"keras-vit (\w+)((?: \S+)*)", text):
        assert main([command, "--help"]) == 0
        shown = capsys.readouterr().out
        assert [option for option in re.findall(r"--[\w-]+", options) if option not in shown] == []


@theirs(*PEERS)
def test_the_page_runs_beside_the_other_package(peer):
    """All of its code in order; the comparisons stand on the page."""
    names = {"keras_vit": keras_vit, "np": np}
    for code in re.findall(r"^```python\n(.*?)^```", page(peer), re.MULTILINE | re.DOTALL):
        exec(compile(code, f"docs/from/{peer}.md", "exec"), names)


@theirs("timm")
def test_timm_computes_as_its_page_says(peer):
    import timm
    import torch

    def made(name):
        with torch.device("meta"):  # no numbers, only how it is put together
            return timm.create_model(name)

    x = torch.linspace(-3, 3, 7)
    gelus = {"vit_base_patch16_224": "none"}
    gelus |= {f"vit_{n}": "tanh" for n in ("so400m_patch16_siglip_384", "giantopt_patch16_siglip_256")}
    gelus |= {f"vit_{n}": "tanh" for n in ("base_patch32_siglip_256", "large_patch16_siglip_512")}
    for name, kind in gelus.items():
        wanted = torch.nn.functional.gelu(x, approximate=kind)
        torch.testing.assert_close(made(name).blocks[0].mlp.act(x), wanted, rtol=0, atol=0)
    exact = made("vit_base_patch16_224")
    hybrid = dict(made("vit_base_r50_s16_224").patch_embed.backbone.named_modules())
    assert {m.eps for m in hybrid.values() if isinstance(m, torch.nn.GroupNorm)} == {1e-5}
    assert {m.eps for m in hybrid.values() if type(m).__name__.startswith("StdConv")} == {1e-8}
    resize = inspect.signature(timm.layers.resample_abs_pos_embed).parameters
    assert (resize["interpolation"].default, resize["antialias"].default) == ("bicubic", True)
    assert (exact.pretrained_cfg["interpolation"], exact.pretrained_cfg["crop_pct"]) == ("bicubic", 0.9)


@theirs("huggingface")
def test_transformers_computes_as_its_page_says(peer):
    import transformers

    epsilons = dict.fromkeys(("ViT", "DeiT", "ViTMAE", "IJepa"), 1e-12)
    epsilons |= {"Dinov2": 1e-6, "SiglipVision": 1e-6, "CLIPVision": 1e-5}
    assert {n: getattr(transformers, f"{n}Config")().layer_norm_eps for n in epsilons} == epsilons
    assert transformers.ViTConfig().hidden_act == "gelu"


@theirs("keras")
def test_keras_hub_computes_as_its_page_says(peer):
    import keras_hub

    sizes = {"image_size": 32, "patch_size": 16, "width": 24, "depth": 2, "heads": 2, "mlp_width": 96, "classes": 5}
    config = keras_vit.ViTConfig(**sizes, layer_norm_epsilon=1e-12, interpolation="bicubic_hf")
    keras_vit.to_checkpoint(keras_vit.VisionTransformer(config), "model", layout="huggingface")
    load = keras_hub.models.ViTBackbone.from_preset
    assert load("model").layer_norm_epsilon == 1e-6
    with pytest.raises(ValueError, match="shape"):
        load("model", image_shape=(64, 64, 3))
    assert keras_hub.models.ViTImageClassifier.from_preset("model").preprocessor.image_converter is None


# Variants, and KerasHub's class for them with the number of classes: it reads DeiT's files with a head only.
KINDS = {"DeiT-B/16-distilled": ("DeiTBackbone", 5), "DINOv2-S/14": ("DINOV2Backbone", None)}
KINDS["DINOv3-S/16"] = "DINOV3Backbone", None


@theirs("keras")
@pytest.mark.parametrize("variant", KINDS)
def test_keras_hub_reads_other_families_of_ours(peer, variant):
    import keras
    import keras_hub

    name, classes = KINDS[variant]
    config = keras_vit.models.variant_config(variant)
    size = tuple(2 * side for side in config.patch_size)
    small = config.replace(width=64, heads=2, mlp_width=256, depth=2, image_size=size, gelu="exact", classes=classes)
    model = keras_vit.VisionTransformer(small.replace(interpolation="bicubic_hf"))
    for weight in model.trainable_weights:
        weight.assign(keras.random.normal(weight.shape, stddev=0.2))
    keras_vit.to_checkpoint(model, "model", layout="huggingface")
    tokens = keras_vit.load("model", include_top=False)
    images = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
    expected = getattr(keras_hub.models, name).from_preset("model").predict(images, verbose=0)
    np.testing.assert_allclose(tokens.predict(images, verbose=0), expected, atol=1e-5 * np.abs(expected).max())
