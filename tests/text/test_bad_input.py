"""Bad input of two towers: each mistake is an error, which says what it is and what to do."""

import functools
import importlib.util
import json
import shutil

import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints.files import open_file, write_safetensors
from keras_vit.text import ImageText
from tests.checkpoints.npz_files import read
from tests.text.test_image_text import source

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:.*texts are longer than")]
SIGLIP, CLIP, OPEN_CLIP = "txt_hf_siglip2", "txt_hf_clip", "txt_openclip"


@pytest.fixture(scope="module")
def both(golden):
    return keras_vit.load_image_text(golden(CLIP).folder)


def zeros(*shape):
    return np.zeros(shape, "float32")


def with_arrays(more, gone=()):
    """A change of arrays, or of the file that holds them in a folder: those that are new, and those that go."""

    def change(target):
        if isinstance(target, dict):
            return {name: array for name, array in target.items() if not name.startswith(tuple(gone))} | more
        (file,) = target.glob("*.safetensors")
        arrays = change({name: array.read() for name, array in open_file(file).items()})
        return write_safetensors(file, sorted(arrays.items()), overwrite=True)

    return change


def without(*starts):
    return with_arrays({}, starts)


def with_json(file, place, **fields):
    def change(folder):
        path = folder / file
        config = json.loads(path.read_text())
        inner = config
        for key in place:
            inner = inner[key]
        inner.update(fields)
        path.write_text(json.dumps(config))

    return change


of_hf = functools.partial(with_json, "config.json", ())
of_open_clip = functools.partial(with_json, "open_clip_config.json", ("model_cfg", "text_cfg"))
of_model = functools.partial(with_json, "open_clip_config.json", ("model_cfg",))
of_its_images = functools.partial(with_json, "open_clip_config.json", ("model_cfg", "vision_cfg"))


def with_text(file, text):
    return lambda folder: (folder / file).write_text(text)


FILES = {
    # Half of a model.
    "no image tower": (CLIP, without("vision_model", "visual_proj"), "a text tower, but no image tower"),
    "no text tower": (CLIP, without("text_model", "text_proj"), "no text tower of a CLIP"),
    "no temperature": (CLIP, without("logit_scale"), "lacks the array 'logit_scale'"),
    "no bias": (SIGLIP, without("logit_bias"), "lacks the array 'logit_bias'"),
    "no text projection": (CLIP, without("text_projection"), "lacks the array 'text_projection.weight'"),
    "no image projection": (CLIP, without("visual_projection"), "same length, .* 48.* 24"),
    "one more array": (CLIP, with_arrays({"text_model.more": zeros(2)}), "not part of the model: text_model.more"),
    # Numbers that are none.
    "temperature of two": (CLIP, with_arrays({"logit_scale": zeros(2)}), "must be one number from"),
    "temperature nan": (CLIP, with_arrays({"logit_scale": zeros() + np.nan}), "must be one number from"),
    "bias infinite": (SIGLIP, with_arrays({"logit_bias": zeros(1) - np.inf}), "must be a finite number"),
    # Towers that are not computed.
    "coca": (OPEN_CLIP, with_arrays({"text_decoder.x": zeros(2)}), "CoCa, whose text tower also writes captions"),
    "bert": (OPEN_CLIP, of_open_clip(hf_model_name="bert-base-uncased"), "hf_model_name=bert-base-uncased"),
    "xlm-r": (OPEN_CLIP, with_arrays({"text.transformer.encoder.x": zeros(2)}), "a text tower of transformers"),
    "chinese clip": (CLIP, with_arrays({"text_model.embeddings.word_embeddings.x": zeros(2)}, ["text_model"]), "BERT"),
    "metaclip 2": (CLIP, of_hf(model_type="metaclip_2"), "model_type .* but is metaclip_2"),
    "naflex": (SIGLIP, with_arrays({"vision_model.embeddings.patch_embedding.weight": zeros(48, 192)}), "2 NaFlex"),
    "naflex of timm": (OPEN_CLIP, with_arrays({"visual.trunk.embeds.x": zeros(2)}, ("visual",)), "NaFlex"),
    "eva": (OPEN_CLIP, with_arrays({"visual.blocks.0.attn.q_bias": zeros(8)}, ("visual",)), "EVA-CLIP in BAAI's"),
    "resnet": (OPEN_CLIP, with_arrays({"visual.layer1.0.conv1.weight": zeros(2)}, ("visual",)), "a ResNet as its im"),
    "clipa": (OPEN_CLIP, of_open_clip(tokenizer_kwargs={"strip_sep_token": True}), "strip_sep_token=True"),
    "modern text": (OPEN_CLIP, of_open_clip(text_arch="modern"), "text_arch=modern"),
    "pooling": (OPEN_CLIP, of_open_clip(pool_type="mean"), "pool_type .* but is mean"),
    "context": (OPEN_CLIP, of_open_clip(context_length=16), "must be 77 for these arrays, but is 16"),
    # Another file's config.
    **{
        f"transformers, {key}": (CLIP, with_json("config.json", place.split(), **{key: 9}), f"{key} in .* but is 9")
        for place, keys in (
            ("", "projection_dim"),
            ("text_config", "vocab_size hidden_size num_hidden_layers intermediate_size"),
            ("vision_config", "patch_size"),
        )
        for key in keys.split()
    },
    "layers": (OPEN_CLIP, of_open_clip(layers=3), "layers in text_cfg .* must be 2 .* but is 3"),
    "width": (OPEN_CLIP, of_open_clip(width=24), "width in text_cfg .* must be 12 .* but is 24"),
    "vocabulary": (OPEN_CLIP, of_open_clip(vocab_size=9), "vocab_size in text_cfg .* must be 49408 .* but is 9"),
    "patches": (OPEN_CLIP, of_its_images(patch_size=32), "patch_size in vision_cfg .* must be .8, 8.* but is 32"),
    "projection": (OPEN_CLIP, of_model(embed_dim=512), "embed_dim in model_cfg .* must be .* but is 512"),
    "ratio": (OPEN_CLIP, of_open_clip(mlp_ratio=2), "mlp_ratio in text_cfg .* must be 4.0 .* but is 2"),
    "ratio in words": (OPEN_CLIP, of_open_clip(mlp_ratio="wide"), "mlp_ratio .* above 0, but is wide"),
    # open_clip's own number of heads, which do not divide this width.
    "no heads": (OPEN_CLIP, of_model(text_cfg={"layers": 2}), "heads.* 8"),
    "cleaning": (OPEN_CLIP, of_open_clip(tokenizer_kwargs={"clean": "harshly"}), "clean in .* 'harshly'"),
    "tokenizer's options": (OPEN_CLIP, of_open_clip(tokenizer_kwargs={"language": "de"}), "language=de"),
    "no config": (OPEN_CLIP, lambda folder: (folder / "open_clip_config.json").unlink(), "GELU of this CLIP"),
    # Tokenizers.
    "tokenizer is not JSON": (CLIP, with_text("tokenizer.json", "{"), "tokenizer .* cannot be read"),
    "end token": (CLIP, with_json("tokenizer_config.json", (), eos_token="none"), "lacks the token 'none'"),
}


