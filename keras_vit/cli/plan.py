"""`keras-vit plan`."""

import argparse

from keras_vit.cli.command import COUNT, Answer, at_least_0, image_size

HELP = "What fits on which devices, how to split it, and how long a training step takes; arithmetic only."
NEEDS_KERAS = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments to a parser."""
    parser.add_argument(
        "model",
        metavar="VARIANT|FILE",
        help="such as ViT-H/14 (`keras-vit list --models` shows all), glyphs, or a file",
    )
    parser.add_argument("--devices", type=COUNT, default=1, metavar="N", help="number of devices (1)")
    parser.add_argument("--memory", default="80GB", metavar="SIZE", help="of each device, with its unit (80GB)")
    parser.add_argument("--batch", type=COUNT, default=4096, metavar="N", help="images of an update (4096)")
    parser.add_argument("--dtype", default="mixed_bfloat16", help="mixed_bfloat16 (taken if left out) or float32")
    parser.add_argument("--optimizer", default="adam", help="adam (taken if left out) or momentum")
    parser.add_argument("--image-size", type=image_size, metavar="N|HxW", help="in pixels; the variant's if left out")
    parser.add_argument("--classes", type=COUNT, metavar="N", help="outputs of the head (1000)")
    parser.add_argument(
        "--peak-tflops", type=at_least_0, metavar="X", help="of a device in that precision, for the seconds of a step"
    )
    parser.add_argument("--share", type=at_least_0, default=0.4, metavar="X", help="of the peak that is reached (0.4)")
    parser.add_argument(
        "--fused-attention", action="store_true", help="attention weights are never written, as in FlashAttention"
    )


def run(options: argparse.Namespace) -> Answer:
    """Works the plan out."""
    from keras_vit.training import plan

    answer = plan(
        options.model,
        devices=options.devices,
        memory=options.memory,
        batch_size=options.batch,
        dtype=options.dtype,
        optimizer=options.optimizer,
        image_size=options.image_size,
        classes=options.classes,
        peak_tflops=options.peak_tflops,
        share=options.share,
        fused_attention=options.fused_attention,
    )
    return Answer(answer.to_dict(), answer, ok=answer.best is not None)
