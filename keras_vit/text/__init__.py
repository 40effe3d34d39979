"""Words for images: both towers of CLIP, SigLIP and LiT, their tokenizers, and classifiers made of texts."""

from typing import TYPE_CHECKING

from keras_vit._names import lazy_names

if TYPE_CHECKING:
    from keras_vit.text.image_text import ImageText, load_image_text
    from keras_vit.text.open_vocabulary import OpenVocabularyDetector
    from keras_vit.text.templates import imagenet_names, published_templates
    from keras_vit.text.tokenizers import Tokenizer
    from keras_vit.text.writing import save_image_text

__getattr__ = lazy_names(__name__)

__all__ = ["ImageText", "OpenVocabularyDetector", "Tokenizer", "imagenet_names", "load_image_text"]
__all__ += ["published_templates", "save_image_text"]
