"""What the package computes with trained weights on real photographs: the figures of docs/trained_weights.md.

    python benchmarks/trained_weights.py published MODEL PHOTOS --tokens FILE   # needs transformers
    python benchmarks/trained_weights.py tokens MODEL PHOTOS --tokens FILE      # on each backend
    python benchmarks/trained_weights.py files MODEL PHOTOS                     # or precisions, int8, duplicates, uses

MODEL is the folder that examples/trained_weights.py writes, PHOTOS a folder of photographs, FILE the tokens of
transformers' `Dinov2Model`: the first command writes it, the second compares. Prints rows of tables.
"""

import argparse
import io
import tempfile
from pathlib import Path

import keras
import numpy as np
from PIL import Image

import keras_vit
from keras_vit import evaluation, inspection, training
from keras_vit.export import FORMATS, export

SIZES = ((224, 224), (518, 518), (518, 742))


def cosines(found, expected):
    """The least and the mean cosine of rows."""
    found, expected = (np.asarray(rows, "float64").reshape(len(rows), -1) for rows in (found, expected))
    values = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    return f"{values.min():.6f} | {values.mean():.6f}"


def published(folder, photos, options):
    """Writes the tokens of transformers at three sizes."""
    import torch
    from transformers import Dinov2Model

    model, arrays = Dinov2Model.from_pretrained(folder).eval(), {}
    for size in SIZES:
        images = keras_vit.load(folder, image_size=size).preprocess(photos)
        with torch.no_grad():
            answer = model(torch.from_numpy(np.moveaxis(images, 3, 1).copy()))
        arrays[str(size)] = answer.last_hidden_state.numpy()
    np.savez(options.tokens, **arrays)


def tokens(folder, photos, options):
    """Tokens of the backend beside those of `published`: the largest difference, as a share of their deviation."""
    with np.load(options.tokens) as arrays:
        for size in SIZES:
            model = keras_vit.load(folder, image_size=size)
            found = keras.ops.convert_to_numpy(model.run(model.preprocess(photos), until="encoder_norm"))
            share = np.abs(found - arrays[str(size)]).max() / arrays[str(size)].std()
            print(f"| {keras.backend.backend()} | {size[0]} x {size[1]} | {share:.1e} |", flush=True)


def precisions(folder, photos, options):
    """The class token in other precisions beside float32, and patches; quantized as Keras does it."""
    model = keras_vit.load(folder)
    images = model.preprocess(photos)
    expected = model.predict(images, batch_size=4, verbose=0)
    for name in ("float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16", "int8", "float8"):
        try:
            other = keras_vit.load(folder, dtype="float32" if name.endswith("t8") else name)
            if name in ("int8", "float8"):
                other.quantize(name)
            row = cosines(other.predict(images, batch_size=4, verbose=0), expected)
        except Exception as error:  # the row says it
            row = f"{type(error).__name__}: {str(error).splitlines()[0][:300]} |"
        print(f"| {keras.backend.backend()} | {name} | {row} |", flush=True)
    for patch, size in ((16, 256), (8, 128), (28, 448)):  # a grid of 16 x 16 each
        other = model.with_config(patch_size=patch, image_size=size)
        row = cosines(other.predict(other.preprocess(photos), batch_size=4, verbose=0), expected)
        print(f"| {keras.backend.backend()} | patches of {patch}, images of {size} | {row} |", flush=True)


def files(folder, photos, options):
    """Each format and precision: size, cosine with the model, and what the check of `export` said."""
    model = keras_vit.load(folder)
    images = model.preprocess(photos)
    expected = model.predict(images, batch_size=4, verbose=0)
    for format in options.only or FORMATS:
        for kind in (*FORMATS[format].precisions, *["gpu"] * bool(FORMATS[format].gpu)):
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
                    said += f"; {report.gpu}" if report.gpu_operators else ""
                except (RuntimeError, ValueError) as error:
                    print(f"| {format} | {kind} | | | | refused: {error} |", flush=True)
                    if kind != "int8":
                        continue
                    report = export(model, path, format, **given, tolerance=1e9)
                    said = "the same, written with `tolerance=1e9`"
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


def all_products():
    """The quantizer's recipe for int8 weights and activations of all products."""
    from ai_edge_quantizer import qtyping, recipe_manager

    recipe = recipe_manager.RecipeManager()
    for kind in (qtyping.TFLOperationName.FULLY_CONNECTED, qtyping.TFLOperationName.CONV_2D):
        recipe.add_static_config(".*", kind, 8, 8)
    return recipe


def image_ranges(source, images):
    """The least and the largest value of each activation of a LiteRT file in each image."""
    from ai_edge_quantizer import calibrator

    watching = calibrator.Calibrator(
        str(source),
        num_threads=2,
        mode=calibrator.CalibrationMode.CALIBRATION_PROFILER_BASED,
        qsv_update_func=lambda seen, new: {end: np.append(seen[end], new[end]) if seen else new[end] for end in new},
    )
    watching.calibrate({"serving_default": [{"images": image[None]} for image in images]}, all_products())
    return {name: {end: np.ravel(one[end]) for end in one} for name, one in watching.get_model_qsvs().items() if one}


