"""Where publishers of the same weights differ, and which of them a model follows."""

import json
import shutil
import string

import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import LAYOUTS, DownloadError
from keras_vit.checkpoints.accounting import extract
from keras_vit.checkpoints.files import write_safetensors
from keras_vit.checkpoints.layouts.text import NAMES, text_layout
from keras_vit.text import save_image_text
from tests.checkpoints.hub_server import Repository
from tests.text.test_image_text import COSINE, EMBEDDING, near, source

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:.*(texts are longer than|cannot store)")]
TO_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def siglip_of_transformers(golden, folder):
    """big_vision's SigLIP as transformers publishes it: the same arrays, and its vocabulary beside them."""
    case = golden("txt_bv_siglip")
    save_image_text(keras_vit.load_image_text(source(case)), folder)
    shutil.copy(case.folder / "spiece.model", folder)
    return case, folder


def siglip_of_open_clip(golden, folder):
    """The same of open_clip, with timm's image tower and the exact GELU in both."""
    case = golden("txt_bv_siglip")
    both = keras_vit.load_image_text(source(case))
    texts = extract(both.text_encoder, text_layout(NAMES["open_clip_custom"], linear_projection=True))
    arrays = {f"visual.trunk.{name}": array for name, array in extract(both.image_encoder, LAYOUTS["timm"])}
    arrays |= dict(texts) | {"logit_scale": both.log_scale.numpy(), "logit_bias": both.logit_bias.numpy()}
    folder.mkdir()
    write_safetensors(folder / "open_clip_model.safetensors", sorted(arrays.items()))
    text = {"context_length": 64, "hf_tokenizer_name": "timm/ViT-B-16-SigLIP", "heads": 2, "no_causal_mask": True}
    text |= {"tokenizer_kwargs": {"clean": "canonicalize"}, "proj_bias": True, "pool_type": "last"}
    vision = {"image_size": 32, "timm_model_name": "vit_base_patch16_siglip_224", "timm_pool": "map"}
    vision["timm_model_kwargs"] = {"num_heads": 3}
    config = {"model_cfg": {"embed_dim": 48, "vision_cfg": vision, "text_cfg": text | {"norm_kwargs": {"eps": 1e-6}}}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    shutil.copy(case.folder / "spiece.model", folder)
    return case, folder


def clip_of_transformers(golden, folder):
    """open_clip's CLIP as transformers publishes it, with the tokenizer that has no ftfy."""
    case = golden("txt_openclip")
    save_image_text(keras_vit.load_image_text(source(case)), folder)
    return case, folder


@pytest.mark.parametrize("publish", [siglip_of_transformers, siglip_of_open_clip, clip_of_transformers])
def test_official_numbers_of_what_others_publish(golden, tmp_path, publish):
    case, folder = publish(golden, tmp_path / "model")
    both, ref = keras_vit.load_image_text(folder, numerics="official"), case.ref
    np.testing.assert_array_equal(both.tokenizer(case.meta["texts"]), ref["ids"])
    assert near(both.text_encoder.predict(ref["ids"], verbose=0), ref["text_embedding"], EMBEDDING)
    assert near(both.image_encoder.predict(ref["images"], verbose=0), ref["image_embedding"], EMBEDDING)
    assert np.abs(both.logits(ref["images"], case.meta["texts"]) - ref["logits"]).max() <= COSINE * both.scale
    words = both.zero_shot_classifier(case.meta["class_names"], case.meta["templates"], progress=False)
    logits = words.predict(ref["images"], verbose=0)
    assert np.abs(logits - ref["zero_shot_logits"]).max() <= COSINE * both.scale


@pytest.mark.parametrize("publish", [siglip_of_transformers, siglip_of_open_clip])
def test_publishers_differ_where_they_are_known_to(golden, tmp_path, publish):
    case, folder = publish(golden, tmp_path / "model")
    both, again = (keras_vit.load_image_text(folder, numerics=numerics) for numerics in (None, "publisher"))
    texts = case.meta["texts"]
    np.testing.assert_array_equal(both.tokenizer(texts), again.tokenizer(texts))
    assert not np.array_equal(both.tokenizer(texts), case.ref["ids"])
    # open_clip_config.json says clean="canonicalize"; transformers leaves no space where a _ was.
    is_clean = np.array_equal(both.tokenizer("it_is!"), both.tokenizer("it is"))
    assert is_clean == (publish is siglip_of_open_clip)
    assert (both.averaging, again.averaging) == ("openai", "openai")
    assert both.text_encoder.config.gelu == again.text_encoder.config.gelu


def test_capitals_of_siglip_2(golden):
    """big_vision lowers A to Z alone, and takes `<eos>` in a text for letters."""
    case = golden("txt_hf_siglip2")
    both = keras_vit.load_image_text(source(case), numerics="official")
    checked = 0
    for i, text in enumerate(case.meta["texts"]):
        if "<" in text:
            continue
        lower = text.translate(TO_LOWER)
        if lower in (text, text.lower()):
            name = "ids" if lower == text.lower() else "ids_hub_class"
            np.testing.assert_array_equal(both.tokenizer(text)[0], case.ref[name][i])
            checked += 1
    assert checked > 40 and both.averaging == "big_vision" and not both.notes
    assert not (both.tokenizer("a <eos> b")[0, :5] == 1).any()


def test_json_beside_files_of_big_vision(golden, tmp_path):
    """Its rules are those of the weights, whoever made the file of the vocabulary."""
    towers, words = golden("txt_bv_siglip"), golden("txt_hf_siglip2")
    both = keras_vit.load_image_text(source(towers), tokenizer=words.folder / "tokenizer.json")
    official = keras_vit.load_image_text(source(words), numerics="official")
    texts = words.meta["texts"]
    np.testing.assert_array_equal(both.tokenizer(texts), official.tokenizer(texts))


def test_a_name_of_the_catalogue_means_the_official_numbers(golden, hub, tmp_path, monkeypatch):
    name, repository = "big_vision/siglip/webli_en_b16_224_63724782", "google/siglip-base-patch16-224"
    case, folder = siglip_of_transformers(golden, tmp_path / "model")
    monkeypatch.setattr("keras_vit.checkpoints.download.fetch", _refused)
    hub.repositories[repository] = Repository({path.name: path.read_bytes() for path in folder.iterdir()})
    with pytest.warns(UserWarning, match=f"the same weights come from hf://{repository}"):
        official = keras_vit.load_image_text(name)
    with pytest.warns(UserWarning, match="the same weights"):
        publisher = keras_vit.load_image_text(name, numerics="publisher")
    texts = case.meta["texts"]
    np.testing.assert_array_equal(official.tokenizer(texts), case.ref["ids"])
    for both in (publisher, keras_vit.load_image_text(f"hf://{repository}")):
        assert not np.array_equal(both.tokenizer(texts), case.ref["ids"])


def _refused(source):
    raise DownloadError(f"{source} is not available")


@pytest.mark.parametrize(
    "case, options, change, words",
    [
        ("txt_hf_clip", {"numerics": "mine"}, {}, "numerics must be one of"),
        ("txt_hf_clip", {"numerics": "official"}, {}, "49408 tokens, but the model has 1714"),
        ("txt_openclip", {"numerics": "official", "tokenizer": "."}, {}, "leave tokenizer=... out"),
        ("txt_openclip", {"numerics": "official"}, {"pool_type": "last"}, "needs a SigLIP, or a CLIP"),
        ("txt_openclip", {"numerics": "official"}, {"no_causal_mask": True}, "needs a SigLIP, or a CLIP"),
    ],
)
def test_numerics_that_make_no_sense(golden, tmp_path, case, options, change, words):
    folder = tmp_path / "model"
    shutil.copytree(golden(case).folder, folder)
    if change:
        path = folder / "open_clip_config.json"
        config = json.loads(path.read_text())
        config["model_cfg"]["text_cfg"] |= change
        path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=words):
        keras_vit.load_image_text(folder, **options)
