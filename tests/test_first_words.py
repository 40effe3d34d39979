"""What people type first, as timm, Hugging Face and other packages have it: an answer, or what to type here."""

import pytest

import keras_vit

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("name", "variant", "first"),
    [
        ("vit_base_patch16_224", "ViT-B/16", "hf://timm/vit_base_patch16_224.augreg2_in21k_ft_in1k"),
        ("vit_small_patch14_dinov2", "DINOv2-S/14", "hf://timm/vit_small_patch14_dinov2.lvd142m"),
        ("eva02_base_patch14_448", "EVA-02-B/14", "hf://timm/eva02_base_patch14_448.mim_in22k_ft_in22k_in1k"),
        ("deit_base_patch16_224", "DeiT-B/16", "hf://timm/deit_base_patch16_224.fb_in1k"),
        ("VIT-Base-Patch16-224", "ViT-B/16", "hf://timm/vit_base_patch16_224.augreg2_in21k_ft_in1k"),
        ("timm/vit_base_patch16_224.mae", "MAE-B/16", "hf://timm/vit_base_patch16_224.mae"),
        ("google/siglip2-base-patch16-224", "SigLIP2-B/16", "hf://google/siglip2-base-patch16-224"),
    ],
)
def test_names_of_timm_and_hugging_face(name, variant, first):
    with pytest.raises(ValueError, match=f"There is no checkpoint or model '{name}'. Did you mean '{first}'"):
        keras_vit.load(name)
    words = rf"There is no variant '{name}'. Did you mean '{variant}', or for its weights keras_vit.load\('{first}'\)\?"
    with pytest.raises(ValueError, match=words):
        keras_vit.create_model(name)


def test_the_package_of_exports_can_be_called():
    for export in (keras_vit.export, keras_vit.export.export):
        with pytest.raises(ValueError, match="(?s)glyphs.doc.*onnx|onnx.*glyphs.doc"):
            export(keras_vit.load("glyphs"), "glyphs.doc")
