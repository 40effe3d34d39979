"""The arithmetic of `keras-vit plan`: against figures by hand and against models, and with senseless input."""

import json
import re
from pathlib import Path

import pytest

import keras_vit
from keras_vit import VARIANTS, VisionTransformer, ViTConfig
from keras_vit.training import plan
from keras_vit.training.planning import memory_bytes, step_memory

pytestmark = pytest.mark.once

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = ViTConfig(image_size=64, patch_size=8, width=96, depth=3, heads=3, mlp_width=384, classes=10)


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
    assert split.weights == 4 * (base.weights // 4 // 3)
    assert base.activations / 3 < split.activations < base.activations / 1.5


def test_the_plan_of_the_paper():
    """H/14 with the paper's batch on 8 devices with 80 GB: data parallel, and less memory with remat."""
    answer = plan("ViT-H/14", devices=8, memory="80GB", batch_size=4096)
    assert answer.parameters == 632_045_800 and answer.tokens == 257
    assert (answer.best.shards, answer.best.copies, answer.best.remat, answer.best.fits) == (1, 8, False, "yes")
    assert answer.best.images * answer.best.accumulate == 512
    remat = next(option for option in answer.options if option.shards == 1 and option.remat)
    assert remat.accumulate == 1 and remat.memory.peak < answer.best.memory.peak
    assert "data_parallel()" in str(answer)
    assert json.loads(json.dumps(answer.to_dict()))["best"]["memory"]["peak"] == answer.best.memory.peak


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
    assert bit.parameters == 25_549_352
    with pytest.raises(TypeError, match="model must be the name of a variant, 'glyphs', the path"):
        plan(3)


def test_the_arithmetic_of_the_page(capsys):
    """The block of code below the table of docs/distribution.md prints the figures that stand in it."""
    page = (REPOSITORY / "docs" / "distribution.md").read_text(encoding="utf-8")
    table, rest = page.split("The paper's batch of 4,096")[1].split("It is this:")
    exec(rest.split("```python\n")[1].split("```")[0], {})
    figures = re.findall(r"[\d.,]+ (?:GB|M)\b", capsys.readouterr().out)
    assert len(figures) == 2 * (1 + 2 * 4)
    assert [figure for figure in figures if figure not in table] == []
