"""What a newcomer does with the wheel, outside a checkout: three commands, then each block of the README alone.

    python .ci/outside.py WHEEL BACKEND README FOLDER

Makes an environment in FOLDER with the wheel and one backend, times the commands, adds what the README's blocks ask
for, and runs each block in a process and a folder of its own. Only the standard library is needed.
"""

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
    return done.stdout


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
    run(f"install [{backend},demo,export]", *install, f"{Path(wheel).absolute()}[{backend},demo,export]")
    found = re.findall(r"(^<!-- not run: .+? -->\n)?^```python\n(.*?)^```", Path(readme).read_text(), re.M | re.S)
    blocks = [code for mark, code in found if not mark]
    for number, block in enumerate(blocks, 1):
        alone = place / f"block {number}"
        alone.mkdir()
        run(f"block {number} of {len(blocks)} of the README", python, "-c", block, cwd=alone)


if __name__ == "__main__":
    main(*sys.argv[1:])
