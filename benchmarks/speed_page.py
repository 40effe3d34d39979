"""The tables and pictures of docs/speed_rows.md, made from the times in docs/speed.json, which speed.py measures."""

import io
import os
import statistics
from pathlib import Path

BACKENDS = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}
# What is compared with keras_vit, by backend.
PEERS = {
    "torch": ("timm", "timm, tanh", "timm, compiled", "Transformers"),
    "jax": ("Flax",),
    "tensorflow": ("KerasHub",),
}
LIMIT = "limit"
LETTERS = "ABCDEFGH"  # of the machines
# The parts of a row of `start`: seconds of each.
STEPS = ("import", "build", "first call", "later call")
WIDTHS = {"ViT-Ti/16": 192, "ViT-S/16": 384, "ViT-B/16": 768, "ViT-L/16": 1024, "ViT-H/14": 1280}
BEGIN, END = "<!-- {}: begin -->\n", "<!-- {}: end -->\n"
PEERS_PICTURE, GROWTH_PICTURE = "images/speed_peers.svg", "images/speed_growth.svg"
TEXT = """
Measured on {machines}, with {packages}.

The speed of keras_vit as a share of each peer's: above 1, keras_vit is quicker. `limit` is the dense layers' matrix
products alone. Figures and dots are medians; lines go from the lowest to the highest round. Each row says on
which processor and day it was measured: {processors}.

{summary}

![Speed of keras_vit in those of its peers]({peers})

{starts}
<details markdown="1">
<summary>All contestants</summary>

{steps}

</details>

"""
STARTS = """
## Growth

The time of an image and the peak of memory, forwards in float32, each in a process of its own: ViT-B/16 with more
images at a time, with more tokens (images of 224, 512 and 1,024 pixels), and wider models (Ti, S, B, L, H). The process
itself, with its framework, is in the memory. Dashed are timm, Flax and KerasHub.

![Growth of time and memory with the batch, the tokens and the width]({growth})

Imports, building with random weights, the first call, the median of up to seven calls after it, and the peak of memory,
in fresh processes, which find their own framework alone; medians.

{table}
"""


def write_page(page: Path, results):
    """Puts the tables of all results between two marks of a Markdown file, and draws the pictures beside it."""
    write_between(page, text(results))
    for name, draw in ((PEERS_PICTURE, draw_peers), (GROWTH_PICTURE, draw_growth)):
        write(page.parent / name, draw(results))


def write_between(page: Path, content: str, name: str = "measured"):
    """Puts text between two marks of a Markdown file, of this name."""
    first, last = BEGIN.format(name), END.format(name)
    before, begin, rest = page.read_text(encoding="utf-8").partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end):
        raise SystemExit(
            f"{page} has no lines {first.strip()!r} and {last.strip()!r}, between which the tables belong."
        )
    write(page, before + first + content + last + after)


def write(path: Path, content: str):
    """The file is the old one until the new one is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(content, encoding="utf-8")
    os.replace(temporary, path)


# Tables


def text(results):
    starts = [line for result in results if is_start(result["row"]) for line in lines(result)]
    head = markdown(["row", "backend", "contestant", "imports, s", "building, s", "first call, s", "later, s", "MB"])
    return TEXT.format(
        machines="; ".join(machines_of(results)),
        processors="; ".join(processors(results)),
        packages=", ".join(sorted({f"{name} {number}" for r in results for name, number in r["versions"].items()})),
        summary="\n".join(summary(results)),
        peers=PEERS_PICTURE,
        starts=STARTS.format(table="\n".join([*head, *starts]), growth=GROWTH_PICTURE) if starts else "",
        steps="\n".join(
            [
                *markdown(["row", "backend", "contestant", "ms", "its time / keras_vit's", "lowest and highest"]),
                *(line for result in results if not is_start(result["row"]) for line in lines(result)),
            ]
        ),
    )


def markdown(names):
    """The head of a table."""
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def machines_of(results):
    return sorted({result["machine"] for result in results})


def processors(results):
    """The letter of each machine, and what PyTorch is there."""
    for letter, machine in zip(LETTERS, machines_of(results), strict=False):
        builds = sorted({r["torch"] for r in results if r["machine"] == machine and "torch" in r})
        yield f"{letter} is {machine}" + (f", with PyTorch {' or '.join(builds)}" if builds else "")


def measured_at(row, results):
    """The letters of the machines that a row was measured on, and the days."""
    machines = machines_of(results)
    found = {(LETTERS[machines.index(r["machine"])], r.get("date", "")) for r in results if r["row"] == row}
    return ", ".join(" ".join(one).strip() for one in sorted(found))


def summary(results):
    """The lines of a table with the speed of keras_vit in those of each peer: above 1 where keras_vit is quicker."""
    columns = [(backend, name) for backend, peers in PEERS.items() for name in (*peers, LIMIT)]
    yield from markdown(["row", "measured", *(f"{BACKENDS[backend]}: {name}" for backend, name in columns)])
    measured = {(r["row"], r["backend"]): r["contestants"] for r in results if not is_start(r["row"])}
    for row in dict.fromkeys(row for row, _ in measured):
        cells = [median_ratio(measured.get((row, backend), {}), name) for backend, name in columns]
        if any(cells):
            yield f"| {row} | {measured_at(row, results)} | {' | '.join(cells)} |"


def median_ratio(times, name):
    return f"{statistics.median(ratios(times, name)):.2f}" if name in times else ""


def ratios(times, name):
    """The time of a contestant in those of keras_vit, in each round."""
    return [its / ours for its, ours in zip(times[name], times["keras_vit"], strict=True)]


def is_start(row):
    return row.split()[4].startswith("start")


def lines(result):
    """A line of a table for each contestant. Ratios are taken within each round."""
    label = f"| {result['row']} | {result['backend']} |"
    for name, rounds in result["contestants"].items():
        if is_start(result["row"]):
            figures = [f"{statistics.median(one[key] for one in rounds):.2f}" for key in STEPS]
            figures.append(f"{statistics.median(one['peak_MB'] for one in rounds):.0f}")
        else:
            relative = ratios(result["contestants"], name)
            figures = [f"{1e3 * statistics.median(rounds):.1f}", f"{statistics.median(relative):.2f}"]
            figures.append(f"{min(relative):.2f} to {max(relative):.2f}")
        yield f"{label} {name} | {' | '.join(figures)} |"


# Pictures: SVG on white, so that they are the same on a page of any colour


INK, MUTED, GRID = "#1b1f27", "#57606a", "#e6e8ec"
COLOURS = {"torch": "#d1242f", "jax": "#1f6feb", "tensorflow": "#b26a00"}
POINTS = (("o", INK), ("s", "#1f6feb"), ("D", "#1a7f37"), ("^", "#b26a00"))  # of the peers of one backend
STYLE = {
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "legend.fontsize": 8,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "keras_vit",  # the same figures give the same file
}


def drawn(draw, width, height, columns, rows=1, **options):
    """The SVG of a figure with several axes side by side, or several columns of them."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, **options)
        draw(panels[0] if rows == 1 else panels.T)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
        return file.getvalue()


