"""Texts to token ids, as the publisher of each family of weights makes them.

What cuts a text into tokens is data: a `tokenizer.json` or a SentencePiece `.model` beside the weights, or CLIP's byte
pairs, which are shipped. What differs beside them, and what others get wrong, is how texts are cleaned, which tokens
stand around them, and what they are padded with.
"""

import dataclasses
import functools
import gzip
import html
import importlib
import importlib.util
import os
import re
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import _arguments
from keras_vit._arguments import as_strings, check_type, printable, require_packages, unit_vectors, whole_number
from keras_vit._files import expanded_path, weights_folder
from keras_vit._terminal import ProgressBar
from keras_vit.checkpoints.files import Sidecars, parse_json
from keras_vit.checkpoints.layouts.jsons import mapping
from keras_vit.models import TextConfig, TextEncoder

PADDING = 1024  # rows by which a table of tokens may be longer than the list of pieces
CLIP_MERGES = "clip_merges.txt.gz"
VOCABULARY, MERGES = "vocab.json", "merges.txt"  # of CLIPTokenizer, where there is no tokenizer.json
# Files that say how texts are cut, the best first: SigLIP 1's tokenizer.json is what others made of its spiece.model.
WORDS = ("spiece.model", "tokenizer.json", "tokenizer.model", VOCABULARY)
# What TIPS's authors cut texts with; transformers has made its tokenizer.json of it.
AUTHORS_WORDS = ("tokenizer.model", "tokenizer.json")
TOKENIZER_FILES = (*WORDS, "tokenizer_config.json", MERGES)
# JavaScript has no `(?i)`; a long s is an s.
_CLIP_WORDS_OF_ANY_CASE = r"'[sSſ]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
_CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Converts texts to token ids: `tokenizer(["a photo of a cat"])`.

    Attributes:
        encode: A function from a cleaned text to a list of ids, without `start`, `end` and padding.
        context: Number of ids per text; longer texts are cut.
        end: Id after the last token, also of a cut text; None for no end token.
        pad: Id of the padding.
        start: Id before the first token; None for no start token.
        clean: A function that normalises a text before `encode`.
        files: The files of the tokenizer; empty for CLIP's tokenizer, which is part of this package.
        words: The object of the library `tokenizers` or `sentencepiece` that encodes; None for another function.

    Examples:
        >>> text.Tokenizer(lambda line: [ord(c) for c in line], context=4, end=1, pad=0)(["hi"]).tolist()
        [[104, 105, 1, 0]]
    """

    encode: Callable[[str], list[int]] = dataclasses.field(repr=False)
    context: int
    end: int | None
    pad: int
    start: int | None = None
    clean: Callable[[str], str] = dataclasses.field(default=str, repr=False)
    files: tuple[Path, ...] = ()
    words: Any = dataclasses.field(default=None, repr=False)

    def __call__(self, texts: str | Sequence[str]) -> np.ndarray:
        """Returns the ids of one text or several, int32 `(texts, context)`; warns if a text is cut.

        Raises TypeError if a text is not a string, ValueError for invalid Unicode, and ImportError if ftfy is missing,
        which cleans the texts of a CLIP.
        """
        texts = as_strings("texts", texts)
        for text in texts:
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                raise ValueError(f"texts must be valid Unicode, but {text!r:.80} has an unpaired surrogate.")
        ids = np.full((len(texts), self.context), self.pad, "int32")
        first = [] if self.start is None else [self.start]
        last = [] if self.end is None else [self.end]
        longest, cut = self.context - len(first) - len(last), []
        for i, text in enumerate(texts):
            body = self.encode(self.clean(text))
            if len(body) > longest:
                cut.append(text)
            row = [*first, *body[:longest], *last]
            ids[i, : len(row)] = row
        if cut:
            _arguments.warn_caller(
                f"{len(cut)} of {len(texts)} texts are longer than the {self.context} tokens of this model and were "
                f"cut, such as {cut[0]!r:.80}. Shorten them."
            )
        return ids


# What is done to texts first


def canonicalized(text: str, keep: str = "") -> str:
    """A text in lower case without punctuation, words one space apart (big_vision's `_canonicalize`)."""
    removed = "".join(sign for sign in string.punctuation if sign not in keep)
    return _spaced(text.replace("_", " ").translate(str.maketrans("", "", removed)).lower())


def _spaced(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _repaired(text: str) -> str:
    """A text as OpenAI and open_clip repair it: broken encodings, and what HTML writes as `&amp;`."""
    return html.unescape(html.unescape(library("ftfy").fix_text(text))).strip()


def siglip_cleaned(text: str) -> str:
    """A text in lower case without punctuation, as transformers' SiglipTokenizer: no space where a `_` was."""
    return _spaced(text.lower().translate(_NO_PUNCTUATION))


# What open_clip calls its ways to clean a text; the first is its default for CLIP, the second for other tokenizers.
CLEANINGS: dict[str, Callable[[str], str]] = {
    "lower": lambda text: _spaced(_repaired(text)).lower(),
    "whitespace": lambda text: _spaced(_repaired(text)),
    "canonicalize": lambda text: canonicalized(_repaired(text)),
}
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# big_vision and TIPS lower with `tf.strings.lower`, which knows no letters but A to Z.
FLAX: dict[str, Callable[[str], str]] = {"big_vision": lambda text: text.translate(_LOWER), "lit": str}
TIPS = "tips"  # its rules: big_vision's capitals, no end token, padding 0


# What cuts a text into tokens


def library(name: str) -> Any:
    """Returns an installed package by its name; ImportError without it."""
    require_packages("This tokenizer", (name,), "text")
    return importlib.import_module(name)


def need_library() -> None:
    """Raises ImportError where no library that reads tokenizers is installed."""
    if not any(map(importlib.util.find_spec, ("tokenizers", "sentencepiece"))):
        require_packages("A model of texts", ("tokenizers", "sentencepiece"), "text")


@functools.cache
def _clip_pairs(start: str, end: str) -> Any:
    """CLIP's byte pairs as a tokenizer of the library `tokenizers`, whose special tokens are `start` and `end`."""
    tokenizers = library("tokenizers")
    lines = gzip.decompress((weights_folder() / CLIP_MERGES).read_bytes()).decode().split("\n")
    merges = [tuple(line.split()) for line in lines if line]
    # Letters stand for bytes, in the order of the ids: printable ones for themselves, then all others.
    letters = [chr(i) for i in (*range(33, 127), *range(161, 173), *range(174, 256))]
    letters += [chr(i) for i in range(256, 512 - len(letters))]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in merges), start, end]
    model = tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, merges, end_of_word_suffix="</w>")
    return _splitting(model, _CLIP_WORDS_OF_ANY_CASE, [start, end])


