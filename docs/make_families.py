"""Writes docs/families.md: what users do with a model, done with one of each family, on the backend that is set.

    KERAS_BACKEND=torch python -m docs.make_families ["DINOv2, giant" ... | --missing]

Fills in the lines of that backend, of all families, those that are named or those that have none, as each is done; the
other lines stay. The models are small: reference files of `tests/golden`, or random weights in the names of whoever
publishes such files. Anything that goes wrong, or differs by more than float32 explains, ends the command. About half a
minute for each family, most of it for the three files.
"""

import os
import pathlib
import re
import sys
import tempfile

import keras
import numpy as np

import keras_vit
from keras_vit import training
from keras_vit.checkpoints import LAYOUTS
from keras_vit.checkpoints.files import write_safetensors
from keras_vit.export import FORMATS, export
from tests.checkpoints.state_dicts import GAMMA, PATCHES, linear, timm
from tests.tolerances import SAME_FUNCTION

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "families.md"
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
WRITTEN = ("saved_model", "litert", "onnx")
CLASSES, IMAGES = 3, 8

_SIZES = {"image_size": 32, "patch_size": 8, "width": 64, "depth": 2, "heads": 1, "mlp_width": 128, "classes": 5}
_MIXER = keras_vit.ViTConfig(
    **_SIZES, tokens_mlp_width=32, gelu="exact", class_token=False, position_embedding="none", pooling="avg"
)
_DECODER = {"decoder_pos_embed": (1, PATCHES + 1, 32), **linear("decoder_embed", 32, 64)}
# A file of each family: a folder of tests/golden, or the names and shapes of arrays. What stands before the comma is
# the family's name in `list_models`, if it has one.
FAMILIES = {
    "ViT": "fam_timm_vit",
    "DeiT, distilled": "fam_timm_deit_distilled",
    "DeiT-III": timm(rows=PATCHES, scales=GAMMA, head=5),
    "MAE": timm() | _DECODER,
    "DINO": {f"teacher.backbone.{name}": shape for name, shape in timm().items()},
    "DINOv2, giant": "fam_hf_dinov2_giant_cls",
    "DINOv2-reg": "fam_timm_dinov2_reg4",
    "DINOv3": "fam_hf_dinov3",
    "I-JEPA": {f"target_encoder.module.{name}": shape for name, shape in timm(cls=False).items()},
    "CLIP": "fam_hf_clip_full",
    "SigLIP": "fam_hf_siglip_full",
    "SigLIP2": "fam_timm_siglip2",
    "SigLIP2, NaFlex": "next_naflex_hf_vision",
    "EVA-02": "fam_timm_eva02_base",
    "hybrid": "fam_timm_hybrid",
    "Mixer": {row.name: row.shape for row in LAYOUTS["timm"].rows(_MIXER)},
    "PE": "next_pe_timm_core",
    "TIPS": "next_tips_hf_small",
    "BEiT-3": timm(mlp="plain_norm", attn_norm=True, last="fc_norm", head=5),
}
# Beside those, text towers and models with heads for every pixel: folders of tests/golden.
OTHERS = {
    "CLIP, texts": "txt_hf_clip",
    "SigLIP, texts": "txt_bv_siglip/model.npz",
    "SigLIP2, texts": "txt_hf_siglip2",
    "LiT, texts": "txt_lit_s/LiT-mini.npz",
    "EoMT": "dense_eomt_hf_panoptic",
    "DINOv2, linear for masks": "dense_seg_dinov2_linear",
    "Depth Anything V2": "dense_depth_da2_hf",
    "DINOv2, linear for depth": "dense_depth_dinov2_linear",
}
TRIED = (*FAMILIES, *OTHERS)
NOT_RUN = "not run"
COLUMNS = ("family", "backend", "trained", "LoRA", "`.keras`", "`with_config`", *(f"`{name}`" for name in WRITTEN))
HEAD = f"""# Families, tried out

This page shows that a model of each family can be trained, saved, changed and exported on every backend. A family is a
kind of model, such as DINOv2; [the zoo](zoo.md) lists the models of each.

One small model of each family was read from a file in its publisher's layout and given a new head of {CLASSES} classes.
The column `trained` counts weight arrays. All other numbers compare the outputs of two models for {IMAGES} images: the
largest difference as a share of the largest output. Rounding in float32 explains up to {SAME_FUNCTION:.0e}. Three
values in a cell are for TensorFlow / JAX / PyTorch; one value means that all three are equal. `-` means that the column
does not apply. Rows with "texts" are text towers.

| column | what is counted, or which two models are compared |
| --- | --- |
| trained | after three updates of `finetune`: how many weight arrays changed, of all with a gradient |
| LoRA | after two more updates with `lora_rank=2`: the model with adapters, and the model after `merge_lora` |
| `.keras` | the model before saving, and the model after loading |
| `with_config` | two comparisons (1) and (2), of which the larger difference counts |
| `saved_model`, `litert`, `onnx` | the Keras model, and the exported file in its own runtime (batches of 1 and 7) |

(1) The model without its head, `with_config(classes=None)`, and the same features from `feature_extractor`. (2) A model
for any image size, `with_config(dynamic=True)`, and a model for one size.

Weights of a Mixer fit one grid of patches, so its image size was not changed. Text towers and models for masks or depth
were not trained; they got random adapters. TensorFlow writes all three formats, also for JAX and PyTorch, and must be
installed. [Exports](exports.md) has the other formats. [Fidelity](fidelity.md) compares each family with its
publisher's code.

"""
MADE = "\n`python -m docs.make_families`, run on each backend, makes this page with versions of `constraints.txt`.\n"


