"""The papers' recipes as plain Keras objects: schedules, optimizers, data, fine-tuning, pre-training."""

from typing import TYPE_CHECKING

from keras_vit._names import lazy_names

if TYPE_CHECKING:
    from keras_vit._processes import Processes as Processes
    from keras_vit._processes import connect as connect
    from keras_vit.data import Augmentation as Augmentation
    from keras_vit.data import BadImage as BadImage
    from keras_vit.data import ImageStream as ImageStream
    from keras_vit.data import ViewAugmentation as ViewAugmentation
    from keras_vit.data import as_dataset as as_dataset
    from keras_vit.data import augment_masks as augment_masks
    from keras_vit.data import mask_targets as mask_targets
    from keras_vit.data import open_data as open_data
    from keras_vit.models import merge_lora as merge_lora
    from keras_vit.training.boxes import DetectionLoss as DetectionLoss
    from keras_vit.training.boxes import match_boxes as match_boxes
    from keras_vit.training.distilling import DistillationLoss as DistillationLoss
    from keras_vit.training.distilling import distillation as distillation
    from keras_vit.training.distribution import data_parallel as data_parallel
    from keras_vit.training.distribution import layout_map as layout_map
    from keras_vit.training.distribution import load_sharded as load_sharded
    from keras_vit.training.distribution import model_parallel as model_parallel
    from keras_vit.training.distribution import save_sharded as save_sharded
    from keras_vit.training.distribution import split_weights as split_weights
    from keras_vit.training.loop import draw_curve as draw_curve
    from keras_vit.training.mask_classification import MaskClassificationLoss as MaskClassificationLoss
    from keras_vit.training.mask_classification import match as match
    from keras_vit.training.optimizers import AdamW as AdamW
    from keras_vit.training.optimizers import ContrastiveLoss as ContrastiveLoss
    from keras_vit.training.optimizers import MomentumSGD as MomentumSGD
    from keras_vit.training.optimizers import Muon as Muon
    from keras_vit.training.optimizers import SigmoidContrastiveLoss as SigmoidContrastiveLoss
    from keras_vit.training.optimizers import SigmoidLoss as SigmoidLoss
    from keras_vit.training.optimizers import SoftmaxLoss as SoftmaxLoss
    from keras_vit.training.optimizers import WarmupDecay as WarmupDecay
    from keras_vit.training.pretraining import LeJEPA as LeJEPA
    from keras_vit.training.pretraining import LeJEPALoss as LeJEPALoss
    from keras_vit.training.recipes import Recipe as Recipe
    from keras_vit.training.recipes import build_loss as build_loss
    from keras_vit.training.recipes import build_optimizer as build_optimizer
    from keras_vit.training.recipes import build_schedule as build_schedule
    from keras_vit.training.recipes import list_recipes as list_recipes
    from keras_vit.training.recipes import recipe as recipe
    from keras_vit.training.run import Trained as Trained
    from keras_vit.training.run import finetune as finetune
    from keras_vit.training.run import finetune_detection as finetune_detection
    from keras_vit.training.run import finetune_segmentation as finetune_segmentation
    from keras_vit.training.run import pretrain as pretrain
    from keras_vit.training.run import train as train
    from keras_vit.training.segmentation import MaskLoss as MaskLoss
    from keras_vit.training.segmentation import mask_probabilities as mask_probabilities
    from keras_vit.training.segmentation import predictions as predictions
    from keras_vit.training.segmentation import segmentation_step as segmentation_step
    from keras_vit.training.tasks import RunOptions as RunOptions
    from keras_vit.training.trainable import add_lora as add_lora
    from keras_vit.training.trainable import freeze as freeze
    from keras_vit.training.trainable import layer_decay as layer_decay
    from keras_vit.training.trainable import load_adapters as load_adapters
    from keras_vit.training.trainable import save_adapters as save_adapters
    from keras_vit.training.trainable import unfreeze as unfreeze

__getattr__ = lazy_names(__name__)
