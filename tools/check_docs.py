"""Checks the documentation without building the site: part of `make check`, in about a second.

Every link leads to a file, and every anchor to a heading; every file that a page, a docstring
or a comment names exists; Python examples compile, and no two pages use the same transactional id;
pictures are well-formed and have a description; the navigation lists every page once. Tests check
whether an example does what its page says.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
PLACES: Final = ("*.md", "docs/**/*.md", "tests/*.md", "src/fencepost_examples/**/*.md")

CODE: Final = ("src", "tests", "tools", "bench")
"""Folders whose docstrings and comments are read."""
NAMED_FROM: Final = ("", "src/fencepost", "docs", "tests")
"""Folders in which a named file may be, beside those above the file that names it."""
HISTORY: Final = ("CHANGELOG.md",)
"""Pages about the past, which may name files that no longer exist."""
NOT_OURS: Final = ("build/", "PATH/", "approve.py")
"""Files that are made, or that the reader has."""

_FENCE: Final = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_CODE: Final = re.compile(r"`([^`\n]+)`")
_LINK: Final = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
_FILE: Final = re.compile(
    r"(?<![\w./:@<>{}*$~=-])"
    r"(?:(?:[\w-][\w.-]*/)+[\w.-]+\.(?:py|md|svg|toml|java|tsv|txt|yml|css)\b(?![\w/*{-])"
    r"|(?:docs|tests|tools|bench|src)/[\w./-]*\w)"
)
"""A path with a known ending, or below one of the top folders."""
_MODULE: Final = re.compile(r"(?<![\w./:@<>{}*$~=-])[\w-]+\.py\b(?![\w/*{-])")
"""A module without its folder."""
_TRANSACTIONAL_ID: Final = re.compile(
    r"""["']?(?:transactional[._]id|transactionalId|txnAppId)["']?\s*[=:,]\s*["']([^"']+)["']"""
)
EXAMPLE_IDS: Final = ("refunds", "refunds-processor-0")
"""The ids of the refunds example, which ships with the package."""
_NAVIGATION: Final = re.compile(r"^\s+- .*?([\w/.*-]+\.md)\s*$", re.MULTILINE)
TEXT_SIZE: Final = 13.0
SIZES: Final = {"title": 16.0, "small": 12.0}
"""Font sizes in docs/pictures, by class."""
WIDTH_OF_A_LETTER: Final = 0.55
PHONE_WIDTH: Final = 400.0
SMALLEST_TEXT: Final = 10.0
"""In pixels, on a phone: a picture is drawn as wide as the page at most."""
DRAWN_BY_A_COMMAND: Final = ("timeline.svg",)
"""Too wide for a phone, where it scrolls (docs/pictures/site.css)."""

SVG: Final = "{http://www.w3.org/2000/svg}"


def pages() -> list[Path]:
    """All pages, in a stable order."""
    return sorted({path for place in PLACES for path in ROOT.glob(place)})


def problems() -> Iterator[str]:
    """One line per problem, with its place."""
    for page in pages():
        name = page.relative_to(ROOT).as_posix()
        text = page.read_text(encoding="utf-8")
        found = [*broken_links(page, text), *broken_examples(text)]
        if not name.startswith(HISTORY):
            found += missing_files(page, _FENCE.sub("", text))
        yield from (f"{name}: {problem}" for problem in found)
    for module in sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        name = module.relative_to(ROOT).as_posix()
        text = module.read_text(encoding="utf-8")
        if any(missing_files(module, text)):  # perhaps in a string; tokenizing is slow
            missing = missing_files(module, explanations(text))
            yield from (f"{name}: {problem}" for problem in missing)
    yield from shared_ids(
        {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in pages()}
    )
    for picture in sorted((DOCS / "pictures").glob("*.svg")):
        name = picture.relative_to(ROOT).as_posix()
        yield from (f"{name}: {problem}" for problem in broken_picture(picture))
    yield from (f"mkdocs.yml: {problem}" for problem in broken_navigation())


def broken_links(page: Path, text: str) -> Iterator[str]:
    """Links within the tree; external links are not checked."""
    prose = _CODE.sub("", _FENCE.sub("", text))
    for target in _LINK.findall(prose):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        place = (page.parent / path).resolve() if path else page
        if not place.exists():
            yield f"the link {target} leads nowhere"
        elif anchor and place.suffix == ".md" and anchor not in anchors(place):
            yield f"the link {target} leads to a heading that is not there"


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that GitHub and the site derive from the headings."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found: dict[str, int] = {}
    for heading in _HEADING.findall(text):
        words = re.sub(r"\]\([^)]*\)|[`*\[]", "", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return frozenset(
        s if not n else f"{s}-{n}" for s, most in found.items() for n in range(most + 1)
    )


def missing_files(place: Path, text: str) -> Iterator[str]:
    """Files that the text of a page or module names, such as `broker/network/server.py`."""
    folders = [*(ROOT / folder for folder in NAMED_FROM), *place.parents]
    for name in _FILE.findall(text):
        if not name.startswith(NOT_OURS) and not any(_is_there(at, name) for at in folders):
            yield f"it names {name}, which does not exist"
    for name in _MODULE.findall(text):
        if name not in _modules() and not name.startswith(NOT_OURS):
            yield f"it names {name}, and no module has this name"


@cache
def _modules() -> frozenset[str]:
    return frozenset(path.name for folder in CODE for path in (ROOT / folder).rglob("*.py"))


def _is_there(folder: Path, name: str) -> bool:
    """Whether the file exists; a decision may be named by its number."""
    if re.fullmatch(r"(?:docs/)?decisions/\d{4}", name):
        return any(folder.glob(f"{name}-*.md"))
    return (folder / name).exists()


def explanations(source: str) -> str:
    """The docstrings and comments of a module: strings that stand alone, and what follows a #."""
    found: list[str] = []
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (begins and token.type == tokenize.STRING):
            found.append(token.string)
        elif token.type not in (tokenize.NL, tokenize.COMMENT):
            begins = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return "\n".join(found)


def broken_examples(text: str) -> Iterator[str]:
    """Python that does not compile."""
    for _, language, code in _FENCE.findall(text):
        if language == "python":
            try:
                ast.parse(textwrap.dedent(code))
            except SyntaxError as problem:
                yield f"an example does not compile: {problem.msg}: {(problem.text or '').strip()}"


def shared_ids(texts: Mapping[str, str]) -> Iterator[str]:
    """Transactional ids in the code of two pages: who tries both on one broker is refused."""
    first: dict[str, str] = dict.fromkeys(EXAMPLE_IDS, "the refunds example")
    for page, text in texts.items():
        code = "\n".join(block for _, kind, block in _FENCE.findall(text) if kind == "python")
        for found in sorted(set(_TRANSACTIONAL_ID.findall(code))):
            if (other := first.setdefault(found, page)) != page:
                yield f"{page}: the transactional id {found!r} is also in {other}"


def broken_picture(picture: Path) -> Iterator[str]:
    """A picture that is clipped, or has no description."""
    try:
        root = ET.parse(picture).getroot()
    except ET.ParseError as problem:
        yield f"it is not well-formed: {problem}"
        return
    box = [float(number) for number in root.get("viewBox", "").split()]
    if len(box) != 4:
        yield "it has no viewBox"
        return
    if root.find(f"{SVG}title") is None:
        yield "it has no title"
    for text in root.iter(f"{SVG}text"):
        if picture.name not in DRAWN_BY_A_COMMAND and not _is_readable(text, box):
            yield f"the words {''.join(text.itertext())!r} are too small on a phone"
        if text.get("transform") is None and not _fits(text, box):
            yield f"the words {''.join(text.itertext())!r} do not fit into it"


def _size(text: ET.Element) -> float:
    classes = text.get("class", "").split()
    return next((SIZES[name] for name in classes if name in SIZES), TEXT_SIZE)


def _is_readable(text: ET.Element, box: list[float]) -> bool:
    return _size(text) * min(1.0, PHONE_WIDTH / box[2]) >= SMALLEST_TEXT


def _fits(text: ET.Element, box: list[float]) -> bool:
    """Estimated with the width of DejaVu Sans, which is wider than most readers' fonts."""
    size = _size(text)
    width = len("".join(text.itertext())) * size * WIDTH_OF_A_LETTER
    before = {"middle": width / 2, "end": width}.get(text.get("text-anchor", "start"), 0.0)
    left, y = float(text.get("x", "0")) - before, float(text.get("y", "0"))
    return box[0] <= left and left + width <= box[0] + box[2] and box[1] <= y <= box[1] + box[3]


def broken_navigation() -> Iterator[str]:
    """Pages without an entry in the navigation, and entries without a page."""
    from tools.site_hooks import PAGES

    listed: list[str] = []
    for entry in _NAVIGATION.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8")):
        found = [path.relative_to(DOCS).as_posix() for path in DOCS.glob(entry)]
        if not found and entry not in PAGES.values():
            yield f"{entry} does not exist"
        listed += found or [entry]
    for page in DOCS.rglob("*.md"):
        times = listed.count(page.relative_to(DOCS).as_posix())
        if times != 1:
            yield f"docs/{page.relative_to(DOCS).as_posix()} is in the navigation {times} times"


def main() -> int:
    """The exit code: 1 if there is a problem."""
    found = list(problems())
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
