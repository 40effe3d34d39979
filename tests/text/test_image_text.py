"""CLIP, SigLIP and LiT: ids, embeddings and logits of the original codes; classifiers of words; losses of pairs."""

import dataclasses
import io
import re
import shutil
import zipfile

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import training
from keras_vit.checkpoints.files import open_file
from keras_vit.models import count_weights
from keras_vit.text import ImageText, published_templates, save_image_text, tokenizers
from keras_vit.text.templates import templates_of
from tests.checkpoints.npz_files import read
from tests.compute import deviations

CASES = ("txt_bv_siglip", "txt_hf_clip", "txt_hf_siglip2", "txt_lit_s", "txt_openclip")
REST = [pytest.param(name, marks=pytest.mark.nightly_elsewhere) for name in CASES[2:]]
# The layout that a case is written back in; nothing but this package reads LiT's names.
LAYOUTS = {"txt_hf_clip": "huggingface", "txt_hf_siglip2": "huggingface", "txt_openclip": "clip"}
# Embeddings in relation to their deviation, and cosines: float32 keeps 7 digits of numbers that go through two blocks.
EMBEDDING, COSINE = 1e-4, 2e-5
pytestmark = pytest.mark.filterwarnings("ignore:.*texts are longer than")
TINY = {"vocabulary": 10, "context": 4, "width": 8, "depth": 1, "heads": 2, "mlp_width": 16}


def source(case):
    file = next((name for name in ("model.npz", "LiT-mini.npz") if (case.folder / name).is_file()), "")
    return case.folder / file


@pytest.fixture(scope="module")
def both_of(golden):
    """From the name of a case to its towers; loaded once."""
    loaded = {}

    def load(name):
        if name not in loaded:
            loaded[name] = keras_vit.load_image_text(source(golden(name)))
        return loaded[name]

    return load


def tiny_towers(**changes):
    images = keras_vit.ViTConfig(image_size=8, patch_size=4, width=8, depth=1, heads=2, mlp_width=16)
    return keras_vit.VisionTransformer(images), keras_vit.TextEncoder(keras_vit.TextConfig(**TINY | changes))


def near(value, expected, tolerance):
    return np.abs(value - expected).max() <= tolerance * expected.std()


@pytest.mark.parametrize("name", [*CASES[:2], *REST])
def test_the_numbers_of_the_original(golden, both_of, name, record_property):
    case, both = golden(name), both_of(name)
    ref, texts = case.ref, case.meta["texts"]
    np.testing.assert_array_equal(both.tokenizer(texts), ref["ids"])
    answers = {
        "text embedding": (both.text_encoder.predict(ref["ids"], verbose=0), ref["text_embedding"]),
        "image embedding": (both.image_encoder.predict(ref["images"], verbose=0), ref["image_embedding"]),
        "logits": (logits := both.logits(ref["images"], texts), ref["logits"]),
    }
    record_property("errors", {f"{name}: {result}": deviations(*pair) for result, pair in answers.items()})
    assert near(*answers["text embedding"], EMBEDDING) and near(*answers["image embedding"], EMBEDDING)
    assert np.abs(logits - ref["logits"]).max() <= COSINE * both.scale
    rows = keras.ops.convert_to_numpy(both((ref["images"], ref["ids"])))
    assert np.abs(rows - ref["logits"]).max() <= COSINE * both.scale


