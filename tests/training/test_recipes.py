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
from keras_vit.training.recipes import Recipe, list_recipes, recipe
from keras_vit.training.run import build_loss, build_optimizer, build_schedule

# arXiv 2010.11929, Table 4: data, steps, rates. Written out again, so that a slip would have to be made twice.
FINE_TUNING = {
    "imagenet2012": (20_000, (0.003, 0.01, 0.03, 0.06)),
    "cifar100": (10_000, (0.001, 0.003, 0.01, 0.03)),
    "cifar10": (10_000, (0.001, 0.003, 0.01, 0.03)),
    "oxford_iiit_pet": (500, (0.001, 0.003, 0.01, 0.03)),
    "oxford_flowers102": (500, (0.001, 0.003, 0.01, 0.03)),
    "vtab": (2_500, (0.01,)),
}
# Table 3: name, epochs, rate, decay, weight decay, dropout.
PRETRAINING = [
    ("jft/ViT-B/16", 7, 8e-4, "linear", 0.1, 0.0),
    ("jft/ViT-B/32", 7, 8e-4, "linear", 0.1, 0.0),
    ("jft/ViT-L/32", 7, 6e-4, "linear", 0.1, 0.0),
    ("jft/ViT-L/16-7ep", 7, 4e-4, "linear", 0.1, 0.0),
    ("jft/ViT-L/16-14ep", 14, 4e-4, "linear", 0.1, 0.0),
    ("jft/ViT-H/14", 14, 3e-4, "linear", 0.1, 0.0),
    ("jft/BiT-R50x1", 7, 1e-3, "linear", 0.1, 0.0),
    ("jft/BiT-R50x2", 7, 1e-3, "linear", 0.1, 0.0),
    ("jft/BiT-R101x1", 7, 8e-4, "linear", 0.1, 0.0),
    ("jft/BiT-R152x1", 7, 6e-4, "linear", 0.1, 0.0),
    ("jft/BiT-R152x2", 7, 6e-4, "linear", 0.1, 0.0),
    ("jft/R50+ViT-B/16", 7, 8e-4, "linear", 0.1, 0.0),
    ("jft/R50+ViT-B/32", 7, 8e-4, "linear", 0.1, 0.0),
    ("jft/R50+ViT-L/32", 7, 2e-4, "linear", 0.1, 0.0),
    ("jft/R50+ViT-L/16-7ep", 7, 4e-4, "linear", 0.1, 0.0),
    ("jft/R50+ViT-L/16-14ep", 14, 4e-4, "linear", 0.1, 0.0),
    ("imagenet21k/ViT-B/16", 90, 1e-3, "linear", 0.03, 0.1),
    ("imagenet21k/ViT-B/32", 90, 1e-3, "linear", 0.03, 0.1),
    ("imagenet21k/ViT-L/16-30ep", 30, 1e-3, "linear", 0.03, 0.1),
    ("imagenet21k/ViT-L/16-90ep", 90, 1e-3, "linear", 0.03, 0.1),
    ("imagenet21k/ViT-L/32-30ep", 30, 1e-3, "linear", 0.03, 0.1),
    ("imagenet21k/ViT-L/32-90ep", 90, 1e-3, "linear", 0.03, 0.1),
    ("imagenet2012", 300, 3e-3, "cosine", 0.3, 0.1),
]
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


@pytest.mark.parametrize("name, epochs, rate, decay, weight_decay, dropout", PRETRAINING)
def test_table_3(name, epochs, rate, decay, weight_decay, dropout):
    found = recipe(f"pretrain/{name}")
    assert (found.epochs, found.learning_rate, found.schedule) == (epochs, rate, decay)
    assert (found.weight_decay, found.dropout) == (weight_decay, dropout)
    assert (found.batch_size, found.warmup_steps, found.image_size) == (4096, 10_000, 224)
    assert (found.optimizer, found.beta_1, found.beta_2) == ("adamw", 0.9, 0.999)
    assert found.clip_norm == (1.0 if name == "imagenet2012" else None)
    assert "Table 3" in found.source


