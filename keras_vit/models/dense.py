"""Models of segmentation and depth on the layers of a Vision Transformer: what they share, linear heads, DPT, EoMT."""

import numbers
from collections.abc import Mapping
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_vit import layers
from keras_vit._keras import call_layers
from keras_vit.layers.anomaly import AnomalyMap, AnomalyScore, PatchDistances
from keras_vit.layers.base import BaseLayer, Dense, initializer
from keras_vit.layers.choices import REASSEMBLE_FACTORS
from keras_vit.layers.dense_prediction import Convolution, DetectionHead, WithClassToken
from keras_vit.layers.ops import float32_or_better
from keras_vit.layers.tokens import Activation
from keras_vit.models.dense_config import (
    AnomalyConfig,
    DenseConfig,
    DepthConfig,
    DetectorConfig,
    DPTConfig,
    EoMTConfig,
    LinearDepthConfig,
    LinearSegmenterConfig,
    MultiTaskDPTConfig,
)
from keras_vit.models.image_model import ImageModel
from keras_vit.models.vision_transformer import VisionTransformer


def token_map(backbone: VisionTransformer, block: int, policy: Any, tokens: Any = None) -> tuple[Any, Any]:
    """Returns the symbolic output of a block as a map `(batch, rows, columns, D)` of the patches, and as all tokens."""
    # `tokens` take the place of the block's own output.
    tokens = backbone.get_layer(f"block_{block}").output if tokens is None else tokens
    vit = backbone.config
    if vit.final_norm == "tokens":
        tokens = backbone.get_layer("encoder_norm")(tokens)
    layer = layers.TokenMap(vit.grid_size, vit.prefix_tokens, dtype=policy, name=f"map_{block}")
    patches = layer(tokens, backbone.get_layer("embedding").output) if vit.dynamic else layer(tokens)
    return patches, tokens


class DenseModel(ImageModel):
    """The base of models for segmentation, detection and depth, made of a `VisionTransformer` and a head.

    Subclasses set `config_type`, `default_name`, and `outputs_of`, a function from the config, the backbone and a dtype
    policy to the outputs. Arguments and errors are as in `VisionTransformer`.
    """

    config_type = DenseConfig

    @classmethod
    def _graph_of(cls, config: Any, input_tensor: Any, policy: Any) -> tuple[Any, Any, Any]:
        backbone = VisionTransformer(config.backbone, input_tensor=input_tensor, name="backbone", dtype=policy)
        return backbone.input, cls.outputs_of(config, backbone, policy), backbone

    @property
    def backbone(self) -> VisionTransformer:
        """The `VisionTransformer` under the head; it shares its weights with this model."""
        return self._kept.backbone

    def optimize_for_inference(self, *, verbose: bool = True) -> Self:
        """Raises ValueError, because these models need all tokens, so that no computation can be left out."""
        raise ValueError(f"{self.name} needs all tokens for its output, so it cannot be optimized. Use it as it is.")


def _features(maps: list[Any], policy: Any) -> Any:
    return keras.layers.Concatenate(dtype=policy, name="features")(maps) if len(maps) > 1 else maps[0]


# A linear head


def linear_segmenter(config: LinearSegmenterConfig, backbone: VisionTransformer, policy: Any) -> Any:
    """Builds a linear head on a backbone, for each patch; returns symbolic logits `(batch, rows, columns, classes)`."""
    # With `zero_shot` cosines of the classes' vectors and the values of the last block.
    if config.zero_shot:
        return _cosines(config, backbone, policy)
    x = _features([token_map(backbone, i, policy)[0] for i in config.blocks], policy)
    if config.dropout:  # of whole channels, before the normalisation
        x = keras.layers.SpatialDropout2D(config.dropout, "channels_last", dtype=policy, name="head_dropout")(x)
    x = layers.BatchNormalization(dtype=policy, name="head_norm")(x)
    kernel = initializer("normal", stddev=0.01)
    return Dense(config.classes, kernel_initializer=kernel, dtype=float32_or_better(policy, "head"), name="head")(x)


