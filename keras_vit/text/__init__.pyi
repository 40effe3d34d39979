from keras_vit.text.image_text import ImageText as ImageText
from keras_vit.text.image_text import load_image_text as load_image_text
from keras_vit.text.open_vocabulary import OpenVocabularyDetector as OpenVocabularyDetector
from keras_vit.text.templates import imagenet_names as imagenet_names
from keras_vit.text.templates import published_templates as published_templates
from keras_vit.text.tokenizers import Tokenizer as Tokenizer
from keras_vit.text.writing import save_image_text as save_image_text
