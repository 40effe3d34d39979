"""OWL-ViT and OWLv2: detectors of what words or an example name, and their files (arXiv 2205.06230, 2306.09683)."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import layers
from keras_vit._arguments import to_numpy
from keras_vit._options import Number, Several, as_python
from keras_vit.checkpoints import is_copy
from keras_vit.checkpoints.accounting import check_arrays, check_needs, extract, fill, readable
from keras_vit.checkpoints.files import Sidecars, write_with_sidecars
from keras_vit.checkpoints.layouts import owl
from keras_vit.checkpoints.msgpack_file import write_msgpack
from keras_vit.checkpoints.stored_array import StoredArray
from keras_vit.detection import in_pixels, overlaps
from keras_vit.layers.dense_prediction import LEAST_NORM
from keras_vit.models import Detector, TextEncoder, VisionTransformer
from keras_vit.models.changes import copy_state
from keras_vit.preprocessing.images import read_picture
from keras_vit.text import tokenizers
from keras_vit.text.templates import Templates, checked_names, templates_of
from keras_vit.text.tokenizers import Tokenizer, WithTexts

_CANDIDATES = 0.8  # of the best overlap, that of a box which may stand for the example


class OpenVocabularyDetector(WithTexts):
    """An OWL-ViT or OWLv2, which makes a `Detector` for classes named by words or shown in an example picture.

    Attributes:
        detector: The `Detector` with image tower and heads; its one class is a placeholder.
        text_encoder: The `TextEncoder`: token ids to embeddings `(batch, E)`.
        tokenizer: Texts to token ids; None if no tokenizer file was found.
        extras: Arrays of the file that detection does not use, by name; they are written back.
        lowers: Whether texts are converted to lower case without punctuation first, as in Scenic's evaluation.
        notes: Sentences for the user about the weights.

    Examples:
        >>> owl = text.OpenVocabularyDetector(detector, both.text_encoder, letters)
        >>> owl.zero_shot_detector(["cat", "dog"], progress=False).config.class_names
        ('cat', 'dog')
    """

    def __init__(
        self,
        detector: Detector,
        text_encoder: TextEncoder,
        tokenizer: Tokenizer | None = None,
        *,
        extras: Mapping[str, np.ndarray] | None = None,
        lowers: bool = False,
        notes: Sequence[str] = (),
    ) -> None:
        self.detector, self.text_encoder, self.tokenizer = detector, text_encoder, tokenizer
        self.extras, self.lowers, self.notes = dict(extras or {}), lowers, tuple(notes)

    @property
    def image_encoder(self) -> VisionTransformer:
        """The image tower, a `VisionTransformer`: images to normalised tokens."""
        return self.detector.backbone

    def zero_shot_detector(
        self, class_names: Sequence[str], templates: Templates = "{}", *, batch_size: int = 32, progress: bool = True
    ) -> Detector:
        """Returns a `Detector` for the named classes; it does not contain the text tower.

        Arguments and errors are as in `ImageText.zero_shot_classifier`, also for a single class. The logit of a class
        is the mean over its sentences, as in Scenic's evaluation.
        """
        names = checked_names([class_names] if isinstance(class_names, str) else class_names, least=1)
        sentences = templates_of(templates)
        texts = self._as_read([template.replace("{}", name) for name in names for template in sentences])
        vectors = self.embed_texts(texts, batch_size, progress=progress)
        return self._with_classes(vectors.reshape(len(names), len(sentences), -1).mean(1), tuple(names), "zero_shot")

    def ids_of(self, texts: Sequence[str]) -> np.ndarray:
        """The token ids of texts, int32 `(texts, context)`; in lower case without punctuation if `lowers`."""
        return self._ids(self._as_read(texts))

    def _as_read(self, texts: Sequence[str]) -> list[str]:
        return [_lowered(text) if self.lowers else text for text in texts]

    def one_shot_detector(self, example: Any, box: Sequence[float] | None = None) -> Detector:
        """Returns a `Detector` with one class, for objects like the one in an example picture.

        Args:
            example: A picture, as `detection.detect` takes it.
            box: Left, top, right and bottom of the object in pixels. None for the patch with the highest objectness, or
                for the whole picture if the model has no objectness head.

        Returns:
            A `Detector`; its attribute `patch` is the index of the example's patch that represents the class.

        Raises:
            TypeError: if `example` is not a picture, or `box` is not four numbers.
            ValueError: if the box is empty or outside of the picture.
        """
        model, config = self.detector, self.detector.config
        pixels = read_picture(example, config.channels)
        size = (pixels.shape[0], pixels.shape[1])
        images = keras.ops.convert_to_tensor(model.preprocess(pixels))
        head = model.get_layer("head")
        tokens = self.image_encoder(images, training=False)
        vectors = to_numpy(head.embed(head.features(tokens)))[0].astype("float64")
        outputs = {name: to_numpy(values)[0] for name, values in head(tokens).items()}
        if box is None and "objectness" in outputs:
            patch = int(outputs["objectness"].argmax())
        else:
            whole = np.array([0.0, 0.0, size[1], size[0]]) if box is None else _checked_box(box, size)
            found = in_pixels(outputs["boxes"], size, config.pictures)
            patch = _patch_of(found.astype("float64"), whole, vectors)
        query = vectors[patch] / (np.linalg.norm(vectors[patch]) + LEAST_NORM)
        made = self._with_classes(query[None], None, "one_shot")
        made.patch = patch
        return made

    def _with_classes(self, vectors: np.ndarray, names: tuple[str, ...] | None, ending: str) -> Detector:
        old = self.detector
        with layers.skip_initialization():
            config = old.config.replace(classes=len(vectors), class_names=names)
            new = Detector(config, name=f"{old.name}_{ending}", dtype=old.dtype_policy)
        copy_state(old, new, {"head/queries"})
        layers.assign(new.get_layer("head").queries.kernel, np.ascontiguousarray(vectors.T, "float32"))
        return new


def _lowered(text: str) -> str:
    """A text as Scenic's evaluation has it: small letters, digits, `-` and `#`, words one space apart."""
    return re.sub(r"-+", "-", re.sub(r"\s+", " ", re.sub(r"[^a-z0-9-# ]", " ", text.lower()))).strip()


