"""Position embeddings at other resolutions: on arrays, when a file is loaded, between models, and in the graph."""

import math

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import resize_table, sincos2d
from keras_vit.models import weights_by_path
from tests.compute import forward
from tests.tolerances import ENCODED, LOGITS, SAME_FUNCTION

# Our name of the method: the reference's name, with and without a class token.
REFERENCES = {
    "official": ("vit_jax_token", "vit_jax_notoken"),
    "bicubic": ("timm_bicubic_aa", "timm_bicubic_aa_noprefix"),
    "bilinear": ("timm_npz_bilinear", None),
    "bilinear_antialias": (None, "flexi_linear"),
}
# Tables hold N(0, 1) values. PyTorch and JAX compute where to sample in float32: 4e-6 of a sample off at sample 36,
# times differences of up to 6 between neighbours. Measured: 1.1e-5. Another method is 0.7 to 1.5 away.
ON_ARRAYS = 3e-5


def pairs_of_sizes(golden, reference):
    """(old grid, new grid, table, resized) for every pair of sizes that a reference has."""
    case = golden("posemb_resize").ref
    for name, wanted in case.items():
        sizes, _, what = name.partition("/")
        if what == reference:
            old, new = (tuple(map(int, s.split("x"))) if "x" in s else (int(s), int(s)) for s in sizes.split("to"))
            yield sizes, old, new, case[f"{sizes}/in"], wanted


# In the graph, every pair of sizes is compiled on JAX: one up, one down, the quirky one, rectangles.
IN_GRAPH = ("7to12", "14to7", "28to14", "14x14to10x7", "7x12to14x9")


@pytest.mark.parametrize("where", [pytest.param("numpy", marks=pytest.mark.once), "graph"])
@pytest.mark.parametrize("method", REFERENCES)
def test_against_the_originals(golden, method, where):
    quirks = golden("posemb_resize").meta["scipy_zero_edge_pairs"]
    seen, rectangles = 0, 0
    for reference in filter(None, REFERENCES[method]):
        for sizes, old, new, table, wanted in pairs_of_sizes(golden, reference):
            if where == "graph" and sizes not in IN_GRAPH:
                continue
            prefix = wanted.shape[1] - new[0] * new[1]
            table = table[:, table.shape[1] - old[0] * old[1] - prefix :, : wanted.shape[2]]
            if where == "numpy":
                got = resize_table(table, old, new, method)
                assert got.dtype == np.float32
            else:
                got = resize_table(keras.ops.convert_to_tensor(table), old, new, method, keras.ops)
                got = keras.ops.convert_to_numpy(got)
            assert got.shape == wanted.shape
            got, wanted = got.copy(), wanted.copy()
            if sizes in quirks and method == "official":
                # scipy reads the last row and column of these sizes outside the grid and gives zeros. We do not.
                ours, theirs = (a[:, prefix:].reshape(*new, -1) for a in (got, wanted))
                np.testing.assert_allclose(ours[-1, -1], table[0, -1], rtol=0, atol=1e-6)  # aligned corners
                for edge in (np.s_[-1], np.s_[:, -1]):
                    assert not theirs[edge].any() and np.abs(ours[edge]).max() > 0.5
                    theirs[edge] = ours[edge] = 0
            np.testing.assert_allclose(got, wanted, rtol=0, atol=ON_ARRAYS, err_msg=sizes)
            np.testing.assert_array_equal(got[:, :prefix], table[:, :prefix])
            seen, rectangles = seen + 1, rectangles + ("x" in sizes)
    assert seen >= (10 if where == "numpy" else 2) and (rectangles >= 2) == (method == "bicubic")


FINETUNE = {"up": 56, "down": 16, "same": 32, "keep_rep": 48}


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("name", FINETUNE)
def test_loading_for_fine_tuning(golden, name):
    """The original `load_pretrained`: another size, another head, without the pre-logits or with them."""
    case = golden("finetune_load")
    reference = {k.removeprefix(f"{name}/"): v for k, v in case.ref.items() if k.startswith(f"{name}/")}
    model = keras_vit.load(case.path, image_size=FINETUNE[name], classes=5, pre_logits=name == "keep_rep" or None)
    assert (model.config.representation_size is not None) == (name == "keep_rep")
    weights = weights_by_path(model)
    table = keras.ops.convert_to_numpy(weights["position_embedding/table"])
    np.testing.assert_allclose(table, reference["pos_embedding"], rtol=0, atol=1e-6)

    # A new head is zero; the reference was computed with a random one.
    head = model.get_layer("head")
    assert not any(np.any(values) for values in head.get_weights())
    head.set_weights([reference["init/head/kernel"], reference["init/head/bias"]])
    features = keras_vit.feature_extractor(model, ["encoded", "pre_logits", "logits"])
    got = forward(features, reference["images"])
    for result, tolerance in (("encoded", ENCODED), ("pre_logits", ENCODED), ("logits", LOGITS)):
        np.testing.assert_allclose(got[result], reference[result], rtol=0, atol=tolerance)


