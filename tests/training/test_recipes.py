"""The published tables as data, and the Keras objects that come of them."""

import json
import pickle

import pytest

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.data import Augmentation
from keras_vit.layers import skip_initialization
from keras_vit.training import AdamW, MomentumSGD, SigmoidLoss, SoftmaxLoss
from keras_vit.training.published import ROWS
from keras_vit.training.recipes import Recipe, build_loss, build_optimizer, build_schedule, list_recipes, recipe
from keras_vit.training.trainable import TwoStageAdamW
from tests.small_models import small_eomt

pytestmark = pytest.mark.once

# Written out again, so that a slip would have to be made twice.
# arXiv 2010.11929, Table 4: data, steps, rates.
FINE_TUNING = {
    "imagenet2012": (20_000, (0.003, 0.01, 0.03, 0.06)),
    "cifar100": (10_000, (0.001, 0.003, 0.01, 0.03)),
    "cifar10": (10_000, (0.001, 0.003, 0.01, 0.03)),
    "oxford_iiit_pet": (500, (0.001, 0.003, 0.01, 0.03)),
    "oxford_flowers102": (500, (0.001, 0.003, 0.01, 0.03)),
    "vtab": (2_500, (0.01,)),
}
# Table 3: epochs, rate, decay, weight decay, dropout, and the names of the rows.
TABLE_3 = [
    (7, 8e-4, "linear", 0.1, 0.0, "jft/ViT-B/16 jft/ViT-B/32 jft/BiT-R101x1 jft/R50+ViT-B/16 jft/R50+ViT-B/32"),
    (7, 6e-4, "linear", 0.1, 0.0, "jft/ViT-L/32 jft/BiT-R152x1 jft/BiT-R152x2"),
    (7, 4e-4, "linear", 0.1, 0.0, "jft/ViT-L/16-7ep jft/R50+ViT-L/16-7ep"),
    (14, 4e-4, "linear", 0.1, 0.0, "jft/ViT-L/16-14ep jft/R50+ViT-L/16-14ep"),
    (7, 1e-3, "linear", 0.1, 0.0, "jft/BiT-R50x1 jft/BiT-R50x2"),
    (14, 3e-4, "linear", 0.1, 0.0, "jft/ViT-H/14"),
    (7, 2e-4, "linear", 0.1, 0.0, "jft/R50+ViT-L/32"),
    (90, 1e-3, "linear", 0.03, 0.1, "imagenet21k/ViT-B/16 imagenet21k/ViT-B/32"),
    (90, 1e-3, "linear", 0.03, 0.1, "imagenet21k/ViT-L/16-90ep imagenet21k/ViT-L/32-90ep"),
    (30, 1e-3, "linear", 0.03, 0.1, "imagenet21k/ViT-L/16-30ep imagenet21k/ViT-L/32-30ep"),
    (300, 3e-3, "cosine", 0.3, 0.1, "imagenet2012"),
]
LEVELS = {
    **{"none": (0.0, None), "light0": (0.0, None), "light1": (0.0, (2, 0)), "light2": (0.2, (2, 10))},
    **{"medium1": (0.2, (2, 15)), "medium2": (0.5, (2, 15)), "strong1": (0.5, (2, 20)), "strong2": (0.8, (2, 20))},
}


def names_of(table):
    return {row["name"] for row in list_recipes("2010.11929") if table in row["source"]}


def test_table_4():
    of_table_2 = {"finetune/imagenet2012-512", "finetune/imagenet2012-518"}
    assert names_of("Table 4") - of_table_2 == {f"finetune/{name}" for name in FINE_TUNING}
    for name, (steps, rates) in FINE_TUNING.items():
        found = recipe(f"finetune/{name}")
        assert (found.steps, found.sweep.get("learning_rate", (found.learning_rate,))) == (steps, rates)
        assert found.learning_rate in rates
        assert (found.batch_size, found.image_size, found.weight_decay) == (512, 384, 0)
        assert (found.optimizer, found.momentum, found.clip_norm, found.schedule) == ("sgd", 0.9, 1.0, "cosine")
        assert found.warmup_steps == (100 if steps == 500 else 500)
        assert found.augmentation == Augmentation() == Augmentation("inception", 0.05, True, 0.0, None)


