"""What each package offers, and lazy imports of it (PEP 562): importing Keras takes seconds.

The program `keras-vit` needs Keras for some of its commands only. For everybody else `import keras_vit` imports all
names at once, because that registers the classes that `keras.saving.load_model` looks for. Type checkers read the names
from the `__init__.py` of the packages; a test compares the two.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path, PurePath
from types import ModuleType

DISTRIBUTION = "keras-vit-zoo"  # as pip and pyproject.toml know what is imported as `keras_vit`

for _other in Path(__file__).parents[1].glob("keras_vit-*.dist-info"):
    raise ImportError(
        f"{_other} is installed beside {DISTRIBUTION}. The keras-vit of the package index is another project, whose "
        f"files are in the same folder: pip uninstall keras-vit {DISTRIBUTION}, then install {DISTRIBUTION} again."
    )

_MODULES = {"keras_vit.cli", "keras_vit.data.workers", "keras_vit.export.processes"}


_started = sys.argv[0] if sys.argv else ""  # "-m" until the module's package has been imported
# Whether this process is `keras-vit`, `python -m keras_vit.cli`, or a worker of `keras_vit.data` or `.export`.
IS_PROGRAM = PurePath(_started).stem == "keras-vit" or (_started == "-m" and not _MODULES.isdisjoint(sys.orig_argv))


def pip_install(extra: str) -> str:
    """Returns the command that installs an extra, for messages."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def lazy_names(package: str) -> Callable[[str], object]:
    """Returns the `__getattr__` of a package: what `_names.py` says that it offers is imported when it is used."""
    module = sys.modules[package]
    sources = {name: source for source, names in PACKAGES[package].items() for name in names.split()}
    vars(module).setdefault("__all__", sorted(sources))

    def __getattr__(name: str) -> object:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        source = sources[name]
        value = importlib.import_module(f"{package}.{name}" if source == package else source)
        vars(module)[name] = value if source == package else getattr(value, name)
        return vars(module)[name]

    return __getattr__


def imported_names(package: str) -> list[str]:
    """Returns the `__all__` of a package that imports all that it offers at once."""
    names = vars(sys.modules[package]).items()
    return sorted(name for name, value in names if not name.startswith("_") and not inspect.ismodule(value))


def import_all(module: ModuleType) -> None:
    """Imports every name in the `__all__` of a package and of its packages; ImportError if one fails."""
    for name in vars(module)["__all__"]:
        value = getattr(module, name)  # imports it, see `lazy_names`
        if inspect.ismodule(value):
            import_all(value)


