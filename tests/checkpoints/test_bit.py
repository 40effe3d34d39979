"""BiT's two layouts: the numbers of the original, every array back bit for bit, and what is refused."""

import numpy as np
import pytest

import keras_vit
from tests.checkpoints.npz_files import assert_same_bits, read, save
from tests.compute import forward
from tests.tolerances import EARLY, SAME_FUNCTION

pytestmark = pytest.mark.once

CASES = {"bit_mini_tf": "bit_tf", "bit_mini_bv": "bit_bv"}


@pytest.mark.parametrize("name", CASES)
def test_through_the_other_layout(golden, tmp_path, name):
    case, layout = golden(name), CASES[name]
    model = keras_vit.from_checkpoint(case.path)
    (other,) = set(CASES.values()) - {layout}
    keras_vit.to_checkpoint(model, tmp_path / "other.npz", layout=other)
    assert keras_vit.inspect_checkpoint(tmp_path / "other.npz").layout == other
    shapes = {name: array.shape for name, array in read(tmp_path / "other.npz").items()}
    published = next(case for case, layout in CASES.items() if layout == other)
    assert shapes == {name: array.shape for name, array in read(golden(published).path).items()}
    again = keras_vit.from_checkpoint(tmp_path / "other.npz")
    assert again.config == model.config
    keras_vit.to_checkpoint(again, tmp_path / "again.npz", layout=layout)
    assert_same_bits(read(tmp_path / "again.npz"), read(case.path))


def numbered(arrays):
    """As some published files have it: the convolutions of the whole model are counted."""
    convolutions = (f"standardized_conv2d_{i}" for i in range(1, 100))

    def number(name):
        counted = "block2" in name and "standardized_conv2d" in name
        return name.replace("standardized_conv2d", next(convolutions)) if counted else name

    return {number(name): array for name, array in arrays.items()}


def test_numbered_convolutions(golden, tmp_path):
    arrays = read(golden("bit_mini_tf").path)
    assert len(numbered(arrays).keys() - arrays.keys()) == 7
    path = save(tmp_path / "file.npz", numbered(arrays))
    assert keras_vit.inspect_checkpoint(path).dialect == "numbered"
    keras_vit.to_checkpoint(keras_vit.from_checkpoint(path), tmp_path / "back.npz")
    assert_same_bits(read(tmp_path / "back.npz"), arrays)

    # Two for one place: which of them is meant?
    path = save(tmp_path / "two.npz", arrays | numbered(arrays))
    with pytest.raises(ValueError, match="'bit_tf'.*differ only in a number"):
        keras_vit.from_checkpoint(path)


def test_heads(golden, tmp_path):
    case = golden("bit_mini_tf")
    x = case.ref["images"]
    features = keras_vit.from_checkpoint(case.path, include_top=False, pooling="avg")
    np.testing.assert_allclose(forward(features, x), case.ref["pre_logits"], rtol=0, atol=EARLY)
    assert keras_vit.from_checkpoint(case.path, include_top=False).output_shape == (None, None, None, 256)
    assert not forward(keras_vit.from_checkpoint(case.path, classes=3), x).any()
    probabilities = forward(keras_vit.from_checkpoint(case.path, classifier_activation="softmax"), x)
    wanted = np.exp(case.ref["logits"]) / np.exp(case.ref["logits"]).sum(-1, keepdims=True)
    np.testing.assert_allclose(probabilities, wanted, rtol=0, atol=SAME_FUNCTION)

    arrays = read(case.path)
    headless = {name: array for name, array in arrays.items() if "head/" not in name or "norm" in name}
    assert len(headless) == len(arrays) - 2
    model = keras_vit.from_checkpoint(save(tmp_path / "headless.npz", headless))
    assert model.config.classes is None and model.output_shape == (None, 256)
    keras_vit.to_checkpoint(model, tmp_path / "back.npz")
    assert_same_bits(read(tmp_path / "back.npz"), headless)


def test_what_the_layouts_cannot_say(golden, tmp_path):
    bit = keras_vit.from_checkpoint(golden("bit_mini_tf").path)
    vit = keras_vit.from_checkpoint(golden("mini_token").path)
    zeros = keras_vit.BiT(bit.config.replace(pool_padding="zeros"))
    for model, layout, message in (
        (bit, "vit_jax", r"one of \['bit_tf', 'bit_bv'\] for a BiT, but 'vit_jax'"),
        (vit, "bit_tf", r"one of .*'vit_jax'.* for a VisionTransformer, but 'bit_tf'"),
        (bit.folded(), None, "folded\\(\\) has standardised"),
        (zeros, "bit_bv", "pool_padding='-inf' instead of 'zeros'"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.to_checkpoint(model, tmp_path / "file.npz", layout=layout)
    assert list(tmp_path.iterdir()) == []
    keras_vit.to_checkpoint(zeros, tmp_path / "file.npz")
