"""What data refuses, with the words that name it: augmentations, labels, arrays, pipelines, masks, options."""

from types import SimpleNamespace

import numpy as np
import pytest

from keras_vit.data import (
    Augmentation,
    MaskAugmentation,
    open_boxes,
    open_data,
    open_masks,
    open_table,
    randaugment,
    randaugment_operation,
)
from keras_vit.data.examples import check_labels
from keras_vit.data.random_operations import OPERATIONS
from keras_vit.preprocessing import Pipeline
from tests.data.sources import Iterable

pytestmark = pytest.mark.once

X, Y = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype="uint8"), np.arange(12) % 3
PICTURE = np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype="uint8")
BOXES = ([PICTURE], [{"boxes": [[1, 1, 8, 8]], "labels": [0]}])
SMALL = (np.full((2, 8, 8, 3), 9, "uint8"), np.zeros((2, 8, 8), "uint8"))


def forever():
    while True:
        yield X / 255.0, Y


def opened(source=(X, Y), **options):
    return open_data(source, **{"image_size": 8, "batch_size": 4} | options)


def pipeline(*items, **options):
    return opened(Iterable(items), **{"classes": 3} | options)


def inputs(*source, **options):
    return opened(source if len(source) > 1 else source[0], **{"image_size": None, "split": "test"} | options)


def masks(source, options=None, **settings):
    data = open_masks(source, **({"classes": 3} if options is None else options))
    return opened(data, **{"batch_size": 2} | settings).batch(0)


def changed(place, value, images=X):
    images = images.astype("float32")
    images[place] = value
    return images


def operation(image=PICTURE, name="Rotate", magnitude=10, **further):
    return randaugment_operation(image, name, magnitude, **further)


def of(function, rows):
    return [(lambda given=given: function(**given), error, words) for given, error, words in rows]