def _cosines(config: LinearSegmenterConfig, backbone: VisionTransformer, policy: Any) -> Any:
    """Returns products `(batch, rows, columns, classes)` of the last values, as unit vectors, and the head's kernel."""
    last, exact = backbone.get_layer(f"block_{config.blocks[-1]}"), float32_or_better(policy, "head")
    tokens, *rotation = keras.tree.flatten(last.input)
    # Attention of a token to itself alone returns its value, projected.
    tokens = last(tokens, *rotation, allowed=layers.SelfMask(dtype=policy, name="self_mask")(tokens))
    x, _ = token_map(backbone, config.blocks[-1], policy, tokens)
    x = keras.layers.UnitNormalization(dtype=exact, name="unit_features")(x)
    kernel = initializer("normal", stddev=0.01)
    return Dense(config.classes, use_bias=False, kernel_initializer=kernel, dtype=exact, name="head")(x)


@keras.saving.register_keras_serializable(package="keras_vit")
class LinearSegmenter(DenseModel):
    """Semantic segmentation by a linear head on the patch tokens of a Vision Transformer, as DINOv2 is evaluated.

    It takes images and returns logits `(batch, rows, columns, classes)` on the grid of patches. For pictures of any
    size, use `keras_vit.segmentation.segment`. Made from a `LinearSegmenterConfig`; other arguments and errors are as
    in `VisionTransformer`.

    Source: `BNHead` in DINOv2's `eval/segmentation`, `LinearHead` in DINOv3's.

    Examples:
        >>> head = keras_vit.models.LinearSegmenterConfig(backbone=backbone, classes=3, blocks=(2, 3))
        >>> tuple(keras_vit.LinearSegmenter(head)(small_images).shape)
        (4, 2, 2, 3)
    """

    config_type = LinearSegmenterConfig
    default_name = "linear_segmenter"
    outputs_of = staticmethod(linear_segmenter)


# Depth


def dpt(config: DPTConfig, backbone: VisionTransformer, policy: Any) -> Any:
    """Builds DPT's depth head on the outputs of four blocks; returns symbolic depth `(batch, height, width)`."""
    # Depth Anything 3 has a map of the sky beside it, in a dict.
    is_dinov2 = config.design == "dinov2"
    x = _fused(config, _maps(config, backbone, policy, is_dinov2), policy, "exact" if is_dinov2 else None)
    options = {"min_depth": config.min_depth, "max_depth": config.max_depth, "dtype": policy, "name": "depth_head"}
    if is_dinov2:
        x = Activation("relu", dtype=policy, name="project_relu")(x)
        return layers.DepthHead(config.head_width, None, "clipped", **options)(x, patches=None)
    output, sky = "sigmoid" if config.metric else "relu", config.design == "depth_anything_3"
    head = layers.DepthHead(config.head_width, config.patch_size, "exp" if sky else output, **options, sky=sky)
    return head(x, patches=backbone.get_layer("embedding").output)  # whose size a dynamic model has to know


def _fused(config: Any, features: list[Any], policy: Any, readout: str | None, start: str = "") -> Any:
    """Builds DPT's `Reassemble` and `Fusion`: one map from the maps of four blocks, the shallowest first."""
    # `readout` is the GELU behind `[patch, class token]`; None without the token. `start` begins the layers' names.
    width, has_token = config.fusion_width, readout is not None
    maps = []
    for i, x in enumerate(features):
        sizes = config.widths[i], REASSEMBLE_FACTORS[i], config.backbone.width if has_token else None
        x = layers.Reassemble(*sizes, readout or "exact", dtype=policy, name=f"{start}reassemble_{i}")(x)
        maps.append(Convolution(width, 3, bias=False, dtype=policy, name=f"{start}neck_{i}")(x))
    x = maps[-1]
    for i in range(4):  # the deepest first
        skip, shallower = maps[3 - i] if i else None, maps[2 - i] if i < 3 else None
        fusion = layers.FeatureFusion(i > 0, bias=not has_token, dtype=policy, name=f"{start}fusion_{i}")
        # Depth Anything resizes to the shallower map, DINOv2 to twice the size, and the shallower map to that.
        x = fusion(x, skip=skip, like=None if has_token else shallower)
    return Convolution(width, 3, dtype=policy, name=f"{start}project")(x) if has_token else x


