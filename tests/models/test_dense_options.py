"""What Keras's options do to models of masks and depth: adapters, int8, freezing, other dtypes; also from files."""

import keras
import numpy as np
import pytest

from keras_vit import training
from keras_vit.models import count_macs
from tests import small_models as small
from tests.compute import forward
from tests.tolerances import SAME_FUNCTION

pytestmark = pytest.mark.once

KINDS = {
    "EoMT": small.small_eomt_config(),
    "LinearSegmenter": small.small_linear_segmenter_config(blocks=(0, 1)),
    "DPT": small.small_depth_model_config(),
    "LinearDepth": small.small_linear_depth_config(),
    "MultiTaskDPT": small.small_multi_task_config(),
    "Depth Anything 3": small.small_depth_model_config(design="depth_anything_3", metric=False),
}
# How far answers may be off, in parts of their range. Adapters and freezing: the order of sums. int8 rounds weights and
# what they are multiplied with by 1/254 of the largest, float16 and bfloat16 round by 2**-11 and 2**-8, all in some
# twenty products one after another. float64 differs by what float32 lacks.
OPTIONS = {"lora": SAME_FUNCTION, "frozen": 0.0, "int8": 0.12, "mixed_float16": 0.01, "mixed_bfloat16": 0.08}
OPTIONS["float64"] = SAME_FUNCTION
# Each option with a model of masks and one of depth, adapters and int8 with all; on other backends what differs there.
CASES = [(k, o) for k in KINDS for o in OPTIONS if k in ("EoMT", "LinearDepth") or o in ("lora", "int8")]
BACKENDS_DIFFER = [("EoMT", "mixed_bfloat16"), ("EoMT", "float64"), ("LinearDepth", "int8")]
IMAGES = small.images_for(KINDS["EoMT"])


def made(kind, dtype=None):
    return small.model_of(KINDS[kind], dtype=dtype)


def answers(model, images=IMAGES):
    found = forward(model, images)
    return found if isinstance(found, dict) else {"answer": found}


def changed(kind, option):
    model = made(kind)
    if option == "lora":
        training.add_lora(model, rank=2)
        rng = np.random.default_rng(2)
        for weight in model.weights:
            if "lora_kernel_b" in weight.path:
                weight.assign(rng.normal(0, 0.4, weight.shape))
    elif option == "frozen":
        training.freeze(model, "block_*")
    elif option == "int8":
        model.quantize("int8")
    else:
        model = model.with_config(dtype=option)
    return model


def off(found, wanted):
    """The largest difference in parts of the range."""
    return max(np.abs(found[name] - value).max() / np.ptp(value) for name, value in wanted.items())


@pytest.mark.each
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")  # Keras's, of any model
@pytest.mark.parametrize(("kind", "option"), CASES)
def test_an_option(kind, option, tmp_path, backend):
    if backend != "torch" and (kind, option) not in BACKENDS_DIFFER:
        pytest.skip("as on torch")
    if (backend, option) == ("jax", "float64"):
        pytest.skip("JAX has float64 where its own setting says so")
    model = changed(kind, option)
    found = answers(model)
    wanted = answers(training.merge_lora(model) if option == "lora" else made(kind))
    assert min(np.ptp(value) / np.abs(value).max() for value in wanted.values()) > 0.02
    assert off(found, wanted) <= OPTIONS[option]
    exact = "float64" if option == "float64" else "float32"
    symbolic = model.output if isinstance(model.output, dict) else {"answer": model.output}
    assert {value.dtype for value in found.values()} == {np.dtype(exact)}
    assert {tensor.dtype for tensor in symbolic.values()} == {exact}
    if option == "lora":
        assert off(found, answers(made(kind))) > 0.01  # the adapters do something
    if option == "frozen":
        assert not any("block_" in weight.path for weight in model.trainable_weights) and model.trainable_weights
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert off(answers(again), found) <= 1e-6
    assert len(again.trainable_weights) == len(model.trainable_weights)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="backbone must have patch_drop=0.0, but has 0.5"):
        small.small_eomt_config(backbone=small.small_backbone_config(patch_drop=0.5))
    for count, config in ((count_macs, KINDS["DPT"]), (count_macs, small.small_text_encoder_config())):
        with pytest.raises(TypeError, match="config must be a ViTConfig or a BiTConfig, but .* was given"):
            count(config)


@pytest.mark.once
@pytest.mark.parametrize("field", [{"bins": 7}, {"min_depth": 0.1}, {"max_depth": 9.0}, {"depth_relu": False}], ids=str)
def test_an_option_of_depth_needs_depth(field):
    (name,) = field
    with_depth = KINDS["MultiTaskDPT"]
    others = {"tasks": ("normals",), "classes": None, "bins": 256}
    assert with_depth.replace(**field) != with_depth and with_depth.replace(**others).bins == 256
    with pytest.raises(ValueError, match=f"^{name}=.* for the task 'depth', but the task is 'normals': give {name}="):
        with_depth.replace(**others | field)
    if name in ("min_depth", "max_depth"):
        with pytest.raises(ValueError, match=f"^{name}=.*, but the design is 'depth_anything_3': give {name}="):
            KINDS["Depth Anything 3"].replace(**field)
