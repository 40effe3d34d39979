"""What the paper claims, and whether the numbers say so too. Every sentence about what was seen is made of numbers."""

from typing import Any

import numpy as np

AGREES, PARTLY, DISAGREES = "agrees", "agrees in part", "disagrees"


def _verdict(*holds: bool) -> str:
    return AGREES if all(holds) else PARTLY if any(holds) else DISAGREES


def _percent(value: float) -> str:
    return f"{100 * value:.1f}\u00a0%"


def _join(parts: list[str]) -> str:
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]


def _by(rows: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[name] for name in names): row for row in rows}


def middle_shots(row: dict[str, Any]) -> str:
    """Returns the number of shots that the text names: 5 of (1, 5, 25), as in the paper's figures."""
    return list(row["few_shot"])[len(row["few_shot"]) // 2]


def transfer(numbers: dict[str, Any]) -> dict[str, str]:
    rows = _by(numbers["rows"], "start", "digits")
    sizes = sorted({row["digits"] for row in numbers["rows"]})
    wins, longer, seen = [], [], []
    count = len(numbers["rows"][0]["runs"])
    runs = f"{count} runs" if count > 1 else "1 run"
    for size in sizes:
        three = [rows[start, size]["accuracy"] for start in ("pretrained", "scratch", "scratch, longer")]
        wins.append(three[0] > three[1])
        longer.append(three[0] > three[2])
        seen.append(f"{size:,} digits {_percent(three[0])} against {_percent(three[1])}")
    end = f"Training from scratch for {numbers['longer']} updates instead of {numbers['steps']} "
    end += f"is behind at {sum(longer)} of {len(sizes)} sizes: "
    end += _join([f"{_percent(rows['scratch, longer', size]['accuracy'])} with {size:,}" for size in sizes]) + "."
    return {
        "claim": "A Vision Transformer that was pre-trained on much data transfers well to small tasks, where one that "
        "starts from random weights does not (abstract; sections 1 and 4.2).",
        "seen": f"Pre-trained against from scratch, {numbers['steps']} updates each, mean of {runs}: "
        f"{'; '.join(seen)}. {end}",
        "verdict": _verdict(all(wins), all(longer)),
    }


def data(numbers: dict[str, Any]) -> dict[str, str]:
    rows = _by(numbers["rows"], "architecture", "pictures")
    sizes = sorted({row["pictures"] for row in numbers["rows"]})
    few, many = sizes[0], sizes[-1]
    shots = middle_shots(numbers["rows"][0])

    def score(architecture: str, size: int, what: str) -> float:
        row = rows[architecture, size]
        return row["few_shot"][shots] if what == "few_shot" else row["held_out"]

    def order(size: int, what: str) -> str:
        names = sorted(("ViT", "hybrid", "ResNet"), key=lambda name: -score(name, size, what))
        return _join([f"{name} {_percent(score(name, size, what))}" for name in names])

    def lead(size: int, what: str) -> float:
        return score("ResNet", size, what) - score("ViT", size, what)

    first = lead(few, "few_shot") > 0
    crossed = lead(many, "few_shot") < 0
    gaps = [
        f"{'few-shot' if what == 'few_shot' else 'new pictures'} {100 * lead(few, what):+.1f} points with {few:,} "
        f"pictures, {100 * lead(many, what):+.1f} with {many:,}"
        for what in ("few_shot", "held_out")
    ]
    hybrid = score("hybrid", many, "few_shot") - score("ViT", many, "few_shot")
    return {
        "claim": "With little pre-training data ResNets are ahead of Vision Transformers, with much they are behind "
        "(section 4.3, Figures 3 and 4). Hybrids are a little ahead of ViTs at small cost (section 4.4, Figure 5).",
        "seen": f"{shots}-shot accuracy on digits after pre-training on {few:,} pictures: {order(few, 'few_shot')}; on "
        f"{many:,}: {order(many, 'few_shot')}. New pictures of the source, {many:,}: {order(many, 'held_out')}. "
        f"The lead of the ResNet over the ViT: {'; '.join(gaps)}. The ViT "
        + ("overtakes it." if crossed else "does not overtake it within this much data and training.")
        + f" The hybrid is {abs(100 * hybrid):.1f} points {'ahead of' if hybrid > 0 else 'behind'} the ViT.",
        "verdict": _verdict(first, crossed, hybrid > 0),
    }


def few_shot(numbers: dict[str, Any]) -> dict[str, str]:
    seen, correlations, rises = [], [], []
    shots = middle_shots(numbers["rows"][0])
    for name in dict.fromkeys(row["architecture"] for row in numbers["rows"]):
        rows = [row for row in numbers["rows"] if row["architecture"] == name]
        probe, tuned = [row["few_shot"][shots] for row in rows], [row["finetuned"] for row in rows]
        low, high = (rows[int(find(probe))]["step"] for find in (np.argmin, np.argmax))
        correlations.append(correlation(probe, tuned))
        rises.append(probe[-1] > probe[0])
        seen.append(
            f"{name} {_percent(probe[0])} before the first update, {_percent(probe[-1])} after {rows[-1]['step']} "
            f"(lowest at {low}, highest at {high}), correlation with the accuracy after "
            f"fine-tuning {correlations[-1]:.2f}"
        )
    return {
        "claim": "Longer pre-training goes on to pay, and few-shot accuracy of frozen features stands in for the "
        "accuracy after fine-tuning (sections 4.1 and 4.4).",
        "seen": f"{shots}-shot accuracy: {'; '.join(seen)}.",
        "verdict": _verdict(all(rises), min(correlations) > 0.7),
    }


def resolution(numbers: dict[str, Any]) -> dict[str, str]:
    rows = numbers["rows"]
    shots = middle_shots(rows[0])
    first = rows[0]
    # Gains that the choice of the test images may explain are none.
    error = (first["accuracy"] * (1 - first["accuracy"]) / numbers["test_digits"]) ** 0.5
    seen = [
        f"{row['image_size']} pixels {_percent(row['accuracy'])} (frozen, {shots}-shot: "
        f"{_percent(row['few_shot'][shots])}; {row['seconds'] / first['seconds']:.1f} times the seconds)"
        for row in rows
    ]
    return {
        "claim": "It is often beneficial to fine-tune at higher resolution than pre-training. The patches stay as "
        "large, the sequence gets longer, and position embeddings are interpolated in 2D (section 3.2).",
        "seen": f"Fine-tuned on {numbers['digits']} digits: {'; '.join(seen)}; differences of less than "
        f"{100 * error:.1f} points (the standard error) count as none. The scans have 8 x 8 pixels, so a "
        "larger image has more tokens but no more to see.",
        "verdict": _verdict(*(row["accuracy"] > first["accuracy"] + error for row in rows[1:])),
    }


def masked(numbers: dict[str, Any]) -> dict[str, str]:
    rows = _by(numbers["rows"], "start", "digits")
    seen, holds = [], []
    for size in sorted({row["digits"] for row in numbers["rows"]}):
        labels, patches, scratch = (rows[s, size]["accuracy"] for s in ("labels", "masked patches", "scratch"))
        holds += [patches > scratch, labels > patches]
        seen.append(
            f"with {size:,} digits {_percent(labels)} from labels, {_percent(patches)} from masked patches "
            f"({100 * (patches - scratch):+.1f} points against scratch, {100 * (patches - labels):+.1f} against "
            f"labels), "
            f"{_percent(scratch)} from scratch"
        )
    return {
        "claim": "Masked patch prediction is better than training from scratch and worse than supervised pre-training: "
        "for ViT-B/16 on ImageNet by +2 and -4 points (section 4.6).",
        "seen": f"After {numbers['pretraining_steps']} updates of pre-training and {numbers['steps']} of fine-tuning: "
        f"{'; '.join(seen)}. Of the colours of corrupted patches {_percent(numbers['colours']['accuracy'])} were "
        f"predicted right (always the commonest: {_percent(numbers['colours']['commonest'])}).",
        "verdict": _verdict(*holds),
    }


def correlation(x: list[float], y: list[float]) -> float:
    """Pearson's; 0 where one of the two does not vary."""
    return float(np.corrcoef(x, y)[0, 1]) if np.std(x) > 0 and np.std(y) > 0 else 0.0


FINDINGS = {"transfer": transfer, "data": data, "few_shot": few_shot, "resolution": resolution, "masked": masked}
