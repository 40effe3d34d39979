"""The published recipes, as data. `recipes.py` says what the fields mean, and makes a `Recipe` of each row.

What all rows of a group share stands in the group; what no row says is the default of `Recipe`. Fields that a source
leaves open are named in its `source`.
"""

from typing import Any

# AugReg's levels of data augmentation: mixup's p, and RandAugment's layers and magnitude (AugReg, section 3.3;
# MIXUP_DEF and RANDAUG_DEF in big_vision/configs/vit_i21k.py). light1 is not nothing: it picks operations that have
# no magnitude. The names of AugReg's files have light0, which the code has not.
_AUGREG_LEVELS: dict[str, dict[str, Any]] = {
    "none": {},
    "light0": {},
    "light1": {"randaugment": (2, 0)},
    "light2": {"mixup": 0.2, "randaugment": (2, 10)},
    "medium1": {"mixup": 0.2, "randaugment": (2, 15)},
    "medium2": {"mixup": 0.5, "randaugment": (2, 15)},
    "strong1": {"mixup": 0.5, "randaugment": (2, 20)},
    "strong2": {"mixup": 0.8, "randaugment": (2, 20)},
}

_FINE_TUNING: dict[str, Any] = {
    "momentum_dtype": "bfloat16",
    "clip_norm": 1.0,
    "image_size": 384,
}
_PRETRAINING: dict[str, Any] = {
    "task": "pretrain",
    "optimizer": "adamw",
    "warmup_steps": 10_000,
    "batch_size": 4096,
}
_SIGMOID: dict[str, Any] = {"loss": "sigmoid", "head_bias": -10.0}
_JFT: dict[str, Any] = {
    **_PRETRAINING,
    **_SIGMOID,
    "dataset": "JFT-300M",
    "schedule": "linear",
    "end": 1e-5,
    "weight_decay": 0.1,
    "source": "arXiv 2010.11929, Table 3; last rate of vit_jax/utils.py; loss and head bias not given there, those of "
    "big_vision/configs/vit_i21k.py",
}
_IMAGENET21K: dict[str, Any] = {**_JFT, "dataset": "ImageNet-21k", "weight_decay": 0.03, "dropout": 0.1}
_AUGREG_PRETRAINING: dict[str, Any] = {
    **_PRETRAINING,
    "epochs": 300,
    "learning_rate": 0.001,
    "weight_decay": 0.1,
    "clip_norm": 1.0,
}
_AUGREG_SPREAD = {"weight_decay": (0.03, 0.1), "dropout": (0.0, 0.1), "drop_path": (0.0, 0.1)}
_AUGREG_DATA: dict[str, dict[str, Any]] = {
    "i21k": {"dataset": "ImageNet-21k", "sweep": {**_AUGREG_SPREAD, "epochs": (30, 300)}, **_SIGMOID},
    "i1k": {"dataset": "ImageNet", "sweep": _AUGREG_SPREAD},
}

_SEGMENTATION: dict[str, Any] = {
    "dataset": "ADE20K",
    "steps": 40_000,
    "batch_size": 16,
    "image_size": 512,
    "learning_rate": 1e-3,
    "warmup_steps": 1500,
    "optimizer": "adamw",
}
_SEGMENTATION_LACKS = "There, the warm-up begins at a millionth of the rate, and all weights decay"
_DINOV2: dict[str, Any] = {
    **_SEGMENTATION,
    "schedule": "linear_whole",
    "weight_decay": 1e-4,
    "source": f"configs beside DINOv2's published heads, mmsegmentation's schedule_40k. {_SEGMENTATION_LACKS}",
}
_CROPS = {"kind": "MaskAugmentation", "scale": (0.5, 2.0), "one_class": 0.75}

# EoMT: what all configurations share, and what each data set has (configs/dinov2 and configs/dinov3 of tue-mps/eomt).
_EOMT: dict[str, Any] = {
    "batch_size": 16,
    "optimizer": "adamw",
    "weight_decay": 0.05,
    "clip_norm": 0.01,
    "schedule": "polynomial",
    "power": 0.9,
}
_EOMT_DINOV2 = {"learning_rate": 1e-4, "layer_decay": 0.8, "warmup_steps": 500, "backbone_warmup_steps": 1000}
_EOMT_DINOV3 = {
    "learning_rate": 2e-4,
    "layer_decay": 0.8,
    "decay_query_blocks": False,
    "warmup_steps": 2000,
    "backbone_warmup_steps": 3000,
    "first_mask_steps": 3000,
}