def _splitting(model: Any, words: str, specials: list[str]) -> Any:
    """Returns a tokenizer of the library `tokenizers` that makes a model's byte pairs of the `words` of a text."""
    tokenizers = library("tokenizers")
    result = tokenizers.Tokenizer(model)
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(words), "removed", invert=True)
    as_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    result.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, as_bytes])
    result.add_special_tokens(specials)
    return result


def _from_merges(vocabulary: Path) -> Any:
    """The byte pairs of a `vocab.json` and the `merges.txt` beside it, with texts cleaned as by CLIPTokenizer."""
    tokenizers, specials = library("tokenizers"), ["<|startoftext|>", "<|endoftext|>"]
    files = str(vocabulary), str(vocabulary.with_name(MERGES))
    model = tokenizers.models.BPE.from_file(*files, end_of_word_suffix="</w>", unk_token=specials[1])
    result, cleaning = _splitting(model, _CLIP_WORDS, specials), tokenizers.normalizers
    spaces = cleaning.Replace(tokenizers.Regex(r"\s+"), " ")
    result.normalizer = cleaning.Sequence([cleaning.NFC(), spaces, cleaning.Lowercase()])
    return result


def _ids_of(tokenizer: Any) -> Callable[[str], list[int]]:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _cleaning(name: Any) -> Callable[[str], str]:
    """How open_clip cleans texts under a name of its config; ValueError for an unknown one."""
    if name not in [*CLEANINGS]:  # JSON may hold a list, which no dict takes as a key
        raise ValueError(f"clean in open_clip_config.json must be one of {[*CLEANINGS]}, but is {name!r:.60}.")
    return CLEANINGS[name]


def clip_tokenizer(config: TextConfig, is_open_clip: bool, clean: str | None = None) -> Tokenizer:
    """Returns CLIP's tokenizer as OpenAI's code or open_clip has it, which call the special tokens by other words."""
    words = ("<start_of_text>", "<end_of_text>") if is_open_clip else ("<|startoftext|>", "<|endoftext|>")
    pairs = _clip_pairs(*words)
    start, end = map(pairs.token_to_id, words)
    made = Tokenizer(_ids_of(pairs), config.context, end, 0, start, _cleaning(clean or "lower"), words=pairs)
    return _checked(made, pairs.get_vocab_size(), config)