@pytest.mark.parametrize("name", [CASES[1], pytest.param(CASES[0], marks=pytest.mark.once), *REST])
def test_a_classifier_of_words(golden, both_of, name, tmp_path):
    case, both = golden(name), both_of(name)
    names, templates = case.meta["class_names"], case.meta["templates"]
    model = both.zero_shot_classifier(names, templates, progress=False)
    logits = model.predict(case.ref["images"], verbose=0)
    assert np.abs(logits - case.ref["zero_shot_logits"]).max() <= COSINE * both.scale
    if name == "txt_hf_siglip2":
        model_bv = both.zero_shot_classifier(names, templates, averaging="big_vision", progress=False)
        rows = model_bv.predict(case.ref["images"], verbose=0)
        assert np.abs(rows - case.ref["zero_shot_logits_canonical"]).max() <= COSINE * both.scale
    assert model.config.class_names == tuple(names) and not any("token_embedding" in w.path for w in model.weights)
    model.save(tmp_path / "classifier.keras")
    again = keras.saving.load_model(tmp_path / "classifier.keras")
    np.testing.assert_array_equal(again.predict(case.ref["images"], verbose=0), logits)
    with pytest.raises(ValueError, match="normalises features"):
        keras_vit.to_checkpoint(model, tmp_path / "classifier.npz")
    with pytest.raises(TypeError, match="both must be what load_image_text returns, but VisionTransformer"):
        save_image_text(model, tmp_path / "classifier")


@pytest.mark.parametrize("name", [name for name in CASES if name != "txt_lit_s"])
@pytest.mark.once
def test_written_back_bit_for_bit(golden, both_of, name, tmp_path):
    case, layout = golden(name), LAYOUTS.get(name, "big_vision")
    target = tmp_path / ("written.npz" if layout == "big_vision" else "written")
    save_image_text(both_of(name), target, layout)
    old, new = open_file(source(case)), open_file(target)
    assert {key.removeprefix("params/") for key in old} == set(new)
    for key in old:
        np.testing.assert_array_equal(old[key].read(), new[key.removeprefix("params/")].read())
    if layout != "big_vision":
        again = keras_vit.load_image_text(target)
        assert again.text_encoder.config == both_of(name).text_encoder.config
        np.testing.assert_array_equal(again.tokenizer(case.meta["texts"]), case.ref["ids"])
        with pytest.raises(FileExistsError):
            save_image_text(again, target, layout)


def _stacked(arrays):
    result, stacks = {}, {}
    for name, values in arrays.items():
        match = re.fullmatch(r"((?:txt/Encoder_0|img/Transformer)/encoderblock)_(\d)(/.*)", name)
        if match:
            stacks.setdefault(f"{match[1]}{match[3]}", []).append((match[2], values))
        else:
            result[name] = values
    return result | {name: np.stack([values for _, values in sorted(parts)]) for name, parts in stacks.items()}


def _before_linen(arrays):
    old = {"LayerNorm_1": "LayerNorm_2", "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1"}
    old["MlpBlock_0"] = "MlpBlock_3"
    pattern = r"(txt/Encoder_0/encoderblock_\d/)(\w+)(/.*)"
    return {re.sub(pattern, lambda m: m[1] + old.get(m[2], m[2]) + m[3], name): a for name, a in arrays.items()}


def _positions_twice(arrays):
    half = arrays["txt/pos_embedding"] / 2
    return {**arrays, "txt/pos_embedding": half, "txt/Encoder_0/pos_embedding": half}


@pytest.mark.parametrize("change", [_stacked, _before_linen, _positions_twice])
@pytest.mark.once
def test_other_forms_of_big_vision(golden, tmp_path, change):
    case = golden("txt_bv_siglip")
    arrays = {name.removeprefix("params/"): values for name, values in read(source(case)).items()}
    np.savez(tmp_path / "file.npz", **change(arrays))
    both = keras_vit.load_image_text(tmp_path / "file.npz", tokenizer=case.folder)
    assert near(both.text_encoder.predict(case.ref["ids"], verbose=0), case.ref["text_embedding"], EMBEDDING)


@pytest.mark.nightly_elsewhere
def test_towers_of_keras_files(both_of, golden, tmp_path):
    both, ref = both_of("txt_bv_siglip"), golden("txt_bv_siglip").ref
    both.save(tmp_path / "both.keras")
    again = keras.saving.load_model(tmp_path / "both.keras")
    with pytest.raises(ValueError, match="has no tokenizer"):
        again.logits(ref["images"], ["a cat"])
    again.tokenizer = both.tokenizer
    np.testing.assert_array_equal(again.logits(ref["images"], ["a cat"]), both.logits(ref["images"], ["a cat"]))
    both.text_encoder.save(tmp_path / "text.keras")
    tower = keras.saving.load_model(tmp_path / "text.keras")
    wanted = both.text_encoder.predict(ref["ids"], verbose=0)
    np.testing.assert_array_equal(tower.predict(ref["ids"], verbose=0), wanted)