def rows_of(page: str) -> dict[tuple[str, str], list[str]]:
    """The results on a page by family and backend."""
    rows = {}
    for line in page.splitlines():
        family, *cells = [cell.strip().split(" / ") for cell in line.strip("|").split("|")]
        for number, backend in enumerate(BACKENDS.values() if family[0] in TRIED else ()):
            values = [cell[number % len(cell)] for cell in cells]
            if values[0] != NOT_RUN:
                rows[family[0], backend] = [family[0], backend, *values]
    return rows


def page_with(rows: dict[tuple[str, str], list[str]]) -> str:
    """The page with a line for each family: a value for each backend, or one where they are equal."""
    lines = [[COLUMNS[0], *COLUMNS[2:]], ["---"] * (len(COLUMNS) - 1)]
    for family in TRIED:
        tried = [rows.get((family, b), [NOT_RUN] * len(COLUMNS))[2:] for b in BACKENDS.values()]
        cells = zip(*tried, strict=True)
        lines.append([family, *(" / ".join(cell if len({*cell}) > 1 else cell[:1]) for cell in cells)])
    return HEAD + "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + MADE


def loaded(family: str, folder: pathlib.Path) -> keras_vit.VisionTransformer:
    """The small model of a family, from its file."""
    source = FAMILIES[family]
    if isinstance(source, str):
        return keras_vit.from_checkpoint(_reference(source), **_size_of(source))
    rng, arrays = np.random.default_rng(0), []
    for name, shape in sorted(source.items()):
        values = rng.normal(0, 0.1, shape).astype("float32")
        factors = re.search(r"norm\w*\.weight$|gamma", name)  # without them around 1 a block would do nothing
        arrays.append((name, values + 1 if factors else values))
    write_safetensors(folder / "model.safetensors", arrays)
    return keras_vit.from_checkpoint(folder / "model.safetensors", heads=None if family == "Mixer" else 4)


def _reference(case: str) -> pathlib.Path:
    return ROOT / "tests" / "golden" / case


def _size_of(case: str) -> dict[str, tuple[int, int]]:
    """The images of a reference, whose file may leave open for which size the model is."""
    with np.load(_reference(case) / "ref.npz") as reference:
        images = reference["images"]
        return {"image_size": images.shape[1:3]} if images.ndim == 4 else {}  # NaFlex: patches


def answers(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """What a model answers, which has to be finite and not the same for all images."""
    y = model.predict(images, verbose=0)
    y = y["pre_logits"] if isinstance(y, dict) else y
    if not (np.isfinite(y).all() and np.ptp(y, axis=0).max() > 1e-4):
        sys.exit(f"{model.name} answers {y}.")
    return y


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference between two answers as a share of the largest answer, if float32 explains it."""
    share = float(np.abs(one - other).max() / np.abs(one).max())
    if not share <= SAME_FUNCTION:
        sys.exit(f"Two answers that should be the same differ by {share} of the largest.")
    return share


def arrays_of(model: keras_vit.VisionTransformer) -> dict[str, np.ndarray]:
    """A copy of what a model trains, except for biases that no answer depends on."""
    trainable = {id(weight) for weight in model.trainable_weights}
    turned = model.config.rotary_embedding is not None
    weights = keras_vit.models.weights_by_path(model)
    return {
        path: np.array(keras.ops.convert_to_numpy(weight))
        for path, weight in weights.items()
        if id(weight) in trainable
        and not (path.endswith("/key/bias") and (path.startswith("pooling/") or not turned))
        and not path.endswith("/token_mixing/fc2/bias")  # one number for all channels, which normalisation takes away
    }


def tried(family: str, folder: pathlib.Path) -> list[str]:
    """What becomes of a family's model on this backend: the cells of its line after the first two."""
    model = loaded(family, folder).with_classes(CLASSES)
    config = model.config
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (IMAGES, *config.image_size, config.channels), dtype="uint8")
    data = (pixels, np.arange(IMAGES) % CLASSES)
    recipe = training.recipe("finetune/cifar10").replace(
        steps=3, warmup_steps=0, batch_size=4, learning_rate=0.1, momentum_dtype=None, image_size=config.image_size
    )
    before = arrays_of(model)
    model = training.finetune(model, data, recipe, verbose=False).model
    after = arrays_of(model)
    still = [path for path in before if np.array_equal(before[path], after[path])]
    if still or before.keys() != after.keys():
        sys.exit(f"{family}: training left {still} as they were.")

    images = model.preprocess(pixels)
    adapted = ("query", "value") if config.tokens_mlp_width is None else ("fc1", "fc2")
    recipe = recipe.replace(steps=2, lora_rank=2, lora_targets=adapted)
    model = training.finetune(model, data, recipe, verbose=False).model
    adapters = [value for path, value in arrays_of(model).items() if path.endswith("lora_kernel_b")]
    if not adapters or not all(map(np.any, adapters)):
        sys.exit(f"{family}: of {len(adapters)} adapters, some have learned nothing.")
    merged = training.merge_lora(model)
    wanted = answers(merged, images)
    lora = difference(answers(model, images), wanted)

    merged.save(folder / "model.keras")
    again = keras.saving.load_model(folder / "model.keras")
    saved = difference(answers(again, images), wanted)

    features = answers(merged.with_config(classes=None), images)
    changed = [difference(answers(keras_vit.feature_extractor(merged, ["pre_logits"]), images), features)]
    if config.tokens_mlp_width is None:
        any_size = merged.with_config(dynamic=True)
        changed.append(difference(answers(any_size, images), wanted))
        rows, columns = config.grid_size
        larger = merged.with_config(image_size=config.image_size_of((rows + 1, columns + 2)))
        others = larger.preprocess(pixels)
        changed.append(difference(answers(any_size, others), answers(larger, others)))

    files = exported(family, merged, images, float(np.abs(wanted).max()), folder)
    return [f"{len(before)} of {len(before)}", *map(cell, (lora, saved, max(changed), *files))]


