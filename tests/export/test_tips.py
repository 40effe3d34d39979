"""TIPS towers as any other: trained with adapters, fine-tuned, exported."""

import numpy as np
import pytest

import keras_vit
from keras_vit import training
from keras_vit.export import export
from tests.checkpoints.test_tips import AUTHORS, CASE, SCENIC, drawn

pytestmark = pytest.mark.once


@pytest.mark.parametrize("fields", [AUTHORS, SCENIC], ids=["authors", "scenic"])
def test_fine_tuning_and_adapters(fields):
    pixels, labels = np.random.default_rng(0).integers(0, 256, (8, 56, 56, 3), "uint8"), np.arange(8) % 2
    recipe = training.recipe("finetune/cifar10").replace(
        steps=2, warmup_steps=0, batch_size=4, learning_rate=0.1, lora_rank=2, momentum_dtype=None
    )
    trained = training.finetune(drawn(**fields), (pixels, labels), recipe)
    merged = training.merge_lora(trained.model)
    images = trained.model.preprocess(pixels)
    answers = [model.predict(images, verbose=0) for model in (trained.model, merged)]
    np.testing.assert_allclose(*answers, atol=1e-4)


def test_export(golden, tmp_path):
    """A segmenter, which has the whole tower inside."""
    both = keras_vit.load_image_text(golden(CASE).folder)
    segmenter = both.zero_shot_segmenter(["cat", "dog"], "{}", image_size=56, stride=28).with_image_size(56)
    assert export(segmenter, tmp_path / "model.pt2", measure=False).max_abs_error < 1e-4  # compares the answers