def _eomt_data(dataset: str, queries: int, size: int, least: float, jitter: bool = True) -> dict[str, Any]:
    how = {"kind": "SegmentAugmentation", "scale": (least, 2.0), "jitter": jitter}
    return {"dataset": dataset, "queries": queries, "image_size": size, "augmentation": how}


_EOMT_COCO = _eomt_data("COCO", 200, 640, 0.1, jitter=False)
_EOMT_ADE20K_PANOPTIC = _eomt_data("ADE20K", 200, 640, 0.1)
_EOMT_ADE20K = _eomt_data("ADE20K", 100, 512, 0.5)
_EOMT_CITYSCAPES = _eomt_data("Cityscapes", 100, 1024, 0.5)
_EOMT_LACKS = "Pictures of 1280 pixels: image_size=1280. There, 4 GPUs compute in float16: dtype='mixed_float16' here"


# OWL-ViT: what its configurations share (scenic/projects/owl_vit/configs of google-research/scenic).
_OWL: dict[str, Any] = {
    "dataset": "Objects365, Visual Genome",
    "batch_size": 256,
    "learning_rate": 5e-5,
    "warmup_steps": 1000,
    "optimizer": "adam",
    "clip_norm": 1.0,
    "drop_path": 0.2,
    "image_size": 768,
    "augmentation": {"kind": "BoxAugmentation", "min_area": 0.3, "kept": 0.6},
}
_OWL_LACKS = (
    "Not supported: mosaics, clipping picture by picture, stochastic depth that does not enlarge what stays. The text "
    "tower trains there at 2e-6: text_rate=0.04 (L: 0.1) of finetune_detection"
)


def _owl_rows() -> list[dict[str, Any]]:
    """Returns a row for each configuration of OWL-ViT."""
    large = {"image_size": 840, "learning_rate": 2e-5, "steps": 70_000}
    rows = [
        ("owl_b32", "CLIP ViT-B/32", "clip_b32.py", {"steps": 140_000}),
        ("owl_b16", "CLIP ViT-B/16", "clip_b16.py", {"steps": 140_000}),
        ("owl_l14", "CLIP ViT-L/14", "clip_l14.py", large),
        ("owl_finetune", "OWL-ViT, OWLv2", 'clip_b32_finetune.py, "just a starting point"', {"steps": 16_000}),
    ]
    source = "google-research/scenic, projects/owl_vit/configs/"
    return [
        {**_OWL, **row, "name": f"detection/{name}", "models": models, "source": f"{source}{file}. {_OWL_LACKS}"}
        for name, models, file, row in rows
    ]


def _eomt_rows() -> list[dict[str, Any]]:
    """Returns a row for each configuration of EoMT's authors."""
    coco, long = 88_692, 177_384  # the latter is "2x" in the names of the authors' files
    last_decay = {**_EOMT_DINOV3, "layer_decay": 1.0}
    rows = [
        ("coco_panoptic_small", "S", long, _EOMT_COCO, _EOMT_DINOV2),
        ("coco_panoptic_base", "B", long, _EOMT_COCO, _EOMT_DINOV2),
        ("coco_panoptic_large", "L", coco, _EOMT_COCO, _EOMT_DINOV2),
        ("coco_panoptic_giant", "g", coco, _EOMT_COCO, _EOMT_DINOV2),
        ("coco_instance_large", "L", coco, _EOMT_COCO, _EOMT_DINOV2),
        ("ade20k_panoptic_large", "L", 39_122, _EOMT_ADE20K_PANOPTIC, _EOMT_DINOV2),
        ("ade20k_panoptic_giant", "g", 39_122, _EOMT_ADE20K_PANOPTIC, _EOMT_DINOV2),
        ("ade20k_base", "B (the authors': L)", 39_122, _EOMT_ADE20K, _EOMT_DINOV2),
        ("ade20k_large", "L", 39_122, _EOMT_ADE20K, _EOMT_DINOV2),
        ("cityscapes_large", "L", 19_902, _EOMT_CITYSCAPES, _EOMT_DINOV2),
        ("dinov3_coco_panoptic_small", "S", long, _EOMT_COCO, _EOMT_DINOV3),
        ("dinov3_coco_panoptic_base", "B", long, _EOMT_COCO, _EOMT_DINOV3),
        ("dinov3_coco_panoptic_large", "L", coco, _EOMT_COCO, _EOMT_DINOV3),
        ("dinov3_coco_instance_large", "L", coco, _EOMT_COCO, _EOMT_DINOV3),
        ("dinov3_ade20k_large", "L", 20_192, _EOMT_ADE20K, last_decay),
    ]
    result = []
    for name, size, steps, data, rates in rows:
        family = "DINOv3" if "dinov3" in name else "DINOv2"
        row = {"name": f"segmentation/eomt_{name}", "models": f"EoMT-{size} on {family}", "steps": steps}
        row["source"] = f"tue-mps/eomt, configs/{family.lower()}. {_EOMT_LACKS}"
        result.append(_EOMT | data | rates | row)
    return result


