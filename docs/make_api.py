"""Writes docs/api/: which public names the API reference has, page by page. The texts are the docstrings.

    python docs/make_api.py

A name that two rooms show stands in the one that it is written in. The factories of the variants, which
have the same options and one text, stand in a table.
"""

import pathlib
import shutil
import sys
import types

import keras_vit
from keras_vit.models import VARIANTS, factory_name
from keras_vit.zoo import FAMILY_FACTORIES

FOLDER = pathlib.Path(__file__).parent / "api"
# The pages of each room in their order: name of the file, title, and the public names. A test says which name has none.
PAGES: dict[str, list[tuple[str, str, str]]] = {
    "models": [
        ("load", "Load a model", "load from_checkpoint LoadOptions"),
        ("create", "Create a model", "create_model CreateOptions ModelOptions"),
        ("factories", "Factories of all variants", "VARIANTS BIT_VARIANTS"),
        ("names", "Names of models, weights and classes", "list_models list_weights class_names"),
        ("pictures", "Pictures and predictions", "preprocess_input load_image sample_image decode_predictions"),
        ("vision_transformer", "VisionTransformer", "VisionTransformer"),
        ("vit_config", "ViTConfig", "ViTConfig"),
        ("features", "Features of any layer", "feature_extractor feature_names"),
        ("checkpoints", "Write and inspect checkpoints", "to_checkpoint inspect_checkpoint push_to_hub"),
        ("bit", "BiT", "BiT BiTConfig"),
        ("text_encoder", "TextEncoder", "TextEncoder TextConfig"),
        ("eomt", "EoMT", "EoMT models.EoMTConfig"),
        ("linear_segmenter", "LinearSegmenter", "LinearSegmenter models.LinearSegmenterConfig"),
        ("depth_models", "DPT and LinearDepth", "DPT models.DPTConfig LinearDepth models.LinearDepthConfig"),
        ("multi_task_dpt", "MultiTaskDPT", "MultiTaskDPT models.MultiTaskDPTConfig"),
        ("detector", "Detector", "Detector models.DetectorConfig"),
        ("anomaly_detector", "AnomalyDetector", "AnomalyDetector models.AnomalyConfig"),
    ],
    "training": [
        ("finetune", "Fine-tune", "finetune train RunOptions Trained draw_curve Task"),
        ("recipes", "Recipes", "recipe list_recipes Recipe"),
        ("parts", "Parts of a recipe", "build_optimizer build_loss build_schedule"),
        ("optimizers", "Optimizers and schedules", "MomentumSGD AdamW Muon WarmupDecay"),
        ("losses", "Losses", "SoftmaxLoss SigmoidLoss ContrastiveLoss SigmoidContrastiveLoss"),
        ("lora", "LoRA", "add_lora merge_lora save_adapters load_adapters"),
        ("freeze", "Freeze layers", "freeze unfreeze layer_decay"),
        ("distillation", "Distillation", "distillation DistillationLoss"),
        ("pretrain", "Pre-train", "pretrain LeJEPA LeJEPALoss FeatureDistillation"),
        ("segmentation", "Train a segmentation model", "finetune_segmentation MaskLoss"),
        (
            "eomt",
            "Train an EoMT",
            "segmentation_step MaskClassificationLoss match mask_probabilities predictions",
        ),
        (
            "devices",
            "Several devices",
            "data_parallel model_parallel layout_map split_weights save_sharded load_sharded",
        ),
        ("detection", "Train a detector", "finetune_detection DetectionLoss match_boxes"),
        ("processes", "Several processes", "connect Processes"),
    ],
    "evaluation": [
        ("evaluate", "Evaluate", "evaluate AccuracyResult MultilabelResult NumberResult Mistake batches"),
        (
            "report",
            "Reports and confusion matrices",
            "write_report write_files draw_confusion confusion_shares most_confused need_matplotlib",
        ),
        ("metrics", "Metrics of several labels", "average_precision f1_scores best_thresholds"),
        (
            "few_shot",
            "Few-shot and nearest neighbours",
            "few_shot FewShotResult knn_accuracy extract_features LeastSquaresProbe SHOTS L2 L2_SWEEP",
        ),
        (
            "search",
            "Embeddings and image search",
            "embed EmbeddedImages find_similar draw_similar find_duplicates search knn near_duplicates",
        ),
    ],
    "inspection": [
        (
            "attention",
            "Attention maps",
            "attention_rollout attention_maps patch_attention patch_attention_of_blocks attention_distance"
            " mean_attention_distance",
        ),
        ("saliency", "Saliency and evidence", "saliency gradient_attention class_evidence class_scores"),
        ("patches", "Patches and positions", "feature_map nearest_patches patch_filters position_similarity"),
        (
            "plots",
            "Plots",
            "plot overlay shown_pixels",
        ),
        ("page", "One page with all of it", "write_page"),
    ],
    "export": [
        ("export", "Export", "export ExportOptions ExportReport"),
        ("formats", "Formats and precisions", "Format FORMATS PRECISIONS TOLERANCES"),
    ],
    "data": [
        ("open", "Open data", "open_data Stream ImageStream Batches load_digits Digits"),
        ("tables", "Tables of labels", "open_table LabelTable"),
        (
            "augmentation",
            "Augmentation",
            "Augmentation randaugment randaugment_operation ViewAugmentation MaskAugmentation augment_masks"
            " SegmentAugmentation BoxAugmentation",
        ),
        ("masks", "Masks", "open_masks MaskedImages open_segments SegmentedImages mask_targets"),
        ("boxes", "Boxes", "open_boxes BoxedImages"),
        ("targets", "Kinds of targets", "TargetKind TARGETS register_target PictureAugmentation Transform"),
        ("folders", "Folders", "image_files IMAGE_SUFFIXES has_test_split pick_split match_labels BadImage"),
    ],
    "layers": [
        (
            "blocks",
            "Blocks",
            "TransformerBlock MultiHeadAttention MLP SwiGLU LayerScale MixerBlock SelfMask BLOCK_ACTIVATIONS",
        ),
        (
            "tokens",
            "Patches and tokens",
            "PatchEmbedding ClassToken RegisterTokens PatchDropout TokenDropout TokenMap TokenPooling MAPHead",
        ),
        (
            "positions",
            "Positions",
            "AddPositionEmbedding AddSinCosPositionEmbedding RotaryEmbedding sincos2d resize_table resize_patch_kernel",
        ),
        ("texts", "Texts", "AddTextPositions TextMask TextPooling"),
        (
            "dense",
            "Masks and depth",
            "MaskHead QueryRotation UpscaleBlock DepthBins DepthHead FeatureFusion Reassemble BatchNormalization"
            " resize",
        ),
        ("resnet", "ResNets", "BiTUnit ResNetUnit StdConv2D PaddedMaxPooling2D bit_conv group_norm"),
        ("weights", "Weights of layers", "assign skip_initialization"),
    ],
    "text": [
        ("image_text", "Models of images and texts", "load_image_text ImageText save_image_text"),
        ("open_vocabulary", "Detectors of words or of an example", "OpenVocabularyDetector"),
        ("tokenizers", "Tokenizers and templates", "Tokenizer imagenet_names published_templates"),
    ],
    "segmentation": [
        ("segment", "Segment a picture", "segment Segmentation Segment plot LabelSet label_set"),
        (
            "metrics",
            "Mean IoU and panoptic quality",
            "evaluate mean_iou MeanIoU MeanIoUResult PanopticQuality PanopticQualityResult",
        ),
    ],
    "depth": [
        ("estimate", "Estimate depth and normals", "estimate Depth normals Normals plot"),
        ("metrics", "Errors of depth", "depth_errors mean_depth_errors DepthErrors"),
    ],
    "detection": [
        ("detect", "Detect objects", "detect Detection plot suppressed"),
        ("metrics", "Average precision", "evaluate MeanAP MeanAPResult"),
    ],
    "anomaly": [
        ("fit", "Detect anomalies", "fit detect Anomaly plot"),
        ("metrics", "Metrics of anomalies", "evaluate metrics AnomalyMetrics"),
        ("parts", "Threshold, coreset and foreground", "conformal_threshold greedy_coreset foreground_mask"),
    ],
}
CONFIGS = (  # the public names of `keras_vit.models` that `keras_vit` has not
    *("AnomalyConfig", "DPTConfig", "DetectorConfig", "EoMTConfig", "LinearDepthConfig", "LinearSegmenterConfig"),
    "MultiTaskDPTConfig",
)
ABOUT = "Models, weights and pictures."
FACTORIES_TOO = ", `ViT_B16`, `DINOv2_B14` and all others"
INDEX = """# API reference

Every public name, with its shapes, dtypes and errors. The texts are the docstrings: `help(keras_vit.load)` says the
same. Begin with [load](models/load.md) and the [factories](models/factories.md).

{pages}

## Names that the examples share

Every example is run by the tests. The examples use these names, and a folder with `photo.jpg`, `photos/train` and
`photos/test`:

```python
{prelude}```

An array is a NumPy array unless something else is said. Where "images" are taken, a tensor of the backend is as good.
`Raises` names the errors of a function itself; what Keras or the backend raises for a wrong shape is not repeated.
"""
PRELUDE = """import keras_vit
import keras
import numpy as np

from keras_vit import data, detection, evaluation, export, inspection, layers, segmentation, text, training

model = keras_vit.load("glyphs")  # 24 x 24 pixels, 164 characters: the small checkpoint that comes along
pixels = np.random.default_rng(0).integers(0, 256, (4, 24, 24, 3)).astype("uint8")  # four pictures
labels = np.array([0, 1, 0, 1])
images = model.preprocess(pixels)  # float32 (4, 24, 24, 3), in [-1, 1]
config = keras_vit.ViTConfig(image_size=8, patch_size=4, width=8, depth=2, heads=2, mlp_width=16, classes=2)
small = keras_vit.VisionTransformer(config)  # random weights
small_images = np.zeros((4, 8, 8, 3), "float32")
words = keras_vit.TextConfig(vocabulary=128, context=8, width=8, depth=1, heads=2, mlp_width=16)
letters = text.Tokenizer(lambda line: [ord(letter) for letter in line], context=8, end=1, pad=0)
both = text.ImageText(small.with_config(classes=None), keras_vit.TextEncoder(words), letters)  # random weights
backbone = config.replace(depth=4, classes=None, pooling="none", dynamic=True)  # without head, for images of any size
eomt_config = keras_vit.models.EoMTConfig(
    backbone=config.replace(pooling="none", classes=None), classes=3, queries=5, query_blocks=1, upscale_blocks=1
)
eomt = keras_vit.EoMT(eomt_config)  # random weights
head = keras_vit.models.LinearSegmenterConfig(
    backbone=backbone, classes=3, blocks=(3,), short_side=8, crop_size=8, stride=4
)
segmenter = keras_vit.LinearSegmenter(head)  # random weights
bins = keras_vit.models.LinearDepthConfig(backbone=backbone, blocks=(3,))
depth_model = keras_vit.LinearDepth(bins)  # random weights
normals = keras_vit.models.MultiTaskDPTConfig(backbone=backbone, blocks=(0, 1, 2, 3), tasks=("normals",))
normals_model = keras_vit.MultiTaskDPT(normals)  # random weights
boxes = keras_vit.models.DetectorConfig(backbone=eomt_config.backbone, classes=3, embedding=8)
detector = keras_vit.Detector(boxes)  # random weights
inspector = keras_vit.anomaly.fit(model, pixels, image_size=24, false_alarms=0.3, verbose=False)
"""