def _checked_box(box: Any, size: tuple[int, int]) -> np.ndarray:
    height, width = size
    left, top, right, bottom = found = Several(Number(), 4)("box", as_python(box))
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise ValueError(
            f"box must be (left, top, right, bottom) with left < right and top < bottom inside the {width} x {height} "
            f"pixels of the example, but {found} was given."
        )
    return np.array(found, "float64")


def _patch_of(boxes: np.ndarray, box: np.ndarray, vectors: np.ndarray) -> int:
    """Returns the patch that stands for a box: of those whose boxes overlap it most the least common one (Scenic)."""
    shares = overlaps(boxes, box[None])[:, 0]
    if shares.max() > 0:
        chosen = np.flatnonzero(shares >= _CANDIDATES * shares.max())
    else:
        corners = np.minimum(boxes[:, :2], box[:2]), np.maximum(boxes[:, 2:], box[2:])
        hull = (corners[1] - corners[0]).prod(1)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(1) + (box[2:] - box[:2]).prod()
        generalized = -(hull - areas) / (hull + 1e-6)
        chosen = np.flatnonzero(generalized >= 1.2 * min(generalized.max(), 0))
    return int(chosen[(vectors[chosen] @ vectors.mean(0)).argmin()])


def open_detector(
    source: Any,
    path: Path,
    file: Mapping[str, StoredArray],
    sidecars: Sidecars,
    tokenizer: Any,
    numerics: str | None,
    image_size: Any,
    dtype: Any,
) -> OpenVocabularyDetector:
    """Returns the model of an OWL's file; arguments are those of `load_image_text`."""
    is_scenic = owl.is_scenic(file)
    with readable(f"{source} cannot be read"):
        images, texts = owl.scenic_plans(file) if is_scenic else owl.plans(file, sidecars)
    check_arrays(images, str(source))
    check_arrays(texts, str(source))
    official = is_scenic or numerics == "official" or (numerics is None and is_copy(source, path))
    config, changes = images.stored, {}
    if official:
        changes = {"activation": "tanh", "head_epsilon": 1e-6, "pictures": "scenic"}
    if image_size is not None:
        changes["backbone"] = config.backbone.replace(image_size=image_size)
    config = config.replace(**changes)
    old, new = images.stored.grid_size, config.grid_size

    def convert(name: str, values: np.ndarray) -> np.ndarray:
        """Returns position embeddings for the new grid: resized, or of Scenic's files the upper left part."""
        if name != "position_embedding/table" or old == new:
            return values
        values = values.reshape(1, -1, values.shape[-1])
        if not is_scenic:
            return layers.resize_table(values, old, new, "bicubic_hf")
        if new[0] > old[0] or new[1] > old[1]:
            raise ValueError(f"image_size must be at most {images.stored.image_size} for a file of Scenic.")
        places = (np.arange(old[0] * old[1]).reshape(old)[: new[0], : new[1]] + 1).reshape(-1)
        return values[:, np.concatenate([[0], places])]

    with layers.skip_initialization():
        detector = Detector(config, dtype=dtype)
        text_encoder = TextEncoder(texts.stored, dtype=dtype)
    fill(detector, images, str(source), convert=convert)
    fill(text_encoder, texts, str(source))
    if is_scenic and tokenizer is None:
        words, note = tokenizers.clip_tokenizer(texts.stored, False), None
    else:
        words, note = tokenizers.find_tokenizer(path, tokenizer, texts.stored, sidecars, "hf_clip", tokenizers.WORDS)
    notes = [warning.text for warning in (*images.warnings, *texts.warnings)] + ([note] if note else [])
    start = f"{owl.prefix_of(config)}."
    named = {f"{start}logit_scale" if n.endswith(owl.SCENICS_SCALE) else n: a for n, a in file.items()}
    extras = {n: a.read_stored() for n, a in named.items() if n.removeprefix(start) in owl.EXTRAS}
    return OpenVocabularyDetector(detector, text_encoder, words, extras=extras, lowers=official, notes=notes)


