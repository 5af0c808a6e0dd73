"""The generated parts of the documentation are up to date; links, examples and pictures work."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from fencepost.coordinator.txn.states import TRANSITIONS
from tools import check_docs, site_hooks

ROOT = Path(__file__).resolve().parent.parent
NOT_USED: Any = (None, None, None)
"""What a hook gets beside its text."""


def test_the_generated_parts_of_the_documentation_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.write_docs", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_examples_and_pictures_in_the_documentation_are_valid() -> None:
    assert list(check_docs.problems()) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[there](nowhere.md)", "leads nowhere"),
        ("[there](guarantees.md#no-such-heading)", "heading that is not there"),
    ],
)
def test_a_broken_link_is_found(text: str, problem: str) -> None:
    (found,) = check_docs.broken_links(ROOT / "docs" / "start.md", text)
    assert problem in found


def test_a_valid_link_is_accepted() -> None:
    text = (
        "[a](guarantees.md#the-promise) [b](#anything) `[c](nowhere.md)` "
        "[d](https://kafka.apache.org)"
    )
    found = list(check_docs.broken_links(ROOT / "docs" / "start.md", text))
    assert found == ["the link #anything leads to a heading that is not there"]


def test_the_page_about_the_tests_is_checked_too() -> None:
    assert ROOT / "tests" / "README.md" in check_docs.pages()


def test_a_file_that_does_not_exist_is_found() -> None:
    page = ROOT / "docs" / "start.md"
    (found,) = check_docs.missing_files(page, "`log/log.py` and `log/no_such_module.py`")
    assert "log/no_such_module.py" in found


def test_a_docstring_or_comment_that_names_a_missing_file_is_found() -> None:
    source = (
        '"""As in `log/log.py`, not log/gone.py."""\nx = "tests/gone.py"  # see tests/gone_too.py\n'
        "y = 1  # As in log.py, not gone_alone.py.\n"
    )
    text = check_docs.explanations(source)
    module = ROOT / "src" / "fencepost" / "log" / "log.py"
    found = "\n".join(check_docs.missing_files(module, text))
    missing = ["log/gone.py", "tests/gone_too.py", "gone_alone.py"]
    assert re.findall(r"names (\S+),", found) == missing


@pytest.mark.parametrize(
    "text",
    [
        "docs/decisions/0007 and decisions/0007-the-hot-path-is-compiled.md",
        "<folder>/log.py, load=1/_offsets.txt, https://example.org/a/b.py, `build/made.py`",
        "`broker/*.py`, tests/log and tests/README.md",
    ],
)
def test_what_is_no_path_of_ours_and_what_exists_is_accepted(text: str) -> None:
    assert list(check_docs.missing_files(ROOT / "docs" / "start.md", text)) == []


def test_an_example_that_does_not_compile_is_found() -> None:
    text = "```python\nprint('fine')\n```\n\n```python\nprint('not\n```\n"
    assert len(list(check_docs.broken_examples(text))) == 1


@pytest.mark.parametrize(
    "code",
    [
        'TransactionalSink(servers, transactional_id="paid", topic="a")',
        'Producer({"transactional.id": "paid"})',
        '{"transactionalId": "paid"}',
        '.option("transactionalId", "paid")',
        '.option("txnAppId", "paid")',
    ],
)
def test_a_transactional_id_on_two_pages_is_found(code: str) -> None:
    page = f"```python\n{code}\n```\n"
    assert list(check_docs.shared_ids({"a.md": page + page})) == []
    (found,) = check_docs.shared_ids({"a.md": page, "b.md": page})
    assert found == "b.md: the transactional id 'paid' is also in a.md"


def test_an_id_of_the_refunds_example_is_found_on_any_page() -> None:
    page = '```python\nProducer({"transactional.id": "refunds"})\n```\n'
    assert len(list(check_docs.shared_ids({"README.md": page}))) == 1


@pytest.mark.parametrize("words", ['x="120" y="9">a', 'x="60" y="9">too long', 'x="20" y="60">low'])
def test_text_cut_off_in_a_picture_is_found(tmp_path: Path, words: str) -> None:
    picture = tmp_path / "picture.svg"
    picture.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 50"><title>t</title><text '
        f"{words}</text></svg>"
    )
    (found,) = check_docs.broken_picture(picture)
    assert "do not fit" in found


def test_text_too_small_for_a_phone_is_found(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    picture.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 50"><title>t</title>'
        '<text x="9" y="20">a</text></svg>'
    )
    (found,) = check_docs.broken_picture(picture)
    assert "too small" in found


def test_the_state_diagram_has_the_arrows_of_the_table() -> None:
    picture = ET.parse(ROOT / "docs" / "pictures" / "transaction-states.svg")
    drawn = {
        (before, after)
        for arrow in picture.iter("{http://www.w3.org/2000/svg}path")
        for before in arrow.get("data-from", "").split()
        for after in arrow.get("data-to", "").split()
    }
    table = {(a.name, b.name) for a, following in TRANSITIONS.items() for b in following}
    assert drawn == table


def test_a_wide_table_has_the_name_of_the_column_in_each_cell_for_a_phone() -> None:
    head = "<thead><tr><th>a</th><th><code>b</code></th><th>c</th></tr></thead>"
    row = '<tr><td>1</td><td style="text-align: right;">2</td><td></td></tr>'
    shown = site_hooks.on_page_content(f"<table>{head}{row}</table>", *NOT_USED)
    cells = re.findall(r'<td[^>]*data-column="(.)">(.?)</td>', shown)
    assert cells == [("a", "1"), ("b", "2"), ("c", "")]
    narrow = "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>"
    assert site_hooks.on_page_content(narrow, *NOT_USED) == narrow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the group docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(
        r"""<(?:script|img|iframe)[^>]*\ssrc="?https?:|<link[^>]*stylesheet[^>]*https?:"""
    )
    assert [page.name for page in site.rglob("*.html") if loaded.search(page.read_text())] == []


@pytest.mark.slow
def test_the_search_finds_guides_and_no_lists_of_tests_or_decisions(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"start.html", "guide/testing.html", "guarantees.html"} <= found
    assert not {page for page in found if page.startswith(("mutants", "cases", "decisions/"))}


def test_home_and_the_readme_compare_fencepost_with_others_in_the_same_words() -> None:
    readme, home = (
        (ROOT / name).read_text().partition("## Why not testcontainers")[2]
        for name in ("README.md", "docs/index.md")
    )
    rows = [line for line in readme.splitlines() if line.startswith("| ")]
    assert len(rows) > 9
    assert [line for line in home.splitlines() if line.startswith("| ")] == rows
