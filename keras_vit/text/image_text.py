"""Two towers that meet: images and texts as embeddings of one space, classifiers and segmenters of words.

`ImageText` is the model of both; `load_image_text` reads it from a file, with its temperature.
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_vit import _arguments, layers
from keras_vit._arguments import DType, ImageSize, Source, check_choice, listing, unit_vectors, whole_number
from keras_vit._keras import SharedModel
from keras_vit._options import Number
from keras_vit._processes import current
from keras_vit.checkpoints import find_checkpoint, is_copy, is_keras_file, is_variant, resolve_source
from keras_vit.checkpoints.accounting import Plan, check_arrays, fill, readable
from keras_vit.checkpoints.catalogue import SHIPPED
from keras_vit.checkpoints.files import Sidecars, open_file, read_sidecars, text_of_pair
from keras_vit.checkpoints.layouts import owl, timm
from keras_vit.checkpoints.layouts.jsons import mapping, number
from keras_vit.checkpoints.layouts.text import Names, plan_of_text
from keras_vit.checkpoints.layouts.timm_json import find_like
from keras_vit.checkpoints.msgpack_file import is_msgpack, read_msgpack
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.models import LinearSegmenter, LinearSegmenterConfig, TextConfig, TextEncoder, VisionTransformer
from keras_vit.models.changes import copy_state
from keras_vit.models.dense_config import WITHOUT_TOP
from keras_vit.preprocessing.images import is_file
from keras_vit.text import tokenizers
from keras_vit.text.open_vocabulary import OpenVocabularyDetector, open_detector
from keras_vit.text.templates import AVERAGINGS, Templates, average, checked_names, templates_of, texts_of_classes
from keras_vit.text.tokenizers import Tokenizer, WithTexts
from keras_vit.zoo import load

# What a TIPS calls its temperature, by which cosines are divided.
TEMPERATURES = ("temperature", "temperature_contrastive")
_STATED = "temperature_init_value"  # what config.json calls it
_HALF = "Pass a complete file with both towers."
# What cosines are multiplied with or divided by, and its logarithm: float32 has the exponentials of these.
_LOGARITHM = Number("one number from -80 to 80", lambda n: abs(n) < 80)
_FACTOR = Number("a number above 0 in the range of float32", lambda n: math.exp(-80) < n < math.exp(80))


@keras.saving.register_keras_serializable(package="keras_vit")
class ImageText(WithTexts, SharedModel, keras.Model):
    """An image tower and a text tower (CLIP, SigLIP, LiT, TIPS): `(images, ids)` to logits `(images, texts)`.

    To train on pairs, `both.compile(optimizer, training.ContrastiveLoss())` and `both.fit((images, texts))`: text i
    belongs to image i of a batch. To keep a tower fixed (LiT), set its `trainable = False`.

    Args:
        image_encoder: Images to embeddings `(batch, D)`, not normalised.
        text_encoder: Token ids to embeddings `(batch, D)`, not normalised.
        tokenizer: Texts to token ids. A `.keras` file does not contain it: set `both.tokenizer` after loading.
        scale: Initial factor of the cosine similarities; its logarithm is a weight.
        bias: Initial bias of the scaled similarities, a weight; None for no bias.
        averaging: Rule by which `zero_shot_classifier` averages the texts of a class.
        notes: Sentences for the user about the tokenizer or the weights.
        temperature: `1 / scale` as stored in a TIPS file, so that it is written back unchanged.
        temperature_name: Name of its array in the file.

    Raises:
        ValueError: if the embeddings differ in length, `averaging` is unknown, `scale` or `temperature` is not above 0,
            or a number is not finite.
        TypeError: if `scale`, `bias` or `temperature` is not a number.

    Examples:
        >>> both.logits(small_images, ["cat", "dog"]).shape
        (4, 2)
    """

    def __init__(
        self,
        image_encoder: VisionTransformer,
        text_encoder: TextEncoder,
        tokenizer: Tokenizer | None = None,
        *,
        scale: float = 1 / 0.07,
        bias: float | None = None,
        averaging: str = "openai",
        notes: Sequence[str] = (),
        temperature: float | None = None,
        temperature_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("averaging", averaging, AVERAGINGS)
        lengths = image_encoder.output_shape[-1], text_encoder.output_shape[-1]
        if len(image_encoder.output_shape) != 2 or lengths[0] != lengths[1]:
            raise ValueError(
                "Image and text embeddings must be vectors of the same length, but images have the shape "
                f"{image_encoder.output_shape} and texts {text_encoder.output_shape}."
            )
        scale = _FACTOR("scale", scale)
        temperature = None if temperature is None else _FACTOR("temperature", temperature)
        bias = None if bias is None else Number()("bias", bias)
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.tokenizer = tokenizer
        self.averaging = averaging
        self.notes = tuple(notes)
        self.temperature, self.temperature_name = temperature, temperature_name
        self.log_scale = self._add_number("log_scale", math.log(scale))
        self.logit_bias = None if bias is None else self._add_number("logit_bias", bias)
        self.built = True

    def _add_number(self, name: str, value: float) -> keras.Variable:
        return self.add_weight(name=name, shape=(), initializer=keras.initializers.Constant(value), dtype="float32")

    @property
    def scale(self) -> float:
        """The factor of the cosine similarities."""
        return math.exp(float(self.log_scale.numpy()))

    @property
    def bias(self) -> float:
        """The bias of the scaled similarities; 0 for families without one."""
        return 0.0 if self.logit_bias is None else float(self.logit_bias.numpy())

    @property
    def activation(self) -> str:
        """How logits become probabilities: `"sigmoid"` of each with a bias (SigLIP), else `"softmax"`."""
        return "softmax" if self.logit_bias is None else "sigmoid"

    def __repr__(self) -> str:
        return f"<ImageText {self.image_encoder!r} {self.text_encoder!r}>"

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Returns logits float32 `(images, texts)` for a pair `(images, token ids)`: scaled cosines plus the bias."""
        images, ids = inputs
        x, z = self.image_encoder(images, training=training), self.text_encoder(ids, training=training)
        x, z = (ops.normalize(ops.cast(rows, "float32"), axis=-1, epsilon=1e-12) for rows in (x, z))
        logits = ops.exp(self.log_scale) * ops.matmul(x, ops.transpose(z))
        return logits if self.logit_bias is None else logits + self.logit_bias

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """The loss of the compiled model; without `y` the labels are an identity matrix."""
        y = ops.eye(ops.shape(y_pred)[0]) if y is None else y
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """The metrics of the compiled model, for the same labels as `compute_loss`."""
        y = ops.eye(ops.shape(y_pred)[0]) if y is None else y
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains both towers on pairs `x = (images, texts)`, and returns Keras's history.

        Images are arrays, pictures or paths; texts are sentences or token ids; `validation_data` is such a pair. Other
        arguments are those of Keras's `fit`. The loss compares all images and texts of a batch, also across devices
        inside `training.data_parallel()` on JAX. Raises ValueError for unknown token ids, and for replicas of
        `tf.distribute` or separate processes, which would compare only their own part.
        """
        replicas = getattr(getattr(self, "distribute_strategy", None), "num_replicas_in_sync", 1)
        processes = current()
        if processes.apart or keras.distribution.distribution() is None:  # only JAX heeds one
            replicas = max(replicas, processes.count)
        if replicas > 1:
            raise ValueError(
                f"The contrastive loss needs the whole batch, but each of {replicas} replicas has only a part. Train "
                "in one process on one device, or on JAX inside training.data_parallel().scope()."
            )
        held = kwargs.get("validation_data")
        if isinstance(held, tuple) and held:
            # Keras takes (x, y), where x is itself a pair; a pair alone is x.
            pair, *rest = held if isinstance(held[0], tuple) and not any(map(is_file, held[0])) else (held,)
            kwargs["validation_data"] = (self._prepared(pair), *rest)
        return super().fit(self._prepared(x), *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """What Keras's `evaluate` returns, the loss and metrics, for pairs as `fit` takes them."""
        return super().evaluate(self._prepared(x), *args, **kwargs)

    def predict(self, x: Any, batch_size: int | None = None, *, verbose: Any = "auto") -> np.ndarray:
        """`logits` of all images and texts in `x = (images, texts)`; ValueError if `x` is not a pair."""
        if not (isinstance(x, tuple) and len(x) == 2):
            raise ValueError(f"x must be a pair (images, texts), but {type(x).__name__} was given.")
        return self.logits(*x, batch_size=32 if batch_size is None else batch_size)

    def _prepared(self, x: Any) -> Any:
        """Returns images and token ids as the towers take them, of `(images, texts)`; anything else as it is."""
        if not (isinstance(x, tuple) and len(x) == 2):
            return self.image_encoder.watch_values(x)
        images, texts = x
        if isinstance(images, (list, tuple)):
            images = self.image_encoder.preprocess(list(images))
        texts = self._ids(texts) if isinstance(texts, (list, tuple)) else texts
        self.text_encoder.check_ids(texts)
        self.image_encoder.check_values(images)
        return images, texts

    def get_config(self) -> dict[str, Any]:
        """Returns the config for saving: both towers and all settings that are not weights, except the tokenizer."""
        return {
            "image_encoder": keras.saving.serialize_keras_object(self.image_encoder),
            "text_encoder": keras.saving.serialize_keras_object(self.text_encoder),
            "bias": None if self.logit_bias is None else 0.0,
            "averaging": self.averaging,
            "notes": list(self.notes),
            "temperature": self.temperature,
            "temperature_name": self.temperature_name,
            "name": self.name,
            "trainable": self.trainable,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "ImageText":
        towers = ("image_encoder", "text_encoder")
        return cls(**config | {name: keras.saving.deserialize_keras_object(config[name]) for name in towers})

    def embed_images(self, images: Any, batch_size: int = 32) -> np.ndarray:
        """Returns embeddings of images, float32 `(images, D)`, normalised to length 1.

        `images` are as for `image_encoder.predict`; files, PIL images and lists are preprocessed first.
        """
        whole_number("batch_size", batch_size, 1)
        if isinstance(images, (list, tuple, bytes)) or is_file(images):
            images = self.image_encoder.preprocess(images)
        return unit_vectors(self.image_encoder.predict(images, batch_size=batch_size, verbose=0).astype("float32"))

    def logits(self, images: Any, texts: str | Sequence[str], batch_size: int = 32) -> np.ndarray:
        """Similarities times `scale` plus `bias`, float32 `(images, texts)`; errors as in `embed_images`."""
        similarities = self.embed_images(images, batch_size) @ self.embed_texts(texts, batch_size).T
        return np.float32(self.scale) * similarities + np.float32(self.bias)

    def probabilities(self, images: Any, texts: str | Sequence[str]) -> np.ndarray:
        """Probabilities, float32 `(images, texts)`: the softmax over texts or the sigmoid of `logits`."""
        logits = self.logits(images, texts)
        return _arguments.softmax(logits) if self.activation == "softmax" else np.exp(-np.logaddexp(0, -logits))

    def zero_shot_classifier(
        self,
        class_names: Sequence[str],
        templates: Templates = "a photo of a {}.",
        *,
        averaging: Literal["openai", "big_vision", "lit"] | None = None,
        batch_size: int = 32,
        progress: bool = True,
    ) -> VisionTransformer:
        """Returns an image classifier for named classes, whose head is made of text embeddings; it returns logits.

        The kernel of the head is the normalised embedding of each class times `scale`. It is multiplied with the
        normalised image embedding (`config.unit_features`). The model does not contain the text tower. Raises TypeError
        or ValueError if an argument is wrong, ImportError if ftfy is missing for a CLIP.

        Args:
            class_names: Names of the classes, at least two different ones; they become `config.class_names`.
            templates: Sentences with `{}` for the class name, or the name of a published list (see
                `published_templates`). The embedding of a class is the mean over its sentences.
            averaging: Rule for this mean: `"openai"` (also open_clip), `"big_vision"` (SigLIP; removes capitals,
                punctuation and text after a comma first) or `"lit"`. None for the rule of the model's family.
            batch_size: Number of texts per step.
            progress: Whether to show a progress bar.
        """
        names = checked_names(class_names)
        averaging = self.averaging if averaging is None else averaging
        check_choice("averaging", averaging, AVERAGINGS)
        texts = texts_of_classes(names, templates_of(templates), averaging)
        weights = average(self.embed_texts(texts, batch_size, progress=progress), len(names), averaging)
        model = self.image_encoder.with_config(
            classes=len(names), class_names=names, unit_features=True, name=f"{self.image_encoder.name}_zero_shot"
        )
        head = model.get_layer("head")
        layers.assign(head.kernel, np.ascontiguousarray(self.scale * weights.T, "float32"))
        layers.assign(head.bias, np.full(len(names), self.bias, "float32"))
        return model

    def zero_shot_segmenter(
        self,
        class_names: Sequence[str],
        templates: Templates = "tcl",
        *,
        mode: Literal["slide", "whole"] = "slide",
        image_size: int = 448,
        stride: int = 336,
        batch_size: int = 32,
    ) -> LinearSegmenter:
        """Returns a `LinearSegmenter` for named classes without the text tower, whose logits are cosines. Needs a TIPS.

        Each patch attends only to itself in the last block, and is compared with the mean text embedding of each class
        (`pytorch/TIPS_zeroshot_segmentation.ipynb` of google-deepmind/tips).

        Args:
            class_names: Names of the classes; they become `config.class_names`.
            templates: As in `zero_shot_classifier`; `"tcl"` has the nine that the authors evaluate with.
            mode: `"slide"` averages class probabilities of overlapping crops; `"whole"` takes the whole picture at
                once.
            image_size: Shorter side of a picture, and both sides of a crop, in pixels.
            stride: Distance between crops in pixels, for `"slide"`; at most `image_size`.
            batch_size: Number of texts per step.

        Raises:
            TypeError, ValueError, ImportError: as `zero_shot_classifier`; if the model is not a TIPS.
        """
        names = checked_names(class_names)
        check_choice("mode", mode, ("slide", "whole"))
        for name, value in {"batch_size": batch_size, "image_size": image_size, "stride": stride}.items():
            whole_number(name, value, 1)
        words, config = self._known_tokenizer(), self.text_encoder.config
        if config.position_embedding != "sincos" or config.pooling != "mean" or self.image_encoder.config.projection:
            raise ValueError(
                "zero_shot_segmenter needs a TIPS, whose patches can be compared with texts, but this is another "
                "model. Use zero_shot_classifier for whole pictures."
            )
        ids = _with_capitals(words, config)(texts_of_classes(names, templates_of(templates), "openai"))
        vectors = average(self.text_encoder.predict(ids, batch_size=batch_size, verbose=0), len(names), "openai")
        backbone = self.image_encoder.with_config(**WITHOUT_TOP, dynamic=True)
        head = LinearSegmenterConfig(
            backbone=backbone.config,
            classes=len(names),
            class_names=tuple(names),
            blocks=(backbone.config.depth - 1,),
            pictures=f"tips_{mode}",
            short_side=image_size,
            crop_size=image_size,
            stride=min(stride, image_size) if mode == "whole" else stride,
            zero_shot=True,
        )
        model = LinearSegmenter(head, name=f"{self.image_encoder.name}_zero_shot", dtype=backbone.dtype_policy)
        copy_state(backbone, model.backbone)
        layers.assign(model.get_layer("head").kernel, np.ascontiguousarray(vectors.T, "float32"))
        return model


def _with_capitals(tokenizer: Tokenizer, config: TextConfig) -> Tokenizer:
    """Returns a tokenizer that leaves capitals, as the authors' notebook on segmentation has it."""
    model = next((file for file in tokenizer.files if file.suffix == ".model"), None)
    if model is None:
        return tokenizer
    return dataclasses.replace(tokenizers.from_sentencepiece(model, config, tokenizers.TIPS), clean=str)


def load_image_text(
    source: Source,
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    like: str | None = None,
    numerics: Literal["official", "publisher"] | None = None,
    image_size: ImageSize | Literal["dynamic"] | None = None,
    dtype: DType = None,
) -> ImageText | OpenVocabularyDetector:
    """Loads both towers of a CLIP, SigLIP, SigLIP 2, LiT, TIPS or OWL, and their tokenizer.

    Supported are the files of OpenAI, open_clip, transformers and big_vision. A LiT must have a Transformer as text
    tower; a TIPS is a folder with both `.npz`; an OWL is a file of transformers or Scenic.

    Args:
        source: A name, path, folder or address, as in `load`.
        tokenizer: A `tokenizer.json`, a SentencePiece `.model`, or a folder with one. None for the file beside the
            weights, or CLIP's tokenizer in this package.
        like: As in `load`, for CLIP files without a config.
        numerics: `"publisher"` computes as the library of the file does. `"official"` computes as the training code
            does: big_vision for SigLIP, OpenAI or open_clip for CLIP, the authors' tokens for TIPS. None: `"official"`
            for names of the catalogue, `"publisher"` for paths and addresses.
        image_size: As in `load`.
        dtype: Dtype policy of both towers.

    Returns:
        An `ImageText`, or an `OpenVocabularyDetector` for an OWL.

    Raises:
        OSError, ImportError: as in `load`; if the tokenizer needs a package of the extra `text`.
        TypeError, ValueError: as in `load`; if a file has no supported text tower, the tokenizer does not fit, or
            `numerics="official"` does not exist for the model.

    Examples:
        >>> text.save_image_text(both, "both.npz", "big_vision")
        >>> again = keras_vit.load_image_text("both.npz")
        >>> again.tokenizer = both.tokenizer  # the file does not contain it
        >>> again.logits(small_images, ["a cat"]).shape
        (4, 1)
    """
    if numerics is not None:
        check_choice("numerics", numerics, ("official", "publisher"))
    path = _fetched(source)
    source = _arguments.without_password(source)  # in messages
    known = None if like is None else find_like(like)
    file, sidecars = _arrays_of_towers(path), read_sidecars(path, like=known)
    if owl.recognise(file):
        if known is not None:
            raise ValueError(f"{source} is an OWL, whose file is complete: leave like={known.name!r} out.")
        return open_detector(source, path, file, sidecars, tokenizer, numerics, image_size, dtype)
    with readable(f"{source} cannot be read"):
        plan, names = plan_of_text(file, sidecars)
        numbers = _numbers_of_logits(file, plan, names, sidecars)
    check_arrays(plan, str(source))
    if known is not None and sidecars.open_clip:
        raise ValueError(f"{source} has its settings in open_clip_config.json: leave like={known.name!r} out.")
    official, has_bias = None, numbers.get("bias") is not None
    if numerics == "official" or (numerics is None and is_copy(source, path)):
        official = _official(plan.stored, names, sidecars, has_bias, str(source))
    if official in ("openai", "open_clip") and tokenizer is not None:
        raise ValueError("numerics='official' uses the CLIP tokenizer of this package: leave tokenizer=... out.")
    # Of CLIP's image tower no publisher computes anything else than the original; timm does of Meta's.
    of_images = "official" if official == "big_vision" or (official and timm.is_pe_of_open_clip(file)) else None
    images = load(path, like=like, numerics=of_images, image_size=image_size, dtype=dtype)
    if not isinstance(images, VisionTransformer) or images.config.classes:
        raise ValueError(f"The image tower of {source} must be a Vision Transformer without a head, but is {images!r}.")
    with layers.skip_initialization():
        config = plan.stored
        if official == "big_vision":
            config = dataclasses.replace(config, gelu="tanh", layer_norm_epsilon=1e-6)
        texts = TextEncoder(config, dtype=dtype)
    fill(texts, plan, str(source))
    kind = official or _kind_of(plan.dialect, sidecars, images, has_bias)
    words = tokenizers.AUTHORS_WORDS if official == tokenizers.TIPS else tokenizers.WORDS
    made, note = tokenizers.find_tokenizer(Path(path), tokenizer, config, sidecars, kind, words)
    notes = [warning.text for warning in plan.warnings] + ([note] if note else [])
    if sidecars.config and sidecars.open_clip:
        notes.append(f"the folder has two sets of files; the set of {Path(path).name} was loaded")
    averaging = kind if kind in AVERAGINGS else "openai"
    return ImageText(images, texts, made, **numbers, averaging=averaging, notes=notes)


def load_pair(source: Source, **options: Any) -> ImageText:
    """Returns what `load_image_text` does, where whole pictures are to be compared with texts; TypeError for an OWL."""
    if holds_detector(source):
        raise TypeError(f"{source} is an OWL, which finds boxes in pictures: use `keras-vit detect`.")
    both: Any = load_image_text(source, **options)
    return both


def _kind_of(dialect: str, sidecars: Sidecars, images: VisionTransformer, has_bias: bool) -> str:
    """Returns whose tokenizer and averaging belong to weights of a layout."""
    # That is `"tips"`, `"big_vision"`, `"lit"`, `"open_clip"`, `"openai"`, or the name of the layout itself.
    if dialect.startswith(tokenizers.TIPS):
        return tokenizers.TIPS
    if dialect == "flax":
        return "big_vision" if has_bias or not images.config.class_token else "lit"
    if dialect == "pe":
        return "open_clip"  # whose byte pairs Meta's code has
    return "openai" if dialect.startswith("open_clip") and not sidecars.open_clip else dialect


def _official(config: TextConfig, names: Names, sidecars: Sidecars, has_bias: bool, source: str) -> str | None:
    """Whose code is the official one for a text tower: `"big_vision"` or such; None for the file's own rules."""
    if names.is_flax:
        return None
    if names.is_tips:
        return tokenizers.TIPS
    if has_bias and config.projection_bias and config.pooling == "last" and not config.causal:
        return "big_vision"
    other_words = mapping(sidecars.open_clip, "model_cfg", "text_cfg").get("hf_tokenizer_name")
    if has_bias or not config.causal or config.pooling not in ("largest_id", "end_id") or other_words:
        raise ValueError(
            f"numerics='official' needs a SigLIP, or a CLIP of OpenAI or open_clip, but {source} is another model: "
            "pass numerics='publisher'."
        )
    return "openai" if config.gelu == "quick" else "open_clip"


def holds_detector(source: Source) -> bool:
    """Returns whether a name or a file is an OWL's, whose classes are words."""
    path = None if is_variant(str(source)) else resolve_source(source)
    if path is None or is_keras_file(path):
        return False
    return owl.recognise(_arrays_of_towers(_fetched(path)))


def _fetched(source: Source) -> Path:
    """Returns the file of a source; ImportError, before it is fetched, where no library reads tokenizers."""
    if isinstance(source, str) and source not in SHIPPED and not os.path.exists(os.path.expanduser(source)):
        tokenizers.need_library()
    return find_checkpoint(source, beside=tokenizers.TOKENIZER_FILES)


def _arrays_of_towers(path: Path) -> Mapping[str, StoredArray]:
    """Returns the arrays of a file by name; of an image tower of TIPS also those of the text tower's file beside it."""
    if is_msgpack(path):
        return read_msgpack(path)
    file, text = open_file(path), text_of_pair(path.name)
    if text is None or not path.with_name(text).is_file():
        return file
    return {**file, **open_file(path.with_name(text))}


def _numbers_of_logits(file: Mapping[str, StoredArray], plan: Plan, names: Names, sidecars: Sidecars) -> dict[str, Any]:
    """Returns `ImageText`'s scale (not its logarithm), bias, temperature; ValueError for a file without both towers."""
    places = [f"{plan.prefix}{name}" for name in (TEMPERATURES if names.is_tips else (names.scale, names.bias))]
    beside = [name for name in plan.unused if name not in places]
    if not beside:
        raise ValueError(f"It has a text tower, but no image tower. {_HALF}")
    foreign = [name for name in beside if not name.startswith((f"{plan.prefix}img/", f"{plan.prefix}txt/"))]
    if foreign and plan.dialect == "flax":
        raise ValueError(f"It must have only the two towers, but it has the arrays {listing(foreign)}.")

    def number_in(name: str, check: Number) -> float:
        values = file[name].read()
        return check(f"The array {name!r}", float(values.item()) if values.size == 1 else math.nan)

    if names.is_tips:
        name = next((name for name in (*places, *TEMPERATURES) if name in file), None)
        if name is None and _STATED not in sidecars.config:
            raise ValueError(f"It lacks the array 'temperature' (the scale of the logits). {_HALF}")
        if name is None:
            temperature = float(np.float32(_FACTOR(_STATED, number(sidecars.config, _STATED, 1.0))))
        else:
            temperature = number_in(name, _FACTOR)
        numbers = {"scale": math.exp(-math.log(temperature)), "temperature": temperature}
        if names.scale == TEMPERATURES[0]:
            numbers["temperature_name"] = next((name for name in TEMPERATURES if name in file), None)
        return numbers
    lacking = [name for name in places if name not in file]
    if places[0] in lacking or (lacking and plan.dialect == "siglip"):
        raise ValueError(f"It lacks the array {lacking[0]!r} (the scale or the bias of the logits). {_HALF}")
    bias = None if lacking else number_in(places[1], Number())
    return {"scale": math.exp(number_in(places[0], _LOGARITHM)), "bias": bias}
