"""The published recipes, as data. `recipes.py` says what the fields mean and gives the rows to you.

A row with several `variants` or `epochs` is one row of the paper and becomes a recipe for each; what all rows of
a group share stands in the group. Fields that a source leaves open are named in its `source`.
"""

from typing import Any

# AugReg's levels of data augmentation: mixup's p, and RandAugment's layers and magnitude (AugReg, section 3.3;
# MIXUP_DEF and RANDAUG_DEF in big_vision/configs/vit_i21k.py). light1 is not nothing: it picks operations that have
# no magnitude. The names of AugReg's files have light0, which the code has not.
AUGREG_LEVELS: dict[str, dict[str, Any]] = {
    "none": {},
    "light0": {},
    "light1": {"randaugment": (2, 0)},
    "light2": {"mixup": 0.2, "randaugment": (2, 10)},
    "medium1": {"mixup": 0.2, "randaugment": (2, 15)},
    "medium2": {"mixup": 0.5, "randaugment": (2, 15)},
    "strong1": {"mixup": 0.5, "randaugment": (2, 20)},
    "strong2": {"mixup": 0.8, "randaugment": (2, 20)},
}

_VIT_JAX = "vit_jax/train.py and vit_jax/configs/common.py"
_FINE_TUNING: dict[str, Any] = {
    "optimizer": "sgd",
    "momentum": 0.9,
    "momentum_dtype": "bfloat16",
    "clip_norm": 1.0,
    "schedule": "cosine",
    "batch_size": 512,
    "image_size": 384,
    "loss": "softmax",
}
_PRETRAINING: dict[str, Any] = {
    "optimizer": "adamw",
    "beta_1": 0.9,
    "beta_2": 0.999,
    "warmup_steps": 10_000,
    "batch_size": 4096,
    "image_size": 224,
}
_JFT: dict[str, Any] = {
    **_PRETRAINING,
    "dataset": "JFT-300M",
    "schedule": "linear",
    "end": 1e-5,
    "weight_decay": 0.1,
    "loss": "sigmoid",
    "head_bias": -10.0,
    "source": "arXiv 2010.11929, Table 3; last rate of vit_jax/utils.py; loss and head bias not given there, those of "
    "big_vision/configs/vit_i21k.py",
}
_IMAGENET21K: dict[str, Any] = {**_JFT, "dataset": "ImageNet-21k", "weight_decay": 0.03, "dropout": 0.1}
_AUGREG_PRETRAINING: dict[str, Any] = {
    **_PRETRAINING,
    "epochs": 300,
    "learning_rate": 0.001,
    "schedule": "cosine",
    "weight_decay": 0.1,
    "clip_norm": 1.0,
    "sweep": {"weight_decay": (0.03, 0.1), "dropout": (0.0, 0.1), "drop_path": (0.0, 0.1)},
}
_SWEEP = (0.001, 0.003, 0.01, 0.03)
_IMAGENET_SWEEP = (0.003, 0.01, 0.03, 0.06)
_AUGREG_SWEEP = {"learning_rate": (0.001, 0.003, 0.01), "image_size": (224, 384)}
_TABLE_4 = f"arXiv 2010.11929, Table 4; warm-up, momentum dtype and default rate: {_VIT_JAX}"
_AUGREG_TABLE = "arXiv 2106.10270, section 3.4 and the table of fine-tuning details; warm-up: vit_jax/configs/augreg.py"
_TRANSFER = "big_vision/configs/transfer.py (batch 512, SGD, best rates of AugReg's B/32)"


def _finetune(name: str, dataset: str, steps: int, learning_rate: float, source: str, **others: Any) -> dict[str, Any]:
    """A row of fine-tuning; `others` are fields that differ from `_FINE_TUNING` or are not there."""
    row = {"name": f"finetune/{name}", "dataset": dataset, "steps": steps, "learning_rate": learning_rate}
    return {**_FINE_TUNING, "warmup_steps": 100 if steps == 500 else 500, **row, "source": source, **others}


