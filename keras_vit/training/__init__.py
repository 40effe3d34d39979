"""The papers' recipes as plain Keras objects: schedules, optimizers, data, fine-tuning, pre-training."""

from typing import TYPE_CHECKING

from keras_vit._names import lazy_names
from keras_vit.data import Augmentation
from keras_vit.training.planning import Plan, plan
from keras_vit.training.recipes import Recipe, build_loss, build_optimizer, build_schedule, list_recipes, recipe

# What needs Keras.
if TYPE_CHECKING:
    from keras_vit._processes import Processes, connect
    from keras_vit.data import (
        BadImage,
        ImageStream,
        ViewAugmentation,
        as_dataset,
        augment_masks,
        mask_targets,
        open_data,
    )
    from keras_vit.models import merge_lora
    from keras_vit.training.distilling import DistillationLoss, distillation
    from keras_vit.training.distribution import (
        data_parallel,
        layout_map,
        load_sharded,
        model_parallel,
        save_sharded,
        split_weights,
    )
    from keras_vit.training.eomt import mask_probabilities, predictions, segmentation_step
    from keras_vit.training.lejepa import LeJEPA, LeJEPALoss
    from keras_vit.training.loop import draw_curve
    from keras_vit.training.mask_classification import MaskClassificationLoss, match
    from keras_vit.training.optimizers import (
        AdamW,
        ContrastiveLoss,
        MomentumSGD,
        Muon,
        SigmoidContrastiveLoss,
        SigmoidLoss,
        SoftmaxLoss,
        WarmupDecay,
    )
    from keras_vit.training.pretraining import pretrain
    from keras_vit.training.run import Trained, finetune
    from keras_vit.training.segmentation import MaskLoss, finetune_segmentation
    from keras_vit.training.tasks import RunOptions
    from keras_vit.training.trainable import add_lora, freeze, layer_decay, load_adapters, save_adapters, unfreeze

__getattr__ = lazy_names(__name__)

__all__ = [
    "AdamW",
    "Augmentation",
    "BadImage",
    "ContrastiveLoss",
    "DistillationLoss",
    "ImageStream",
    "LeJEPA",
    "LeJEPALoss",
    "MaskClassificationLoss",
    "MaskLoss",
    "MomentumSGD",
    "Muon",
    "Plan",
    "Processes",
    "Recipe",
    "RunOptions",
    "SigmoidContrastiveLoss",
    "SigmoidLoss",
    "SoftmaxLoss",
    "Trained",
    "ViewAugmentation",
    "WarmupDecay",
    "add_lora",
    "as_dataset",
    "augment_masks",
    "build_loss",
    "build_optimizer",
    "build_schedule",
    "connect",
    "data_parallel",
    "distillation",
    "draw_curve",
    "finetune",
    "finetune_segmentation",
    "freeze",
    "layer_decay",
    "layout_map",
    "list_recipes",
    "load_adapters",
    "load_sharded",
    "mask_probabilities",
    "mask_targets",
    "match",
    "merge_lora",
    "model_parallel",
    "open_data",
    "plan",
    "predictions",
    "pretrain",
    "recipe",
    "save_adapters",
    "save_sharded",
    "segmentation_step",
    "split_weights",
    "unfreeze",
]
