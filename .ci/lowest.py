"""Prints the lowest versions that pyproject.toml allows of what the package imports, as constraints for pip.

    python .ci/lowest.py torch demo

The arguments are the extras that count beside the package's own dependencies; test tools stay as they are.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(extras: list[str]) -> list[str]:
    """The requirements of the package and of some extras, those that name other extras of it resolved."""
    result = list(PROJECT["dependencies"])
    for extra in extras:
        for line in PROJECT["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{PROJECT['name']}\[(.+)\]", line)
            result += requirements(own[1].split(",")) if own else [line]
    return list(dict.fromkeys(result))


def lowest(extras: list[str]) -> list[str]:
    """Each requirement as `name==version`, its lower bound."""
    return [re.sub(r"^([\w.-]+)(?:\[.*\])?>=([\w.]+).*$", r"\1==\2", line) for line in requirements(extras)]


if __name__ == "__main__":
    print("\n".join(lowest(sys.argv[1:])))
