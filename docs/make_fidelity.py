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

This page shows how exactly the package computes the outputs of the publishers' own (original) code, on every backend.
Each number is a difference between the two, so smaller is better.

A case is a small checkpoint with random weights, and the outputs that the original code computes from it.
`tests/golden/README.md` describes all cases. Tests also write each checkpoint back bit for bit. The outputs of the
original code have rounding errors too. In float64, the logits differ from them by up to 5e-6, and the encoder's output
by up to 2e-5. `python docs/make_fidelity.py` makes this page, on a CPU in float32, with the versions of
`constraints.txt`.

"""
FORWARD = """## Forward

The table has the largest absolute error of the forward pass. `encoded` is the encoder's output after its last layer
normalisation, for all tokens. Tests allow at most 2e-5 for logits and 1e-4 for `encoded`. A `-` means that the model
does not have this output. The beginning of a case's name says where its file comes from:

- `mini_`: the architectures of Google's first ViT code (vit_jax). `alt_`: other array names and dtypes of its files.
- `probe_`: models with weights for which a wrong epsilon would change the outputs.
- `bv_`: files of big_vision. `bit_`: files of BiT (a ResNet); `any size` is a model that takes images of any size.

"""
FAMILIES = """## Families of timm, Transformers and Facebook

The original code is timm 1.0.31 and transformers 5.23.0. `tokens` is the largest error of all tokens: before the first
block, after the first and the last block, and after normalisation. `answer` is the largest error of the output. Errors
are divided by the standard deviation of the original values if it is above 1. Tests allow at most 1e-4 for tokens and
2e-5 for answers. Rows `at another size` have a picture of another size, with resized position embeddings. Files of
`hf_` cases are from transformers, files of `timm_` and `pth_` cases from timm.

"""
WORDS_AND_MAPS = """## Texts, masks and depth

Errors are computed as in the last table. Rows `txt_` are models of images and texts (CLIP, SigLIP, LiT); the ids of
their text tokens are also equal. Rows `dense_` are models for [segmentation and depth](dense.md). The original code is
big_vision, transformers 5.23.0, open_clip and Facebook's DINOv2, whose depths are in metres, up to 7. The predicted
class of each pixel is also equal, except for pixels of DINOv2 with two classes that differ by less than 1e-3.

"""
PUBLISHED = """## Published weights

The cases above have random weights. **Published weights were not compared**, because the development machine has no
network. On a machine with network, `python benchmarks/verify.py NAME...` (or `all`) compares them with the outputs in
`benchmarks/published_answers.json`, which come from transformers' own tests and timm's `test_vit*` repositories. With
`--ledger FILE`, it also compares with the publishers' own code, and adds the result to the [ledger](ledger.md).

"""
_TOKENS = ("tokens_in", "block0", "block1", "last_block", "encoded")
_ANSWERS = ("logits", "projection", "pooled")
BACKWARD = """## Backward

The table has the largest relative error of the gradients of all weight arrays. It is the norm of the difference,
divided by the norm of the original gradient. Tests allow at most 1e-4. The gradients of key biases are zero except for
rounding. Their difference is therefore divided by the norm of the query biases' gradients.

"""


SECOND = """## Second derivatives

The table has the relative error of a Hessian-vector product in float64, compared with finite differences of the
gradient. Tests allow at most 1e-6. `fast` uses the package's operations for CPUs, `plain` the operations for other
devices. On PyTorch, `plain` runs with `SDPBackend.MATH`, because fused attention has no second derivative. The model
`rotary` has rotary position embeddings, and `MAP head` has attention pooling.

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
        command = [sys.executable, "-m", "pytest", *tests, "-q", "-m", "", "-k", words, f"--junitxml={report}"]
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
