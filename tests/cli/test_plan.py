"""`keras-vit plan`: the table, the data, and what makes no sense."""

import json

import pytest

pytestmark = pytest.mark.once


def test_table_and_json(run):
    arguments = ("plan", "ViT-H/14", "--devices", 8, "--memory", "80GB", "--batch", 4096, "--peak-tflops", 989)
    out = run(*arguments).out
    assert "632,045,800" in out and "accumulate" in out and "Best: training.data_parallel()" in out
    answer = json.loads(run(*arguments, "--json").out)
    assert answer["best"] == answer["options"][0] and answer["memory_bytes"] == 80 * 10**9
    # Attention that is never written takes less, and so does a smaller image.
    for less in (("--fused-attention",), ("--image-size", 112)):
        smaller = json.loads(run(*arguments, *less, "--json").out)
        assert smaller["best"]["memory"]["activations"] / smaller["best"]["images"] < (
            answer["best"]["memory"]["activations"] / answer["best"]["images"]
        )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["ViT-X/16"], 1, "There is no variant 'ViT-X/16'"),
        (["ViT-B/16", "--memory", "80"], 1, "memory must be a number with a unit"),
        (["ViT-B/16", "--memory", "80 apples"], 1, "memory must be a number with a unit"),
        (["ViT-B/16", "--share", "1.5"], 1, "share must be a number above 0 and at most 1"),
        (["ViT-B/16", "--dtype", "bfloat16"], 1, "dtype must be one of ('float32', 'mixed_bfloat16')"),
        (["ViT-B/16", "--devices", "0"], 2, "must be at least 1"),
        (["ViT-B/16", "--batch", "-1"], 2, "must be at least 1"),
        ([], 2, "VARIANT"),
    ],
)
def test_what_makes_no_sense_is_refused(run, arguments, code, message):
    assert message in run("plan", *arguments, code=code).err


def test_launch_is_gone_and_says_what_starts_processes(run):
    assert "torchrun --nproc-per-node N -m keras_vit.cli" in run("launch", 4, "finetune", code=2).err