def draw_peers(results):
    """A dot and a line for each row, backend and peer: median, lowest and highest speed of keras_vit in those of it."""
    results = [result for result in results if not is_start(result["row"]) and " int8 " not in result["row"]]
    rows = list(dict.fromkeys(result["row"] for result in results))

    def draw(panels):
        for axes, (backend, peers) in zip(panels, PEERS.items(), strict=True):
            axes.set(title=BACKENDS[backend], xlabel="share of the peer's speed", ylim=(len(rows) - 0.5, -0.5))
            axes.set_yticks(range(len(rows)), [label_of(row) for row in rows])
            axes.axvline(1, color=INK, linewidth=1)
            for index, name in enumerate(peers):
                points = [
                    (rows.index(result["row"]), ratios(result["contestants"], name))
                    for result in results
                    if result["backend"] == backend and name in result["contestants"]
                ]
                places = [row + 0.25 * (index - (len(peers) - 1) / 2) for row, _ in points]
                marker, colour = POINTS[index]
                axes.hlines(places, [min(r) for _, r in points], [max(r) for _, r in points], color=colour)
                middles = [statistics.median(r) for _, r in points]
                axes.plot(middles, places, marker, markersize=4, color=colour, label=name)
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.5 / (0.26 * len(rows))), ncols=len(peers))

    return drawn(draw, 10, 0.26 * len(rows) + 1.2, len(PEERS), sharex=True, sharey=True)


def label_of(row):
    """`ViT-B/16 224 8 float32 train` as `ViT-B/16 224, batch 8, training`."""
    model, size, batch, dtype, job = row.split()
    notes = [dtype] * (dtype != "float32") + ["training"] * (job == "train")
    return ", ".join([f"{model} {size}", f"batch {batch}", *notes])


def draw_growth(results):
    """Seconds per image and peak memory over batch, tokens and width: a line for each backend and its first peer."""
    axes_of = {"batch": {}, "tokens of an image": {}, "width": {}}  # results by the place on the axis
    for result in results:
        model, pixels, batch, dtype, job = result["row"].split()
        if (dtype, job) != ("float32", "start"):
            continue
        if model == "ViT-B/16" and pixels == "224":
            axes_of["batch"].setdefault(int(batch), []).append(result)
        if model == "ViT-B/16" and batch == "1":
            axes_of["tokens of an image"].setdefault((int(pixels) // 16) ** 2 + 1, []).append(result)
        if (pixels, batch) == ("224", "1"):
            axes_of["width"].setdefault(WIDTHS[model], []).append(result)

    def draw(panels):
        for axes, (title, points) in zip(panels, axes_of.items(), strict=True):
            for kind, label, top in (("later call", "s per image", True), ("peak_MB", "MB", False)):
                panel = axes[0] if top else axes[1]
                panel.set(title=title if top else "", xlabel="" if top else title, ylabel=label)
                if title != "width":
                    panel.set_xscale("log", base=2)
                if top and title != "batch":
                    panel.set_yscale("log")
                for backend in BACKENDS:
                    for name, line in (("keras_vit", "-"), (PEERS[backend][0], "--")):
                        found = {
                            x: statistics.median(one[kind] for one in result["contestants"][name])
                            / (int(result["row"].split()[2]) if top else 1)
                            for x, at in sorted(points.items())
                            for result in at
                            if result["backend"] == backend and name in result["contestants"]
                        }
                        panel.plot(
                            [*found],
                            [*found.values()],
                            line,
                            color=COLOURS[backend],
                            marker="o",
                            markersize=3,
                            label=BACKENDS[backend] if name == "keras_vit" else name,
                        )
                panel.set_xticks(sorted(points), [str(x) for x in sorted(points)])
                panel.minorticks_off()
                if panel.get_yscale() == "linear":
                    panel.set_ylim(bottom=0)
        panels[0][0].legend()

    return drawn(draw, 10, 5.5, len(axes_of), rows=2)
