"""The numbers of the original code: every reference case of vit_jax, forward and backward."""

import warnings

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import open_checkpoint
from keras_vit.models import weights_by_path
from tests.compute import forward, gradients, relative_error
from tests.tolerances import EARLY, ENCODED, GRADIENTS, LOGITS

CASES = (
    "mini_token",
    "mini_token_rep",
    "mini_gap",
    "mini_nohead",
    "mini_nonsquare",
    "alt_linen",
    "alt_opt_target",
    "alt_zero_head",
    "alt_bf16_void",
    "probe_ln_eps",
)
# What the reference files call a result: our name, and how near we have to come.
RESULTS = {
    "stem": ("stem", EARLY),
    "tokens_in": ("embedded", EARLY),
    "block0": ("block_0", EARLY),
    "encoded": ("encoded", ENCODED),
    "pre_logits": ("pre_logits", ENCODED),
    "logits": ("logits", LOGITS),
}


def load(case, **options):
    size = tuple(case.meta["image_hw"])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*head.*all zeros")  # said aloud for alt_zero_head, tested elsewhere
        return keras_vit.from_checkpoint(case.path, image_size=size, **options)


def errors(model, reference):
    """Largest absolute error of each result that the reference has."""
    wanted = {name: RESULTS[name][0] for name in RESULTS if name in reference}
    outputs = forward(keras_vit.feature_extractor(model, list(wanted.values())), reference["images"])
    outputs = {name: outputs[ours] for name, ours in wanted.items()}
    assert {name: y.shape for name, y in outputs.items()} == {name: reference[name].shape for name in wanted}
    return {name: float(np.abs(outputs[name] - reference[name]).max()) for name in wanted}


@pytest.mark.parametrize("name", CASES)
def test_forward(golden, name, record_property):
    case = golden(name)
    model = load(case)
    found = errors(model, case.ref)
    print(name, found)
    record_property("errors", found)
    assert {"stem", "tokens_in", "block0", "encoded", "pre_logits"} <= found.keys()
    assert ("logits" in found) == (name != "mini_nohead")
    assert {name: error for name, error in found.items() if not error <= RESULTS[name][1]} == {}

    # Inside block 0: what the attention adds.
    block = model.get_layer("block_0")
    attended = block.attention(block.norm1(case.ref["tokens_in"]))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(attended), case.ref["block0_attn"], rtol=0, atol=EARLY)


# A wrong choice that other ports make, the case that shows it, and the results that must fail because of it.
MISTAKES = {
    "exact GELU": ("mini_token", {"gelu": "exact"}, {"block0", "encoded", "pre_logits", "logits"}),
    "epsilon of PyTorch": ("probe_ln_eps", {"layer_norm_epsilon": 1e-5}, {"block0", "encoded", "pre_logits", "logits"}),
    "epsilon of Hugging Face": ("probe_ln_eps", {"layer_norm_epsilon": 1e-12}, {"encoded", "pre_logits", "logits"}),
    "rotated grid": ("mini_nonsquare", {"image_size": (56, 32)}, {"stem", "tokens_in"}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.once
def test_the_tolerances_catch(golden, mistake):
    name, change, must_fail = MISTAKES[mistake]
    case = golden(name)
    right = load(case)
    wrong = keras_vit.VisionTransformer(right.config.replace(**change))
    wrong.set_weights(right.get_weights())
    reference = dict(case.ref)
    if mistake == "rotated grid":
        reference["images"] = reference["images"].swapaxes(1, 2)
        reference["stem"] = reference["stem"].swapaxes(1, 2)
    found = errors(wrong, reference)
    assert must_fail <= {name for name, error in found.items() if not error <= RESULTS[name][1]}


def cross_entropy(labels):
    """-mean_b sum_c onehot * log_softmax(logits), as the reference."""
    ops = keras.ops
    return lambda logits: -ops.mean(ops.sum(ops.convert_to_tensor(labels) * ops.log_softmax(logits), axis=-1))


@pytest.mark.parametrize("remat", [False, True])
def test_gradients(golden, remat, record_property):
    case = golden("grad_token_rep")
    model = load(case, remat=remat)
    loss, grads = gradients(model, case.ref["images"], cross_entropy(case.ref["labels"]), training=True)
    np.testing.assert_allclose(loss, case.ref["loss"], rtol=0, atol=LOGITS)

    rows = open_checkpoint(case.path).layout.rows(model.config)
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
    print("grad max", max(found.values()), "zeros max", max(zeros.values()))
    assert len(zeros) == model.config.depth
    assert {name: error for name, error in {**found, **zeros}.items() if not error <= GRADIENTS} == {}
