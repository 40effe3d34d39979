"""Do the tests notice when the code is wrong? Plants one small fault at a time and runs the tests that reach it.

A fault ("mutant") is one changed operator, constant, condition or argument of a function in the package. For each, the
tests that call the function around it (or, for faults outside functions, that run anything in the file) run in a copy
of the repository, quickest first, until one fails or the time for a mutant is up. A mutant that no test notices
survives. Some survivors are not faults at all: they compute the same.

    KERAS_BACKEND=torch python benchmarks/mutation.py --count 300 --output mutants.json

The drawing depends on the seed and the source alone. Needs Linux (`fork`).
"""

import argparse
import ast
import collections
import contextlib
import copy
import dataclasses
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ROOMS = ("layers", "models", "checkpoints", "training")
MOST_TESTS = 150  # for one mutant; a fault that so many tests do not notice will not be noticed by more of them
COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault: characters `start` to `stop` of a file become `text`."""

    file: str
    line: int
    function: int | None  # its first line, decorators aside
    start: int
    stop: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """The faulty source."""
        return source[: self.start] + self.text.encode() + source[self.stop :]


def mutants_of(path: Path, repository: Path) -> Iterator[Mutant]:
    """Every fault that can be planted in a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    name = path.relative_to(repository).as_posix()

    def visit(node: ast.AST, function: int | None) -> Iterator[Mutant]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.lineno
        for changed in _changes(node):
            start = starts[node.lineno - 1] + node.col_offset
            stop = starts[node.end_lineno - 1] + node.end_col_offset
            yield Mutant(name, node.lineno, function, start, stop, f"({ast.unparse(changed)})")
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
                # Texts are for people; a raise that says something else is not a fault of the numbers.
                if isinstance(child, ast.AST) and not docstring and not isinstance(child, (ast.JoinedStr, ast.Raise)):
                    yield from visit(child, function)

    yield from visit(ast.parse(source), None)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """The expressions that may stand in the place of one."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        changed = copy.deepcopy(node)
        changed.ops = [COMPARISONS[type(node.ops[0])]()]
        yield changed
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        if not any(isinstance(side, (ast.JoinedStr, ast.List)) for side in (node.left, node.right)):
            changed = copy.deepcopy(node)
            changed.op = ARITHMETIC[type(node.op)]()
            yield changed
    elif isinstance(node, ast.BoolOp):
        changed = copy.deepcopy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        changed = copy.deepcopy(node)
        changed.body, changed.orelse = node.orelse, node.body
        yield changed
    elif isinstance(node, ast.Constant) and not isinstance(node.value, (str, bytes, complex)):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, (int, float)):
            yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call) and node.keywords and node.keywords[-1].arg is not None:
        changed = copy.deepcopy(node)
        changed.keywords = node.keywords[:-1]  # an argument that is forgotten
        yield changed


class Reach:
    """A pytest plugin: which functions of the package each test runs, and how long it takes."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.functions: dict[str, set[tuple[str, int]]] = {}
        self.seconds: dict[str, float] = collections.defaultdict(float)

    def pytest_runtest_protocol(self, item, nextitem):
        reached = self.functions.setdefault(item.nodeid, set())
        skip = len(self.package) - len("keras_vit/")

        def note(frame, event, argument):
            if event == "call" and frame.f_code.co_filename.startswith(self.package):
                reached.add((frame.f_code.co_filename[skip:], _def_line(frame.f_code)))

        threading.setprofile(note)
        sys.setprofile(note)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration
        if report.when == "call" and not report.passed:
            self.functions[report.nodeid] = set()  # a test that fails or is skipped tells nothing of a fault


def _def_line(code) -> int:
    """The line of `def`: a code object begins at its first decorator."""
    lines = _SOURCES.setdefault(code.co_filename, Path(code.co_filename).read_text().splitlines())
    number = code.co_firstlineno
    while number <= len(lines) and lines[number - 1].lstrip().startswith("@"):
        number += 1
        while number <= len(lines) and not lines[number - 1].lstrip().startswith(("def ", "async def ", "@", "class ")):
            number += 1
    return number


_SOURCES: dict[str, list[str]] = {}


def make_copy(folder: Path) -> Path:
    """A copy of the repository in which a fault can be planted; large data is linked."""
    folder.mkdir()
    for name in os.listdir(REPOSITORY):
        source = REPOSITORY / name
        if name in ("keras_vit", "tests", "benchmarks", "docs", "examples", "weights"):
            large = shutil.ignore_patterns("golden", "__pycache__", "runs", "cache")
            shutil.copytree(source, folder / name, ignore=large, symlinks=True)
        elif source.is_file():
            shutil.copy(source, folder / name)
    os.symlink(REPOSITORY / "tests" / "golden", folder / "tests" / "golden")
    return folder