def test_tables_3_and_4_have_no_other_rows():
    def names(table):
        return [row["name"] for row in list_recipes("2010.11929") if table in row["source"]]

    assert names("Table 3") == [f"pretrain/{row[0]}" for row in PRETRAINING]
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
    names = [row["name"] for row in list_recipes("finetune/augreg")]
    found = {name: recipe(name) for name in names}
    assert {r.steps for r in found.values()} == {500, 2_500, 10_000, 20_000}
    assert all(r.warmup_steps == (100 if r.steps == 500 else 500) for r in found.values())
    assert all(r.learning_rate in r.sweep.get("learning_rate", (r.learning_rate,)) for r in found.values())
    assert found["finetune/augreg"].learning_rate == 0.03  # vit_jax/configs/augreg.py


def test_every_recipe_has_a_source_and_becomes_keras_objects():
    rows = list_recipes()
    assert len(rows) > 50
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


def test_list_prints_a_table():
    rows = list_recipes("pretrain JFT h/14")
    assert [row["name"] for row in rows] == ["pretrain/jft/ViT-H/14"]
    assert "0.0003" in str(rows) and "14 epochs" in str(rows) and "4096" in str(rows)
    assert str(list_recipes("no such recipe")) is not None and list_recipes("no such recipe") == []


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


def test_optimizer_of_a_recipe_of_ones_own():
    mine = Recipe(
        steps=10,
        optimizer="adam",
        weight_decay=0.1,
        clip_norm=1.0,
        polyak=0.999,
        layer_decay=0.75,
        accumulate=4,
        momentum_dtype="bfloat16",
    )
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


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"optimizer": "lion"}, "optimizer"),
        ({"loss": "hinge"}, "loss"),
        ({"batch_size": 10, "accumulate": 4}, "multiple of accumulate"),
        ({"schedule": "cos"}, "schedule"),
        ({"batch_size": 10, "accumulate": 0}, "accumulate"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"polyak": 1.0}, "polyak"),
        ({"learning_rate": -0.1}, "learning_rate must be a number of at least 0, but -0.1"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"learning_rate": "0.1"}, "learning_rate"),
        ({"momentum": 1.5}, "momentum"),
        ({"beta_2": 1.0}, "beta_2"),
        ({"weight_decay": -1}, "weight_decay"),
        ({"clip_norm": 0}, "clip_norm must be a number above 0"),
        ({"dropout": 1}, "dropout"),
        ({"drop_path": -0.1}, "drop_path"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"layer_decay": 0}, "layer_decay"),
        ({"steps": 0}, "steps must be a whole number of at least 1, but 0"),
        ({"steps": True}, "steps"),
        ({"steps": 1, "epochs": 1}, "steps or epochs"),
        ({"epochs": 0}, "epochs"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"warmup_steps": 1.5}, "warmup_steps"),
        ({"image_size": 0}, "image_size"),
        ({"lora_rank": 0}, "lora_rank"),
        ({"lora_alpha": 4.0}, "give lora_rank as well"),
    ],
)
def test_says_what_is_wrong(fields, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**fields)


def test_recipes_hold_plain_text():
    found = recipe("finetune/cifar10")
    assert [type(value) for value in (found.loss, found.optimizer, found.schedule)] == [str] * 3
    for copied in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found), found.replace(steps=found.steps)):
        assert copied == found
    assert build_optimizer(found.replace(optimizer="adam", weight_decay=0.0)).weight_decay is None


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


def test_a_warm_up_that_is_asked_for_is_kept():
    found = recipe("finetune/imagenet2012").replace(steps=10, warmup_steps=9)
    assert build_schedule(found).warmup_steps == 9
    with pytest.raises(ValueError, match="less than steps=10"):
        build_schedule(found.replace(warmup_steps=10))
