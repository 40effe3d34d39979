"""Text towers, and towers of a pair, as files: unit vectors, what the files say, and the tokenizer beside them."""

import hashlib
import json

import numpy as np
import pytest

import keras_vit
from keras_vit.export import FORMATS, export
from tests.export.test_export import FROM_ELSEWHERE, HERE
from tests.export.tiny import fake_export, skip_without

ELSEWHERE = pytest.param(FROM_ELSEWHERE, marks=pytest.mark.nightly)


@pytest.fixture(scope="module")
def both(golden):
    return keras_vit.load_image_text(golden("txt_bv_siglip").folder / "model.npz")


@pytest.mark.long
@pytest.mark.parametrize(
    "name",  # a `.pt2` takes ten seconds; tests/export/test_export.py writes one by day
    [
        *(pytest.param(n, marks=[pytest.mark.nightly] * (n == "torch")) for n in FORMATS if FORMATS[n].backend == HERE),
        ELSEWHERE,
    ],
)
def test_a_text_tower_in_a_file(both, name, tmp_path):
    skip_without(name)
    row, texts = FORMATS[name], ["a photo of a cat", "Ein Hund!", ""]
    path = tmp_path / f"text{row.suffix}"
    report = export(both.text_encoder, path, name, pair=both, batch_size="any", measure=False)
    assert report.cosine > 1 - 1e-6 and report.max_abs_error < 1e-5 and report.output == "embeddings"
    assert report.input == f"ids: int32 (any, {both.text_encoder.config.context}), 0..899"
    if row.backend != HERE and row.backend in ("tensorflow", "torch"):
        return  # two frameworks in one process
    ids, run = both.tokenizer(texts), row.load(path)
    np.testing.assert_allclose(*run(ids).values(), both.embed_texts(texts), atol=1e-5)
    ids[0, 3], ids[1, 0] = 900, -1
    assert np.isnan([*run(ids).values()][0]).all(1).tolist() == [True, True, False]
    with pytest.raises(Exception, match=r"(?i)shape|dimension|size|mismatch|got|signature"):
        run(ids[:, :-1])


@pytest.mark.skipif(HERE != "tensorflow", reason="where the file is written in this process")
@pytest.mark.parametrize("path", ["text.tflite", pytest.param("text.onnx", marks=pytest.mark.nightly)])
def test_a_table_of_tokens_in_8_and_16_bits(both, path, tmp_path):
    skip_without("litert")
    weights = 4 * both.text_encoder.count_params()
    for precision, share, cosine in (("float16", 0.6, 0.99999), ("dynamic_int8", 0.45, 0.999)):
        report = export(both.text_encoder, tmp_path / f"{precision}-{path}", precision=precision, measure=False)
        assert report.cosine > cosine and report.bytes < share * weights + 60_000
        assert (report.float16_error is None) == (precision == "dynamic_int8")


@pytest.mark.once
def test_what_the_files_of_a_pair_say(both, monkeypatch, tmp_path):
    fake_export(monkeypatch)
    assert export(both.text_encoder, tmp_path / "text.onnx", pair=both).note is None
    found, words = fake_export.job.metadata, (tmp_path / "tokenizer.json").read_bytes()
    logits = {"logit_scale": both.scale, "logit_bias": both.bias, "activation": "sigmoid"}
    assert found | {"input": "ids", "context": 64, "input_range": [0, 899]} | logits == found
    assert found["tokenizer"]["sha256"] == hashlib.sha256(words).hexdigest()
    assert found["tokenizer"] | {"context": 64, "start": None, "end": 1, "pad": 1} == found["tokenizer"]
    assert "image_size" not in found
    export(both.text_encoder, tmp_path / "again.onnx", pair=both)  # the same tokenizer is there already
    export(both.image_encoder, tmp_path / "image.onnx", pair=both, uint8_input=True)
    found = json.loads(json.dumps(fake_export.job.metadata))
    assert found | {"output": "embeddings", "input": "images"} | logits == found
    assert found["preprocessing"] | {"resize": "squash", "mean": [0.5] * 3, "std": [0.5] * 3} == found["preprocessing"]
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"tokenizer\.json exists already"):
        export(both.text_encoder, tmp_path / "third.onnx", pair=both)
    assert not (tmp_path / "third.onnx").exists()
    assert "No tokenizer lies beside" in export(both.text_encoder, tmp_path / "third.onnx").note


REFUSED = {
    "images is for models of images.*leave it out": {"images": np.zeros((1, 8, 8, 3), "uint8")},
    "labels is for models of images": {"labels": [0]},
    "calibration is for models of images": {"calibration": np.zeros((8, 64), "int32")},
    "uint8_input=True is for the input 'images', but the input is 'ids'": {"uint8_input": True},
    **{"softmax=True is for": {"softmax": True}, "class_names=.* is for": {"class_names": ["a"]}},
    **{"target='gpu' is for": {"target": "gpu"}, "take 'dynamic_int8'": {"precision": "int8"}},
    "pair must be what load_image_text returns": {"pair": 1},
}


@pytest.mark.once
def test_what_has_no_use_for_a_text_tower_is_refused(both, monkeypatch, tmp_path):
    fake_export(monkeypatch)
    for words, options in REFUSED.items():
        with pytest.raises((ValueError, TypeError), match=words):
            export(both.text_encoder, tmp_path / "text.onnx", **options)
    with pytest.raises(ValueError, match="pair must have text_encoder as a tower"):
        export(keras_vit.TextEncoder(both.text_encoder.config), tmp_path / "text.onnx", pair=both)
    assert list(tmp_path.iterdir()) == []
