"""Files in other precisions: as small as they should be, of the dtypes they should have, and close to float32."""

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_vit.export.precision import PRECISIONS, change_precision
from keras_vit.export.precisions import litert, litert_file
from keras_vit.export.precisions.rounding import batches, symmetric_int8

for package in ("tensorflow", "ai_edge_litert", "onnx", "onnxruntime", "tf2onnx", "openvino"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}", allow_module_level=True)

if os.environ.get("KERAS_BACKEND", "torch") != "torch":
    pytest.skip("from file to file, without Keras: once is enough", allow_module_level=True)

FILES = {"litert": "litert.tflite", "onnx": "onnx.onnx", "openvino": "openvino.xml"}
MADE = [(format, name) for format in FILES for name, row in PRECISIONS[format].items() if not row.reason]
REFUSED = [(format, name) for format, rows in PRECISIONS.items() for name, row in rows.items() if row.reason]
CHANGED = [(format, name) for format, name in MADE if name != "float32"]
IMAGE = (16, 16, 3)

# Root mean square of the differences in parts of that of the answers (around their mean). float16 rounds weights by
# up to 2**-11 = 5e-4; int8 by up to 1/254 of a row's largest weight, which is some 1 % of a typical one, and what the
# weights are multiplied with as much again. The sums of many of those errors partly cancel out.
ERRORS = {"float32": 1e-5, "float16": 2e-3, "dynamic_int8": 0.06, "int8": 0.08}
# Bytes in parts of the float32 file's. In so small a model the graph weighs a lot, that of an .xml file even more.
SIZES = {
    "litert": {"float16": 0.52, "dynamic_int8": 0.30, "int8": 0.33},
    "onnx": {"float16": 0.75, "dynamic_int8": 0.62, "int8": 0.72},
    "openvino": {"float16": 0.75, "dynamic_int8": 0.55},
}

# Position table and matrices are large enough to be converted. The files come from one process, whatever the backend
# of this one is.
WRITE = """
import sys
from pathlib import Path
import numpy as np
from keras_vit import VisionTransformer, ViTConfig
from keras_vit.export.signature import Signature
from keras_vit.export.writers import litert, onnx, openvino

folder = Path(sys.argv[1])
config = ViTConfig(image_size=16, patch_size=4, width=64, depth=2, heads=2, mlp_width=256, classes=10)
model, rng = VisionTransformer(config), np.random.default_rng(0)
for weight in model.weights:
    scale = weight.shape[0] ** -0.5 if "kernel" in weight.path and len(weight.shape) == 2 else 0.3
    weight.assign(rng.normal(float("gamma" in weight.path), scale, weight.shape))
signature = Signature.of(model, None, False)
litert.write(model, signature, folder / "litert.tflite")
onnx.write(model, signature, folder / "onnx.onnx")
openvino.write(model, signature, folder / "openvino.xml")
litert.write(model, Signature.of(model, 3, False), folder / "three.tflite")
for weight in model.weights:
    if weight.path.endswith("bias"):
        weight.assign(np.zeros(weight.shape))
litert.write(model, signature, folder / "unbiased.tflite")
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder with one model in each format, in float32."""
    folder = tmp_path_factory.mktemp("float32")
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(folder)], env=environment, capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def changed(sources, tmp_path_factory):
    """A function from a format and a precision to the file; each is made once."""
    folder, made = tmp_path_factory.mktemp("changed"), {}

    def change(format, precision):
        if (format, precision) not in made:
            target = folder / f"{format}-{precision}" / FILES[format]
            target.parent.mkdir()
            images = calibration() if PRECISIONS[format][precision].calibration else None
            change_precision(format, sources / FILES[format], target, precision, images)
            made[format, precision] = target
        return made[format, precision]

    return change


def images_for(batch, seed=1):
    return np.random.default_rng(seed).uniform(-1, 1, (batch, *IMAGE)).astype("float32")


def calibration(count=32):
    return images_for(count, seed=2)


def run_litert(path, images):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    given, answer = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    assert given["dtype"] == answer["dtype"] == np.float32
    interpreter.resize_tensor_input(given["index"], images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], images)
    interpreter.invoke()
    return interpreter.get_tensor(answer["index"])


def run_onnx(path, images):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"images": images})[0]