REFUSED = [
    *of(
        operation,
        [
            ({"name": "invert"}, ValueError, f"name must be one of .*{'.*'.join(OPERATIONS)}"),
            ({"magnitude": -1}, ValueError, "magnitude must"),
            ({"name": "Invert", "negate": True}, ValueError, "negate=True is for .*, but the name is 'Invert'"),
            ({"center": (0, 0)}, ValueError, "is for the name 'Cutout'"),
            ({"name": "Cutout"}, ValueError, r"Pass center=\(row, column\)"),
            ({"name": "Cutout", "center": (12, 0)}, ValueError, "lies outside"),
            ({"image": PICTURE.astype("float32")}, TypeError, "float32 was given"),
        ],
    ),
    (lambda: randaugment(PICTURE[..., 0], 2, 10, np.random.default_rng(0)), ValueError, r"shape is \(12, 10\)"),
    (lambda: randaugment(PICTURE, 0, 10, np.random.default_rng(0)), ValueError, "layers"),
    (lambda: randaugment(PICTURE, 2, 10, 0), TypeError, "generator must be a Generator"),
    *of(
        lambda labels, classes=None, target="class": check_labels(labels, classes, "x", target=target),
        [
            ({"labels": [0, 3], "classes": 3}, ValueError, "image 1 of x has the label 3, .* 0 to 2, for 3 classes"),
            ({"labels": [np.nan, 1], "classes": 3}, ValueError, "image 0 of x has the label nan"),
            ({"labels": [[0.0, np.nan, 0.0]], "classes": 3}, ValueError, "must be from 0 to 1"),
            ({"labels": [[0.0, 1.0]], "classes": 3}, ValueError, "must have 3 columns.* not 2"),
            ({"labels": np.zeros((2, 3, 1)), "classes": 3}, ValueError, "must have the shape"),
            ({"labels": ["cat", "dog"], "classes": 2}, TypeError, "Number the classes"),
            ({"labels": [[0, 0.5]], "target": "multilabel"}, ValueError, "image 0 of x must be 0 or 1"),
            ({"labels": [0, 1], "target": "multilabel"}, ValueError, r"\(n, classes\) with 0 and 1"),
            ({"labels": [1, 1e39], "target": "number"}, ValueError, r"image 1 of x has the label 1e\+39"),
            ({"labels": [[1, 2]], "target": "number"}, ValueError, r"\(n,\) or \(n, 1\)"),
            ({"labels": [1, 2], "target": "number", "classes": 2}, ValueError, "has one output, but 2 classes"),
        ],
    ),
    *of(
        opened,
        [
            ({"source": (X, Y[:-1])}, ValueError, "12 images and 11 labels"),
            ({"source": (X, Y * 0)}, ValueError, "two classes or more"),
            ({"source": (X / 255, Y)}, ValueError, "scaled already"),
            ({"source": (changed(7, np.nan), Y)}, ValueError, r"images\[7\] has NaN"),
            ({"source": ([*X[:-1], X[-1, :5] / 300.0], Y)}, ValueError, r"images\[11\]"),
            ({"classes": 2}, ValueError, r"images\[2\] has the label 2, .*0 to 1"),
            ({"source": None}, TypeError, "data must be an image folder"),
            ({"batch_size": 0}, ValueError, "batch_size must be"),
            ({"seed": -1}, ValueError, "seed must be"),
            ({"image_size": "8"}, TypeError, "image_size must be an integer or a pair"),
            ({"split": "val"}, ValueError, "split must be one of"),
            ({"split": "test", "augmentation": Augmentation()}, ValueError, "is for the shuffle 'True'"),
            ({"shuffle": False, "augmentation": Augmentation()}, ValueError, "is for the shuffle 'True'"),
            ({"shuffle": True, "split": "test"}, ValueError, "shuffle=True is for the split 'train'"),
            ({"on_bad_image": "ignore"}, ValueError, "on_bad_image must be one of"),
            ({"check": True}, ValueError, "check must be one of"),
            ({"resize": "crop"}, ValueError, "resize must be one of"),
            ({"prefetch": -1}, ValueError, "prefetch must be"),
            ({"resize": "timm"}, ValueError, "resize='timm' is for the shuffle 'False'"),
            ({"resize": Pipeline(8)}, ValueError, "resize=Pipeline.* is for the shuffle 'False'"),
            ({"target": "none", "classes": 3}, ValueError, "classes=3 is for the target"),
            ({"resize": "timm", "split": "test", "channels": 4}, ValueError, "is for the channels '3'"),
            ({"source": (X[:2], [1, 2]), "target": "number", "holdout": 0.9}, ValueError, "can be held out"),
            ({"class_names": ["a"], "classes": 2}, ValueError, "each of the 2 classes, but has 1"),
            ({"class_names": ["a", "a"]}, ValueError, "differ from each other"),
            ({"target": "labels"}, ValueError, "target must be one of"),
            ({"augmentation": MaskAugmentation()}, TypeError, "Augmentation"),
            ({"processes": True}, ValueError, "processes=True needs image files"),
            ({"holdout": 1.0}, ValueError, "holdout must be a number between 0 and 1"),
            ({"sampling": "sqrt", "split": "test"}, ValueError, "is for the shuffle 'True'"),
            ({"sampling": "sqrt", "target": "number"}, ValueError, "the data has the target 'number'"),
            ({"source": [(X, Y)], "sampling": "sqrt", "classes": 3}, ValueError, "sampling=.* for the data 'examples'"),
            ({"workers": 0}, ValueError, "workers must be"),
            ({"processes": "no"}, ValueError, "processes must be one of"),
            ({"augmentation": Augmentation(erasing=1.0, erasing_mean=(0.1, 0.2))}, ValueError, "one for each of 3"),
        ],
    ),
    (lambda: pipeline(), ValueError, "has no good image"),
    (lambda: pipeline((np.zeros((4, 8, 8, 3)),)), ValueError, "yields a tuple"),
    (lambda: pipeline({"image": 1, "target": 2}), ValueError, r"yields a dict with the keys \['image', 'target'\]"),
    (lambda: pipeline((np.zeros((4, 8, 8, 3)), [0, 1, 2, 0]), classes=None), ValueError, "Pass the number of classes"),
    (lambda: pipeline((X[:1], 3)), ValueError, "batch 0 needs a label for each image, but has 1 images, one labels"),
    (lambda: opened(forever(), classes=3, on_bad_image="skip"), ValueError, "100 batches in a row are bad.*scaled"),
    (lambda: next(iter(opened())), TypeError, "has no end"),
    (lambda: inputs(np.zeros((3, 2)), [0, 1]), ValueError, r"equally long batches, but have \(3, 2\) and \(2,\)"),
    (lambda: inputs([(np.zeros(3), 0), (np.zeros(4), 1)]), ValueError, "must have one shape.*batch_size=1"),
    (lambda: inputs([X[0], X[0, :4]], [0, 1]), ValueError, "equally large to form a batch. Pass image_size"),
    (lambda: inputs("photos"), TypeError, "str was given. Pass image_size to read files"),
    (lambda: inputs(np.zeros((2, 2)), [0, 1], split="train"), ValueError, "shuffle=True is for runs with image_size"),
    (lambda: open_table(3), TypeError, "pandas, polars or Arrow table"),
    (lambda: open_table({"file": ["a"], "a": [1]}, label=[]), ValueError, "label must be a column or a list"),
    (lambda: open_table({"file": ["a"], "a": [1]}, label=["a", "a"]), ValueError, "label must be a column or a list"),
    (lambda: open_table({"file": ["a"], "a": [1]}, label=["a"], separator="|"), ValueError, r"separator must be text"),
    (lambda: open_table({"file": ["a"], "a": [1]}, label="a", separator=""), ValueError, "separator must be text.*''"),
    (lambda: open_table({"file": ["a", "b"], "label": ["", ""]}, separator="|"), ValueError, "No row of the table has"),
    (lambda: open_table(SimpleNamespace(columns=["a", "a"])), ValueError, "different names of columns, but it has 'a'"),
    (lambda: masks("nowhere", {}), FileNotFoundError, "nowhere"),
    (lambda: masks((SMALL[0], SMALL[1][:1]), {}), ValueError, "2 images and 1 masks"),
    (lambda: masks((SMALL[0], SMALL[1][:, :4]), {}), ValueError, r"mask of images\[0\] must have the size"),
    (lambda: masks((SMALL[0], SMALL[1] + 255), {}), ValueError, "hold only the ignored label 255"),
    (lambda: masks((SMALL[0] / 255, SMALL[1]), {}), ValueError, "scaled"),
    (lambda: masks(SMALL, {"classes": 300}), ValueError, "but 255 is one"),
    (lambda: masks((SMALL[0], SMALL[1] + 3), {"ignore": 1}), ValueError, "but 1 is one of the 4 classes"),
    (
        lambda: masks(SMALL, resize="timm", split="test"),
        ValueError,
        "resize='timm' is for .* the target is 'mask'",
    ),
    (lambda: opened(X, target="none", sampling="sqrt"), ValueError, "the data has the target 'none'"),
    (lambda: open_boxes(open_boxes(BOXES), class_names=["a", "b"]), ValueError, r"class_names=\['a', 'b'\] was given"),
    (lambda: masks([SMALL], classes=4), ValueError, "classes=4 was given, but the data has 3"),
    (lambda: masks(SMALL, {"class_names": ["a", "a"]}), ValueError, "differ"),
    (lambda: masks(SMALL, {"reduce_zero_label": "yes"}), TypeError, "reduce_zero_label"),
    (lambda: masks([SMALL], {}), ValueError, "classes="),
    (lambda: masks(iter([SMALL])), TypeError, "read only once"),
    (lambda: masks(SMALL, augmentation=Augmentation()), TypeError, "MaskAugmentation"),
    (lambda: masks(SMALL, channels=4, augmentation=MaskAugmentation()), ValueError, "Colour changes need RGB images"),
    (lambda: masks(SMALL, channels=4), ValueError, r"must have shape .*4\)"),
    (lambda: masks(SMALL, augmentation=MaskAugmentation(fill=(1, 2))), ValueError, "one for each of 3 channels"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()
