"""What a type checker is to know of the public interface. `make lint` reads this file; nobody runs it."""

from pathlib import Path
from typing import Any, assert_type

import numpy as np

import keras_vit
from keras_vit import data, evaluation, export, training

Loaded = keras_vit.VisionTransformer | keras_vit.BiT | keras_vit.models.DenseModel


def models() -> None:
    model = keras_vit.ViT_B16(image_size=(384, 512), classes=10, classifier_activation=None, dtype="mixed_bfloat16")
    assert_type(model, keras_vit.VisionTransformer)
    assert_type(keras_vit.BiT_R50x1(pretrained=True), keras_vit.BiT)
    assert_type(keras_vit.create_model("B/16", image_size="dynamic"), keras_vit.VisionTransformer | keras_vit.BiT)
    assert_type(keras_vit.from_checkpoint(Path("B_16.npz")), Loaded)
    assert_type(keras_vit.load("glyphs", classes=3), Loaded)
    assert_type(model.with_config(image_size=224, classes=37), keras_vit.VisionTransformer)
    assert_type(model.config, keras_vit.ViTConfig)


def images() -> None:
    pixels = keras_vit.load_image("photo.jpg", 224)
    assert_type(pixels, np.ndarray)
    keras_vit.preprocess_input(pixels)
    assert_type(keras_vit.decode_predictions(np.zeros((1, 1000)), top=3), list[list[tuple[str, str, float]]])


def work(model: keras_vit.VisionTransformer, labelled: tuple[np.ndarray, np.ndarray]) -> None:
    assert_type(data.open_data(labelled, image_size=224, batch_size=32), data.ImageStream)
    report = export.export(model, "model.tflite", precision="int8", calibration="photos/")
    assert_type(report, export.ExportReport)
    assert_type(report.to_dict(), dict[str, Any])
    assert_type(training.recipe("finetune/cifar10"), training.Recipe)
    training.finetune("glyphs", labelled, "finetune/cifar10", output="run")
    evaluation.evaluate(model, labelled)
