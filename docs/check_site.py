"""Checks a built site: every link and anchor inside it resolves, and no page fetches anything from elsewhere.

    python docs/check_site.py site

Prints what is wrong, a line each, and ends with 1 if anything is. Needs nothing but Python.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
FETCHING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "modulepreload", "manifest"}


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        fetches = tag in FETCHED or (tag == "link" and FETCHING_LINKS & set(values.get("rel", "").split()))
        address = values.get(FETCHED.get(tag, "href"))
        if address is not None:
            (self.fetched if fetches else self.links).append(address)


def faults(site: Path) -> list[str]:
    """What is wrong, a line each."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    result = []
    for path, page in pages.items():
        where = path.relative_to(site)
        result += [f"{where}: fetches {a}" for a in page.fetched if _is_elsewhere(a)]
        for address in page.links + page.fetched:
            if urlsplit(address).scheme or address.startswith("//"):
                continue
            target, anchor = urldefrag(address)
            file = path if not target else _file(site, path, unquote(target))
            if not file.is_file():
                result.append(f"{where}: {address} leads nowhere")
            elif anchor and file in pages and unquote(anchor) not in pages[file].anchors | {"__skip"}:
                result.append(f"{where}: {address} names no anchor")
    listed = site / "llms.txt"
    pages_listed = re.findall(r"\]\((.+?)\)", listed.read_text(encoding="utf-8")) if listed.is_file() else []
    result += [f"llms.txt: {page} leads nowhere" for page in pages_listed if not (site / page).is_file()]
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        result += [
            f"{style.relative_to(site)}: fetches from elsewhere" for part in ("url(http", "url(//") if part in text
        ]
    return result


def _is_elsewhere(address: str) -> bool:
    return urlsplit(address).scheme not in ("", "data") or address.startswith("//")


def _file(site: Path, page: Path, target: str) -> Path:
    """404.html is served for any address, so that its links begin at the root."""
    path = site / target.lstrip("/") if target.startswith("/") else page.parent / target
    path = Path(path.resolve())
    return path / "index.html" if path.is_dir() else path


def main() -> None:
    """Prints what is wrong, and ends with 1 if anything is."""
    found = faults(Path(sys.argv[1]).resolve())
    print("\n".join(found) or "Every link and anchor of the site resolves; nothing is fetched from elsewhere.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
