"""The published tables as data, and the Keras objects that come of them."""

import copy
import json
import pickle

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, ViTConfig, training
from keras_vit.data import Augmentation
from keras_vit.layers import skip_initialization
from keras_vit.training import AdamW, MomentumSGD, SigmoidLoss, SoftmaxLoss
from keras_vit.training.optimizers import build_loss, build_optimizer, build_schedule
from keras_vit.training.recipe_table import ROWS
from keras_vit.training.recipes import Recipe, list_recipes, recipe

pytestmark = pytest.mark.once

# arXiv 2010.11929, Table 4: data, steps, rates. Written out again, so that a slip would have to be made twice.
FINE_TUNING = {
    "imagenet2012": (20_000, (0.003, 0.01, 0.03, 0.06)),
    "cifar100": (10_000, (0.001, 0.003, 0.01, 0.03)),
    "cifar10": (10_000, (0.001, 0.003, 0.01, 0.03)),
    "oxford_iiit_pet": (500, (0.001, 0.003, 0.01, 0.03)),
    "oxford_flowers102": (500, (0.001, 0.003, 0.01, 0.03)),
    "vtab": (2_500, (0.01,)),
}
# Table 3: names, epochs, rates; decay, weight decay and dropout of the data set.
PRETRAINING = {
    "jft": (
        ("linear", 0.1, 0.0),
        {
            **{name: (7, 8e-4) for name in ("ViT-B/16", "ViT-B/32", "BiT-R101x1", "R50+ViT-B/16", "R50+ViT-B/32")},
            **{name: (7, 6e-4) for name in ("ViT-L/32", "BiT-R152x1", "BiT-R152x2")},
            **{name: (7, 4e-4) for name in ("ViT-L/16-7ep", "R50+ViT-L/16-7ep")},
            **{name: (14, 4e-4) for name in ("ViT-L/16-14ep", "R50+ViT-L/16-14ep")},
            **{name: (7, 1e-3) for name in ("BiT-R50x1", "BiT-R50x2")},
            "ViT-H/14": (14, 3e-4),
            "R50+ViT-L/32": (7, 2e-4),
        },
    ),
    "imagenet21k": (
        ("linear", 0.03, 0.1),
        {
            **{name: (90, 1e-3) for name in ("ViT-B/16", "ViT-B/32", "ViT-L/16-90ep", "ViT-L/32-90ep")},
            **{name: (30, 1e-3) for name in ("ViT-L/16-30ep", "ViT-L/32-30ep")},
        },
    ),
    "imagenet2012": (("cosine", 0.3, 0.1), {"": (300, 3e-3)}),
}
TABLE_3 = {
    f"pretrain/{data}/{name}".rstrip("/"): (*row, *fields)
    for data, (fields, rows) in PRETRAINING.items()
    for name, row in rows.items()
}
# AugReg: mixup, RandAugment.
LEVELS = {
    "none": (0.0, None),
    "light0": (0.0, None),
    "light1": (0.0, (2, 0)),
    "light2": (0.2, (2, 10)),
    "medium1": (0.2, (2, 15)),
    "medium2": (0.5, (2, 15)),
    "strong1": (0.5, (2, 20)),
    "strong2": (0.8, (2, 20)),
}


@pytest.mark.parametrize("name", FINE_TUNING)
def test_table_4(name):
    found = recipe(f"finetune/{name}")
    steps, rates = FINE_TUNING[name]
    assert (found.steps, found.sweep.get("learning_rate", (found.learning_rate,))) == (steps, rates)
    assert found.learning_rate in rates
    assert (found.batch_size, found.image_size, found.weight_decay) == (512, 384, 0)
    assert (found.optimizer, found.momentum, found.clip_norm, found.schedule) == ("sgd", 0.9, 1.0, "cosine")
    assert found.warmup_steps == (100 if steps == 500 else 500)
    assert found.augmentation == Augmentation() and "Table 4" in found.source


