"""Writes docs/fidelity.md: how far this package is from the original code, per reference case and backend.

    python docs/make_fidelity.py

Runs the fidelity tests once per backend and puts the errors that they recorded into a table. The tests decide what
is good enough (tests/tolerances.py); this script only reports.
"""

import ast
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).parents[1]
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
# Tests whose names do not say which case they are about.
LABELS = {
    "test_gradients[grad_token_rep-False]": "`grad_token_rep`",
    "test_gradients[grad_token_rep-True]": "`grad_token_rep`, blocks recomputed",
    "test_gradients[grad_hybrid-False]": "`grad_hybrid`",
    "test_forward[bit_mini_tf-None]": "`bit_mini_tf`, any size",
    "test_forward[bit_mini_tf-64]": "`bit_mini_tf`",
    "test_forward[bit_mini_bv-None]": "`bit_mini_bv`, any size",
    "test_forward[bit_mini_bv-64]": "`bit_mini_bv`",
}
HEAD = """# Fidelity

How far this package is from the original code, in every reference case and on every backend.

Measured by `python docs/make_fidelity.py`; the versions are those of `constraints.txt`, on a CPU, in float32.

Every case is a small checkpoint with random weights in an official layout, and what the original code computes from
it (`tests/golden/README.md`). Each loads with every array accounted for and is written back bit for bit
(`tests/checkpoints/test_fidelity.py`). The references carry rounding errors of their own: an independent float64
evaluation differs from them by up to 5e-6 in the logits and 2e-5 in the encoder's output.

"""
FORWARD = """## Forward

Largest absolute error. `encoded` is the encoder's output after its last layer normalisation, for all tokens.
Allowed are 2e-5 for logits and 1e-4 for `encoded`. `mini_*` are the architectures, `alt_*` the dialects of names and
types, `probe_*` are made to show a wrong epsilon; `bv_*` are big_vision's layouts and `bit_*` BiT's.

"""
FAMILIES = """## Families of other people

The same for models of timm, transformers and Facebook: mini models with random weights, the JSON files beside them, and
what timm 1.0.31 and transformers 5.23.0 compute from them. `tokens` is the largest error of all tokens, before the
first block, after the first and the last, and normalised; `answer` that of what the model answers with. Both are in
standard deviations of the reference where these are more than 1. Allowed are 1e-4 for tokens and 2e-5 for answers. `at
another size` is a picture of another size, whose position embeddings were resized as the publisher does.

"""
WORDS_AND_MAPS = """## Texts, masks and depth

In the same unit: CLIP, SigLIP 1 and 2 and LiT with their texts (`txt_*`, whose ids are equal), EoMT and a linear head
for masks, Depth Anything V2 and a linear head for depth (`dense_*`), beside big_vision, transformers 5.23.0, open_clip
and Facebook's DINOv2; depth of DINOv2 in metres, up to 7. Classes of pixels and segments are compared one by one in
`tests/segmentation`: those of EoMT are equal, DINOv2's except for pixels where two classes are level within 1e-3.

"""
PUBLISHED = """## Published weights

The cases above have random weights. `python benchmarks/verify.py NAME...` (or `all`) compares published weights with
the answers that were published with them, on a machine with network: it fetches both from the Hugging Face Hub, prints
rows (JSON with `--json`), and exits 1 on a difference. `benchmarks/published_answers.json` has what it knows, each with
its source: the answers that transformers' own tests expect for one picture of COCO (ViT, DeiT, DINOv2 with and
without registers, DINOv3, DINO, I-JEPA; tolerance 1e-4, DINO's 1e-3), and the tensors in timm's `test_vit*`
repositories (tolerance 1e-4 and 1e-3 of the value). Its code is tested against a local server with small models.
**None of the published answers was compared here**: the machine that these pages were made on has no network.
`python benchmarks/verify.py NAME... --ledger FILE` also compares with the publishers' own code: [ledger](ledger.md).

"""
_TOKENS = ("tokens_in", "block0", "block1", "last_block", "encoded")
_ANSWERS = ("logits", "projection", "pooled")
BACKWARD = """## Backward

Largest relative error of a gradient, over all arrays: the Euclidean norm of the difference, divided by that of the
reference. Allowed are 1e-4. The gradients of key biases, which are zero except for rounding, are divided by
those of the query biases.

"""


SECOND = """## Second derivatives

Relative error of the product of a Hessian with a vector (all trainable weights, the sum of squared outputs) in float64,
beside finite differences of the gradient; allowed are 1e-6. `fast` is what runs on CPUs, `plain` what runs on other
devices (on JAX its own operations, which are not tried here). On PyTorch, fused attention has no second derivative:
these run within `torch.nn.attention.sdpa_kernel`, with `SDPBackend.MATH`.

"""
# What is measured: the tests, and words in the names of those that are taken.
CASES = ("forward or gradients", "tests/checkpoints")
HESSIANS = ("hessian", "tests/models/test_second_derivatives.py")
OTHERS = (
    "numbers or logits",
    *("tests/text/test_image_text.py", "tests/depth/test_files.py"),
    *("tests/segmentation/test_eomt.py", "tests/segmentation/test_linear.py"),
)


