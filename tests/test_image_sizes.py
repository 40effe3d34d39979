"""A source and a size: position embeddings are resized once, from the table of the file, whatever door is taken."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit import data, training
from keras_vit.checkpoints import to_checkpoint
from keras_vit.checkpoints.files import open_file, write_safetensors
from keras_vit.cli import main
from keras_vit.interpolation import resize_table
from tests.checkpoints import npz_files
from tests.checkpoints.state_dicts import LS, clip, timm, tower, transformers, write
from tests.pictures import save
from tests.small_models import model_of, small_vit

pytestmark = pytest.mark.once

OWN, PREPARED, ASKED = (5, 5), (2, 2), (3, 3)  # grids of 16 pixels: of the file, of its pictures, and what is asked for
SIZE = 16 * ASKED[0]


class Reached(BaseException):
    """The model that a door has made."""


def stop(*found, **options):
    raise Reached(next(getattr(part, "model", part) for part in found))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of transformers for 80 pixels, whose pictures are prepared to 32, as facebook/dinov2-* for 518 and 224."""
    path = tmp_path_factory.mktemp("two_sizes") / "model"
    config = keras_vit.models.variant_config("ViT-mu/16", 16 * OWN[0], None).replace(interpolation="bicubic_hf")
    to_checkpoint(model_of(config.replace(filter="bilinear_pillow")), path, layout="huggingface")
    prepared = json.loads((path / "preprocessor_config.json").read_text())
    sizes = {name: {"height": 32, "width": 32} for name in ("size", "crop_size")}
    (path / "preprocessor_config.json").write_text(json.dumps(prepared | sizes))
    head = {"conv_seg.weight": (3, 32, 1, 1), "conv_seg.bias": (3,)}
    head |= {f"bn.{name}": (32,) for name in ("weight", "bias", "running_mean", "running_var")}
    arrays = [(f"decode_head.{name}", np.ones(shape, "float32")) for name, shape in sorted(head.items())]
    write_safetensors(path.parent / "head.safetensors", arrays)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for i, name in enumerate("abab"):
        picture, mask = np.full((SIZE, SIZE, 3), 50 * i, "uint8"), np.full((SIZE, SIZE), i % 2, "uint8")
        save(root / "classes" / name / f"{i}.png", picture)
        save(root / "scenes" / "images" / f"{i}.png", picture)
        save(root / "scenes" / "masks" / f"{i}.png", mask)
    return root


PICTURES = (np.random.default_rng(0).integers(0, 256, (4, SIZE, SIZE, 3), "uint8"), np.array([0, 1, 0, 1]))
MASKS = (PICTURES[0], np.zeros((4, SIZE, SIZE), "uint8") + PICTURES[1][:, None, None])
BOXES = data.open_boxes((PICTURES[0], [{"boxes": [[0, 0, 8, 8]], "labels": [0]}] * 4), class_names=["a"])
CALM = {"false_alarms": 0.3, "verbose": False}
RUN = {"steps": 1, "batch_size": 2, "image_size": SIZE, "warmup_steps": 0, "verbose": False}


def train(function, examples, recipe, **options):
    return lambda folder, photos: function(folder, examples, recipe, **RUN, **options)


def command(*line):
    return lambda folder, photos: main([str(folder) if w == "F" else w.replace("P/", f"{photos}/") for w in line])


LINEAR = "segmentation/dinov2_linear"
PIXELS = ("--image-size", str(SIZE))
QUICK = (*PIXELS, "--steps", "1", "--batch-size", "2", "--output", "P/run", "--restart")
DOORS = {
    "load": lambda folder, photos: stop(keras_vit.load(folder, image_size=SIZE)),
    "load, any size": lambda folder, photos: stop(keras_vit.load(folder, image_size="dynamic")),
    "load, with a head": lambda folder, photos: stop(keras_vit.load(folder, head=folder.parent / "head.safetensors")),
    "create_model": lambda folder, photos: stop(keras_vit.create_model("ViT-mu/16", weights=folder, image_size=SIZE)),
    "finetune": train(training.finetune, PICTURES, "finetune/cifar10"),
    "pretrain": train(training.pretrain, PICTURES, None, objective="masked_patches"),
    "lejepa": train(training.pretrain, PICTURES, None, objective="lejepa"),
    "linear head": train(training.finetune_segmentation, MASKS, LINEAR),
    "EoMT": train(training.finetune_segmentation, MASKS, "segmentation/eomt_ade20k_base"),
    "detection": train(training.finetune_detection, BOXES, "detection/owl_finetune"),
    "anomaly": lambda folder, photos: stop(keras_vit.anomaly.fit(folder, PICTURES[0], image_size=SIZE, **CALM)),
    "keras-vit finetune": command("finetune", "F", "P/classes", *QUICK),
    "keras-vit finetune --teacher": command("finetune", "glyphs", "P/classes", "--teacher", "F", *QUICK),
    "keras-vit finetune --task segmentation": command("finetune", "F", "P/scenes", "--task", "segmentation", *QUICK),
    "keras-vit evaluate": command("evaluate", "F", "P/classes", *PIXELS),
    "keras-vit evaluate --few-shot": command("evaluate", "F", "P/classes", "--few-shot", "1", *PIXELS),
    "keras-vit evaluate --knn": command("evaluate", "F", "P/classes", "--knn", "1", *PIXELS),
    "keras-vit export": command("export", "F", "P/model.onnx", *PIXELS),
}


