"""The words that people search the documentation for lead to the right page: it is among the first three."""

import math
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.once, pytest.mark.long]

DOCS = Path(__file__).parents[1] / "docs"
TITLE, HEADING = 20, 8  # what a word there counts beside one in the text, near to how search engines rank
WANTED = {
    "zero_shot.md": ["zero shot", "zero-shot classification", "clip", "siglip", "prompt templates"],
    "dense.md": ["segmentation", "depth estimation", "depth", "mIoU", "panoptic", "depth anything", "EoMT"],
    "detection.md": ["object detection", "detection", "boxes", "owl-vit", "average precision"],
    "training.md": ["fine-tuning", "fine-tune", "training"],
    "training_lora.md": ["lora", "frozen layers"],
    "training_augmentation.md": ["augmentation", "randaugment"],
    "training_runs.md": ["resume", "early stopping"],
    "training_recipes.md": ["recipes", "distillation"],
    "training_labels.md": ["regression", "several labels"],
    "training_segmentation.md": ["train segmentation"],
    "pretraining.md": ["pre-training", "masked patches"],
    "evaluation.md": ["confusion matrix", "evaluate"],
    "keras_in_twenty_lines.md": ["fit", "compile"],
    "features.md": ["embeddings", "image search", "duplicates", "nearest neighbour"],
    "inspection.md": ["attention maps", "saliency", "grad-cam", "attention"],
    "loading.md": ["load weights", "pretrained", "preprocessing", "checkpoints", "safetensors"],
    "export/README.md": ["export", "precision"],
    "export/onnx.md": ["onnx"],
    "export/litert.md": ["litert", "tflite"],
    "export/openvino.md": ["openvino"],
    "install.md": ["install", "gpu", "extras", "windows", "offline"],
    "tutorial.md": ["tutorial"],
    "errors.md": ["errors"],
    "speed.md": ["speed"],
    "serving.md": ["serving", "server"],
    "which_model.md": ["which model"],
    "distribution.md": ["several machines"],
}

WANTED["loading.md"] += ["file formats", "hugging face hub"]
# What stands first, with the boosts of mkdocs.yml.
FIRST = {"tflite": "export/litert.md", "onnx": "export/onnx.md", "export": "export/README.md"}
FIRST |= {"fit": "keras_in_twenty_lines.md", "fine-tune": "training.md", "resume": "training_runs.md"}
FIRST |= {"install": "install.md", "gpu": "install.md", "attention": "inspection.md", "zero shot": "zero_shot.md"}
FIRST |= {"pretrained": "loading.md", "preprocessing": "loading.md"}
BOOSTS = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))["extra"]["search_boosts"]


def words(text):
    return [word.removesuffix("s") for word in re.findall(r"[a-z0-9]+", text.lower())]


def counts(page):
    """How often a page has each word; those of its title and headings count more often."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = Counter(words(text))
    for marks, heading in re.findall(r"^(#+) (.+)", text, re.MULTILINE):
        for word in words(heading):
            found[word] += TITLE if marks == "#" else HEADING
    return found


PAGES = {str(path.relative_to(DOCS)): counts(path) for path in DOCS.rglob("*.md") if DOCS / "api" not in path.parents}


def found(query):
    """The pages with the words of a query, the best first: BM25 without regard to their lengths."""
    score = Counter()
    for word in words(query):
        pages = {page: number[word] for page, number in PAGES.items() if number[word]}
        rarity = math.log(1 + len(PAGES) / (len(pages) + 0.5))
        for page, number in pages.items():
            boost = next((boost for beginning, boost in BOOSTS.items() if page.startswith(beginning)), 1)
            score[page] += boost * rarity * number / (number + 10)
    return [page for page, _ in score.most_common()]


@pytest.mark.parametrize("page", WANTED)
def test_a_word_that_people_type_finds_its_page_among_the_first_three(page):
    misses = {query: found(query)[:3] for query in WANTED[page] if page not in found(query)[:3]}
    assert not misses


@pytest.mark.parametrize("word", FIRST)
def test_the_first_page_that_is_found_is_the_one_that_a_user_wants(word):
    assert found(word)[0] == FIRST[word]
