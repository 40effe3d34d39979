"""Files in other precisions: as small as they should be, of the dtypes they should have, and close to float32."""

import importlib.util

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.export import FORMATS, PRECISIONS, export
from keras_vit.export.exporting import differences
from keras_vit.export.formats import litert
from keras_vit.export.served_model import Signature
from tests.export.tiny import new_model

for package in ("tensorflow", "ai_edge_litert", "ai_edge_quantizer", "onnx", "onnxruntime", "tf2onnx", "openvino"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}", allow_module_level=True)

if keras.backend.backend() != "tensorflow":
    pytest.skip("from file to file; TensorFlow writes the first", allow_module_level=True)

FILES = {"litert": "litert.tflite", "onnx": "onnx.onnx", "openvino": "openvino.xml"}
IMAGE = (16, 16, 3)

# Root mean square of the differences in parts of that of the answers (around their mean). float16 rounds weights by
# up to 2**-11 = 5e-4; int8 by up to 1/254 of a row's largest weight, which is some 1 % of a typical one, and what the
# weights are multiplied with as much again. The sums of many of those errors partly cancel out.
ERRORS = {"float16": 2e-3, "dynamic_int8": 0.04, "int8": 0.05}
# Bytes in parts of the float32 file's. In so small a model the graph weighs a lot, that of an .xml file even more.
SIZES = {
    # Scales and zero points of int8 are 12 bytes for each output, where its weights are 64.
    "litert": {"float16": 0.53, "dynamic_int8": 0.33, "int8": 0.37},
    "onnx": {"float16": 0.60, "dynamic_int8": 0.45, "int8": 0.46},
    "openvino": {"float16": 0.75, "dynamic_int8": 0.55},
}

# Position table and matrices are large enough to be converted.
CONFIG = ViTConfig(image_size=16, patch_size=4, width=64, depth=2, heads=2, mlp_width=256, classes=10)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder with one model in each format, in float32."""
    folder = tmp_path_factory.mktemp("float32")
    model, rng = VisionTransformer(CONFIG), np.random.default_rng(0)
    for weight in model.weights:
        scale = weight.shape[0] ** -0.5 if "kernel" in weight.path and len(weight.shape) == 2 else 0.3
        weight.assign(rng.normal(float("gamma" in weight.path), scale, weight.shape))
    for name, file in FILES.items():
        FORMATS[name].write(model, Signature.of(model, None, False), folder / file)
    return folder


@pytest.fixture(scope="module")
def changed(sources, tmp_path_factory):
    """A function from a format and a precision to the file; each is made once."""
    folder, made = tmp_path_factory.mktemp("changed"), {}

    def change(format, precision):
        if (format, precision) not in made:
            target = folder / f"{format}-{precision}" / FILES[format]
            target.parent.mkdir()
            change_precision(format, sources / FILES[format], target, precision)
            made[format, precision] = target
        return made[format, precision]

    return change


def images_for(batch, seed=1):
    return np.random.default_rng(seed).uniform(-1, 1, (batch, *IMAGE)).astype("float32")


def change_precision(format, source, target, precision, images=None):
    if images is None and PRECISIONS[format][precision].calibration:
        images = images_for(32, seed=2)
    FORMATS[format].change_precision(source, target, precision, images)


def run(format, path, images):
    (answers,) = FORMATS[format].run(path, images).values()
    return answers


def error_of(answers, expected):
    return np.sqrt(np.mean((answers - expected) ** 2)) / np.std(expected)


def size_of(path):
    return sum(part.stat().st_size for part in path.parent.iterdir() if part.stem == path.stem)


@pytest.mark.parametrize(("format", "precision"), [(format, name) for format, sizes in SIZES.items() for name in sizes])
def test_answers_are_close_to_float32_and_files_are_small_and_alone(format, precision, sources, changed):
    path = changed(format, precision)
    for batch in (1, 7):
        images = images_for(batch)
        expected, answers = run(format, sources / FILES[format], images), run(format, path, images)
        assert answers.dtype == np.float32 and np.std(expected) > 0.3
        assert ERRORS[precision] / 100 < error_of(answers, expected) < ERRORS[precision]  # something did change
    assert size_of(path) < SIZES[format][precision] * size_of(sources / FILES[format])
    assert {*path.parent.iterdir()} == {*FORMATS[format].files(path)}


# The dtypes of weights and of biases; float16 is widened by an operator of its own, when the file is loaded.
WIDTHS = {"float32": ("float32", "float32"), "float16": (None, "float32"), "dynamic_int8": ("int8", "float32")}
WIDTHS["int8"] = "int8", "int32"


@pytest.mark.parametrize("precision", WIDTHS)
def test_what_is_in_a_litert_file(precision, sources, changed):
    """Keras's products are what `tensorflow_module` makes of them: this fails when Keras changes them."""
    graph = litert._Graph(sources / FILES["litert"] if precision == "float32" else changed("litert", precision))
    operators = [(step.kind, [graph.constant(tensor) for tensor in step.reads]) for step, _ in graph.operators]
    names = [name for name, _ in operators]
    for product, count in {"FULLY_CONNECTED": 13, "CONV_2D": 1}.items():
        constants = [inputs[1:] for name, inputs in operators if name == product]
        found = {tuple(None if one is None else one.dtype.name for one in inputs) for inputs in constants}
        assert len(constants) == count and found == {WIDTHS[precision]}
    # What tf.tensordot leaves around each product, and a bias that is added after it.
    assert not {"CUSTOM", "REDUCE_PROD", "GATHER"} & set(names)
    # Residuals; epsilons; the shift of the last normalisation, because those of the others are part of the products
    # behind them; the position embeddings. No bias is among them.
    blocks, norms = 2, 5
    assert names.count("ADD") == 2 * blocks + norms + 1 + 1
    if precision != "float32":  # of what is large, the position embeddings are left in it
        floats = [one for _, inputs in operators for one in inputs if one is not None and one.dtype == "float32"]
        assert {one.size for one in floats if one.size > 256} == {17 * 64}


@pytest.mark.parametrize("format", ["litert", "onnx"])
def test_calibration_decides_the_ranges(format, sources, tmp_path):
    """Ranges of images that are nearly grey cut off what others have, and the check sees it."""
    path = tmp_path / FILES[format]
    change_precision(format, sources / FILES[format], path, "int8", 0.05 * images_for(32, seed=2))
    images = images_for(64)
    expected = run(format, sources / FILES[format], images)
    answers = run(format, path, images)
    assert error_of(answers, expected) > 2 * ERRORS["int8"]
    with pytest.raises(RuntimeError, match="does not return the outputs|names another class"):
        differences([answers], [expected], True, format, "int8")
    good = path.with_stem("good")
    change_precision(format, sources / FILES[format], good, "int8")
    differences([run(format, good, images)], [expected], True, format, "int8")


def test_refused_with_a_reason():
    for format, rows in PRECISIONS.items():
        for precision, row in rows.items():
            if row.reason:
                with pytest.raises(ValueError, match="precision must be one of.*float32") as caught:
                    FORMATS[format].precision(precision)
                assert row.reason in str(caught.value)


def test_equal_constants_are_not_one(tmp_path):
    """The two matrices of a pruned MLP are equal bytes of two shapes, which the converter stores once."""
    model = new_model()
    for name in ("fc1", "fc2"):
        kernel = getattr(model.get_layer("block_0").mlp, name).kernel
        kernel.assign(np.zeros(kernel.shape))
    report = export(model, tmp_path / "a.tflite", precision="dynamic_int8", measure=False)
    assert 0 < report.max_abs_error < report.tolerance
