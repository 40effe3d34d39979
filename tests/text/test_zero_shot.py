"""What a classifier of words is good for: exports, training, evidence."""

import numpy as np
import pytest

import keras_vit
from keras_vit import training
from keras_vit.export import FORMATS, export
from tests.export.tiny import skip_without
from tests.text.test_image_text import COSINE, source

pytestmark = pytest.mark.filterwarnings("ignore:.*texts are longer than")


@pytest.fixture(scope="module")
def classifier_of(golden):
    """From the name of a case to its towers, its classifier of words and its images; made once."""
    made = {}

    def make(name):
        if name not in made:
            case, both = golden(name), keras_vit.load_image_text(source(golden(name)))
            model = both.zero_shot_classifier(case.meta["class_names"], case.meta["templates"], progress=False)
            made[name] = both, model, case.ref["images"]
        return made[name]

    return make


@pytest.mark.nightly_elsewhere
@pytest.mark.parametrize(
    "format, name", [("litert", "txt_bv_siglip"), ("onnx", "txt_openclip"), ("saved_model", "txt_lit_s")]
)
def test_exported(classifier_of, tmp_path, backend, format, name):
    row = FORMATS[format]
    if row.backend != backend:
        pytest.skip(f"written by {row.backend}")
    skip_without(format)
    both, model, images = classifier_of(name)
    path = tmp_path / f"model{row.suffix}"
    report = export(model, path, format, batch_size="any", measure=False)
    assert report.max_abs_error <= COSINE * both.scale and report.top1_agreement == 1
    answers = row.run(path, images)["logits"]
    assert np.abs(answers - model.predict(images, verbose=0)).max() <= COSINE * both.scale


@pytest.mark.nightly_elsewhere
def test_fine_tuning_begins_with_the_words(classifier_of):
    """The first batch, here all images, is counted before the first update: as the classifier of words names them."""
    _, words, _ = classifier_of("txt_hf_clip")
    model = words.with_config()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3)).astype("uint8")
    logits = words.predict(words.config.pipeline.normalized(pixels), verbose=0)
    labels = np.where(np.arange(12) % 3, logits.argmax(1), (logits.argmax(1) + 1) % 7)
    losses = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1) - logits[range(12), labels]
    plain = training.Augmentation(crop="resize", flip=False)
    recipe = training.Recipe(steps=1, batch_size=12, image_size=32, learning_rate=1e-3, augmentation=plain)
    names = words.config.class_names
    done = training.finetune(
        model, (pixels, labels), recipe, validation=(pixels[1:], labels[1:]), class_names=names, every=1, verbose=False
    )
    assert done.log[0]["accuracy"] == pytest.approx(8 / 12)
    assert done.log[0]["loss"] == pytest.approx(losses.mean(), rel=1e-4)
    assert done.model.config == words.config
