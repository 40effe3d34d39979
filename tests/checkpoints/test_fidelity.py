"""The numbers of the original codes: every reference case forward, at another size and backward, and wrong choices."""

import re
import warnings

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import weights_by_path
from tests.checkpoints.npz_files import assert_same_bits, read
from tests.compute import deviations, forward, gradients, relative_error
from tests.tolerances import EARLY, ENCODED, GRADIENTS, LOGITS

# Of a map of values up to 20 that has gone through convolutions over hundreds of channels: float32 keeps 7 digits. The
# maps after BiT's root reach 30, where float32 has steps of 2e-6; the reference itself is 1.3e-5 away from float64.
MAP, BIT_STEM = 1e-4, 5e-5
# What the reference files call a result: our name, and how near we have to come. Of CLIP in timm's names the projection
# is called logits; in Hugging Face's models an answer can be what was pooled.
END = {"encoded": ("encoded", ENCODED), "pre_logits": ("pre_logits", ENCODED), "logits": ("logits", LOGITS)}
VIT_JAX = {"stem": ("stem", EARLY), "tokens_in": ("embedded", EARLY), "block0": ("block_0", EARLY), **END}
HYBRID = {"stem": ("stem", MAP), "tokens_in": ("embedded", MAP), "block0": ("block_0", MAP), **END}
BIG_VISION = {
    **{"stem": ("stem", EARLY), "with_posemb": ("embedded", EARLY), "block0": ("block_0", EARLY)},
    **{"head_input": ("pooled", ENCODED), **END},
}
BIT = {"stem": ("stem", BIT_STEM), "pre_logits": ("pre_logits", EARLY), "logits": ("logits", LOGITS)}
FAMILY = {
    **{"tokens_in": ("embedded", ENCODED), "block0": ("block_0", ENCODED), "block1": ("block_1", ENCODED)},
    **{"last_block": ("block_{last}", ENCODED), "encoded": ("encoded", ENCODED)},
    **{"pooled": ("pooled", LOGITS), "projection": ("projection", LOGITS), "logits": ("logits", LOGITS)},
}
ANSWERS = ("logits", "projection", "pooled", "pre_logits")
# The reference cases: their results, and those that may be missing.
CASES = {
    **dict.fromkeys(("mini_token", "mini_token_rep", "mini_gap", "mini_nonsquare", "alt_linen"), (VIT_JAX, ())),
    **dict.fromkeys(("alt_opt_target", "alt_zero_head", "alt_bf16_void", "probe_ln_eps"), (VIT_JAX, ())),
    "mini_nohead": (VIT_JAX, ("logits",)),
    **dict.fromkeys(
        ("mini_hybrid", "mini_hybrid_stem", "probe_gn_eps", "probe_stdconv_eps"),
        (HYBRID, ("tokens_in", "block0", "pre_logits")),
    ),
    **dict.fromkeys(("bv_gap", "bv_gap_sincos", "bv_map", "bv_scan_map"), (BIG_VISION, ())),
    **dict.fromkeys((f"bit_mini_{layout}-{size}" for layout in ("tf", "bv") for size in (None, 64)), (BIT, ())),
    **dict.fromkeys(
        (
            *("fam_timm_vit", "fam_pth_zip", "fam_timm_deit_distilled", "fam_timm_dinov2_reg4"),
            *("fam_timm_clip_quickgelu", "fam_timm_siglip2", "fam_timm_eva02_base", "fam_hf_vit_cls"),
            *("fam_hf_dinov2_giant_cls", "fam_hf_dinov3", "fam_hf_clip_full", "fam_hf_siglip_full"),
        ),
        (FAMILY, ("block1", *ANSWERS)),
    ),
    "fam_timm_hybrid": (FAMILY, ("block0", "block1", "last_block", "pooled", "projection")),
}


def load(case, **options):
    """The model of a case at its size; what a file does not tell is tested elsewhere."""
    options = {"image_size": case.meta.get("image_hw") and tuple(case.meta["image_hw"])} | options
    files = (case.folder / name for name in ("ckpt.npz", "model.safetensors", "model.pth"))
    path = next(file for file in files if file.is_file())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*head.*all zeros|.* does not contain all settings of its model")
        return keras_vit.from_checkpoint(path, **options)


def errors(model, reference, results, ending=""):
    """Largest error of each result that the reference has; of families in standard deviations where these exceed 1."""
    last = getattr(model.config, "depth", 0) - 1
    names = {name: ours.format(last=last) for name, (ours, _) in results.items() if f"{name}{ending}" in reference}
    outputs = forward(keras_vit.feature_extractor(model, list(names.values())), reference[f"images{ending}"])
    found = {}
    for name, ours in names.items():
        wanted = reference[f"{name}{ending}"]
        assert outputs[ours].shape == wanted.shape, name
        difference = float(np.abs(outputs[ours] - wanted).max())
        found[name] = deviations(outputs[ours], wanted) if results is FAMILY else difference
    return found


def too_far(found, results):
    return {name: error for name, error in found.items() if not error <= results[name][1]}