_SWEEP = {"learning_rate": (0.001, 0.003, 0.01, 0.03)}
_IMAGENET_SWEEP = {"learning_rate": (0.003, 0.01, 0.03, 0.06)}
_AUGREG_SWEEP = {"learning_rate": (0.001, 0.003, 0.01), "image_size": (224, 384)}
_AUGREG_IMAGENET_SWEEP = {"learning_rate": (0.01, 0.03), "image_size": (224, 384)}
_TABLE_4 = "arXiv 2010.11929, Table 4; warm-up, momentum dtype and default rate: vit_jax/train.py and "
_TABLE_4 += "vit_jax/configs/common.py"
_FOLDER = "this project: 1,920 pictures, ten minutes of a ViT-B/16 on two cores (docs/speed_rows.md); rate of arXiv "
_FOLDER += "2010.11929; 98 % of the digits of docs/tutorial.md, without crops and mirrored pictures"
_TABLE_2 = "arXiv 2010.11929, section 4.1 (resolution and Polyak averaging for Table 2); else " + _TABLE_4
_LARGE = {"models": "ViT-L/16 of Table 2", "image_size": 512, "sweep": _IMAGENET_SWEEP, "polyak": 0.9999}
_HUGE = {**_LARGE, "models": "ViT-H/14 of Table 2", "image_size": 518}
_AUGREG = "vit_jax/configs/augreg.py, which says that steps and rate are often changed"
_AUGREG_TABLE = "arXiv 2106.10270, section 3.4 and the table of fine-tuning details; warm-up: vit_jax/configs/augreg.py"
_TRANSFER = "big_vision/configs/transfer.py (batch 512, SGD, best rates of AugReg's B/32)"


_DEIT: dict[str, Any] = {
    "dataset": "ImageNet",
    "models": "ViT-Ti/16, ViT-S/16, ViT-B/16",
    "epochs": 300,
    "warmup_steps": 5 / 300,
    "batch_size": 1024,
    "learning_rate": 1e-3,
    "optimizer": "adamw",
    "weight_decay": 0.05,
    "drop_path": 0.1,
    "label_smoothing": 0.1,
    "augmentation": {
        "min_area": 0.08,
        "mixup": 0.8,
        "cutmix": 1.0,
        "erasing": 0.25,
        "erasing_mean": (0.485, 0.456, 0.406),
        "erasing_std": (0.229, 0.224, 0.225),
    },
}
_DEIT_LACKS = "Not supported: rand-m9-mstd0.5-inc1 (timm's RandAugment; ours has other operations), warm-up from 1e-6"
_DEIT_3: dict[str, Any] = {
    **_DEIT,
    "epochs": 20,
    "warmup_steps": 5 / 20,
    "batch_size": 512,
    "learning_rate": 1e-5,
    "end": 1e-5,  # main.py's --min-lr: the rate is constant after the warm-up
    "weight_decay": 0.1,
    "augmentation": {"min_area": 0.08, "mixup": 0.8, "cutmix": 1.0},
    "source": "arXiv 2204.07118, commands of facebookresearch/deit README_revenge.md (fine-tuning after training on "
    f"ImageNet-1k); last rate of its main.py. {_DEIT_LACKS}",
}


def _finetune(name: str, dataset: str, steps: int, rate: float, source: str, **others: Any) -> dict[str, Any]:
    """Returns a row of fine-tuning; `others` are fields that differ from `_FINE_TUNING` or are not there."""
    row = {"name": f"finetune/{name}", "dataset": dataset, "steps": steps, "learning_rate": rate, "source": source}
    return {**_FINE_TUNING, "warmup_steps": 100 if steps == 500 else 500, **row, **others}


