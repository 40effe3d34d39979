"""The papers' recipes as plain Keras objects: schedules, optimizers, data, fine-tuning, pre-training."""

from typing import TYPE_CHECKING

from keras_vit._lazy import lazy_names
from keras_vit.data import Augmentation
from keras_vit.training.planning import Plan, plan
from keras_vit.training.recipes import Recipe, list_recipes, loss, optimizer, recipe, schedule

# What needs Keras.
if TYPE_CHECKING:
    from keras_vit._processes import Processes, connect
    from keras_vit.data import BadImage, ImageStream, as_dataset, open_data
    from keras_vit.models import merge_lora
    from keras_vit.training.distribution import data_parallel, layout_map, model_parallel, split_weights
    from keras_vit.training.finetuning import finetune
    from keras_vit.training.freezing import freeze, unfreeze
    from keras_vit.training.lora import add_lora, load_adapters, save_adapters
    from keras_vit.training.losses import SigmoidLoss, SoftmaxLoss
    from keras_vit.training.optimizers import AdamW, MomentumSGD, layer_decay
    from keras_vit.training.pretraining import pretrain
    from keras_vit.training.run import Trained
    from keras_vit.training.run_folder import draw_curve
    from keras_vit.training.schedules import WarmupDecay
    from keras_vit.training.sharded import load_sharded, save_sharded

__getattr__ = lazy_names(__name__)

__all__ = [
    "AdamW",
    "Augmentation",
    "BadImage",
    "ImageStream",
    "MomentumSGD",
    "Plan",
    "Processes",
    "Recipe",
    "SigmoidLoss",
    "SoftmaxLoss",
    "Trained",
    "WarmupDecay",
    "add_lora",
    "as_dataset",
    "connect",
    "data_parallel",
    "draw_curve",
    "finetune",
    "freeze",
    "layer_decay",
    "layout_map",
    "list_recipes",
    "load_adapters",
    "load_sharded",
    "loss",
    "merge_lora",
    "model_parallel",
    "open_data",
    "optimizer",
    "plan",
    "pretrain",
    "recipe",
    "save_adapters",
    "save_sharded",
    "schedule",
    "split_weights",
    "unfreeze",
]
