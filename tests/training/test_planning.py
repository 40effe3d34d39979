"""The arithmetic of `keras-vit plan`: against figures by hand and against models, and with senseless input."""

import json
import math
import re
from pathlib import Path

import pytest

import keras_vit
from keras_vit import VARIANTS, VisionTransformer, ViTConfig
from keras_vit.layers import skip_initialization
from keras_vit.models import count_macs, variant_config
from keras_vit.training import plan
from keras_vit.training.distribution import split_weights
from keras_vit.training.planning import count_split_weights, memory_bytes, sent_in_an_update, step_memory
from tests.training.distributed import CONFIGS

pytestmark = pytest.mark.once

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = ViTConfig(image_size=64, patch_size=8, width=96, depth=3, heads=3, mlp_width=384, classes=10)
FAMILIES = {
    "swiglu": {"mlp": "swiglu_norm", "attention_norm": True, "attention_bias": "no_key"},
    "registers": {"register_tokens": 4, "layer_scale": 1e-5, "projection": 32, "pooling": "token_avg"},
    "distilled": {"distillation_token": True, "distillation_head": True},
}


@pytest.mark.parametrize("name", ["vit", "hybrid", *FAMILIES])
def test_split_weights_are_counted_as_they_are(name):
    config = CONFIGS[name] if name in CONFIGS else TINY.replace(**FAMILIES[name])
    with skip_initialization():
        model = VisionTransformer(config)
    split = split_weights(model).values()
    assert count_split_weights(config) == sum(math.prod(weight.shape) for weight in split)


def test_memory_of_every_kind():
    base = step_memory(TINY, 8)
    assert (base.weights, base.optimizer) == (base.gradients, 2 * base.weights)
    assert step_memory(TINY, 8, "mixed_bfloat16").weights == 1.5 * base.weights
    assert step_memory(TINY, 8, optimizer="momentum").optimizer == base.weights
    assert step_memory(TINY, 8, accumulate=2).optimizer == 3 * base.weights  # and the sum of the gradients
    tokens, width = 65, 96
    block = 8 * tokens * width + 2 * tokens * 4 * width + 3 * tokens**2
    assert base.activations == 8 * 4 * (3 * block + tokens * width) and base.workspace == 8 * 4 * block
    # With dropout and in 16 bit it is the source's s b h (34 + 5 a s / h), and what the last normalisation takes.
    dropped = step_memory(TINY.replace(dropout=0.1, attention_dropout=0.1), 8, "mixed_bfloat16").activations
    published = tokens * 8 * width * (34 + 5 * 3 * tokens / width)
    assert dropped == 3 * published + 8 * 2 * tokens * width
    assert step_memory(TINY.replace(remat=True), 8).activations == 8 * 4 * (block + 4 * tokens * width)
    fused = step_memory(TINY, 8, fused_attention=True).activations
    assert base.activations - fused == 8 * 4 * 3 * 3 * (tokens**2 - 2 * tokens)
    split = step_memory(TINY, 8, shards=3)
    assert base.weights / 3 < split.weights < base.weights / 2
    assert base.activations / 3 < split.activations < base.activations / 1.5


def test_the_plan_of_the_paper():
    """H/14 with the paper's batch on 8 devices with 80 GB: data parallel, and less memory with remat."""
    answer = plan("ViT-H/14", devices=8, memory="80GB", batch_size=4096, peak_tflops=989)
    assert answer.parameters == 632_045_800 and answer.tokens == 257
    assert (answer.best.shards, answer.best.copies, answer.best.remat, answer.best.fits) == (1, 8, False, "yes")
    assert answer.best.images * answer.best.accumulate == 512
    # 6 operations a multiply-accumulate, at 40 % of 8 * 989e12; all but a per mille of the work is in the blocks.
    assert answer.best.seconds == pytest.approx(6 * 167.3e9 * 4096 / (8 * 989e12 * 0.4), rel=1e-3)
    remat = next(option for option in answer.options if option.shards == 1 and option.remat)
    assert remat.seconds == pytest.approx(answer.best.seconds * 4 / 3, rel=2e-3) and remat.accumulate == 1
    assert remat.sent_bytes == 2 * 7 / 8 * 4 * answer.parameters
    assert "data_parallel()" in str(answer)
    assert json.loads(json.dumps(answer.to_dict()))["best"]["memory"]["peak"] == answer.best.memory.peak


