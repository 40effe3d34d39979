"""Models with patches of another size: FlexiViT's way to resize the patch embedding, on arrays and on models."""

import numpy as np
import pytest

import keras_vit
from keras_vit.layers import resize_patch_kernel, resize_table
from tests.compute import forward
from tests.small_models import small_vit, values_of
from tests.tolerances import LOGITS

pytestmark = pytest.mark.once


def test_kernels_against_the_original(golden):
    """The original inverts in float32: its error is 1e-7 times the condition number, 35 for 16 to 14, times values."""
    ref = golden("patch_resize").ref
    for name in ("16to14", "16to32", "32to16", "16to8", "14to16", "8to6"):
        wanted = ref[f"{name}/flexi_pi"]
        got = resize_patch_kernel(ref[f"{name}/in_hwio"], wanted.shape[:2])
        assert got.dtype == np.float32 and got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=0, atol=5e-6 * np.abs(wanted).max(), err_msg=name)


SIZE = {"image_size": 64, "patch_size": 16, "width": 12, "heads": 3, "classes": 5}


@pytest.mark.each
@pytest.mark.nightly_elsewhere
def test_images_enlarged_with_their_patches(golden):
    """A reference model at twice the patch and image size, each patch enlarged bilinearly, gives the same logits."""
    case = golden("bv_map")
    model = keras_vit.from_checkpoint(case.path).with_patch_size(16, image_size=64)
    assert model.config.grid_size == (4, 4)
    patches = case.ref["images"].reshape(2, 4, 8, 4, 8, 3).transpose(2, 4, 0, 1, 3, 5).reshape(1, 64, -1)
    larger = resize_table(patches, (8, 8), (16, 16), "bilinear").reshape(16, 16, 2, 4, 4, 3)
    images = larger.transpose(2, 3, 0, 4, 1, 5).reshape(2, 64, 64, 3)
    np.testing.assert_allclose(forward(model, images), case.ref["logits"], rtol=0, atol=LOGITS)


def test_flexivit(golden, tmp_path):
    """A file as FlexiViT's: kernels of 32 x 32 and 7 x 7 positions, used at 240 pixels with patches of 20 and 30."""
    ref = golden("patch_resize").ref
    table = golden("posemb_resize").ref["7to12/in"][:, 1:]
    model = small_vit(**SIZE | {"image_size": 224, "patch_size": 32, "class_token": False, "pooling": "avg"})
    kernel = np.concatenate([ref["32to16/in_hwio"]] * 3, -1)[..., :12]
    model.get_layer("embedding").kernel.assign(kernel)
    model.get_layer("position_embedding").table.assign(table)
    keras_vit.to_checkpoint(model, tmp_path / "flexi.npz", layout="big_vision")

    flexi = keras_vit.from_checkpoint(tmp_path / "flexi.npz", interpolation="bilinear_antialias")
    assert (flexi.config.patch_size, flexi.config.image_size) == ((32, 32), (224, 224))
    at_16 = values_of(flexi.with_patch_size(16, image_size=240))
    wanted = np.concatenate([ref["32to16/flexi_pi"]] * 3, -1)[..., :12]
    np.testing.assert_allclose(at_16["embedding/kernel"], wanted, rtol=0, atol=5e-6 * np.abs(wanted).max())
    assert at_16["position_embedding/table"].shape == (1, 15 * 15, 12)
    at_20 = flexi.with_patch_size(20, image_size=240)
    assert at_20.config.grid_size == (12, 12)
    wanted = golden("posemb_resize").ref["7to12/flexi_linear"]
    np.testing.assert_allclose(values_of(at_20)["position_embedding/table"], wanted, rtol=0, atol=3e-5)
    # Sizes are to be derived from the file's: by way of another, positions would be resized twice.
    detour = values_of(flexi.with_patch_size(30, image_size=240).with_patch_size(20))
    assert np.abs(detour["position_embedding/table"] - wanted).max() > 0.1
    # The interpolation is the model's own: a plain model resizes as the official code does.
    plain = keras_vit.from_checkpoint(tmp_path / "flexi.npz").with_patch_size(20, image_size=240)
    wanted = golden("posemb_resize").ref["7to12/vit_jax_notoken"]
    np.testing.assert_allclose(values_of(plain)["position_embedding/table"], wanted, rtol=0, atol=3e-5)


def test_sizes_that_do_not_fit():
    model = small_vit(**SIZE)
    with pytest.raises(ValueError, match="multiple of the patch size: height 64 .* of 30. The nearest .* 60 or 90"):
        model.with_patch_size(30)
    assert model.with_patch_size(30, image_size=(60, 90)).config.grid_size == (2, 3)
    with pytest.raises(ValueError, match="patch_size must be positive integers, but 0 was given"):
        model.with_patch_size(0)
    with pytest.raises(TypeError, match="patch_size must be an integer or a pair"):
        model.with_patch_size(16.0)
