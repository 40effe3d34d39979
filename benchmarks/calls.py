"""Counts the calls of Python in a forward pass and in an update, on PyTorch: the same on every machine.

    make bench BENCH_ARGS='--rows calls'

What Python does between the operations of PyTorch is what small models wait for. Its calls, of functions in Python and
in C, are counted by cProfile, in a process for each package, after two steps that make what is kept. The images are of
224 pixels, one at a time; an update is one of SGD with momentum, with the loss of classes (EoMT's own loss for EoMT).
"""

import cProfile
import json
import os
import pstats
import subprocess
import sys

import numpy as np

# Models, and timm's names of them.
MODELS = {
    "ViT-Ti/16": "vit_tiny_patch16_224",
    "ViT-B/16": "vit_base_patch16_224",
    "R50+ViT-B/16": "vit_base_r50_s16_224",
    "DINOv2-S/14": "vit_small_patch14_dinov2",
    "EoMT-S": None,
}
PRODUCTS = ("PyTorch", "oneDNN")  # what multiplies matrices
CLASSES = 10
HEAD = ("model", "forward, timm", *(f"forward, {one}" for one in PRODUCTS))
HEAD += ("update, timm", *(f"update, {one}" for one in PRODUCTS))


def table():
    """Lines of a table in Markdown: a row for each model."""
    yield f"| {' | '.join(HEAD)} |"
    yield "|---" * len(HEAD) + "|"
    for model in MODELS:
        counts = [counted("timm", model), *(counted(products, model) for products in PRODUCTS)]
        cells = [f"{one[job]:,}" if one else "" for job in ("forward", "update") for one in counts]
        yield f"| {model} | {' | '.join(cells)} |"


def counted(kind, model):
    """The counts of one package in a process of its own; None where it has no such model or is not installed."""
    path = os.pathsep.join(filter(None, [os.path.dirname(os.path.dirname(__file__)), os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ,
        "KERAS_BACKEND": "torch",
        "PYTHONPATH": path,
        "KERAS_VIT_ONEDNN": str(int(kind == "oneDNN")),
    }
    command = [sys.executable, __file__, kind, model]
    return json.loads(
        subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1]
    )


def calls_of(step):
    for _ in range(2):
        step()
    with cProfile.Profile() as profile:
        step()
    return pstats.Stats(profile).total_calls


def steps_of_timm(model):
    """A forward pass and an update, or nothing."""
    import speed

    if MODELS[model] is None or not speed.installed("timm"):
        return {}
    speed.declare_torchvision()
    import timm

    network = timm.create_model(MODELS[model], img_size=224, num_classes=CLASSES)
    images = np.zeros((1, 224, 224, 3), "float32")
    return {job: speed.torch_step(network, images, "float32", name) for job, name in JOBS.items()}


JOBS = {"forward": "forward", "update": "train"}


def steps_of_keras_vit(model):
    import torch

    import keras_vit
    from keras_vit import training

    images = torch.zeros((1, 224, 224, 3))
    if model == "EoMT-S":
        backbone = keras_vit.create_model("DINOv2-S/14", image_size=224, include_top=False, pooling="none").config
        network = keras_vit.EoMT(
            keras_vit.models.EoMTConfig(
                backbone=backbone, classes=CLASSES, queries=20, query_blocks=3, upscale_blocks=2
            )
        )
        loss, optimizer = training.MaskClassificationLoss(CLASSES), training.MomentumSGD(0.01)
        optimizer.build(network.trainable_variables)
        targets = [{"masks": np.ones((1, 224, 224), "float32"), "labels": np.zeros(1, "int64")}]

        def update():
            return training.segmentation_step(network, optimizer, loss, images.numpy(), targets)
    else:
        network = keras_vit.create_model(model, image_size=224, classes=CLASSES)
        network.compile(training.MomentumSGD(0.01), training.SoftmaxLoss())
        labels = np.eye(CLASSES, dtype="float32")[:1]

        def update():
            return network.train_on_batch(images.numpy(), labels)

    def forward():
        with torch.no_grad():
            return network(images, training=False)

    return {"forward": forward, "update": update}


def main(kind, model):
    if kind == "timm":
        steps = steps_of_timm(model)
    else:
        steps = steps_of_keras_vit(model)
    print(json.dumps({job: calls_of(step) for job, step in steps.items()} or None))


if __name__ == "__main__":
    main(*sys.argv[1:])
