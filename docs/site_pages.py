"""A hook of MkDocs: pages of the site that are written elsewhere in the repository, so that nothing stands twice.

The README is the first page; CONTRIBUTING.md and the other texts of `PAGES` are pages as they are, the notebooks are
pages with their outputs, and every file of code that a page links to becomes a page with its source. Links between them
work in the repository and on the site.
"""

import json
import posixpath
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Where in the repository a page of the site is written, if not in docs/.
PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "code_of_conduct.md": "CODE_OF_CONDUCT.md",
    "weights.md": "weights/README.md",
    "golden.md": "tests/golden/README.md",
    "classify.md": "examples/classify/README.md",
}
WIDE = (
    "---\nhide: [navigation, toc]\ntitle: Vision Transformers for Keras 3\n---\n\n"  # the first page: the tabs lead on
)
CODE = {".py": "python", ".js": "javascript", ".txt": "text", ".toml": "toml", ".cff": "yaml"}
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")  # what [text](path) and [text](path#anchor) point to
# What a page shows only where the repository has an address.
WITH_REPOSITORY = re.compile(r"^<!-- with a repository\n(.*?)^-->\n", re.MULTILINE | re.DOTALL)
# What docstrings and signatures mention of Keras; it has no inventory for cross references.
KERAS = {
    "keras.Model": "https://keras.io/api/models/model/",
    "keras.layers.Layer": "https://keras.io/api/layers/base_layer/",
    "keras.optimizers.Optimizer": "https://keras.io/api/optimizers/",
    "keras.optimizers.schedules.LearningRateSchedule": "https://keras.io/api/optimizers/learning_rate_schedules/",
    "keras.losses.Loss": "https://keras.io/api/losses/",
    "keras.callbacks.Callback": "https://keras.io/api/callbacks/base_callback/",
    "keras.utils.PyDataset": "https://keras.io/api/utils/python_utils/",
    "keras.DTypePolicy": "https://keras.io/api/mixed_precision/policy/",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Sets the address of the repository as pyproject.toml has it; the pages of the API are those of their index."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    config.repo_url = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    config.repo_name = "/".join(config.repo_url.split("/")[-2:])
    rooms: dict[str, list[dict[str, str]]] = {}
    for line in (ROOT / "docs/api/index.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## `"):
            pages = rooms[line.strip("#` ")] = []
        elif page := re.match(r"- \[(.+?)\]\((.+?)\)", line):
            pages.append({page[1]: f"api/{page[2]}"})
    for section in config.nav or []:
        if "API" in section:
            section["API"] = ["api/index.md", *({room: pages} for room, pages in rooms.items())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are written elsewhere, and one for each file of code that a page links to."""
    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=WIDE + text if page == "index.md" else text))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=_notebook_page(path, config.repo_url)))
    sources = {
        target
        for file in list(files.documentation_pages())
        for target in _targets(file.content_string, _written_in(file.src_uri))
        if (ROOT / target).suffix in CODE and (ROOT / target).is_file()
    }
    for source in sorted(sources):
        files.append(File.generated(config, _page_of(source), content=_code_page(source)))
    pages = list(_pages_in(config.nav or []))
    files.append(File.generated(config, "llms.txt", content=_list_of_pages(pages, config.site_description or "")))
    files.append(File.generated(config, "llms-full.txt", content=_text_of_pages(pages, files)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links to files of the repository into links to pages of the site; what a page begins with describes it."""
    written_in = _written_in(page.file.src_uri)
    for beginning, boost in config.extra["search_boosts"].items():
        if page.file.src_uri.startswith(beginning):
            page.meta["search"] = {"boost": boost}
    markdown = WITH_REPOSITORY.sub(lambda match: with_repository(match[1], config.repo_url or ""), markdown)
    page.meta.setdefault("description", _first_words(markdown) or f"{page.title} with keras_vit")

    def on_the_site(match: re.Match[str]) -> str:
        target = _resolve(match[1], written_in)
        return match[1] if target is None else posixpath.relpath(_page_of(target), posixpath.dirname(page.file.src_uri))

    return _outside_code(LINK, on_the_site, markdown)


def on_post_page(html: str, page: Page, config: MkDocsConfig) -> str:
    """Links what the API reference names of Keras to Keras's documentation."""
    if not page.file.src_uri.startswith("api/"):
        return html
    return re.sub(
        r'<span title="(keras\.[\w.]+)">(.*?)</span>|<code>(keras\.[\w.]+)</code>',
        lambda match: _link_to_keras(match[1] or match[3], match[0]),
        html,
    )


def with_repository(text: str, repository: str) -> str:
    """Returns a part of a page with the repository's address and name filled in; nothing while it has none."""
    if not repository:
        return ""
    *_, owner, name = repository.split("/")
    return text.format(repository=repository, owner=owner, name=name)


def _link_to_keras(name: str, html: str) -> str:
    return f'<a href="{KERAS[name]}">{html}</a>' if name in KERAS else html


def _first_words(markdown: str) -> str:
    """The first paragraph without its marks, whole words of 160 characters at most: what search engines show."""
    prose = re.sub(r"^(```|~~~).*?^\1~*$|<!--.*?-->", "", markdown, flags=re.MULTILINE | re.DOTALL)
    text = next((part for part in re.split(r"\n\n+", prose) if part.lstrip("\n")[:1].isalpha()), "")
    text = re.sub(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])|[`*]", lambda match: match[1] or "", text)
    return textwrap.shorten(text, 160, placeholder=" …", break_on_hyphens=False)


# For programs that read documentation (llmstxt.org): a list of the pages, and their text in one file.


def _pages_in(nav: list, section: str = "Start") -> Iterator[tuple[str, str, str]]:
    """Section, title and path of each page of the navigation, in its order."""
    for entry in nav:
        ((title, target),) = entry.items() if isinstance(entry, dict) else (("Overview", entry),)
        if isinstance(target, list):
            yield from _pages_in(target, title)
        else:
            yield section, title, target


def _list_of_pages(pages: Iterable[tuple[str, str, str]], description: str) -> str:
    lines, last = ["# keras_vit", "", f"> {description}"], None
    for section, title, path in pages:
        if section != last:
            lines += ["", f"## {section}", ""]
            last = section
        address = path.removesuffix(".md").removesuffix("README").removesuffix("index").rstrip("/")
        lines.append(f"- [{title}]({address}{'/' if address else ''}index.html)")
    return "\n".join([*lines, ""])


def _text_of_pages(pages: Iterable[tuple[str, str, str]], files: Files) -> str:
    """The Markdown, without pictures, of all pages but the reference (docstrings) and the changelog."""
    texts = []
    for _, _, path in pages:
        file = files.get_file_from_path(path)
        if file is not None and not path.startswith("api/") and path != "changelog.md":
            texts.append(re.sub(r"<img [^>]*>", "", file.content_string.removeprefix(WIDE)).strip())
    return "\n\n".join([*texts, ""])


def _written_in(page: str) -> str:
    """The path in the repository of the file that a page is written in."""
    return PAGES.get(page, f"docs/{page}")  # notebooks: their links are as if they lay in docs/notebooks/


def _page_of(source: str) -> str:
    """The page that shows a file of the repository."""
    pages = {written_in: page for page, written_in in PAGES.items()}
    if source in pages:
        return pages[source]
    folder, _, rest = source.partition("/")
    if source.endswith(".ipynb"):
        return source.removesuffix(".ipynb") + ".md"
    if folder == "docs" and not (ROOT / source).suffix == ".py":
        return rest
    return f"source/{source}.md" if (ROOT / source).suffix in CODE else source


def _resolve(target: str, written_in: str) -> str | None:
    """The path in the repository that a link means; None for addresses and for what is not in the repository."""
    if re.match(r"\w+:", target):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(written_in), target))
    return path if (ROOT / path).exists() else None


def _targets(markdown: str, written_in: str) -> set[str]:
    targets = set()
    _outside_code(LINK, lambda match: targets.add(_resolve(match[1], written_in)) or match[0], markdown)
    return {target for target in targets if target is not None}


def _outside_code(pattern: re.Pattern[str], replace, markdown: str) -> str:
    """`re.sub` of everything but fenced blocks of code."""
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if i % 2 else pattern.sub(replace, part) for i, part in enumerate(parts))


def _code_page(source: str) -> str:
    path = ROOT / source
    code = path.read_text(encoding="utf-8").rstrip("\n")
    fence = "~" * 6
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {source}\n\n"
    return f"{head}{fence}{CODE[path.suffix]}\n{code}\n{fence}\n"


def _notebook_page(path: Path, repo_url: str | None) -> str:
    """A notebook with its outputs as a page; pictures become part of it."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    links = [f"[The script](../../notebooks/{path.stem}.py)"]
    github = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", repo_url or "")
    if github:
        colab = f"https://colab.research.google.com/github/{github[1]}/blob/main/notebooks/{path.name}"
        links.insert(0, f"[Open in Colab]({colab})")
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output) for output in cell.get("outputs", ())]
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title}\n\n{' · '.join(links)}\n{rest}\n"


def _output(output: dict) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="What the code above draws" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```{{.text .output}}\n{text.rstrip()}\n```"