def test_table_3():
    rows = {f"pretrain/{name}": fields for *fields, names in TABLE_3 for name in names.split()}
    assert names_of("Table 3") == rows.keys()
    for name, fields in rows.items():
        found = recipe(name)
        rest = (found.schedule, found.weight_decay, found.dropout)
        assert [found.epochs, found.learning_rate, *rest] == fields, name
        assert (found.batch_size, found.warmup_steps, found.image_size) == (4096, 10_000, 224)
        assert (found.optimizer, found.beta_1, found.beta_2) == ("adamw", 0.9, 0.999)
        assert found.clip_norm == (1.0 if name == "pretrain/imagenet2012" else None)


@pytest.mark.parametrize("data, kind, bias", [("i21k", SigmoidLoss, -10.0), ("i1k", SoftmaxLoss, 0.0)])
def test_augreg(data, kind, bias):
    for level, augmentation in LEVELS.items():
        found = recipe(f"pretrain/augreg/{data}/{level}")
        assert (found.augmentation.mixup, found.augmentation.randaugment) == augmentation
        assert (found.epochs, found.learning_rate, found.schedule, found.clip_norm) == (300, 0.001, "cosine", 1.0)
        assert found.weight_decay in found.sweep["weight_decay"] == (0.03, 0.1)
        assert type(build_loss(found)) is kind and found.head_bias == bias
    tuned = [recipe(row["name"]) for row in list_recipes("finetune/augreg")]
    assert {r.steps for r in tuned} == {500, 2_500, 10_000, 20_000}
    assert all(r.warmup_steps == (100 if r.steps == 500 else 500) for r in tuned)
    assert all(r.learning_rate in r.sweep.get("learning_rate", (r.learning_rate,)) for r in tuned)


# facebookresearch/deit, main.py and the commands of its README: size, epochs, batch, rate, decay, drop path, erasing.
DEIT = {
    "pretrain/deit": (224, 300, 1024, 0.0005 * 1024 / 512, 0.05, 0.1, 0.25),
    "finetune/deit-384": (384, 30, 512, 5e-6, 1e-8, 0.1, 0.25),
    "finetune/deit3/ViT-S/16": (384, 20, 512, 1e-5, 0.1, 0.0, 0.0),
    "finetune/deit3/ViT-B/16": (224, 20, 512, 1e-5, 0.1, 0.2, 0.0),
    "finetune/deit3/ViT-L/16": (224, 20, 512, 1e-5, 0.1, 0.45, 0.0),
    "finetune/deit3/ViT-H/14": (224, 20, 512, 1e-5, 0.1, 0.55, 0.0),
}


def test_deit():
    assert {row["name"] for row in list_recipes("deit")} == DEIT.keys()
    for name, fields in DEIT.items():
        found = recipe(name)
        numbers = (found.image_size, found.epochs, found.batch_size, found.learning_rate, found.weight_decay)
        assert (*numbers, found.drop_path, found.augmentation.erasing) == fields, name
        assert (found.label_smoothing, found.augmentation.mixup, found.augmentation.cutmix) == (0.1, 0.8, 1.0)
        assert found.warmup_steps * found.epochs == pytest.approx(5) and found.optimizer == "adamw"
        assert found.augmentation.randaugment is None and "Not supported: rand-m9-mstd0.5-inc1" in found.source
        # The last rate is main.py's --min-lr, 1e-5: as large as DeiT III's own, which is constant after the warm-up.
        last = float(build_schedule(found, 1000)(999))
        assert last == pytest.approx(5e-6 if name == "finetune/deit-384" else 1e-5, rel=1e-3)