def multi_task_dpt(config: MultiTaskDPTConfig, backbone: VisionTransformer, policy: Any) -> Any:
    """Builds a DPT for each task on the same four blocks; returns one symbolic map, of several tasks a dict."""
    features, found = _maps(config, backbone, policy, with_class_token=True), {}
    for task in config.tasks:
        x, name = _fused(config, features, policy, "tanh", f"{task}_"), f"{task}_head"
        if task == "depth":
            if config.depth_relu:
                x = Activation("relu", dtype=policy, name="depth_project_relu")(x)
            ends = config.min_depth, config.max_depth, config.bins
            head = layers.DepthBins(*ends, factor=1, least_share=config.min_depth, dtype=policy, name=name)
        else:
            outputs = 3 if task == "normals" else config.classes
            head = Dense(outputs, dtype=float32_or_better(policy, name), name=name)
        found[task] = head(x)
    return found if len(found) > 1 else found[config.tasks[0]]


def linear_depth(config: LinearDepthConfig, backbone: VisionTransformer, policy: Any) -> Any:
    """Builds the linear depth head; returns symbolic depth `(batch, 4 * rows, 4 * columns)`, a mean of bins."""
    x = _features(_maps(config, backbone, policy, with_class_token=True), policy)
    return layers.DepthBins(config.min_depth, config.max_depth, config.bins, dtype=policy, name="depth_bins")(x)


def _maps(config: DepthConfig, backbone: VisionTransformer, policy: Any, with_class_token: bool) -> list[Any]:
    maps = []
    for i in config.blocks:
        x, tokens = token_map(backbone, i, policy)
        maps.append(WithClassToken(dtype=policy, name=f"readout_{i}")(x, tokens) if with_class_token else x)
    return maps


@keras.saving.register_keras_serializable(package="keras_vit")
class DPT(DenseModel):
    """Depth estimation by DPT's head on a Vision Transformer, as in Depth Anything V1 to 3 and DINOv2.

    It takes images and returns depth `(batch, height, width)`, float32 or better. Depth Anything: of the image's
    height and width. DINOv2: `32 * ceil(n / 2)` pixels for a side of `n` patches. Depth Anything 3: a dict of `depth`,
    larger where farther, and `sky`, a score of at least 0; the sky has its own depth in `keras_vit.depth.estimate`,
    which takes pictures of any size. Made from a `DPTConfig`; other arguments and errors are as in `VisionTransformer`.

    Source: DPT (arXiv 2103.13413), `depth_anything_v2/dpt.py` of Depth Anything V2, `model/dpt.py` of Depth Anything 3,
    `dpt_head.py` of DINOv2.

    Examples:
        >>> dpt = keras_vit.DPT(keras_vit.models.DPTConfig(backbone=backbone, blocks=(0, 1, 2, 3)))
        >>> tuple(dpt(small_images).shape)
        (4, 8, 8)
    """

    config_type = DPTConfig
    default_name = "dpt"
    outputs_of = staticmethod(dpt)


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiTaskDPT(DenseModel):
    """Depth, surface normals and classes of each pixel by DPT heads on one Vision Transformer, as in TIPS 2.

    It takes images and returns maps of `16 * ceil(n / 2)` pixels for a side of `n` patches, float32 or better: depth in
    metres `(batch, rows, columns)`, normals `(batch, rows, columns, 3)` of any length, logits of classes
    `(batch, rows, columns, classes)`; of several tasks a dict with the keys `depth`, `normals` and `segmentation`. For
    pictures of any size, use `depth.estimate`, `depth.normals` and `segmentation.segment`. Made from a
    `MultiTaskDPTConfig`; other arguments and errors are as in `VisionTransformer`.

    Source: `pytorch/decoders.py` of TIPS, transformers' `models/tipsv2_dpt`.

    Examples:
        >>> config = keras_vit.models.MultiTaskDPTConfig(backbone=backbone, blocks=(0, 1, 2, 3), tasks=("normals",))
        >>> tuple(keras_vit.MultiTaskDPT(config)(small_images).shape)
        (4, 16, 16, 3)
    """

    config_type = MultiTaskDPTConfig
    default_name = "multi_task_dpt"
    outputs_of = staticmethod(multi_task_dpt)


@keras.saving.register_keras_serializable(package="keras_vit")
class LinearDepth(DenseModel):
    """Depth estimation by a linear head with bins on a Vision Transformer, as in DINOv2.

    It takes images and returns depth in metres `(batch, 4 * rows, 4 * columns)`, float32 or better, for a grid of rows
    and columns of patches. For pictures of any size, use `keras_vit.depth.estimate`. Made from a `LinearDepthConfig`;
    other arguments and errors are as in `VisionTransformer`.

    Source: DINOv2 (arXiv 2304.07193, section 7.4), `linear_head.py` of its depth heads.

    Examples:
        >>> depth_model = keras_vit.LinearDepth(keras_vit.models.LinearDepthConfig(backbone=backbone, blocks=(3,)))
        >>> tuple(depth_model(small_images).shape)
        (4, 8, 8)
    """

    config_type = LinearDepthConfig
    default_name = "linear_depth"
    outputs_of = staticmethod(linear_depth)


