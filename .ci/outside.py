"""What a newcomer does with the wheel, outside a checkout: three commands, the blocks of the README, two pages.

    python .ci/outside.py WHEEL BACKEND README FOLDER

Makes an environment in FOLDER with the wheel and one backend, times the commands, and runs each block in a process of
its own, with no variable set: those of the README in one folder, in order, each page in another. The blocks that
export come last: their extra brings TensorFlow, which Keras takes unless KERAS_BACKEND is set. A warning is a failure.
Only the standard library is needed.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

FORMATS = {"torch": "digits.pt2", "jax": "digits.stablehlo", "tensorflow": "digits_model"}
# The tutorial's second step: scikit-learn's scans as a folder of pictures.
DIGITS = """
from pathlib import Path
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
scans = load_digits()
for number, (scan, digit) in enumerate(zip(scans.images, scans.target)):
    folder = Path("digits", "test" if number % 4 == 0 else "train", str(digit))
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.uint8(scan * 255 / 16)).resize((48, 48)).save(folder / f"{number}.png")
"""


def run(name: str, *command: str, **options) -> str:
    """Runs a command, says how long it took, and ends the script if it fails."""
    start = time.monotonic()
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}\n{name} failed: {' '.join(command)[:500]}")
    if re.search(r"\b[A-Z]\w*Warning: ", done.stdout):
        sys.exit(f"{done.stdout[-4000:]}\n{name} warns")
    return done.stdout


def blocks(page: Path) -> list[str]:
    """Returns the blocks of Python on a page that are to be run."""
    found = re.findall(r"(^<!-- not run: .+? -->\n)?^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    return [code for mark, code in found if not mark]


def main(wheel: str, backend: str, readme: str, folder: str) -> None:
    """All of it."""
    environment, place = Path(folder, "environment"), Path(folder, "empty")
    place.mkdir(parents=True)
    run("environment", sys.executable, "-m", "venv", str(environment))
    python, program = str(environment / "bin" / "python"), str(environment / "bin" / "keras-vit")
    install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(f"install [{backend},demo]", *install, f"{Path(wheel).absolute()}[{backend},demo]")
    said = run("keras-vit predict", program, "predict", cwd=place)
    if not re.search(r"\bR\b", said):
        sys.exit(f"keras-vit predict does not read an R:\n{said}")
    run("a folder of digits", python, "-c", DIGITS, cwd=place)
    training = "--steps 60 --batch-size 32 --image-size 24 --crop resize --no-flip --output run"
    print(run("keras-vit finetune", program, "finetune", "glyphs", "digits", *training.split(), cwd=place)[-400:])
    options = ["--format", "saved_model"] if backend == "tensorflow" else []
    exported = ("export", "run/model.keras", FORMATS[backend], *options)
    print(run("keras-vit export", program, *exported, cwd=place)[-400:])
    docs = Path(readme).parent / "docs"
    codes = {f"README, block {number}": code for number, code in enumerate(blocks(Path(readme)), 1)}
    codes["tutorial"] = "\n".join(blocks(docs / "tutorial.md"))
    first, *more, last = blocks(docs / "keras_in_twenty_lines.md")
    more = [code for code in more if backend == "tensorflow" or "import tensorflow" not in code]
    codes["Keras in twenty lines"], codes["its export"] = first + "".join(more), first + last
    exports = [name for name, code in codes.items() if ".tflite" in code]
    for name in [name for name in codes if name not in exports]:
        if name != "tutorial" or backend == "torch":  # it writes a file of PyTorch
            run_block(name, codes[name], python, place, None)
    run(f"install [{backend},demo,export]", *install, f"{Path(wheel).absolute()}[{backend},demo,export]")
    for name in exports:
        run_block(name, codes[name], python, place, {**os.environ, "KERAS_BACKEND": backend})


def run_block(name: str, code: str, python: str, place: Path, variables: dict[str, str] | None) -> None:
    """Runs a block in a process of its own, and in the folder of its page."""
    alone = place / name.partition(",")[0]
    alone.mkdir(exist_ok=True)
    run(name, python, "-c", code, cwd=alone, env=variables)


if __name__ == "__main__":
    main(*sys.argv[1:])
