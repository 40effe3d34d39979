"""What models with a text tower do with texts: to token ids, and to embeddings."""

from collections.abc import Sequence

import numpy as np

from keras_vit._arguments import unit_vectors, whole_number
from keras_vit._terminal import ProgressBar
from keras_vit.models import TextEncoder
from keras_vit.text.tokenizers import Tokenizer


class WithTexts:
    """What models with a text tower do with texts; they have a `tokenizer` and a `text_encoder`."""

    tokenizer: Tokenizer | None
    text_encoder: TextEncoder

    def embed_texts(self, texts: str | Sequence[str], batch_size: int = 32, *, progress: bool = False) -> np.ndarray:
        """Embeddings of texts, float32 `(texts, D)`, each of length 1; warns where a text is too long, and cut."""
        whole_number("batch_size", batch_size, 1)
        ids, rows = self._ids(texts), []
        with ProgressBar("Encoding texts", len(ids), shown=progress) as bar:
            for start in range(0, len(ids), batch_size):
                part = ids[start : start + batch_size]
                rows.append(self.text_encoder.predict_on_batch(part))
                bar.advance(len(part))
        return unit_vectors(np.concatenate(rows).astype("float32"))

    def _known_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer; ValueError where there is none."""
        if self.tokenizer is None:
            raise ValueError(
                "No tokenizer is known for this model: pass load_image_text(..., tokenizer='...'), a tokenizer.json or "
                "the .model of SentencePiece that belongs to the weights, or set both.tokenizer."
            )
        return self.tokenizer

    def _ids(self, texts: str | Sequence[str]) -> np.ndarray:
        """Returns the token ids of texts, int32 `(texts, context)`."""
        ids = self._known_tokenizer()(texts)
        if not len(ids):
            raise ValueError("texts must not be empty.")
        self.text_encoder.check_ids(ids)
        return ids