# Square, rectangles, smaller and larger than the file's 4 x 4 patches of 8 pixels; mixed one after the other.
SIZES = [(48, 48), (16, 24), (32, 32), (32, 56)]


@pytest.fixture(scope="module")
def dynamic(golden):
    return keras_vit.from_checkpoint(golden("mini_token").path, image_size="dynamic")


def test_dynamic_is_the_model_of_that_size(golden, dynamic):
    rng = np.random.default_rng(0)
    assert dynamic.input_shape == (None, None, None, 3)
    for size in SIZES:
        images = rng.uniform(-1, 1, (2, *size, 3)).astype("f4")
        fixed = keras_vit.from_checkpoint(golden("mini_token").path, image_size=size)
        # In predict TensorFlow's graph does not know the size, from the second one on.
        got = dynamic.predict(images, verbose=0)
        np.testing.assert_allclose(got, forward(fixed, images), rtol=0, atol=SAME_FUNCTION)
        if size == (32, 32) and keras.backend.backend() != "jax":
            # Without a graph: the size is known, and it is the table's own.
            np.testing.assert_allclose(forward(dynamic, images), got, rtol=0, atol=SAME_FUNCTION)


@pytest.mark.nightly_elsewhere
def test_dynamic_trains_at_mixed_sizes():
    rng = np.random.default_rng(0)
    config = keras_vit.ViTConfig(
        image_size=32, patch_size=8, width=16, depth=1, heads=2, mlp_width=24, classes=3, dynamic=True
    )
    dynamic = keras_vit.VisionTransformer(config)
    dynamic.get_layer("head").set_weights([rng.normal(size=(16, 3)), np.zeros(3)])
    before = keras.ops.convert_to_numpy(weights_by_path(dynamic)["position_embedding/table"])
    fixed = dynamic.with_image_size((48, 24))
    for model in (fixed, dynamic):
        model.compile(keras.optimizers.SGD(0.1), keras.losses.CategoricalCrossentropy(from_logits=True))
    batches = {size: rng.uniform(-1, 1, (2, *size, 3)).astype("f4") for size in ((48, 24), (16, 16))}
    labels = np.eye(3, dtype="f4")[[1, 2]]

    first = float(dynamic.train_on_batch(batches[48, 24], labels))
    assert abs(first - float(fixed.train_on_batch(batches[48, 24], labels))) < SAME_FUNCTION
    weights, wanted = weights_by_path(dynamic), weights_by_path(fixed)
    for path in weights.keys() - {"position_embedding/table"}:
        got, reference = (keras.ops.convert_to_numpy(w[path]) for w in (weights, wanted))
        np.testing.assert_allclose(got, reference, rtol=0, atol=1e-5, err_msg=path)
    # The step reached the table through the interpolation.
    assert np.abs(keras.ops.convert_to_numpy(weights["position_embedding/table"]) - before).max() > 1e-5
    for _ in range(2):
        dynamic.train_on_batch(batches[16, 16], labels)
        last = float(dynamic.train_on_batch(batches[48, 24], labels))
    assert last < first


@pytest.mark.once
def test_computed_positions():
    """A patch in row y, column x: [sin(w x), cos(w x), sin(w y), cos(w y)], w from 1 to 1/10,000."""
    table = sincos2d(3, 5, 12)
    assert table.shape == (1, 15, 12) and table.dtype == np.float32
    for y in range(3):
        for x in range(5):
            wanted = [f(w * n) for n in (x, y) for f in (math.sin, math.cos) for w in (1, 1e-2, 1e-4)]
            np.testing.assert_allclose(table[0, y * 5 + x], wanted, rtol=0, atol=1e-7)
    in_graph = sincos2d(keras.ops.convert_to_tensor(24), keras.ops.convert_to_tensor(14), 192, keras.ops)
    # Frequencies in float32: 6e-8 of an angle of up to 23.
    np.testing.assert_allclose(keras.ops.convert_to_numpy(in_graph), sincos2d(24, 14, 192), rtol=0, atol=5e-6)
    for width in (4, 10):
        with pytest.raises(ValueError, match=f"8 or more and a multiple of 4, but {width}"):
            sincos2d(3, 3, width)
