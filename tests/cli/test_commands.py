"""The command line: what it prints, what it writes, and its exit codes."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit._terminal import megabytes
from keras_vit.cli import main
from tests.test_readme import with_a_head

RECOMMENDED = "augreg/Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.03-res_384"


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A folder of the user's own that has the recommended Ti/16 under its published name: full size, random weights."""
    path = tmp_path / "mirror" / f"{RECOMMENDED}.npz"
    model = keras_vit.ViT_Ti16(image_size=384, classifier_activation=None)
    keras_vit.to_checkpoint(with_a_head(model), path)
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "mirror"))
    return model


@pytest.mark.once
def test_list(run):
    assert "imagenet21k/ViT-B_16" in run("list", "B/16").out
    rows = json.loads(run("list", "B/16", "--json").out)
    assert {row["variant"] for row in rows} == {"ViT-B/16"}
    rows = json.loads(run("list", "--models", "--json").out)
    assert {row["name"] for row in rows} >= set(keras_vit.VARIANTS)
    b16 = next(row for row in rows if row["name"] == "ViT-B/16")
    assert (b16["params"], round(b16["macs"] / 1e9, 3)) == (86_567_656, 17.564)


@pytest.mark.once
def test_info(run, golden):
    out = run("info", golden("alt_opt_target").path).out
    assert "opt/target/" in out and "vit_jax" in out
    info = json.loads(run("info", golden("alt_zero_head").path, "--json").out)
    assert info["config"]["representation_size"] == 48 and "zero" in " ".join(info["oddities"])
    assert json.loads(run("info", "sam/ViT-B_16", "--json").out)["image_size"] == 224


@pytest.mark.once
def test_pretrained_and_predict_from_a_mirror(run, mirror, photo):
    model = keras_vit.ViT_Ti16(pretrained=True)
    assert model.config.image_size == (384, 384) and model.config.classifier_activation == "softmax"
    images = model.preprocess(keras_vit.load_image(photo))
    wanted = keras_vit.decode_predictions(model.predict(images, verbose=0), top=2)[0]
    (found,) = json.loads(run("predict", photo, "--weights", "Ti/16", "--top", 2, "--json").out)
    assert found["image"] == str(photo)
    assert [(entry["id"], entry["name"]) for entry in found["classes"]] == [entry[:2] for entry in wanted]
    # The same computation twice; only the number of images in a batch may differ.
    np.testing.assert_allclose([e["probability"] for e in found["classes"]], [e[2] for e in wanted], rtol=1e-4)
    assert wanted[0][1] in run("predict", photo, "--weights", RECOMMENDED).out
    assert RECOMMENDED in run("download", "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
                              "--imagenet2012-steps_20k-lr_0.03-res_384").out.replace("\n", "")  # fmt: skip


CONVERSIONS = [
    ("mini_token_rep", "vit_jax", "model.keras"),
    ("mini_gap", "vit_jax", "model.weights.h5"),
    ("mini_hybrid_stem", "vit_jax", "model.keras"),
    ("mini_token", "vit_jax", "big_vision"),
    ("mini_gap", "vit_jax", "big_vision"),
    ("bv_map", "big_vision", "model.weights.h5"),
    ("bv_gap_sincos", "big_vision", "model.keras"),
    ("bit_mini_tf", "bit_tf", "bit_bv"),
    ("bit_mini_tf", "bit_tf", "model.keras"),
]


@pytest.mark.parametrize(("name", "layout", "other"), CONVERSIONS)
@pytest.mark.once
def test_convert_there_and_back(run, golden, tmp_path, name, layout, other):
    between = tmp_path / (other if "." in other else f"{other}.npz")
    run("convert", golden(name).path, between, *([] if "." in other else ["--layout", other]))
    run("convert", between, tmp_path / "back.npz", "--layout", layout)
    reference = keras_vit.from_checkpoint(golden(name).path)
    keras_vit.to_checkpoint(reference, tmp_path / "wanted.npz", layout=layout)
    with np.load(tmp_path / "wanted.npz") as wanted, np.load(tmp_path / "back.npz") as got:
        assert sorted(got.files) == sorted(wanted.files)
        for array in wanted.files:
            np.testing.assert_array_equal(got[array], wanted[array], strict=True)


