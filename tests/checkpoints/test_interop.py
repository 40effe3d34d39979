"""timm and transformers themselves load what `to_checkpoint` writes, and answer the same.

Neither is part of the test environment: CONTRIBUTING.md says how to make one that has both.
"""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import to_checkpoint
from tests.checkpoints.state_dicts import GAMMA, PATCHES, timm, write
from tests.compute import forward
from tests.tolerances import SAME_FUNCTION

pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

# The reference file (None: a DeiT-III of random weights), what becomes of its config (with random weights), and whom it
# is written for.
CASES = {
    "ViT for timm": ("fam_timm_vit", {}, "timm"),
    "ViT for transformers": ("fam_hf_vit_cls", {}, "huggingface"),
    "DeiT-III for timm": (None, {}, "timm"),
    "DINOv2 with registers for timm": ("fam_timm_dinov2_reg4", {}, "timm"),
    "DINOv2 with registers for transformers": ("fam_timm_dinov2_reg4", {}, "huggingface"),
    "SigLIP for timm": ("fam_timm_siglip2", {}, "timm"),
    "SigLIP for transformers": ("fam_hf_siglip_full", {}, "huggingface"),
    "DeiT without head for timm": (
        "fam_timm_deit_distilled",
        {"classes": None, "distillation_head": False, "pooling": "token_dist"},
        "timm",
    ),
    "DeiT without head for transformers": (
        "fam_timm_deit_distilled",
        {"classes": None, "distillation_head": False, "representation_size": 48},
        "huggingface",
    ),
    "hybrid for timm": (
        "fam_timm_hybrid",
        {"stem_stages": (), "stem_width": 64, "patch_size": 4},
        "timm",
    ),
    "BEiT-3 for timm": (
        "fam_timm_vit",
        {"mlp": "plain_norm", "attention_norm": True, "layer_norm_epsilon": 1e-5},
        "timm",
    ),
}


def answers_of_timm(folder, images):
    timm_library, torch = pytest.importorskip("timm"), pytest.importorskip("torch")
    model = timm_library.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        return model(torch.from_numpy(images)).numpy()


def answers_of_transformers(folder, images):
    library, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, report = getattr(library, name).from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    with torch.no_grad():
        outputs = model.eval()(pixel_values=torch.from_numpy(images))
    return (outputs.logits if "logits" in outputs else outputs.pooler_output).numpy()


@pytest.mark.parametrize("name", CASES)
def test_loaded_by_the_library_it_is_written_for(name, golden, tmp_path):
    case, changes, layout = CASES[name]
    answers = {"timm": answers_of_timm, "huggingface": answers_of_transformers}[layout]
    pytest.importorskip({"timm": "timm", "huggingface": "transformers"}[layout])
    if case is None:
        source = write(tmp_path / "deit3", timm(rows=PATCHES, scales=GAMMA, head=5))
        model = keras_vit.from_checkpoint(source, heads=4)
    else:
        model = keras_vit.from_checkpoint(golden(case).path)
    if changes:
        model = keras_vit.VisionTransformer(model.config.replace(**changes))
        rng = np.random.default_rng(2)
        for weight in model.weights:
            weight.assign(rng.normal(0, 0.3, weight.shape) + weight.path.endswith("gamma"))
    to_checkpoint(model, tmp_path / "written", layout=layout)
    images = np.random.default_rng(1).normal(size=(2, *model.config.image_size, 3)).astype("float32")
    wanted = forward(model, images)
    got = answers(tmp_path / "written", np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=SAME_FUNCTION * max(1.0, np.std(wanted)))
