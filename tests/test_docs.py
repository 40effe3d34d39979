"""The documentation: every public name has its text, and every example in it runs; generated pages are fresh."""

import ast
import doctest
import functools
import importlib.util
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit.cli import main
from tests.pages import blocks
from tests.processes import environment, script

pytestmark = [pytest.mark.long, pytest.mark.once]

ROOT = Path(__file__).parents[1]


make_api = script("docs/make_api.py")
# Every public object once, by the name under which the reference has it; the factories have one text.
PUBLIC = {
    f"keras_vit.{name}" if page == "models" else f"keras_vit.{page}.{name}": value
    for page, members in make_api.public().items()
    for name, value in members.items()
}
CALLABLE = {name: value for name, value in PUBLIC.items() if callable(value)}
# Examples that only JAX can run.
JAX_ONLY = {f"keras_vit.training.{n}" for n in ("data_parallel", "model_parallel", "load_sharded", "save_sharded")}


@functools.cache
def attribute_texts(room):
    """The strings below the assignments of constants in a room, which the reference shows."""
    found = {}
    for path in sorted((ROOT / room.replace(".", "/")).rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for statement, following in zip(body, body[1:], strict=False):
            for target in getattr(statement, "targets", [getattr(statement, "target", None)]):
                if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    found.setdefault(getattr(target, "id", None), inspect.cleandoc(str(following.value.value)))
    return found


@functools.cache
def text(name):
    room, _, short = name.rpartition(".")
    return inspect.getdoc(PUBLIC[name]) or "" if name in CALLABLE else attribute_texts(room).get(short, "")


def parameters(name, value):
    """What a text has to name: the parameters of a function or of a class's constructor, but not Keras's own.

    Of a function that takes the options of a `TypedDict`, that says what they mean: it has to name its keys.
    """
    if typing.is_typeddict(value):
        return list(value.__annotations__)
    function = value.__init__ if inspect.isclass(value) else value
    ours = getattr(function, "__module__", "").startswith("keras_vit") or hasattr(value, "__dataclass_fields__")
    if not ours or re.search("` (makes|returns) it\\.", text(name)):  # nobody calls such a constructor
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = inspect.signature(value).parameters.values()
    return [p.name for p in found if p.kind not in kinds and p.name not in ("self", "xp")]


POINTER = re.compile(
    r"(?:[Aa]s in|(?:[Aa]rguments|others|rest)\b[^.`]*?\b(?:of|in)|[Ll]ike|All others of|and all)\s+`(?P<name>[\w.]+)`"
)


# What a text says of a function's result, in a section or in its sentences.
RETURNS = re.compile(r"\b([Rr]eturns|returned|Yields|Whether|result)\b")


def pointed_at(name, about):
    """The public functions whose arguments, as a text says, are also this one's: each with its own text."""
    shorts = {match["name"] for match in POINTER.finditer(about)}
    beside = [other for other in CALLABLE for short in shorts if f".{other}".endswith(f".{short}") and other != name]
    return [other for other in beside if other.rpartition(".")[0] == name.rpartition(".")[0]] or beside


def documented(name, seen=()):
    """The arguments that a text lists or names as `argument`, or that the text it points at does."""
    about = text(name)
    listed = re.findall(r"^    \*{0,2}(\w+(?:, \w+)*)(?:, \*\*\w+)?:", about, re.MULTILINE)
    own = {word for words in listed for word in words.split(", ")}.union(re.findall(r"`(\w+)`", about))
    return own.union(*(documented(other, (*seen, name)) for other in pointed_at(name, about) if other not in seen))


@functools.cache
def shown():
    """The names that an example, or a block of a page that is run, calls."""
    pages = (ROOT / "README.md", *(ROOT / "docs").glob("**/*.md"))
    run = (code for page in pages for reason, code in blocks(page) if not reason)
    examples = (">>> ".join(text(name).split(">>> ")[1:]) for name in PUBLIC)
    return {name for code in (*run, *examples) for name in re.findall(r"\b(\w+)\(", code)}


def missing(name):
    value, about = PUBLIC[name], text(name)
    if not about:
        return ["a text"]
    lacks = [] if ">>> " in about or name.rpartition(".")[2] in shown() else ["an example"]
    if name not in CALLABLE:
        return lacks
    lacks += [f"the argument {p}" for p in parameters(name, value) if p not in documented(name)]
    if inspect.isfunction(value):
        returns = inspect.signature(value).return_annotation
        if returns not in (None, "None", inspect.Signature.empty) and not re.search(RETURNS, about):
            lacks.append("what it returns")
        source = inspect.getsource(inspect.unwrap(value))
        if re.search(r"^\s+raise ", source, re.MULTILINE) and not re.search(r"\w+Error\b|\berrors\b", about):
            lacks.append("what it raises")
    return lacks


def test_every_public_name_is_documented():
    gaps = {name: lacks for name in PUBLIC if (lacks := missing(name))}
    assert len(PUBLIC) > 120
    assert not gaps, "\n".join(f"{name}: {', '.join(lacks)}" for name, lacks in gaps.items())


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """What docs/api/index.md says that the examples stand on: names, and a folder with pictures."""
    Image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib").use("Agg")
    folder = tmp_path_factory.mktemp("examples")
    rng = np.random.default_rng(0)
    for place in ("", *(f"photos/{split}/{name}" for split in ("train", "test") for name in ("cat", "dog"))):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for number in (1, 2) if place else ("photo",):
            picture = Image.fromarray(rng.integers(0, 256, (30, 40, 3)).astype("uint8"))
            picture.save(folder / place / f"{number}.jpg")
    names = {}
    exec(make_api.PRELUDE, names)
    return folder, names


def examples():
    """The texts with examples by name; of the factories, which share one text, one of each kind of model."""
    factories = {f"keras_vit.{name}": getattr(keras_vit, name) for name in ("ViT_Ti16", "BiT_R50x1", "DeiT_Ti16")}
    return {**{name: text(name) for name in PUBLIC}, **{name: inspect.getdoc(f) for name, f in factories.items()}}


@pytest.mark.nightly_elsewhere
@pytest.mark.skipif(os.environ["KERAS_BACKEND"] == "tensorflow", reason="the same on all backends")
def test_the_examples_run(shared, monkeypatch, backend):
    """In one namespace, but what one example defines is gone for the next. On JAX, those that only JAX can run."""
    import keras
    import matplotlib.pyplot as plt

    folder, names = shared
    monkeypatch.chdir(folder)
    keras.utils.clear_session(free_memory=False)  # what Keras names by number begins with the first
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL | doctest.NORMALIZE_WHITESPACE
    runner, parser, report = doctest.DocTestRunner(verbose=False, optionflags=flags), doctest.DocTestParser(), []
    run = {name: about for name, about in examples().items() if (name in JAX_ONLY) == (backend == "jax")}
    for name, about in run.items():
        runner.run(parser.get_doctest(about, dict(names), name, None, None), out=report.append)
        plt.close("all")
    assert not runner.failures, "".join(report)
    assert runner.tries >= len(run)


@pytest.mark.parametrize("page", sorted(make_api.texts()))
def test_the_reference_has_all_public_names(page):
    assert (ROOT / "docs" / "api" / page).read_text() == make_api.texts()[page], "run python docs/make_api.py"


def test_every_public_name_is_on_one_page_of_the_reference():
    for room, members in make_api.public().items():
        shown = [name for _, _, names in make_api.PAGES[room] for name in names.split()]
        assert sorted(shown) == sorted(members), f"add the name to a page of {room} in PAGES of docs/make_api.py"
    written = {str(path.relative_to(ROOT / "docs" / "api")) for path in (ROOT / "docs" / "api").rglob("*.md")}
    assert written == set(make_api.texts()), "run python docs/make_api.py"


def test_the_table_of_the_zoo_is_fresh():
    assert (ROOT / "docs" / "zoo.md").read_text() == script("docs/make_zoo.py").text(), "run python docs/make_zoo.py"


def test_every_family_was_tried_out():
    """The page is what its script makes of its lines; it names the backends that a family was not tried on."""
    make_families = script("docs/make_families.py")
    page = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    rows = make_families.rows_of(page)
    assert {backend for _, backend in rows} == set(make_families.BACKENDS.values())
    assert {len(cells) for cells in rows.values()} == {len(make_families.COLUMNS)}
    assert page == make_families.page_with(rows)
    families = {row["family"] for row in keras_vit.list_models()} - {"BiT"}
    assert families <= {family.partition(",")[0] for family, _ in rows}


PAGES = {
    "good.html": '<a id="here" href="other.html#there">x</a><a href="https://example.org/">y</a>',
    "other.html": '<p id="there"><img src="data:image/png;base64,AA==">',
}
FAULTS = {
    '<a href="nowhere.html">x</a>': "leads nowhere",
    '<a href="good.html#nothing">x</a>': "names no anchor",
    '<a href="#nothing">x</a>': "names no anchor",
    '<script src="https://example.org/a.js"></script>': "fetches https://example.org/a.js",
    '<link rel="stylesheet" href="//example.org/a.css">': "fetches //example.org/a.css",
    '<img src="missing.png">': "leads nowhere",
}


def test_the_check_of_the_site_finds_faults(tmp_path):
    for name, page in PAGES.items():
        (tmp_path / name).write_text(page)
    faults = script("docs/check_site.py").faults
    assert faults(tmp_path) == []
    for page, message in FAULTS.items():
        (tmp_path / "faulty.html").write_text(page)
        (fault,) = faults(tmp_path)
        assert message in fault


# Where they run, if not on torch alone: what TensorFlow writes itself needs no second process there.
BACKENDS = {"docs/export/README.md": ["tensorflow"], "docs/keras_in_twenty_lines.md": ["torch", "jax", "tensorflow"]}
WITH_TENSORFLOW = "needs TensorFlow; the suite runs it on that backend"
OUTSIDE = ("CONTRIBUTING.md", "SECURITY.md", "weights/README.md", "examples/classify/README.md")  # on the site, too


def code_pages():
    """The pages with blocks of Python, but the README (tests/test_readme.py) and what is generated from docstrings."""
    docs = [path for path in (ROOT / "docs").rglob("*.md") if ROOT / "docs/api" not in path.parents]
    paths = [*docs, *(ROOT / name for name in OUTSIDE)]
    return sorted(str(path.relative_to(ROOT)) for path in paths if blocks(path))


# Stands for `export` on the tutorial and the pages of single formats, whose files tests/export makes: half a minute of
# work. What is checked here is that there are such a format, precision and options.
CHECKED_EXPORT = """
import inspect, pathlib, types, keras_vit.export as room
real = room.export
def export(model, path, format=None, **options):
    inspect.signature(real).bind(model, path, format, **options)
    row = room.exporting.format_of(pathlib.Path(path), format)
    precision = row.precisions[options.get("precision", "float32")]
    assert not precision.reason and precision.calibration <= ("calibration" in options)
    return types.SimpleNamespace(output="probabilities", bytes=10**6, max_abs_error=1e-6)
room.export = export
"""


# What a block prints stands below it. Words are compared; numbers differ from machine to machine.
OUTPUT = re.compile(r"^```\{\.text \.output\}\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECTION = "=== page"


def words(printed):
    return " ".join(re.sub(r"-?\d[\d.,]*(e[+-]\d+)?", "0", printed).split())


# Imports what every page imports, once, and computes nothing; each page then runs in a copy of that process.
FRESH = """
import json, os, sys, tempfile, keras_vit
for page, code in json.load(sys.stdin).items():
    print(SECTION, page, flush=True)
    child = os.fork()
    if not child:
        status = 1
        try:
            sys.argv, name = [page], {"__name__": "__main__"}
            exec(compile(code, page, "exec"), name)
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{page} does not run")
"""


@pytest.mark.each
@pytest.mark.nightly
def test_the_code_on_each_page_runs_in_a_fresh_interpreter(shared, tmp_path, backend):
    """From top to bottom, outside a checkout: a page makes all that it uses, except a folder `photos/`."""
    run = [None, WITH_TENSORFLOW] if backend == "tensorflow" else [None]
    (tmp_path / "photos").symlink_to(shared[0] / "photos")
    pages = {}
    for page in code_pages():
        codes = [code for reason, code in blocks(page) if reason in run]
        if page.startswith(("docs/export/", "docs/tutorial", "docs/keras_in")) and page != "docs/export/README.md":
            codes.insert(0, CHECKED_EXPORT)
        if codes and backend in BACKENDS.get(page, ["torch"]):
            pages[page] = re.sub(
                "steps=60, batch_size=32(.*?)every=20", r"steps=4, batch_size=32\1every=4", "".join(codes), flags=re.S
            ).replace("epochs=4", "epochs=1")
    variables = environment("matplotlib", "sklearn", KERAS_BACKEND=backend, MPLBACKEND="Agg")
    command = [sys.executable, "-c", f"SECTION = {SECTION!r}\n{FRESH}"]
    done = subprocess.run(command, input=json.dumps(pages), cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert pages and done.returncode == 0, done.stderr[-3000:]
    for part in done.stdout.split(f"{SECTION} ")[1:]:
        page, _, printed = part.partition("\n")
        for shown in OUTPUT.findall((ROOT / page).read_text("utf-8")):
            assert words(shown) in words(printed), f"{page} shows what its code does not print:\n{printed}"
    other = {"torch": "jax", "jax": "tensorflow", "tensorflow": "torch"}[backend]
    if importlib.util.find_spec(other):
        _, _, command = command_of("keras_in_twenty_lines", "KERAS_BACKEND=")
        variables = environment(KERAS_BACKEND=other)
        command = [sys.executable, "-c", command]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert done.stdout == "(None, 10)\n", done.stderr[-3000:]


def command_of(page, beginning):
    """What the shell runs for the line of a page that begins like this: its words after the first."""
    (line,) = re.findall(f"^    ({beginning}.+)$", (ROOT / "docs" / f"{page}.md").read_text("utf-8"), re.M)
    return shlex.split(line)[1:]


def test_pages_define_the_names_that_they_use(tmp_path):
    """Also in blocks that do not run."""
    for page in code_pages():
        (tmp_path / f"{page.replace('/', '_')}.py").write_text("".join(code for _, code in blocks(page)), "utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_names_on_pages_are_there():
    """Also in tables and sentences, as on the pages for those who come from other packages."""
    gone = set()
    for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        for name in re.findall(r"`keras_vit\.(?!json`)([a-z]\w*(?:\.\w+)*)\b(?!/)", path.read_text("utf-8")):
            try:
                functools.reduce(getattr, name.split("."), keras_vit)
            except AttributeError:
                gone.add(f"{path.name}: keras_vit.{name}")
    assert not gone


def test_keras_vit_is_imported_before_keras_for_which_it_chooses_the_backend():
    """Keras alone takes TensorFlow, and fails where only PyTorch or JAX is installed."""
    pages = [ROOT / name for name in ("README.md", "docs/api/index.md", *code_pages())]
    scripts = [path for folder in ("examples", "notebooks") for path in (ROOT / folder).glob("*.py")]
    sources = {path: [code for _, code in blocks(path)] for path in pages}
    sources |= {path: [path.read_text("utf-8")] for path in scripts}
    late = []
    for path, codes in sources.items():
        chosen = False  # blocks may continue each other; those that import both may stand alone
        for block in codes:
            names = re.findall(r"^(?:import|from) (keras\w*)", block, re.MULTILINE)
            late += [str(path.relative_to(ROOT))] if names and names[0] != "keras_vit" and not chosen else []
            late += [str(path.relative_to(ROOT))] if "keras_vit" in names and names[0] != "keras_vit" else []
            chosen |= "keras_vit" in names
    assert len(sources) > 30 and not late, sorted(set(late))


@pytest.mark.parametrize("page", code_pages())
def test_a_block_that_does_not_run_is_python_and_says_why(page):
    about = (ROOT / page).read_text(encoding="utf-8")
    assert len(blocks(page)) == len(
        re.findall("^```python$", about, re.MULTILINE)
    )  # none is swallowed by the one before it
    for reason, code in blocks(page):
        compile(code, page, "exec")
        assert reason is None or len(reason.split()) >= 2


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
# They run on every backend; one is enough here. The export needs TensorFlow, and LiteRT to run what it wrote.
NOTEBOOK_BACKENDS = {path.stem: "tensorflow" if path.stem == "to_a_phone" else "torch" for path in NOTEBOOKS}
SHORTER = {r"steps=\d+": "steps=2", r"epochs=\d+": "epochs=1", "train=300, test=60": "train=8, test=3"}
SHORTER |= {r"count=\d+": "count=6"}


@pytest.mark.each
@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, backend, monkeypatch, tmp_path, capsys):
    """As the script that it is written as; the run is shortened, and there are fewer pictures."""
    if backend != NOTEBOOK_BACKENDS[path.stem]:
        pytest.skip("not on this backend")
    for package in ("PIL", "sklearn", "matplotlib", *(["ai_edge_litert"] if path.stem == "to_a_phone" else [])):
        pytest.importorskip(package)
    import matplotlib.pyplot as plt
    import sklearn.datasets

    plt.switch_backend("Agg")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    digits = sklearn.datasets.load_digits()
    digits.images, digits.target = digits.images[:1250], digits.target[:1250]  # 50 of them to test on
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: digits)
    code = path.read_text(encoding="utf-8")
    for longer, shorter in SHORTER.items():
        code = re.sub(longer, shorter, code)
    exec(compile(code, path.name, "exec"), {"__name__": "__main__"})
    plt.close("all")
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_what_its_script_says_with_fresh_outputs(path):
    notebook = json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))
    parts = re.split(r"^# %%(.*)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    cells = [
        ("markdown", re.sub("^# ?", "", text, flags=re.MULTILINE)) if "markdown" in head else ("code", text)
        for head, text in zip(parts[::2], parts[1::2], strict=True)
    ]
    cells = [(kind, text.replace("# %matplotlib", "%matplotlib")) for kind, text in cells]
    shown = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert shown == [(kind, text.strip()) for kind, text in cells], "run python docs/make_notebooks.py"
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [o for cell in code for o in cell["outputs"] if o["output_type"] == "error"]
    assert any(cell["outputs"] for cell in code)