# Fields of a row: those of a Recipe; `name` may have {variant}, {epochs} and {level} in it.
ROWS: tuple[dict[str, Any], ...] = (
    # Fine-tuning, arXiv 2010.11929, Table 4
    _finetune("imagenet2012", "ImageNet", 20_000, 0.03, _TABLE_4, sweep={"learning_rate": _IMAGENET_SWEEP}),
    *(
        _finetune(
            f"imagenet2012-{size}",
            "ImageNet",
            20_000,
            0.03,
            f"arXiv 2010.11929, section 4.1 (resolution and Polyak averaging for Table 2); else {_TABLE_4}",
            models=f"{model} of Table 2",
            image_size=size,
            polyak=0.9999,
            sweep={"learning_rate": _IMAGENET_SWEEP},
        )
        for size, model in ((512, "ViT-L/16"), (518, "ViT-H/14"))
    ),
    *(
        _finetune(name, dataset, steps, 0.03, _TABLE_4, sweep={"learning_rate": _SWEEP})
        for name, dataset, steps in (
            ("cifar100", "CIFAR-100", 10_000),
            ("cifar10", "CIFAR-10", 10_000),
            ("oxford_iiit_pet", "Oxford-IIIT Pets", 500),
            ("oxford_flowers102", "Oxford Flowers-102", 500),
        )
    ),
    _finetune("vtab", "VTAB, 1,000 examples of each of 19 tasks", 2_500, 0.01, _TABLE_4),
    # Fine-tuning of AugReg's checkpoints
    _finetune(
        "augreg", "any", 500, 0.03, "vit_jax/configs/augreg.py, which says that steps and rate are often changed"
    ),
    _finetune(
        "augreg/imagenet2012",
        "ImageNet",
        20_000,
        0.03,
        _AUGREG_TABLE,
        sweep={"learning_rate": (0.01, 0.03), "image_size": (224, 384)},
    ),
    *(
        _finetune(f"augreg/{name}-{steps}", dataset, steps, rate, _AUGREG_TABLE, sweep=_AUGREG_SWEEP)
        for name, dataset, rate, durations in (
            ("cifar100", "CIFAR-100", 0.01, (2_500, 10_000)),
            ("oxford_iiit_pet", "Oxford-IIIT Pets", 0.003, (500, 2_500)),
            ("kitti", "KITTI (distance)", 0.01, (500, 2_500)),
            ("resisc45", "RESISC45", 0.01, (500, 2_500)),
        )
        for steps in durations
    ),
    _finetune("augreg/cifar10", "CIFAR-10", 10_000, 0.003, _TRANSFER, augmentation={"crop": "random"}),
    _finetune("augreg/oxford_flowers102", "Oxford Flowers-102", 500, 0.003, _TRANSFER),
    # Pre-training, arXiv 2010.11929, Table 3
    *(
        {"name": "pretrain/jft/{variant}", "variants": variants, "epochs": epochs, "learning_rate": rate, **_JFT}
        for variants, epochs, rate in (
            (("ViT-B/16", "ViT-B/32"), (7,), 8e-4),
            (("ViT-L/32",), (7,), 6e-4),
            (("ViT-L/16",), (7, 14), 4e-4),
            (("ViT-H/14",), (14,), 3e-4),
            (("BiT-R50x1", "BiT-R50x2"), (7,), 1e-3),
            (("BiT-R101x1",), (7,), 8e-4),
            (("BiT-R152x1", "BiT-R152x2"), (7,), 6e-4),
            (("R50+ViT-B/16", "R50+ViT-B/32"), (7,), 8e-4),
            (("R50+ViT-L/32",), (7,), 2e-4),
            (("R50+ViT-L/16",), (7, 14), 4e-4),
        )
    ),
    *(
        {
            "name": "pretrain/imagenet21k/{variant}",
            "variants": variants,
            "epochs": epochs,
            "learning_rate": 1e-3,
            **_IMAGENET21K,
        }
        for variants, epochs in ((("ViT-B/16", "ViT-B/32"), (90,)), (("ViT-L/16", "ViT-L/32"), (30, 90)))
    ),
    {
        "name": "pretrain/imagenet2012",
        "dataset": "ImageNet",
        "models": "ViT-*",
        **_PRETRAINING,
        "epochs": 300,
        "learning_rate": 3e-3,
        "schedule": "cosine",
        "weight_decay": 0.3,
        "dropout": 0.1,
        "clip_norm": 1.0,
        "loss": "softmax",
        "source": "arXiv 2010.11929, Table 3; loss not given there, that of big_vision/configs/vit_i1k.py",
    },
    # Pre-training, AugReg
    *(
        {
            "name": f"pretrain/augreg/i21k/{level}",
            "dataset": "ImageNet-21k",
            **_AUGREG_PRETRAINING,
            "sweep": {**_AUGREG_PRETRAINING["sweep"], "epochs": (30, 300)},
            "loss": "sigmoid",
            "head_bias": -10.0,
            "augmentation": changes,
            "source": "arXiv 2106.10270, section 3; big_vision/configs/vit_i21k.py",
        }
        for level, changes in AUGREG_LEVELS.items()
    ),
    *(
        {
            "name": f"pretrain/augreg/i1k/{level}",
            "dataset": "ImageNet",
            **_AUGREG_PRETRAINING,
            "loss": "softmax",
            "augmentation": changes,
            "source": "arXiv 2106.10270, section 3; big_vision/configs/vit_i1k.py",
        }
        for level, changes in AUGREG_LEVELS.items()
    ),
    # Others of the same authors
    {
        "name": "pretrain/imagenet2012/ViT-S/16",
        "dataset": "ImageNet",
        "models": "ViT-S/16",
        **_PRETRAINING,
        "epochs": 90,
        "batch_size": 1024,
        "learning_rate": 0.001,
        "schedule": "cosine",
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        "loss": "softmax",
        "augmentation": {"mixup": 0.2, "randaugment": (2, 10)},
        "sweep": {"epochs": (90, 150, 300)},
        "source": "arXiv 2205.01580; big_vision/configs/vit_s16_i1k.py",
    },
    {
        "name": "pretrain/masked_patches",
        "dataset": "JFT-300M",
        "models": "ViT-B/16",
        **_PRETRAINING,
        "steps": 1_000_000,
        "learning_rate": 2e-4,
        "schedule": "cosine",
        "loss": "softmax",
        "source": "arXiv 2010.11929, appendix B.1.2; weight decay not given there",
    },
)