@pytest.mark.parametrize("door", DOORS)
def test_positions_are_resized_once(folder, photos, door, monkeypatch):
    stored = keras_vit.load(folder, image_size=80).get_layer("position_embedding").get_weights()[0]
    monkeypatch.setattr(training.run, "compile_model", lambda run, *rest: stop(run))
    for place in ("evaluate", "few_shot", "knn_accuracy"):
        monkeypatch.setattr(keras_vit.evaluation, place, stop)
    monkeypatch.setattr(keras_vit.export, "export", stop)
    monkeypatch.setattr(training, "distillation", stop)
    with pytest.raises(Reached) as reached:
        DOORS[door](folder, photos)
    model = reached.value.args[0]
    model = getattr(model, "backbone", model)
    grid = OWN if model.config.dynamic else ASKED
    assert model.config.grid_size == grid
    wanted = resize_table(stored, OWN, grid, "bicubic_hf")
    np.testing.assert_array_equal(model.get_layer("position_embedding").get_weights()[0], wanted)


# A table of 25 rows: 4 x 6 patches and a class token; without what a person says of the size, 5 x 5 patches.
FACEBOOK = timm(rows=25, scales=LS, registers=2, register_name="register_tokens") | {"mask_token": (1, 64)}
SEGMENTER = {f"decode_head.bn.{name}": (64,) for name in ("weight", "bias", "running_mean", "running_var")}
SEGMENTER |= {"decode_head.conv_seg.weight": (3, 64, 1, 1), "decode_head.conv_seg.bias": (3,)}
RECTANGLES = {
    "timm": timm(rows=25),
    "Facebook": FACEBOOK,
    "transformers": transformers("vit") | {"vit.embeddings.position_embeddings": (1, 25, 64)},
    "CLIP of transformers": tower("clip") | {"vision_model.embeddings.position_embedding.weight": (25, 64)},
    "CLIP": clip() | {"visual.positional_embedding": (25, 64)},
    "linear head": SEGMENTER | {f"backbone.{name}": shape for name, shape in FACEBOOK.items()},
    "big_vision": None,
}


@pytest.mark.filterwarnings("ignore:.*does not contain all settings")
@pytest.mark.parametrize("said", [{"image_size": (32, 48)}, {"grid_size": (4, 6)}])
@pytest.mark.parametrize("name", RECTANGLES)
def test_a_rectangle_with_a_class_token(tmp_path, name, said):
    if RECTANGLES[name] is None:
        to_checkpoint(small_vit(image_size=(32, 48), patch_size=8), tmp_path / "old.npz", layout="big_vision")
        arrays = npz_files.read(tmp_path / "old.npz", "params/")
        table = np.random.default_rng(0).normal(size=(1, 25, 8)).astype("float32")
        path = npz_files.save(tmp_path / "new.npz", arrays | {"pos_embedding": table})
    else:
        path = write(tmp_path, RECTANGLES[name])
    like = {"like": "vit_base_patch16_clip_quickgelu_224"} if "CLIP" in name else {}
    model = keras_vit.load(path, **said, **like)
    model = getattr(model, "backbone", model)
    assert (model.config.grid_size, model.config.position_rows) == ((4, 6), 25)
    stored = open_file(path)
    (table,) = (array.read() for array in stored.values() if 25 in array.shape)
    found = model.get_layer("position_embedding").get_weights()[0]
    np.testing.assert_array_equal(found, table.reshape(found.shape))


@pytest.mark.filterwarnings("ignore:.*does not contain all settings")
@pytest.mark.parametrize(
    ("rows", "size", "grid"), [(65, (40, 104), (8, 8)), (25, (40, 40), (5, 5)), (65, (64, 64), (8, 8))]
)
def test_a_square_stays_one(tmp_path, rows, size, grid):
    """The size is what is asked for: 65 rows are 8 x 8 patches and a class token, also for 5 x 13 patches."""
    path = write(tmp_path, timm(rows=rows))
    model, stored = keras_vit.load(path, image_size=size), open_file(path)["pos_embed"].read()
    own = keras_vit.load(path).config
    assert own.grid_size == grid and own.position_rows == rows
    wanted = resize_table(stored, grid, model.config.grid_size, "bicubic")
    np.testing.assert_array_equal(model.get_layer("position_embedding").get_weights()[0], wanted)