class Reached(BaseException):
    """Raised where a command would start Keras, to compute."""


def command_lines():
    """Each `keras-vit ...` on a page: in blocks, where two spaces or # begin what is said of it, and in sentences.

    `keras-vit COMMAND` in a sentence is the name of a command.
    """
    for path in [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in ("README.md", *OUTSIDE))]:
        page = path.read_text(encoding="utf-8")
        in_blocks = re.findall(r"^    (?:.+ )?(?<!install )keras-vit (.+)$", page, re.M)
        for line in in_blocks + re.findall(r"`keras-vit\s+([^`\s]+\s[^`]+)`", page):
            words = shlex.split(re.split(" {2,}|#", line)[0])
            yield f"{path.relative_to(ROOT)}: keras-vit {line}", [word for word in words if word != "COMMAND"]


def test_every_command_line_on_a_page_works(shared, tmp_path, monkeypatch, capsys):
    """Up to where it would download or compute: in a folder that has what the pages name."""

    def stop():
        raise Reached

    for name in ("photos", "labelled", "digits", "scenes", "coco", "my_pictures", "good", "bottle"):
        shutil.copytree(shared[0] / "photos", tmp_path / name)
    runs = [f"runs/{name}/model.keras" for name in ("finetune", "tutorial", "dinov2", "large", "ti")]
    written = ("B_16.npz", "features.npz", "detector.keras", "instances.json", "names.txt", "coco/panoptic_train.json")
    for name in (*runs, *written):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("cat\ndog\n")
    for name in ("photo.jpg", "digits/test/3/1004.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shared[0] / "photo.jpg", tmp_path / name)
    (tmp_path / "labels.csv").write_text("image,animals\nphoto.jpg,cat dog\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    monkeypatch.setenv("KERAS_VIT_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("keras_vit.cli.inputs.start_keras", stop)
    monkeypatch.setattr("keras_vit.cli.files.require_packages", lambda *_: None)
    faults, seen = [], 0
    for shown, words in command_lines():
        seen += 1
        try:
            code = main(["glyphs" if word == "FILE" else word for word in words])
        except (Reached, SystemExit):  # help and its like end with SystemExit
            continue
        said = capsys.readouterr().err
        if code and "KERAS_VIT_OFFLINE" not in said:
            faults.append(f"{shown}\n    {said}")
    assert not faults, "\n".join(faults)
    assert seen > 50


# Of other programs: Python, pip, Keras, PyTorch, TensorFlow, CUDA, Linux.
FOREIGN = (
    "No module named|requires a different Python|Could not locate class|size mismatch|CUDA out of memory|Killed|"
    "RESOURCE_EXHAUSTED|oneDNN custom operations|Could not find cuda drivers|failed call to cuInit"
)
VARIES = re.compile(r"\.\.\.|\(\d[\d, ]*\)|'[^']*'|\b\d[\w.]*(?: x \d+)?")


def test_every_message_that_the_page_of_errors_quotes_is_in_the_package():
    """Its words in their order in one string of the source; what stands in quotes, numbers and `...` may vary."""
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    sources = (path.read_text("utf-8") for path in (ROOT / "keras_vit").rglob("*.py"))
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    strings += [
        "".join(getattr(part, "value", "") if isinstance(part, ast.Constant) else "..." for part in node.values)
        for node in nodes
        if isinstance(node, ast.JoinedStr)
    ]
    cells = re.findall(r"^\| (.+?) \|", page, re.M)
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell) if len(text) > 8]
    own = [text for text in quoted if not re.match(FOREIGN, text)]
    patterns = {text: ".*".join(re.escape(part.strip()) for part in VARIES.split(text) if part.strip()) for text in own}
    gone = [text for text, pattern in patterns.items() if not any(re.search(pattern, s) for s in strings)]
    assert not gone, "\n".join(gone)
    assert len(own) > 25