# Boxes


def detector(config: DetectorConfig, backbone: VisionTransformer, policy: Any) -> dict[str, Any]:
    """Builds the heads of a detector on a backbone; returns symbolic `logits`, `boxes` and maybe `objectness`."""
    vit = config.backbone
    head = DetectionHead(
        config.classes,
        config.embedding,
        vit.grid_size,
        vit.prefix_tokens,
        vit.class_token,
        config.objectness,
        config.activation,
        config.head_epsilon,
        dtype=float32_or_better(policy, "head"),
        name="head",
    )
    return head(backbone.output)


@keras.saving.register_keras_serializable(package="keras_vit")
class Detector(DenseModel):
    """Object detection with a box for each patch of a Vision Transformer, as in OWL-ViT and OWLv2.

    It takes images and returns a dict for the P patches: `"logits"` `(batch, P, classes)`, before a sigmoid; `"boxes"`
    `(batch, P, 4)`, centre and size as shares of the image; for an OWLv2 also `"objectness"` `(batch, P)`. For pictures
    of any size and boxes in pixels, use `keras_vit.detection.detect`. Made from a `DetectorConfig`; other arguments and
    errors are as in `VisionTransformer`.

    Examples:
        >>> config = keras_vit.models.DetectorConfig(backbone=eomt_config.backbone, classes=3, embedding=8)
        >>> {name: tuple(values.shape) for name, values in keras_vit.Detector(config)(small_images).items()}
        {'boxes': (4, 4, 4), 'logits': (4, 4, 3)}
    """

    config_type = DetectorConfig
    default_name = "detector"
    outputs_of = staticmethod(detector)


# Anomalies


def anomaly_detector(config: AnomalyConfig, backbone: VisionTransformer, policy: Any) -> dict[str, Any]:
    """Builds the comparison of a backbone's patches with a bank; returns symbolic `score` and `map`."""
    features, _ = token_map(backbone, config.backbone.depth - 1, policy)
    exact = float32_or_better(policy, "distances")  # 1 - cosine is smaller than float16 and bfloat16 can tell from 0
    unit = keras.layers.UnitNormalization(dtype=exact, name="unit_patches")
    x = unit(features) if config.metric == "cosine" else features
    masked = (features,) if config.masking else ()
    x = PatchDistances(config.bank_size, config.neighbours, config.metric, dtype=exact, name="distances")(x, *masked)
    score = AnomalyScore(dtype=exact, name="anomaly_score")(x)
    return {"score": score, "map": AnomalyMap(config.image_size, config.sigma, dtype=exact, name="anomaly_map")(x)}


@keras.saving.register_keras_serializable(package="keras_vit")
class AnomalyDetector(DenseModel):
    """Anomaly detection by the distances of patches to those of good pictures, which `keras_vit.anomaly.fit` makes.

    It takes images and returns a dict, float32 or better: `"score"` `(batch,)`, and `"map"` `(batch, height, width)`.
    For a picture and a decision, use `keras_vit.anomaly.detect`. Made from an `AnomalyConfig`; other arguments and
    errors are as in `VisionTransformer`. Source: AnomalyDINO (arXiv 2405.14529).

    Examples:
        >>> tuple(inspector(images)["map"].shape)
        (4, 24, 24)
    """

    config_type = AnomalyConfig
    default_name = "anomaly_detector"
    outputs_of = staticmethod(anomaly_detector)

    @property
    def bank(self) -> np.ndarray:
        """The patches of good pictures, `(M, D)`; of length 1 for the cosine."""
        return ops.convert_to_numpy(self.get_layer("distances").bank).T

    @property
    def with_distances(self) -> keras.Model:
        """A model with the same weights that also returns `"distances"` `(batch, rows, columns)` of the patches."""
        if not hasattr(self._kept, "distances"):
            outputs = {**self.output, "distances": self.get_layer("distances").output}
            self._kept.distances = keras.Model(self.input, outputs)
        return self._kept.distances

    good_scores = property(lambda self: np.array(self.config.good_scores), doc="As in `AnomalyConfig`, `(n,)`.")
    threshold = property(lambda self: self.config.threshold, doc="As in `AnomalyConfig`.")
    false_alarms = property(lambda self: self.config.false_alarms, doc="As in `AnomalyConfig`.")