@pytest.mark.parametrize("name", FILES)
def test_files(golden, tmp_path, name):
    case, change, words = FILES[name]
    folder = tmp_path / "model"
    shutil.copytree(golden(case).folder, folder, ignore=shutil.ignore_patterns("ref.npz"))
    change(folder)
    with pytest.raises(ValueError, match=words):
        keras_vit.load_image_text(folder)


@pytest.mark.parametrize(
    "change, words",
    [
        (without("params/img"), "a text tower, but no image tower"),
        (without("params/txt"), "no text tower of a CLIP"),
        (without("params/t"), "no text tower of a CLIP"),
        (lambda arrays: {k: v for k, v in arrays.items() if k != "params/t"}, "lacks the array 'params/t'"),
        (with_arrays({"params/txt/BertEncoder_0/x": zeros(1)}), "LiT with a BERT"),
        (with_arrays({"params/txt/more": zeros(1)}), "not part of the model: txt/more"),
        (with_arrays({"params/more": zeros(1)}), "only the two towers, .* 'params/more'"),
        (with_arrays({"params/img/embedding/kernel": zeros(192, 48)}), "of a NaFlex must be a grid"),
    ],
)
def test_files_of_big_vision(golden, tmp_path, change, words):
    np.savez(tmp_path / "file.npz", **change(read(source(golden("txt_bv_siglip")))))
    with pytest.raises(ValueError, match=words):
        keras_vit.load_image_text(tmp_path / "file.npz")


