"""The pages for those who come from other packages: both sides of them are run, where the other is installed."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import keras_vit
from tests.pages import blocks

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


@theirs(*PEERS)
def test_the_page_runs_beside_the_other_package(peer):
    """All of its code in order; the comparisons stand on the page."""
    names = {"keras_vit": keras_vit, "np": np}
    for _, code in blocks(f"docs/from/{peer}.md"):
        exec(compile(code, f"docs/from/{peer}.md", "exec"), names)


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