# Queries


def eomt(config: EoMTConfig, backbone: VisionTransformer, policy: Any) -> dict[str, Any]:
    """Builds the queries and heads of an EoMT (`models/eomt.py`); returns symbolic logits of `classes` and `masks`."""
    depth = config.backbone.depth
    first = depth - config.query_blocks
    # The input of a block is the tokens, or a list of the tokens and the rotation of rotary embeddings.
    tokens, *rotation = keras.tree.flatten(backbone.get_layer(f"block_{first}").input)

    # Section 3.2: from here on, queries are tokens among the others. They have no position.
    tokens = layers.RegisterTokens(config.queries, dtype=policy, name="queries")(tokens)
    rotation = [layers.QueryRotation(config.queries, dtype=policy, name="query_rotation")(one) for one in rotation]
    for i in range(first, depth):
        tokens = backbone.get_layer(f"block_{i}")(tokens, *rotation)
    prefix = config.queries + config.backbone.prefix_tokens
    parts = [
        backbone.get_layer("encoder_norm"),
        layers.TokenMap(config.grid_size, prefix, dtype=policy, name="map"),
        layers.MaskHead(config.activation, dtype=policy, name="mask_head"),
        # The last class is "no object".
        Dense(config.classes + 1, dtype=float32_or_better(policy, "class_head"), name="class_head"),
    ]
    for i in range(config.upscale_blocks):
        parts.append(layers.UpscaleBlock(config.activation, dtype=policy, name=f"upscale_{i}"))
    return read_queries(tokens, {part.name: part for part in parts}, config)


def read_queries(
    tokens: Any, parts: Mapping[str, keras.layers.Layer], config: EoMTConfig, training: bool | None = None
) -> dict[str, Any]:
    """Returns the logits of `classes` and `masks` that tokens, of which the first are queries, stand for."""
    # Logits of masks are float32 or better.
    options = {} if training is None else {"training": training}  # a graph keeps what its layers are called with
    tokens = parts["encoder_norm"](tokens, **options)
    queries, features = tokens[:, : config.queries], parts["map"](tokens)
    for i in range(config.upscale_blocks):
        features = parts[f"upscale_{i}"](features, **options)
    masks = parts["mask_head"](queries, **options)
    exact = float32_or_better(masks.dtype)
    masks, features = ops.cast(masks, exact), ops.cast(features, exact)
    # Of float64, Keras's einsum says float32, and its matmul computes it on PyTorch.
    masks = ops.cast(ops.einsum("bqd,brcd->bqrc", masks, features), exact)
    return {"classes": parts["class_head"](queries, **options), "masks": masks}