def measure(backend: str, words: str, *tests: str) -> dict[str, dict[str, float]]:
    """The errors that tests recorded, by the test's name and the result."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *tests, "-q", "-k", words, f"--junitxml={report}"]
        command += ["-o", "junit_family=xunit1"]  # the one that has room for what tests record
        # Users' programs are optimised, which the suite leaves out for its own speed where no flags are set.
        environment = {"XLA_FLAGS": "", **os.environ, "KERAS_BACKEND": backend}
        done = subprocess.run(command, cwd=ROOT, env=environment)
        if done.returncode:
            sys.exit(f"The fidelity tests fail on {backend}; nothing was written.")
        found = {}
        for case in xml.parse(report).iter("testcase"):
            for prop in case.iter("property"):
                if prop.get("name") == "errors":
                    found[case.get("name")] = ast.literal_eval(prop.get("value"))
        return found


def table(measured: dict[str, dict[str, dict[str, float]]], kind: str) -> str:
    """A Markdown table of the tests whose name begins with `kind`."""
    names = [name for name in measured["jax"] if name.startswith(kind) and "[fam_" not in name]
    results = ("encoded", "logits") if kind == "test_forward" else (None,)
    lines = [["case", *(f"{label} {result or ''}".strip() for label in BACKENDS.values() for result in results)]]
    lines.append(["---"] * len(lines[0]))
    for name in names:
        row = [LABELS.get(name) or f"`{name.partition('[')[2].rstrip(']')}`"]
        for backend in BACKENDS:
            errors = measured[backend][name]
            for result in results:
                error = max(errors.values()) if result is None else errors.get(result)
                row.append("-" if error is None else f"{error:.1e}")
        lines.append(row)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def families_table(measured: dict[str, dict[str, dict[str, float]]]) -> str:
    """A Markdown table of the tests that read the files of timm and transformers."""
    names = [name for name in measured["jax"] if name.startswith("test_forward") and "[fam_" in name]
    columns = ["case", *(f"{label} {result}" for label in BACKENDS.values() for result in ("tokens", "answer"))]
    lines = [columns, ["---"] * len(columns)]
    for name in sorted(names, key=lambda name: (name.partition("[")[2], name)):
        case = name.partition("[")[2].rstrip("]").removeprefix("fam_")
        row = [f"`{case}`" + (", at another size" if "another_size" in name else "")]
        for backend in BACKENDS:
            errors = measured[backend][name]
            for results in (_TOKENS, _ANSWERS):
                row.append(f"{max(errors[result] for result in results if result in errors):.1e}")
        lines.append(row)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def words_and_maps() -> str:
    """The section about texts, masks and depth, measured."""
    measured = {}
    for backend in BACKENDS:
        by_test = measure(backend, *OTHERS).values()
        measured[backend] = {result: error for errors in by_test for result, error in errors.items()}
    lines = [["case", "result", *BACKENDS.values()], ["---"] * (2 + len(BACKENDS))]
    for name in sorted(measured["jax"]):
        case, _, result = name.partition(": ")
        lines.append([f"`{case}`", result, *(f"{measured[backend][name]:.1e}" for backend in BACKENDS)])
    return WORDS_AND_MAPS + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def second_derivatives() -> str:
    """The section about Hessians, measured."""
    measured = {backend: measure(backend, *HESSIANS) for backend in BACKENDS}
    lines = [["model", *(f"{label} {paths}" for label in BACKENDS.values() for paths in ("fast", "plain"))]]
    lines.append(["---"] * len(lines[0]))
    for name in dict.fromkeys(case.partition("[")[2].rpartition("-")[0] for case in measured["jax"]):
        cases = [f"test_hessian_times_vector[{name}-{paths}]" for paths in ("fast", "plain")]
        errors = [max(measured[backend].get(case, {"": None}).values()) for backend in BACKENDS for case in cases]
        lines.append([name, *("-" if error is None else f"{error:.1e}" for error in errors)])
    return SECOND + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Measures and writes."""
    measured = {backend: measure(backend, *CASES) for backend in BACKENDS}
    parts = [HEAD, FORWARD, table(measured, "test_forward"), "\n", BACKWARD, table(measured, "test_gradients")]
    parts += ["\n", second_derivatives(), "\n", FAMILIES, families_table(measured)]
    parts += ["\n", words_and_maps()]
    parts += ["\n", PUBLISHED.rstrip() + "\n"]
    path = ROOT / "docs" / "fidelity.md"
    temporary = path.with_suffix(".part")
    temporary.write_text("".join(parts))
    os.replace(temporary, path)
    print(f"Wrote {path}")


if __name__ == "__main__":
    main()
