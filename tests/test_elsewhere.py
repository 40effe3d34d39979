"""What `to_checkpoint` writes for other packages computes the same there. Runs where they are installed.

No environment of this project has them: `pip install transformers` beside the test tools, and
`KERAS_BACKEND=torch python -m pytest tests/test_elsewhere.py`.
"""

import keras
import numpy as np
import pytest

import keras_vit

SIZES = {"image_size": 32, "patch_size": 16, "width": 24, "depth": 2, "heads": 2, "mlp_width": 96, "classes": 5}


@pytest.fixture(autouse=True)
def torch_only(backend):
    if backend != "torch":
        pytest.skip("Transformers is PyTorch's")


def filled(**fields):
    """A small model none of whose weights is zero."""
    model = keras_vit.VisionTransformer(keras_vit.ViTConfig(**SIZES, gelu="exact", **fields))
    for weight in model.weights:
        weight.assign(keras.random.normal(weight.shape, stddev=0.2))
    return model


def test_transformers_computes_what_we_write_for_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    import torch

    model = filled(layer_norm_epsilon=1e-12, interpolation="bicubic_hf")
    keras_vit.to_checkpoint(model, tmp_path / "model", layout="huggingface")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "model").eval()
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype("float32")
    with torch.no_grad():
        logits = theirs(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).logits.numpy()
    np.testing.assert_allclose(model.predict(images, verbose=0), logits, atol=1e-5 * np.abs(logits).max())
