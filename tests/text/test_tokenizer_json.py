"""Tokenizers as a tokenizer.json: the ids of `tokenizers` are the package's, or there is an error."""

import dataclasses

import numpy as np
import pytest

import keras_vit
from keras_vit.text.tokenizer_json import tokenizer_json
from keras_vit.text.tokenizers import from_sentencepiece

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:.*texts are longer than")]
TEXTS = ["ΑΣ, ΑΣ1 ΣΑ", "İSTANBUL ẞ ǅ", "a\x85b\x1cc\x00", "კატა կատու ድመት", "<|endoftext|>x", "ﬁ ＡＢ “q” it'ſ 'S", "á́́"]
PATHS = ["txt_hf_clip", "txt_openclip", "txt_hf_siglip2", "txt_bv_siglip/model.npz", "txt_lit_s/LiT-mini.npz"]


@pytest.mark.parametrize(
    "path", [*PATHS, "next_tips_hf_small", "next_tips_hf_small official", "txt_bv_siglip/model.npz hub"]
)
def test_the_ids_are_the_package_s(path, golden):
    path, rules = path.split(" ") if " " in path else (path, None)
    case = golden(path.split("/")[0])
    both = keras_vit.load_image_text(case.folder.parent / path, numerics="official" if rules == "official" else None)
    tokenizer, texts = both.tokenizer, [*case.meta["texts"], *TEXTS]
    if rules == "hub":  # of transformers
        tokenizer = from_sentencepiece(case.folder / "spiece.model", both.text_encoder.config, "siglip")
    # docs/export/README.md names these: words that ftfy repairs, SigLIP's special tokens in a text, and rare letters.
    texts = [text for text in texts if not any(part in text for part in ("&", "Ã", "</s>", "▁", "z\u0335"))]
    read = pytest.importorskip("tokenizers").Tokenizer.from_str(tokenizer_json(tokenizer))
    np.testing.assert_array_equal([read.encode(text).ids for text in texts], tokenizer(texts))
    for change in ({"words": None}, {"clean": str.upper}):
        with pytest.raises(ValueError, match="of its own"):
            tokenizer_json(dataclasses.replace(tokenizer, **change))