def int8(folder, photos, options):
    """LiteRT's int8 with ranges of few or many crops, extremes or quantiles; on photographs that were not seen."""
    from ai_edge_quantizer import quantizer

    model = keras_vit.load(folder)
    images, prepared = model.preprocess(photos[1::2]), crops(model, photos[::2], 96)
    expected = model.predict(images, batch_size=4, verbose=0)
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place, "float32.tflite"), Path(place, "int8.tflite")
        export(model, source, batch_size=1, measure=False)
        ranges = image_ranges(source, prepared)
        few, many = ([np.ptp([*r["min"][:n], *r["max"][:n]]) for r in ranges.values()] for n in (8, 96))
        print(f"ranges of 96 crops are up to {np.divide(many, few).max():.1f} times as wide as of 8", flush=True)
        for count, share in ((2, 1.0), (8, 1.0), (32, 1.0), (96, 1.0), (96, 0.9), (96, 0.5)):
            ends = {name: {} for name in ranges}
            for name, both in ranges.items():
                for end, part in (("min", 1 - share), ("max", share)):
                    ends[name][end] = np.quantile(both[end][:count], part, keepdims=True).astype("float32")
            made = quantizer.Quantizer(str(source), all_products().get_quantization_recipe())
            target.write_bytes(made.quantize(ends, enable_progress_report=False).quantized_model)
            found = [next(iter(FORMATS["litert"].run(target, image[None]).values())) for image in images]
            error = np.abs(np.concatenate(found) - expected).max() / np.abs(expected).max()
            print(f"| {count} | {share:.0%} | {error:.3f} | {cosines(np.concatenate(found), expected)} |", flush=True)


def duplicates(folder, photos, options):
    """Copies of photographs among others, at thresholds of the cosine: how many are found, and false pairs."""
    model, pictures = keras_vit.load(folder), []
    for picture in map(Image.fromarray, photos):
        (wide, high), stream = picture.size, io.BytesIO()
        picture.save(stream, "JPEG", quality=20)
        cropped = picture.crop((wide // 20, high // 20, wide - wide // 20, high - high // 20))
        mirrored = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pictures += [picture, Image.open(stream), picture.resize((wide // 2, high // 2)), cropped, mirrored]
    vectors = model.predict(model.preprocess([np.asarray(picture) for picture in pictures]), batch_size=4, verbose=0)
    for threshold in (0.99, 0.98, 0.95, 0.9, 0.8, 0.7):
        pairs, _ = evaluation.near_duplicates(vectors, threshold)
        true = pairs[:, 0] // 5 == pairs[:, 1] // 5
        copies = [int((true & (pairs[:, 0] % 5 == 0) & (pairs[:, 1] % 5 == kind)).sum()) for kind in range(1, 5)]
        row = " | ".join(f"{count / len(photos):.0%}" for count in copies)
        print(f"| {threshold} | {row} | {(~true).sum()} |", flush=True)


def uses(folder, photos, options):
    """A linear probe and LoRA; the classes are the photographs of crops."""
    model = keras_vit.load(folder, image_size=112, classes=len(photos))
    train, test = ((crops(model, photos, 4 * len(photos), seed), [*range(len(photos))] * 4) for seed in (0, 1))
    probe = evaluation.few_shot(model, train, test, shots=(4,), progress=False)
    print(f"linear probe, 4 crops of each of {len(photos)} photographs: {probe}", flush=True)
    recipe = training.recipe("finetune/cifar10").replace(lora_rank=8, batch_size=16, learning_rate=0.03, image_size=112)
    parts = {"train": train, "test": test}.items()
    data = {part: (inspection.shown_pixels(model, images), labels) for part, (images, labels) in parts}
    result = training.finetune(model, data, recipe, steps=8, every=8, seed=0)
    print(f"LoRA, 8 updates of 16 crops: {result.accuracy:.1%}", flush=True)
    merged = training.merge_lora(result.model)
    print(
        "merged LoRA:",
        cosines(
            merged.predict(test[0], batch_size=4, verbose=0), result.model.predict(test[0], batch_size=4, verbose=0)
        ),
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("tokens", "precisions", "files", "int8", "duplicates", "uses", "published"))
    parser.add_argument("model")
    parser.add_argument("photos", type=Path)
    parser.add_argument("--tokens", type=Path, help="a file .npz, for published and tokens")
    parser.add_argument("--only", nargs="*", default=(), help="formats, for files")
    options = parser.parse_args()
    photos = [np.asarray(Image.open(path).convert("RGB")) for path in sorted(options.photos.iterdir())]
    globals()[options.part](options.model, photos, options)


if __name__ == "__main__":
    main()