def save_detector(both: OpenVocabularyDetector, path: str | os.PathLike[str], layout: str, overwrite: bool) -> None:
    """Writes all arrays as transformers (`"huggingface"`, a folder) or Scenic (`"scenic"`, a file) names them."""
    config, text = both.detector.config, both.text_encoder.config
    kind = owl.prefix_of(config)
    check_needs(config, owl.LAYOUT)
    if layout == "scenic":
        arrays = [*extract(both.detector, owl.SCENIC), *extract(both.text_encoder, owl.SCENIC_TEXT)]
        arrays += [(owl.SCENICS_SCALE, a) for name, a in both.extras.items() if name == f"{kind}.logit_scale"]
        write_msgpack(Path(path), {f"params/{name}": values for name, values in arrays}, overwrite)
        return
    arrays = dict(extract(both.detector, owl.LAYOUT))
    arrays |= {f"{kind}.{name}": values for name, values in extract(both.text_encoder, owl.TEXT)}
    jsons = {
        "config.json": owl.library_config(config, text),
        "preprocessor_config.json": owl.library_preprocessor(config),
    }
    files = () if both.tokenizer is None else both.tokenizer.files
    weights = Path(path) / "model.safetensors"
    write_with_sidecars(weights, sorted((arrays | both.extras).items()), jsons, files, overwrite)
