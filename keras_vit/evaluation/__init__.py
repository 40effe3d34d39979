"""How good a model is: accuracy on a labelled set, and a linear probe from a few examples; features of many images."""

from keras_vit._pictures import need_matplotlib
from keras_vit.evaluation.accuracy import AccuracyResult, Mistake, evaluate
from keras_vit.evaluation.batches import batches
from keras_vit.evaluation.embedding import EmbeddedImages, embed
from keras_vit.evaluation.few_shot import (
    L2,
    L2_SWEEP,
    SHOTS,
    FewShotResult,
    LeastSquaresProbe,
    extract_features,
    few_shot,
    knn_accuracy,
)
from keras_vit.evaluation.published import PublishedAnswer, VerificationTable, published_answers, verify
from keras_vit.evaluation.report import confusion_shares, draw_confusion, most_confused, write_files, write_report
from keras_vit.evaluation.similar_images import draw_similar, find_duplicates, find_similar
from keras_vit.evaluation.similarity import knn, near_duplicates, search
from keras_vit.evaluation.targets import MultilabelResult, NumberResult, average_precision, best_thresholds, f1_scores

__all__ = [
    "L2",
    "L2_SWEEP",
    "SHOTS",
    "AccuracyResult",
    "EmbeddedImages",
    "FewShotResult",
    "LeastSquaresProbe",
    "Mistake",
    "MultilabelResult",
    "NumberResult",
    "PublishedAnswer",
    "VerificationTable",
    "average_precision",
    "batches",
    "best_thresholds",
    "confusion_shares",
    "draw_confusion",
    "draw_similar",
    "embed",
    "evaluate",
    "extract_features",
    "f1_scores",
    "few_shot",
    "find_duplicates",
    "find_similar",
    "knn",
    "knn_accuracy",
    "most_confused",
    "near_duplicates",
    "need_matplotlib",
    "published_answers",
    "search",
    "verify",
    "write_files",
    "write_report",
]
