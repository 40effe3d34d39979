"""Writes random configs and their answers, on PyTorch: `python -m tests.properties.write_answers 2 x.npz`.

There are as many of every kind. Answers are computed in float64; beside them stands how far float32 is off by its
rounding. All backends compare themselves with the file (`test_backends.py`; `KERAS_VIT_ANSWERS=x.npz` names another).
"""

import json
import sys

import numpy as np
from hypothesis import given

from tests.compute import deviations
from tests.properties.random_models import BASES, answers, configs, examples, made


def drawn(kind, count):
    """The last of more configs than are wanted: the first that are drawn are the simplest."""
    found = []

    @given(configs((kind,)))
    @examples(10 * count)
    def draw(config):
        if config not in found:
            found.append(config)

    draw()
    return found[-count:]


def main(count, path):
    cases, arrays = {}, {}
    for kind in BASES:
        drawn_configs = drawn(kind, count)
        cases[kind] = [config.to_dict() for config in drawn_configs]
        for number, config in enumerate(drawn_configs):
            rounded = answers(made(config))
            for name, value in answers(made(config, "float64")).items():
                arrays[f"{kind}/{number}/{name}"] = value
                arrays[f"{kind}/{number}/{name}/rounding"] = deviations(rounded[name], value)
    np.savez_compressed(path, cases=json.dumps(cases), **arrays)
    print(f"{sum(map(len, cases.values()))} configs in {path}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
