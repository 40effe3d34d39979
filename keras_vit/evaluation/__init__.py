"""How good a model is: accuracy on a labelled set, and a linear probe from a few examples; features of many images."""

from keras_vit._pictures import need_matplotlib
from keras_vit.evaluation.accuracy import (
    AccuracyResult,
    confusion_shares,
    draw_confusion,
    evaluate,
    most_confused,
    write_files,
)
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
)
from keras_vit.evaluation.published import PublishedAnswer, VerificationTable, published_answers, verify
from keras_vit.evaluation.similarity import knn, near_duplicates, search

__all__ = [
    "L2",
    "L2_SWEEP",
    "SHOTS",
    "AccuracyResult",
    "EmbeddedImages",
    "FewShotResult",
    "LeastSquaresProbe",
    "PublishedAnswer",
    "VerificationTable",
    "batches",
    "confusion_shares",
    "draw_confusion",
    "embed",
    "evaluate",
    "extract_features",
    "few_shot",
    "knn",
    "most_confused",
    "near_duplicates",
    "need_matplotlib",
    "published_answers",
    "search",
    "verify",
    "write_files",
]
