"""Small models of every kind, with weights that are random, depend on nothing but names and shapes, and are never zero.

`small_vit(classes=5)` is a model, `small_vit_config(classes=5)` its config: changes are fields of the config. Images
are 8 x 8 pixels (16 x 16 where there is a ResNet), patches 4 x 4, tokens 8 numbers long, there are two blocks, three
classes. A fresh head or class token is zero, so that tests on it could not fail: here they are not.
"""

import keras
import numpy as np

import keras_vit
from keras_vit.layers import skip_initialization
from keras_vit.models import weights_by_path


def small_vit_config(**changes):
    """A plain Vision Transformer with a class token and three classes."""
    sizes = {"image_size": 8, "patch_size": 4, "width": 8, "depth": 2, "heads": 2, "mlp_width": 16, "classes": 3}
    return keras_vit.ViTConfig(**sizes | changes)


def small_hybrid_config(**changes):
    """A Vision Transformer on the map of a ResNet, with two by two patches."""
    return small_vit_config(**{"image_size": 16, "patch_size": 2, "stem_stages": (1,), "stem_width": 32} | changes)


def small_bit_config(**changes):
    """The paper's ResNet, with one unit."""
    return keras_vit.BiTConfig(**{"image_size": 16, "stages": (1,), "width": 32, "classes": 3} | changes)


def small_text_encoder_config(**changes):
    """A text tower for five tokens out of eleven."""
    sizes = {"vocabulary": 11, "context": 5, "width": 8, "depth": 2, "heads": 2, "mlp_width": 16}
    return keras_vit.TextConfig(**sizes | changes)


def small_backbone_config(**changes):
    """What a head for segmentation or depth reads: a Vision Transformer without anything after its tokens."""
    return small_vit_config(**{"pooling": "none", "classes": None} | changes)


def small_eomt_config(**changes):
    """Four queries in the last of two blocks, of which three classes and masks are made, for patches doubled once."""
    sizes = {"classes": 3, "queries": 4, "query_blocks": 1, "upscale_blocks": 1}
    return keras_vit.models.EoMTConfig(**{"backbone": small_backbone_config(), **sizes} | changes)


def small_linear_segmenter_config(**changes):
    """A linear head for three classes on the last of two blocks; pictures are cut into crops of 8 x 8 pixels."""
    sizes = {"classes": 3, "blocks": (1,), "short_side": 8, "crop_size": 8, "stride": 8}
    return keras_vit.models.LinearSegmenterConfig(**{"backbone": small_backbone_config(), **sizes} | changes)


def small_detector_config(**changes):
    """Two named classes and a head of objectness on four patches, as of an OWLv2 with fixed words."""
    sizes = {"classes": 2, "class_names": ("cat", "remote control"), "embedding": 6, "objectness": True}
    return keras_vit.models.DetectorConfig(**{"backbone": small_backbone_config(), **sizes} | changes)


def small_depth_model_config(**changes):
    """Depth Anything's head on four blocks; depth in metres, up to 80."""
    sizes = {"blocks": (0, 1, 2, 3), "widths": (4, 4, 4, 4), "fusion_width": 4, "head_width": 3}
    sizes |= {} if changes.get("design") == "depth_anything_3" else {"max_depth": 80.0}
    return keras_vit.models.DPTConfig(**{"backbone": small_backbone_config(depth=4), **sizes} | changes)


def small_linear_depth_config(**changes):
    """DINOv2's linear head for depth, with four bins, on the last of two blocks."""
    return keras_vit.models.LinearDepthConfig(
        **{"backbone": small_backbone_config(), "blocks": (1,), "bins": 4} | changes
    )


def small_multi_task_config(**changes):
    """DPT heads for depth, normals and three classes on four blocks, as of a TIPS 2."""
    sizes = {"blocks": (0, 1, 2, 3), "widths": (4, 4, 4, 4), "fusion_width": 4, "bins": 4, "classes": 3}
    sizes |= {"tasks": ("depth", "normals", "segmentation"), "backbone": small_backbone_config(depth=4)}
    return keras_vit.models.MultiTaskDPTConfig(**sizes | changes)


def model_of(config, seed=0, **options):
    """A model of any config with random weights."""
    with skip_initialization():
        model = getattr(keras_vit.models, config.model)(config, **options)
    return randomized(model, seed)


def _maker(config_of):
    """A function that makes a model of a config with changes."""

    def make(seed=0, name=None, dtype=None, **changes):
        return model_of(config_of(**changes), seed, name=name, dtype=dtype)

    return make


small_vit = _maker(small_vit_config)
small_hybrid = _maker(small_hybrid_config)
small_bit = _maker(small_bit_config)
small_text_encoder = _maker(small_text_encoder_config)
small_eomt = _maker(small_eomt_config)
small_linear_segmenter = _maker(small_linear_segmenter_config)
small_detector = _maker(small_detector_config)
small_depth_model = _maker(small_depth_model_config)
small_linear_depth = _maker(small_linear_depth_config)


def randomized(model, seed=0):
    """The model, with other weights: kernels keep the size of what they multiply, the rest is between 0.2 and 1."""
    for path, weight in weights_by_path(model).items():
        rng = np.random.default_rng([*path.encode(), seed] if seed else [*path.encode()])
        if path.endswith("periods"):  # of rotations: computed, not learned
            continue
        if len(weight.shape) > 1:
            inputs = weight.shape[0] if len(weight.shape) == 2 else np.prod(weight.shape[:-1])
            weight.assign(rng.normal(0, max(int(inputs), 4) ** -0.5, weight.shape))
        else:
            weight.assign(rng.uniform(0.2, 1.0, weight.shape))
    return model


def values_of(model):
    """The weights of a model as NumPy arrays, by their paths."""
    return {path: keras.ops.convert_to_numpy(weight) for path, weight in weights_by_path(model).items()}


def images_for(config, count=2, seed=0):
    """Normalised images that a model of this config takes, of the config's size and channels."""
    shape = (count, *config.image_size, config.channels)
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")