# Package to module to the names that it has there, for those that are imported when they are used.
PACKAGES: dict[str, dict[str, str]] = {
    "keras_vit": {
        "keras_vit": "data depth detection evaluation export inspection layers segmentation text training",
        "keras_vit.checkpoints": "class_names inspect_checkpoint list_models list_weights push_to_hub to_checkpoint",
        "keras_vit.models": (
            "BIT_VARIANTS BiT BiTConfig CreateOptions DPT DPTConfig Detector DetectorConfig EoMT EoMTConfig "
            "LinearDepth LinearDepthConfig "
            "LinearSegmenter LinearSegmenterConfig LoadOptions ModelOptions TextConfig TextEncoder VARIANTS ViTConfig "
            "VisionTransformer feature_extractor feature_names"
        ),
        "keras_vit.preprocessing": "decode_predictions load_image preprocess_input sample_image",
        "keras_vit.text": "load_image_text",
        "keras_vit.zoo": (
            "BiT_R101x1 BiT_R101x3 BiT_R152x2 BiT_R152x4 BiT_R50x1 BiT_R50x3 R26_ViT_B32 R26_ViT_S32 R50_ViT_B16 "
            "R50_ViT_L32 R_ViT_Ti16 ViT_B16 ViT_B32 ViT_B8 ViT_H14 ViT_L16 ViT_L32 ViT_S16 ViT_S32 ViT_Ti16 "
            "create_model from_checkpoint load"
        ),
    },
    "keras_vit.checkpoints": {
        "keras_vit.checkpoints.catalogue": (
            "augreg_index best_augreg list_models list_weights recommended recommended_size"
        ),
        "keras_vit.checkpoints.checkpoint": "CheckpointInfo LAYOUTS inspect_checkpoint load_model open_checkpoint",
        "keras_vit.checkpoints.download": (
            "class_names find_checkpoint find_recommended is_copy is_variant resolve_source"
        ),
        "keras_vit.checkpoints.files": "is_keras_file names_beside pair_in",
        "keras_vit.checkpoints.hub": "DownloadError push_to_hub",
        "keras_vit.checkpoints.keras_files": "config_in_file read_keras",
        "keras_vit.checkpoints.writing": "check_format save_model to_checkpoint",
    },
    "keras_vit.data": {
        "keras_vit.data.augmentation": "Augmentation MaskAugmentation SegmentAugmentation augment_masks",
        "keras_vit.data.boxes": "BoxAugmentation BoxedImages open_boxes",
        "keras_vit.data.examples": "BadImage IMAGE_SUFFIXES has_test_split image_files match_labels pick_split",
        "keras_vit.data.masks": "MaskedImages mask_targets open_masks",
        "keras_vit.data.opening": "Batches Digits as_dataset load_digits open_data",
        "keras_vit.data.random_operations": "randaugment randaugment_operation",
        "keras_vit.data.segments": "SegmentedImages open_segments",
        "keras_vit.data.streams": "ImageStream Stream",
        "keras_vit.data.tables": "LabelTable open_table",
        "keras_vit.data.views": "ViewAugmentation",
    },
    "keras_vit.export": {
        "keras_vit.export.exporting": "ExportOptions ExportReport TOLERANCES export",
    },
    "keras_vit.inspection": {
        "keras_vit.inspection.attention": (
            "attention_distance attention_maps attention_rollout mean_attention_distance patch_attention "
            "patch_attention_of_blocks patch_filters position_similarity"
        ),
        "keras_vit.inspection.evidence": (
            "class_evidence class_scores feature_map gradient_attention nearest_patches saliency"
        ),
        "keras_vit.inspection.page": "write_page",
        "keras_vit.inspection.plots": "overlay plot",
        "keras_vit.inspection.running": "shown_pixels",
    },
    "keras_vit.layers": {
        "keras_vit.interpolation": "resize_patch_kernel resize_table",
        "keras_vit.layers.base": "assign skip_initialization",
        "keras_vit.layers.blocks": (
            "BLOCK_ACTIVATIONS LayerScale MLP MixerBlock MultiHeadAttention SwiGLU TransformerBlock"
        ),
        "keras_vit.layers.dense_prediction": (
            "BatchNormalization DepthBins DepthHead FeatureFusion MaskHead QueryRotation Reassemble UpscaleBlock resize"
        ),
        "keras_vit.layers.positions": "RotaryEmbedding sincos2d",
        "keras_vit.layers.resnet": "BiTUnit PaddedMaxPooling2D ResNetUnit StdConv2D bit_conv group_norm",
        "keras_vit.layers.tokens": (
            "AddPositionEmbedding AddSinCosPositionEmbedding AddTextPositions ClassToken MAPHead PatchDropout "
            "PatchEmbedding RegisterTokens SelfMask TextMask TextPooling TokenDropout TokenMap TokenPooling"
        ),
    },
    "keras_vit.models": {
        "keras_vit.layers.base": "has_adapters layers_by_path weights_by_path",
        "keras_vit.models.changes": (
            "CreateOptions LoadOptions ModelOptions adapted_layers check_tokens merge_lora require_adapters"
        ),
        "keras_vit.models.config": "BiTConfig ModelConfig TextConfig ViTConfig",
        "keras_vit.models.dense": "DPT DenseModel Detector EoMT LinearDepth LinearSegmenter",
        "keras_vit.models.dense_config": (
            "DPTConfig DenseConfig DetectorConfig EoMTConfig LinearDepthConfig LinearSegmenterConfig"
        ),
        "keras_vit.models.features": "feature_extractor feature_names",
        "keras_vit.models.image_model": "ImageModel pixel_scaling",
        "keras_vit.models.sizes": "convolutions count_macs count_weights",
        "keras_vit.models.text_encoder": "TextEncoder",
        "keras_vit.models.variants": (
            "BIT_VARIANTS FAMILIES VARIANTS factory_name find_variant has_layers_of variant_config variant_of"
        ),
        "keras_vit.models.vision_transformer": "BiT VisionTransformer",
    },
    "keras_vit.segmentation": {
        "keras_vit.preprocessing": "LabelSet label_set",
        "keras_vit.segmentation.metrics": "MeanIoU MeanIoUResult PanopticQuality PanopticQualityResult evaluate "
        "mean_iou",
        "keras_vit.segmentation.segmenting": "Segment Segmentation plot segment",
    },
    "keras_vit.text": {
        "keras_vit.text.image_text": "ImageText load_image_text",
        "keras_vit.text.open_vocabulary": "OpenVocabularyDetector",
        "keras_vit.text.templates": "imagenet_names published_templates",
        "keras_vit.text.tokenizers": "Tokenizer",
        "keras_vit.text.writing": "save_image_text",
    },
    "keras_vit.training": {
        "keras_vit._processes": "Processes connect",
        "keras_vit.data": (
            "Augmentation BadImage ImageStream ViewAugmentation as_dataset augment_masks mask_targets open_data"
        ),
        "keras_vit.models": "merge_lora",
        "keras_vit.training.boxes": "DetectionLoss match_boxes",
        "keras_vit.training.distilling": "DistillationLoss distillation",
        "keras_vit.training.distribution": (
            "data_parallel layout_map load_sharded model_parallel save_sharded split_weights"
        ),
        "keras_vit.training.pretraining": "LeJEPA LeJEPALoss",
        "keras_vit.training.loop": "draw_curve",
        "keras_vit.training.mask_classification": "MaskClassificationLoss match",
        "keras_vit.training.optimizers": (
            "AdamW ContrastiveLoss MomentumSGD Muon SigmoidContrastiveLoss SigmoidLoss SoftmaxLoss WarmupDecay"
        ),
        "keras_vit.training.recipes": "Recipe build_loss build_optimizer build_schedule list_recipes recipe",
        "keras_vit.training.tasks": "RunOptions",
        "keras_vit.training.run": "Trained finetune finetune_detection finetune_segmentation pretrain train",
        "keras_vit.training.segmentation": "MaskLoss mask_probabilities predictions segmentation_step",
        "keras_vit.training.trainable": "add_lora freeze layer_decay load_adapters save_adapters unfreeze",
    },
}