def test_every_recipe_has_a_source_and_becomes_keras_objects():
    rows, eomt = list_recipes(), small_eomt()
    assert len(rows) == len({row["name"].lower() for row in rows}) == len(ROWS)
    for row in rows:
        found = recipe(row["name"])
        steps = found.total_steps(14_000_000)
        if found.backbone_warmup_steps is None:
            made = build_optimizer(found, steps=steps)
            assert type(made) is (MomentumSGD if found.optimizer == "sgd" else AdamW)
        else:
            made = build_optimizer(found, eomt, steps=steps)
            peak = pytest.approx(found.learning_rate)
            assert type(made) is TwoStageAdamW and float(made._schedule(found.warmup_steps)) == peak
        assert found.source
        rate = build_schedule(found, steps)
        decayed = rate.warmup_steps / steps if found.schedule == "linear_whole" else 0  # it began with the warm-up
        peak = pytest.approx(found.learning_rate * (1 - decayed), rel=0.004 if "cosine_w" in found.schedule else None)
        assert float(rate(0)) == 0 and float(rate(rate.warmup_steps)) == peak
        assert Recipe.from_dict(json.loads(json.dumps(found.to_dict()))) == found
        assert pickle.loads(pickle.dumps(found)) == found and hash(found) == hash(recipe(row["name"]))


def test_names_and_the_table():
    rows = list_recipes("pretrain JFT h/14")
    assert [row["name"] for row in rows] == ["pretrain/jft/ViT-H/14"]
    assert "0.0003" in str(rows) and "14 epochs" in str(rows) and "4096" in str(rows)
    assert list_recipes("no such recipe") == []
    assert recipe("Pretrain/JFT/vit-b/16").models == "ViT-B/16"
    wrong = {"finetune/cifar": "Did you mean 'finetune/cifar10' or", "pretrain/jft/ViT-L/16": "jft/ViT-L/16-7ep"}
    for name, message in {**wrong, None: "must be a string"}.items():
        with pytest.raises((TypeError, ValueError), match=message):
            recipe(name)


def test_recipes_of_pretraining_name_their_task():
    found = {row["name"]: row["task"] for row in list_recipes() if row["name"].startswith("pretrain/")}
    named = {name: task for name, task in found.items() if task != "pretrain"}
    assert all(name.startswith(f"pretrain/{task}") for name, task in named.items()) and len({*named.values()}) == 3


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
    assert build_schedule(found.replace(warmup_steps=1), 1).warmup_steps == 0
    for steps in ("100", float("-inf"), 0):
        with pytest.raises((TypeError, ValueError), match="steps must be a whole number of at least 1"):
            build_schedule(found, steps)
    asked = found.replace(steps=10, warmup_steps=9)
    assert build_schedule(asked).warmup_steps == 9
    with pytest.raises(ValueError, match="below steps=10"):
        build_schedule(asked.replace(warmup_steps=10))


def test_optimizer_of_a_recipe_of_ones_own():
    fields = {"optimizer": "adam", "weight_decay": 0.1, "clip_norm": 1.0, "polyak": 0.999, "layer_decay": 0.75}
    mine = Recipe(steps=10, accumulate=4, momentum_dtype="bfloat16", **fields)
    with pytest.raises(ValueError, match="Call build_optimizer"):
        build_optimizer(mine)
    with skip_initialization():
        config = ViTConfig(image_size=8, patch_size=4, width=8, depth=2, heads=2, mlp_width=16, classes=3)
        made = build_optimizer(mine, VisionTransformer(config))
    config = made.get_config()
    wanted = {"use_ema": True, "ema_momentum": 0.999, "gradient_accumulation_steps": 4, "global_clipnorm": 1.0}
    assert {**config, **wanted, "weight_decay": 0.1, "momentum_dtype": "bfloat16"} == config
    assert isinstance(made, AdamW) and config["rate_multipliers"]["block_1/*"] == 0.75


def test_fields_that_do_not_fit_each_other_are_named():
    for fields, message in (
        ({"batch_size": 10, "accumulate": 4}, "batch_size=10 must be a multiple of accumulate=4"),
        ({"steps": 1, "epochs": 1}, "steps or epochs"),
        ({"lora_alpha": 4.0}, "give lora_rank= as well"),
    ):
        with pytest.raises(ValueError, match=message):
            Recipe(**fields)