@pytest.mark.parametrize("name", TABLE_3)
def test_table_3(name):
    found = recipe(name)
    fields = (found.epochs, found.learning_rate, found.schedule, found.weight_decay, found.dropout)
    assert fields == TABLE_3[name]
    assert (found.batch_size, found.warmup_steps, found.image_size) == (4096, 10_000, 224)
    assert (found.optimizer, found.beta_1, found.beta_2) == ("adamw", 0.9, 0.999)
    assert found.clip_norm == (1.0 if name == "pretrain/imagenet2012" else None)
    assert "Table 3" in found.source


def test_tables_3_and_4_have_no_other_rows():
    def names(table):
        return [row["name"] for row in list_recipes("2010.11929") if table in row["source"]]

    assert set(names("Table 3")) == TABLE_3.keys() and len(names("Table 3")) == 23
    of_table_2 = {"finetune/imagenet2012-512", "finetune/imagenet2012-518"}
    assert set(names("Table 4")) - of_table_2 == {f"finetune/{name}" for name in FINE_TUNING}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("data, kind, bias", [("i21k", SigmoidLoss, -10.0), ("i1k", SoftmaxLoss, 0.0)])
def test_augreg_pretraining(level, data, kind, bias):
    found = recipe(f"pretrain/augreg/{data}/{level}")
    assert (found.augmentation.mixup, found.augmentation.randaugment) == LEVELS[level]
    assert (found.epochs, found.learning_rate, found.schedule, found.clip_norm) == (300, 0.001, "cosine", 1.0)
    assert found.weight_decay in found.sweep["weight_decay"] == (0.03, 0.1)
    assert type(build_loss(found)) is kind and found.head_bias == bias


def test_augreg_fine_tuning():
    found = {row["name"]: recipe(row["name"]) for row in list_recipes("finetune/augreg")}
    assert {r.steps for r in found.values()} == {500, 2_500, 10_000, 20_000}
    assert all(r.warmup_steps == (100 if r.steps == 500 else 500) for r in found.values())
    assert all(r.learning_rate in r.sweep.get("learning_rate", (r.learning_rate,)) for r in found.values())
    assert found["finetune/augreg"].learning_rate == 0.03  # vit_jax/configs/augreg.py


def test_every_recipe_has_a_source_and_becomes_keras_objects():
    rows = list_recipes()
    assert len(rows) == len({row["name"].lower() for row in rows}) == len(ROWS) == 61
    for row in rows:
        found = recipe(row["name"])
        assert found.source and found.name == row["name"]
        steps = found.total_steps(14_000_000)
        made = build_optimizer(found, steps=steps)
        assert type(made) is (MomentumSGD if found.optimizer == "sgd" else AdamW)
        rate = build_schedule(found, steps)
        assert float(rate(0)) == 0 and float(rate(found.warmup_steps)) == pytest.approx(found.learning_rate)
        assert Recipe.from_dict(json.loads(json.dumps(found.to_dict()))) == found
        assert hash(found) == hash(recipe(row["name"]))
        assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found


def test_list_prints_a_table():
    rows = list_recipes("pretrain JFT h/14")
    assert [row["name"] for row in rows] == ["pretrain/jft/ViT-H/14"]
    assert "0.0003" in str(rows) and "14 epochs" in str(rows) and "4096" in str(rows)
    assert list_recipes("no such recipe") == []


def test_a_wrong_name_is_told_the_near_ones():
    with pytest.raises(ValueError, match="Did you mean 'finetune/cifar10' or 'finetune/cifar100'"):
        recipe("finetune/cifar")
    with pytest.raises(ValueError, match="pretrain/jft/ViT-L/16-7ep"):
        recipe("pretrain/jft/ViT-L/16")
    assert recipe("Pretrain/JFT/vit-b/16").models == "ViT-B/16"
    with pytest.raises(TypeError, match="string"):
        recipe(None)