def public() -> dict[str, dict[str, object]]:
    """The objects of each room by their names: no modules, each object once, factories apart."""
    rooms = {name: keras_vit if name == "models" else getattr(keras_vit, name) for name in PAGES}
    written_in = {name: f"keras_vit.{name}." for name in PAGES if name != "models"}
    result: dict[str, dict[str, object]] = {name: {} for name in PAGES}
    for name_of_room, room in rooms.items():
        for name in room.__all__:
            value = getattr(room, name)
            home = f"{getattr(value, '__module__', room.__name__)}."
            elsewhere = any(home.startswith(prefix) and other != name_of_room for other, prefix in written_in.items())
            if not (isinstance(value, types.ModuleType) or name in factories() or elsewhere):
                result[name_of_room][name] = value
    result["models"] |= {f"models.{name}": getattr(keras_vit.models, name) for name in CONFIGS}
    return result


def factories() -> dict[str, str]:
    """The functions that make a variant, and the variant's name."""
    variants = {factory_name(variant): variant for variant in [*VARIANTS, *keras_vit.BIT_VARIANTS]}
    return {name: variants[name] for name in variants if name in keras_vit.__all__ or name in FAMILY_FACTORIES}


def texts() -> dict[str, str]:
    """The pages by their paths in `docs/api/`."""
    index, result = [], {}
    for room, pages in PAGES.items():
        module = "keras_vit" if room == "models" else f"keras_vit.{room}"
        about = ABOUT if room == "models" else str(sys.modules[module].__doc__).strip().splitlines()[0]
        index += [f"## `{module}`", "", about, ""]
        for file, title, names in pages:
            shown = ", ".join(f"`{name}`" for name in names.split())
            index.append(f"- [{title}]({room}/{file}.md): {shown}{FACTORIES_TOO if file == 'factories' else ''}")
            lines = [f"# API: {title}", "", f"In `{module}`: {shown}.", ""]
            for name in names.split():
                lines += [f"::: {module}.{name}", ""]
            if file == "factories":
                lines.insert(4, _factory_table() + "\n")
            result[f"{room}/{file}.md"] = "\n".join(lines).rstrip() + "\n"
        index.append("")
    return {"index.md": INDEX.format(pages="\n".join(index).strip(), prelude=PRELUDE), **result}


FACTORIES = """## Variants as functions

Each is [`create_model`][keras_vit.create_model] with its first argument filled in: the same
[options][keras_vit.CreateOptions], errors and results, `keras_vit.ViT_B16(classes=10)` for
`keras_vit.create_model("ViT-B/16", classes=10)`. Those of BiT refuse options about tokens, position embeddings and
dropout. Sizes and origins: [the zoo](../../zoo.md).

| function | variant |
|---|---|
"""


def _factory_table() -> str:
    rows = (f'| <span id="keras_vit.{name}">`{name}`</span> | {variant} |' for name, variant in factories().items())
    return FACTORIES + "\n".join(rows)


def main() -> None:
    """Writes the pages."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, text in texts().items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
