"""A `Tokenizer` as a `tokenizer.json` for programs without this package; cleaning is written as normalizers."""

import base64
import json
import string
import warnings
from typing import Any

from keras_vit.text.tokenizers import CLEANINGS, FLAX, Tokenizer, library, siglip_cleaned

# Texts of which the file has to give the ids of the tokenizer.
PROBES = f"""It's 3 DOGS, isn't it?|naïve ΟΔΟΣ İzmir|日本の猫 한국어 ไทย|🐱👍🏽 e\u0301|_a_ <b>|a\tb\nc\u00a0\u3000|  |
|Кошка बिल्ली קטה|ﬁne ｗｉｄｅ “quotes” ²½|{"word " * 100}""".split("|")
_NORMAL, _DEFINED, _HIDDEN = 1, 4, (2, 3, 5)  # types of SentencePiece's pieces; no text may give a hidden one
# What Python calls white space. Oniguruma lacks the four separators, JavaScript knows other ones.
_SPACES = "[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"


def _replace(old: str, new: str, kind: str = "Regex") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


_SIGMA = _replace("Σ", "σ", "String")  # which JavaScript lowers as Python does, and the library in Rust does not
_LOWER = [_replace(r"(?<=[\p{Lu}\p{Ll}\p{Lt}])Σ(?![\p{Lu}\p{Ll}\p{Lt}])", "ς"), _SIGMA, {"type": "Lowercase"}]
_A_TO_Z = [_replace(letter, letter.lower(), "String") for letter in string.ascii_uppercase]
_BARE = _replace(r"[!-/:-@\[-`{-~]", "")
_TRIMMED = _replace(r"\A +| +\z", "")  # the library's Strip cuts other white space as well
_SPACED = [_replace(_SPACES, " "), _TRIMMED]
# Each way to clean a text as normalizers, those of `CLEANINGS` without the repairs before.
_STEPS: dict[Any, list[dict[str, Any]]] = {
    **{str: [], str.lower: _LOWER, FLAX["big_vision"]: _A_TO_Z, siglip_cleaned: [*_LOWER, _BARE, *_SPACED]},
    **{CLEANINGS["lower"]: [*_SPACED, *_LOWER], CLEANINGS["whitespace"]: _SPACED},
    CLEANINGS["canonicalize"]: [_replace("_", " ", "String"), _BARE, *_LOWER, *_SPACED],
}


def tokenizer_json(tokenizer: Tokenizer) -> str:
    """Returns the text of a `tokenizer.json` that gives a tokenizer's ids, with its start, end, cut and padding.

    It lacks what ftfy repairs in whole words, such as mojibake, and of HTML all but five entities. ImportError without
    a library, ValueError for a tokenizer that is a function, or whose ids the file would not give.
    """
    if tokenizer.words is None or tokenizer.clean not in _STEPS:
        raise ValueError("No tokenizer.json can hold a tokenizer that is a function of its own. Leave pair=... out.")
    is_pieces = hasattr(tokenizer.words, "serialized_model_proto")
    spec: Any = _of_pieces(tokenizer.words) if is_pieces else json.loads(tokenizer.words.to_str())
    if getattr(tokenizer.words, "encode_special_tokens", False):  # special tokens in a text are text
        spec["added_tokens"] = []
    cleans_itself = is_pieces and tokenizer.encode != tokenizer.words.encode  # as SigLIP's does
    steps = [*_STEPS[siglip_cleaned if cleans_itself else tokenizer.clean]]
    steps = [*_repairs(), *steps] if tokenizer.clean in CLEANINGS.values() else steps
    if own := spec["normalizer"]:
        steps += [_SIGMA, own] if "Lowercase" in str(own) else [own]
    spec["normalizer"] = {"type": "Sequence", "normalizers": steps}
    for token in spec["added_tokens"] if tokenizer.clean is not str else ():
        token["normalized"] = True  # found after the cleaning
    hub = library("tokenizers")
    made = hub.Tokenizer.from_str(json.dumps(spec))
    ends = [[(made.id_to_token(i), i)] if i is not None else [] for i in (tokenizer.start, tokenizer.end)]
    single = [*(name for name, _ in ends[0]), "$A", *(name for name, _ in ends[1])]
    made.post_processor = hub.processors.TemplateProcessing(single=single, special_tokens=sum(ends, []))
    made.enable_truncation(tokenizer.context)
    made.enable_padding(length=tokenizer.context, pad_id=tokenizer.pad, pad_token=made.id_to_token(tokenizer.pad))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of texts that are cut
        expected = tokenizer(PROBES)
    for text, row in zip(PROBES, expected.tolist(), strict=True):
        if (ids := made.encode(text).ids) != row:
            words = f"of {text!r:.60} it gives {ids[:12]} in place of {row[:12]}. Leave pair=... out."
            raise ValueError(f"A tokenizer.json cannot give the ids of this tokenizer: {words}")
    return made.to_str()