def _table_3(
    data: str, models: tuple[str, ...], durations: tuple[int, ...], rate: float, group: dict[str, Any]
) -> tuple[dict[str, Any], ...]:
    """Returns a row of the paper's Table 3 as recipes, one for each of its models and durations in epochs."""
    rows = []
    for model in models:
        for epochs in durations:
            name = f"pretrain/{data}/{model}" + (f"-{epochs}ep" if len(durations) > 1 else "")
            rows.append({"name": name, "models": model, "epochs": epochs, **group, "learning_rate": rate})
    return tuple(rows)


def _features(name: str, *values: Any) -> dict[str, Any]:
    """Returns a row of feature distillation, with the weight decay, the last rate and the drop path of UNIC."""
    fields = ("models", "dataset", "epochs", "warmup_steps", "batch_size", "learning_rate", "beta_2", "source")
    own = {"name": f"pretrain/feature_distillation{name}", "task": "feature_distillation", "optimizer": "adamw"}
    return {**own, "weight_decay": 0.03, "end": 1e-6, "drop_path": 0.1, **dict(zip(fields, values, strict=True))}


# The rows' fields are those of a Recipe.
ROWS: tuple[dict[str, Any], ...] = (
    # Fine-tuning, arXiv 2010.11929, Table 4
    _finetune("imagenet2012", "ImageNet", 20_000, 0.03, _TABLE_4, sweep=_IMAGENET_SWEEP),
    _finetune("imagenet2012-512", "ImageNet", 20_000, 0.03, _TABLE_2, **_LARGE),
    _finetune("imagenet2012-518", "ImageNet", 20_000, 0.03, _TABLE_2, **_HUGE),
    _finetune("cifar100", "CIFAR-100", 10_000, 0.03, _TABLE_4, sweep=_SWEEP),
    _finetune("cifar10", "CIFAR-10", 10_000, 0.03, _TABLE_4, sweep=_SWEEP),
    _finetune("oxford_iiit_pet", "Oxford-IIIT Pets", 500, 0.03, _TABLE_4, sweep=_SWEEP),
    _finetune("oxford_flowers102", "Oxford Flowers-102", 500, 0.03, _TABLE_4, sweep=_SWEEP),
    _finetune("vtab", "VTAB, 1,000 examples of each of 19 tasks", 2_500, 0.01, _TABLE_4),
    # What the command line takes where no recipe is named
    _finetune("folder", "a folder of photos", 60, 0.03, _FOLDER, batch_size=32, image_size=224, warmup_steps=0.05),
    # Fine-tuning of AugReg's checkpoints
    _finetune("augreg", "any", 500, 0.03, _AUGREG),
    _finetune("augreg/imagenet2012", "ImageNet", 20_000, 0.03, _AUGREG_TABLE, sweep=_AUGREG_IMAGENET_SWEEP),
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
    *_table_3("jft", ("ViT-B/16", "ViT-B/32"), (7,), 8e-4, _JFT),
    *_table_3("jft", ("ViT-L/32",), (7,), 6e-4, _JFT),
    *_table_3("jft", ("ViT-L/16",), (7, 14), 4e-4, _JFT),
    *_table_3("jft", ("ViT-H/14",), (14,), 3e-4, _JFT),
    *_table_3("jft", ("BiT-R50x1", "BiT-R50x2"), (7,), 1e-3, _JFT),
    *_table_3("jft", ("BiT-R101x1",), (7,), 8e-4, _JFT),
    *_table_3("jft", ("BiT-R152x1", "BiT-R152x2"), (7,), 6e-4, _JFT),
    *_table_3("jft", ("R50+ViT-B/16", "R50+ViT-B/32"), (7,), 8e-4, _JFT),
    *_table_3("jft", ("R50+ViT-L/32",), (7,), 2e-4, _JFT),
    *_table_3("jft", ("R50+ViT-L/16",), (7, 14), 4e-4, _JFT),
    *_table_3("imagenet21k", ("ViT-B/16", "ViT-B/32"), (90,), 1e-3, _IMAGENET21K),
    *_table_3("imagenet21k", ("ViT-L/16", "ViT-L/32"), (30, 90), 1e-3, _IMAGENET21K),
    {
        **_PRETRAINING,
        "name": "pretrain/imagenet2012",
        "dataset": "ImageNet",
        "models": "ViT-*",
        "epochs": 300,
        "learning_rate": 3e-3,
        "weight_decay": 0.3,
        "dropout": 0.1,
        "clip_norm": 1.0,
        "source": "arXiv 2010.11929, Table 3; loss not given there, that of big_vision/configs/vit_i1k.py",
    },
    # Pre-training, AugReg
    *(
        {
            **_AUGREG_PRETRAINING,
            **fields,
            "name": f"pretrain/augreg/{data}/{level}",
            "augmentation": augmentation,
            "source": f"arXiv 2106.10270, section 3; big_vision/configs/vit_{data}.py",
        }
        for data, fields in _AUGREG_DATA.items()
        for level, augmentation in _AUGREG_LEVELS.items()
    ),
    # Others of the same authors
    {
        **_PRETRAINING,
        "name": "pretrain/imagenet2012/ViT-S/16",
        "dataset": "ImageNet",
        "models": "ViT-S/16",
        "epochs": 90,
        "batch_size": 1024,
        "learning_rate": 0.001,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        "augmentation": {"mixup": 0.2, "randaugment": (2, 10)},
        "sweep": {"epochs": (90, 150, 300)},
        "source": "arXiv 2205.01580; big_vision/configs/vit_s16_i1k.py",
    },
    {
        **_DEIT,
        "name": "pretrain/deit",
        "task": "pretrain",
        "end": 1e-5,
        "source": "arXiv 2012.12877, Table 9, facebookresearch/deit main.py; with its teacher: distillation(teacher). "
        f"{_DEIT_LACKS}, repeated augmentation",
    },
    {
        **_DEIT,
        "name": "finetune/deit-384",
        "models": "ViT-B/16",
        "image_size": 384,
        "epochs": 30,
        "warmup_steps": 5 / 30,
        "batch_size": 512,
        "learning_rate": 5e-6,
        "schedule": "constant",
        "weight_decay": 1e-8,
        "source": "arXiv 2012.12877, command of facebookresearch/deit README_deit.md. "
        f"{_DEIT_LACKS}, repeated augmentation",
    },
    *(
        {**_DEIT_3, "name": f"finetune/deit3/{model}", "models": model, "image_size": size, "drop_path": rate}
        for model, size, rate in (
            ("ViT-S/16", 384, 0.0),
            ("ViT-B/16", 224, 0.2),
            ("ViT-L/16", 224, 0.45),
            ("ViT-H/14", 224, 0.55),
        )
    ),
    {**_DINOV2, "name": "segmentation/dinov2_linear", "models": "DINOv2", "augmentation": _CROPS},
    {
        **_DINOV2,
        "name": "segmentation/dinov2_ms",
        "models": "DINOv2, with layers=4",
        "image_size": 640,
        "augmentation": {**_CROPS, "scale": (1.0, 3.0)},
    },
    {
        **_SEGMENTATION,
        "name": "segmentation/dinov3_linear",
        "models": "DINOv3",
        "schedule": "cosine_whole",
        "weight_decay": 1e-3,
        "dropout": 0.1,
        "augmentation": {**_CROPS, "hue": 0.5},
        "source": f"facebookresearch/dinov3, dinov3/eval/segmentation. {_SEGMENTATION_LACKS}",
    },
    *_eomt_rows(),
    *_owl_rows(),
    {
        **_PRETRAINING,
        "name": "pretrain/masked_patches",
        "task": "masked_patches",
        "dataset": "JFT-300M",
        "models": "ViT-B/16",
        "steps": 1_000_000,
        "learning_rate": 2e-4,
        "source": "arXiv 2010.11929, appendix B.1.2; weight decay not given there",
    },
    {
        "name": "pretrain/lejepa",
        "task": "lejepa",
        "dataset": "any pictures without labels",
        "models": "ViT-S/16",
        "epochs": 100,
        "batch_size": 512,
        "learning_rate": 5e-4,
        "optimizer": "adamw",
        "weight_decay": 0.05,
        "warmup_steps": 0.01,
        "end": 5e-7,
        "drop_path": 0.1,
        "source": "arXiv 2511.08544; lightly, benchmarks/imagenet/vits16/lejepa.py. There, all weights decay, the "
        "warm-up begins at a hundredth of the rate, and crops are Pillow's",
    },
    # Feature distillation; losses and crops are the task's
    _features("", "ViT-Ti, S", "1,000 to 50,000 pictures", 100, 5 / 100, 128, 5e-4, 0.999, "this project"),
    _features("/unic", "ViT-B", "ImageNet", 200, 10 / 200, 512, 6e-4, 0.99, "arXiv 2408.05088; main_unic.py, 4 GPUs"),
    _features(
        "/proteus", "ViT-Ti, S, B", "ImageNet", 300, 5 / 300, 512, 5e-4, 0.999, "arXiv 2407.10366; main.py, 4 GPUs"
    )
    | {"weight_decay": 0.05, "end": 1e-5},
)
