"""Hooks of mkdocs: pages outside docs/, links that are written for a checkout, tables on a phone.

The pages are read in two places: in a checkout, where a link may lead to any file of the tree, and
on the site, which has only docs/ and PAGES. A link to a page of the site is rewritten to its place
there; a link to a source file becomes plain text. In a table of three or more columns each cell
gets the name of its column, which a phone shows instead of the head row. `decisions/*.md` in the
navigation stands for all of them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
PAGES: Final = {
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages at the top of the tree, and their titles on the site."""

WIDE: Final = frozenset({"reference/errors.md", "reference/apis.md", "compatibility.md"})
"""Pages whose tables need the space of the table of contents."""

NOT_SEARCHED: Final = ("mutants.md", "cases.md", "chaos.md", "decisions/", "changelog.md")
"""Pages that would bury the answer: records of tests and decisions, not help."""

_TABLE: Final = re.compile(r"<table>(.*?)</table>", re.DOTALL)
_COLUMN: Final = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
_ROW: Final = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
_CELL: Final = re.compile(r"<td(.*?)>")
_TAG: Final = re.compile(r"<[^>]*>")
COLUMNS_OF_A_PHONE: Final = 2
"""Wider tables become a card per row on a phone (docs/pictures/site.css)."""

_LINK: Final = re.compile(r"(!?)\[([^\]\n]*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expands the patterns of the navigation."""
    config.nav = _expanded(config.nav)
    return config


def _expanded(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _expanded(value) for title, value in entry.items()}
    if isinstance(entry, list):
        found: list[Any] = []
        for item in entry:
            if isinstance(item, str) and "*" in item:
                found += sorted(path.relative_to(DOCS).as_posix() for path in DOCS.glob(item))
            else:
                found.append(_expanded(item))
        return found
    return entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are at the top of the tree."""
    from mkdocs.structure.files import File

    for source, name in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a checkout for the site."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    if page.file.src_uri.startswith(NOT_SEARCHED):
        page.meta["search"] = {"exclude": True}
    at_top = {name: ROOT / source for source, name in PAGES.items()}
    source = at_top.get(page.file.src_uri, DOCS / page.file.src_uri)
    return _LINK.sub(lambda link: _for_the_site(link, source, page.file.src_uri), markdown)


def _for_the_site(link: re.Match[str], source: Path, uri: str) -> str:
    image, text, target = link[1], link[2], link[3]
    path, _, anchor = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return link[0]
    name = _name_on_the_site((source.parent / path).resolve())
    if name is None:
        return text
    wanted = os.path.relpath(name, Path(uri).parent)
    return f"{image}[{text}]({wanted}{'#' + anchor if anchor else ''})"


def _name_on_the_site(target: Path) -> str | None:
    """None where the site does not have it.

    What is missing in docs/ stays a link, for mkdocs to report.
    """
    if target.is_dir():
        return None
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    if target.parent == ROOT:
        return PAGES.get(target.name)
    return None


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Names the column in each cell of a wide table."""
    return _TABLE.sub(_for_a_phone, html)


def _for_a_phone(table: re.Match[str]) -> str:
    columns = [_TAG.sub("", words).replace('"', "&quot;") for words in _COLUMN.findall(table[1])]
    if len(columns) <= COLUMNS_OF_A_PHONE:
        return table[0]

    def row(found: re.Match[str]) -> str:
        names = iter(columns)
        return _CELL.sub(lambda cell: f'<td{cell[1]} data-column="{next(names)}">', found[0])

    return f"<table data-cards>{_ROW.sub(row, table[1])}</table>"