def _repairs() -> list[dict[str, Any]]:
    """What ftfy's `fix_text` does with single letters, and the commonest entities of HTML."""
    data = library("ftfy").chardata
    windows = {code: bytes([code]).decode("sloppy-windows-1252") for code in range(0x80, 0xA0)}
    letters = {chr(code): text for code, text in {**windows, **data.LIGATURES, **data.WIDTH_MAP}.items()}
    patterns = {r"\x1b\[[\d;]*[a-zA-Z]": "", data.SINGLE_QUOTE_RE.pattern: "'", data.DOUBLE_QUOTE_RE.pattern: '"'}
    patterns[f"[{''.join(map(chr, data.CONTROL_CHARS))}]"] = ""
    signs = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'"}
    first, last = ([_replace(*pair, "String") for pair in found.items()] for found in (signs | letters, signs))
    return [*first, *(_replace(old, new) for old, new in patterns.items()), {"type": "NFC"}, *last]


def _of_pieces(pieces: Any) -> dict[str, Any]:
    """The parts of a tokenizer.json that come from a SentencePiece model: Unigram, or byte pairs (Gemma, TIPS)."""
    messages = library("google.protobuf") and library("sentencepiece.sentencepiece_model_pb2")
    proto = messages.ModelProto.FromString(pieces.serialized_model_proto())
    rules, trainer, rows = proto.normalizer_spec, proto.trainer_spec, proto.pieces
    names = ["\0" * (row.type in _HIDDEN) + row.piece for row in rows]
    model: dict[str, Any] = {"byte_fallback": trainer.byte_fallback}
    if trainer.model_type == 1:
        vocabulary = [[name, row.score] for name, row in zip(names, rows, strict=True)]
        model |= {"type": "Unigram", "unk_id": trainer.unk_id, "vocab": vocabulary}
    else:
        words = {row.piece: row.score for row in rows if row.type == _NORMAL}
        best = sorted(words, key=words.get, reverse=True)
        pairs = [(word[:i], word[i:]) for word in best for i in range(1, len(word))]
        model |= {"type": "BPE", "vocab": {name: i for i, name in enumerate(names)}, "fuse_unk": True}
        model |= {"merges": [pair for pair in pairs if words.keys() >= {*pair}], "unk_token": names[trainer.unk_id]}
    steps: list[dict[str, Any]] = [_replace(" {2,}", " "), _TRIMMED] if rules.remove_extra_whitespaces else []
    if rules.precompiled_charsmap:
        # Composed first: the library normalises a letter with several marks piece by piece.
        charsmap = base64.b64encode(rules.precompiled_charsmap).decode()
        steps = [{"type": "NFC"}, {"type": "Precompiled", "precompiled_charsmap": charsmap}, *steps]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    scheme = "always" if rules.add_dummy_prefix else "never"
    return {
        "added_tokens": [
            {"id": i, "content": row.piece, **flags} for i, row in enumerate(rows) if row.type == _DEFINED
        ],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False},
        "model": model,
    }