def test_what_a_split_model_sends():
    """By hand, as compiled programs have it."""
    tokens, images = 4 * 65 * 96, 8  # bytes of an image
    # Attention and MLP forwards; backwards queries, keys, values and the MLP's first matrix, or both of them.
    for changes, sums in (({}, 6), ({"remat": True}, 7), (FAMILIES["swiglu"], 7)):
        sent = sent_in_an_update(TINY.replace(**changes), images, 1, 3, 1, "float32")
        # Of a sum over 3 devices each sends 4 / 3, in 3 blocks; whole bytes.
        assert sent == pytest.approx(4 * sums * images * tokens, abs=1)


def test_what_does_not_fit_says_what_would():
    answer = plan("ViT-H/14", memory="8GB")
    assert answer.best is None and "Nothing fits: the least is 13." in str(answer)
    # Of a model too large for a device, a part on each.
    split = plan("DINOv3-7B/16", devices=8, memory="80GB", batch_size=64)
    assert split.best.shards > 1 and f"shards={split.best.shards}" in split.advice()
    assert plan("ViT-L/16", devices=4, memory=80 * 10**9).to_dict() == plan("ViT-L/16", devices=4).to_dict()
    assert memory_bytes(" 80 gb ") == 80 * 10**9 and memory_bytes("1.5GiB") == 3 * 2**29
    for name in VARIANTS:
        assert all(option.memory.workspace > 0 for option in plan(name, devices=2, batch_size=2).options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": 0}, "devices must be a whole number of at least 1, but 0"),
        ({"devices": 10**30}, "devices and batch_size must be at most"),
        ({"devices": 7, "batch_size": 8}, "8 images cannot be divided among 7 devices"),
        ({"memory": "80"}, "memory must be a number with a unit"),
        ({"memory": 80}, "memory must be that of one device"),
        ({"share": 40}, "share must be a number above 0 and at most 1"),
        ({"dtype": "int8"}, "dtype must be one of .*float32.*mixed_bfloat16"),
        ({"model": "ViT-X/16"}, "There is no variant 'ViT-X/16'"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        plan(**{"model": "ViT-B/16", **changes})


def test_kinds_of_models(tmp_path):
    path = tmp_path / "model.keras"
    model = VisionTransformer(TINY)
    model.save(path)
    assert plan(model, batch_size=8).options == plan(TINY, batch_size=8).options == plan(path, batch_size=8).options
    assert plan("glyphs", batch_size=8).parameters == keras_vit.load("glyphs").count_params()
    bit = plan("BiT-R50x1", devices=4, batch_size=8)
    assert [(option.shards, option.remat) for option in bit.options] == [(1, False)]
    assert bit.parameters == 25_549_352 and bit.best.flops == 8 * 6 * count_macs(variant_config("BiT-R50x1"))
    with pytest.raises(TypeError, match="model must be the name of a variant, 'glyphs', the path"):
        plan(3)


def test_the_arithmetic_of_the_page(capsys):
    """The block of code below the table of docs/distribution.md prints the figures that stand in it."""
    page = (REPOSITORY / "docs" / "distribution.md").read_text(encoding="utf-8")
    table, rest = page.split("The paper's batch of 4,096")[1].split("It is this:")
    exec(rest.split("```python\n")[1].split("```")[0], {})
    figures = re.findall(r"[\d.,]+ (?:GB|GFLOP|M|seconds)\b", capsys.readouterr().out)
    assert len(figures) == 2 * (1 + 2 * 7)
    assert [figure for figure in figures if figure not in table] == []