@pytest.mark.once
def test_words_of_another_tokenizer_in_files_of_open_clip(both_of, tmp_path):
    """As MetaCLIP 2 has XLM-R's: a token begins a text, one of the number 0 here ends it, and the file says of both."""
    library, words = pytest.importorskip("tokenizers"), ["</s>", "<pad>", "<s>", "a", "cat"]
    made = library.Tokenizer(library.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.post_processor = library.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 0)]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>", "pad_token": "<pad>"}')
    images = both_of("txt_openclip").image_encoder
    size = {"vocabulary": 5, "context": 6, "projection": images.output_shape[-1], "layer_norm_epsilon": 1e-5}
    config = keras_vit.TextConfig(**TINY | size, causal=True, gelu="exact", pooling="end_id", end_id=0)
    tokenizer, _ = tokenizers.from_json(tmp_path / "tokenizer.json", config, "open_clip", "lower")
    save_image_text(ImageText(images, keras_vit.TextEncoder(config), tokenizer), tmp_path / "written", "clip")
    again = keras_vit.load_image_text(tmp_path / "written")
    assert again.text_encoder.config == config
    for both in (tokenizer, again.tokenizer):
        assert both(["A  cat"]).tolist() == [[2, 3, 4, 0, 1, 1]]
    quick = keras_vit.TextEncoder(config.replace(gelu="quick"))
    with pytest.raises(ValueError, match="text tower has 'quick' and the image tower 'exact'"):
        save_image_text(ImageText(images, quick), tmp_path / "quick", "clip")


def _softmax(logits):
    exponents = np.exp(logits - logits.max(1, keepdims=True))
    return exponents / exponents.sum(1, keepdims=True)


def test_losses_of_pairs_and_their_gradients():
    logits = np.random.default_rng(0).normal(size=(5, 5)) * 3
    ones, n = np.eye(5), 5
    rows, columns = _softmax(logits), _softmax(logits.T).T
    clip = -(np.log(np.diag(rows)).mean() + np.log(np.diag(columns)).mean()) / 2
    signs = 2 * ones - 1
    siglip = np.logaddexp(0, -signs * logits).sum() / n
    expected = {
        training.ContrastiveLoss: (clip, (rows + columns - 2 * ones) / (2 * n)),
        training.SigmoidContrastiveLoss: (siglip, -signs / (1 + np.exp(signs * logits)) / n),
    }
    for kind, (value, gradient) in expected.items():
        loss = kind()
        assert type(loss).from_config(loss.get_config()).name == loss.name
        assert float(loss(ones.astype("float32"), logits.astype("float32"))) == pytest.approx(value, rel=1e-5)
        step = 1e-2 * np.random.default_rng(1).normal(size=logits.shape)
        more, less = (float(loss(ones.astype("float32"), (logits + s * step).astype("float32"))) for s in (1, -1))
        # A central difference of float32 values: their rounding, 1e-7 of 10, beside a step of 1e-2.
        assert (more - less) / 2 == pytest.approx((gradient * step).sum(), abs=5e-6)