@keras.saving.register_keras_serializable(package="keras_vit")
class EoMT(DenseModel):
    """Semantic, panoptic or instance segmentation by an EoMT (arXiv 2503.19108), a Vision Transformer with queries.

    It takes images `(batch, *image_size, channels)` and returns a dict of logits, float32 or better: `"classes"`
    `(batch, queries, classes + 1)`, whose last class is "no object", and `"masks"` `(batch, queries, rows, columns)`.
    For pictures of any size, use `keras_vit.segmentation.segment`. Made from an `EoMTConfig`; other arguments and
    errors are as in `VisionTransformer`.

    Examples:
        >>> {name: tuple(logits.shape) for name, logits in keras_vit.EoMT(eomt_config)(small_images).items()}
        {'classes': (4, 5, 4), 'masks': (4, 5, 4, 4)}
    """

    config_type = EoMTConfig
    default_name = "eomt"
    outputs_of = staticmethod(eomt)

    def predictions(
        self,
        images: Any,
        mask_probability: Any = 1.0,
        draws: Any = None,
        rope_scale: Any = None,
        training: bool | None = True,
    ) -> list[dict[str, Any]]:
        """Returns the logits before each block with queries and after the last one, with masked attention.

        With masked attention, a query reads only the patches inside its own mask, which is predicted before the block.
        The list has `query_blocks + 1` dicts, as a call of the model returns them. With `mask_probability=0` the last
        one is the result of a call.

        Args:
            images: `(batch, *image_size, channels)`.
            mask_probability: Probability of masked attention for a query: a number, one for each block
                `(query_blocks,)`, or one for each image and block `(batch, query_blocks)`.
            draws: Uniform random numbers `(query_blocks, batch, queries)`: a query is not masked if its number is above
                the probability. Needed (ValueError) unless probabilities are numbers or one for each block, all of them
                0 or 1.
            rope_scale: Factor of the rotary coordinates, a scalar; None for 1.
            training: As in a call of the model.

        Examples:
            >>> len(keras_vit.EoMT(eomt_config).predictions(small_images)) == eomt_config.query_blocks + 1
            True
        """
        config = self.config
        first = config.backbone.depth - config.query_blocks
        query_blocks = {f"block_{first + i}": i for i in range(config.query_blocks)}
        probabilities = _probabilities(mask_probability, config.query_blocks, draws)
        parts = {layer.name: layer for layer in self.layers}
        found: list[dict[str, Any]] = []

        def call(layer: Any, *args: Any, **options: Any) -> Any:
            """Returns the output of a layer; for a block with queries, appends the logits of its input to `found`."""
            if isinstance(layer, layers.RotaryEmbedding) and rope_scale is not None:
                return layer(*args, scale=rope_scale)
            if isinstance(layer, BaseLayer):
                options["training"] = training
            if layer.name not in query_blocks:
                return layer(*args, **options)
            number = query_blocks[layer.name]
            found.append(read_queries(args[0], parts, config, training))
            if probabilities[number] is None:
                return layer(*args, **options)
            seen = _seen(found[-1]["masks"], config.grid_size)
            if draws is not None:
                free = ops.convert_to_tensor(draws[number]) > probabilities[number]
                seen = seen | (free | (probabilities[number] <= 0))[..., None]
            return layer(*args, **options, allowed=_allowed(seen, config.backbone.prefix_tokens))

        self._check_images(images)
        last = call_layers(self, images, call)
        return [*found, last]


def _probabilities(values: Any, blocks: int, draws: Any) -> list[Any]:
    """Returns the probability of each block, None where it is 0, as numbers or tensors `(batch, 1)`."""
    if isinstance(values, (numbers.Real, list, tuple, np.ndarray)) and np.ndim(values) < 2:
        given = np.asarray(values, "float32").reshape(-1).tolist() * (blocks if np.ndim(values) == 0 else 1)
        if len(given) != blocks or not all(0 <= p <= 1 for p in given):
            raise ValueError(f"mask_probability must be one or {blocks} numbers from 0 to 1, but {values!r} was given.")
        if draws is None and any(0 < p < 1 for p in given):
            raise ValueError(f"mask_probability={values!r} needs draws: pass uniform (query_blocks, batch, queries).")
        return [p if p > 0 else None for p in given]
    if draws is None:
        raise ValueError("mask_probability for each image needs draws: pass uniform (query_blocks, batch, queries).")
    values = ops.convert_to_tensor(values)
    if values.shape[-1] != blocks:
        raise ValueError(f"mask_probability must have the shape (batch, {blocks}), but has {tuple(values.shape)}.")
    return [values[..., i, None] for i in range(blocks)]


def _seen(masks: Any, grid_size: tuple[int, int]) -> Any:
    """Which patches lie in the mask of each query: booleans `(batch, queries, patches)`; it has no gradient."""
    maps = ops.transpose(ops.stop_gradient(masks), (0, 2, 3, 1))
    maps = layers.resize(maps, grid_size, "half_pixel")
    return ops.transpose(ops.reshape(maps, (-1, grid_size[0] * grid_size[1], masks.shape[1])), (0, 2, 1)) > 0


def _allowed(seen: Any, prefix: int) -> Any:
    """Returns which tokens each token sees, booleans `(batch, tokens, tokens)`: queries, prefix tokens and patches."""
    # Queries see the patches in `seen`, booleans `(batch, queries, patches)`; everything else sees everything.
    batch, (queries, patches) = ops.shape(seen)[0], seen.shape[1:]
    of_queries = ops.concatenate([ops.ones((batch, queries, queries + prefix), "bool"), seen], axis=2)
    of_others = ops.ones((batch, prefix + patches, queries + prefix + patches), "bool")
    return ops.concatenate([of_queries, of_others], axis=1)