def from_json(path: Path, config: TextConfig, kind: str, clean: str | None = None) -> tuple[Tokenizer, bool]:
    """The tokenizer of a `tokenizer.json` or `vocab.json`, and whether it lowers texts though no file says so."""
    hub, sidecar = library("tokenizers"), path.with_name("tokenizer_config.json")
    path.open("rb").close()  # the libraries' errors do not tell what cannot be read from what is damaged
    try:
        words = _from_merges(path) if path.name == VOCABULARY else hub.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more exact
        raise ValueError(f"The tokenizer {path} cannot be read: {printable(error, 200)}. Download it again.") from error
    metadata = parse_json(sidecar.read_bytes(), str(sidecar)) if sidecar.is_file() else {}

    def id_of(role: str, default: str) -> int:
        word = metadata.get(role, default)
        word = word.get("content") if isinstance(word, dict) else word
        number = words.token_to_id(word) if isinstance(word, str) else None
        if number is None:
            raise ValueError(f"{path} lacks the token {word!r}, the {role} in {sidecar.name}. Download both again.")
        return number

    is_gemma, encode = words.token_to_id("<eos>") is not None, _ids_of(words)
    clean_text: Callable[[str], str] = str
    start, lowers = None, False
    end_word, pad_word = ("<eos>", "<pad>") if is_gemma else ("</s>", "</s>")
    if kind == "hf_clip":
        start = id_of("bos_token", "<|startoftext|>")
        end_word = pad_word = "<|endoftext|>"
    elif kind == TIPS:  # whose normalizer lowers
        pad_word = "<pad>"
    elif kind in FLAX:
        words.encode_special_tokens = True  # a special token written in a text is text there
        clean_text = FLAX[kind]
    elif kind.startswith("open"):
        clean_text, around = _cleaning(clean or "whitespace"), words.encode("").ids
        start = around[0] if len(around) > 1 else None  # XLM-R's begins texts with a token, as MetaCLIP 2 has it
    elif is_gemma:
        # SigLIP 2 was trained on lower case, which the class that the hub names leaves out.
        lowers, after = True, [] if words.normalizer is None else [words.normalizer]
        words.normalizer = hub.normalizers.Sequence([hub.normalizers.Lowercase(), *after])
    else:
        clean_text = siglip_cleaned
    end, pad = None if kind == TIPS else id_of("eos_token", end_word), id_of("pad_token", pad_word)
    beside = [MERGES] if path.name == VOCABULARY else []
    beside += [sidecar.name] if metadata else []
    beside += ["tokenizer.model"] if kind == TIPS else []  # which its authors read
    files = [path, *(path.with_name(name) for name in beside if path.with_name(name).is_file())]
    made = Tokenizer(encode, config.context, end, pad, start, clean_text, tuple(files), words)
    return _checked(made, words.get_vocab_size(), config), lowers


def from_sentencepiece(path: Path, config: TextConfig, kind: str, clean: str | None = None) -> Tokenizer:
    """The tokenizer of a SentencePiece model by the rules of `kind`; those of transformers for an unknown one."""
    path.open("rb").close()
    try:
        pieces = library("sentencepiece").SentencePieceProcessor(model_file=str(path))
    except RuntimeError as error:
        raise ValueError(f"{path} is not a SentencePiece model: {printable(error, 200)}. Download it again.") from error
    is_gemma = pieces.id_to_piece(1) == "<eos>"
    # The end has the id 1. The padding of Gemma has its own, 0; the others fill up with the end.
    end, pad = 1, 0 if is_gemma else 1
    encode, clean_text = pieces.encode, FLAX.get(kind, str)
    if kind == TIPS:
        end, pad, clean_text = None, 0, FLAX["big_vision"]
    elif kind.startswith("open"):
        clean_text = _cleaning(clean or "whitespace")
    elif kind not in FLAX and is_gemma:
        clean_text = str.lower  # SigLIP 2 was trained on lower case
    elif kind not in FLAX:
        encode = _pieces_of_siglip(pieces)
    tokenizer = Tokenizer(encode, config.context, end, pad, clean=clean_text, files=(path,), words=pieces)
    return _checked(tokenizer, pieces.get_piece_size(), config)