@pytest.mark.nightly_elsewhere
def test_pairs_train_the_tower_that_is_not_frozen(golden):
    both = keras_vit.load_image_text(golden("txt_hf_clip").folder)
    images, texts = golden("txt_hf_clip").ref["images"], ["a cat", "a dog", "a red car"]
    both.image_encoder.trainable = False
    before = both.image_encoder.get_weights()
    both.compile(keras.optimizers.Adam(1e-3), training.ContrastiveLoss())
    first, *_, last = both.fit((images, texts), epochs=3, verbose=0).history["loss"]
    assert last < first
    for old, new in zip(before, both.image_encoder.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_ids_that_make_no_sense():
    tower = keras_vit.TextEncoder(keras_vit.TextConfig(**TINY))
    wrong = [(np.zeros((1, 3), "int32"), r"\(batch, 4\)"), (np.zeros((1, 4)), "integers")]
    for ids, words in [*wrong, *((np.full((1, 4), number), "0 to 9") for number in (10, -1))]:
        for call in (tower, tower.predict):
            with pytest.raises(ValueError, match=words):
                call(ids)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"heads": 3}, "heads must divide"),
        ({"pooling": "end_id"}, "need each other"),
        ({"pad_id": 0, "causal": True}, "pad_id=0 needs causal=False"),
        ({"pooling": "map", "pad_id": 0}, "pad_id=0 needs causal=False and a pooling other than 'map'"),
        ({"pad_id": 11}, "pad_id must be below vocabulary=10, but 11"),
        ({"pooling": "end_id", "end_id": 10}, "end_id must be below vocabulary=10, but 10"),
        ({"projection_bias": True}, "projection=None needs projection_bias=False, but True"),
    ],
)
@pytest.mark.once
def test_configs_that_make_no_sense(change, words):
    with pytest.raises(ValueError, match=words):
        keras_vit.TextConfig(**TINY | change)


@pytest.mark.once
def test_published_templates():
    """The numbers of templates that openai/CLIP's data/prompts.md has."""
    lists = published_templates()
    counts = {"80": 80, "7": 7, "cifar10": 18, "cifar100": 18, "caltech101": 34, "kinetics700": 28, "ucf101": 48}
    assert {name: len(lists[f"openai_{name}"]) for name in counts} == counts
    for name, texts in lists.items():
        assert templates_of(name) == texts and len({*texts}) == len(texts), name


@pytest.mark.nightly_elsewhere
def test_ids_that_the_tower_does_not_know_train_and_answer_nothing(both_of, golden):
    """JAX and TensorFlow would take another row of the table in silence."""
    both, ref = both_of("txt_bv_siglip"), golden("txt_bv_siglip").ref
    foreign = dataclasses.replace(both.tokenizer, encode=lambda text: [900])
    towers = ImageText(both.image_encoder, both.text_encoder, foreign)
    towers.compile(keras.optimizers.SGD(0.1), training.ContrastiveLoss())
    for call in (
        lambda: towers.logits(ref["images"], ["a cat"]),
        lambda: towers.fit((ref["images"], ["a", "b", "c"]), verbose=0),
        lambda: towers.fit((ref["images"], np.full((3, 64), 900)), verbose=0),
    ):
        with pytest.raises(ValueError, match="needs token ids from 0 to 899"):
            call()


@pytest.mark.once
def test_an_image_tower_whose_head_is_a_projection(golden, tmp_path):
    """As in two-tower files of big_vision that project images, too: a linear layer with a bias."""
    case, rng = golden("txt_bv_siglip"), np.random.default_rng(0)
    arrays, length = read(source(case)), case.ref["image_embedding"].shape[1]
    kernel, bias = rng.normal(size=(length, length)).astype("float32"), rng.normal(size=length).astype("float32")
    np.savez(tmp_path / "file.npz", **arrays, **{"params/img/head/kernel": kernel, "params/img/head/bias": bias})
    both = keras_vit.load_image_text(tmp_path / "file.npz", tokenizer=source(case).parent)
    wanted = case.ref["image_embedding"] @ kernel + bias
    assert near(both.image_encoder.predict(case.ref["images"], verbose=0), wanted, EMBEDDING)
    assert both.image_encoder.count_params() == count_weights(both.image_encoder.config)
    save_image_text(both, tmp_path / "back.npz", "big_vision")
    back = read(tmp_path / "back.npz")
    np.testing.assert_array_equal(back["img/head/kernel"], kernel)
    np.testing.assert_array_equal(back["img/head/bias"], bias)
    assert keras_vit.load(tmp_path / "file.npz", include_top=False).output_shape == (None, 16, length)
    keras_vit.to_checkpoint(both.image_encoder, tmp_path / "tower.npz", "big_vision")  # alone it is called a head
    assert keras_vit.load(tmp_path / "tower.npz").config == both.image_encoder.config