@pytest.mark.parametrize(
    "case, options, error, words",
    [
        (CLIP, {"tokenizer": 3}, TypeError, "tokenizer must be the path"),
        (CLIP, {"tokenizer": "none.json"}, FileNotFoundError, "tokenizer must be a tokenizer.json.* 'none.json'"),
        (CLIP, {"tokenizer": SIGLIP}, ValueError, "ends texts with the id 1, but .* trained with 1713"),
        (CLIP, {"tokenizer": "txt_bv_siglip"}, ValueError, "ends texts with the id 1, but"),
        (SIGLIP, {"tokenizer": CLIP}, ValueError, "1714 tokens, but the model has 900"),
        (CLIP, {"tokenizer": "damaged"}, ValueError, "not a SentencePiece model"),
        (CLIP, {"like": "ViT-B-32-quickgelu"}, ValueError, "Leave like out"),
        (OPEN_CLIP, {"like": "ViT-B-32-quickgelu"}, ValueError, "leave like=.* out"),
        ("txt_bv_siglip", {"like": "ViT-B-32-quickgelu"}, ValueError, "leave like=.* out"),
    ],
)
def test_options(golden, tmp_path, case, options, error, words):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "spiece.model").write_bytes(b"no model")
    if options.get("tokenizer") in (SIGLIP, CLIP, "txt_bv_siglip"):
        options = {"tokenizer": golden(options["tokenizer"]).folder}
    elif options.get("tokenizer") == "damaged":
        options = {"tokenizer": tmp_path / "damaged"}
    with pytest.raises(error, match=words):
        keras_vit.load_image_text(source(golden(case)), **options)


def test_sources(golden):
    for made, error, words in (
        (None, TypeError, "the name, address or path"),
        ("none.safetensors", FileNotFoundError, "no file or folder none.safetensors"),
        ("ViT-B/16", ValueError, "is a model, not a checkpoint"),
        (golden("mini_token").path, ValueError, "no text tower"),
    ):
        with pytest.raises(error, match=words):
            keras_vit.load_image_text(made)


def test_no_tokenizer_beside_the_weights(golden, tmp_path, both):
    shutil.copy(source(golden("txt_bv_siglip")), tmp_path / "alone.npz")
    alone = keras_vit.load_image_text(tmp_path / "alone.npz")
    assert alone.tokenizer is None and "no tokenizer" in alone.notes[0]
    for call in (lambda: alone.embed_texts("a cat"), lambda: alone.zero_shot_classifier(["cat", "dog"])):
        with pytest.raises(ValueError, match="The model has no tokenizer. Pass load_image_text"):
            call()


@pytest.mark.parametrize("package, case", [("tokenizers", CLIP), ("sentencepiece", "txt_lit_s")])
def test_libraries_that_are_not_installed(golden, monkeypatch, package, case):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(ImportError, match=rf'needs {package}, .* pip install "keras-vit-zoo\[text\]"'):
        keras_vit.load_image_text(source(golden(case)))


@pytest.mark.parametrize(
    "texts, error, words",
    [
        (None, TypeError, "texts must be a string or several, but None"),
        ([1], TypeError, r"texts must be a string or several, but \[1\]"),
        (["half \ud800"], ValueError, "unpaired surrogate"),
        ([], ValueError, "texts must have at least one text"),
    ],
)
def test_texts(both, texts, error, words):
    with pytest.raises(error, match=words):
        both.embed_texts(texts)


def test_texts_that_are_empty_or_long(golden):
    tokenizer = keras_vit.load_image_text(source(golden(OPEN_CLIP))).tokenizer
    assert tokenizer("one text").shape == (1, 77) and tokenizer([]).shape == (0, 77)
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than the 77 tokens"):
        assert tokenizer(["a", "cat " * 100])[1, -1] == tokenizer.end


@pytest.mark.parametrize(
    "names, options, error, words",
    [
        ("cat", {}, TypeError, "list of strings"),
        (["cat", 3], {}, TypeError, "must be strings"),
        (["cat"], {}, ValueError, "at least 2 names"),
        (["cat", "cat"], {}, ValueError, "more than once"),
        (["cat", ""], {}, ValueError, "cannot be the name of a class"),
        (["Cat", "cat, tabby"], {"averaging": "big_vision"}, ValueError, "'Cat', 'cat, tabby' become 'cat'"),
        (["cat", "dog"], {"templates": "a photo"}, ValueError, "one {} for the class name"),
        (["cat", "dog"], {"templates": "openai_81"}, ValueError, "the name of a published list"),
        (["cat", "dog"], {"templates": ["a {}", "{} {}"]}, ValueError, "one {} for the class name"),
        (["cat", "dog"], {"templates": []}, ValueError, "not be empty"),
        (["cat", "dog"], {"averaging": "mean"}, ValueError, "averaging must be one of"),
        (["cat", "dog"], {"batch_size": 0}, ValueError, "batch_size"),
    ],
)
def test_classes(both, names, options, error, words):
    with pytest.raises(error, match=words):
        both.zero_shot_classifier(names, **options)


def test_towers_that_do_not_belong_together(both):
    wrong = [("averaging", "mean"), ("bias", np.nan)]
    wrong += [(name, value) for name in ("scale", "temperature") for value in (0, np.inf, np.nan, 1e-40)]
    for name, value in wrong:
        with pytest.raises(ValueError, match=f"{name} must be"):
            ImageText(both.image_encoder, both.text_encoder, **{name: value})
