"""The five experiments: each takes a workshop and returns its numbers as plain data."""

from typing import Any

import keras
import numpy as np

from keras_vit.models import VisionTransformer
from keras_vit.models.sizes import count_macs
from keras_vit.training.pretraining import mean_colours
from miniature.workshop import ARCHITECTURES, Workshop


def _mean(runs: list[float]) -> dict[str, Any]:
    return {"accuracy": float(np.mean(runs)), "runs": runs}


def transfer(shop: Workshop) -> dict[str, Any]:
    """The shipped checkpoint against the same model from random weights, on a few and on many digits."""
    s, rows = shop.settings, []
    for digits in s.digits:
        runs: dict[str, list[float]] = {"pretrained": [], "scratch": [], "scratch, longer": []}
        for seed in range(shop.seed, shop.seed + s.seeds):
            shipped = shop.shipped_model()
            runs["pretrained"].append(shop.finetune(shipped, digits, seed)[0])
            budgets = {"scratch": s.tune_steps}
            if seed == shop.seed:
                budgets["scratch, longer"] = s.patience * s.tune_steps
            for start, steps in budgets.items():
                keras.utils.set_random_seed(seed)
                fresh = VisionTransformer(shipped.config.replace(classes=10))
                runs[start].append(shop.finetune(fresh, digits, seed, steps=steps)[0])
        rows += [{"start": start, "digits": digits, **_mean(accuracies)} for start, accuracies in runs.items()]
        shop.say(f"transfer, {digits} digits: " + ", ".join(f"{k} {np.mean(v):.1%}" for k, v in runs.items()))
    return {"steps": s.tune_steps, "longer": s.patience * s.tune_steps, "rows": rows}


def data(shop: Workshop) -> dict[str, Any]:
    """Each architecture pre-trained on more and more pictures, with the same updates.

    As in section 4.3 of the paper the best moment of each training counts: here the one that reads new pictures of the
    source best.
    """
    rows = []
    for pictures in shop.settings.pictures:
        for architecture in ARCHITECTURES:
            probes = shop.pretrain(architecture, pictures).probes
            best = max(probes, key=lambda probe: probe["held_out"])
            rows.append({"architecture": architecture, "pictures": pictures, **best})
    models = {name: shop.new_model(name, shop.settings.classes, 0) for name in ARCHITECTURES}
    sizes = {name: {"weights": m.count_params(), "macs": count_macs(m.config)} for name, m in models.items()}
    return {"steps": shop.settings.steps, "models": sizes, "rows": rows}


def few_shot(shop: Workshop) -> dict[str, Any]:
    """Few-shot accuracy along pre-training on all pictures, and accuracy after fine-tuning from the same weights."""
    s, rows = shop.settings, []
    digits = s.digits[1]
    for architecture in ARCHITECTURES:
        done = shop.pretrain(architecture, max(s.pictures))
        for probe, weights in zip(done.probes, done.weights, strict=True):
            model = shop.new_model(architecture, s.classes, shop.seed)
            model.set_weights(weights)
            tuned = shop.finetune(model, digits, shop.seed)[0]
            rows.append({"architecture": architecture, **probe, "finetuned": tuned})
        shop.say(f"fine-tuning along the way, {architecture}: {rows[-1]['finetuned']:.1%} at last")
    return {"digits": digits, "tune_steps": s.tune_steps, "rows": rows}


def resolution(shop: Workshop) -> dict[str, Any]:
    """The shipped checkpoint, which saw 24 x 24 pixels, at more: frozen, and fine-tuned."""
    s, rows = shop.settings, []
    digits = s.digits[1]
    for size in s.image_sizes:
        frozen = shop.few_shot(shop.shipped_model(size))
        runs = [
            shop.finetune(shop.shipped_model(size), digits, seed, image_size=size)
            for seed in range(shop.seed, shop.seed + s.seeds)
        ]
        tokens = 1 + (size // 4) ** 2
        seconds = float(np.mean([seconds for _, seconds in runs]))
        rows.append({"image_size": size, "tokens": tokens, "seconds": seconds, **frozen, **_mean([a for a, _ in runs])})
        shop.say(f"{size} x {size} pixels: {rows[-1]['accuracy']:.1%} in {seconds:.0f} s")
    return {"digits": digits, "steps": s.tune_steps, "test_digits": len(shop.test), "rows": rows}


def masked(shop: Workshop) -> dict[str, Any]:
    """A ViT pre-trained with labels, the same by masked patch prediction, and one that was not, all fine-tuned."""
    s, rows = shop.settings, []
    pictures = max(s.pictures)
    starts = {"labels": shop.pretrain("ViT", pictures).model}
    learner = shop.pretrain("ViT", pictures, "masked_patches")
    starts["masked patches"] = learner.model
    colours = np.bincount(mean_colours(shop.source[1].pixels, learner.model.config.grid_size).reshape(-1))
    predicted = {"accuracy": learner.accuracy, "commonest": float(colours.max() / colours.sum())}
    for digits in s.digits[1:]:
        for start in ("labels", "masked patches", "scratch"):
            runs = []
            for seed in range(shop.seed, shop.seed + s.seeds):
                # Models of 10 classes: fine-tuning gives the others a new head in a copy, and leaves them as they are.
                model = starts.get(start) or shop.new_model("ViT", 10, seed)
                runs.append(shop.finetune(model, digits, seed, steps=2 * s.tune_steps)[0])
            rows.append({"start": start, "digits": digits, **_mean(runs)})
        shop.say(f"{digits} digits: " + ", ".join(f"{r['start']} {r['accuracy']:.1%}" for r in rows[-3:]))
    steps = {"pretraining_steps": s.steps, "steps": 2 * s.tune_steps}
    return {"pictures": pictures, **steps, "colours": predicted, "rows": rows}


EXPERIMENTS = {"transfer": transfer, "data": data, "few_shot": few_shot, "resolution": resolution, "masked": masked}
