"""How good a model is: accuracy on a labelled set, and a linear probe from a few examples; features of many images."""

from keras_vit._names import imported_names as _imported_names
from keras_vit._pictures import need_matplotlib as need_matplotlib
from keras_vit.evaluation.accuracy import AccuracyResult as AccuracyResult
from keras_vit.evaluation.accuracy import Mistake as Mistake
from keras_vit.evaluation.accuracy import batches as batches
from keras_vit.evaluation.accuracy import evaluate as evaluate
from keras_vit.evaluation.embedding import EmbeddedImages as EmbeddedImages
from keras_vit.evaluation.embedding import draw_similar as draw_similar
from keras_vit.evaluation.embedding import embed as embed
from keras_vit.evaluation.embedding import find_duplicates as find_duplicates
from keras_vit.evaluation.embedding import find_similar as find_similar
from keras_vit.evaluation.embedding import knn as knn
from keras_vit.evaluation.embedding import near_duplicates as near_duplicates
from keras_vit.evaluation.embedding import search as search
from keras_vit.evaluation.few_shot import L2 as L2
from keras_vit.evaluation.few_shot import L2_SWEEP as L2_SWEEP
from keras_vit.evaluation.few_shot import SHOTS as SHOTS
from keras_vit.evaluation.few_shot import FewShotResult as FewShotResult
from keras_vit.evaluation.few_shot import LeastSquaresProbe as LeastSquaresProbe
from keras_vit.evaluation.few_shot import extract_features as extract_features
from keras_vit.evaluation.few_shot import few_shot as few_shot
from keras_vit.evaluation.few_shot import knn_accuracy as knn_accuracy
from keras_vit.evaluation.report import confusion_shares as confusion_shares
from keras_vit.evaluation.report import draw_confusion as draw_confusion
from keras_vit.evaluation.report import most_confused as most_confused
from keras_vit.evaluation.report import write_files as write_files
from keras_vit.evaluation.report import write_report as write_report
from keras_vit.evaluation.targets import MultilabelResult as MultilabelResult
from keras_vit.evaluation.targets import NumberResult as NumberResult
from keras_vit.evaluation.targets import average_precision as average_precision
from keras_vit.evaluation.targets import best_thresholds as best_thresholds
from keras_vit.evaluation.targets import f1_scores as f1_scores

__all__ = _imported_names(__name__)