@pytest.mark.once
def test_convert_between_keras_formats(run, golden, tmp_path):
    run("convert", golden("mini_token").path, tmp_path / "a.keras")
    run("convert", tmp_path / "a.keras", tmp_path / "b.weights.h5")
    run("convert", tmp_path / "b.weights.h5", tmp_path / "c.keras")
    first, last = (keras.saving.load_model(tmp_path / name) for name in ("a.keras", "c.keras"))
    assert last.config == first.config
    for wanted, got in zip(first.get_weights(), last.get_weights(), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.once
def test_convert_replaces_nothing_unasked(run, golden, tmp_path):
    target = tmp_path / "model.keras"
    target.write_text("precious")
    assert "exists" in run("convert", golden("mini_token").path, target, code=1).err
    assert target.read_text() == "precious" and list(tmp_path.iterdir()) == [target]
    run("convert", golden("mini_token").path, target, "--overwrite")
    assert isinstance(keras.saving.load_model(target), keras_vit.VisionTransformer)


@pytest.mark.parametrize("target", ["folder", "model.safetensors"])
@pytest.mark.parametrize(
    ("layout", "fields"),
    [
        ("timm", {"gelu": "exact"}),
        ("huggingface", {"gelu": "exact"}),
        ("clip", {"gelu": "quick", "pre_norm": True, "patch_bias": False, "layer_norm_epsilon": 1e-5, "projection": 8}),
    ],
)
@pytest.mark.once
def test_convert_writes_the_layout_and_the_size_that_it_names(run, tiny, tmp_path, layout, fields, target):
    if layout == "clip":
        fields = {**fields, "classes": None}
    path = tmp_path / "made" / target
    text = run("convert", tiny("tiny.keras", **fields), path, "--layout", layout).out
    written = list(path.iterdir()) if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in written)
    assert text == f"Wrote {path} ({megabytes(size)})\n"
    assert json.loads(run("info", path, "--json").out)["layout"] == layout


@pytest.mark.once
def test_commands_say_the_same_of_a_file_that_is_not_there(run):
    assert run("info", "missing.npz", code=1).err == run("convert", "missing.npz", "out.keras", code=1).err


FAILURES = {
    "no file": (("info", "missing.npz"), "missing.npz"),
    "unknown name": (("download", "imagenet21k/ViT-B_17"), "ViT-B_16"),
    "offline": (("download", "sam/ViT-B_16"), "KERAS_VIT_OFFLINE"),
    "no such image": (("predict", "missing.png"), "missing.png"),
    "no such format": (("convert", "a.txt", "b.keras"), "a.txt"),
    "nothing recommended": (("predict", "{photo}", "--weights", "H/14"), "ViT-H_14"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.once
def test_failures_are_one_message_and_exit_code_1(run, photo, failure):
    arguments, word = FAILURES[failure]
    result = run(*(str(photo) if a == "{photo}" else a for a in arguments), code=1)
    assert word in result.err and "Traceback" not in result.err and result.out == ""


@pytest.mark.once
def test_wrong_usage_is_exit_code_2():
    with pytest.raises(SystemExit) as error:
        main(["convert", "one"])
    assert error.value.code == 2


@pytest.mark.once
def test_as_a_program(golden, backend):
    command = [sys.executable, "-m", "keras_vit.cli", "info", str(golden("mini_token").path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["config"]["width"] == 48


def test_the_framework_is_silent(program, golden, tmp_path):
    """TensorFlow and oneDNN report their start, CUDA what it lacks; all before anything of ours runs."""
    out, err, imported = program("convert", golden("mini_token").path, tmp_path / "mini.keras")
    assert "keras" in imported and out.startswith("Wrote") and err == ""


@pytest.mark.parametrize(
    ("first", "second"), [("a.keras", "b.npz"), ("a.npz", "b.weights.h5"), ("a.weights.h5", "b.keras")]
)
@pytest.mark.once
def test_convert_keeps_the_names_of_the_classes(run, tiny, tmp_path, first, second):
    run("convert", tiny(class_names=("[a]", "b", "c")), tmp_path / first)
    run("convert", tmp_path / first, tmp_path / second)
    assert keras_vit.class_names(tmp_path / second) == ["[a]", "b", "c"]


@pytest.mark.once
def test_the_help_of_export_names_the_formats(run):
    out = run("export", "--help").out
    for row in keras_vit.export.FORMATS.values():
        assert row.suffix in out
