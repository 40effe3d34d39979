"""What trainings leave: heads by other names, averages beside raw weights, counters, shards, adapters."""

import json
import warnings

import numpy as np
import pytest
import torch

import keras_vit
from keras_vit.checkpoints import inspect_checkpoint, open_checkpoint
from keras_vit.checkpoints.files import write_safetensors
from keras_vit.checkpoints.torch_file import AVERAGES
from tests.checkpoints.state_dicts import linear, norm, timm, transformers, write
from tests.small_models import small_vit

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:.*does not contain all settings of its model")]

WIDTH = 64


def moved(prefix, shapes):
    return {f"{prefix}{name}": shape for name, shape in shapes.items()}


# A head as trainings name it, beside or in a model without one.
HEADS = {
    "after dropout": timm() | linear("head.1", 5, WIDTH),
    "beside a backbone": moved("backbone.", timm()) | linear("head", 5, WIDTH),
    "beside a model": moved("model.", timm()) | linear("head", 5, WIDTH),
    "beside a vit": moved("vit.", timm()) | linear("head.1", 5, WIDTH),
    "beside an encoder": moved("encoder.", timm()) | linear("classifier", 5, WIDTH),
    "of a module of Lightning": moved("model.backbone.", timm()) | linear("model.head", 5, WIDTH),
    "a classifier in a list": moved("backbone.", timm()) | linear("classifier.0", 5, WIDTH),
    "fc": moved("backbone.", timm()) | linear("fc", 5, WIDTH),
    "of transformers": transformers("vit") | linear("classifier.1", 5, WIDTH),
    "a head of transformers": transformers("vit") | linear("head", 5, WIDTH),
}


@pytest.mark.parametrize("case", HEADS)
def test_the_head_of_a_training(case, tmp_path):
    path = write(tmp_path, HEADS[case])
    model = keras_vit.load(path)
    name = next(name for name in HEADS[case] if name.endswith(".weight") and HEADS[case][name] == (5, WIDTH))
    stored = keras_vit.checkpoints.files.open_file(path)[name].read()
    np.testing.assert_array_equal(np.asarray(model.get_layer("head").get_weights()[0]), stored.T)
    assert not [name for name in inspect_checkpoint(path).unused if "head" in name]


# What looks like a head and is none that can be computed.
NO_HEADS = {
    "two layers": timm() | linear("head.0", 32, WIDTH) | linear("head.2", 5, 32),
    "two layers of one width": timm() | linear("head.0", WIDTH, WIDTH) | linear("head.2", 5, WIDTH),
    "a normalisation": timm() | norm("head.0") | linear("head.1", 5, WIDTH),
    "a batch normalisation": timm() | {"head.0.running_mean": (WIDTH,)} | linear("head.1", 5, WIDTH),
    "of another width": moved("backbone.", timm()) | linear("head.1", 5, 2 * WIDTH),
    "two heads": moved("backbone.", timm()) | linear("head", 5, WIDTH) | linear("classifier", 7, WIDTH),
    "of names of its own": moved("backbone.", timm()) | linear("head.out", 5, WIDTH),
}


NO_HEADS |= {
    "of transformers": transformers("vit") | linear("head.0", 32, WIDTH) | linear("head.2", 5, 32),
    "of a DINOv3": transformers("dinov3_vit") | linear("classifier", 5, WIDTH),
    "of more than the features": timm(head=None) | linear("head", 5, 2 * WIDTH),
}


