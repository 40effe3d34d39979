"""What users do with a model of each family: fine-tune it with adapters, save and change it."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import training
from tests.compute import forward
from tests.tolerances import SAME_FUNCTION

# A reference file of each family whose layers differ. Together they have every layer that a plain ViT lacks: two rotary
# embeddings, register and distillation tokens, gates, QuickGELU, a MAP head.
FAMILIES = ("fam_timm_deit_distilled", "fam_hf_dinov3", "fam_hf_siglip_full")
OTHERS = ("fam_hf_dinov2_giant_cls", "fam_hf_clip_full", "fam_timm_eva02_base")
# Files alone do not say how their pictures are prepared; here it does not matter.
pytestmark = [
    pytest.mark.long,
    pytest.mark.nightly_elsewhere,
    pytest.mark.filterwarnings("ignore:.*does not contain all settings:UserWarning"),
]
RECIPE = training.recipe("finetune/cifar10").replace(
    steps=2, warmup_steps=0, batch_size=4, learning_rate=0.1, lora_rank=2, momentum_dtype=None
)


@pytest.fixture(scope="module", params=[*FAMILIES, *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHERS)])
def trained(request, golden):
    case = golden(request.param)
    model = keras_vit.from_checkpoint(case.path, image_size=case.ref["images"].shape[1:3]).with_classes(3)
    images = np.random.default_rng(0).integers(0, 256, (8, *model.config.image_size, 3), dtype="uint8")
    before = {w.path: keras.ops.convert_to_numpy(w).copy() for w in model.weights}
    recipe = RECIPE.replace(image_size=model.config.image_size)
    done = training.finetune(model, (images, np.arange(8) % 3), recipe, verbose=False)
    return done.model, images, before


def test_only_adapters_and_the_head_were_trained(trained):
    model, _, before = trained
    after = {w.path: keras.ops.convert_to_numpy(w) for w in model.weights}
    changed = {path for path, value in before.items() if not np.array_equal(after[path], value)}
    assert {path.rsplit("/", 2)[-2] for path in changed} <= {"head", "head_dist"} and changed
    adapters = [value for path, value in after.items() if "lora_kernel_b" in path]
    assert len(adapters) >= 2 * model.config.depth and all(map(np.any, adapters))


def test_merged_saved_and_changed(trained, tmp_path):
    model, images, _ = trained
    x = model.preprocess(images[:2])
    wanted = forward(model, x)
    assert np.isfinite(wanted).all() and np.std(wanted) > 0
    merged = training.merge_lora(model)
    np.testing.assert_allclose(forward(merged, x), wanted, rtol=0, atol=SAME_FUNCTION)
    merged.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.config == merged.config
    np.testing.assert_array_equal(forward(loaded, x), forward(merged, x))
    features = loaded.with_config(classes=None, dynamic=True)
    same = keras_vit.feature_extractor(merged, ["pre_logits"])
    np.testing.assert_allclose(forward(features, x), forward(same, x)["pre_logits"], rtol=0, atol=SAME_FUNCTION)