def run_openvino(path, images):
    import openvino

    core = openvino.Core()
    return core.compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(images)[0]


RUN = {"litert": run_litert, "onnx": run_onnx, "openvino": run_openvino}


def error_of(answers, expected):
    return np.sqrt(np.mean((answers - expected) ** 2)) / np.std(expected)


def size_of(path):
    return sum(part.stat().st_size for part in path.parent.iterdir() if part.stem == path.stem)


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize(("format", "precision"), MADE)
def test_answers_are_close_to_float32(format, precision, batch, sources, changed):
    images = images_for(batch)
    expected = RUN[format](sources / FILES[format], images)
    answers = RUN[format](changed(format, precision), images)
    assert answers.dtype == np.float32
    assert np.std(expected) > 0.3
    error = error_of(answers, expected)
    assert error < ERRORS[precision]
    if precision != "float32":
        assert error > ERRORS[precision] / 100  # something did change


@pytest.mark.parametrize(("format", "precision"), CHANGED)
def test_files_are_small_and_alone(format, precision, sources, changed):
    path = changed(format, precision)
    assert size_of(path) < SIZES[format][precision] * size_of(sources / FILES[format])
    names = [FILES[format], *(["openvino.bin"] if format == "openvino" else [])]
    assert sorted(part.name for part in path.parent.iterdir()) == sorted(names)


def test_the_float32_files_stay_as_they_are(sources, changed):
    before = {part: hashlib.sha256(part.read_bytes()).digest() for part in sources.iterdir()}
    for format, precision in MADE:
        changed(format, precision)
    assert before == {part: hashlib.sha256(part.read_bytes()).digest() for part in sources.iterdir()}


def litert_constants(path):
    """From (dtype, operator that takes it) to the numbers of elements of constants in a LiteRT file."""
    from ai_edge_litert import schema_py_generated as schema

    names = {number: name for name, number in vars(schema.BuiltinOperator).items() if not name.startswith("_")}
    dtypes = {number: name for name, number in vars(schema.TensorType).items() if not name.startswith("_")}
    model = litert_file.read(path)
    found = {}
    for operator in model.subgraphs[0].operators:
        for index in operator.inputs:
            tensor = model.subgraphs[0].tensors[index]
            data = model.buffers[tensor.buffer].data
            if index >= 0 and data is not None and len(data):
                key = (dtypes[tensor.type], names[litert_file.kind(model, operator)])
                found.setdefault(key, []).append(int(np.prod(tensor.shape)))
    return found


def test_what_is_in_a_litert_file(changed):
    products = {"FULLY_CONNECTED": 13, "CONV_2D": 1}
    half = litert_constants(changed("litert", "float16"))
    assert len(half["FLOAT16", "DEQUANTIZE"]) == 14  # every matrix but the small head, the patches, the positions
    assert not [key for key in half if key[0] == "INT8"]
    for precision, bias in (("dynamic_int8", "FLOAT32"), ("int8", "INT32")):
        found = litert_constants(changed("litert", precision))
        for operator, count in products.items():
            assert len(found["INT8", operator]) == count
            assert len(found[bias, operator]) == count
        assert found["INT8", "DEQUANTIZE"] == [17 * 64]
    for precision, largest in (("float16", 640), ("dynamic_int8", 256), ("int8", 64)):
        found = litert_constants(changed("litert", precision))
        assert max(size for (dtype, _), sizes in found.items() if dtype == "FLOAT32" for size in sizes) == largest


@pytest.mark.parametrize("precision", ["dynamic_int8", "int8"])
@pytest.mark.parametrize("short", [83, 84])
def test_litert_scales_are_one_for_each_row_or_one_for_all(precision, short, sources, tmp_path, monkeypatch):
    """By whether the rows of this model, which have 83.2 weights on average, count as short."""
    monkeypatch.setattr(litert, "SHORT", short)
    path, images = tmp_path / "file.tflite", images_for(7)
    change_precision(
        "litert", sources / FILES["litert"], path, precision, calibration() if precision == "int8" else None
    )
    graph, products = litert_file.read(path).subgraphs[0], 0
    for operator in graph.operators:
        given, weights, bias = (graph.tensors[i].quantization for i in [*operator.inputs, 0, 0][:3])
        if len(operator.inputs) < 3 or weights is None or weights.scale is None:
            continue
        products += 1
        assert len(weights.scale) == (len(np.zeros(graph.tensors[operator.inputs[1]].shape)) if short == 83 else 1)
        if precision == "int8":
            np.testing.assert_allclose(bias.scale, weights.scale * given.scale, rtol=1e-6)
    assert products == 14
    expected = run_litert(sources / FILES["litert"], images)
    assert error_of(run_litert(path, images), expected) < ERRORS[precision]