def cell(share: float) -> str:
    """A share as it stands in the table."""
    return f"{share:.1e}" if share else "0"


def exported(family: str, model: keras.Model, images: np.ndarray, largest: float, folder: pathlib.Path) -> list[float]:
    """How far the files of a model are from it, as a share of its largest answer."""
    files = []
    for name in WRITTEN:
        path = folder / f"file{FORMATS[name].suffix}"
        report = export(model, path, format=name, images=images, measure=False)
        if report.select_operators or not report.max_abs_error <= SAME_FUNCTION * largest:
            sys.exit(f"{family}: the {name} file differs, or needs another runtime: {report}")
        files.append(report.max_abs_error / largest)
    return files


def tried_other(family: str, folder: pathlib.Path) -> list[str]:
    """What becomes of a text tower, or of a model of masks or depth: the cells of its line after the first two."""
    source = _reference(OTHERS[family])
    is_text = OTHERS[family].startswith("txt_")
    model = keras_vit.load_image_text(source).text_encoder if is_text else keras_vit.load(source)
    with np.load((source.parent if source.is_file() else source) / "ref.npz") as reference:
        inputs = reference["ids" if is_text else "pixel_values"]
    training.add_lora(model, rank=2)
    before = keras.tree.flatten(model.predict(inputs, verbose=0))[0]  # adapters are zeros at first
    rng = np.random.default_rng(1)
    for weight in model.trainable_weights:
        if "lora_kernel_b" in weight.path:
            weight.assign(rng.normal(0, 0.1, weight.shape))
    if np.allclose(before, keras.tree.flatten(model.predict(inputs, verbose=0))[0]):
        sys.exit(f"{family}: adapters change nothing.")
    merged = training.merge_lora(model)
    parts = [merged.predict(inputs, verbose=0), model.predict(inputs, verbose=0)]
    merged.save(folder / "model.keras")
    parts.append(keras.saving.load_model(folder / "model.keras").predict(inputs, verbose=0))
    wanted, adapted, again = (
        [part[name] for name in sorted(part)] if isinstance(part, dict) else [part] for part in parts
    )
    lora, saved = (max(map(difference, other, wanted)) for other in (adapted, again))
    largest = max(float(np.abs(answer).max()) for answer in wanted)
    files = ["-"] * len(WRITTEN) if is_text else map(cell, exported(family, merged, inputs, largest, folder))
    return ["-", cell(lora), cell(saved), "-", *files]


def main(names: list[str]) -> None:
    """Tries families out and fills in their lines."""
    if names == ["--missing"]:
        rows = rows_of(PAGE.read_text(encoding="utf-8")) if PAGE.is_file() else {}
        names = [name for name in TRIED if (name, BACKENDS[keras.backend.backend()]) not in rows]
    unknown = [name for name in names if name not in TRIED]
    if unknown:
        sys.exit(f"There is no {unknown}. There are {list(TRIED)}.")
    backend = BACKENDS[keras.backend.backend()]
    for family in names or TRIED:
        keras.utils.set_random_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            cells = (tried if family in FAMILIES else tried_other)(family, pathlib.Path(folder))
        rows = rows_of(PAGE.read_text(encoding="utf-8")) if PAGE.is_file() else {}
        rows[family, backend] = [family, backend, *cells]
        part = PAGE.with_suffix(".part")
        part.write_text(page_with(rows), encoding="utf-8")
        os.replace(part, PAGE)
        print(" | ".join(rows[family, backend]), flush=True)
        keras.backend.clear_session()


if __name__ == "__main__":
    main(sys.argv[1:])