def _pieces_of_siglip(pieces: Any) -> Callable[[str], list[int]]:
    """A function from a text to its ids, as transformers' SiglipTokenizer makes them of a SentencePiece model."""
    unknown = pieces.id_to_piece(pieces.unk_id())
    before = len(pieces.encode(unknown))
    specials = {"</s>": 1, unknown: pieces.unk_id()}
    split = re.compile(rf"\s*({'|'.join(map(re.escape, specials))})\s*")

    def encode(text: str) -> list[int]:
        ids = []
        for part in split.split(f"\u2581{text.replace(chr(0x2581), ' ')}"):
            if part in specials:
                ids.append(specials[part])
            elif part:
                ids += pieces.encode(f"{unknown}{siglip_cleaned(part)}")[before:]
        return ids

    return encode


def _checked(tokenizer: Tokenizer, words: int, config: TextConfig) -> Tokenizer:
    """Returns the given tokenizer, of so many words; ValueError unless it belongs to a text tower of such a config."""
    if not config.vocabulary - PADDING < words <= config.vocabulary:
        name = tokenizer.files[0] if tokenizer.files else "CLIP's tokenizer"
        raise ValueError(f"{name} has {words} tokens, but the model has {config.vocabulary}. Pass the right tokenizer.")
    # A CLIP reads its end token, the last of its words; SigLIP and LiT have theirs before all words.
    ends = {"end_id": config.end_id, "largest_id": words - 1, "last": None if config.causal else 1}
    end = ends.get(config.pooling) if tokenizer.files else None
    if end not in (None, tokenizer.end):
        raise ValueError(
            f"{tokenizer.files[0]} ends texts with the id {tokenizer.end}, but the model was trained with {end}. Pass "
            "the tokenizer of these weights."
        )
    return tokenizer


# Which tokenizer belongs to weights


def find_tokenizer(
    path: Path, given: Any, config: TextConfig, sidecars: Sidecars, kind: str, words: Sequence[str]
) -> tuple[Tokenizer | None, str | None]:
    """Returns the tokenizer of weights, `given` or found beside `path`, and a note for the user or None."""
    open_clip = mapping(sidecars.open_clip, "model_cfg", "text_cfg")
    clean = mapping(open_clip, "tokenizer_kwargs").get("clean")
    if given is None and kind.startswith("open") and not open_clip.get("hf_tokenizer_name"):
        return clip_tokenizer(config, kind != "openai", clean), None
    check_type("tokenizer", given, str | os.PathLike | None, "the path of a file or a folder")
    folder = (path if path.is_dir() else path.parent) if given is None else Path(expanded_path(given))
    names = (path.with_suffix(".model").name, *words) if given is None else words
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if folder.is_file() and folder.suffix in (".json", ".model"):
        found = folder
    if found is None and given is None:
        return None, "no tokenizer is beside the weights"
    if found is None:
        raise FileNotFoundError(f"tokenizer must be a tokenizer.json, a .model or a folder, but is {str(given)!r}.")
    if found.suffix == ".model":
        return from_sentencepiece(found, config, kind, clean), None
    made, lowers = from_json(found, config, kind, clean)
    note = "texts are converted to lower case as in training, although the tokenizer named in its files does not do it"
    return made, note if lowers else None


# What models do with texts


class WithTexts:
    """What models with a text tower do with texts; they have a `tokenizer` and a `text_encoder`."""

    tokenizer: Tokenizer | None
    text_encoder: TextEncoder

    def embed_texts(self, texts: str | Sequence[str], batch_size: int = 32, *, progress: bool = False) -> np.ndarray:
        """Returns embeddings of texts, float32 `(texts, D)`, normalised to length 1; warns if a text is cut."""
        whole_number("batch_size", batch_size, 1)
        ids, rows = self._ids(texts), []
        with ProgressBar("Encoding texts", len(ids), shown=progress) as bar:
            for start in range(0, len(ids), batch_size):
                part = ids[start : start + batch_size]
                rows.append(self.text_encoder.predict_on_batch(part))
                bar.advance(len(part))
        return unit_vectors(np.concatenate(rows).astype("float32"))

    def _known_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ValueError(
                "The model has no tokenizer. Pass load_image_text(..., tokenizer=...), the tokenizer.json or the "
                "SentencePiece .model of these weights, or set the attribute `tokenizer`."
            )
        return self.tokenizer

    def _ids(self, texts: str | Sequence[str]) -> np.ndarray:
        ids = self._known_tokenizer()(texts)
        if not len(ids):
            raise ValueError("texts must have at least one text, but none was given.")
        self.text_encoder.check_ids(ids)
        return ids