def test_steps():
    epochs = recipe("pretrain/imagenet2012")
    assert epochs.total_steps(1_281_167) == 93_835  # 300 * 1,281,167 / 4096
    with pytest.raises(ValueError, match="counts 300 epochs"):
        build_schedule(epochs)
    assert epochs.replace(steps=10).epochs is None
    assert recipe("finetune/cifar10").replace(epochs=2).steps is None
    with pytest.raises(ValueError, match="neither"):
        Recipe().total_steps()


def test_a_short_training_has_a_short_warm_up():
    found = recipe("finetune/imagenet2012")  # 500 of 20,000 steps
    assert build_schedule(found).warmup_steps == 500
    assert build_schedule(found, 2_000).warmup_steps == 500
    assert build_schedule(found, 200).warmup_steps == 5
    assert build_schedule(found.replace(steps=200)).warmup_steps == 20
    assert build_schedule(found, 1).steps == 1
    asked = found.replace(steps=10, warmup_steps=9)
    assert build_schedule(asked).warmup_steps == 9
    with pytest.raises(ValueError, match="below steps=10"):
        build_schedule(asked.replace(warmup_steps=10))


def test_optimizer_of_a_recipe_of_ones_own():
    mine = Recipe(
        steps=10, optimizer="adam", weight_decay=0.1, clip_norm=1.0, polyak=0.999, layer_decay=0.75, accumulate=4
    )
    mine = mine.replace(momentum_dtype="bfloat16")
    with pytest.raises(ValueError, match="pass build_optimizer"):
        build_optimizer(mine)
    config = ViTConfig(image_size=8, patch_size=4, width=8, depth=2, heads=2, mlp_width=16, classes=3)
    with skip_initialization():
        model = VisionTransformer(config)
    made = build_optimizer(mine, model)
    assert isinstance(made, AdamW) and isinstance(made, keras.optimizers.Optimizer)
    config = made.get_config()
    wanted = {"use_ema": True, "ema_momentum": 0.999, "gradient_accumulation_steps": 4, "global_clipnorm": 1.0}
    assert {**config, **wanted, "weight_decay": 0.1, "momentum_dtype": "bfloat16"} == config
    assert config["rate_multipliers"]["block_1/*"] == 0.75


WRONG = [
    ("lion", "optimizer loss schedule"),
    (0, "accumulate batch_size steps epochs clip_norm layer_decay image_size lora_rank"),
    (1.0, "momentum beta_2 dropout label_smoothing polyak"),
    (-0.1, "learning_rate weight_decay drop_path warmup_steps"),
    (1.5, "batch_size warmup_steps"),
    (True, "steps learning_rate"),
    (float("nan"), "learning_rate end"),
    ("0.1", "learning_rate"),
]


@pytest.mark.parametrize("value, fields", WRONG)
def test_a_field_that_is_wrong_is_named(value, fields):
    for field in fields.split():
        with pytest.raises(ValueError, match=f"{field} must be .*, but {value!r} was given"):
            Recipe(**{field: value})


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"batch_size": 10, "accumulate": 4}, "batch_size must be a multiple of accumulate"),
        ({"steps": 1, "epochs": 1}, "steps or epochs"),
        ({"lora_alpha": 4.0}, "give lora_rank as well"),
    ],
)
def test_fields_that_do_not_fit_each_other(fields, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**fields)


@pytest.mark.parametrize("name", ["loss", "optimizer", "schedule"])
def test_old_names_say_the_new_ones(name):
    found = recipe("finetune/cifar10")
    with pytest.deprecated_call(match=f"training.build_{name}"):
        old = getattr(training, name)(found)
    assert type(old) is type(getattr(training, f"build_{name}")(found))


def test_numbers_of_numpy_become_plain():
    found = Recipe(learning_rate=np.float32(0.5), steps=np.int64(3), image_size=[16, np.int64(24)], freeze="head")
    assert json.loads(json.dumps(found.to_dict()))["image_size"] == [16, 24]
    assert Recipe.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert found.freeze == ("head",)