@pytest.mark.parametrize("case", NO_HEADS)
def test_a_head_that_is_not_known_is_an_error_or_left_out(case, tmp_path):
    path = write(tmp_path / "both", NO_HEADS[case])
    with pytest.raises(ValueError, match="must be one linear layer .*(head|classifier).* Pass include_top=False"):
        keras_vit.load(path)
    shapes = {name: shape for name, shape in NO_HEADS[case].items() if "head" not in name and "classifier" not in name}
    images, options = np.ones((1, 32, 32, 3), "float32"), {"image_size": 32, "include_top": False}
    expected = keras_vit.load(write(tmp_path, shapes), **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        backbone, model = keras_vit.load(path, **options), keras_vit.load(path, classes=3)
    assert case == "of more than the features" or "its head is left out: " in "".join(str(w.message) for w in caught)
    np.testing.assert_array_equal(backbone.predict(images, verbose=0), expected.predict(images, verbose=0))
    assert model.config.classes == 3 and not any(weight.numpy().any() for weight in model.get_layer("head").weights)


@pytest.mark.parametrize("layout", ["vit_jax", "big_vision", "clip"])
def test_a_head_of_two_layers_in_other_layouts(layout, tmp_path):
    of_clip = {"patch_bias": False, "pre_norm": True, "projection": 4, "filter": "bilinear_pillow"}
    small = small_vit(classes=None, **(of_clip if layout == "clip" else {}))
    file = tmp_path / ("model.safetensors" if layout == "clip" else "model.npz")
    keras_vit.to_checkpoint(small, file, layout)
    arrays = {name: array.read() for name, array in keras_vit.checkpoints.files.open_file(file).items()}
    names = ("head.0.weight", "head.2.weight") if layout == "clip" else ("head/Dense_0/kernel", "head/Dense_1/kernel")
    arrays |= dict.fromkeys(names, np.ones((8, 8), "float32"))
    file.unlink()
    write_safetensors(file, sorted(arrays.items())) if layout == "clip" else np.savez(file, **arrays)
    with pytest.raises(ValueError, match="must be one linear layer .*head.* Pass include_top=False"):
        keras_vit.load(file)
    with pytest.warns(UserWarning, match="its head is left out: head"):
        assert keras_vit.load(file, include_top=False).count_params() < keras_vit.load(file, classes=9).count_params()


def test_the_heads_of_self_distillation_are_no_classes(tmp_path):
    both = moved("teacher.backbone.", timm()) | linear("teacher.head.mlp.0", 8, WIDTH) | linear("head.mlp.0", 8, WIDTH)
    with pytest.warns(UserWarning, match="4 arrays are not part of the model, and are not read: head.mlp.0.bias, "):
        assert keras_vit.load(write(tmp_path, both)).config.classes is None


# Arrays that count, beside the model or in it.
COUNTS = {
    "AveragedModel": (moved("module.", timm(head=3)) | {"n_averaged": ()}, ["n_averaged"]),
    "metrics of Lightning": (
        moved("model.", timm(head=3)) | {"train_acc.correct": (), "train_acc.total": (), "val_loss.mean_value": ()},
        ["val_loss.mean_value"],
    ),
    "a vector of counts": (moved("model.", timm(head=3)) | {"val_f1.tp": (3,)}, []),
    "a step": (timm(head=3) | {"step": ()}, []),
}


@pytest.mark.parametrize("prefix", ["", "model."])
def test_weights_of_classes_in_a_loss_are_left_out(prefix, tmp_path):
    shapes = moved(prefix, timm(head=3)) | {"criterion.weight": (3,), "train_loss_fn.weight": (3,)}
    with pytest.warns(UserWarning, match="not part of the model, and are not read: .*train_loss_fn.weight"):
        assert keras_vit.load(write(tmp_path, shapes)).config.classes == 3


def test_weights_that_are_quantized_are_refused(tmp_path):
    arrays = {name: np.ones(shape, "int8" if "qkv.weight" in name else "float32") for name, shape in timm().items()}
    write_safetensors(tmp_path / "model.safetensors", sorted(arrays.items()))
    with pytest.raises(ValueError, match="whole numbers as weights, in .*qkv.weight: it is quantized. Pass the file"):
        keras_vit.load(tmp_path)


@pytest.mark.parametrize("case", COUNTS)
def test_arrays_that_count_are_no_weights(case, tmp_path):
    shapes, floats = COUNTS[case]
    rng = np.random.default_rng(0)
    counts = {name for name in shapes if name.rpartition(".")[2] in ("n_averaged", "correct", "total", "tp", "step")}
    arrays = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    arrays |= {name: np.ones(shapes[name], "int64") for name in counts}
    write_safetensors(tmp_path / "model.safetensors", sorted(arrays.items()))
    assert {*open_checkpoint(tmp_path).unused} == counts | {*floats}
    assert keras_vit.load(tmp_path).config.classes == 3


def test_the_projection_after_a_tower_of_timms(tmp_path):
    """open_clip's timm models with `timm_proj="linear"`, with a bias and without."""
    for i, bias in enumerate((False, True)):
        shapes = moved("visual.trunk.", timm(cls=False, pool=True)) | linear("visual.head.proj", 24, WIDTH, bias)
        vision = {"image_size": 32, "timm_model_name": "vit_base_patch16_siglip_224", "timm_proj": "linear"}
        said = {"model_cfg": {"vision_cfg": vision}, "preprocess_cfg": {"resize_mode": "squash"}}
        path = write(tmp_path / str(i), shapes | {"logit_scale": ()}, open_clip=said)
        model = keras_vit.load(path)
        assert (model.config.projection, model.config.projection_bias) == (24, bias)
        assert model.output_shape == (None, 24)
        keras_vit.to_checkpoint(model, tmp_path / f"{i}_timm", "timm")
        assert keras_vit.load(tmp_path / f"{i}_timm").config.projection == 24


torch_states = {
    "a loss beside the weights": lambda weights, loss: {"model_state_dict": weights, "loss": loss},
    "a number beside a net": lambda weights, loss: {"net": weights, "best_acc": loss, "epoch": 3},
    "one level down": lambda weights, loss: {"checkpoint": {"model_state_dict": weights}, "loss": loss},
    "with an optimizer": lambda weights, loss: {"model_state_dict": weights, "optimizer": {"step": loss}, "loss": loss},
}


@pytest.mark.parametrize("case", torch_states)
def test_a_tensor_at_the_top_of_a_training_state(case, tmp_path):
    weights = {name: torch.zeros(shape) for name, shape in timm(head=3).items()}
    torch.save(torch_states[case](weights, torch.tensor(0.5)), tmp_path / "last.pt")
    assert open_checkpoint(tmp_path / "last.pt").config.classes == 3


def averages_in(folder, form, key):
    raw, averages = ({name: torch.full(shape, x) for name, shape in timm(head=3).items()} for x in (2.0, 1.0))
    if form == "pt":
        torch.save({"model": raw, key: averages, "epoch": 3}, folder / f"{key}.pt")
        return folder / f"{key}.pt"
    both = {f"model.{name}": value.numpy() for name, value in raw.items()}
    both |= {f"{key}.{name}": value.numpy() for name, value in averages.items()}
    write_safetensors(folder / f"{key}.safetensors", sorted(both.items()))
    return folder / f"{key}.safetensors"


@pytest.mark.parametrize("form", ["pt", "safetensors"])
def test_averages_beside_raw_weights(form, tmp_path):
    """One rule for all forms: averages are taken, and loading says what was not."""
    for key in AVERAGES:
        said = " ".join(open_checkpoint(averages_in(tmp_path, form, key)).oddities)
        assert f"the averaged weights in '{key}' are read; state='model'" in said
    path = tmp_path / f"{key}.{form}"
    with pytest.warns(UserWarning, match=f"averaged weights in '{key}' are read; state='model'"):
        model = keras_vit.load(path)
    assert (np.asarray(model.get_layer("head").get_weights()[0]) == 1).all()
    for state, expected in (("model", 2), (key, 1)):  # what is asked for is taken without a word about the rest
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*averaged weights in")
            model = keras_vit.load(path, state=state)
        assert (np.asarray(model.get_layer("head").get_weights()[0]) == expected).all()
        assert inspect_checkpoint(path, state=state).config == model.config
    for read in (keras_vit.load, inspect_checkpoint):
        with pytest.raises(ValueError, match="(but is |state=)'student'"):
            read(path, state="student")


WRAPPERS = ("_orig_mod", "module", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_fpw_module", "_module")


@pytest.mark.parametrize("wrapper", [*WRAPPERS, "_forward_module", "_orig_mod.module", "module._fsdp_wrapped_module"])
def test_prefixes_of_wrappers_go_wherever_they_stand(tmp_path, wrapper):
    """Of compiled, parallel, sharded and recomputed modules: before the model, a block or a layer."""
    plain = keras_vit.load(write(tmp_path / "plain", timm(head=3)))
    own = keras_vit.checkpoints.files.open_file(tmp_path / "plain")
    for i, place in enumerate(("", "blocks.0.", "blocks.1.attn.", "head.")):
        named = {n.replace(place, f"{place}{wrapper}.", 1) if n.startswith(place) else n: a for n, a in own.items()}
        arrays = {name: torch.tensor(array.read()) for name, array in named.items()}
        torch.save({"model": arrays, "epoch": 1}, tmp_path / f"{i}.pt")
        flat = sorted((f"model.{name}", values.numpy()) for name, values in arrays.items())
        write_safetensors(tmp_path / f"{i}.safetensors", flat)
        for ending in ("pt", "safetensors"):
            model = keras_vit.load(tmp_path / f"{i}.{ending}")
            assert all(map(np.array_equal, model.get_weights(), plain.get_weights()))
    twice = write(tmp_path / "twice", timm(head=3) | {f"head.{wrapper}.weight": (3, WIDTH)})
    with pytest.raises(ValueError, match="two arrays .* 'head.weight'"):
        keras_vit.load(twice)


SELF_DISTILLED = {"mlp.0": 8, "last_layer": 9}


@pytest.mark.filterwarnings("ignore:.*holds more than the VisionTransformer:UserWarning")  # heads of self-distillation
@pytest.mark.parametrize("form", ["pt", "safetensors"])
@pytest.mark.parametrize(("first", "second"), [("teacher", "student"), ("target_encoder", "encoder")])
def test_a_teacher_beside_its_student(tmp_path, form, first, second):
    """As DINO's authors save both: the student is wrapped; and I-JEPA's target beside its encoder."""
    parts, start = {}, "backbone." if first == "teacher" else ""
    for value, (name, wrapper) in enumerate(((first, ""), (second, "module."))):
        shapes = moved(start, timm())
        for layer, size in SELF_DISTILLED.items() if start else ():
            shapes |= linear(f"head.{layer}", size, WIDTH)
        parts[name] = {f"{wrapper}{n}": torch.full(shape, value + 1.0) for n, shape in shapes.items()}
    path = tmp_path / f"checkpoint.{form}"
    if form == "pt":
        torch.save({**parts, "epoch": 3}, path)
    else:
        flat = {f"{name}.{n}": values.numpy() for name, part in parts.items() for n, values in part.items()}
        write_safetensors(path, sorted(flat.items()))
    with pytest.warns(UserWarning, match=f"weights in '{first}' are read; state='{second}' reads"):
        taken = keras_vit.load(path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*averaged weights in")
        asked = {state: keras_vit.load(path, state=state) for state in (first, second)}
    for model, value in ((taken, 1), (asked[first], 1), (asked[second], 2)):
        assert (np.asarray(model.get_layer("encoder_norm").get_weights()[0]) == value).all()


def test_a_state_is_a_name_of_a_file_that_has_it(golden, tmp_path):
    with pytest.raises(TypeError, match="state must be a string"):
        keras_vit.load(golden("mini_token").path, state=3)
    with pytest.raises(ValueError, match="starts with state='model': leave state out"):
        keras_vit.load(golden("mini_token").path, state="model")
    keras_vit.load("glyphs").save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match="Leave state='model' out"):
        keras_vit.load(tmp_path / "m.keras", state="model")


def test_shards_of_pytorch(tmp_path):
    weights = {name: torch.randn(shape) for name, shape in timm(head=3).items()}
    names = sorted(weights)
    parts = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, inside in parts.items():
        torch.save({name: weights[name] for name in inside}, tmp_path / file)
    where = {name: file for file, inside in parts.items() for name in inside}
    for path in (tmp_path / "pytorch_model-00002-of-00002.bin", tmp_path):  # a folder without its index
        with pytest.raises(ValueError, match="one of 2 parts of a model.*all parts and pytorch_model.bin.index.json"):
            keras_vit.load(path)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    model = keras_vit.load(tmp_path)
    np.testing.assert_array_equal(model.get_layer("head").get_weights()[0], weights["head.weight"].numpy().T)


def test_files_that_are_named_for_what_they_are(tmp_path):
    adapter = {"base_model.model.vit.encoder.layer.0.attention.attention.query.lora_A.weight": (4, WIDTH)}
    adapter |= {"base_model.model.vit.encoder.layer.0.attention.attention.query.lora_B.weight": (WIDTH, 4)}
    with pytest.raises(ValueError, match="LoRA adapters of PEFT.*merge_and_unload"):
        keras_vit.load(write(tmp_path / "peft", adapter))
    (tmp_path / "flax_model.msgpack").write_bytes(b"\x81\xa6params\x80")
    with pytest.raises(ValueError, match="msgpack file of Flax, which cannot be read"):
        keras_vit.load(tmp_path / "flax_model.msgpack")