@pytest.mark.parametrize("precision", [name for format, name in MADE if format == "litert"])
def test_litert_files_have_builtin_operators_alone(precision, changed):
    from ai_edge_litert import schema_py_generated as schema

    model = litert_file.read(changed("litert", precision))
    kinds = {litert_file.kind(model, operator) for operator in model.subgraphs[0].operators}
    assert schema.BuiltinOperator.FULLY_CONNECTED in kinds
    assert schema.BuiltinOperator.CUSTOM not in kinds
    # What TensorFlow's tensordot leaves around each product.
    assert not kinds & {schema.BuiltinOperator.REDUCE_PROD, schema.BuiltinOperator.GATHER}


def test_simpler_litert_files_compute_the_same(sources, changed):
    plain, simple = (
        litert_file.read(path).subgraphs[0] for path in (sources / FILES["litert"], changed("litert", "float32"))
    )
    assert len(simple.operators) < 0.6 * len(plain.operators)
    images = images_for(7)
    # The biases are added inside the products now: another order of the same sums.
    np.testing.assert_allclose(
        run_litert(changed("litert", "float32"), images), run_litert(sources / FILES["litert"], images), atol=1e-5
    )


def test_a_new_model_has_no_biases(sources, tmp_path):
    """TensorFlow leaves additions of zeros out, and what makes files simpler must not count on them."""
    images = images_for(7)
    expected = run_litert(sources / "unbiased.tflite", images)
    for precision in ("float32", "dynamic_int8"):
        path = tmp_path / f"{precision}.tflite"
        change_precision("litert", sources / "unbiased.tflite", path, precision)
        assert error_of(run_litert(path, images), expected) < ERRORS[precision]
        np.testing.assert_allclose(run_litert(path, images[:1]), run_litert(path, images)[:1], atol=1e-3)


def test_a_fixed_batch_stays_and_is_calibrated(sources, tmp_path):
    """32 images in threes: the last batch is filled with the first images."""
    images = images_for(3)
    for precision in ("float32", "int8"):
        path = tmp_path / f"{precision}.tflite"
        change_precision(
            "litert", sources / "three.tflite", path, precision, calibration() if precision == "int8" else None
        )
        expected = run_litert(sources / "three.tflite", images)
        assert error_of(run_litert(path, images), expected) < ERRORS[precision]


@pytest.mark.parametrize("format", ["litert", "onnx"])
def test_calibration_decides_the_ranges(format, sources, tmp_path):
    """Ranges of images that are nearly grey cut off what others have."""
    path = tmp_path / FILES[format]
    change_precision(format, sources / FILES[format], path, "int8", 0.05 * calibration())
    images = images_for(7)
    expected = RUN[format](sources / FILES[format], images)
    assert error_of(RUN[format](path, images), expected) > 2 * ERRORS["int8"]


def test_what_is_in_an_onnx_file(changed):
    import onnx

    def dtypes(precision):
        model = onnx.load_model(str(changed("onnx", precision)))
        ends = [*model.graph.input, *model.graph.output]
        assert {end.type.tensor_type.elem_type for end in ends} == {onnx.TensorProto.FLOAT}
        assert {node.domain for node in model.graph.node} <= {"", "ai.onnx", "com.microsoft"}
        arrays = [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
        return {(array.dtype.name, array.ndim) for array in arrays if array.size >= 1024}

    assert dtypes("float16") == {("float16", 2), ("float16", 3), ("float16", 4)}
    assert dtypes("dynamic_int8") == {("int8", 2), ("float32", 3), ("int8", 4)}
    assert dtypes("int8") == {("int8", 2), ("float32", 3), ("int8", 4)}


def test_two_onnx_operators_that_stay_in_float32_share_a_value(tmp_path):
    import onnx
    from onnx import TensorProto, helper

    half = onnx.numpy_helper.from_array(np.array([0.5], "float32"), "half")
    nodes = [
        helper.make_node("Add", ["images", "half"], ["more"], "add"),
        helper.make_node("Max", ["more", "half"], ["above"], "max"),
        helper.make_node("Min", ["more", "above"], ["below"], "min"),
        helper.make_node("Max", ["below", "half"], ["answer"], "max2"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("images", "answer")]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], [half])
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "a")
    change_precision("onnx", tmp_path / "a", tmp_path / "b", "float16")
    images = np.array([-1, 0, 2], "float32")
    np.testing.assert_allclose(run_onnx(tmp_path / "b", images), np.maximum(images + 0.5, 0.5), rtol=1e-3)