# Together they have all layers; the other cases run on each backend in `make test-nightly`.
ON_EACH = (
    *("mini_token_rep", "mini_hybrid", "bv_gap_sincos", "bv_map", "bit_mini_tf-None", "fam_timm_deit_distilled"),
    *("fam_timm_dinov2_reg4", "fam_timm_clip_quickgelu", "fam_timm_eva02_base", "fam_hf_dinov2_giant_cls"),
    *("fam_hf_dinov3", "fam_hf_siglip_full"),
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ON_EACH else pytest.mark.nightly_elsewhere) for name in CASES]
)
def test_forward(golden, name, record_property):
    results, optional = CASES[name]
    case, (_, _, size) = golden(name.partition("-")[0]), name.partition("-")
    model = load(case, **({"image_size": None if size == "None" else 64} if size else {}))
    for computed in (model, model.folded()) if results is BIT else (model,):
        found = errors(computed, case.ref, results)
        record_property("errors", found)
        assert results.keys() - {*optional} <= found.keys() and too_far(found, results) == {}
    # What the model answers with is the last of them.
    answer = next(result for result in ANSWERS if result in case.ref)
    assert model.output_shape[1:] == case.ref[answer].shape[1:]
    if results is BIT:
        assert type(model) is keras_vit.BiT and model.count_params() == case.meta["n_params"]
        assert model.config.dynamic == (size == "None")
    if "block0_attn" in case.ref:  # inside block 0: what the attention adds
        block = model.get_layer("block_0")
        tokens = case.ref["with_posemb" if results is BIG_VISION else "tokens_in"]
        attended = keras.ops.convert_to_numpy(block.attention(block.norm1(tokens)))
        np.testing.assert_allclose(attended, case.ref["block0_attn"], rtol=0, atol=EARLY)
    if "logits_2d" in case.ref:  # a head on every patch
        logits = forward(load(case, pooling="none"), case.ref["images"]).reshape(case.ref["logits_2d"].shape)
        np.testing.assert_allclose(logits, case.ref["logits_2d"], rtol=0, atol=LOGITS)


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("fam_")])
def test_forward_at_another_size(golden, name, record_property):
    case = golden(name)
    if "images_resized" not in case.ref:
        pytest.skip("the reference has one size")
    found = errors(load(case, image_size=case.ref["images_resized"].shape[1:3]), case.ref, FAMILY, "_resized")
    record_property("errors", found)
    assert "tokens_in" in found and found.keys() & {"encoded", "logits"} and too_far(found, FAMILY) == {}


# Cases in published names; others come back in those (`test_round_trip`).
NPZ = [name for name in CASES if re.match("mini_(?!hybrid$)|probe_|bv_|bit_.*-None|alt_zero", name)]


@pytest.mark.parametrize(
    ("name", "dtype"),
    # Weights are float32 under a mixed policy, on every backend.
    [pytest.param(name, None, marks=pytest.mark.once) for name in (*NPZ, "grad_token_rep", "finetune_load")]
    + [pytest.param("mini_hybrid", None, marks=pytest.mark.nightly_elsewhere), ("mini_token", "mixed_bfloat16")],
)
def test_written_back_bit_for_bit(golden, tmp_path, name, dtype):
    case = golden(name.partition("-")[0])
    model, options = load(case, dtype=dtype, **({"image_size": None} if "bit" in name else {})), {}
    if name.startswith("bv_"):
        options = {"layout": "big_vision", "stack": name == "bv_scan_map"}
    elif name.startswith("bit_"):
        options = {"layout": "bit_tf" if "tf" in name else "bit_bv"}
    keras_vit.to_checkpoint(model, tmp_path / "back.npz", **options)
    assert_same_bits(read(tmp_path / "back.npz"), read(case.path, "params/"))
    assert keras_vit.checkpoints.open_checkpoint(tmp_path / "back.npz").config == model.config


def cross_entropy(labels):
    """-mean_b sum_c onehot * log_softmax(logits), as the reference."""
    ops = keras.ops
    return lambda logits: -ops.mean(ops.sum(ops.convert_to_tensor(labels) * ops.log_softmax(logits), axis=-1))


@pytest.mark.parametrize(
    "name, remat",
    [
        ("grad_token_rep", False),
        pytest.param("grad_token_rep", True, marks=pytest.mark.nightly_elsewhere),
        ("grad_hybrid", False),
    ],
)
def test_gradients(golden, name, remat, record_property):
    case = golden(name)
    model = load(case, remat=remat)
    loss, grads = gradients(model, case.ref["images"], cross_entropy(case.ref["labels"]), training=True)
    np.testing.assert_allclose(loss, case.ref["loss"], rtol=0, atol=LOGITS)

    rows = keras_vit.checkpoints.LAYOUTS["vit_jax"].rows(model.config)
    by_path = {path: weight.path for path, weight in weights_by_path(model).items()}
    wanted = {name.removeprefix("grad/"): g for name, g in case.ref.items() if name.startswith("grad/")}
    assert wanted.keys() == {row.name for row in rows} and len(grads) == len(rows)
    found, zeros = {}, {}
    for row in rows:
        got, reference = grads[by_path[row.path]], wanted[row.name]
        if row.name.endswith("key/bias"):
            # The same number added to all scores of a query changes no softmax, so this gradient is zero in exact
            # arithmetic and nothing but rounding errors here and there. It is measured by the query's bias.
            scale = np.linalg.norm(wanted[row.name.replace("key", "query")])
            zeros[row.name] = float(max(np.linalg.norm(got), np.linalg.norm(reference)) / scale)
        else:
            found[row.name] = relative_error(got.reshape(reference.shape), reference)
    record_property("errors", {**found, **zeros})
    assert len(zeros) == model.config.depth
    assert {name: error for name, error in {**found, **zeros}.items() if not error <= GRADIENTS} == {}
