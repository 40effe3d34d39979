"""Multiply-accumulate operations of every variant, as counted in the original code."""

import pytest

import keras_vit
from keras_vit.models import count_macs, variant_config

pytestmark = pytest.mark.once

# In units of 1e9, with 1,000 classes: at 224 pixels and at 384 (H/14: 392).
GMACS = {
    "ViT-Ti/16": (1.254, 4.682),
    "ViT-S/32": (1.143, 3.443),
    "ViT-S/16": (4.599, 15.490),
    "ViT-B/32": (4.409, 13.044),
    "ViT-B/16": (17.564, 55.484),
    "ViT-B/8": (78.148, 294.045),
    "ViT-L/32": (15.378, 45.276),
    "ViT-L/16": (61.555, 191.066),
    "ViT-H/14": (167.295, 544.952),
    "R+ViT-Ti/16": (0.434, 1.327),
    "R26+ViT-S/32": (3.464, 10.264),
    "R26+ViT-B/32": (6.711, 19.808),
    "R50+ViT-B/16": (21.535, 67.156),
    "R50+ViT-L/32": (19.413, 57.136),
}


@pytest.mark.parametrize("variant", GMACS)
def test_macs_of_the_original(variant):
    (row,) = (row for row in keras_vit.list_models() if row["name"] == variant)
    larger = variant_config(variant, image_size=392 if variant == "ViT-H/14" else 384)
    # The published figures are rounded to three decimals.
    assert row["macs"] / 1e9 == pytest.approx(GMACS[variant][0], abs=6e-4)
    assert count_macs(larger) / 1e9 == pytest.approx(GMACS[variant][1], abs=6e-4)


def test_every_variant_is_listed():
    rows = keras_vit.list_models()
    assert {row["name"] for row in rows} == {*keras_vit.VARIANTS, *keras_vit.BIT_VARIANTS}
    assert all(row["macs"] > row["params"] / 100 > 0 for row in rows)
    assert "ViT-B/16" in str(rows) and "17.56 G" in str(rows)
