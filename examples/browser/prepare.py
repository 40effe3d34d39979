"""Puts what the page needs beside it: both towers of an image-text model, and the packages that run them.

npm install @litertjs/core@2 onnxruntime-web@1 @huggingface/tokenizers@0.2      # once, in any folder
python prepare.py openai/clip-vit-base-patch32 node_modules                     # a name, an address or a path
python -m http.server                                                           # and open http://localhost:8000
"""

import argparse
import json
import shutil
import zipfile
from pathlib import Path

import keras_vit

PACKAGES = {
    "@litertjs/core": ("dist/index.js", "wasm/*"),
    "@litertjs/wasm-utils": ("dist/index.js",),
    "onnxruntime-web": ("dist/ort.wasm.bundle.min.mjs", "dist/ort-wasm-simd-threaded.*"),
    "@huggingface/tokenizers": ("dist/tokenizers.min.mjs",),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="an image-text model, as keras_vit.load_image_text takes it")
    parser.add_argument("node_modules", type=Path, help="the folder that npm made")
    parser.add_argument("--precision", default="float32", help="float32, float16 or dynamic_int8")
    parser.add_argument("--page", type=Path, default=Path(__file__).parent, help="the folder of index.html")
    asked = parser.parse_args(arguments)
    for package, patterns in PACKAGES.items():
        files = [file for pattern in patterns for file in (asked.node_modules / package).glob(pattern)]
        if not files:
            parser.error(f"{asked.node_modules / package} has no {patterns[0]}. Run the npm command above.")
        for file in files:
            target = asked.page / "lib" / file.relative_to(asked.node_modules)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    both, models, about = keras_vit.load_image_text(asked.source), asked.page / "models", {}
    for name, tower in (("text", both.text_encoder), ("image", both.image_encoder)):
        for suffix in (".tflite", ".onnx"):
            path = models / f"{name}{suffix}"
            options = {"precision": asked.precision, "batch_size": 1, "overwrite": True}
            print(keras_vit.export(tower, path, pair=both, **options))
        about[name] = json.loads(zipfile.ZipFile(models / f"{name}.tflite").read("keras_vit.json"))
    (models / "about.json").write_text(json.dumps(about, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