def test_what_is_in_an_openvino_file(changed):
    import openvino

    def dtypes(precision):
        operators = openvino.Core().read_model(str(changed("openvino", precision))).get_ops()
        constants = [o for o in operators if o.get_type_name() == "Constant" and np.prod(o.get_output_shape(0)) >= 1024]
        return sorted({o.get_output_element_type(0).get_type_name() for o in constants})

    assert dtypes("float32") == ["f32"]
    assert dtypes("float16") == ["f16"]
    assert dtypes("dynamic_int8") == ["f32", "i8"]


@pytest.mark.parametrize(("format", "precision"), REFUSED)
def test_refused_with_a_reason(format, precision, tmp_path):
    row = PRECISIONS[format][precision]
    with pytest.raises(ValueError, match="precision must be one of") as caught:
        change_precision(format, tmp_path / "no", tmp_path / "file", precision, calibration())
    assert row.reason in str(caught.value)
    assert "float32" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("tfjs", "no", "float16"), ValueError, "format must be one of"),
        (("litert", "no", "float8"), ValueError, "precision must be one of .*dynamic_int8"),
        (("litert", "no", "float16"), FileNotFoundError, "There is no file"),
        (("litert", "", "int8"), ValueError, "calibration is missing"),
        (("litert", "", "float16", calibration(8)), ValueError, "calibration was given"),
        (("litert", "", "int8", calibration(7)), ValueError, "at least 8 images, .* but it is 7"),
        (("onnx", "", "int8", calibration(8)[:, :8]), ValueError, r"\(count, 16, 16, 3\).*\(8, 8, 16, 3\)"),
        (("litert", "", "int8", calibration(8)[0]), ValueError, r"\(count, 16, 16, 3\).*\(16, 16, 3\)"),
        (("onnx", "", "int8", np.zeros((8, *IMAGE), "uint8")), ValueError, "must be float32.*uint8"),
        (("litert", "", "int8", np.full((8, *IMAGE), np.nan)), ValueError, "must be finite"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors_say_what_to_do(arguments, error, says, sources, tmp_path):
    format, name, *others = arguments
    with pytest.raises(error, match=says):
        change_precision(format, sources / (name or FILES[format]), tmp_path / "file", *others)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"onnx and onnxruntime, .*keras-vit\[onnx\]") as caught:
        change_precision("onnx", tmp_path / "no", tmp_path / "file", "float16")
    assert caught.value.name == "onnx"


def test_no_litert_file(tmp_path):
    (tmp_path / "text.tflite").write_text("not a model")
    with pytest.raises(ValueError, match="none"):
        change_precision("litert", tmp_path / "text.tflite", tmp_path / "file", "float16")


def test_other_formats_are_copied_in_float32(tmp_path):
    (tmp_path / "saved" / "variables").mkdir(parents=True)
    (tmp_path / "saved" / "variables" / "data").write_bytes(b"1")
    change_precision("saved_model", tmp_path / "saved", tmp_path / "copy", "float32")
    assert (tmp_path / "copy" / "variables" / "data").read_bytes() == b"1"


def test_symmetric_int8():
    values = np.array([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]], "float32")
    integers, scales = symmetric_int8(values, 0)
    np.testing.assert_array_equal(integers, [[64, -127, 32], [0, 0, 0]])  # 63.5 and 31.75: to the nearest, even ones
    np.testing.assert_allclose(scales, [[2 / 127], [1]])
    assert integers.dtype == np.int8
    assert symmetric_int8(values, None)[1].shape == (1, 1)


def test_batches():
    parts = [list(part) for part in batches(np.arange(4), 3)]
    assert parts == [[0, 1, 2], [3, 0, 1]]
