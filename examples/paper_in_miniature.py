"""The paper in miniature: five claims of arXiv 2010.11929 on a CPU, in minutes, each with numbers and a figure.

The source of all pre-training is synthetic (printed characters of the DejaVu fonts, warped and tinted), the target is
real (the 1,797 handwritten digits that come with scikit-learn). What comes out is reported as it is, also where it
disagrees with the paper.

    KERAS_BACKEND=torch python examples/paper_in_miniature.py                       # everything
    KERAS_BACKEND=torch python examples/paper_in_miniature.py --only transfer masked
    python examples/paper_in_miniature.py --quick                                  # does it run? Numbers mean nothing

| --only | claim |
|---|---|
| `transfer` | transfer beats training from scratch |
| `data` | ResNets win with little data, ViTs with much (Figures 3 and 4) |
| `few_shot` | pre-training longer pays, and few-shot accuracy tells the accuracy after fine-tuning |
| `resolution` | fine-tuning at a higher resolution than pre-training |
| `masked` | labels, then masked patch prediction, then scratch (section 4.6) |

Writes `miniature.json`, `miniature.md` and `miniature_*.png`. Any backend works; torch is the fastest to train on CPUs.
Needs `pip install "keras-vit-zoo[demo]" scipy`, and the repository, whose
`weights/train_glyphs.py` draws the characters.
"""

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import keras_vit  # before Keras: it chooses the installed backend
import keras
from miniature.experiments import EXPERIMENTS
from miniature.figures import DRAWN_BY, draw_figure
from miniature.findings import FINDINGS
from miniature.workshop import QUICK, Settings, Workshop

from keras_vit._files import write_text


def run(output: str | os.PathLike[str], only: list[str] | None, quick: bool, seed: int) -> dict[str, Any]:
    """Runs the experiments and writes their files; returns what `miniature.json` holds."""
    begun = time.perf_counter()
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)

    def say(line: str) -> None:
        print(f"[{time.perf_counter() - begun:5.0f} s] {line}", flush=True)

    settings = QUICK if quick else Settings()
    shop = Workshop(settings, seed, say)
    result: dict[str, Any] = {"keras_vit": keras_vit.__version__, "backend": keras.backend.backend(), "seed": seed}
    result |= {
        "settings": dataclasses.asdict(settings),
        "quick": quick,
        "seconds": 0.0,
        "cpu_seconds": 0.0,
        "experiments": {},
    }
    for name in [name for name in EXPERIMENTS if not only or name in only]:
        started = time.perf_counter()
        numbers = EXPERIMENTS[name](shop)
        finding = FINDINGS[name](numbers)
        figure = output / f"miniature_{name}.png"
        draw_figure(name, numbers, finding, figure)
        seconds = time.perf_counter() - started
        result["experiments"][name] = {
            **{"title": DRAWN_BY[name][2], **finding, "seconds": seconds, "figure": figure.name, "numbers": numbers}
        }
        say(f"{name}: {finding['verdict']}. {finding['seen']}")
        result |= {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time()}
        write_text(output / "miniature.json", json.dumps(result, indent=2) + "\n")
        write_text(output / "miniature.md", report(result))
    say(f"Figures and numbers are in {output}")
    return result


def report(result: dict[str, Any]) -> str:
    """Returns the findings as a page of Markdown."""
    lines = ["# The paper in miniature", ""]
    if result["quick"]:
        lines += ["**With `--quick` the numbers mean nothing.**", ""]
    about = f"keras_vit {result['keras_vit']}, {result['backend']}, seed {result['seed']}"
    lines += [
        f"{about}, {result['seconds']:.0f} seconds ({result['cpu_seconds']:.0f} of the processor).",
        "",
        "| experiment | the paper | seconds |",
        "|---|---|---:|",
    ]
    rows = result["experiments"].values()
    lines += [f"| {row['title']} | {row['verdict']} | {row['seconds']:.0f} |" for row in rows]
    for row in rows:
        lines += ["", f"## {row['title']}", "", f"![{row['title']}]({row['figure']})", ""]
        lines += [f"**The paper.** {row['claim']}", "", f"**Here: {row['verdict']}.** {row['seen']}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="examples-output", metavar="DIR", help="folder for the files (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=list(EXPERIMENTS), metavar="NAME", help=" ".join(EXPERIMENTS))
    parser.add_argument("--quick", action="store_true", help="tiny: shows that it runs")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    run(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