WITHOUT_PLACE = [{"pooling": "first"}, {"pooling": "largest_id"}, {"projection": 8}, {"position_embedding": "sincos"}]


@pytest.mark.once
@pytest.mark.parametrize("change", [*WITHOUT_PLACE, {"pooling": "mean", "pad_id": 0}])
def test_text_towers_that_big_vision_does_not_compute(change, tmp_path):
    """Their files would be read as other towers, or not at all."""
    both = ImageText(*tiny_towers(**change))
    with pytest.raises(ValueError, match="'big_vision' cannot store (a|this) text tower"):
        save_image_text(both, tmp_path / "both.npz", "big_vision")


@pytest.mark.once
def test_byte_pairs_without_a_tokenizer_json_and_two_sets_of_files(golden, tmp_path):
    case, folder = golden("txt_hf_clip"), tmp_path / "folder"
    shutil.copytree(source(case), folder)
    (folder / "tokenizer.json").unlink()
    both = keras_vit.load_image_text(folder)
    np.testing.assert_array_equal(both.tokenizer(case.meta["texts"]), case.ref["ids"])
    save_image_text(both, tmp_path / "written")
    assert (tmp_path / "written" / "merges.txt").is_file()
    for file in source(golden("txt_openclip")).glob("open_clip*"):
        shutil.copy(file, folder)
    again = keras_vit.load_image_text(folder)
    assert "two sets of files; the set of model.safetensors" in again.notes[-1]
    assert again.text_encoder.config == both.text_encoder.config


@pytest.mark.once
def test_a_tower_that_is_not_asked_for_is_not_read(golden, tmp_path):
    """`load` gives the image tower of a file in which all large arrays of the text tower are damaged."""
    data = bytearray(source(golden("txt_bv_siglip")).read_bytes())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [info for info in archive.infolist() if info.filename.startswith("params/txt/")]
    # The shapes of all arrays are read, and with them the data of small ones.
    members = [info for info in members if info.file_size > 10_000]
    assert members
    for info in members:
        end = info.header_offset + 30 + len(info.filename) + info.compress_size
        data[end - 2 : end] = bytes(255 - byte for byte in data[end - 2 : end])
    (tmp_path / "model.npz").write_bytes(data)
    keras_vit.load(tmp_path / "model.npz")
    with pytest.raises(ValueError, match="params/txt"):
        keras_vit.load_image_text(tmp_path / "model.npz")


@pytest.mark.once
def test_keras_s_loops_take_pictures_and_sentences(golden, tmp_path):
    """Files and words in `fit`, `evaluate` and `validation_data`; `predict` gives all images with all texts."""
    Image = pytest.importorskip("PIL.Image")
    both = keras_vit.load_image_text(golden("txt_hf_clip").folder)
    texts, paths = ["a cat", "a dog", "a red car"], []
    for i in range(3):
        paths.append(tmp_path / f"{i}.png")
        pixels = np.random.default_rng(i).integers(0, 256, (40, 50, 3)).astype("uint8")
        Image.fromarray(pixels).save(paths[-1])
    images = both.image_encoder.preprocess(paths)
    expected = both.logits(images, texts)
    np.testing.assert_allclose(both.predict((paths, texts), verbose=0), expected, rtol=1e-5)
    np.testing.assert_allclose(both.predict((images, texts), batch_size=1), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="x must be a pair \\(images, texts\\)"):
        both.predict(images)
    with pytest.raises(ValueError, match="batch_size must be"):
        both.predict((images, texts), batch_size=0)
    both.compile(keras.optimizers.SGD(0.0), training.ContrastiveLoss())
    loss = both.evaluate((images, texts), verbose=0)
    assert both.evaluate((paths, texts), verbose=0) == pytest.approx(loss, rel=1e-5)
    for held in ((tuple(paths), texts), ((paths, texts),)):
        history = both.fit((paths, texts), validation_data=held, verbose=0).history
        assert history["val_loss"] == pytest.approx([loss], rel=1e-5) == history["loss"]