def measure_reach(copy_of_repository: Path, tests: list[str]) -> tuple[dict[str, set], dict[str, float]]:
    """What each test reaches, from one run of all of them in a process of its own."""
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def job() -> None:
        plugin = Reach(f"{copy_of_repository}/keras_vit/")
        _run_tests(copy_of_repository, tests, [plugin])
        sender.send((plugin.functions, dict(plugin.seconds)))

    process = multiprocessing.get_context("fork").Process(target=job)
    process.start()
    result = receiver.recv()
    process.join()
    return result


def _run_tests(folder: Path, arguments: list[str], plugins: list | None = None) -> int:
    import pytest

    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)  # for tests that start processes
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options = options[1:] if plugins else options
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        return int(pytest.main([*options, *arguments], plugins=plugins or []))


def survives(mutant: Mutant, folder: Path, tests: list[str], seconds: float) -> str:
    """`"killed"`, `"survived"`, `"time is up"` or `"not reached"`."""
    if not tests:
        return "not reached"
    path = folder / mutant.file
    source = path.read_bytes()
    path.write_bytes(mutant.apply(source))
    try:
        child = os.fork()
        if not child:
            os.setsid()
            code = 70
            try:
                code = _run_tests(folder, tests)
            finally:
                os._exit(code)
        end = time.monotonic() + seconds
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return "survived" if status == 0 else "killed"
            if time.monotonic() > end:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "time is up"
            time.sleep(0.05)
    finally:
        path.write_bytes(source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=90, help="for the tests of one mutant (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rooms", nargs="+", default=ROOMS)
    parser.add_argument("--output", type=Path, help="a JSON file with every mutant")
    parser.add_argument("tests", nargs="*", default=["tests"], help="what to run (default: all tests)")
    options = parser.parse_args()

    files = [path for room in options.rooms for path in sorted((REPOSITORY / "keras_vit" / room).rglob("*.py"))]
    mutants = [mutant for path in files for mutant in mutants_of(path, REPOSITORY)]
    chosen = random.Random(options.seed).sample(mutants, min(options.count, len(mutants)))
    print(f"{len(mutants)} possible mutants in {len(files)} files, {len(chosen)} drawn", flush=True)

    import keras  # noqa: F401  once, for all forks
    import matplotlib.pyplot  # noqa: F401
    import pytest  # noqa: F401

    with tempfile.TemporaryDirectory() as temporary:
        copies = [make_copy(Path(temporary) / str(number)) for number in range(options.processes)]
        begun = time.monotonic()
        functions, seconds = measure_reach(copies[0], options.tests)
        print(f"{len(functions)} tests, {time.monotonic() - begun:.0f} s", flush=True)
        if not any(functions.values()):
            sys.exit("No test passes: nothing can be told.")

        def tests_of(mutant: Mutant) -> list[str]:
            def reaches(reached: set[tuple[str, int]]) -> bool:
                if mutant.function is None:
                    return any(file == mutant.file for file, _ in reached)
                return (mutant.file, mutant.function) in reached

            # First those of the same room: they are about what they reach, others only pass through.
            room = f"tests/{mutant.file.split('/')[1]}/"
            tests = [test for test, reached in functions.items() if reaches(reached)]
            return sorted(tests, key=lambda test: (not test.startswith(room), seconds[test]))[:MOST_TESTS]

        queue = collections.deque(enumerate(chosen))
        verdicts: dict[int, str] = {}

        def work(folder: Path) -> None:
            while True:
                try:
                    number, mutant = queue.popleft()
                except IndexError:
                    return
                verdicts[number] = survives(mutant, folder, tests_of(mutant), options.seconds)
                print(f"{len(verdicts)}/{len(chosen)} {mutant.file}:{mutant.line} {verdicts[number]}", flush=True)

        threads = [threading.Thread(target=work, args=(folder,)) for folder in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    rows = [{**dataclasses.asdict(mutant), "verdict": verdicts[number]} for number, mutant in enumerate(chosen)]
    for row in rows:
        source = (REPOSITORY / row["file"]).read_bytes()
        row["was"] = source[row["start"] : row["stop"]].decode()
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1))
    for room in (*options.rooms, ""):
        inside = [row for row in rows if row["file"].startswith(f"keras_vit/{room}")]
        killed = sum(row["verdict"] in ("killed", "time is up") for row in inside)
        print(f"{room or 'all':12} {len(inside):4} mutants, {killed:4} noticed, {killed / max(len(inside), 1):.1%}")
    for row in rows:
        if row["verdict"] in ("survived", "not reached"):
            print(f"{row['file']}:{row['line']} {row['verdict']}: {row['was']} -> {row['text']}")


if __name__ == "__main__":
    main()
