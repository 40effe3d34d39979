"""What is installed, and how: pinned versions, nothing that only works here, and a wheel that carries its data."""

import compileall
import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from keras_vit._importing import DISTRIBUTION
from tests.processes import environment

pytestmark = pytest.mark.once

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
VERSION = re.search(r'^__version__ = "(.+)"$', (REPOSITORY / "keras_vit" / "__init__.py").read_text(), re.MULTILINE)[1]
CHANGELOG = (REPOSITORY / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module")
def pins():
    lines = re.findall(r"^([\w.-]+)==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in lines}


def test_everything_is_pinned_and_nothing_of_cuda_is(pins):
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    names = {re.match(r"[\w.-]+", line)[0].replace("_", "-") for line in [*PROJECT["dependencies"], *extras]}
    assert names - set(pins) == {DISTRIBUTION}
    assert not [name for name in pins if name.startswith(("nvidia", "cuda", "triton"))]
    hooks = re.findall(r"ruff==([\w.]+)", (REPOSITORY / ".pre-commit-config.yaml").read_text())
    assert set(hooks) == {pins["ruff"]}


def other_names(text):
    """What else than our distribution a text installs, or asks an extra of, under a name that looks like ours."""
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()  # a shell's line may go on
    installed = [re.search(r"pip[^\n`]*? install ([^`#|(;]*)", line) for line in lines]
    words = " ".join(found[1] for found in installed if found).split() + re.findall(r"[\w.-]+\\?\[[a-z]", text)
    ours = re.compile(r"keras[-_.]?vit(?:[-_.][a-z]\w*)*", re.I)  # without the version of a wheel
    names = {re.sub(r"[-_.]+", "-", found[0].lower()) for word in words if (found := ours.match(word.strip("\"'")))}
    return names - {DISTRIBUTION}


def test_nothing_of_ours_is_installed_under_another_name():
    """The name `keras-vit` on the package index belongs to another project. The changelog says what once was."""
    left_out = {".git", ".venv", "site", "dist", "sbom", "CHANGELOG.md"}
    suffixes = {"", ".cff", ".ipynb", ".md", ".py", ".sh", ".toml", ".txt", ".yml"}
    files = [path for path in REPOSITORY.rglob("*") if path.is_file() and path.suffix in suffixes]
    read = [path for path in files if left_out.isdisjoint(path.relative_to(REPOSITORY).parts)]
    faults = {str(path.relative_to(REPOSITORY)): other_names(path.read_text(errors="ignore")) for path in read}
    assert len(read) > 300 and not {path: names for path, names in faults.items() if names}
    for line in ("{}[torch]", '"{}"', "-U {}\\\n --pre", "{}-1.0.1-py3-none-any.whl"):
        assert other_names("pip install " + line.format("keras_vit")) == {"keras-vit"}
    assert PROJECT["name"] == DISTRIBUTION and DISTRIBUTION in (REPOSITORY / "CITATION.cff").read_text()


@pytest.mark.parametrize(
    ("installed", "start"),
    [("before", ("-m", "keras_vit.cli", "--version")), ("after", ("-c", "import keras_vit.training"))],
)
def test_the_other_keras_vit_of_the_index_is_found_beside_ours(tmp_path, installed, start):
    """Both put files into one folder: ours works until the other is uninstalled, or has lost its `__init__.py`."""
    shutil.copytree(REPOSITORY / "keras_vit", tmp_path / "keras_vit", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "keras_vit-1.0.1.dist-info").mkdir()
    if installed == "after":
        (tmp_path / "keras_vit" / "__init__.py").write_text('__version__ = "1.0.0"')
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, *start], env=variables, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    for words in ("keras_vit-1.0.1.dist-info", "is another project", "pip uninstall keras-vit keras-vit-zoo"):
        assert words in done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The source archive, and the wheel that is built from it, without network, with this environment's tools."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*command, str(REPOSITORY)], check=True, capture_output=True, timeout=120)
    return folder


def test_the_wheel_carries_its_data_and_says_what_an_index_shows(dist):
    (wheel,) = dist.glob("keras_vit_zoo-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (path,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(path))
    data = {path.name for path in (REPOSITORY / "weights").iterdir() if path.is_file() and path.suffix != ".py"}
    assert {f"keras_vit/weights/{name}" for name in data} <= names and "imagenet1k_classes.tsv" in data
    assert "keras_vit/weights/samples/character.png" in names
    assert {"keras_vit/py.typed", "keras_vit/layers/__init__.py", "keras_vit/_page.html"} <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"keras_vit", "keras_vit_zoo"}
    assert not [name for name in names if "__pycache__" in name or re.match(r"keras_vit/weights/.*\.py", name)]
    assert (metadata["Name"], metadata["Version"]) == (DISTRIBUTION, VERSION)
    assert metadata["Description-Content-Type"] == "text/markdown"
    readme = metadata.get_payload()
    assert not broken_links(readme) and "<div" not in readme and 'pip install ".[torch,images,demo]"' in readme
    labels = [line.partition(", ")[0] for line in metadata.get_all("Project-URL")]
    assert "Original code (Google)" in labels and max(map(len, labels)) <= 32  # which is the index's limit
    pythons = {line.rpartition(" ")[2] for line in metadata.get_all("Classifier") if "Python :: 3." in line}
    assert pythons == {"3.11", "3.12", "3.13"}


def broken_links(markdown):
    """Where links and pictures point to that an index does not show: files beside the page."""
    prose = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return [target for target in re.findall(r"\]\(([^)\s]+)", prose) if not re.match(r"https://|#", target)]


def test_the_source_archive_has_what_the_repository_has(dist):
    """What somebody needs to test, document and build it again; nothing that a machine left behind."""
    (archive,) = dist.glob("keras_vit_zoo-*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    top = "README.md CHANGELOG.md CITATION.cff SECURITY.md LICENSE Makefile constraints.txt mkdocs.yml".split()
    top.append("CODE_OF_CONDUCT.md")
    deeper = "weights/train_glyphs.py weights/glyphs.npz tests/conftest.py examples/finetune_digits.py".split()
    assert {*top, *deeper, "docs/site_pages.py"} <= names and "docs/index.md" not in names
    # What `make` runs and the tests of this file read.
    makefile = (REPOSITORY / "Makefile").read_text()
    assert {".ci/run", ".ci/newcomer", ".ci/bare.sh", ".pre-commit-config.yaml"} <= names
    assert set(re.findall(r"(?:\.ci|benchmarks|docs)/\w+\.\w+", makefile)) <= names
    assert not [name for name in names if re.search(r"__pycache__|^(\.venv|\.github|site|dist|runs)/", name)]
    assert "tests/golden/README.md" in names and "tests/golden/mini_token/ref.npz" not in names
    assert archive.stat().st_size < 7e6


def test_the_version_is_the_same_everywhere_and_the_changelog_as_keep_a_changelog_wants_it():
    released = re.findall(r"^## \[(\d[\d.]+)\] - (\d{4}-\d\d-\d\d)$", CHANGELOG, re.MULTILINE)
    titles = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    cited = (REPOSITORY / "CITATION.cff").read_text()
    assert released[0][0] == VERSION and titles[0] == "[Unreleased]" and len(titles) == len(released) + 1
    wheels = [re.findall(r"keras_vit_zoo-([\d.]+)-py3", path.read_text()) for path in REPOSITORY.glob("docs/*.md")]
    assert set(sum(wheels, [])) == {VERSION}
    assert f"\nversion: {VERSION}\n" in cited and f"\ndate-released: {released[0][1]}\n" in cited
    versions = [tuple(map(int, version.split("."))) for version, _ in released]
    assert versions == sorted(versions, reverse=True)
    kinds = set(re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE))
    assert kinds <= {"Numbers that change", *"Added Breaking Changed Deprecated Removed Fixed Security".split()}


# As the program, which imports late: every name that a room offers can be had.
LATE = """
import importlib, sys
import keras_vit

assert "keras" not in sys.modules
for room in ("", ".layers", ".models", ".checkpoints", ".data", ".training"):
    room = importlib.import_module("keras_vit" + room)
    assert room.__file__.endswith(".pyc") and not hasattr(room, "nonsense")
    for name in room.__all__:
        module = getattr(getattr(room, name), "__module__", "keras_vit")
        assert module.startswith("keras_vit"), (room, name, module)
"""


def test_all_names_are_imported_late_and_from_compiled_files_alone(tmp_path):
    """As PyInstaller and Nuitka pack it, without sources."""
    shutil.copytree(REPOSITORY / "keras_vit", tmp_path / "keras_vit", ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(tmp_path, legacy=True, quiet=2)
    for source in tmp_path.rglob("*.py"):
        source.unlink()
    program = tmp_path / "keras-vit"
    program.write_text(LATE)
    variables = environment()
    variables["PYTHONPATH"] = variables["PYTHONPATH"].replace(str(REPOSITORY), str(tmp_path))
    done = subprocess.run([sys.executable, str(program)], env=variables, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
